/* One process that a test starts: this test binary in another role, or any command.
 *
 * Happy path: main() begins with tether_test_main(argc, argv); start() spawns the process with
 * stdin from /dev/null and its output kept in memory; wait() collects how it ended; free() kills it
 * if it still runs. Nothing outlives the test: a child dies by SIGKILL when the thread that started
 * it ends, however it ends, and so do the children of the child that were started the same way.
 *
 * posix_spawn throughout, since gRPC and fork() don't mix. Use a child on the thread that started
 * it.
 */
#ifndef TETHER_TESTS_LIB_CHILD_H
#define TETHER_TESTS_LIB_CHILD_H

#include <stdbool.h>
#include <sys/types.h>

struct tether_test_child {
    pid_t pid;
    int pidfd;     /* readable once the process has ended */
    int output_fd; /* both of its output streams, in memory */
    bool ended;
    int status; /* once ended: as waitpid() tells it */
};

/* Call it first in main(). Where the process was started as a child it does the child's work and
 * does not return. */
void tether_test_main(int argc, char **argv);

/* Starts the command `argv` (NULL-terminated, found in PATH). Fails the test when it can't. */
struct tether_test_child *tether_test_child_start(const char *const *argv);

/* Waits up to `timeout_ms` for the end; false when it still runs then. */
bool tether_test_child_wait(struct tether_test_child *child, int timeout_ms);

/* Sends `signal` and returns once it has had its effect: SIGKILL, the process is gone; SIGSTOP, it
 * is stopped. */
void tether_test_signal_pid(pid_t pid, int signal);

/* Whether it ended by exit(0). "exit code 3", "Segmentation fault", "still running". */
bool tether_test_child_ok(const struct tether_test_child *child);
const char *tether_test_child_result(const struct tether_test_child *child);

/* All that it has written so far, NUL-terminated; free() it. */
char *tether_test_child_output(const struct tether_test_child *child);

/* Kills it if need be, collects it, frees `child`. NULL is fine. */
void tether_test_child_free(struct tether_test_child *child);

/* Internal to tests/lib: the roles that tether_test_main() finds (see proc.h), and a start with an
 * extra descriptor that the child sees as TETHER_TEST_INHERITED_FD (-1: none). */
struct tether_test_role {
    const char *name;
    void (*enter)(const struct tether_test_role *role, int argc, char **argv); /* never returns */
    struct tether_test_role *next;
};
#define TETHER_TEST_INHERITED_FD 3
int tether_test_memory_file(const char *name);
void tether_test_role_add(struct tether_test_role *role);
struct tether_test_child *tether_test_child_start_role(const char *role,
                                                       const char *const *args,
                                                       int inherited_fd);

#endif
