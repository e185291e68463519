/* Starting tether-run in a test, and looking at what it says. */
#ifndef TETHER_TESTS_TOOLS_LAUNCH_H
#define TETHER_TESTS_TOOLS_LAUNCH_H

#include "tests/lib/child.h"

/* Starts tether-run with these arguments (a NULL-terminated list). */
struct tether_test_child *launch_argv(const char *const *args);
#define launch(...) launch_argv((const char *const[]){__VA_ARGS__, NULL})

/* Waits until its output has `text` (`count` times). Fails the test, with the output, when it never
 * does or when the launcher ends without. */
void await_text(struct tether_test_child *child, const char *text, int count);

/* Waits for its end, and that it is `exit_code`; output goes to the log when it is not. Gives the
 * output; free() it, and the child with tether_test_child_free(). */
char *await_exit(struct tether_test_child *child, int exit_code);

int count_text(const char *output, const char *text);

/* That `output` has `text`, or has it not. Shows both when that is wrong. */
void has(const char *output, const char *text);
void has_not(const char *output, const char *text);

#endif
