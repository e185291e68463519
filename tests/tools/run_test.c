/* tether-run on one node as a process: options, output and exit code. */
#include <ctype.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/macros.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"
#include "tests/tools/launch.h"

static void run_exits_with_0_when_workers_succeed(void **state)
{
    (void)state;
    struct tether_test_child *run = launch("--standalone", "--nproc-per-node=3", "--", "sh", "-c",
                                           "echo \"I am $RANK of $WORLD_SIZE\"; echo oops >&2");
    char *output = await_exit(run, 0);
    has(output, "[0] I am 0 of 3\n");
    has(output, "[1] I am 1 of 3\n");
    has(output, "[2] I am 2 of 3\n");
    has(output, "[2] oops\n");
    has(output, " rank       pid  exit                    time  restarts\n");
    has_not(output, "failed");
    free(output);
    tether_test_child_free(run);
}

static void workers_rendezvous_at_env(void **state)
{
    (void)state;
    struct tether_test_child *run =
        launch("--nproc-per-node=3", "--", "examples/elastic", "5", "1");
    char *output = await_exit(run, 0);
    has(output, "rank 2 of 3 goes on after step 0\n");
    has(output, "[0] step 5: 3 workers, total 15\n");
    free(output);
    tether_test_child_free(run);
}

static void run_exits_with_1_when_a_worker_fails(void **state)
{
    (void)state;
    struct tether_test_child *run =
        launch("--nproc-per-node=2", "--tail=2", "--", "sh", "-c",
               "if [ $RANK = 1 ]; then echo a; echo b; echo c >&2; exit 9; fi; exec sleep 600");
    char *output = await_exit(run, 1);
    has(output, "tether-run: rank 1 (pid ");
    has(output, ") failed: exit 9\n");
    has(output, "the job has failed: rank 1 on node 0: exit 9\n");
    has(output, "SIGTERM");
    has(output, "  stopped\n");
    has(output, "  failed first\n");
    has(output, "last lines of rank 1:\n    b\n    c\n");
    free(output);
    tether_test_child_free(run);
}

static void run_names_the_signal_when_a_worker_crashes(void **state)
{
    (void)state;
    struct tether_test_child *run =
        launch("--nproc-per-node=2", "--", "sh", "-c", "ulimit -c 0; kill -SEGV $$");
    char *output = await_exit(run, 1);
    has(output, "failed: SIGSEGV\n");
    free(output);
    tether_test_child_free(run);
}

static void workers_are_restarted_up_to_the_limit(void **state)
{
    (void)state;
    struct tether_test_child *run =
        launch("--nproc-per-node=2", "--max-restarts=3", "--", "sh", "-c",
               "echo \"try $TETHER_RESTART_COUNT in $TETHER_ROUND\"; [ $RANK = 0 ]");
    char *output = await_exit(run, 1);
    for (int i = 0; i < 4; i++) {
        char text[48];
        snprintf(text, sizeof text, "[1] try %d in %d\n", i, i);
        has(output, text);
    }
    has_not(output, "try 4");
    assert_int_equal(count_text(output, "starting again: rank 1 on node 0: exit 1\n"), 3);
    has(output, "         3  failed first\n");
    free(output);
    tether_test_child_free(run);
}

static void run_exits_with_0_when_a_restart_succeeds(void **state)
{
    (void)state;
    struct tether_test_child *run = launch("--max-restarts=9", "--nproc-per-node=2", "--", "sh",
                                           "-c", "[ $TETHER_RESTART_COUNT = 2 ]");
    char *output = await_exit(run, 0);
    assert_int_equal(count_text(output, "starting again"), 2);
    free(output);
    tether_test_child_free(run);
}

/* Each step uses a barrier once. If the second attempt read the barriers of the first, no worker
 * would wait at them, and the total would be wrong. */
static void restarted_workers_read_no_old_keys(void **state)
{
    (void)state;
    struct tether_test_child *run =
        launch("--nproc-per-node=2", "--max-restarts=1", "--", "sh", "-c",
               "examples/elastic 3 1; [ $TETHER_RESTART_COUNT = 1 ] && exec examples/elastic 6 1; "
               "[ $RANK = 0 ] && exit 1; exec sleep 600"); /* rank 0 prints the steps, then fails */
    char *output = await_exit(run, 0);
    has(output, "[0] step 3: 2 workers, total 6\n");
    has(output, "rank 1 of 2 goes on after step 3\n"); /* the checkpoint is meant to stay */
    has(output, "[0] step 6: 2 workers, total 12\n");
    free(output);
    tether_test_child_free(run);
}

