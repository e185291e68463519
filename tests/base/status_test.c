/* Every status has a name, a text and a gRPC code; errors are set, wrapped and cut as status.h
 * says. */
#include "base/status.h"

#include <stdio.h>
#include <string.h>

#include "tests/lib/cmocka.h"
#include "tests/lib/heap.h"

static const struct {
    tether_status status;
    int number;
    const char *name, *text;
    int grpc;
} rows[] = {
#define X(name, number, text, grpc) {TETHER_##name, number, "TETHER_" #name, text, grpc},
    TETHER_STATUS_MAP(X)
#undef X
};

static void every_status_is_described(void **state)
{
    (void)state;
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        assert_int_equal(rows[i].number, i); /* no gaps: the tables are indexed by number */
        assert_string_equal(tether_status_name(rows[i].status), rows[i].name);
        assert_string_equal(tether_status_text(rows[i].status), rows[i].text);
        assert_int_equal(tether_status_to_grpc(rows[i].status), rows[i].grpc);
        assert_in_range(rows[i].grpc, 0, 16);
        assert_true((rows[i].grpc == 0) == (rows[i].status == TETHER_OK));
    }
}

static void unknown_numbers_have_a_name_and_text(void **state)
{
    (void)state;
    const int strange[] = {-1, (int)TETHER__ARRAY_LEN(rows), 1000, INT32_MIN, INT32_MAX};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(strange); i++) {
        assert_string_equal(tether_status_name((tether_status)strange[i]), "TETHER_?");
        assert_string_equal(tether_status_text((tether_status)strange[i]), "unknown status");
        assert_int_equal(tether_status_to_grpc((tether_status)strange[i]), 2);
    }
}

/* Every gRPC code maps to a status that maps back to the same code. */
static void grpc_code_is_unchanged_when_mapped_to_status_and_back(void **state)
{
    (void)state;
    for (int code = 0; code <= 16; code++)
        assert_int_equal(tether_status_to_grpc(tether_status_from_grpc(code)), code);
    assert_int_equal(tether_status_from_grpc(-1), TETHER_EINTERNAL);
    assert_int_equal(tether_status_from_grpc(17), TETHER_EINTERNAL);
}

static void set_fills_the_error_and_returns_the_status(void **state)
{
    (void)state;
    tether_error err = {0};
    assert_int_equal(tether_error_set(&err, TETHER_EINVAL, "rank %d of %d", 3, 2), TETHER_EINVAL);
    assert_int_equal(err.code, TETHER_EINVAL);
    assert_string_equal(err.message, "rank 3 of 2");
    assert_int_equal(tether_error_set(NULL, TETHER_EIO, "nobody %s", "listens"), TETHER_EIO);
}

static void error_set_accepts_its_own_message_as_argument(void **state)
{
    (void)state;
    tether_error err = {0};
    tether_error_set(&err, TETHER_EIO, "disk");
    tether_error_set(&err, TETHER_EIO, "%s is full", err.message);
    assert_string_equal(err.message, "disk is full");
    tether_error_wrap(&err, TETHER_EIO, "while '%s'", err.message);
    assert_string_equal(err.message, "while 'disk is full': disk is full");
}

static void wrap_adds_context_before_message(void **state)
{
    (void)state;
    tether_error err = {0};
    tether_error_set(&err, TETHER_ETIMEOUT, "no answer in 5 ms");
    assert_int_equal(tether_error_wrap(&err, TETHER_ETIMEOUT, "looking up '%s'", "ps"),
                     TETHER_ETIMEOUT);
    assert_string_equal(err.message, "looking up 'ps': no answer in 5 ms");
    assert_int_equal(tether_error_wrap(NULL, TETHER_ETIMEOUT, "unheard"), TETHER_ETIMEOUT);
}

/* An inner function that failed without filling the error leaves the text of its status. */
static void wrap_of_an_error_that_was_not_set_says_the_status(void **state)
{
    (void)state;
    tether_error err = {0};
    tether_error_wrap(&err, TETHER_ENOMEM, "joining");
    assert_int_equal(err.code, TETHER_ENOMEM);
    assert_string_equal(err.message, "joining: out of memory");
}

static void long_message_loses_its_middle(void **state)
{
    (void)state;
    tether_error err;
    char text[TETHER_ERROR_MESSAGE_SIZE + 1];
    memset(text, 'x', sizeof text);

    text[TETHER_ERROR_MESSAGE_SIZE - 1] = '\0'; /* fits exactly */
    tether_error_set(&err, TETHER_EIO, "%s", text);
    assert_string_equal(err.message, text);

    text[TETHER_ERROR_MESSAGE_SIZE - 1] = 'x'; /* one byte more than fits */
    text[TETHER_ERROR_MESSAGE_SIZE] = '\0';
    tether_error_set(&err, TETHER_EIO, "%s", text);
    assert_int_equal(strlen(err.message), TETHER_ERROR_MESSAGE_SIZE - 1);
    assert_non_null(strstr(err.message, "xx...xx"));

    tether_error_set(&err, TETHER_EIO, "%s: raise max_calls_per_peer", text);
    tether_error_wrap(&err, TETHER_EIO, "the front is kept");
    assert_memory_equal(err.message, "the front is kept: xxx", 22);
    assert_non_null(strstr(err.message, "x: raise max_calls_per_peer"));
    assert_true(strlen(err.message) < TETHER_ERROR_MESSAGE_SIZE);
}

