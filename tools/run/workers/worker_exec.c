/* The spawned process, between the launcher and the worker that it becomes.
 *
 * posix_spawn() can't set PR_SET_PDEATHSIG. So the launcher starts a copy of itself, which sets it
 * and then becomes the worker; the setting survives exec. This process also registers its process
 * group with the watcher, before any other process can be in that group. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "tools/run/workers/watcher.h"
#include "tools/run/workers/worker.h"

void run_worker_exec(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "tether-run: %s is for the launcher's own use\n", RUN_EXEC_WORKER);
        _exit(2);
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != (pid_t)atol(argv[2]))
        _exit(1); /* the launcher has ended before prctl() */
    run_watcher_tell(RUN_WATCHER_FD, getpid(), true);
    fcntl(RUN_WATCHER_FD, F_SETFD, FD_CLOEXEC);
    execvp(argv[3], argv + 3);
    int error = errno;
    fprintf(stderr, "tether-run: cannot run '%s': %s\n", argv[3], strerror(error));
    _exit(error == ENOENT ? 127 : 126);
}
