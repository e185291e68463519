/* The file store: the conformance suite, the lifetime of the file, and paths that it refuses. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "rendezvous/rendezvous.h"
#include "tests/lib/proc.h"
#include "tests/lib/user.h"
#include "tests/rendezvous/store/file/fixture.h"
#include "tests/rendezvous/store/suite_internal.h"

static tether_store *make_under_prefix(void)
{
    return tether_test_store_under_prefix(file_make());
}

static tether_store *join_under_prefix(tether_store *store)
{
    return tether_test_store_under_prefix(file_join(tether_store_underlying(store)));
}

static void test_refcount(void **state)
{
    (void)state;
    char path[PATH_SIZE];
    file_new_path(path);
    file_put(path, O_TRUNC, "", 0); /* an empty file, as from mkstemp(), is a new store */
    tether_store *store = file_open(path, 1), *store2 = file_open(path, 1);
    assert_string_equal(tether_store_file_path(store), path);
    tether_store_release(store);
    assert_true(file_exists(path));
    tether_store_release(store2);
    assert_false(file_exists(path));
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
static void file_stays_when_the_first_of_two_users_closes(void **state)
{
    (void)state;
    char path[PATH_SIZE];
    file_new_path(path);
    tether_store *store = meet(path, "rpc"), *pg = meet(path, "pg");
    SET("worker", "rpc");
    assert_ok(tether_store_set(pg, "worker", tether_bytes_str("pg"), LIMIT, err));
    suite_expect(pg, "worker", "pg");
    tether_store_release(pg);
    assert_true(file_exists(path));
    EXPECT("worker", "rpc");
    tether_store_release(store);
    assert_false(file_exists(path));
}

static void file_stays_until_all_users_have_closed_it(void **state)
{
    (void)state;
    char path[PATH_SIZE];
    file_new_path(path);
    tether_store *store = file_open(path, 2);
    SET("key", "value");
    tether_store_release(store);
    assert_true(file_exists(path)); /* the second of two users has not opened it yet */
    store = file_open(path, 2);
    EXPECT("key", "value");
    tether_store_release(store);
    assert_false(file_exists(path));

    tether_store_release(file_open(path, -1)); /* for ever */
    assert_true(file_exists(path));
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
    file_new_path(path);
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
    assert_false(file_exists(path));
}

static void open_refuses_unusable_paths(void **state)
{
    (void)state;
    tether_store *store = NULL;
    tether_error error = {0};
    char path[PATH_SIZE], below[PATH_SIZE + 8];
    assert_status(tether_store_file_new(NULL, 1, &store, NULL), TETHER_EINVAL);
    assert_status(tether_store_file_new("", 1, &store, NULL), TETHER_EINVAL);
    file_new_path(path);
    /* The directory does not exist: fails at once. */
    snprintf(below, sizeof below, "%s/store", path);
    assert_status(tether_store_file_new(below, 1, &store, &error), TETHER_EIO);
    assert_non_null(strstr(error.message, file_name_of(path)));
    assert_status(tether_store_file_new("/dev/null", 1, &store, NULL), TETHER_EINVAL);
    assert_status(tether_store_file_new("/", 1, &store, NULL), TETHER_EIO);

    static const char letter[] = "Dear Sir or Madam, this is not a store's file.";
    file_put(path, O_TRUNC, letter, sizeof letter);
    assert_status(tether_store_file_new(path, 1, &store, &error), TETHER_ECORRUPT);
    assert_non_null(strstr(error.message, file_name_of(path)));
    assert_int_equal(file_size(path), sizeof letter); /* the file is unchanged */
    unlink(path);

    tether_store *hash = NULL;
    assert_ok(tether_store_hash_new(&hash, err));
    assert_null(tether_store_file_path(hash));
    tether_store_release(hash);
}

/* Opening refuses a symbolic link, and a file that others may write to. The error says which, and
 * the file stays as it is. */
static void open_refuses_files_that_others_control(void **state)
{
    (void)state;
    char path[PATH_SIZE], link_path[PATH_SIZE];
    tether_error error = {0};
    tether_store *store = NULL;
    file_new_path(path);
    file_new_path(link_path);
    assert_int_equal(symlink(path, link_path), 0);
    assert_status(tether_store_file_new(link_path, 1, &store, &error), TETHER_EPERM);
    assert_non_null(strstr(error.message, "symbolic link"));
    assert_false(file_exists(path));
    unlink(link_path);

    file_put(path, O_TRUNC, "", 0);
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
    assert_int_equal(file_size(path), 0);
    assert_int_equal(chmod(path, 0644), 0); /* other users may only read it */
    tether_store_release(file_open(path, 1));
    unlink(path);
}

static void open_refuses_file_of_another_user(void **state)
{
    (void)state;
    char path[PATH_SIZE];
    tether_error error = {0};
    tether_store *store = NULL;
    file_new_path(path);
    file_put(path, O_TRUNC, "", 0);
    if (chown(path, TETHER_TEST_OTHER_USER, (gid_t)-1) != 0) {
        unlink(path);
        skip(); /* only root can make a file of another user */
    }
    assert_status(tether_store_file_new(path, 1, &store, &error), TETHER_EPERM);
    assert_non_null(strstr(error.message, "belongs to user 65534"));
    assert_int_equal(file_size(path), 0);
    unlink(path);
}

/* A store that had the number of standard output would take what the program prints. */
static void file_is_intact_when_program_prints_without_standard_output(void **state)
{
    (void)state;
    char path[PATH_SIZE];
    file_new_path(path);
    int saved = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    fflush(stdout);
    close(STDOUT_FILENO);
    tether_store *store = file_open(path, 2);
    ssize_t written = write(STDOUT_FILENO, "lost\n", 5);
    dup2(saved, STDOUT_FILENO);
    close(saved);
    assert_int_equal(written, 5);
    tether_store *second = file_open(path, 2); /* fails if the text is in the file */
    tether_store_release(second);
    tether_store_release(store);
    unlink(path);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refcount),
        cmocka_unit_test(file_stays_when_the_first_of_two_users_closes),
        cmocka_unit_test(file_stays_until_all_users_have_closed_it),
        cmocka_unit_test(open_succeeds_while_last_user_removes_file),
        cmocka_unit_test(file_is_intact_when_program_prints_without_standard_output),
        cmocka_unit_test(open_refuses_unusable_paths),
        cmocka_unit_test(open_refuses_files_that_others_control),
        cmocka_unit_test(open_refuses_file_of_another_user),
    };
    return tether_test_store_suite(TETHER_TEST_STORE_KIND(.name = "file", .make = file_make,
                                                          .join = file_join, .own_keys = 1,
                                                          .extended = true, .queues = true)) +
           tether_test_store_suite(TETHER_TEST_STORE_KIND(.name = "prefix over file",
                                                          .make = make_under_prefix,
                                                          .join = join_under_prefix, .own_keys = 1,
                                                          .extended = true, .queues = true)) +
           cmocka_run_group_tests(tests, NULL, NULL);
}
