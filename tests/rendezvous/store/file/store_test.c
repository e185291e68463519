/* The file store: the conformance suite, several processes, and damaged, removed or foreign
 * files. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "rendezvous/rendezvous.h"
#include "rendezvous/store/file/log.h"
#include "tests/lib/heap.h"
#include "tests/lib/proc.h"
#include "tests/lib/user.h"
#include "tests/rendezvous/store/suite_internal.h"

#define LIMIT TETHER_TEST_LIMIT_MS
#define PATH_SIZE 256

/* Makes a new path in the test's directory; the file does not exist. */
static void new_path(char path[PATH_SIZE])
{
    static int count;
    const char *dir = getenv("TEST_TMPDIR");
    snprintf(path, PATH_SIZE, "%s/store-%d-%d", dir ? dir : "/tmp", (int)getpid(), count++);
}

static tether_store *open_store(const char *path, int world_size)
{
    tether_store *store = NULL;
    assert_ok(tether_store_file_new(path, world_size, &store, err));
    return store;
}

static tether_store *make(void)
{
    char path[PATH_SIZE];
    new_path(path);
    return open_store(path, 1);
}

static tether_store *join(tether_store *store)
{
    return open_store(tether_store_file_path(store), 1);
}

static tether_store *make_under_prefix(void)
{
    return tether_test_store_under_prefix(make());
}

static tether_store *join_under_prefix(tether_store *store)
{
    return tether_test_store_under_prefix(join(tether_store_underlying(store)));
}

/* Returns the last part of a path, which even a shortened message shows. */
static const char *name_of(const char *path)
{
    return strrchr(path, '/') + 1;
}

static bool exists(const char *path)
{
    return access(path, F_OK) == 0;
}

static off_t size_of(const char *path)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return st.st_size;
}

static void put_bytes(const char *path, int flags, const void *data, size_t len)
{
    int fd = open(path, O_WRONLY | O_CREAT | flags, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, len), len);
    close(fd);
}

/* ---- The lifetime of the file --------------------------------------------------------------- */

static void test_refcount(void **state)
{
    (void)state;
    char path[PATH_SIZE];
    new_path(path);
    put_bytes(path, O_TRUNC, "", 0); /* an empty file, as from mkstemp(), is a new store */
    tether_store *store = open_store(path, 1), *store2 = open_store(path, 1);
    assert_string_equal(tether_store_file_path(store), path);
    tether_store_release(store);
    assert_true(exists(path));
    tether_store_release(store2);
    assert_false(exists(path));
}

/* Joins at a URL and uses a prefix, as init_process_group() and init_rpc() do. */
static tether_store *meet(const char *path, const char *prefix)
{
    char url[PATH_SIZE + 64];
    struct tether_world world = {0};
    tether_store *store = NULL;
    snprintf(url, sizeof url, "file://%s?rank=0&world_size=1", path);
    assert_ok(tether_rendezvous(url, -1, -1, LIMIT, &world, err));
    assert_ok(tether_store_prefix_new(prefix, world.store, &store, err));
    tether_world_fini(&world);
    return store;
}

/* Two users of one file: the first one to close it must not remove it. */
static void file_stays_for_the_second_user_when_the_first_goes(void **state)
{
    (void)state;
    char path[PATH_SIZE];
    new_path(path);
    tether_store *store = meet(path, "rpc"), *pg = meet(path, "pg");
    SET("worker", "rpc");
    assert_ok(tether_store_set(pg, "worker", tether_bytes_str("pg"), LIMIT, err));
    suite_expect(pg, "worker", "pg");
    tether_store_release(pg);
    assert_true(exists(path));
    EXPECT("worker", "rpc");
    tether_store_release(store);
    assert_false(exists(path));
}

static void file_stays_until_all_users_have_closed_it(void **state)
{
    (void)state;
    char path[PATH_SIZE];
    new_path(path);
    tether_store *store = open_store(path, 2);
    SET("key", "value");
    tether_store_release(store);
    assert_true(exists(path)); /* the second of two users has not opened it yet */
    store = open_store(path, 2);
    EXPECT("key", "value");
    tether_store_release(store);
    assert_false(exists(path));

    tether_store_release(open_store(path, -1)); /* for ever */
    assert_true(exists(path));
    unlink(path);
}

struct opener {
    char *path;
    pthread_t thread;
    tether_status status;
    tether_error error;
};

