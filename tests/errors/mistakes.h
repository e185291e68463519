/* Common mistakes, as tables: what is done wrong, and what is said about it.
 *
 * A mistake is a function that does something wrong and returns what came of it. Each file of
 * mistakes has a table of them; mistakes_test.c goes through all tables and checks of every message
 * that it is one sentence, with all three parts: what is wrong, where, and what to do.
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
