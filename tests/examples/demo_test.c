/* The demonstration ends well, tells each of its steps, and draws the graph. That each step is true
 * it checks by itself. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/cmocka.h"
#include "tests/tools/launch.h"

static void tells_its_story(void **state)
{
    (void)state;
    char file[] = "/tmp/tether-demo-XXXXXX", option[64], svg[64], graph[8192] = "";
    int fd = mkstemp(file);
    assert_true(fd >= 0);
    snprintf(option, sizeof option, "--dot=%s", file);
    struct tether_test_child *demo =
        tether_test_child_start((const char *const[]){"examples/demo", option, NULL});
    char *output = await_exit(demo, 0);
    static const char *const steps[] = {
        "four workers have met",
        "two references in ",
        "it says 42\n",
        "worker1\n └── counter 0.1.1 ◀── worker0, worker2, worker3\n",
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

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tells_its_story),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
