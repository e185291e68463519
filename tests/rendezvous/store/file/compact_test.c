/* The file store's compaction: the log stays bounded while other processes have the file open or
 * are killed. Also the cost of waiters. */
#include <endian.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tests/lib/heap.h"
#include "tests/lib/proc.h"
#include "tests/rendezvous/store/suite_internal.h"

#define LIMIT TETHER_TEST_LIMIT_MS
#define PATH_SIZE 256
#define MIB (1 << 20)
#define BIG_LEN (16 << 10)

static char big[BIG_LEN + 1]; /* a value that fills a log quickly */

static void new_path(char path[PATH_SIZE])
{
    static int count;
    const char *dir = getenv("TEST_TMPDIR");
    snprintf(path, PATH_SIZE, "%s/compact-%d-%d", dir ? dir : "/tmp", (int)getpid(), count++);
}

static tether_store *open_store(const char *path)
{
    tether_store *store = NULL;
    assert_ok(tether_store_file_new(path, -1, &store, err));
    return store;
}

static off_t size_of(const char *path)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return st.st_size;
}

/* Returns how often the log has been compacted, from the start of the file (log.h). */
static uint64_t generation_of(const char *path)
{
    uint64_t generation = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_int_equal(pread(fd, &generation, sizeof generation, 24), sizeof generation);
    close(fd);
    return le64toh(generation);
}

static bool exists(const char *path)
{
    return access(path, F_OK) == 0;
}

static void fill_big(void)
{
    memset(big, 'x', BIG_LEN);
}

/* Sets one key until the log has been replaced `times` times. */
static void compact(tether_store *store, const char *path, int times)
{
    fill_big();
    for (; times > 0; times--) {
        uint64_t before = generation_of(path);
        while (generation_of(path) == before)
            SET("big", big);
    }
}

/* Sets all kinds of keys and queues; expect_all() checks them. */
static void put_all(tether_store *store)
{
    SET("value", "kept");
    SET("empty", "");
    SET("deleted", "x");
    assert_ok(tether_store_delete(store, "deleted", LIMIT, NULL, err));
    ADD("sum", 7, 7);
    assert_ok(tether_store_append(store, "text", tether_bytes_str("ab"), LIMIT, err));
    assert_ok(tether_store_append(store, "text", tether_bytes_str("cd"), LIMIT, err));
    for (int i = 0; i < 3; i++) {
        char element[8];
        snprintf(element, sizeof element, "e%d", i);
        assert_ok(tether_store_queue_push(store, "queue", tether_bytes_str(element), LIMIT, err));
    }
}

static void pop(tether_store *store, const char *text)
{
    tether_buf value = TETHER_BUF_INIT;
    assert_ok(tether_store_queue_pop(store, "queue", LIMIT, &value, err));
    assert_string_equal(value.data, text);
    tether_buf_fini(&value);
}

static void expect_all(tether_store *store)
{
    EXPECT("value", "kept");
    EXPECT("empty", "");
    EXPECT("text", "abcd");
    EXPECT("big", big);
    assert_false(CHECK("deleted"));
    ADD("sum", 0, 7);
}

/* ---- Bounded -------------------------------------------------------------------------------- */

static void log_stays_bounded_when_keys_are_overwritten(void **state)
{
    (void)state;
    char path[PATH_SIZE];
    new_path(path);
    tether_store *store = open_store(path);
    fill_big();
    off_t most = 0;
    for (int i = 0; i < 32 * MIB / BIG_LEN; i++) {
        SET("big", big);
        if (size_of(path) > most)
            most = size_of(path);
    }
    assert_in_range(most, 1, 2 * MIB);
    EXPECT("big", big);
    tether_store_release(store);
    unlink(path);
}

static void values_are_readable_when_log_exceeds_compaction_size(void **state)
{
    (void)state;
    char path[PATH_SIZE], key[32];
    new_path(path);
    tether_store *store = open_store(path);
    fill_big();
    for (int i = 0; i < 4 * MIB / BIG_LEN; i++) {
        snprintf(key, sizeof key, "key%d", i);
        SET(key, big);
    }
    for (int i = 0; i < 4 * MIB / BIG_LEN; i++) {
        snprintf(key, sizeof key, "key%d", i);
        EXPECT(key, big);
    }
    tether_store_release(store);
    unlink(path);
}

