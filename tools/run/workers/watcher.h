/* The watcher: a small process that outlives the launcher to kill the processes that workers have
 * started.
 *
 * When the launcher dies by SIGKILL, the kernel kills the workers (worker_exec.c), but not their
 * children. So the launcher starts the watcher, in a session of its own and with all signals
 * blocked. Each worker sends its process group to the watcher, through a pipe, before it becomes
 * the user's program. The launcher reports each group that is gone. When the pipe reaches its end,
 * the launcher has ended: the watcher kills the remaining groups and exits.
 *
 * Processes that have left the group of their worker (setsid) are not killed.
 */
#ifndef TETHER_TOOLS_RUN_WORKERS_WATCHER_H
#define TETHER_TOOLS_RUN_WORKERS_WATCHER_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/status.h"

/* argv[1] of a copy of the launcher that becomes the watcher. */
#define RUN_WATCH_WORKERS "--watch-workers"

/* The descriptor of the pipe in a process that becomes a worker. */
#define RUN_WATCHER_FD 3

struct run_watcher {
    int fd; /* the launcher's end of the pipe; -1: none */
    pid_t pid;
};

tether_status run_watcher_start(struct run_watcher *watcher, tether_error *reterr);

/* Ends the watcher, which first kills the groups that are still registered. */
void run_watcher_stop(struct run_watcher *watcher);

/* Registers a group with the watcher (`add`), or removes it. `fd` is the launcher's end of the
 * pipe. */
void run_watcher_tell(int fd, pid_t group, bool add);

/* Runs the watcher in the spawned process, with the pipe as standard input. Does not return. */
void run_watcher_run(void) __attribute__((noreturn));

#endif