static void *open_and_close(void *arg)
{
    struct opener *o = arg;
    for (int i = 0; i < 50 && o->status == TETHER_OK; i++) {
        tether_store *store = NULL;
        o->status = tether_store_file_new(o->path, 0, &store, &o->error);
        if (o->status == TETHER_OK)
            o->status = tether_store_add(store, "sum", 1, LIMIT, NULL, &o->error);
        tether_store_release(store);
    }
    return NULL;
}

/* A process opens the file at the moment when its last user removes it. */
static void open_succeeds_while_last_user_removes_file(void **state)
{
    (void)state;
    char path[PATH_SIZE];
    new_path(path);
    struct opener openers[4] = {{0}};
    for (int i = 0; i < 4; i++) {
        openers[i].path = path;
        pthread_create(&openers[i].thread, NULL, open_and_close, &openers[i]);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(openers[i].thread, NULL);
        if (openers[i].status != TETHER_OK)
            fail_msg("%s", openers[i].error.message);
    }
    assert_false(exists(path));
}

static void open_refuses_unusable_paths(void **state)
{
    (void)state;
    tether_store *store = NULL;
    tether_error error = {0};
    char path[PATH_SIZE], below[PATH_SIZE + 8];
    assert_status(tether_store_file_new(NULL, 1, &store, NULL), TETHER_EINVAL);
    assert_status(tether_store_file_new("", 1, &store, NULL), TETHER_EINVAL);
    new_path(path);
    /* The directory does not exist: fails at once. */
    snprintf(below, sizeof below, "%s/store", path);
    assert_status(tether_store_file_new(below, 1, &store, &error), TETHER_EIO);
    assert_non_null(strstr(error.message, name_of(path)));
    assert_status(tether_store_file_new("/dev/null", 1, &store, NULL), TETHER_EINVAL);
    assert_status(tether_store_file_new("/", 1, &store, NULL), TETHER_EIO);

    static const char letter[] = "Dear Sir or Madam, this is not a store's file.";
    put_bytes(path, O_TRUNC, letter, sizeof letter);
    assert_status(tether_store_file_new(path, 1, &store, &error), TETHER_ECORRUPT);
    assert_non_null(strstr(error.message, name_of(path)));
    assert_int_equal(size_of(path), sizeof letter); /* the file is unchanged */
    unlink(path);

    tether_store *hash = NULL;
    assert_ok(tether_store_hash_new(&hash, err));
    assert_null(tether_store_file_path(hash));
    tether_store_release(hash);
}

/* Opening refuses a symbolic link, another user's file, and a file that others may write to. The
 * error says which, and the file stays as it is. */
static void open_refuses_files_that_others_control(void **state)
{
    (void)state;
    char path[PATH_SIZE], link_path[PATH_SIZE];
    tether_error error = {0};
    tether_store *store = NULL;
    new_path(path);
    new_path(link_path);
    assert_int_equal(symlink(path, link_path), 0);
    assert_status(tether_store_file_new(link_path, 1, &store, &error), TETHER_EPERM);
    assert_non_null(strstr(error.message, "symbolic link"));
    assert_false(exists(path));
    unlink(link_path);

    put_bytes(path, O_TRUNC, "", 0);
    assert_int_equal(link(path, link_path), 0);
    assert_status(tether_store_file_new(path, 1, &store, &error), TETHER_EPERM);
    assert_non_null(strstr(error.message, "hard links"));
    unlink(link_path);

    static const mode_t modes[] = {0620, 0602, 0666};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(chmod(path, modes[i]), 0);
        assert_status(tether_store_file_new(path, 1, &store, &error), TETHER_EPERM);
        assert_non_null(strstr(error.message, "chmod 600"));
    }
    assert_int_equal(chmod(path, 0644), 0); /* other users may only read it */
    tether_store_release(open_store(path, 1));

    put_bytes(path, O_TRUNC, "", 0);
    if (chown(path, TETHER_TEST_OTHER_USER, (gid_t)-1) == 0) {
        assert_status(tether_store_file_new(path, 1, &store, &error), TETHER_EPERM);
        assert_non_null(strstr(error.message, "belongs to user 65534"));
    } else {
        print_message("skipped: this user can't make a file of another user\n");
    }
    assert_int_equal(size_of(path), 0);
    unlink(path);
}

/* ---- Torn and damaged ----------------------------------------------------------------------- */

/* Cuts the last record at every byte: earlier records stay, the cut one is ignored, and the next
 * writer overwrites it. */
