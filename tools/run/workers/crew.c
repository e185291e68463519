/* All workers of this node. */
#include "tools/run/workers/crew.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/macros.h"
#include "tools/run/output/logs.h"
#include "tools/run/workers/env.h"

static void on_worker_gone(struct run_worker *worker)
{
    struct run_crew *crew = worker->userdata;
    if (--crew->present > 0)
        return;
    uv_timer_stop(&crew->kill_timer);
    crew->on_empty(crew->userdata);
}

/* How long an incomplete line waits before it is shown. Short on a terminal, where a progress bar
 * should move; longer elsewhere, so that most lines stay whole. */
#define SHOW_TERMINAL_MS 50
#define SHOW_OTHERS_MS 1000

static void on_show(uv_timer_t *timer)
{
    struct run_crew *crew = timer->data;
    for (int i = 0; i < crew->n; i++) {
        run_stream_show(&crew->workers[i].out);
        run_stream_show(&crew->workers[i].err);
    }
}

static void on_partial(struct run_worker *worker, const struct run_stream *stream)
{
    struct run_crew *crew = worker->userdata;
    if (!uv_is_active((uv_handle_t *)&crew->show_timer))
        uv_timer_start(&crew->show_timer, on_show,
                       stream->sink->terminal ? SHOW_TERMINAL_MS : SHOW_OTHERS_MS, 0);
}

static void on_partial_out(struct run_stream *stream)
{
    on_partial(tether__container_of(stream, struct run_worker, out), stream);
}

static void on_partial_err(struct run_stream *stream)
{
    on_partial(tether__container_of(stream, struct run_worker, err), stream);
}

tether_status run_crew_init(struct run_crew *crew,
                            uv_loop_t *loop,
                            const struct run_options *options,
                            struct run_sink *out,
                            struct run_sink *err,
                            tether_error *reterr)
{
    const char *no_color = getenv("NO_COLOR");
    bool terminal = out->terminal && !(no_color && no_color[0]);
    *crew = (struct run_crew){
        .options = options,
        .loop = loop,
        .out = out,
        .err = err,
        .colored = options->color == RUN_YES || (options->color == RUN_AUTO && terminal),
        .n = options->nproc,
    };
    crew->workers = calloc((size_t)crew->n, sizeof *crew->workers);
    if (!crew->workers)
        return tether_error_set(reterr, TETHER_ENOMEM, "out of memory for %d workers", crew->n);
    tether_status st = run_watcher_start(&crew->watcher, reterr);
    if (st != TETHER_OK) {
        run_crew_fini(crew);
        return st;
    }
    for (int i = 0; i < crew->n; i++) {
        struct run_worker *worker = &crew->workers[i];
        worker->local_rank = i;
        worker->rank = -1;
        worker->out.sink = out;
        worker->err.sink = err;
        worker->out.partial = on_partial_out;
        worker->err.partial = on_partial_err;
        worker->watcher_fd = crew->watcher.fd;
        worker->on_gone = on_worker_gone;
        worker->userdata = crew;
    }
    uv_timer_init(loop, &crew->kill_timer);
    crew->kill_timer.data = crew;
    uv_timer_init(loop, &crew->show_timer);
    crew->show_timer.data = crew;
    uv_unref((uv_handle_t *)&crew->show_timer);
    return TETHER_OK;
}

/* Sets the prefix, "[ 3] ", of the same width for every rank, in one of six colours (not red, the
 * colour of errors). */
static void set_prefix(const struct run_crew *crew, struct run_stream *stream, int rank, int world)
{
    static const int colors[] = {36, 32, 33, 35, 34, 96};
    int width = snprintf(NULL, 0, "%d", world - 1);
    if (!crew->options->prefix)
        stream->prefix[0] = '\0';
    else if (crew->colored)
        snprintf(stream->prefix, sizeof stream->prefix, "\033[%dm[%*d]\033[0m ",
                 colors[(size_t)rank % TETHER__ARRAY_LEN(colors)], width, rank);
    else
        snprintf(stream->prefix, sizeof stream->prefix, "[%*d] ", width, rank);
}

static tether_status start_one(struct run_crew *crew,
                               struct run_worker *worker,
                               const struct run_round *round,
                               tether_error *reterr)
{
    struct run_worker_start start = {
        .command = crew->options->command, .out_log = -1, .err_log = -1};
    worker->rank = round->first_rank + worker->local_rank;
    set_prefix(crew, &worker->out, worker->rank, round->world_size);
    set_prefix(crew, &worker->err, worker->rank, round->world_size);
    tether_status st = run_logs_open(crew->options->log_dir, round->number, worker->rank,
                                     &start.out_log, &start.err_log, reterr);
    if (st != TETHER_OK)
        return st;
    struct run_env env;
    st = run_env_init(&env, crew->options, round, worker->local_rank, reterr);
    if (st != TETHER_OK) {
        run_logs_close(start.out_log, start.err_log);
        return st;
    }
    start.env = env.vars;
    st = run_worker_start(worker, crew->loop, &start, reterr);
    run_env_fini(&env);
    return st;
}

tether_status run_crew_start(struct run_crew *crew,
                             const struct run_round *round,
                             tether_error *reterr)
{
    crew->first_failed = NULL;
    crew->stopping = false;
    for (int i = 0; i < crew->n; i++) {
        tether_status st = start_one(crew, &crew->workers[i], round, reterr);
        if (st != TETHER_OK) {
            run_crew_stop(crew, SIGTERM);
            return st;
        }
        crew->present++;
    }
    return TETHER_OK;
}

void run_crew_check(struct run_crew *crew)
{
    for (int i = 0; i < crew->n; i++) {
        struct run_worker *worker = &crew->workers[i];
        if (!run_worker_check(worker))
            continue;
        if (!run_worker_succeeded(worker) && !worker->stopped && !crew->first_failed)
            crew->first_failed = worker;
        crew->on_exit(crew->userdata, worker);
    }
}

void run_crew_signal(struct run_crew *crew, int signal)
{
    for (int i = 0; i < crew->n; i++)
        run_worker_signal(&crew->workers[i], signal);
}

static void on_kill(uv_timer_t *timer)
{
    run_crew_signal(timer->data, SIGKILL);
}

void run_crew_stop(struct run_crew *crew, int signal)
{
    if (crew->options->stop_timeout_ms == 0)
        signal = SIGKILL;
    if (crew->present == 0 || (crew->stopping && signal != SIGKILL))
        return;
    crew->stopping = true;
    for (int i = 0; i < crew->n; i++)
        crew->workers[i].stopped |= crew->workers[i].state == RUN_WORKER_RUNNING;
    run_crew_signal(crew, signal);
    /* continue suspended workers, which could not handle the signal otherwise */
    run_crew_signal(crew, SIGCONT);
    if (signal != SIGKILL)
        uv_timer_start(&crew->kill_timer, on_kill, (uint64_t)crew->options->stop_timeout_ms, 0);
}

void run_crew_resume(struct run_crew *crew)
{
    for (int i = 0; i < crew->n; i++) {
        run_stream_resume(&crew->workers[i].out);
        run_stream_resume(&crew->workers[i].err);
    }
}

void run_crew_close(struct run_crew *crew)
{
    uv_close((uv_handle_t *)&crew->kill_timer, NULL);
    uv_close((uv_handle_t *)&crew->show_timer, NULL);
}

void run_crew_fini(struct run_crew *crew)
{
    if (crew->workers)
        run_watcher_stop(&crew->watcher);
    free(crew->workers);
    crew->workers = NULL;
    crew->n = 0;
}
