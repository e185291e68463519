/* Foreign text: makes text from others (peers, stores, files) safe to print. All foreign text for a
 * log, a terminal, an error message, JSON or the metrics page passes through these functions.
 *
 * Escaped in every style: control characters (C0, DEL, C1), which move cursors and forge lines;
 * bytes that are not UTF-8; and characters that reorder or break what stands around them (bidi
 * controls, line separators). All other characters are printed as they are.
 *
 * Threads: any. No locale has an effect here.
 */
#ifndef TETHER_BASE_TEXT_H
#define TETHER_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/bytes.h"

enum tether__text_style {
    TETHER__TEXT_LINE,  /* one line: \n, \t, \x1b, \u202e; quotes and backslashes stay */
    TETHER__TEXT_JSON,  /* inside a JSON string; a byte that is not UTF-8 becomes \ufffd */
    TETHER__TEXT_LABEL, /* inside a label value of Prometheus: \n, \", \\, others as \\x1b */
};

/* Whether `text` needs no escaping as a line. */
bool tether__text_is_clean(const char *text, size_t len);

/* Writes `text` escaped to `to`, NUL-terminated and never cut within a character or an escape.
 * Returns how many bytes the whole would need without the NUL: `size` or more means that it was
 * cut. `to` must not overlap `text`. */
size_t tether__text_escape(char *to, size_t size, tether_bytes text, enum tether__text_style style);

/* Copies `text`, NUL-terminated. A text that is longer loses its middle and has three dots there:
 * the end of a message is where the advice stands. Characters stay whole. `size` is at least 16;
 * `to` must not overlap `text`. */
void tether__text_fit(char *to, size_t size, tether_bytes text);

/* Appends `text` escaped. */
tether_status tether__text_print(tether_buf *out, tether_bytes text, enum tether__text_style style);

/* Works like strtod() in the C locale, where the decimal separator is a point. */
double tether__text_to_double(const char *text, char **ret_end);

#endif