static void torn_record_at_end_is_ignored(void **state)
{
    (void)state;
    char path[PATH_SIZE], bytes[4096];
    new_path(path);
    tether_store *store = open_store(path, -1);
    SET("before", "kept");
    off_t whole = size_of(path);
    SET("last", "torn");
    off_t end = size_of(path);
    int fd = open(path, O_RDONLY);
    assert_int_equal(read(fd, bytes, sizeof bytes), end);
    close(fd);
    tether_store_release(store);
    for (off_t size = whole; size < end; size++) {
        put_bytes(path, O_TRUNC, bytes, (size_t)size);
        store = open_store(path, -1);
        EXPECT("before", "kept");
        assert_false(CHECK("last"));
        SET("after", "written");
        tether_store *reader = open_store(path, -1);
        suite_expect(reader, "before", "kept");
        suite_expect(reader, "after", "written");
        assert_false(suite_check(reader, "last"));
        tether_store_release(reader);
        tether_store_release(store);
    }
    unlink(path);
}

/* A torn record is a prefix of a valid one. Any other wrong byte, also in a length or at the end of
 * the file, could hide valid records after it. So it is reported, and nothing is truncated. */
static void open_reports_damage_when_any_byte_is_flipped(void **state)
{
    (void)state;
    char path[PATH_SIZE], bytes[4096];
    new_path(path);
    tether_store *store = open_store(path, -1);
    for (int i = 0; i < 8; i++)
        ADD("sum", 1, i + 1);
    SET("last", "value");
    off_t end = size_of(path);
    tether_store_release(store);
    int fd = open(path, O_RDONLY);
    assert_true(read(fd, bytes, sizeof bytes) >= end);
    close(fd);
    for (off_t at = 0; at < end; at++) {
        for (int bit = 1; bit < 256; bit <<= 1) {
            bytes[at] = (char)(bytes[at] ^ bit);
            put_bytes(path, O_TRUNC, bytes, (size_t)end);
            tether_error error = {0};
            tether_status st = tether_store_file_new(path, -1, &store, &error);
            if (st != TETHER_ECORRUPT)
                fail_msg("bit %d of byte %d: %s", bit, (int)at, tether_status_name(st));
            assert_int_equal(size_of(path), end);
            bytes[at] = (char)(bytes[at] ^ bit);
        }
    }
    unlink(path);
}

static void torn_first_bytes_are_rewritten(void **state)
{
    (void)state;
    char path[PATH_SIZE];
    new_path(path);
    char start[TETHER__FILE_LOG_START];
    tether_store_release(open_store(path, -1));
    int fd = open(path, O_RDONLY);
    assert_int_equal(read(fd, start, sizeof start), sizeof start);
    close(fd);
    for (size_t len = 0; len < sizeof start; len++) {
        put_bytes(path, O_TRUNC, start, len);
        tether_store *store = open_store(path, 1);
        SET("key", "value");
        EXPECT("key", "value");
        tether_store_release(store);
        assert_false(exists(path));
    }
}

static void damage_is_reported_and_file_unchanged(void **state)
{
    (void)state;
    char path[PATH_SIZE];
    new_path(path);
    tether_store *store = open_store(path, -1);
    off_t at = size_of(path);
    SET("first", "value");
    SET("second", "value");
    off_t end = size_of(path);
    int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, "\377", 1, at + 30), 1); /* in the middle of the first record */
    close(fd);
    EXPECT("first", "value"); /* a handle that has read the record does not read it again */

    tether_store *other = NULL;
    tether_error error = {0};
    assert_status(tether_store_file_new(path, -1, &other, &error), TETHER_ECORRUPT);
    assert_non_null(strstr(error.message, name_of(path)));
    assert_int_equal(size_of(path), end);

    assert_int_equal(truncate(path, at), 0); /* while a handle has read beyond that point */
    assert_status(tether_store_set(store, "third", tether_bytes_str(""), LIMIT, &error),
                  TETHER_ECORRUPT);
    tether_store_release(store);
    unlink(path);
}

static void *remove_thread(void *arg)
{
    unlink(arg);
    return NULL;
}

static void calls_fail_when_file_is_removed(void **state)
{
    (void)state;
    char path[PATH_SIZE];
    new_path(path);
    tether_store *store = open_store(path, 1);
    tether_error error = {0};
    tether_buf value = TETHER_BUF_INIT;
    pthread_t thread;
    pthread_create(&thread, NULL, remove_thread, path);
    assert_status(tether_store_get(store, "never", LIMIT, &value, &error), TETHER_EUNAVAILABLE);
    pthread_join(thread, NULL);
    assert_non_null(strstr(error.message, "removed"));
    assert_status(tether_store_set(store, "key", tether_bytes_str(""), LIMIT, NULL),
                  TETHER_EUNAVAILABLE);
    put_bytes(path, O_TRUNC, "", 0); /* a new file of that name must not be removed */
    tether_store_release(store);
    assert_true(exists(path));
    unlink(path);
}