static void signals_reach_the_workers(void **state)
{
    (void)state;
    static const struct {
        int signal;
        const char *name;
    } rows[] = {{SIGTERM, "TERM"}, {SIGINT, "INT"}, {SIGHUP, "HUP"}, {SIGQUIT, "QUIT"}};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        char script[160], expected[64];
        snprintf(script, sizeof script,
                 "trap 'echo caught %s; exit 0' %s; echo up; sleep 600 & wait", rows[i].name,
                 rows[i].name);
        struct tether_test_child *run = launch("--nproc-per-node=2", "--", "sh", "-c", script);
        await_text(run, "] up\n", 2);
        kill(run->pid, rows[i].signal);
        char *output = await_exit(run, 128 + rows[i].signal);
        snprintf(expected, sizeof expected, "caught %s\n", rows[i].name);
        assert_int_equal(count_text(output, expected), 2);
        snprintf(expected, sizeof expected, "tether-run: SIG%s: stopping\n", rows[i].name);
        has(output, expected);
        free(output);
        tether_test_child_free(run);
    }
}

static void user_signals_are_passed_on(void **state)
{
    (void)state;
    struct tether_test_child *run = launch("--nproc-per-node=2", "--", "sh", "-c",
                                           "trap 'echo one' USR1; trap 'kill $!; exit 0' USR2; "
                                           "echo up; while :; do sleep 600 & wait; done");
    await_text(run, "] up\n", 2);
    kill(run->pid, SIGUSR1);
    await_text(run, "] one\n", 2);
    kill(run->pid, SIGUSR2);
    char *output = await_exit(run, 0);
    free(output);
    tether_test_child_free(run);
}

static void worker_is_killed_when_it_ignores_sigterm(void **state)
{
    (void)state;
    struct tether_test_child *run = launch("--stop-timeout=200ms", "--", "sh", "-c",
                                           "trap '' TERM; echo deaf; while :; do sleep 600; done");
    await_text(run, "deaf", 1);
    kill(run->pid, SIGTERM);
    char *output = await_exit(run, 128 + SIGTERM);
    has(output, "SIGKILL");
    free(output);
    tether_test_child_free(run);
}

static void workers_are_killed_when_a_second_signal_arrives(void **state)
{
    (void)state;
    struct tether_test_child *run =
        launch("--stop-timeout=1h", "--", "sh", "-c",
               "trap '' TERM INT; echo deaf $$; while :; do sleep 600; done");
    await_text(run, "deaf", 1);
    kill(run->pid, SIGTERM);
    await_text(run, "SIGTERM: stopping", 1);
    kill(run->pid, SIGINT);
    char *output = await_exit(run, 128 + SIGINT);
    pid_t worker = (pid_t)atol(strstr(output, "deaf ") + 5);
    assert_eventually(kill(worker, 0) != 0);
    free(output);
    tether_test_child_free(run);
}

static void workers_do_not_outlive_the_launcher(void **state)
{
    (void)state;
    struct tether_test_child *run =
        launch("--", "sh", "-c", "trap '' HUP TERM; echo up $$; while :; do sleep 600; done");
    await_text(run, "up ", 1);
    tether_test_signal_pid(run->pid, SIGKILL);
    char *output = tether_test_child_output(run);
    pid_t worker = (pid_t)atol(strstr(output, "up ") + 3);
    assert_eventually(kill(worker, 0) != 0);
    free(output);
    tether_test_child_free(run);
}

static void log_dir_gets_the_output_of_each_rank(void **state)
{
    (void)state;
    char dir[] = "/tmp/tether-run-XXXXXX", option[64], path[96], text[64] = "";
    assert_non_null(mkdtemp(dir));
    snprintf(option, sizeof option, "--log-dir=%s/deep", dir);
    struct tether_test_child *run = launch(option, "--max-restarts=1", "--", "sh", "-c",
                                           "echo try $TETHER_RESTART_COUNT; exit 1");
    free(await_exit(run, 1));
    tether_test_child_free(run);
    for (int round = 0; round < 2; round++) {
        char want[32];
        snprintf(path, sizeof path, "%s/deep/round_%d/rank_0.out", dir, round);
        snprintf(want, sizeof want, "try %d\n", round);
        FILE *log = fopen(path, "re");
        assert_non_null(log);
        assert_non_null(fgets(text, sizeof text, log));
        assert_string_equal(text, want);
        fclose(log);
    }
    snprintf(path, sizeof path, "rm -r %s", dir);
    assert_int_equal(system(path), 0);
}

