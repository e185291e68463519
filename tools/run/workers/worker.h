/* One worker process: start, output, stop, and collection.
 *
 * Happy path: start() spawns it; after SIGCHLD, check() reads its exit status; once its output has
 * ended too, the worker is GONE and `on_gone` is called.
 *
 * A worker leads a process group of its own, so that a signal also reaches the processes that it
 * has started. Its pid stays reserved (not reaped) until its output has ended, so that no signal
 * can reach another process. Processes that it leaves running get RUN_LINGER_MS to finish writing
 * (for example a `tee` behind a shell script) and are then killed. Output that a process outside
 * the group keeps open is not read to its end. When the launcher dies, however it dies, the kernel
 * kills the worker (worker_exec.c), and the watcher the rest of its process group (watcher.h). Loop
 * thread only.
 */
#ifndef TETHER_TOOLS_RUN_WORKERS_WORKER_H
#define TETHER_TOOLS_RUN_WORKERS_WORKER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "tools/run/output/stream.h"

#define RUN_LINGER_MS 5000
/* argv[1] of a copy of the launcher that becomes a worker. */
#define RUN_EXEC_WORKER "--exec-worker"

enum run_worker_state {
    RUN_WORKER_NONE,    /* the worker was not started */
    RUN_WORKER_RUNNING, /* the worker runs: no exit status has been read */
    RUN_WORKER_EXITED,  /* the worker has exited with `exit_status`; output may still come */
    RUN_WORKER_GONE,    /* the worker is collected, and its output has ended */
};

struct run_worker {
    /* fields about the last start */
    enum run_worker_state state;
    int rank, local_rank;
    pid_t pid;
    int exit_code;   /* exit code, valid if exit_signal is 0 */
    int exit_signal; /* signal that ended the worker; 0: it exited by itself */
    bool core_dumped;
    bool stopped; /* the launcher sent it a signal before it exited */
    uint64_t started_ms, exited_ms;
    struct run_stream out, err;
    struct run_tail tail;
    uv_timer_t linger;
    bool lingered;
    int open_handles; /* how many of the handles out, err and linger are open */
    /* how often the worker was started */
    int starts;
    int watcher_fd; /* the pipe to the watcher (watcher.h); set by the caller */
    void (*on_gone)(struct run_worker *worker);
    void *userdata;
};

struct run_worker_start {
    char *const *command;
    char *const *env;
    int out_log, err_log; /* descriptors of log files (TAKEN); -1: none */
};

/* Starts the worker; the caller has set prefix and sink of its streams. On error the worker is GONE
 * and `on_gone` is not called. */
tether_status run_worker_start(struct run_worker *worker,
                               uv_loop_t *loop,
                               const struct run_worker_start *start,
                               tether_error *reterr);

/* Checks whether the worker has exited; true when this call noticed it. */
bool run_worker_check(struct run_worker *worker);

/* Sends `signal` to the process group unless the worker is GONE. */
void run_worker_signal(struct run_worker *worker, int signal);

/* succeeded() returns whether the worker exited with 0. The second function returns how it ended
 * as text: "0", "exit 3", "SIGSEGV (core)", "running". */
bool run_worker_succeeded(const struct run_worker *worker);
const char *run_worker_result(const struct run_worker *worker, char *text, size_t size);

/* Runs in the spawned process: arranges that it dies with its parent, argv[2], and becomes the
 * program argv[3]. Does not return. */
void run_worker_exec(int argc, char **argv) __attribute__((noreturn));

#endif
