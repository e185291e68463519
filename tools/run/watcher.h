/* A small process that outlives the launcher by a moment, to kill what workers have started.
 *
 * When the launcher dies by SIGKILL, the kernel kills the workers (worker_exec.c), but not their
 * children. So the launcher has a child of its own, the watcher, in a session of its own and deaf
 * to every signal but SIGKILL. Each worker says its process group to the watcher, over a pipe,
 * before it becomes the user's program; the launcher says when a group is gone. The end of the pipe
 * is the end of the launcher: the watcher kills the groups that are left, and ends.
 *
 * Not reached: processes that have left the group of their worker (setsid).
 */
#ifndef TETHER_TOOLS_RUN_WATCHER_H
#define TETHER_TOOLS_RUN_WATCHER_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/status.h"

/* argv[1] of a launcher that is to become a watcher. */
#define RUN_WATCH_WORKERS "--watch-workers"

/* Where a process that becomes a worker finds the pipe. */
#define RUN_WATCHER_FD 3

struct run_watcher {
    int fd; /* the launcher's end of the pipe; -1: none */
    pid_t pid;
};

tether_status run_watcher_start(struct run_watcher *watcher, tether_error *reterr);

/* Ends it: it kills the groups that it was told of and not told to forget. */
void run_watcher_stop(struct run_watcher *watcher);

/* Tells it of a group (`add`), or that the group is gone. `fd` is the launcher's end of the pipe.
 */
void run_watcher_tell(int fd, pid_t group, bool add);

/* The other half, in the spawned process, with the pipe as standard input. Does not return. */
void run_watcher_run(void) __attribute__((noreturn));

#endif