static void output_follows_prefix_and_colour_options(void **state)
{
    (void)state;
    struct tether_test_child *run =
        launch("--no-prefix", "--quiet", "--", "sh", "-c", "echo bare; printf 'no newline'");
    char *output = await_exit(run, 0);
    assert_string_equal(output, "bare\nno newline\n");
    free(output);
    tether_test_child_free(run);

    run = launch("--color=always", "--quiet", "--", "echo", "colour");
    output = await_exit(run, 0);
    assert_string_equal(output, "\033[36m[0]\033[0m colour\n");
    free(output);
    tether_test_child_free(run);
}

static void mistakes_are_reported_in_one_line(void **state)
{
    (void)state;
    static const struct {
        const char *args[4];
        int exit_code;
        const char *line;
    } rows[] = {
        {{NULL},
         2,
         "tether-run: no program to run: tether-run [options] -- program [arguments], "
         "see --help\n"},
        {{"--nnode=1", "true"}, 2, "tether-run: unknown option --nnode: did you mean --nnodes?\n"},
        {{"--nnodes=2", "true"},
         2,
         "tether-run: --nnodes above 1 needs --rdzv-endpoint=HOST:PORT, "
         "the same for every node\n"},
        {{"./nope"}, 127, "tether-run: cannot run './nope': No such file or directory\n"},
        {{"no-such-program-anywhere"},
         127,
         "tether-run: cannot run 'no-such-program-anywhere': No such file or directory\n"},
        {{"/etc/passwd"}, 126, "tether-run: cannot run '/etc/passwd': Permission denied\n"},
        {{"--log-dir=/dev/null/x", "true"},
         6,
         "tether-run: --log-dir: cannot write '/dev/null/x': Not a directory\n"},
        {{"--rdzv-endpoint=0.0.0.0:29400", "--rdzv-host=yes", "true"},
         2,
         "tether-run: the store of this run at 0.0.0.0:29400 would be beyond loopback, and anyone "
         "who can connect could read and change it: give --insecure if you trust the network\n"},
        {{"--exec-worker"}, 2, "tether-run: --exec-worker is for the launcher's own use\n"},
    };
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        struct tether_test_child *run = launch_argv(rows[i].args);
        char *output = await_exit(run, rows[i].exit_code);
        assert_string_equal(output, rows[i].line);
        free(output);
        tether_test_child_free(run);
    }
}

static void help_and_version_are_printed(void **state)
{
    (void)state;
    struct tether_test_child *run = launch("--help");
    char *output = await_exit(run, 0);
    has(output, "usage: tether-run [options] [--] program [arguments]\n");
    has(output, "Exit code:\n");
    free(output);
    tether_test_child_free(run);
    run = launch("--version");
    output = await_exit(run, 0);
    has(output, "tether-run ");
    assert_true(isdigit((unsigned char)output[strlen("tether-run ")]));
    free(output);
    tether_test_child_free(run);
}

/* The first script has a reader that closes early; in the second all standard streams are
 * closed. */
static void run_exits_when_output_has_no_reader(void **state)
{
    (void)state;
    static const char *const scripts[] = {
        "tools/tether-run --quiet -- seq 100000 | head -n 1; exit 0",
        "tools/tether-run --quiet -- sh -c 'echo hello' >&- 2>&- <&-",
    };
    for (size_t i = 0; i < TETHER__ARRAY_LEN(scripts); i++) {
        struct tether_test_child *run =
            tether_test_child_start((const char *const[]){"sh", "-c", scripts[i], NULL});
        free(await_exit(run, 0));
        tether_test_child_free(run);
    }
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(run_exits_with_0_when_workers_succeed),
        cmocka_unit_test(workers_rendezvous_at_env),
        cmocka_unit_test(run_exits_with_1_when_a_worker_fails),
        cmocka_unit_test(run_names_the_signal_when_a_worker_crashes),
        cmocka_unit_test(workers_are_restarted_up_to_the_limit),
        cmocka_unit_test(run_exits_with_0_when_a_restart_succeeds),
        cmocka_unit_test(restarted_workers_read_no_old_keys),
        cmocka_unit_test(signals_reach_the_workers),
        cmocka_unit_test(user_signals_are_passed_on),
        cmocka_unit_test(worker_is_killed_when_it_ignores_sigterm),
        cmocka_unit_test(workers_are_killed_when_a_second_signal_arrives),
        cmocka_unit_test(workers_do_not_outlive_the_launcher),
        cmocka_unit_test(log_dir_gets_the_output_of_each_rank),
        cmocka_unit_test(output_follows_prefix_and_colour_options),
        cmocka_unit_test(mistakes_are_reported_in_one_line),
        cmocka_unit_test(help_and_version_are_printed),
        cmocka_unit_test(run_exits_when_output_has_no_reader),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
