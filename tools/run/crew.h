/* The workers of this node: started together, stopped together.
 *
 * Happy path: start() starts them all for a round; `on_exit` is called for each that exits,
 * `on_empty` once all are gone. stop() asks those that still run to end (SIGTERM), and kills them
 * when the time is up (SIGKILL). Then the crew can be started again. Loop thread only.
 */
#ifndef TETHER_TOOLS_RUN_CREW_H
#define TETHER_TOOLS_RUN_CREW_H

#include "tools/run/options.h"
#include "tools/run/round.h"
#include "tools/run/watcher.h"
#include "tools/run/worker.h"

struct run_crew {
    const struct run_options *options;
    uv_loop_t *loop;
    struct run_sink *out, *err;
    bool colored;
    struct run_watcher watcher;
    struct run_worker *workers;
    int n;
    int present;                     /* started and not gone */
    struct run_worker *first_failed; /* of this round */
    bool stopping;
    uv_timer_t kill_timer;
    uv_timer_t show_timer; /* while a line waits for its end */
    void (*on_exit)(void *userdata, struct run_worker *worker);
    void (*on_empty)(void *userdata);
    void *userdata;
};

/* On error nothing is left behind. The callbacks are set by the caller. */
tether_status run_crew_init(struct run_crew *crew,
                            uv_loop_t *loop,
                            const struct run_options *options,
                            struct run_sink *out,
                            struct run_sink *err,
                            tether_error *reterr);

/* Starts every worker. When one cannot be started those before it are stopped, as by stop(): wait
 * for `on_empty` if `present` is not 0. */
tether_status run_crew_start(struct run_crew *crew,
                             const struct run_round *round,
                             tether_error *reterr);

/* SIGCHLD came. */
void run_crew_check(struct run_crew *crew);

/* Ends it, and what workers have left behind: `signal` now, SIGKILL at --stop-timeout. Calling it
 * again changes nothing, but with SIGKILL it ends at once. */
void run_crew_stop(struct run_crew *crew, int signal);

/* Passes a signal on. */
void run_crew_signal(struct run_crew *crew, int signal);

/* A sink has room again: goes on reading. */
void run_crew_resume(struct run_crew *crew);

/* Frees it once it is empty; the loop must run once more afterwards, with `closed` called. */
void run_crew_close(struct run_crew *crew);
void run_crew_fini(struct run_crew *crew);

#endif
