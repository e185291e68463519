/* The file store: several processes that share a file, and processes that are killed. */
#include <stdatomic.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/lib/proc.h"
#include "tests/rendezvous/store/file/fixture.h"
#include "tests/rendezvous/store/suite_internal.h"

#define ADDS 50

/* All ranks add, wait for each other, and read the same values. */
TETHER_PROC_ROLE(adder)
{
    tether_store *store = file_open(self->arg, self->size);
    char key[32];
    for (int i = 0; i < ADDS; i++)
        assert_ok(tether_store_add(store, "sum", 1, LIMIT, NULL, err));
    snprintf(key, sizeof key, "done%d", rank);
    SET(key, "yes");
    for (int i = 0; i < self->size; i++) {
        snprintf(key, sizeof key, "done%d", i);
        EXPECT(key, "yes");
    }
    ADD("sum", 0, (int64_t)self->size * ADDS);
    assert_ok(tether_store_barrier(store, "end", self->size, LIMIT, err));
    tether_store_release(store);
}

static void processes_share_keys_through_file(void **state)
{
    (void)state;
    char path[PATH_SIZE];
    file_new_path(path);
    tether_test_procs_end(tether_test_procs_start(adder, .ranks = 4, .arg = path));
    assert_false(file_exists(path));
}

/* Dies while it writes a record: the kernel kills it when the file reaches a limit. */
TETHER_PROC_ROLE(dies_writing)
{
    tether_store *store = file_open(self->arg, -1);
    SET("before", "kept");
    off_t before = file_size(self->arg);
    struct rlimit limit = {(rlim_t)before + 40, (rlim_t)before + 40};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    char value[1000];
    memset(value, 'x', sizeof value);
    tether_store_set(store, "torn", tether_bytes_of(value, sizeof value), LIMIT, NULL);
}

static void record_of_killed_writer_is_ignored(void **state)
{
    (void)state;
    char path[PATH_SIZE];
    file_new_path(path);
    tether_store *store = file_open(path, -1); /* reads along */
    tether_test_procs_end(
        tether_test_procs_start(dies_writing, .ranks = 1, .arg = path, .dies = {SIGXFSZ}));
    off_t torn = file_size(path);
    EXPECT("before", "kept");
    assert_false(CHECK("torn"));
    /* A reader leaves the torn record, so it has been written: */
    assert_int_equal(file_size(path), torn);
    tether_store *other = file_open(path, -1);
    assert_int_not_equal(file_size(path), torn);
    SET("after", "written");
    suite_expect(other, "before", "kept");
    suite_expect(other, "after", "written");
    assert_false(suite_check(other, "torn"));
    tether_store_release(other);
    tether_store_release(store);
    unlink(path);
}

enum { READY };

/* Adds until it is killed; counts its finished adds in shared memory. */
TETHER_PROC_ROLE(adds_until_killed)
{
    _Atomic int64_t *acknowledged = (void *)self->world->page;
    tether_store *store = file_open(self->arg, -1);
    for (;;) {
        assert_ok(tether_store_add(store, "sum", 1, LIMIT, NULL, err));
        if (atomic_fetch_add(&acknowledged[rank], 1) == 10)
            tether_test_mark(self->world, READY);
    }
}

/* kill -9 at any moment loses no acknowledged change of any process. */
static void store_survives_kill_of_writers(void **state)
{
    (void)state;
    char path[PATH_SIZE];
    file_new_path(path);
    tether_store *store = file_open(path, -1);
    struct tether_test_procs *procs =
        tether_test_procs_start(adds_until_killed, .ranks = 3, .arg = path);
    _Atomic int64_t *acknowledged = (void *)procs->world->page;
    tether_test_await_mark(procs->world, READY, 3);
    tether_test_signal(procs->world, 0, SIGKILL);
    int64_t first_life = atomic_exchange(&acknowledged[0], 0);
    tether_test_procs_restart(procs, 0, NULL);
    tether_test_await_mark(procs->world, READY, 4);
    for (int rank = 0; rank < 3; rank++)
        tether_test_signal(procs->world, rank, SIGKILL);
    int64_t sum = 0, certain = first_life;
    for (int rank = 0; rank < 3; rank++)
        certain += atomic_load(&acknowledged[rank]);
    assert_ok(tether_store_add(store, "sum", 0, LIMIT, &sum, err));
    /* Each of four starts may have applied one add without counting it. */
    assert_in_range(sum, certain, certain + 4);
    tether_test_procs_end(procs);
    tether_store_release(store);
    unlink(path);
}

/* Each rank waits for the other in turn, so every wake-up crosses processes. */
TETHER_PROC_ROLE(ping_pong)
{
    tether_store *store = file_open(self->arg, 2);
    char key[32];
    for (int i = 0; i < 50; i++) {
        snprintf(key, sizeof key, "turn%d", i);
        if (i % 2 == rank)
            SET(key, "x");
        else
            EXPECT(key, "x");
    }
    tether_store_release(store);
}

static void wait_wakes_up_across_processes(void **state)
{
    (void)state;
    char path[PATH_SIZE];
    file_new_path(path);
    tether_test_procs_end(tether_test_procs_start(ping_pong, .ranks = 2, .arg = path));
    assert_false(file_exists(path));
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_share_keys_through_file),
        cmocka_unit_test(record_of_killed_writer_is_ignored),
        cmocka_unit_test(store_survives_kill_of_writers),
        cmocka_unit_test(wait_wakes_up_across_processes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
