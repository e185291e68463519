/* The demonstration ends well, tells each of its steps, and draws the graph. That each step is true
 * it checks by itself; and it ends badly where one is not. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/cmocka.h"
#include "tests/tools/launch.h"

static void demo_prints_its_story(void **state)
{
    (void)state;
    char file[] = "/tmp/tether-demo-XXXXXX", option[64], svg[64], graph[8192] = "";
    int fd = mkstemp(file);
    assert_true(fd >= 0);
    snprintf(option, sizeof option, "--dot=%s", file);
    struct tether_test_child *demo =
        tether_test_child_start((const char *const[]){"examples/demo/demo", option, NULL});
    char *output = await_exit(demo, 0);
    static const char *const steps[] = {
        "four workers have met",
        "references in ",
        "it says 42\n",
        "worker1\n └── counter 0.",
        " ◀── worker0, worker2, worker3\n",
        "worker2 has destroyed it\n",
        "kill -9 of worker3",
        "worker1 has taken back what worker3 held",
        "the second is lost with its owner",
        "it says 100\n",
        "no table has anything left\n",
        "the three that are left have shut down",
    };
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        has(output, steps[i]);
    has_not(output, "NOT TRUE");
    has_not(output, "Killed");
    assert_true(read(fd, graph, sizeof graph - 1) > 0);
    has(graph, "digraph tether {");
    assert_int_equal(count_text(graph, " -> "), 7);
    close(fd);
    unlink(file);
    snprintf(svg, sizeof svg, "%s.svg", file);
    unlink(svg);
    free(output);
    tether_test_child_free(demo);
}

/* The picture comes from tether-inspect; here from a program that does nothing but fail. */
static void ends_badly_when_a_step_is_not_true(void **state)
{
    (void)state;
    struct tether_test_child *demo = launch("--standalone", "--nproc-per-node=4", "--no-prefix",
                                            "--quiet", "--", "examples/demo/worker", "/bin/false");
    char *output = await_exit(demo, 1);
    has(output, "NOT TRUE: waitpid");
    has_not(output, "kill -9");
    free(output);
    tether_test_child_free(demo);
}

static void demo_reports_invalid_options(void **state)
{
    (void)state;
    static const struct {
        const char *option, *says;
    } wrong[] = {
        {"--dto=graph.dot", "usage: demo [--dot[=FILE]], not '--dto=graph.dot'"},
        {"--dot=/nowhere/graph.dot", "can't write to /nowhere/graph.dot; give another file"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct tether_test_child *demo = tether_test_child_start(
            (const char *const[]){"examples/demo/demo", wrong[i].option, NULL});
        char *output = await_exit(demo, 2);
        has(output, wrong[i].says);
        has_not(output, "four workers");
        free(output);
        tether_test_child_free(demo);
    }
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(demo_prints_its_story),
        cmocka_unit_test(ends_badly_when_a_step_is_not_true),
        cmocka_unit_test(demo_reports_invalid_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
