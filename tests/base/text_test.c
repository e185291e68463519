/* Foreign text: for any input the output is UTF-8 without control characters. */
#include "base/text.h"

#include <locale.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/cmocka.h"
#include "tests/lib/locale.h"

static const char *escaped(const char *text, enum tether__text_style style)
{
    static char out[512];
    tether__text_escape(out, sizeof out, tether_bytes_str(text), style);
    return out;
}

static void line_escapes_invisible_characters(void **state)
{
    (void)state;
    static const struct {
        const char *text, *line;
    } cases[] = {
        {"", ""},
        {"plain 'text', \"quoted\" \\ and ümläut 漢字 😀",
         "plain 'text', \"quoted\" \\ and ümläut 漢字 😀"},
        {"\033[2J\033]0;title\a", "\\x1b[2J\\x1b]0;title\\x07"},
        {"two\nlines\r\tand a tab", "two\\nlines\\x0d\\tand a tab"},
        {"DEL \177", "DEL \\x7f"},
        {"C1 \302\233"
         "31m",
         "C1 \\u009b31m"}, /* CSI as one character */
        {"not UTF-8 \233"
         "31m \377",
         "not UTF-8 \\x9b31m \\xff"}, /* CSI as one byte */
        {"overlong \300\257 \340\200\257", "overlong \\xc0\\xaf \\xe0\\x80\\xaf"},
        {"surrogate \355\240\200", "surrogate \\xed\\xa0\\x80"},
        {"beyond \364\220\200\200", "beyond \\xf4\\x90\\x80\\x80"},
        {"cut short \342\202", "cut short \\xe2\\x82"},
        {"bidi \342\200\256txt.exe", "bidi \\u202etxt.exe"},
        {"separators \342\200\250 \342\200\251", "separators \\u2028 \\u2029"},
        {"tag \363\240\201\201", "tag \\U0e0041"},
    };
    for (size_t i = 0; i < TETHER__ARRAY_LEN(cases); i++) {
        assert_string_equal(escaped(cases[i].text, TETHER__TEXT_LINE), cases[i].line);
        bool same = strcmp(cases[i].text, cases[i].line) == 0;
        assert_int_equal(tether__text_is_clean(cases[i].text, strlen(cases[i].text)), same);
        /* Escaping again changes nothing: messages are made of messages. */
        assert_true(tether__text_is_clean(cases[i].line, strlen(cases[i].line)));
    }
}

static void json_and_label_escape_their_quotes(void **state)
{
    (void)state;
    static const char hostile[] = "\"},\n{\\\033\177\302\205\377\363\240\201\201";
    assert_string_equal(escaped(hostile, TETHER__TEXT_JSON),
                        "\\\"},\\u000a{\\\\\\u001b\\u007f\\u0085\\ufffd\\udb40\\udc41");
    assert_string_equal(escaped(hostile, TETHER__TEXT_LABEL),
                        "\\\"},\\n{\\\\\\\\x1b\\\\x7f\\\\u0085\\\\xff\\\\U0e0041");
}

static void escape_cuts_between_characters(void **state)
{
    (void)state;
    char out[16];
    tether_bytes text = tether_bytes_str("ab\033€");
    for (size_t size = 0; size <= sizeof out; size++) {
        memset(out, '?', sizeof out);
        assert_int_equal(tether__text_escape(out, size, text, TETHER__TEXT_LINE), 9);
        const char *want = size > 9 ? "ab\\x1b€" : size > 6 ? "ab\\x1b" : size > 2 ? "ab" : "a";
        if (size > 1)
            assert_string_equal(out, want);
        else if (size == 1)
            assert_int_equal(out[0], '\0');
        if (size < sizeof out)
            assert_int_equal(out[size], '?'); /* no byte is written beyond the given size */
    }
}

