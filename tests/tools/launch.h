/* Starts tether-run in a test and checks its output. */
#ifndef TETHER_TESTS_TOOLS_LAUNCH_H
#define TETHER_TESTS_TOOLS_LAUNCH_H

#include "tests/lib/child.h"

/* Starts tether-run with these arguments (a NULL-terminated list). */
struct tether_test_child *launch_argv(const char *const *args);
#define launch(...) launch_argv((const char *const[]){__VA_ARGS__, NULL})

/* Waits until the output of `child` has `text` (`count` times). Otherwise fails the test and shows
 * the output, at the limit or when the launcher has ended. */
void await_text(struct tether_test_child *child, const char *text, int count);

/* Waits until `child` has ended and asserts its exit code; shows the output on failure. Returns the
 * output; free() it, and the child with tether_test_child_free(). */
char *await_exit(struct tether_test_child *child, int exit_code);

int count_text(const char *output, const char *text);

/* Assert that `output` has `text`, or does not have it. On failure show both. */
void has(const char *output, const char *text);
void has_not(const char *output, const char *text);

#endif
