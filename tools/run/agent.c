/* The state machine of the launcher. */
#include "tools/run/agent.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/macros.h"
#include "tools/run/node/clock.h"
#include "tools/run/node/node.h"
#include "tools/run/output/console.h"
#include "tools/run/output/logs.h"
#include "tools/run/workers/crew.h"
#include "tools/run/workers/summary.h"

#define TICK_MS 200

enum phase { JOINING, RUNNING, ENDING, ENDED };

/* The signals that end the launcher, and those that it only passes on to the workers. */
static const int ending_signals[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
static const int passed_signals[] = {SIGUSR1, SIGUSR2, SIGCONT};
#define N_SIGNALS (TETHER__ARRAY_LEN(ending_signals) + TETHER__ARRAY_LEN(passed_signals) + 2)

struct agent {
    const struct run_options *options;
    uv_loop_t loop;
    uv_signal_t signals[N_SIGNALS];
    uv_timer_t tick; /* while joining: shows progress, and repeats a cancel until it takes effect */
    struct run_sink out, err;
    struct run_console console;
    struct run_crew crew;
    struct run_node node;

    enum phase phase;
    struct run_verdict verdict; /* the verdict on the current round */
    int signal;                 /* the first ending signal that arrived; 0: none */
    int exit_code;              /* exit code of the launcher, valid once `over` */
    /* the launcher ends: no other round starts, even if the verdict says so */
    bool over;
    enum run_end_mode end_mode;

    /* Calls of the node that run on the pool, and their results. */
    uv_work_t join_work, watch_work, report_work, end_work;
    int working;
    tether_status join_status, watch_status;
    tether_error join_error, watch_error;
    struct run_verdict watched;
    char failure[200]; /* why a worker failed, for the report; empty: the report is a success */
};

static void settle(struct agent *agent);

/* Stops the workers and ends with `exit_code`, without another round. Only the first call
 * counts. */
static void give_up(struct agent *agent, int exit_code, enum run_end_mode end_mode)
{
    if (agent->over)
        return;
    agent->over = true;
    agent->exit_code = exit_code;
    agent->end_mode = end_mode;
    run_node_cancel(&agent->node);
    run_crew_stop(&agent->crew, agent->signal ? agent->signal : SIGTERM);
}

/* ---- The node's calls, on the pool -------------------------------------------------------------
 */

static void queue(struct agent *agent, uv_work_t *work, uv_work_cb run, uv_after_work_cb after)
{
    work->data = agent;
    agent->working++;
    uv_queue_work(&agent->loop, work, run, after); /* it fails only if `run` is NULL */
}

static void do_join(uv_work_t *work)
{
    struct agent *agent = work->data;
    agent->join_status = run_node_join(&agent->node, agent->verdict.restarts, &agent->join_error);
}

static void do_watch(uv_work_t *work)
{
    struct agent *agent = work->data;
    agent->watch_status = run_node_watch(&agent->node, &agent->watched, &agent->watch_error);
}

static void do_report(uv_work_t *work)
{
    struct agent *agent = work->data;
    if (agent->failure[0])
        run_node_failed(&agent->node, agent->failure);
    else
        run_node_done(&agent->node);
}

static void do_end(uv_work_t *work)
{
    struct agent *agent = work->data;
    run_node_end(&agent->node, agent->end_mode);
}

static void after_watch(uv_work_t *work, int canceled);

static void watch(struct agent *agent)
{
    queue(agent, &agent->watch_work, do_watch, after_watch);
}

static void after_report(uv_work_t *work, int canceled)
{
    (void)canceled;
    struct agent *agent = work->data;
    agent->working--;
    settle(agent);
}

static void report(struct agent *agent, const char *failure)
{
    snprintf(agent->failure, sizeof agent->failure, "%s", failure);
    queue(agent, &agent->report_work, do_report, after_report);
}

/* ---- A round ----------------------------------------------------------------------------------
 */

static int exit_code_of(tether_status status)
{
    switch (status) {
        case TETHER_ETIMEOUT:
            return RUN_EXIT_TOO_FEW;
        case TETHER_ECLOSED:
            return RUN_EXIT_CLOSED;
        case TETHER_ESHUTDOWN: /* a normal end: the job ended while this node was a spare */
            return RUN_EXIT_OK;
        case TETHER_EINVAL:
        case TETHER_EPERM:
            return RUN_EXIT_USAGE;
        case TETHER_ENOMEM:
            return RUN_EXIT_SYSTEM;
        default:
            return RUN_EXIT_STORE;
    }
}

static void after_join(uv_work_t *work, int canceled)
{
    (void)canceled;
    struct agent *agent = work->data;
    const struct run_round *round = &agent->node.round;
    tether_error err = agent->join_error;
    agent->working--;
    run_console_clear(&agent->console);
    uv_timer_stop(&agent->tick);
    if (agent->join_status != TETHER_OK) {
        int code = exit_code_of(agent->join_status);
        if (!agent->over && code == RUN_EXIT_OK)
            run_console_say(&agent->console, "%s", err.message);
        else if (!agent->over)
            run_console_warn(&agent->console, "%s", err.message);
        bool known = agent->join_status == TETHER_ETIMEOUT || agent->join_status == TETHER_ECLOSED;
        give_up(agent, code, known ? RUN_LEAVE : RUN_LEAVE_SILENTLY);
        settle(agent);
        return;
    }
    if (agent->over) {
        settle(agent);
        return;
    }
    agent->phase = RUNNING;
    agent->verdict = (struct run_verdict){RUN_UNDECIDED, round->restarts, ""};
    if (round->node_count > 1)
        run_console_say(&agent->console,
                        "round %" PRIu64 ": node %d of %d, ranks %d to %d of %d, restarts %d",
                        round->number, round->node_rank, round->node_count, round->first_rank,
                        round->first_rank + agent->crew.n - 1, round->world_size, round->restarts);
    watch(agent);
    if (run_crew_start(&agent->crew, round, &err) != TETHER_OK) {
        run_console_warn(&agent->console, "%s", err.message);
        give_up(agent, RUN_EXIT_SYSTEM, RUN_LEAVE);
        settle(agent);
    }
}

static void show_progress(struct agent *agent)
{
    struct run_progress p = run_node_progress(&agent->node);
    int64_t left = p.until_ms < 0 ? -1 : p.until_ms - run_now_ms();
    char what[128];
    if (agent->options->max_nodes == 1)
        return;
    if (!p.connected)
        snprintf(what, sizeof what, "waiting for the store at %.80s", agent->options->endpoint);
    else if (p.waiting)
        snprintf(what, sizeof what, "waiting for the next round, %d node%s now", p.participants,
                 p.participants == 1 ? " runs" : "s run");
    else if (p.participants == 0)
        snprintf(what, sizeof what, "joining");
    else
        snprintf(what, sizeof what, "%d of %d nodes", p.participants,
                 p.participants < p.min_nodes ? p.min_nodes : p.max_nodes);
    run_console_progress(&agent->console, what, left < 0 && p.until_ms >= 0 ? 0 : left);
}

static void on_tick(uv_timer_t *timer)
{
    struct agent *agent = timer->data;
    if (agent->over)
        run_node_cancel(&agent->node);
    else
        show_progress(agent);
}

static void join(struct agent *agent)
{
    agent->phase = JOINING;
    uv_timer_start(&agent->tick, on_tick, TICK_MS, TICK_MS);
    queue(agent, &agent->join_work, do_join, after_join);
}

static void on_worker_exit(void *userdata, struct run_worker *worker)
{
    struct agent *agent = userdata;
    if (worker != agent->crew.first_failed)
        return;
    char result[48], why[160];
    run_worker_result(worker, result, sizeof result);
    snprintf(why, sizeof why, "rank %d on node %d: %s", worker->rank, agent->node.round.node_rank,
             result);
    run_console_warn(&agent->console, "rank %d (pid %ld) failed: %s%s", worker->rank,
                     (long)worker->pid, result,
                     worker->exit_signal == SIGKILL ? " (kill -9, or out of memory?)" : "");
    run_crew_stop(&agent->crew, SIGTERM);
    if (!agent->over && agent->verdict.outcome == RUN_UNDECIDED)
        report(agent, why);
}

static void on_crew_empty(void *userdata)
{
    struct agent *agent = userdata;
    if (!agent->over && agent->verdict.outcome == RUN_UNDECIDED && !agent->crew.first_failed)
        report(agent, "");
    settle(agent);
}

static void after_watch(uv_work_t *work, int canceled)
{
    (void)canceled;
    struct agent *agent = work->data;
    agent->working--;
    if (agent->watch_status != TETHER_OK) {
        if (!agent->over)
            run_console_warn(&agent->console, "%s", agent->watch_error.message);
        give_up(agent, exit_code_of(agent->watch_status), RUN_LEAVE_SILENTLY);
    } else if (agent->watched.outcome != RUN_UNDECIDED) {
        agent->verdict = agent->watched;
        if (agent->verdict.outcome != RUN_SUCCEEDED)
            run_crew_stop(&agent->crew, SIGTERM);
        if (agent->verdict.outcome != RUN_SUCCEEDED && !agent->over)
            run_console_say(&agent->console, "%s%s",
                            agent->verdict.outcome == RUN_FAILED    ? "the job has failed: "
                            : agent->verdict.outcome == RUN_RESTART ? "starting again: "
                                                                    : "forming the group again: ",
                            agent->verdict.why);
    } else if (!agent->over) {
        watch(agent);
        return;
    }
    settle(agent);
}

/* ---- The end -------------------------------------------------------------------------------- */

static void after_end(uv_work_t *work, int canceled)
{
    (void)canceled;
    struct agent *agent = work->data;
    agent->working--;
    agent->phase = ENDED;
    uv_stop(&agent->loop);
}

/* Continues with the next round or the end, once no worker and no call of the round is left. */
static void settle(struct agent *agent)
{
    if (agent->phase >= ENDING || agent->working > 0 || agent->crew.present > 0)
        return;
    bool decided = agent->verdict.outcome != RUN_UNDECIDED;
    if (!agent->over && !decided)
        return;
    if (!agent->over && agent->verdict.outcome != RUN_SUCCEEDED &&
        agent->verdict.outcome != RUN_FAILED) {
        join(agent);
        return;
    }
    if (!agent->over)
        give_up(agent, agent->verdict.outcome == RUN_SUCCEEDED ? RUN_EXIT_OK : RUN_EXIT_WORKER,
                RUN_JOB_OVER);
    agent->phase = ENDING;
    queue(agent, &agent->end_work, do_end, after_end);
}

static void on_child(uv_signal_t *handle, int signum)
{
    (void)signum;
    struct agent *agent = handle->data;
    run_crew_check(&agent->crew);
}

static void on_passed_signal(uv_signal_t *handle, int signum)
{
    struct agent *agent = handle->data;
    run_crew_signal(&agent->crew, signum);
}

/* Ctrl-Z reaches only the launcher's process group. Passes it on to the groups of the workers and
 * stops the launcher; passes SIGCONT on when the launcher runs again. */
static void on_suspend(uv_signal_t *handle, int signum)
{
    struct agent *agent = handle->data;
    run_crew_signal(&agent->crew, signum);
    raise(SIGSTOP);
}

static void on_ending_signal(uv_signal_t *handle, int signum)
{
    struct agent *agent = handle->data;
    if (agent->signal || agent->phase >= ENDING) {
        /* This is the second signal: do not wait for workers or the store any longer. */
        run_crew_signal(&agent->crew, SIGKILL);
        _exit(RUN_EXIT_SIGNAL + signum);
    }
    agent->signal = signum;
    run_console_say(&agent->console, "SIG%s: stopping", sigabbrev_np(signum));
    give_up(agent, RUN_EXIT_SIGNAL + signum, RUN_LEAVE);
    settle(agent);
}

static void on_drained(void *userdata)
{
    struct agent *agent = userdata;
    run_crew_resume(&agent->crew);
}

static void watch_signal(struct agent *agent, size_t i, int signum, uv_signal_cb callback)
{
    uv_signal_init(&agent->loop, &agent->signals[i]);
    agent->signals[i].data = agent;
    struct sigaction action;
    if (sigaction(signum, NULL, &action) == 0 && action.sa_handler == SIG_IGN && signum != SIGCHLD)
        return; /* the parent process made us ignore this signal (nohup) */
    uv_signal_start(&agent->signals[i], callback, signum);
}

static void watch_signals(struct agent *agent)
{
    size_t i = 0;
    signal(SIGPIPE, SIG_IGN);
    watch_signal(agent, i++, SIGCHLD, on_child);
    watch_signal(agent, i++, SIGTSTP, on_suspend);
    for (size_t k = 0; k < TETHER__ARRAY_LEN(ending_signals); k++)
        watch_signal(agent, i++, ending_signals[k], on_ending_signal);
    for (size_t k = 0; k < TETHER__ARRAY_LEN(passed_signals); k++)
        watch_signal(agent, i++, passed_signals[k], on_passed_signal);
}

static void show_summary(struct agent *agent)
{
    tether_buf text = TETHER_BUF_INIT;
    if (agent->options->quiet && agent->exit_code == RUN_EXIT_OK)
        return;
    run_console_clear(&agent->console);
    run_sink_take_line(&agent->err, agent);
    if (run_summary(&agent->crew, agent->options->tail_lines, &text) == TETHER_OK)
        run_sink_write(&agent->err, tether_buf_bytes(&text));
    tether_buf_fini(&text);
}

/* Writes the output that is still buffered, however slow its reader is. A signal ends the wait. */
static void drain(struct agent *agent)
{
    while (!run_sink_idle(&agent->out) || !run_sink_idle(&agent->err))
        uv_run(&agent->loop, UV_RUN_ONCE);
}

static tether_status start(struct agent *agent, tether_error *reterr)
{
    tether_status st =
        run_sink_init(&agent->out, &agent->loop, STDOUT_FILENO, on_drained, agent, reterr);
    if (st != TETHER_OK)
        return st;
    st = run_sink_init(&agent->err, &agent->loop, STDERR_FILENO, on_drained, agent, reterr);
    if (st != TETHER_OK)
        goto undo_out;
    run_sink_share(&agent->out, &agent->err);
    st = run_logs_init(agent->options->log_dir, reterr);
    if (st != TETHER_OK)
        goto undo_err;
    st =
        run_crew_init(&agent->crew, &agent->loop, agent->options, &agent->out, &agent->err, reterr);
    if (st != TETHER_OK)
        goto undo_err;
    agent->crew.on_exit = on_worker_exit;
    agent->crew.on_empty = on_crew_empty;
    agent->crew.userdata = agent;
    agent->console = (struct run_console){.sink = &agent->err, .quiet = agent->options->quiet};
    uv_timer_init(&agent->loop, &agent->tick);
    agent->tick.data = agent;
    watch_signals(agent);
    run_node_init(&agent->node, agent->options);
    return TETHER_OK;

undo_err:
    run_sink_close(&agent->err);
undo_out:
    run_sink_close(&agent->out);
    return st;
}

static void stop(struct agent *agent)
{
    for (size_t i = 0; i < N_SIGNALS; i++)
        uv_close((uv_handle_t *)&agent->signals[i], NULL);
    uv_close((uv_handle_t *)&agent->tick, NULL);
    run_crew_close(&agent->crew);
    run_sink_close(&agent->out);
    run_sink_close(&agent->err);
    uv_run(&agent->loop, UV_RUN_DEFAULT);
    run_crew_fini(&agent->crew);
    run_node_fini(&agent->node);
}

int run_agent(const struct run_options *options)
{
    static struct agent agent; /* static, because it is too large for the stack */
    tether_error err = {0};
    agent.options = options;
    if (uv_loop_init(&agent.loop) != 0) {
        fprintf(stderr, "tether-run: cannot start an event loop\n");
        return RUN_EXIT_SYSTEM;
    }
    tether_status st = start(&agent, &err);
    if (st != TETHER_OK) {
        fprintf(stderr, "tether-run: %s\n", err.message);
        uv_run(&agent.loop, UV_RUN_DEFAULT);
        uv_loop_close(&agent.loop);
        return RUN_EXIT_SYSTEM;
    }
    join(&agent);
    uv_run(&agent.loop, UV_RUN_DEFAULT);
    show_summary(&agent);
    drain(&agent);
    stop(&agent);
    uv_loop_close(&agent.loop);
    return agent.exit_code;
}
