/* The example of a user-defined store runs, and its output is as its comment describes. */
#include <stdlib.h>
#include <string.h>

#include "tests/lib/child.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"

static void custom_store_example_runs_as_described(void **state)
{
    (void)state;
    const char *const argv[] = {"examples/custom_store", NULL};
    struct tether_test_child *child = tether_test_child_start(argv);
    assert_true(tether_test_child_wait(child, TETHER_TEST_LIMIT_MS));
    char *output = tether_test_child_output(child);
    if (!tether_test_child_ok(child))
        fail_msg("%s: %s", tether_test_child_result(child), output);
    static const char *const lines[] = {
        "set greeting = hello\n",
        "compare_set greeting: '' -> ', world': it is something else\n",
        "compare_set greeting: 'hello' -> 'hello, world': done\n",
        "  so the greeting is 'hello, world'\n",
        "add everybody/num_members + 1 = 1\n",
        "set everybody/last_member = 1\n",
        "delete greeting\n",
        "  and now: get 'greeting' on journal: timeout after ",
    };
    const char *at = output;
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        if (strncmp(at, lines[i], strlen(lines[i])) != 0)
            fail_msg("expected '%s' at '%s'", lines[i], at);
        at += strlen(lines[i]);
    }
    free(output);
    tether_test_child_free(child);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(custom_store_example_runs_as_described)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
