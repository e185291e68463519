/* Starts the watcher; the code of the watcher process. */
#include "tools/run/workers/watcher.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* A message in the pipe. It is shorter than PIPE_BUF, so it is written atomically. */
struct message {
    pid_t group;
    int add; /* 1: the group is registered; 0: it is gone */
};

static int spawn(pid_t *ret_pid, int pipe_fd)
{
    static char *const argv[] = {"tether-run", RUN_WATCH_WORKERS, NULL};
    static char *const env[] = {NULL};
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t none;
    sigemptyset(&none);
    int rc = posix_spawn_file_actions_init(&files);
    if (rc != 0)
        return rc;
    rc = posix_spawnattr_init(&attr);
    if (rc != 0)
        goto undo_files;
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK);
    rc = posix_spawn_file_actions_adddup2(&files, pipe_fd, STDIN_FILENO);
    if (rc == 0) /* last, because the watcher must not keep the launcher's output open */
        rc = posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    if (rc == 0)
        rc = posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    if (rc == 0)
        rc = posix_spawn(ret_pid, "/proc/self/exe", &files, &attr, argv, env);
    posix_spawnattr_destroy(&attr);
undo_files:
    posix_spawn_file_actions_destroy(&files);
    return rc;
}

tether_status run_watcher_start(struct run_watcher *watcher, tether_error *reterr)
{
    int ends[2];
    *watcher = (struct run_watcher){.fd = -1};
    int rc = pipe2(ends, O_CLOEXEC) == 0 ? 0 : errno;
    if (rc == 0) {
        rc = spawn(&watcher->pid, ends[0]);
        close(ends[0]);
        if (rc != 0)
            close(ends[1]);
    }
    if (rc != 0)
        return tether_error_set(reterr, TETHER_EIO, "cannot start the watcher of the workers: %s",
                                strerror(rc));
    /* non-blocking, because a suspended watcher must not block the launcher */
    fcntl(ends[1], F_SETFL, O_NONBLOCK);
    watcher->fd = ends[1];
    return TETHER_OK;
}

void run_watcher_stop(struct run_watcher *watcher)
{
    if (watcher->fd < 0)
        return;
    close(watcher->fd);
    watcher->fd = -1;
    kill(watcher->pid, SIGCONT);
    while (waitpid(watcher->pid, NULL, 0) < 0 && errno == EINTR) {
    }
}

void run_watcher_tell(int fd, pid_t group, bool add)
{
    struct message message = {group, add};
    while (write(fd, &message, sizeof message) < 0 && errno == EINTR) {
    } /* the watcher could not be told: only the kernel kills workers then */
}

/* ---- In the watcher ------------------------------------------------------------------------- */

struct groups {
    pid_t *all;
    size_t n, room;
};

static void add(struct groups *groups, pid_t group)
{
    if (groups->n == groups->room) {
        size_t room = groups->room ? 2 * groups->room : 64;
        pid_t *all = realloc(groups->all, room * sizeof *all);
        if (!all)
            return;
        groups->all = all;
        groups->room = room;
    }
    groups->all[groups->n++] = group;
}

static void forget(struct groups *groups, pid_t group)
{
    for (size_t i = 0; i < groups->n; i++)
        if (groups->all[i] == group)
            groups->all[i--] = groups->all[--groups->n];
}

void run_watcher_run(void)
{
    struct groups groups = {0};
    struct message message;
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    close_range(3, ~0U, 0);
    /* go on after a failure: it only keeps a file system from being unmounted */
    if (chdir("/") != 0) {
    }
    for (;;) {
        ssize_t n = read(STDIN_FILENO, &message, sizeof message);
        if (n < 0 && errno == EINTR)
            continue;
        if (n != sizeof message)
            break;
        /* kill() with 0, 1 or a negative number would reach other processes */
        if (message.group <= 1)
            continue;
        if (message.add)
            add(&groups, message.group);
        else
            forget(&groups, message.group);
    }
    for (size_t i = 0; i < groups.n; i++)
        kill(-groups.all[i], SIGKILL);
    _exit(0);
}
