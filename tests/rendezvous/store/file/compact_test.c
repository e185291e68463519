/* The file store's compaction: the log stays bounded and keeps its values, and obstacles. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/heap.h"
#include "tests/lib/proc.h"
#include "tests/rendezvous/store/file/compaction.h"
#include "tests/rendezvous/store/file/fixture.h"
#include "tests/rendezvous/store/suite_internal.h"

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
    file_new_path(path);
    tether_store *store = compact_open(path);
    fill_big();
    off_t most = 0;
    for (int i = 0; i < 32 * MIB / BIG_LEN; i++) {
        SET("big", big);
        if (file_size(path) > most)
            most = file_size(path);
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
    file_new_path(path);
    tether_store *store = compact_open(path);
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
    file_new_path(path);
    tether_store *store = compact_open(path), *other = compact_open(path);
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
    tether_store *newcomer = compact_open(path);
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
    file_new_path(path);
    tether_store *store = NULL, *other = NULL;
    assert_ok(tether_store_file_new(path, 2, &store, err));
    assert_ok(tether_store_file_new(path, 2, &other, err));
    compact(store, path, 1);
    tether_store_release(store);
    assert_true(file_exists(path));
    tether_store_release(other);
    assert_false(file_exists(path));
}

/* A process that changes its working directory, and a path that is relative. */
static void compaction_finds_a_relative_path_after_chdir(void **state)
{
    (void)state;
    char path[PATH_SIZE], before[PATH_SIZE];
    file_new_path(path);
    assert_non_null(getcwd(before, sizeof before));
    char *slash = strrchr(path, '/');
    *slash = '\0';
    assert_int_equal(chdir(path), 0);
    tether_store *store = compact_open(slash + 1);
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
    file_new_path(path);
    snprintf(aside, sizeof aside, "%s.compact", path);
    tether_store *store = compact_open(path);
    /* As of a process that died before it wrote to the file. */
    close(open(aside, O_CREAT | O_WRONLY, 0600));
    compact(store, path, 1);
    assert_false(file_exists(aside));

    static const char letter[] = "Dear Sir or Madam, this is not a store's file, nor part of one.";
    int fd = open(aside, O_CREAT | O_WRONLY, 0600);
    assert_int_equal(write(fd, letter, sizeof letter), sizeof letter);
    close(fd);
    uint64_t before = compact_generation_of(path);
    for (int i = 0; i < 4 * MIB / BIG_LEN; i++)
        SET("big", big);
    assert_int_equal(compact_generation_of(path),
                     before); /* no compaction happens, and all calls work */
    assert_int_equal(file_size(aside), sizeof letter);
    EXPECT("big", big);
    unlink(aside);
    compact(store, path, 1);
    assert_in_range(file_size(path), 1, MIB);

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
    file_new_path(path);
    tether_store *store = compact_open(path);
    SET("key", "old");
    unlink(path);
    tether_store *other = compact_open(path);
    assert_ok(tether_store_set(other, "key", tether_bytes_str("new"), LIMIT, err));
    assert_status(tether_store_set(store, "key", tether_bytes_str("x"), LIMIT, NULL),
                  TETHER_EUNAVAILABLE);
    suite_expect(other, "key", "new");
    tether_store_release(store);
    assert_true(file_exists(path));
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
    file_new_path(path);
    fill_big();
    tether_test_heap_fail_each(compact_with_little_memory, path);
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
