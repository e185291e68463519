/* The file store: torn, damaged, removed and locked files, a full disk, and no memory. */
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <unistd.h>

#include "rendezvous/store/file/log.h"
#include "tests/lib/heap.h"
#include "tests/lib/proc.h"
#include "tests/rendezvous/store/file/fixture.h"
#include "tests/rendezvous/store/suite_internal.h"

/* ---- Torn and damaged ----------------------------------------------------------------------- */

/* Cuts the last record at every byte: earlier records stay, the cut one is ignored, and the next
 * writer overwrites it. */
static void torn_record_at_end_is_ignored(void **state)
{
    (void)state;
    char path[PATH_SIZE], bytes[4096];
    file_new_path(path);
    tether_store *store = file_open(path, -1);
    SET("before", "kept");
    off_t whole = file_size(path);
    SET("last", "torn");
    off_t end = file_size(path);
    int fd = open(path, O_RDONLY);
    assert_int_equal(read(fd, bytes, sizeof bytes), end);
    close(fd);
    tether_store_release(store);
    for (off_t size = whole; size < end; size++) {
        file_put(path, O_TRUNC, bytes, (size_t)size);
        store = file_open(path, -1);
        EXPECT("before", "kept");
        assert_false(CHECK("last"));
        SET("after", "written");
        tether_store *reader = file_open(path, -1);
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
    file_new_path(path);
    tether_store *store = file_open(path, -1);
    for (int i = 0; i < 8; i++)
        ADD("sum", 1, i + 1);
    SET("last", "value");
    off_t end = file_size(path);
    tether_store_release(store);
    int fd = open(path, O_RDONLY);
    assert_true(read(fd, bytes, sizeof bytes) >= end);
    close(fd);
    for (off_t at = 0; at < end; at++) {
        for (int bit = 1; bit < 256; bit <<= 1) {
            bytes[at] = (char)(bytes[at] ^ bit);
            file_put(path, O_TRUNC, bytes, (size_t)end);
            tether_error error = {0};
            tether_status st = tether_store_file_new(path, -1, &store, &error);
            if (st != TETHER_ECORRUPT)
                fail_msg("bit %d of byte %d: %s", bit, (int)at, tether_status_name(st));
            assert_int_equal(file_size(path), end);
            bytes[at] = (char)(bytes[at] ^ bit);
        }
    }
    unlink(path);
}

static void torn_first_bytes_are_rewritten(void **state)
{
    (void)state;
    char path[PATH_SIZE];
    file_new_path(path);
    char start[TETHER__FILE_LOG_START];
    tether_store_release(file_open(path, -1));
    int fd = open(path, O_RDONLY);
    assert_int_equal(read(fd, start, sizeof start), sizeof start);
    close(fd);
    for (size_t len = 0; len < sizeof start; len++) {
        file_put(path, O_TRUNC, start, len);
        tether_store *store = file_open(path, 1);
        SET("key", "value");
        EXPECT("key", "value");
        tether_store_release(store);
        assert_false(file_exists(path));
    }
}

static void damage_is_reported_and_file_unchanged(void **state)
{
    (void)state;
    char path[PATH_SIZE];
    file_new_path(path);
    tether_store *store = file_open(path, -1);
    off_t at = file_size(path);
    SET("first", "value");
    SET("second", "value");
    off_t end = file_size(path);
    int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, "\377", 1, at + 30), 1); /* in the middle of the first record */
    close(fd);
    EXPECT("first", "value"); /* a handle that has read the record does not read it again */

    tether_store *other = NULL;
    tether_error error = {0};
    assert_status(tether_store_file_new(path, -1, &other, &error), TETHER_ECORRUPT);
    assert_non_null(strstr(error.message, file_name_of(path)));
    assert_int_equal(file_size(path), end);

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
    file_new_path(path);
    tether_store *store = file_open(path, 1);
    tether_error error = {0};
    tether_buf value = TETHER_BUF_INIT;
    pthread_t thread;
    pthread_create(&thread, NULL, remove_thread, path);
    assert_status(tether_store_get(store, "never", LIMIT, &value, &error), TETHER_EUNAVAILABLE);
    pthread_join(thread, NULL);
    assert_non_null(strstr(error.message, "removed"));
    assert_status(tether_store_set(store, "key", tether_bytes_str(""), LIMIT, NULL),
                  TETHER_EUNAVAILABLE);
    file_put(path, O_TRUNC, "", 0); /* a new file of that name must not be removed */
    tether_store_release(store);
    assert_true(file_exists(path));
    unlink(path);
}

/* Another process keeps the lock: calls time out, and work again once the process has ended. */
static void calls_time_out_while_file_is_locked(void **state)
{
    (void)state;
    char path[PATH_SIZE];
    file_new_path(path);
    tether_store *store = file_open(path, 1);
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
    file_new_path(path);
    tether_store *store = file_open(path, 1);
    SET("key", "value");
    struct rlimit old, small;
    getrlimit(RLIMIT_FSIZE, &old);
    small = (struct rlimit){(rlim_t)file_size(path) + 10, old.rlim_max};
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
    tether_store *store = file_make(), *other = file_join(store);
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
    tether_store *store = file_make();
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
    tether_store *other = file_join(store);
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
    file_new_path(path);
    tether_test_heap_fail_each(use_store, path);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
