/* The spawned process, between the launcher and the worker that it becomes.
 *
 * posix_spawn() can't ask for PR_SET_PDEATHSIG, so the launcher starts itself, this asks, and
 * becomes the worker: the request survives exec. The watcher handles processes that the worker
 * starts; it learns of the worker's process group here, before there can be a process in it. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "tools/run/watcher.h"
#include "tools/run/worker.h"

void run_worker_exec(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "tether-run: %s is for the launcher's own use\n", RUN_EXEC_WORKER);
        _exit(2);
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != (pid_t)atol(argv[2]))
        _exit(1); /* the launcher ended before the line above */
    run_watcher_tell(RUN_WATCHER_FD, getpid(), true);
    fcntl(RUN_WATCHER_FD, F_SETFD, FD_CLOEXEC);
    execvp(argv[3], argv + 3);
    int error = errno;
    fprintf(stderr, "tether-run: cannot run '%s': %s\n", argv[3], strerror(error));
    _exit(error == ENOENT ? 127 : 126);
}