/* Another process keeps the lock: calls time out, and work again once the process has ended. */
static void calls_time_out_while_file_is_locked(void **state)
{
    (void)state;
    char path[PATH_SIZE];
    new_path(path);
    tether_store *store = open_store(path, 1);
    int fd = open(path, O_RDWR);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    tether_error error = {0};
    assert_status(tether_store_set(store, "key", tether_bytes_str("1"), 0, &error),
                  TETHER_ETIMEOUT);
    assert_non_null(strstr(error.message, "locked"));
    const char *key = "key";
    assert_status(tether_store_wait(store, &key, 1, 0, NULL), TETHER_ETIMEOUT);
    close(fd);
    SET("key", "2");
    EXPECT("key", "2");
    tether_store_release(store);
}

static void set_fails_and_file_stays_valid_when_disk_is_full(void **state)
{
    (void)state;
    char path[PATH_SIZE];
    new_path(path);
    tether_store *store = open_store(path, 1);
    SET("key", "value");
    struct rlimit old, small;
    getrlimit(RLIMIT_FSIZE, &old);
    small = (struct rlimit){(rlim_t)size_of(path) + 10, old.rlim_max};
    struct sigaction ignore = {.sa_handler = SIG_IGN}, old_action;
    sigaction(SIGXFSZ, &ignore, &old_action);
    setrlimit(RLIMIT_FSIZE, &small);
    tether_error error = {0};
    tether_status st = tether_store_set(store, "key", tether_bytes_str("too long"), LIMIT, &error);
    setrlimit(RLIMIT_FSIZE, &old);
    sigaction(SIGXFSZ, &old_action, NULL);
    assert_status(st, TETHER_EIO);
    assert_non_null(strstr(error.message, "can't write"));
    EXPECT("key", "value");
    SET("key", "fits now");
    EXPECT("key", "fits now");
    tether_store_release(store);
}

