/* One worker process: started, listened to, stopped, collected.
 *
 * Happy path: start() spawns it; when SIGCHLD comes, check() sees how it exited; once its output
 * has ended too it is gone and `on_gone` is called.
 *
 * A worker leads a process group of its own, so that a signal also reaches what it has started. Its
 * pid stays reserved (unreaped) until it has ended, so that no signal can reach another process.
 * Processes that it leaves running get RUN_LINGER_MS to finish writing (a `tee` behind a shell
 * script, say) and is then killed; output held open from outside the group is given up on. When the
 * launcher dies, however it dies, the kernel kills the worker (worker_exec.c), and the watcher the
 * rest of its process group (watcher.h). Loop thread only.
 */
#ifndef TETHER_TOOLS_RUN_WORKER_H
#define TETHER_TOOLS_RUN_WORKER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "tools/run/stream.h"

#define RUN_LINGER_MS 5000
#define RUN_EXEC_WORKER "--exec-worker" /* argv[1] of a launcher that is to become a worker */

enum run_worker_state {
    RUN_WORKER_NONE,    /* not started */
    RUN_WORKER_RUNNING, /* as far as we know */
    RUN_WORKER_EXITED,  /* `exit_status` is known; output may still come */
    RUN_WORKER_GONE,    /* nothing of it is left */
};

struct run_worker {
    /* since the last start */
    enum run_worker_state state;
    int rank, local_rank;
    pid_t pid;
    int exit_code;   /* valid unless exit_signal */
    int exit_signal; /* 0: it exited by itself */
    bool core_dumped;
    bool stopped; /* we had asked it to end before it did */
    uint64_t started_ms, exited_ms;
    struct run_stream out, err;
    struct run_tail tail;
    uv_timer_t linger;
    bool lingered;
    int open_handles; /* of out, err, linger */
    /* over all starts */
    int starts;
    int watcher_fd; /* watcher.h; set by the caller */
    void (*on_gone)(struct run_worker *worker);
    void *userdata;
};

struct run_worker_start {
    char *const *command;
    char *const *env;
    int out_log, err_log; /* TAKEN; -1: none */
};

/* Starts it; streams have their prefix and sink set by the caller. On error it is GONE and
 * `on_gone` is not called. */
tether_status run_worker_start(struct run_worker *worker,
                               uv_loop_t *loop,
                               const struct run_worker_start *start,
                               tether_error *reterr);

/* Looks whether it has exited; true when it just did. */
bool run_worker_check(struct run_worker *worker);

/* Sends `signal` to its process group, if anything may be left of it. */
void run_worker_signal(struct run_worker *worker, int signal);

/* Whether it exited with 0. "0", "exit 3", "SIGSEGV (core)", "running": into `text`. */
bool run_worker_succeeded(const struct run_worker *worker);
const char *run_worker_fate(const struct run_worker *worker, char *text, size_t size);

/* The other half, in the spawned process: ties its life to its parent `argv[2]` and becomes the
 * program argv[3]. Does not return. */
void run_worker_exec(int argc, char **argv) __attribute__((noreturn));

#endif
