/* Starts a worker and follows it until it is gone. */
#include "tools/run/workers/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/macros.h"
#include "tools/run/workers/watcher.h"

/* Returns argv of the process that becomes the worker; the caller frees it by free(). */
static char **exec_argv(char *const *command, char *parent)
{
    size_t n = 0;
    while (command[n])
        n++;
    char **argv = calloc(n + 4, sizeof *argv);
    if (!argv)
        return NULL;
    argv[0] = "tether-run";
    argv[1] = RUN_EXEC_WORKER;
    argv[2] = parent;
    memcpy(argv + 3, command, n * sizeof *argv);
    return argv;
}

/* Gives the signals that the worker starts with in their default handling: all except those that
 * the launcher's parent ignores (nohup). */
static void default_signals(sigset_t *set)
{
    static const int may_be_ignored[] = {SIGHUP, SIGINT, SIGQUIT};
    sigfillset(set);
    for (size_t i = 0; i < TETHER__ARRAY_LEN(may_be_ignored); i++) {
        struct sigaction action;
        if (sigaction(may_be_ignored[i], NULL, &action) == 0 && action.sa_handler == SIG_IGN)
            sigdelset(set, may_be_ignored[i]);
    }
}

static int spawn(pid_t *ret_pid,
                 char *const *argv,
                 char *const *env,
                 int out_fd,
                 int err_fd,
                 int watcher_fd)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t none, all;
    sigemptyset(&none);
    default_signals(&all);
    int rc = posix_spawn_file_actions_init(&files);
    if (rc != 0)
        return rc;
    rc = posix_spawnattr_init(&attr);
    if (rc != 0)
        goto undo_files;
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &all);
    posix_spawnattr_setpgroup(&attr, 0);
    posix_spawnattr_setflags(
        &attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    rc = posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (rc == 0)
        rc = posix_spawn_file_actions_adddup2(&files, out_fd, STDOUT_FILENO);
    if (rc == 0)
        rc = posix_spawn_file_actions_adddup2(&files, err_fd, STDERR_FILENO);
    if (rc == 0) /* close it last, because the descriptor with that number was duplicated before */
        rc = posix_spawn_file_actions_adddup2(&files, watcher_fd, RUN_WATCHER_FD);
    if (rc == 0)
        rc = posix_spawn(ret_pid, "/proc/self/exe", &files, &attr, argv, env);
    posix_spawnattr_destroy(&attr);
undo_files:
    posix_spawn_file_actions_destroy(&files);
    return rc;
}

static void close_pair(int pair[2])
{
    close(pair[0]);
    close(pair[1]);
}

static void handle_closed(struct run_worker *worker)
{
    if (--worker->open_handles == 0 && worker->state == RUN_WORKER_GONE)
        worker->on_gone(worker);
}

static void on_linger_closed(uv_handle_t *handle)
{
    handle_closed(handle->data);
}

/* Collects the worker, after its processes and its output have ended. Frees its pid. */
static void collect(struct run_worker *worker)
{
    run_worker_signal(worker, SIGKILL);
    /* Report it before waitpid(), so that no other process can have the pid yet. */
    run_watcher_tell(worker->watcher_fd, worker->pid, false);
    waitpid(worker->pid, NULL, 0);
    worker->state = RUN_WORKER_GONE;
    uv_close((uv_handle_t *)&worker->linger, on_linger_closed);
}

static void on_linger(uv_timer_t *timer)
{
    struct run_worker *worker = timer->data;
    if (!worker->lingered) {
        /* the worker left processes running; killed, they close their end of the pipe */
        worker->lingered = true;
        run_worker_signal(worker, SIGKILL);
        uv_timer_start(&worker->linger, on_linger, RUN_LINGER_MS, 0);
        return;
    }
    run_stream_end(&worker->out);
    run_stream_end(&worker->err);
}

static void stream_ended(struct run_worker *worker)
{
    if (worker->state == RUN_WORKER_EXITED && !worker->out.open && !worker->err.open)
        collect(worker);
    handle_closed(worker);
}

static void on_out_ended(struct run_stream *stream)
{
    stream_ended(tether__container_of(stream, struct run_worker, out));
}

static void on_err_ended(struct run_stream *stream)
{
    stream_ended(tether__container_of(stream, struct run_worker, err));
}

