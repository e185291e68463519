/* Workers as processes: their environment, their output, their stop and their collection. This
 * binary is also the launcher from which the workers are spawned. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/cmocka.h"
#include "tools/run/workers/crew.h"
#include "tools/run/workers/summary.h"

struct stage {
    uv_loop_t loop;
    uv_signal_t child;
    struct run_options options;
    struct run_sink out, err;
    struct run_crew crew;
    int out_fd, err_fd; /* files in memory that the sinks write to */
    int exits, empties;
    bool stop_on_failure;
};

static void on_child(uv_signal_t *handle, int signum)
{
    (void)signum;
    struct stage *stage = handle->data;
    run_crew_check(&stage->crew);
}

static void on_exit_(void *userdata, struct run_worker *worker)
{
    struct stage *stage = userdata;
    stage->exits++;
    if (stage->stop_on_failure && worker == stage->crew.first_failed)
        run_crew_stop(&stage->crew, SIGTERM);
}

static void on_empty(void *userdata)
{
    struct stage *stage = userdata;
    stage->empties++;
    uv_stop(&stage->loop);
}

static int setup(void **state)
{
    struct stage *s = calloc(1, sizeof *s);
    s->options = (struct run_options){
        .nproc = 2, .run_id = "job", .prefix = true, .stop_timeout_ms = 60000, .tail_lines = 20};
    s->out_fd = memfd_create("out", MFD_CLOEXEC);
    s->err_fd = memfd_create("err", MFD_CLOEXEC);
    assert_int_equal(uv_loop_init(&s->loop), 0);
    assert_int_equal(run_sink_init(&s->out, &s->loop, s->out_fd, NULL, NULL, NULL), TETHER_OK);
    assert_int_equal(run_sink_init(&s->err, &s->loop, s->err_fd, NULL, NULL, NULL), TETHER_OK);
    uv_signal_init(&s->loop, &s->child);
    s->child.data = s;
    uv_signal_start(&s->child, on_child, SIGCHLD);
    *state = s;
    return 0;
}

static int teardown(void **state)
{
    struct stage *s = *state;
    run_crew_close(&s->crew);
    uv_close((uv_handle_t *)&s->child, NULL);
    run_sink_close(&s->out);
    run_sink_close(&s->err);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&s->loop), 0);
    run_crew_fini(&s->crew);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no zombie is left */
    close(s->out_fd);
    close(s->err_fd);
    free(s);
    return 0;
}

static const struct run_round round_ = {.number = 4,
                                        .node_rank = 1,
                                        .node_count = 3,
                                        .first_rank = 9,
                                        .world_size = 12,
                                        .restarts = 2,
                                        .master_addr = "127.0.0.1",
                                        .master_port = 1234,
                                        .use_agent_store = true,
                                        .store_prefix = "tether.workers.job.4"};

static void start(struct stage *s, const char *script)
{
    static char *command[] = {"sh", "-c", NULL, NULL};
    command[2] = (char *)script;
    s->options.command = command;
    if (!s->crew.workers) {
        assert_int_equal(run_crew_init(&s->crew, &s->loop, &s->options, &s->out, &s->err, NULL),
                         TETHER_OK);
        s->crew.on_exit = on_exit_;
        s->crew.on_empty = on_empty;
        s->crew.userdata = s;
    }
    tether_error err = {0};
    if (run_crew_start(&s->crew, &round_, &err) != TETHER_OK)
        fail_msg("%s", err.message);
}

static char *content(int fd)
{
    static char text[64 * 1024];
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    assert_true(n >= 0);
    text[n] = '\0';
    return text;
}

/* Runs the loop until the output of the workers has `text`. */
static void await_output(struct stage *s, const char *text)
{
    while (!strstr(content(s->out_fd), text))
        uv_run(&s->loop, UV_RUN_ONCE);
}

