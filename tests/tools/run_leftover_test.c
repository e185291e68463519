/* tether-run leaves no process behind when it is killed, and suspends its workers when it is
 * suspended. With real processes and signals. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"
#include "tests/tools/scene.h"

/* Returns the number after `label` in the output of `run`. */
static pid_t number_after(struct tether_test_child *run, const char *label)
{
    char *output = tether_test_child_output(run);
    const char *at = strstr(output, label);
    assert_non_null(at);
    pid_t number = (pid_t)atol(at + strlen(label));
    free(output);
    assert_true(number > 1);
    return number;
}

/* Returns the kernel's state letter of a process: R, S, T...; 0 when there is no such process. */
static char state_of(pid_t pid)
{
    char path[64], line[256] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    const char *read = fgets(line, sizeof line, file);
    fclose(file);
    const char *paren = read ? strrchr(line, ')') : NULL;
    return paren ? paren[2] : 0;
}

static bool is_gone(pid_t pid)
{
    char state = state_of(pid);
    /* The init process of a container may never collect a zombie. */
    return state == 0 || state == 'Z';
}

static bool is_stopped(pid_t pid)
{
    return state_of(pid) == 'T';
}

/* Each worker has a child and a grandchild. The kernel kills the worker; the watcher kills them. */
static void grandchildren_are_killed_when_launcher_is_killed(void **state)
{
    (void)state;
    struct tether_test_child *run =
        launch("--nproc-per-node=2", "--", "sh", "-c",
               "sh -c 'sleep 600 & echo \"deep$RANK $!;\"; wait' & echo \"child$RANK $!;\"; wait");
    for (int rank = 0; rank < 2; rank++) {
        char text[16];
        snprintf(text, sizeof text, "deep%d", rank);
        await_text(run, text, 1);
        snprintf(text, sizeof text, "child%d", rank);
        await_text(run, text, 1);
    }
    pid_t pids[] = {number_after(run, "deep0 "), number_after(run, "deep1 "),
                    number_after(run, "child0 "), number_after(run, "child1 ")};
    tether_test_signal_pid(run->pid, SIGKILL);
    for (int i = 0; i < 4; i++)
        assert_eventually(is_gone(pids[i]));
    tether_test_child_free(run);
}

/* A watcher must not kill the group of a worker that has ended, because another group may have its
 * number. After a normal exit of the launcher the watcher kills nothing and ends. */
static void watcher_ends_when_launcher_exits(void **state)
{
    (void)state;
    struct tether_test_child *run =
        launch("--", "sh", "-c",
               "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline 2>/dev/null | "
               "grep -q 'run --watch-workers' && echo \"watcher "
               "${p#/proc/} $(cut -d' ' -f4 $p/stat) $PPID\"; done; true");
    char *output = await_exit(run, 0);
    pid_t watcher = 0;
    for (const char *at = output; (at = strstr(at, "watcher ")); at++) {
        long pid, parent, launcher;
        if (sscanf(at, "watcher %ld %ld %ld", &pid, &parent, &launcher) == 3 && parent == launcher)
            watcher = (pid_t)pid;
    }
    assert_true(watcher > 1);
    assert_true(is_gone(watcher));
    free(output);
    tether_test_child_free(run);
}

static void workers_are_suspended_when_launcher_is_suspended(void **state)
{
    (void)state;
    struct tether_test_child *run = launch(
        "--", "sh", "-c",
        "sleep 600 & echo \"child $!;\"; echo \"worker $$;\"; trap 'kill $!; exit 0' TERM; wait");
    await_text(run, "worker ", 1);
    pid_t pids[] = {run->pid, number_after(run, "worker "), number_after(run, "child ")};
    for (int times = 0; times < 2; times++) {
        kill(run->pid, SIGTSTP); /* only to the launcher, as a terminal does at Ctrl-Z */
        for (int i = 0; i < 3; i++)
            assert_eventually(is_stopped(pids[i]));
        kill(run->pid, SIGCONT);
        for (int i = 0; i < 3; i++)
            assert_eventually(!is_stopped(pids[i]));
    }
    kill(run->pid, SIGTERM);
    free(await_exit(run, 128 + SIGTERM));
    tether_test_child_free(run);
}

/* Two nodes of one job have different --nnodes. */
static void join_fails_when_nodes_have_different_nnodes(void **state)
{
    struct tether_test_child *first =
        join_group(*state, "--nnodes=2", "--join-timeout=60s", "--", "sh", "-c", WAIT_FOR_EVER);
    await_text(first, "1 of 2 nodes", 1);
    struct tether_test_child *second = join_group(*state, "--nnodes=1:3", "--", "true");
    char *output = await_exit(second, 2);
    has(output, "this node has --nnodes=1:3, and the first node of job '");
    has(output, "had --nnodes=2: start every node with the same --nnodes");
    free(output);
    tether_test_child_free(second);
    kill(first->pid, SIGTERM);
    end_node(first, 128 + SIGTERM);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grandchildren_are_killed_when_launcher_is_killed),
        cmocka_unit_test(watcher_ends_when_launcher_exits),
        cmocka_unit_test(workers_are_suspended_when_launcher_is_suspended),
        cmocka_unit_test_setup_teardown(join_fails_when_nodes_have_different_nnodes, scene_setup,
                                        scene_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