static void compaction_keeps_values_and_queues(void **state)
{
    (void)state;
    char path[PATH_SIZE];
    new_path(path);
    tether_store *store = open_store(path), *other = open_store(path);
    put_all(store);
    suite_expect(other, "value", "kept"); /* has read the old log */
    SET("gone", "x");
    suite_expect(other, "gone", "x");
    assert_ok(tether_store_delete(store, "gone", LIMIT, NULL, err));
    compact(store, path, 1);
    expect_all(store);
    expect_all(other);
    assert_false(suite_check(other, "gone"));
    pop(other, "e0"); /* writes to the file that the other handle has made */
    compact(store, path, 3);
    expect_all(other); /* has missed two compactions */
    pop(other, "e1");
    tether_store *newcomer = open_store(path);
    expect_all(newcomer);
    pop(newcomer, "e2");
    int64_t length = -1;
    assert_ok(tether_store_queue_len(store, "queue", LIMIT, &length, err));
    assert_int_equal(length, 0);
    tether_store_release(newcomer);
    tether_store_release(other);
    tether_store_release(store);
    unlink(path);
}

/* A compaction keeps the number of users: the last of two removes the file. */
static void last_user_removes_a_compacted_file(void **state)
{
    (void)state;
    char path[PATH_SIZE];
    new_path(path);
    tether_store *store = NULL, *other = NULL;
    assert_ok(tether_store_file_new(path, 2, &store, err));
    assert_ok(tether_store_file_new(path, 2, &other, err));
    compact(store, path, 1);
    tether_store_release(store);
    assert_true(exists(path));
    tether_store_release(other);
    assert_false(exists(path));
}

/* A process that changes its working directory, and a path that is relative. */
static void compaction_finds_a_relative_path_after_chdir(void **state)
{
    (void)state;
    char path[PATH_SIZE], before[PATH_SIZE];
    new_path(path);
    assert_non_null(getcwd(before, sizeof before));
    char *slash = strrchr(path, '/');
    *slash = '\0';
    assert_int_equal(chdir(path), 0);
    tether_store *store = open_store(slash + 1);
    assert_int_equal(chdir("/"), 0);
    *slash = '/';
    compact(store, path, 1);
    EXPECT("big", big);
    tether_store_release(store);
    unlink(path);
    assert_int_equal(chdir(before), 0);
}

/* ---- Obstacles ------------------------------------------------------------------------------ */

static void compaction_removes_only_leftover_of_dead_process(void **state)
{
    (void)state;
    char path[PATH_SIZE], aside[PATH_SIZE + 16];
    new_path(path);
    snprintf(aside, sizeof aside, "%s.compact", path);
    tether_store *store = open_store(path);
    /* As of a process that died before it wrote to the file. */
    close(open(aside, O_CREAT | O_WRONLY, 0600));
    compact(store, path, 1);
    assert_false(exists(aside));

    static const char letter[] = "Dear Sir or Madam, this is not a store's file, nor part of one.";
    int fd = open(aside, O_CREAT | O_WRONLY, 0600);
    assert_int_equal(write(fd, letter, sizeof letter), sizeof letter);
    close(fd);
    uint64_t before = generation_of(path);
    for (int i = 0; i < 4 * MIB / BIG_LEN; i++)
        SET("big", big);
    assert_int_equal(generation_of(path), before); /* no compaction happens, and all calls work */
    assert_int_equal(size_of(aside), sizeof letter);
    EXPECT("big", big);
    unlink(aside);
    compact(store, path, 1);
    assert_in_range(size_of(path), 1, MIB);

    assert_int_equal(symlink("/dev/null", aside), 0);
    for (int i = 0; i < 2 * MIB / BIG_LEN; i++)
        SET("big", big);
    EXPECT("big", big);
    unlink(aside);
    tether_store_release(store);
    unlink(path);
}

/* A store with another id at that path is not a successor: it must not be written to. */
static void follow_refuses_new_store_with_same_name(void **state)
{
    (void)state;
    char path[PATH_SIZE];
    new_path(path);
    tether_store *store = open_store(path);
    SET("key", "old");
    unlink(path);
    tether_store *other = open_store(path);
    assert_ok(tether_store_set(other, "key", tether_bytes_str("new"), LIMIT, err));
    assert_status(tether_store_set(store, "key", tether_bytes_str("x"), LIMIT, NULL),
                  TETHER_EUNAVAILABLE);
    suite_expect(other, "key", "new");
    tether_store_release(store);
    assert_true(exists(path));
    tether_store_release(other);
    unlink(path);
}

static tether_status compact_with_little_memory(void *path)
{
    tether_store *store = NULL, *other = NULL;
    tether_buf value = TETHER_BUF_INIT;
    tether_status st = tether_store_file_new(path, 0, &store, NULL);
    if (st == TETHER_OK)
        st = tether_store_file_new(path, 0, &other, NULL);
    for (int i = 0; st == TETHER_OK && i < MIB / BIG_LEN + 2; i++)
        st = tether_store_set(store, "big", tether_bytes_of(big, BIG_LEN), 0, NULL);
    if (st == TETHER_OK)
        st = tether_store_get(other, "big", 0, &value, NULL);
    if (st == TETHER_OK && value.len != BIG_LEN)
        st = TETHER_EINTERNAL;
    tether_buf_fini(&value);
    tether_store_release(other);
    tether_store_release(store);
    unlink(path);
    return st;
}