static void workers_get_their_ranks_in_the_environment(void **state)
{
    struct stage *s = *state;
    start(s,
          "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $NODE_RANK $NODE_COUNT "
          "$MASTER_ADDR $MASTER_PORT $TETHER_USE_AGENT_STORE $TETHER_STORE_PREFIX "
          "$TETHER_RUN_ID $TETHER_RESTART_COUNT $TETHER_ROUND; echo e$RANK >&2");
    uv_run(&s->loop, UV_RUN_DEFAULT);
    assert_int_equal(s->empties, 1);
    assert_int_equal(s->exits, 2);
    assert_null(s->crew.first_failed);
    const char *out = content(s->out_fd);
    assert_non_null(
        strstr(out, "[ 9] 9 12 0 2 1 3 127.0.0.1 1234 1 tether.workers.job.4 job 2 4\n"));
    assert_non_null(
        strstr(out, "[10] 10 12 1 2 1 3 127.0.0.1 1234 1 tether.workers.job.4 job 2 4\n"));
    const char *err = content(s->err_fd);
    assert_non_null(strstr(err, "[ 9] e9\n"));
    assert_non_null(strstr(err, "[10] e10\n"));
}

static void workers_may_listen_beyond_loopback_when_run_is_insecure(void **state)
{
    struct stage *s = *state;
    start(s, "echo insecure=$TETHER_INSECURE.");
    uv_run(&s->loop, UV_RUN_DEFAULT);
    assert_non_null(strstr(content(s->out_fd), "[ 9] insecure=.\n"));
    s->options.insecure = true;
    start(s, "echo insecure=$TETHER_INSECURE.");
    uv_run(&s->loop, UV_RUN_DEFAULT);
    assert_non_null(strstr(content(s->out_fd), "[ 9] insecure=1.\n"));
    assert_non_null(strstr(content(s->out_fd), "[10] insecure=1.\n"));
}

static void summary_shows_last_lines_of_first_failed_worker(void **state)
{
    struct stage *s = *state;
    s->stop_on_failure = true;
    start(s, "if [ $LOCAL_RANK = 1 ]; then echo out; echo word >&2; exit 3; fi; exec sleep 600");
    uv_run(&s->loop, UV_RUN_DEFAULT);
    struct run_worker *failed = s->crew.first_failed;
    assert_non_null(failed);
    assert_int_equal(failed->rank, 10);
    assert_int_equal(failed->exit_code, 3);
    assert_false(failed->stopped);
    assert_true(s->crew.workers[0].stopped);
    assert_int_equal(s->crew.workers[0].exit_signal, SIGTERM);
    tether_buf text = TETHER_BUF_INIT;
    assert_int_equal(run_summary(&s->crew, 20, &text), TETHER_OK);
    assert_non_null(strstr(text.data, "rank       pid  exit"));
    assert_non_null(strstr(text.data, "SIGTERM"));
    assert_non_null(strstr(text.data, "stopped\n"));
    assert_non_null(strstr(text.data, "exit 3"));
    assert_non_null(strstr(text.data, "failed first\n"));
    assert_non_null(strstr(text.data, "last lines of rank 10:\n"));
    assert_non_null(strstr(text.data, "    word\n"));
    assert_non_null(strstr(text.data, "    out\n"));
    tether_buf_fini(&text);
}

static void summary_names_the_signal_when_a_worker_crashes(void **state)
{
    struct stage *s = *state;
    start(s, "ulimit -c 0; [ $LOCAL_RANK = 0 ] && kill -SEGV $$; :");
    uv_run(&s->loop, UV_RUN_DEFAULT);
    char fate[48];
    assert_int_equal(s->crew.workers[0].exit_signal, SIGSEGV);
    assert_string_equal(run_worker_result(&s->crew.workers[0], fate, sizeof fate), "SIGSEGV");
    assert_string_equal(run_worker_result(&s->crew.workers[1], fate, sizeof fate), "0");
    assert_ptr_equal(s->crew.first_failed, &s->crew.workers[0]);
}

