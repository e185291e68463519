/* Runs tether-run as a child of the test. */
#include "tests/tools/launch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"

#define MAX_ARGS 32

struct tether_test_child *launch_argv(const char *const *args)
{
    const char *argv[MAX_ARGS + 2] = {"tools/tether-run"};
    for (size_t i = 0; args[i]; i++) {
        assert_true(i < MAX_ARGS);
        argv[i + 1] = args[i];
    }
    return tether_test_child_start(argv);
}

int count_text(const char *output, const char *text)
{
    int n = 0;
    for (const char *at = output; (at = strstr(at, text)); at++)
        n++;
    return n;
}

static bool output_has(struct tether_test_child *child, const char *text, int count)
{
    bool ended = tether_test_child_wait(child, 0);
    char *output = tether_test_child_output(child);
    bool found = count_text(output, text) >= count;
    if (!found && ended)
        fail_msg("tether-run ended (%s) without saying '%s':\n%s", tether_test_child_result(child),
                 text, output);
    free(output);
    return found;
}

void await_text(struct tether_test_child *child, const char *text, int count)
{
    for (int tries = 0; !output_has(child, text, count); tries++)
        if (!tether_test_nap(tries))
            fail_msg("tether-run never said '%s':\n%s", text, tether_test_child_output(child));
}

char *await_exit(struct tether_test_child *child, int exit_code)
{
    bool ended = tether_test_child_wait(child, TETHER_TEST_LIMIT_MS);
    char *output = tether_test_child_output(child);
    if (!ended || !WIFEXITED(child->status) || WEXITSTATUS(child->status) != exit_code)
        fail_msg("tether-run: %s, not exit code %d:\n%s", tether_test_child_result(child),
                 exit_code, output);
    return output;
}

void has(const char *output, const char *text)
{
    if (!strstr(output, text))
        fail_msg("no '%s' in:\n%s", text, output);
}

void has_not(const char *output, const char *text)
{
    if (strstr(output, text))
        fail_msg("'%s' in:\n%s", text, output);
}