static void compaction_leaves_the_store_usable_when_allocation_fails(void **state)
{
    (void)state;
    char path[PATH_SIZE];
    new_path(path);
    fill_big();
    tether_test_heap_fail_each(compact_with_little_memory, path);
}

/* ---- Waiting -------------------------------------------------------------------------------- */

struct waiter {
    tether_store *store;
    char key[32];
    tether_status status;
    tether_buf value;
    pthread_t thread;
    _Atomic int *waiting;
};

static void *wait_thread(void *arg)
{
    struct waiter *waiter = arg;
    atomic_fetch_add(waiter->waiting, 1);
    waiter->status = tether_store_get(waiter->store, waiter->key, 10 * LIMIT, &waiter->value, NULL);
    return NULL;
}

static void start_waiter(struct waiter *waiter, tether_store *store, _Atomic int *waiting)
{
    waiter->store = store;
    waiter->waiting = waiting;
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 256 << 10);
    assert_int_equal(pthread_create(&waiter->thread, &attr, wait_thread, waiter), 0);
    pthread_attr_destroy(&attr);
}

/* A call waits on a handle of its own while another handle compacts: the wait moves to the new
 * file. */
static void waiting_call_wakes_after_compaction(void **state)
{
    (void)state;
    char path[PATH_SIZE];
    new_path(path);
    tether_store *store = open_store(path), *other = open_store(path);
    _Atomic int waiting = 0;
    struct waiter waiters[3] = {0};
    for (int i = 0; i < 3; i++) {
        snprintf(waiters[i].key, sizeof waiters[i].key, "late%d", i);
        start_waiter(&waiters[i], i == 2 ? store : other, &waiting);
    }
    while (atomic_load(&waiting) < 3)
        sched_yield();
    compact(store, path, 3);
    for (int i = 0; i < 3; i++)
        assert_ok(tether_store_set(i == 1 ? other : store, waiters[i].key, tether_bytes_str("here"),
                                   LIMIT, err));
    for (int i = 0; i < 3; i++) {
        pthread_join(waiters[i].thread, NULL);
        assert_status(waiters[i].status, TETHER_OK);
        assert_string_equal(waiters[i].value.data, "here");
        tether_buf_fini(&waiters[i].value);
    }
    tether_store_release(other);
    tether_store_release(store);
    unlink(path);
}

static int64_t cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Returns the CPU time of a set on this thread, the lowest of several batches. */
static int64_t set_cost_ns(tether_store *store)
{
    int64_t least = INT64_MAX;
    for (int batch = 0; batch < 20; batch++) {
        int64_t start = cpu_ns();
        for (int i = 0; i < 20; i++)
            SET("unrelated", "x");
        int64_t cost = (cpu_ns() - start) / 20;
        if (cost < least)
            least = cost;
    }
    return least;
}

#define WAITERS 1000

/* When each record was offered to all of 5,000 waiters, a set took 396 µs instead of 6. */
static void set_costs_the_same_beside_many_waiters(void **state)
{
    (void)state;
    char path[PATH_SIZE];
    new_path(path);
    tether_store *store = open_store(path);
    int64_t alone = set_cost_ns(store);
    struct waiter *waiters = calloc(WAITERS, sizeof *waiters);
    _Atomic int waiting = 0;
    for (int i = 0; i < WAITERS; i++) {
        snprintf(waiters[i].key, sizeof waiters[i].key, "never%d", i);
        start_waiter(&waiters[i], store, &waiting);
    }
    while (atomic_load(&waiting) < WAITERS)
        sched_yield();
    for (int i = 0; i < 100; i++) /* lets the last waiters register */
        SET("unrelated", "x");
    int64_t beside = set_cost_ns(store);
    for (int i = 0; i < WAITERS; i++)
        SET(waiters[i].key, "x");
    for (int i = 0; i < WAITERS; i++) {
        pthread_join(waiters[i].thread, NULL);
        assert_status(waiters[i].status, TETHER_OK);
        tether_buf_fini(&waiters[i].value);
    }
    print_message("a set: %lld ns alone, %lld ns beside %d waiters\n", (long long)alone,
                  (long long)beside, WAITERS);
    assert_in_range(beside, 0, 5 * alone);
    free(waiters);
    tether_store_release(store);
    unlink(path);
}

/* ---- Several processes ---------------------------------------------------------------------- */

enum { READY };

