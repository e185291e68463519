/* One process that a test starts: this test binary in another role, or any command.
 *
 * Happy path: main() begins with tether_test_main(argc, argv); start() spawns the process with
 * stdin from /dev/null and its output kept in memory; wait() collects how it ended; free() kills it
 * if it still runs. No child outlives the test: it dies by SIGKILL when the thread that started it
 * ends for any reason. The same is true of its own children if they are started in this way.
 *
 * All starts use posix_spawn, because gRPC does not survive fork(). Use a child on the thread that
 * started it.
 */
#ifndef TETHER_TESTS_LIB_CHILD_H
#define TETHER_TESTS_LIB_CHILD_H

#include <stdbool.h>
#include <sys/types.h>

struct tether_test_child {
    pid_t pid;
    int pidfd;     /* readable once the process has ended */
    int output_fd; /* a file in memory that gets both output streams */
    bool ended;
    int status; /* status of waitpid(), valid once the process has ended */
};

/* Call it first in main(). In a child it runs the child's role and does not return. */
void tether_test_main(int argc, char **argv);

/* Starts the command `argv` (NULL-terminated, found in PATH). Fails the test on error. */
struct tether_test_child *tether_test_child_start(const char *const *argv);

/* Waits up to `timeout_ms` until the child has ended; false when it still runs. */
bool tether_test_child_wait(struct tether_test_child *child, int timeout_ms);

/* Sends `signal` and returns once it has taken effect: after SIGKILL the process is gone, after
 * SIGSTOP it is stopped. */
void tether_test_signal_pid(pid_t pid, int signal);

/* Return whether the child ended by exit(0), and its state as text: "exit code 3", "Segmentation
 * fault", "still running". */
bool tether_test_child_ok(const struct tether_test_child *child);
const char *tether_test_child_result(const struct tether_test_child *child);

/* Returns the output so far, NUL-terminated; the caller frees it by free(). */
char *tether_test_child_output(const struct tether_test_child *child);

/* Kills the child if it still runs, collects it and frees `child`. Accepts NULL. */
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
