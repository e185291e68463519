/* The workers of this node: started together, stopped together.
 *
 * Happy path: start() starts all workers of a round; `on_exit` is called for each that exits,
 * `on_empty` once all are gone. stop() sends a signal (SIGTERM) to those that still run, and
 * SIGKILL at --stop-timeout. Then the crew can be started again. Loop thread only.
 */
#ifndef TETHER_TOOLS_RUN_WORKERS_CREW_H
#define TETHER_TOOLS_RUN_WORKERS_CREW_H

#include "tools/run/options/options.h"
#include "tools/run/workers/round.h"
#include "tools/run/workers/watcher.h"
#include "tools/run/workers/worker.h"

struct run_crew {
    const struct run_options *options;
    uv_loop_t *loop;
    struct run_sink *out, *err;
    bool colored;
    struct run_watcher watcher;
    struct run_worker *workers;
    int n;
    int present;                     /* workers that were started and are not GONE */
    struct run_worker *first_failed; /* the first worker that failed in this round */
    bool stopping;
    uv_timer_t kill_timer;
    uv_timer_t show_timer; /* runs while a line is incomplete */
    void (*on_exit)(void *userdata, struct run_worker *worker);
    void (*on_empty)(void *userdata);
    void *userdata;
};

/* On error there is nothing to undo. The caller sets the callbacks. */
tether_status run_crew_init(struct run_crew *crew,
                            uv_loop_t *loop,
                            const struct run_options *options,
                            struct run_sink *out,
                            struct run_sink *err,
                            tether_error *reterr);

/* Starts every worker. When one cannot be started, stops those before it as stop() does: then wait
 * for `on_empty` if `present` is not 0. */
tether_status run_crew_start(struct run_crew *crew,
                             const struct run_round *round,
                             tether_error *reterr);

/* Checks for workers that have exited; call it after SIGCHLD. */
void run_crew_check(struct run_crew *crew);

/* Ends the workers and the processes that they have started: `signal` now, SIGKILL at
 * --stop-timeout. A second call does nothing, except that SIGKILL takes effect at once. */
void run_crew_stop(struct run_crew *crew, int signal);

/* Sends a signal to the process groups of all workers. */
void run_crew_signal(struct run_crew *crew, int signal);

/* Reads the output of workers again, after a full sink has got room. */
void run_crew_resume(struct run_crew *crew);

/* Closes the handles of an empty crew. Run the loop once more afterwards and then call fini(). */
void run_crew_close(struct run_crew *crew);
void run_crew_fini(struct run_crew *crew);

#endif