/* Adds, pushes and fills the log until it is killed; counts its finished steps in shared memory. */
TETHER_PROC_ROLE(fills_until_killed)
{
    _Atomic int64_t *acknowledged = (void *)self->world->page;
    tether_store *store = open_store(self->arg);
    fill_big();
    for (;;) {
        assert_ok(tether_store_add(store, "sum", 1, LIMIT, NULL, err));
        if (atomic_fetch_add(&acknowledged[rank], 1) == 4)
            tether_test_mark(self->world, READY);
        for (int i = 0; i < 8; i++)
            SET("big", big);
    }
}

/* kill -9 at any moment, also during compactions, loses no acknowledged change. */
static void store_survives_kill_of_compacting_process(void **state)
{
    (void)state;
    enum { RANKS = 3, KILLS = 8 };
    char path[PATH_SIZE], aside[PATH_SIZE + 16];
    new_path(path);
    snprintf(aside, sizeof aside, "%s.compact", path);
    tether_store *store = open_store(path);
    struct tether_test_procs *procs =
        tether_test_procs_start(fills_until_killed, .ranks = RANKS, .arg = path);
    _Atomic int64_t *acknowledged = (void *)procs->world->page;
    tether_test_await_mark(procs->world, READY, RANKS);
    int64_t certain = 0;
    for (int kill = 0; kill < KILLS; kill++) {
        int rank = kill % RANKS;
        tether_test_signal(procs->world, rank, SIGKILL);
        certain += atomic_exchange(&acknowledged[rank], 0);
        int64_t sum = 0; /* all other processes continue meanwhile */
        assert_ok(tether_store_add(store, "sum", 0, LIMIT, &sum, err));
        assert_true(sum >= certain);
        tether_test_procs_restart(procs, rank, NULL);
        tether_test_await_mark(procs->world, READY, RANKS + kill + 1);
    }
    for (int rank = 0; rank < RANKS; rank++)
        tether_test_signal(procs->world, rank, SIGKILL);
    for (int rank = 0; rank < RANKS; rank++)
        certain += atomic_load(&acknowledged[rank]);
    int64_t sum = 0;
    assert_ok(tether_store_add(store, "sum", 0, LIMIT, &sum, err));
    /* Each start may have applied one change without counting it. */
    assert_in_range(sum, certain, certain + RANKS + KILLS);
    assert_int_not_equal(generation_of(path), 0); /* they have compacted */
    compact(store, path, 1);
    assert_false(exists(aside));
    tether_test_procs_end(procs);
    tether_store_release(store);
    unlink(path);
}

#define KEPT (8 * MIB / BIG_LEN)

/* Keeps so many bytes that a snapshot takes a while, and compacts again and again until it is
 * killed. */
TETHER_PROC_ROLE(compacts_until_killed)
{
    tether_store *store = open_store(self->arg);
    fill_big();
    for (int i = 0; i < KEPT; i++) {
        char key[32];
        snprintf(key, sizeof key, "kept%d", i);
        SET(key, big);
    }
    for (;;)
        SET("big", big);
}

static void log_is_intact_when_process_is_killed_inside_compaction(void **state)
{
    (void)state;
    char path[PATH_SIZE], aside[PATH_SIZE + 16];
    new_path(path);
    snprintf(aside, sizeof aside, "%s.compact", path);
    fill_big();
    struct tether_test_procs *procs =
        tether_test_procs_start(compacts_until_killed, .ranks = 1, .arg = path);
    for (bool inside = false; !inside;) {
        while (!exists(aside))
            sched_yield();
        tether_test_signal(procs->world, 0, SIGKILL);
        inside = exists(aside); /* otherwise the compaction ended before the signal */
        if (!inside)
            tether_test_procs_restart(procs, 0, NULL);
    }
    tether_store *store = open_store(path);
    for (int i = 0; i < KEPT; i++) {
        char key[32];
        snprintf(key, sizeof key, "kept%d", i);
        EXPECT(key, big);
    }
    compact(store, path, 1);
    assert_false(exists(aside));
    EXPECT("kept0", big);
    tether_test_procs_end(procs);
    tether_store_release(store);
    unlink(path);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(log_stays_bounded_when_keys_are_overwritten),
        cmocka_unit_test(values_are_readable_when_log_exceeds_compaction_size),
        cmocka_unit_test(compaction_keeps_values_and_queues),
        cmocka_unit_test(last_user_removes_a_compacted_file),
        cmocka_unit_test(compaction_finds_a_relative_path_after_chdir),
        cmocka_unit_test(compaction_removes_only_leftover_of_dead_process),
        cmocka_unit_test(follow_refuses_new_store_with_same_name),
        cmocka_unit_test(compaction_leaves_the_store_usable_when_allocation_fails),
        cmocka_unit_test(waiting_call_wakes_after_compaction),
        cmocka_unit_test(set_costs_the_same_beside_many_waiters),
        cmocka_unit_test(store_survives_kill_of_compacting_process),
        cmocka_unit_test(log_is_intact_when_process_is_killed_inside_compaction),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