/* The output is clean for any input, and a cut output is the beginning of the whole one. */
static void fit_cuts_the_middle_between_characters(void **state)
{
    (void)state;
    char to[32];
    tether__text_fit(to, sizeof to, tether_bytes_of(NULL, 0));
    assert_string_equal(to, "");
    tether__text_fit(to, sizeof to, tether_bytes_str("0123456789012345678901234567890"));
    assert_string_equal(to, "0123456789012345678901234567890"); /* 31: it just fits */
    tether__text_fit(to, sizeof to,
                     tether_bytes_str("calling 'x' failed: the disk is full: delete it"));
    assert_string_equal(to, "calling 'x' ... full: delete it");
    for (size_t lead = 0; lead < 3; lead++) { /* characters of three bytes at every offset */
        char text[128];
        memset(text, 'x', lead);
        text[lead] = '\0';
        for (int i = 0; i < 20; i++)
            strcat(text, "\u2603");
        tether__text_fit(to, sizeof to, tether_bytes_str(text));
        assert_true(strlen(to) > sizeof to - 8 && tether__text_is_clean(to, strlen(to)));
        assert_non_null(strstr(to, "\u2603...\u2603"));
    }
}

static void escape_of_any_bytes_is_clean(void **state)
{
    (void)state;
    uint64_t random = 88172645463325252u;
    for (int round = 0; round < 20000; round++) {
        char bytes[24], whole[512], part[512];
        for (size_t i = 0; i < sizeof bytes; i++) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            static const unsigned char tricky[] = {0xc2, 0x80, 0xe2, 0x80, 0xae, 0xf3, 0xa0, 0x1b};
            bytes[i] = (char)(random % 3 ? tricky[random % sizeof tricky] : (random >> 8) & 0xff);
        }
        for (int style = TETHER__TEXT_LINE; style <= TETHER__TEXT_LABEL; style++) {
            tether_bytes text = tether_bytes_of(bytes, sizeof bytes);
            size_t len =
                tether__text_escape(whole, sizeof whole, text, (enum tether__text_style)style);
            assert_int_equal(strlen(whole), len);
            assert_true(tether__text_is_clean(whole, len));
            size_t size = 1 + random % (len + 1);
            tether__text_escape(part, size, text, (enum tether__text_style)style);
            assert_true(tether__text_is_clean(part, strlen(part)));
            assert_memory_equal(part, whole, strlen(part));
        }
    }
}

static void print_appends_to_buffer(void **state)
{
    (void)state;
    tether_buf out = TETHER_BUF_INIT;
    assert_int_equal(tether__text_print(&out, tether_bytes_str("a\nb"), TETHER__TEXT_LINE),
                     TETHER_OK);
    assert_int_equal(tether__text_print(&out, tether_bytes_str("\""), TETHER__TEXT_JSON),
                     TETHER_OK);
    assert_int_equal(tether__text_print(&out, tether_bytes_str(""), TETHER__TEXT_JSON), TETHER_OK);
    assert_string_equal(out.data, "a\\nb\\\"");
    tether_buf_fini(&out);
}

static void number_has_a_point_in_the_c_locale(void **state)
{
    (void)state;
    char *end;
    assert_true(tether__text_to_double("1.5s", &end) == 1.5 && *end == 's');
    assert_true(tether__text_to_double("1,5", &end) == 1 && *end == ',');
}

static void number_has_a_point_when_the_locale_has_a_comma(void **state)
{
    (void)state;
    char text[16], *end;
    if (!tether_test_use_decimal_comma()) {
        print_message("no locale with a decimal comma can be made here\n");
        skip();
    }
    snprintf(text, sizeof text, "%.1f", 0.5);
    assert_string_equal(text, "0,5");
    assert_true(tether__text_to_double("1.5s", &end) == 1.5 && *end == 's');
    assert_true(tether__text_to_double("1,5", &end) == 1 && *end == ',');
    setlocale(LC_NUMERIC, "C");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(line_escapes_invisible_characters),
        cmocka_unit_test(json_and_label_escape_their_quotes),
        cmocka_unit_test(escape_cuts_between_characters),
        cmocka_unit_test(fit_cuts_the_middle_between_characters),
        cmocka_unit_test(escape_of_any_bytes_is_clean),
        cmocka_unit_test(print_appends_to_buffer),
        cmocka_unit_test(number_has_a_point_in_the_c_locale),
        cmocka_unit_test(number_has_a_point_when_the_locale_has_a_comma),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
