/* A group of ranks: started together, watched together, and ended together. */
#include "tests/lib/proc.h"

#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/lib/cmocka.h"

#define GRACE_MS 1000 /* how long the other ranks may run on after a rank has failed */
#define SKIPPED 77    /* exit code of a rank that has called skip() */

static struct tether_test_world *map_world(int fd)
{
    void *world =
        mmap(NULL, sizeof(struct tether_test_world), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (world == MAP_FAILED) {
        perror("mapping the memory that the ranks share");
        abort();
    }
    return world;
}

/* ---- In a rank ------------------------------------------------------------------------------ */

static const struct tether_test_proc_role *own_role;
static bool own_role_has_returned;

static void run_own_role(void **state)
{
    struct tether_test_rank *self = *state;
    own_role->run(self, self->rank);
    own_role_has_returned = true;
}

void tether_test_proc_enter(const struct tether_test_role *role, int argc, char **argv)
{
    if (argc != 2)
        abort();
    struct tether_test_rank self = {.rank = atoi(argv[0]), .arg = argv[1]};
    self.world = map_world(TETHER_TEST_INHERITED_FD);
    close(TETHER_TEST_INHERITED_FD);
    self.size = self.world->size;
    own_role = tether__container_of(role, struct tether_test_proc_role, base);

    char name[96];
    snprintf(name, sizeof name, "%s, rank %d", role->name, self.rank);
    const struct CMUnitTest body[] = {{name, run_own_role, NULL, NULL, &self}};
    int n_failed = cmocka_run_group_tests_name(name, body, NULL, NULL);
    exit(n_failed == 0 && !own_role_has_returned ? SKIPPED : n_failed);
}

/* ---- In the test ---------------------------------------------------------------------------- */

static void start_rank(struct tether_test_procs *procs, int rank)
{
    char number[16];
    snprintf(number, sizeof number, "%d", rank);
    const char *args[] = {number, procs->opts.arg ? procs->opts.arg : "", NULL};
    atomic_store(&procs->world->killed[rank], false);
    procs->ranks[rank] =
        tether_test_child_start_role(procs->role->base.name, args, procs->world_fd);
    atomic_store(&procs->world->pids[rank], procs->ranks[rank]->pid);
}

struct tether_test_procs *tether_test_procs_start_opts(const struct tether_test_proc_role *role,
                                                       const struct tether_test_procs_opts *opts)
{
    struct tether_test_procs *procs = calloc(1, sizeof *procs);
    assert_non_null(procs);
    procs->role = role;
    procs->opts = *opts;
    if (procs->opts.ranks == 0)
        procs->opts.ranks = 2;
    if (procs->opts.timeout_ms == 0)
        procs->opts.timeout_ms = TETHER_TEST_LIMIT_MS;
    assert_in_range(procs->opts.ranks, 1, TETHER_TEST_MAX_RANKS);
    procs->deadline_ns = tether__deadline_in(&tether__clock_system, procs->opts.timeout_ms);

    procs->world_fd = tether_test_memory_file("tether-world");
    if (ftruncate(procs->world_fd, sizeof *procs->world) != 0)
        fail_msg("making the memory that the ranks share: %s", strerror(errno));
    procs->world = map_world(procs->world_fd);
    procs->world->size = procs->opts.ranks;
    for (int rank = 0; rank < procs->opts.ranks; rank++)
        start_rank(procs, rank);
    return procs;
}

void tether_test_procs_restart(struct tether_test_procs *procs, int rank, const char *arg)
{
    int left_ms = tether__deadline_left_ms(&tether__clock_system, procs->deadline_ns);
    if (!tether_test_child_wait(procs->ranks[rank], left_ms))
        fail_msg("rank %d can't start again: it is still running", rank);
    tether_test_child_free(procs->ranks[rank]);
    const char *arg_before = procs->opts.arg;
    if (arg)
        procs->opts.arg = arg;
    start_rank(procs, rank);
    procs->opts.arg = arg_before;
}

static bool has_skipped(const struct tether_test_child *child)
{
    return child->ended && WIFEXITED(child->status) && WEXITSTATUS(child->status) == SKIPPED;
}

static bool ended_as_expected(const struct tether_test_procs *procs, int rank)
{
    const struct tether_test_child *child = procs->ranks[rank];
    if (!child->ended)
        return false;
    int died_by = WIFSIGNALED(child->status) ? WTERMSIG(child->status) : 0;
    if (died_by == SIGKILL && atomic_load(&procs->world->killed[rank]))
        return true;
    return procs->opts.dies[rank] ? died_by == procs->opts.dies[rank]
                                  : tether_test_child_ok(child) || has_skipped(child);
}

/* Blocks until a running rank ends. False when all have ended or the time is over. */
static bool wait_for_any_rank(const struct tether_test_procs *procs)
{
    struct pollfd ends[TETHER_TEST_MAX_RANKS];
    nfds_t running = 0;
    for (int rank = 0; rank < procs->opts.ranks; rank++)
        if (!procs->ranks[rank]->ended)
            ends[running++] = (struct pollfd){.fd = procs->ranks[rank]->pidfd, .events = POLLIN};
    int left_ms = tether__deadline_left_ms(&tether__clock_system, procs->deadline_ns);
    return running > 0 && poll(ends, running, left_ms) != 0;
}

/* Collects the ranks as they end; returns whether all ended as expected. After a failure the others
 * have only GRACE_MS. */
static bool collect(struct tether_test_procs *procs)
{
    bool all_well;
    do {
        all_well = true;
        for (int rank = 0; rank < procs->opts.ranks; rank++) {
            bool known = procs->ranks[rank]->ended;
            tether_test_child_wait(procs->ranks[rank], 0);
            if (ended_as_expected(procs, rank))
                continue;
            all_well = false;
            int64_t soon = tether__deadline_in(&tether__clock_system, GRACE_MS);
            if (procs->ranks[rank]->ended && !known && soon < procs->deadline_ns)
                procs->deadline_ns = soon;
        }
    } while (wait_for_any_rank(procs));
    return all_well;
}

/* Puts a bar before each line, so that tools such as ./dev test don't take it for output of this
 * test. */
static void show_output(const struct tether_test_procs *procs, int rank)
{
    fprintf(stderr, "%s, rank %d: %s%s\n", procs->role->base.name, rank,
            tether_test_child_result(procs->ranks[rank]),
            ended_as_expected(procs, rank) ? ", as expected" : "");
    char *output = tether_test_child_output(procs->ranks[rank]), *rest = output;
    for (char *line; (line = strsep(&rest, "\n")) && (rest || *line);)
        fprintf(stderr, "  | %s\n", line);
    free(output);
}

void tether_test_procs_end(struct tether_test_procs *procs)
{
    bool all_well = collect(procs), any_skipped = false;
    for (int rank = 0; rank < procs->opts.ranks; rank++) {
        if (!all_well)
            show_output(procs, rank);
        any_skipped = any_skipped || has_skipped(procs->ranks[rank]);
        tether_test_child_free(procs->ranks[rank]);
    }
    const char *name = procs->role->base.name;
    munmap(procs->world, sizeof *procs->world);
    close(procs->world_fd);
    free(procs);
    if (!all_well)
        fail_msg("some ranks of %s did not end as expected; their output is above", name);
    if (any_skipped)
        skip();
}

/* ---- In both -------------------------------------------------------------------------------- */

void tether_test_signal(struct tether_test_world *world, int rank, int signal)
{
    assert_in_range(rank, 0, world->size - 1);
    assert_eventually(atomic_load(&world->pids[rank]) != 0);
    if (signal == SIGKILL)
        atomic_store(&world->killed[rank], true);
    tether_test_signal_pid(atomic_load(&world->pids[rank]), signal);
}

void tether_test_mark(struct tether_test_world *world, int mark)
{
    assert_in_range(mark, 0, TETHER_TEST_MAX_MARKS - 1);
    atomic_fetch_add(&world->marks[mark], 1);
    syscall(SYS_futex, &world->marks[mark], FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void tether_test_await_mark_at(struct tether_test_world *world,
                               int mark,
                               int count,
                               const char *name,
                               const char *file,
                               int line)
{
    assert_in_range(mark, 0, TETHER_TEST_MAX_MARKS - 1);
    int64_t deadline = tether__deadline_in(&tether__clock_system, TETHER_TEST_LIMIT_MS);
    for (int seen; (seen = atomic_load(&world->marks[mark])) < count;) {
        int left_ms = tether__deadline_left_ms(&tether__clock_system, deadline);
        if (left_ms == 0)
            fail_msg("%s:%d: mark %s is still at %d of %d after %d ms", file, line, name, seen,
                     count, TETHER_TEST_LIMIT_MS);
        const struct timespec left = {left_ms / 1000, left_ms % 1000 * 1000000L};
        syscall(SYS_futex, &world->marks[mark], FUTEX_WAIT, seen, &left, NULL, 0);
    }
}
