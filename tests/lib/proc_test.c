/* The multi-process test harness: ranks, marks, signals, restarts, and the failures that it
 * reports. */
#include "tests/lib/proc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/cmocka.h"

enum { READY, GO };

TETHER_PROC_TEST(every_rank_runs_and_sees_the_others, .ranks = 4, .arg = "hello")
{
    assert_string_equal(self->arg, "hello");
    assert_int_equal(self->size, 4);
    self->world->page[rank] = (char)('a' + rank);
    tether_test_mark(self->world, READY);
    tether_test_await_mark(self->world, READY, 4);
    assert_memory_equal(self->world->page, "abcd", 4);
}

TETHER_PROC_TEST(rank_may_be_expected_to_die, .ranks = 2, .dies = {[1] = SIGKILL})
{
    if (rank == 1)
        raise(SIGKILL);
}

TETHER_PROC_TEST(rank_can_kill_another_rank, .ranks = 2)
{
    if (rank == 1)
        for (;;)
            pause();
    tether_test_signal(self->world, 1, SIGKILL);
}

/* Counts while it runs, so that the test can see when it is stopped. */
TETHER_PROC_ROLE(counter)
{
    tether_test_mark(self->world, READY);
    if (strcmp(self->arg, "last") == 0)
        return;
    while (tether_test_nap(0))
        tether_test_mark(self->world, GO);
}

static void ranks_can_be_stopped_continued_and_restarted(void **state)
{
    (void)state;
    struct tether_test_procs *procs = tether_test_procs_start(counter, .ranks = 1);
    struct tether_test_world *world = procs->world;
    tether_test_await_mark(world, GO, 1);

    tether_test_signal(world, 0, SIGSTOP);
    int stopped_at = atomic_load(&world->marks[GO]);
    tether_test_nap(0);
    tether_test_nap(0);
    assert_int_equal(atomic_load(&world->marks[GO]), stopped_at);

    tether_test_signal(world, 0, SIGCONT);
    tether_test_await_mark(world, GO, stopped_at + 1);

    tether_test_signal(world, 0, SIGKILL);
    tether_test_procs_restart(procs, 0, "last");
    tether_test_await_mark(world, READY, 2);
    tether_test_procs_end(procs);
}

static void command_output_is_kept(void **state)
{
    (void)state;
    const char *argv[] = {"sh", "-c", "echo out; echo err >&2; exit 3", NULL};
    struct tether_test_child *child = tether_test_child_start(argv);
    assert_true(tether_test_child_wait(child, TETHER_TEST_LIMIT_MS));
    assert_false(tether_test_child_ok(child));
    assert_string_equal(tether_test_child_result(child), "exit code 3");
    char *output = tether_test_child_output(child);
    assert_string_equal(output, "out\nerr\n");
    free(output);
    tether_test_child_free(child);
}

static void missing_command_is_reported(void **state)
{
    (void)state;
    const char *argv[] = {"no-such-command", NULL};
    struct tether_test_child *child = tether_test_child_start(argv);
    assert_true(tether_test_child_wait(child, TETHER_TEST_LIMIT_MS));
    assert_string_equal(tether_test_child_result(child), "exit code 127");
    char *output = tether_test_child_output(child);
    assert_non_null(strstr(output, "can't run 'no-such-command': No such file or directory"));
    free(output);
    tether_test_child_free(child);
}

/* ---- Failures. A group that fails would fail this test, so each runs in a child of its own. ---
 */

TETHER_PROC_ROLE(rank_1_fails)
{
    if (rank == 1)
        fail_msg("rank 1 fails on purpose");
    for (;;)
        pause(); /* runs until the harness ends it, which must not take as long as the time limit */
}

TETHER_PROC_ROLE(hangs)
{
    self->world->page[0] = 'h';
    for (;;)
        pause();
}

TETHER_PROC_ROLE(parent_of_a_failing_group)
{
    tether_test_procs_end(tether_test_procs_start(rank_1_fails, .ranks = 2));
}

TETHER_PROC_ROLE(parent_of_a_hanging_group)
{
    tether_test_procs_end(tether_test_procs_start(hangs, .ranks = 2, .timeout_ms = 50));
}

/* Starts a group, writes the pid of its child to the page, and crashes. */
TETHER_PROC_ROLE(parent_that_crashes)
{
    struct tether_test_procs *procs = tether_test_procs_start(hangs, .ranks = 1);
    pid_t pid = procs->ranks[0]->pid;
    while (atomic_load((_Atomic char *)procs->world->page) != 'h')
        tether_test_nap(0);
    memcpy(self->world->page, &pid, sizeof pid);
    raise(SIGKILL);
}

/* Runs `role` as a group of one, which must fail or be skipped; returns the output. */
static char *output_of_failing(const struct tether_test_proc_role *role, int *ret_page_pid)
{
    struct tether_test_procs *procs =
        tether_test_procs_start_opts(role, &(const struct tether_test_procs_opts){.ranks = 1});
    struct tether_test_child *child = procs->ranks[0];
    assert_true(tether_test_child_wait(child, TETHER_TEST_LIMIT_MS));
    assert_false(tether_test_child_ok(child));
    char *output = tether_test_child_output(child);
    memcpy(ret_page_pid, procs->world->page, sizeof *ret_page_pid);
    child->status = 0; /* the failure was expected, so the child counts as ended well */
    tether_test_procs_end(procs);
    return output;
}

static void failing_rank_fails_the_test_and_is_shown(void **state)
{
    (void)state;
    int unused;
    char *output = output_of_failing(&parent_of_a_failing_group_role, &unused);
    assert_non_null(strstr(output, "rank 1 fails on purpose"));
    assert_non_null(strstr(output, "rank_1_fails, rank 0: still running"));
    free(output);
}

static void hanging_rank_fails_the_test_at_its_limit(void **state)
{
    (void)state;
    int unused;
    char *output = output_of_failing(&parent_of_a_hanging_group_role, &unused);
    assert_non_null(strstr(output, "hangs, rank 0: still running"));
    assert_non_null(strstr(output, "hangs, rank 1: still running"));
    free(output);
}

TETHER_PROC_ROLE(rank_1_skips)
{
    if (rank == 1)
        skip();
}

TETHER_PROC_ROLE(parent_of_a_skipping_group)
{
    tether_test_procs_end(tether_test_procs_start(rank_1_skips, .ranks = 2));
}

static void skipping_rank_skips_the_test(void **state)
{
    (void)state;
    int unused;
    char *output = output_of_failing(&parent_of_a_skipping_group_role, &unused);
    assert_non_null(strstr(output, "[  SKIPPED ] 1 test(s)"));
    free(output);
}

static void children_are_killed_when_test_crashes(void **state)
{
    (void)state;
    int orphan = 0;
    free(output_of_failing(&parent_that_crashes_role, &orphan));
    assert_true(orphan > 0);
    assert_eventually(kill(orphan, 0) != 0);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rank_runs_and_sees_the_others),
        cmocka_unit_test(rank_may_be_expected_to_die),
        cmocka_unit_test(rank_can_kill_another_rank),
        cmocka_unit_test(ranks_can_be_stopped_continued_and_restarted),
        cmocka_unit_test(command_output_is_kept),
        cmocka_unit_test(missing_command_is_reported),
        cmocka_unit_test(failing_rank_fails_the_test_and_is_shown),
        cmocka_unit_test(hanging_rank_fails_the_test_at_its_limit),
        cmocka_unit_test(skipping_rank_skips_the_test),
        cmocka_unit_test(children_are_killed_when_test_crashes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
