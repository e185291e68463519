/* Foreign text, escaped. See text.h. */
#include "base/text.h"

#include <locale.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOT_UTF8 UINT32_MAX
#define LONGEST_ESCAPE 15 /* length of the longest escape sequence, with its NUL */

/* Decodes the character at `text`; returns its length, 1 for a byte that is not UTF-8. */
static size_t decode(const unsigned char *text, size_t len, uint32_t *ret_code)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    unsigned char first = text[0];
    size_t n = first < 0x80                    ? 1
               : first >= 0xc2 && first < 0xe0 ? 2
               : first >= 0xe0 && first < 0xf0 ? 3
               : first >= 0xf0 && first < 0xf5 ? 4
                                               : 0;
    *ret_code = NOT_UTF8;
    if (n == 0 || n > len)
        return 1;
    uint32_t code = n == 1 ? first : first & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 1;
        code = code << 6 | (text[i] & 0x3fu);
    }
    if (code < least[n] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        return 1;
    *ret_code = code;
    return n;
}

/* Whether a character controls or reorders the text around it. */
static bool is_unsafe(uint32_t code)
{
    return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x61c || code == 0x200e ||
           code == 0x200f || (code >= 0x2028 && code <= 0x202e) ||
           (code >= 0x2066 && code <= 0x2069) || code == 0xfeff ||
           (code >= 0xfff9 && code <= 0xfffb) || (code >= 0xe0000 && code <= 0xe007f) ||
           code == NOT_UTF8;
}

/* Writes a JSON escape. JSON has only 16-bit escapes, so higher characters are written as a pair.
 */
static void escape_json(char *to, uint32_t code)
{
    if (code == NOT_UTF8)
        strcpy(to, "\\ufffd");
    else if (code == '"' || code == '\\')
        snprintf(to, LONGEST_ESCAPE, "\\%c", (char)code);
    else if (code > 0xffff)
        snprintf(to, LONGEST_ESCAPE, "\\u%04x\\u%04x",
                 (unsigned)(0xd800 + ((code - 0x10000) >> 10)) & 0xffff,
                 (unsigned)(0xdc00 + ((code - 0x10000) & 0x3ff)) & 0xffff);
    else
        snprintf(to, LONGEST_ESCAPE, "\\u%04x", (unsigned)code & 0xffff);
}

static void escape_line(char *to, uint32_t code, unsigned char byte)
{
    if (code == '\n')
        strcpy(to, "\\n");
    else if (code == '\t')
        strcpy(to, "\\t");
    else if (code == NOT_UTF8 || code < 0x80)
        snprintf(to, LONGEST_ESCAPE, "\\x%02x", byte);
    else
        snprintf(to, LONGEST_ESCAPE, code > 0xffff ? "\\U%06x" : "\\u%04x",
                 (unsigned)code & 0xffffff);
}

static void escape_label(char *to, uint32_t code, unsigned char byte)
{
    if (code == '\n' || code == '"' || code == '\\') {
        snprintf(to, LONGEST_ESCAPE, "\\%c", code == '\n' ? 'n' : (char)code);
    } else { /* labels have no other escapes, so write that of a line with its backslash escaped */
        to[0] = '\\';
        escape_line(to + 1, code, byte);
    }
}

/* Returns the escape of the character at `text`, or "" if it needs none; `*ret_len` is the length
 * of the character. */
static const char *escape_one(const unsigned char *text,
                              size_t len,
                              enum tether__text_style style,
                              char *to,
                              size_t *ret_len)
{
    uint32_t code;
    *ret_len = decode(text, len, &code);
    to[0] = '\0';
    bool quoted = style != TETHER__TEXT_LINE && (code == '"' || code == '\\');
    if (!quoted && !is_unsafe(code))
        return to;
    if (style == TETHER__TEXT_JSON)
        escape_json(to, code);
    else if (style == TETHER__TEXT_LABEL)
        escape_label(to, code, text[0]);
    else
        escape_line(to, code, text[0]);
    return to;
}

bool tether__text_is_clean(const char *text, size_t len)
{
    for (size_t i = 0; i < len;) {
        uint32_t code;
        i += decode((const unsigned char *)text + i, len - i, &code);
        if (is_unsafe(code))
            return false;
    }
    return true;
}

/* Returns how many characters at the front need no escape. It is fast for printable ASCII, the
 * usual case. */
static size_t count_plain(const unsigned char *text, size_t len, enum tether__text_style style)
{
    size_t n = 0;
    while (n < len && text[n] >= 0x20 && text[n] < 0x7f &&
           (style == TETHER__TEXT_LINE || (text[n] != '"' && text[n] != '\\')))
        n++;
    return n;
}

size_t tether__text_escape(char *to, size_t size, tether_bytes text, enum tether__text_style style)
{
    const unsigned char *from = text.data;
    size_t needed = 0, written = 0;
    bool fits = size > 0;
    for (size_t i = 0, len; i < text.len; i += len) {
        char escape[LONGEST_ESCAPE + 1];
        len = count_plain(from + i, text.len - i, style);
        if (len > 0) {
            size_t room = fits ? size - 1 - written : 0;
            size_t n = len < room ? len : room;
            if (n > 0)
                memcpy(to + written, from + i, n);
            fits = fits && n == len;
            written += n;
            needed += len;
            continue;
        }
        escape_one(from + i, text.len - i, style, escape, &len);
        size_t out = escape[0] ? strlen(escape) : len;
        fits = fits && written + out < size;
        if (fits) {
            memcpy(to + written, escape[0] ? escape : (const char *)from + i, out);
            written += out;
        }
        needed += out;
    }
    if (size > 0)
        to[written] = '\0';
    return needed;
}

static bool is_inside_character(char c)
{
    /* 10xxxxxx: the second or a later byte of a UTF-8 character */
    return ((unsigned char)c & 0xc0) == 0x80;
}

void tether__text_fit(char *to, size_t size, tether_bytes text)
{
    static const char dots[] = "...";
    const char *from = text.data;
    size_t front = text.len, end = text.len;
    if (text.len >= size) {
        front = size * 3 / 8;
        end = text.len - (size - sizeof dots - front);
        while (front > 0 && is_inside_character(from[front]))
            front--;
        while (end < text.len && is_inside_character(from[end]))
            end++;
    }
    if (front > 0)
        memcpy(to, from, front);
    if (front < text.len) {
        memcpy(to + front, dots, sizeof dots - 1);
        memcpy(to + front + sizeof dots - 1, from + end, text.len - end);
        front += sizeof dots - 1 + text.len - end;
    }
    to[front] = '\0';
}

tether_status tether__text_print(tether_buf *out, tether_bytes text, enum tether__text_style style)
{
    size_t needed = tether__text_escape(NULL, 0, text, style);
    tether_status st = tether_buf_reserve(out, needed);
    if (st != TETHER_OK)
        return st;
    tether__text_escape(out->data + out->len, needed + 1, text, style);
    out->len += needed;
    return TETHER_OK;
}

static locale_t c_locale;

static void make_c_locale(void)
{
    c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

double tether__text_to_double(const char *text, char **ret_end)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_c_locale);
    return c_locale ? strtod_l(text, ret_end, c_locale) : strtod(text, ret_end);
}