/* Without inotify a wait polls the file. */
static void wait_works_without_inotify(void **state)
{
    (void)state;
    tether_store *store = make(), *other = join(store);
    struct rlimit old, none;
    int next_fd = open("/dev/null", O_RDONLY);
    close(next_fd);
    getrlimit(RLIMIT_NOFILE, &old);
    none = (struct rlimit){(rlim_t)next_fd, old.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
    tether_buf value = TETHER_BUF_INIT;
    tether_status st = tether_store_get(store, "key", 30, &value, NULL);
    setrlimit(RLIMIT_NOFILE, &old);
    assert_status(st, TETHER_ETIMEOUT);
    assert_ok(tether_store_set(other, "key", tether_bytes_str("seen"), LIMIT, err));
    EXPECT("key", "seen");
    tether_store_release(other);
    tether_store_release(store);
}

static void long_log_is_read_completely(void **state)
{
    (void)state;
    tether_store *store = make();
    for (int i = 1; i <= 3000; i++)
        ADD("sum", 1, i);
    size_t large_len = 3 << 20;
    char *large = malloc(large_len);
    memset(large, 'x', large_len);
    for (int i = 0; i < 2; i++)
        assert_ok(
            tether_store_append(store, "large", tether_bytes_of(large, large_len), LIMIT, err));
    free(large);
    SET("end", "here");
    tether_store *other = join(store);
    suite_add(other, "sum", 0, 3000);
    suite_expect(other, "end", "here");
    tether_buf value = TETHER_BUF_INIT;
    assert_ok(tether_store_get(other, "large", LIMIT, &value, err));
    assert_int_equal(value.len, 2 * large_len);
    tether_buf_fini(&value);
    tether_store_release(other);
    tether_store_release(store);
}

/* ---- Out of memory -------------------------------------------------------------------------- */

static tether_status use_store(void *path)
{
    tether_store *store = NULL;
    tether_buf values[2] = {{0}};
    const char *keys[] = {"a", "b"};
    tether_bytes two[] = {tether_bytes_str("1"), tether_bytes_str("2")};
    char large[2000];
    memset(large, 'x', sizeof large);
    tether_status st = tether_store_file_new(path, 0, &store, NULL);
    if (st == TETHER_OK)
        st = tether_store_multi_set(store, keys, two, 2, 0, NULL);
    if (st == TETHER_OK)
        st = tether_store_set(store, "large", tether_bytes_of(large, sizeof large), 0, NULL);
    if (st == TETHER_OK)
        st = tether_store_append(store, "a", two[1], 0, NULL);
    if (st == TETHER_OK)
        st = tether_store_compare_set(store, "c", two[0], two[1], 0, NULL, &values[0], NULL);
    if (st == TETHER_OK)
        st = tether_store_multi_get(store, keys, 2, 0, values, NULL);
    if (st == TETHER_OK && strcmp(values[0].data, "12") != 0)
        st = TETHER_EINTERNAL; /* a record was applied twice or not at all */
    if (st == TETHER_OK)
        st = tether_store_queue_push(store, "q", two[0], 0, NULL);
    if (st == TETHER_OK)
        st = tether_store_queue_pop(store, "q", 0, &values[0], NULL);
    if (st == TETHER_OK)
        st = tether_store_barrier(store, "barrier", 1, 0, NULL);
    tether_buf_fini(&values[0]);
    tether_buf_fini(&values[1]);
    tether_store_release(store);
    unlink(path);
    return st;
}

static void file_store_reports_failed_allocations(void **state)
{
    (void)state;
    char path[PATH_SIZE];
    new_path(path);
    tether_test_heap_fail_each(use_store, path);
}

/* ---- Several processes ---------------------------------------------------------------------- */

#define ADDS 50

/* All ranks add, wait for each other, and read the same values. */
TETHER_PROC_ROLE(adder)
{
    tether_store *store = open_store(self->arg, self->size);
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
    new_path(path);
    tether_test_procs_end(tether_test_procs_start(adder, .ranks = 4, .arg = path));
    assert_false(exists(path));
}

/* Dies while it writes a record: the kernel kills it when the file reaches a limit. */
TETHER_PROC_ROLE(dies_writing)
{
    tether_store *store = open_store(self->arg, -1);
    SET("before", "kept");
    off_t before = size_of(self->arg);
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
    new_path(path);
    tether_store *store = open_store(path, -1); /* reads along */
    tether_test_procs_end(
        tether_test_procs_start(dies_writing, .ranks = 1, .arg = path, .dies = {SIGXFSZ}));
    off_t torn = size_of(path);
    EXPECT("before", "kept");
    assert_false(CHECK("torn"));
    /* A reader leaves the torn record, so it has been written: */
    assert_int_equal(size_of(path), torn);
    tether_store *other = open_store(path, -1);
    assert_int_not_equal(size_of(path), torn);
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
    tether_store *store = open_store(self->arg, -1);
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
    new_path(path);
    tether_store *store = open_store(path, -1);
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
    tether_store *store = open_store(self->arg, 2);
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
    new_path(path);
    tether_test_procs_end(tether_test_procs_start(ping_pong, .ranks = 2, .arg = path));
    assert_false(exists(path));
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refcount),
        cmocka_unit_test(file_stays_for_the_second_user_when_the_first_goes),
        cmocka_unit_test(file_stays_until_all_users_have_closed_it),
        cmocka_unit_test(open_succeeds_while_last_user_removes_file),
        cmocka_unit_test(open_refuses_unusable_paths),
        cmocka_unit_test(open_refuses_files_that_others_control),
        cmocka_unit_test(open_reports_damage_when_any_byte_is_flipped),
        cmocka_unit_test(torn_record_at_end_is_ignored),
        cmocka_unit_test(torn_first_bytes_are_rewritten),
        cmocka_unit_test(damage_is_reported_and_file_unchanged),
        cmocka_unit_test(calls_fail_when_file_is_removed),
        cmocka_unit_test(calls_time_out_while_file_is_locked),
        cmocka_unit_test(set_fails_and_file_stays_valid_when_disk_is_full),
        cmocka_unit_test(wait_works_without_inotify),
        cmocka_unit_test(long_log_is_read_completely),
        cmocka_unit_test(file_store_reports_failed_allocations),
        cmocka_unit_test(processes_share_keys_through_file),
        cmocka_unit_test(record_of_killed_writer_is_ignored),
        cmocka_unit_test(store_survives_kill_of_writers),
        cmocka_unit_test(wait_wakes_up_across_processes),
    };
    return tether_test_store_suite(TETHER_TEST_STORE_KIND(.name = "file", .make = make,
                                                          .join = join, .own_keys = 1,
                                                          .extended = true, .queues = true)) +
           tether_test_store_suite(TETHER_TEST_STORE_KIND(.name = "prefix over file",
                                                          .make = make_under_prefix,
                                                          .join = join_under_prefix, .own_keys = 1,
                                                          .extended = true, .queues = true)) +
           cmocka_run_group_tests(tests, NULL, NULL);
}