static void worker_gets_sigkill_when_it_ignores_sigterm(void **state)
{
    struct stage *s = *state;
    s->options.stop_timeout_ms = 300;
    start(s, "trap '' TERM; echo deaf; sleep 600 & wait; sleep 600");
    await_output(s, "[10] deaf");
    await_output(s, "[ 9] deaf");
    run_crew_stop(&s->crew, SIGTERM);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    for (int i = 0; i < 2; i++)
        assert_int_equal(s->crew.workers[i].exit_signal, SIGKILL);
    assert_int_equal(s->empties, 1);
}

static void stop_ends_worker_when_it_is_suspended(void **state)
{
    struct stage *s = *state;
    start(s, "trap 'echo bye; exit 0' TERM; echo up; kill -STOP $$; sleep 600 & wait");
    await_output(s, "[ 9] up");
    await_output(s, "[10] up");
    run_crew_stop(&s->crew, SIGTERM);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    assert_non_null(strstr(content(s->out_fd), "[ 9] bye\n"));
    assert_null(s->crew.first_failed);
}

static void signals_reach_processes_that_a_worker_has_started(void **state)
{
    struct stage *s = *state;
    start(s,
          "sh -c 'trap \"echo inner; exit 0\" USR1; echo up; sleep 600 & wait' & "
          "trap : USR1; wait; wait; exit 0");
    await_output(s, "[ 9] up");
    await_output(s, "[10] up");
    run_crew_signal(&s->crew, SIGUSR1);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    assert_non_null(strstr(content(s->out_fd), "[ 9] inner\n"));
    assert_non_null(strstr(content(s->out_fd), "[10] inner\n"));
}

static void child_may_finish_writing_when_its_worker_has_exited(void **state)
{
    struct stage *s = *state;
    /* The worker exits at once; its child writes a little later. */
    start(s, "(sleep 0.2; echo late) &");
    uv_run(&s->loop, UV_RUN_DEFAULT);
    assert_non_null(strstr(content(s->out_fd), "[ 9] late\n"));
    assert_non_null(strstr(content(s->out_fd), "[10] late\n"));
}

static void crew_can_be_started_again(void **state)
{
    struct stage *s = *state;
    for (int i = 0; i < 3; i++) {
        start(s, "[ $LOCAL_RANK = 0 ]");
        uv_run(&s->loop, UV_RUN_DEFAULT);
        assert_ptr_equal(s->crew.first_failed, &s->crew.workers[1]);
    }
    assert_int_equal(s->empties, 3);
    assert_int_equal(s->crew.workers[1].starts, 3);
}

static void worker_fails_when_program_does_not_exist(void **state)
{
    struct stage *s = *state;
    char *command[] = {"/nonexistent/program", NULL};
    start(s, ":");
    uv_run(&s->loop, UV_RUN_DEFAULT);
    s->options.command = command;
    assert_int_equal(run_crew_start(&s->crew, &round_, NULL), TETHER_OK);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    assert_int_equal(s->crew.first_failed->exit_code, 127);
    assert_non_null(strstr(content(s->err_fd), "tether-run: cannot run '/nonexistent/program'"));
}

static void logs_are_written_per_round_and_rank(void **state)
{
    struct stage *s = *state;
    char dir[] = "/tmp/tether-crew-XXXXXX", nested[64], path[128], text[16] = "";
    assert_non_null(mkdtemp(dir));
    snprintf(nested, sizeof nested, "%s/a", dir);
    s->options.log_dir = nested;
    start(s, "echo out$LOCAL_RANK; echo err$LOCAL_RANK >&2");
    uv_run(&s->loop, UV_RUN_DEFAULT);
    static const struct {
        const char *name, *text;
    } files[] = {{"rank_9.out", "out0\n"},
                 {"rank_9.err", "err0\n"},
                 {"rank_10.out", "out1\n"},
                 {"rank_10.err", "err1\n"}};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(files); i++) {
        snprintf(path, sizeof path, "%s/round_4/%s", nested, files[i].name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        assert_true(fd >= 0);
        assert_int_equal(read(fd, text, sizeof text), strlen(files[i].text));
        assert_memory_equal(text, files[i].text, strlen(files[i].text));
        close(fd);
        unlink(path);
    }
    snprintf(path, sizeof path, "%s/round_4", nested);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(rmdir(nested), 0);
    assert_int_equal(rmdir(dir), 0);
}

