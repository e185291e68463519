/* Tests with several processes: N copies of the test binary, each with a rank.
 *
 * The short way, one function that every rank runs, with `rank` and `self` in scope:
 *
 *     TETHER_PROC_TEST(user_killed_while_holding_fork, .ranks = 3, .dies = {[2] = SIGKILL})
 *     {
 *         if (rank == 2) { hold_fork(); raise(SIGKILL); }
 *         if (rank == 0) wait_for_forks(0);
 *     }
 *
 * The long way, in which the test controls, stops and restarts the ranks:
 *
 *     TETHER_PROC_ROLE(worker) { ... tether_test_mark(self->world, READY); ... }
 *
 *     static void worker_comes_back(void **state)
 *     {
 *         struct tether_test_procs *procs = tether_test_procs_start(worker, .ranks = 2);
 *         tether_test_await_mark(procs->world, READY, 2);
 *         tether_test_signal(procs->world, 1, SIGKILL);
 *         tether_test_procs_restart(procs, 1, "second life");
 *         tether_test_procs_end(procs);
 *     }
 *
 * Both kinds are registered with cmocka_unit_test() as usual, and main() begins with
 * tether_test_main(argc, argv). In a rank cmocka's asserts work as in any test. A rank must end by
 * exit(0), or by the signal in `.dies`, within the time limit; otherwise the output of all ranks is
 * shown. A test is skipped when one of its ranks calls skip(). No rank outlives the test (child.h).
 */
#ifndef TETHER_TESTS_LIB_PROC_H
#define TETHER_TESTS_LIB_PROC_H

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "tests/lib/child.h"
#include "tests/lib/wait.h"

#define TETHER_TEST_MAX_RANKS 64
#define TETHER_TEST_MAX_MARKS 64

/* Memory that the test and all its ranks share: pids, marks, and a page for data of the test (a
 * port number, for example). */
struct tether_test_world {
    int size;
    _Atomic int pids[TETHER_TEST_MAX_RANKS];
    /* the rank was killed by tether_test_signal(), so its death is expected */
    _Atomic bool killed[TETHER_TEST_MAX_RANKS];
    _Atomic int marks[TETHER_TEST_MAX_MARKS];
    _Alignas(64) char page[4096];
};

/* A rank, as its own process sees it. */
struct tether_test_rank {
    int rank, size;
    const char *arg; /* argument from the options or from restart(); "" when none was given */
    struct tether_test_world *world;
};

struct tether_test_procs_opts {
    int ranks;       /* number of ranks; 0: 2 */
    int timeout_ms;  /* time limit of the whole group, from its start; 0: TETHER_TEST_LIMIT_MS */
    const char *arg; /* argument for every rank */
    int dies[TETHER_TEST_MAX_RANKS]; /* the signal by which a rank is expected to end; 0: exit(0) */
};

struct tether_test_proc_role {
    struct tether_test_role base;
    void (*run)(struct tether_test_rank *self, int rank);
};

struct tether_test_procs {
    struct tether_test_world *world;
    struct tether_test_child *ranks[TETHER_TEST_MAX_RANKS];
    const struct tether_test_proc_role *role;
    struct tether_test_procs_opts opts;
    int64_t deadline_ns;
    int world_fd;
};

/* Starts every rank. Fails the test on error. */
struct tether_test_procs *tether_test_procs_start_opts(const struct tether_test_proc_role *role,
                                                       const struct tether_test_procs_opts *opts);
#define tether_test_procs_start(role, ...) \
    tether_test_procs_start_opts(&role##_role, &(const struct tether_test_procs_opts){__VA_ARGS__})

/* Restarts a rank that has ended; its first end is not checked. `arg` NULL: the rank gets the same
 * argument as before. */
void tether_test_procs_restart(struct tether_test_procs *procs, int rank, const char *arg);

/* Waits for all ranks and frees `procs`. Shows the output and fails the test if a rank did not end
 * as expected; skips the test if a rank was skipped. A rank that tether_test_signal() has killed is
 * expected to die. */
void tether_test_procs_end(struct tether_test_procs *procs);

/* Sends `signal` to a rank, from the test or from another rank; returns once it has taken effect
 * (SIGKILL: gone, SIGSTOP: stopped). */
void tether_test_signal(struct tether_test_world *world, int rank, int signal);

/* Add one to a mark, and wait until a mark is at least `count`. These synchronise the processes of
 * a test without the code under test. Waiting fails the test at TETHER_TEST_LIMIT_MS. */
void tether_test_mark(struct tether_test_world *world, int mark);
#define tether_test_await_mark(world, mark, count) \
    tether_test_await_mark_at(world, mark, count, #mark, __FILE__, __LINE__)
void tether_test_await_mark_at(struct tether_test_world *world,
                               int mark,
                               int count,
                               const char *name,
                               const char *file,
                               int line);

/* Defines a role: each rank runs the body that follows. */
#define TETHER_PROC_ROLE(role_name)                                                    \
    static void role_name##_run(struct tether_test_rank *self, int rank);              \
    static struct tether_test_proc_role role_name##_role = {                           \
        {#role_name, tether_test_proc_enter, NULL}, role_name##_run};                  \
    __attribute__((constructor)) static void role_name##_add(void)                     \
    {                                                                                  \
        tether_test_role_add(&role_name##_role.base);                                  \
    }                                                                                  \
    static void role_name##_run(struct tether_test_rank *self __attribute__((unused)), \
                                int rank __attribute__((unused)))

/* Defines the cmocka test `test_name`, which starts the ranks and waits for them. */
#define TETHER_PROC_TEST(test_name, ...)                                        \
    static struct tether_test_proc_role test_name##_role;                       \
    static void test_name(void **state)                                         \
    {                                                                           \
        (void)state;                                                            \
        tether_test_procs_end(tether_test_procs_start(test_name, __VA_ARGS__)); \
    }                                                                           \
    TETHER_PROC_ROLE(test_name)

/* Internal: runs a role in a child. */
void tether_test_proc_enter(const struct tether_test_role *role, int argc, char **argv);

#endif
