/* Common mistakes, as tables of functions that make the mistake and of the expected error message.
 *
 * A mistake is a function that does something wrong and returns the error that it got. Each file of
 * mistakes has a table; mistakes_test.c checks that every message is one sentence that says the
 * problem, the place and the remedy.
 */
#ifndef TETHER_TESTS_ERRORS_MISTAKES_H
#define TETHER_TESTS_ERRORS_MISTAKES_H

#include "base/status.h"

#define PATIENCE_MS 1500 /* for what can only end by its time-out */

struct mistake {
    const char *name; /* NULL ends a table */
    tether_status (*make)(tether_error *err);
    tether_status code;
    /* Words of the message; `what_to_do` is NULL only where the words are those of a user's
     * function. */
    const char *what, *where, *what_to_do;
};

#define MISTAKE(name) static tether_status name(tether_error *err)
#define ROW(name, code, what, where, what_to_do)             \
    {                                                        \
#name, name, TETHER_##code, what, where, what_to_do, \
    }

extern const struct mistake agent_mistakes[];     /* options, names, functions, calls */
extern const struct mistake meeting_mistakes[];   /* stores, URLs, groups */
extern const struct mistake reference_mistakes[]; /* objects on other workers */
extern const struct mistake security_mistakes[];  /* certificates, tokens, lists */

#endif