static void start_fails_when_log_dir_is_not_writable(void **state)
{
    struct stage *s = *state;
    tether_error err = {0};
    char *command[] = {"true", NULL};
    start(s, ":");
    uv_run(&s->loop, UV_RUN_DEFAULT);
    s->options.command = command;
    s->options.log_dir = "/dev/null/logs";
    assert_int_equal(run_crew_start(&s->crew, &round_, &err), TETHER_EIO);
    assert_non_null(strstr(err.message, "--log-dir: cannot write '/dev/null/logs"));
    assert_int_equal(s->crew.present, 0);
}

/* The first state of a progress bar must be shown while the bar moves: the worker continues only
 * after that. */
static void progress_is_shown_before_its_line_ends(void **state)
{
    struct stage *s = *state;
    char file[] = "/tmp/tether-bar-XXXXXX", script[256];
    close(mkstemp(file));
    snprintf(script, sizeof script,
             "[ $LOCAL_RANK = 1 ] && exit 0; printf '\\r10%%%%'; while [ -e %s ]; do sleep 0.02; "
             "done; printf '\\r20%%%%\\n'",
             file);
    start(s, script);
    await_output(s, "[ 9] 10%");
    assert_null(strchr(content(s->out_fd), '\n'));
    unlink(file);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    assert_string_equal(content(s->out_fd), "[ 9] 10%\r[ 9] 20%\n");
}

static void prefixes_have_colours_when_asked(void **state)
{
    struct stage *s = *state;
    s->options.color = RUN_YES;
    start(s, "echo hi");
    uv_run(&s->loop, UV_RUN_DEFAULT);
    assert_non_null(strstr(content(s->out_fd), "\033[35m[ 9]\033[0m hi\n"));
    assert_non_null(strstr(content(s->out_fd), "\033[34m[10]\033[0m hi\n"));
}

/* Whether prefixes have colours, on a sink that claims to be a terminal. */
static bool has_colours(struct stage *s)
{
    s->options.color = RUN_AUTO;
    s->out.terminal = true;
    start(s, "echo hi");
    uv_run(&s->loop, UV_RUN_DEFAULT);
    return strchr(content(s->out_fd), '\033') != NULL;
}

static void prefixes_have_colours_on_a_terminal(void **state)
{
    unsetenv("NO_COLOR");
    assert_true(has_colours(*state));
}

static void prefixes_have_no_colours_when_no_color_is_set(void **state)
{
    setenv("NO_COLOR", "1", 1);
    assert_false(has_colours(*state));
    unsetenv("NO_COLOR");
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], RUN_EXEC_WORKER) == 0)
        run_worker_exec(argc, argv);
    if (argc == 2 && strcmp(argv[1], RUN_WATCH_WORKERS) == 0)
        run_watcher_run();
#define STAGED(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        STAGED(workers_get_their_ranks_in_the_environment),
        STAGED(workers_may_listen_beyond_loopback_when_run_is_insecure),
        STAGED(summary_shows_last_lines_of_first_failed_worker),
        STAGED(summary_names_the_signal_when_a_worker_crashes),
        STAGED(worker_gets_sigkill_when_it_ignores_sigterm),
        STAGED(stop_ends_worker_when_it_is_suspended),
        STAGED(signals_reach_processes_that_a_worker_has_started),
        STAGED(child_may_finish_writing_when_its_worker_has_exited),
        STAGED(crew_can_be_started_again),
        STAGED(worker_fails_when_program_does_not_exist),
        STAGED(logs_are_written_per_round_and_rank),
        STAGED(start_fails_when_log_dir_is_not_writable),
        STAGED(progress_is_shown_before_its_line_ends),
        STAGED(prefixes_have_colours_when_asked),
        STAGED(prefixes_have_colours_on_a_terminal),
        STAGED(prefixes_have_no_colours_when_no_color_is_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