/* As long as a path or a URL may be, and longer; of characters that are escaped, too. */
static void longest_message_loses_its_middle(void **state)
{
    (void)state;
    static char text[64 * 1024];
    const size_t lengths[] = {700, 1000, 1023, 1024, 4095, 8190, sizeof text - 1};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(lengths); i++)
        for (const char *filler = "x\033"; *filler; filler++) {
            tether_error err;
            memset(text, *filler, lengths[i]);
            text[lengths[i]] = '\0';
            tether_error_set(&err, TETHER_EIO, "cannot open '%s': %s: give a file", text,
                             "No file");
            assert_memory_equal(err.message, "cannot open '", 13);
            assert_non_null(strstr(err.message, *filler == 'x' ? "x...x" : "\\x1b"));
            assert_non_null(strstr(err.message, "...")); /* once: the middle */
            assert_null(strstr(strstr(err.message, "...") + 1, "..."));
            const char *end =
                *filler == 'x' ? "x': No file: give a file" : "b': No file: give a file";
            assert_string_equal(err.message + strlen(err.message) - strlen(end), end);

            tether_error_set(&err, TETHER_EIO, "raise max_calls_per_peer");
            tether_error_wrap(&err, TETHER_EIO, "opening '%s'", text);
            assert_memory_equal(err.message, "opening '", 9);
            end = ": raise max_calls_per_peer";
            assert_string_equal(err.message + strlen(err.message) - strlen(end), end);
        }
}

static void longest_message_has_dots_at_its_end_when_there_is_no_memory(void **state)
{
    (void)state;
    char text[4096];
    tether_error err;
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    tether_test_heap_fail_from(0);
    tether_error_set(&err, TETHER_EIO, "cannot open '%s': give a file", text);
    tether_test_heap_fail_never();
    assert_memory_equal(err.message, "cannot open 'xxx", 16);
    assert_string_equal(err.message + strlen(err.message) - 6, "xxx...");
    assert_int_equal(tether_test_heap_live(), 0);
}

static void message_is_cut_between_characters(void **state)
{
    (void)state;
    tether_error err;
    char text[4 * TETHER_ERROR_MESSAGE_SIZE] = "";
    for (int shift = 0; shift < 4; shift++) {
        memset(text, 'x', (size_t)shift);
        text[shift] = '\0';
        for (int i = 0; i < 200; i++)
            strcat(text, "\u20ac"); /* three bytes */
        tether_error_set(&err, TETHER_EIO, "%s", text);
        const char *dots = strstr(err.message, "...");
        assert_non_null(dots);
        assert_int_equal((dots - err.message - shift) % 3, 0);
        assert_int_equal(strlen(dots + 3) % 3, 0);
    }
}

static void wrap_does_not_repeat_its_context(void **state)
{
    (void)state;
    tether_error err = {0};
    tether_error_set(&err, TETHER_EIO, "the disk is full");
    for (int i = 0; i < 3; i++)
        tether_error_wrap(&err, TETHER_EIO, "passing on a reference");
    assert_string_equal(err.message, "passing on a reference: the disk is full");
}

/* A message is one line that is safe to print, even with text from a peer. */
static void control_characters_are_escaped(void **state)
{
    (void)state;
    tether_error err = {0};
    tether_error_set(&err, TETHER_EREMOTE, "worker said '%s'", "\033[2J\ntwo\t\377");
    assert_string_equal(err.message, "worker said '\\x1b[2J\\ntwo\\t\\xff'");
    char snowmen[2 * TETHER_ERROR_MESSAGE_SIZE] = "";
    while (strlen(snowmen) + 4 < sizeof snowmen)
        strcat(snowmen, "☃");
    tether_error_set(&err, TETHER_EREMOTE, "%s", snowmen); /* cut between two characters */
    size_t len = strlen(err.message);
    assert_in_range(len, TETHER_ERROR_MESSAGE_SIZE - 4, TETHER_ERROR_MESSAGE_SIZE - 1);
    assert_non_null(strstr(err.message, "☃...☃"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_is_described),
        cmocka_unit_test(unknown_numbers_have_a_name_and_text),
        cmocka_unit_test(grpc_code_is_unchanged_when_mapped_to_status_and_back),
        cmocka_unit_test(set_fills_the_error_and_returns_the_status),
        cmocka_unit_test(error_set_accepts_its_own_message_as_argument),
        cmocka_unit_test(wrap_adds_context_before_message),
        cmocka_unit_test(wrap_of_an_error_that_was_not_set_says_the_status),
        cmocka_unit_test(long_message_loses_its_middle),
        cmocka_unit_test(longest_message_loses_its_middle),
        cmocka_unit_test(longest_message_has_dots_at_its_end_when_there_is_no_memory),
        cmocka_unit_test(message_is_cut_between_characters),
        cmocka_unit_test(wrap_does_not_repeat_its_context),
        cmocka_unit_test(control_characters_are_escaped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
