/* Starts, watches and ends one process.
 *
 * A child is always started as this binary, with `test --tether-child ROLE PARENT ARGS...`. It
 * first sets PR_SET_PDEATHSIG, so that it dies with its parent, and then runs its role; the role
 * "exec" becomes a command. The setting survives exec, so it works for any command.
 */
#include "tests/lib/child.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"

#define CHILD_FLAG "--tether-child"
/* index of the first argument of the role, after the program, the flag, the role and the
 * parent's pid */
#define FIRST_ARG 4

extern char **environ;

static const char *program; /* path of this test binary; NULL before tether_test_main() */

static void enter_exec(const struct tether_test_role *role, int argc, char **argv)
{
    (void)role, (void)argc;
    execvp(argv[0], argv);
    fprintf(stderr, "can't run '%s': %s\n", argv[0], strerror(errno));
    _exit(127);
}

static struct tether_test_role exec_role = {"exec", enter_exec, NULL};
static struct tether_test_role *roles = &exec_role;

void tether_test_role_add(struct tether_test_role *role)
{
    role->next = roles;
    roles = role;
}

void tether_test_main(int argc, char **argv)
{
    program = argv[0];
    if (argc < FIRST_ARG || strcmp(argv[1], CHILD_FLAG) != 0)
        return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != (pid_t)atol(argv[3]))
        _exit(1); /* the parent has ended before prctl() */
    for (struct tether_test_role *role = roles; role; role = role->next)
        if (strcmp(role->name, argv[2]) == 0)
            role->enter(role, argc - FIRST_ARG, argv + FIRST_ARG);
    fprintf(stderr, "this binary has no role '%s'\n", argv[2]);
    _exit(1);
}

/* Makes a file in memory. Its descriptor is above those that a child is given. */
int tether_test_memory_file(const char *name)
{
    int low = memfd_create(name, MFD_CLOEXEC);
    int fd = fcntl(low, F_DUPFD_CLOEXEC, TETHER_TEST_INHERITED_FD + 1);
    close(low);
    return fd;
}

static int spawn(char **argv, int output_fd, int inherited_fd, pid_t *ret_pid)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    sigset_t signals;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, output_fd, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, output_fd, STDERR_FILENO);
    if (inherited_fd >= 0)
        posix_spawn_file_actions_adddup2(&actions, inherited_fd, TETHER_TEST_INHERITED_FD);

    /* The child starts with default signal handling, even if the test has changed its own. */
    posix_spawnattr_init(&attr);
    sigemptyset(&signals);
    posix_spawnattr_setsigmask(&attr, &signals);
    sigfillset(&signals);
    posix_spawnattr_setsigdefault(&attr, &signals);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);

    int rc = posix_spawn(ret_pid, "/proc/self/exe", &actions, &attr, argv, environ);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&actions);
    return rc;
}

struct tether_test_child *tether_test_child_start_role(const char *role,
                                                       const char *const *args,
                                                       int inherited_fd)
{
    if (!program)
        fail_msg("main() must call tether_test_main(argc, argv) before a test starts a process");
    size_t n_args = 0;
    while (args[n_args])
        n_args++;
    char parent[16];
    snprintf(parent, sizeof parent, "%ld", (long)getpid());
    const char **argv = calloc(FIRST_ARG + n_args + 1, sizeof *argv);
    struct tether_test_child *child = calloc(1, sizeof *child);
    assert_non_null(argv);
    assert_non_null(child);
    argv[0] = program;
    argv[1] = CHILD_FLAG;
    argv[2] = role;
    argv[3] = parent;
    memcpy(argv + FIRST_ARG, args, n_args * sizeof *argv);

    child->output_fd = tether_test_memory_file(role);
    int rc = spawn((char **)argv, child->output_fd, inherited_fd, &child->pid);
    free(argv);
    if (rc != 0)
        fail_msg("starting a child process: %s", strerror(rc));
    child->pidfd = pidfd_open(child->pid, 0);
    return child;
}

struct tether_test_child *tether_test_child_start(const char *const *argv)
{
    return tether_test_child_start_role(exec_role.name, argv, -1);
}

bool tether_test_child_wait(struct tether_test_child *child, int timeout_ms)
{
    if (child->ended)
        return true;
    struct pollfd end = {.fd = child->pidfd, .events = POLLIN};
    if (poll(&end, 1, timeout_ms) <= 0)
        return false;
    waitpid(child->pid, &child->status, 0);
    child->ended = true;
    return true;
}

/* Returns the kernel's state letter of a thread: 'T' stopped, 'Z' ended; '-' when it is gone. */
static char thread_state(pid_t pid, const char *tid)
{
    char path[64], line[512] = "";
    snprintf(path, sizeof path, "/proc/%ld/task/%.20s/stat", (long)pid, tid);
    FILE *stat = fopen(path, "re");
    if (!stat)
        return '-';
    size_t len = fread(line, 1, sizeof line - 1, stat);
    fclose(stat);
    line[len] = '\0';
    const char *name_end = strrchr(line, ')'); /* the name may contain any character, even ')' */
    return name_end && name_end[1] ? name_end[2] : '-';
}

/* Whether the state of every thread is in `states`. A signal reaches the threads of a process one
 * after the other, so on a busy machine some continue for a while. */
static bool all_threads_are(pid_t pid, const char *states)
{
    char path[32];
    bool all = true;
    snprintf(path, sizeof path, "/proc/%ld/task", (long)pid);
    DIR *folder = opendir(path);
    if (!folder)
        return true; /* the process is gone, so it has no threads */
    for (struct dirent *entry; all && (entry = readdir(folder));)
        all = entry->d_name[0] == '.' || strchr(states, thread_state(pid, entry->d_name));
    closedir(folder);
    return all;
}

void tether_test_signal_pid(pid_t pid, int signal)
{
    assert_int_equal(kill(pid, signal), 0);
    if (signal == SIGKILL)
        assert_eventually(all_threads_are(pid, "ZX-"));
    if (signal == SIGSTOP)
        assert_eventually(all_threads_are(pid, "TZX-"));
}

bool tether_test_child_ok(const struct tether_test_child *child)
{
    return child->ended && WIFEXITED(child->status) && WEXITSTATUS(child->status) == 0;
}

const char *tether_test_child_result(const struct tether_test_child *child)
{
    static char text[32];
    if (!child->ended)
        return "still running";
    if (WIFSIGNALED(child->status))
        return strsignal(WTERMSIG(child->status));
    snprintf(text, sizeof text, "exit code %d", WEXITSTATUS(child->status));
    return text;
}

char *tether_test_child_output(const struct tether_test_child *child)
{
    off_t size = lseek(child->output_fd, 0, SEEK_END);
    char *text = calloc(1, (size_t)size + 1);
    assert_non_null(text);
    if (pread(child->output_fd, text, (size_t)size, 0) != size)
        fail_msg("reading the output of a child: %s", strerror(errno));
    return text;
}

void tether_test_child_free(struct tether_test_child *child)
{
    if (!child)
        return;
    if (!child->ended) {
        kill(child->pid, SIGKILL);
        tether_test_child_wait(child, -1);
    }
    close(child->pidfd);
    close(child->output_fd);
    free(child);
}