static void open_streams(struct run_worker *worker,
                         uv_loop_t *loop,
                         const struct run_worker_start *start,
                         int out_fd,
                         int err_fd)
{
    tether_error err = {0};
    worker->open_handles = 3;
    worker->out.ended = on_out_ended;
    worker->err.ended = on_err_ended;
    worker->out.tail = worker->err.tail = &worker->tail;
    uv_timer_init(loop, &worker->linger);
    worker->linger.data = worker;
    bool listening = run_stream_open(&worker->out, loop, out_fd, start->out_log, &err) == TETHER_OK;
    listening &= run_stream_open(&worker->err, loop, err_fd, start->err_log, &err) == TETHER_OK;
    if (listening)
        return;
    /* End the worker, because its output would be lost. */
    run_tail_add(&worker->tail, tether_bytes_str(err.message));
    run_worker_signal(worker, SIGKILL);
}

tether_status run_worker_start(struct run_worker *worker,
                               uv_loop_t *loop,
                               const struct run_worker_start *start,
                               tether_error *reterr)
{
    int out[2], err[2], rc = 0;
    char parent[16];
    snprintf(parent, sizeof parent, "%ld", (long)getpid());
    worker->state = RUN_WORKER_GONE;
    worker->stopped = worker->lingered = worker->core_dumped = false;
    worker->exit_code = worker->exit_signal = 0;
    worker->pid = 0;
    worker->tail.end = 0;
    char **argv = exec_argv(start->command, parent);
    if (!argv)
        goto undo_nothing;
    if (pipe2(out, O_CLOEXEC) != 0) {
        rc = errno;
        goto undo_argv;
    }
    if (pipe2(err, O_CLOEXEC) != 0) {
        rc = errno;
        goto undo_out;
    }
    rc = spawn(&worker->pid, argv, start->env, out[1], err[1], worker->watcher_fd);
    if (rc != 0)
        goto undo_err;
    free(argv);
    close(out[1]);
    close(err[1]);
    worker->state = RUN_WORKER_RUNNING;
    worker->starts++;
    worker->started_ms = worker->exited_ms = uv_now(loop);
    open_streams(worker, loop, start, out[0], err[0]);
    return TETHER_OK;

undo_err:
    close_pair(err);
undo_out:
    close_pair(out);
undo_argv:
    free(argv);
undo_nothing:
    if (start->out_log >= 0)
        close(start->out_log);
    if (start->err_log >= 0)
        close(start->err_log);
    if (rc == 0)
        return tether_error_set(reterr, TETHER_ENOMEM, "out of memory to start rank %d",
                                worker->rank);
    return tether_error_set(reterr, TETHER_EIO, "cannot start rank %d: %s", worker->rank,
                            strerror(rc));
}

bool run_worker_check(struct run_worker *worker)
{
    siginfo_t info = {0};
    if (worker->state != RUN_WORKER_RUNNING ||
        waitid(P_PID, (id_t)worker->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid == 0)
        return false;
    worker->state = RUN_WORKER_EXITED;
    worker->exited_ms = uv_now(worker->linger.loop);
    worker->exit_code = info.si_code == CLD_EXITED ? info.si_status : 0;
    worker->exit_signal = info.si_code == CLD_EXITED ? 0 : info.si_status;
    worker->core_dumped = info.si_code == CLD_DUMPED;
    if (worker->stopped)
        run_worker_signal(worker, SIGTERM); /* also end the processes that it has left running */
    if (!worker->out.open && !worker->err.open)
        collect(worker);
    else
        uv_timer_start(&worker->linger, on_linger, RUN_LINGER_MS, 0);
    return true;
}

void run_worker_signal(struct run_worker *worker, int signal)
{
    if (worker->state == RUN_WORKER_RUNNING || worker->state == RUN_WORKER_EXITED)
        kill(-worker->pid, signal);
}

bool run_worker_succeeded(const struct run_worker *worker)
{
    return worker->state >= RUN_WORKER_EXITED && worker->starts > 0 && worker->exit_signal == 0 &&
           worker->exit_code == 0;
}

const char *run_worker_result(const struct run_worker *worker, char *text, size_t size)
{
    const char *name = worker->exit_signal ? sigabbrev_np(worker->exit_signal) : NULL;
    if (worker->pid == 0)
        snprintf(text, size, "not started");
    else if (worker->state == RUN_WORKER_RUNNING)
        snprintf(text, size, "running");
    else if (name)
        snprintf(text, size, "SIG%s%s", name, worker->core_dumped ? " (core)" : "");
    else if (worker->exit_signal)
        snprintf(text, size, "signal %d", worker->exit_signal);
    else
        snprintf(text, size, worker->exit_code ? "exit %d" : "%d", worker->exit_code);
    return text;
}
