/* The directory in the store, when keys were overwritten by another program or lost. */
#include "rpc/group/directory.h"

#include <stdio.h>
#include <string.h>

#include "tests/lib/cmocka.h"

#define LIMIT 5000
#define RUN "0123456789abcdef0123456789abcdef"

static tether_store *store;
static struct tether__directory directory;

static int setup(void **state)
{
    (void)state;
    return tether_store_hash_new(&store, NULL) != TETHER_OK ||
           tether__directory_init(&directory, store, "group", NULL) != TETHER_OK;
}

static int teardown(void **state)
{
    (void)state;
    tether__directory_fini(&directory);
    store = tether_store_release(store);
    return 0;
}

static void put(const char *key, const char *value)
{
    char full[64];
    snprintf(full, sizeof full, "group/%s", key);
    assert_int_equal(tether_store_set(store, full, tether_bytes_str(value), LIMIT, NULL),
                     TETHER_OK);
}

static void enter_known_run(void)
{
    put("run", RUN);
    assert_int_equal(tether__directory_enter_run(&directory, LIMIT, NULL), TETHER_OK);
    assert_string_equal(directory.run, RUN);
}

static void lose(const char *key)
{
    char full[64];
    snprintf(full, sizeof full, "group/%s", key);
    assert_int_equal(tether_store_delete(store, full, LIMIT, NULL, NULL), TETHER_OK);
}

static uint64_t next_start(void)
{
    uint64_t start = 0;
    assert_int_equal(tether__directory_count_start(&directory, LIMIT, &start, NULL), TETHER_OK);
    return start;
}

static void run_is_refused_when_it_is_no_run(void **state)
{
    (void)state;
    static const char *const wrong[] = {"0123", RUN "0", RUN "\n", "0123456789ABCDEF" RUN,
                                        "0123456789abcdef0123456789abcdeg"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        tether_error err = {0};
        put("run", wrong[i]);
        assert_int_equal(tether__directory_enter_run(&directory, LIMIT, &err), TETHER_ECORRUPT);
        assert_non_null(strstr(err.message, "'run'"));
        assert_int_equal(tether__directory_find_run(&directory, LIMIT, NULL), TETHER_ECORRUPT);
        assert_string_equal(directory.run, "");
    }
}

static void count_start_fails_when_the_stored_number_is_invalid(void **state)
{
    (void)state;
    static const char *const wrong[] = {"-1", "-7", "4294967295"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        tether_error err = {0};
        uint64_t start = 77;
        put("starts", wrong[i]);
        assert_int_equal(tether__directory_count_start(&directory, LIMIT, &start, &err),
                         TETHER_ECORRUPT);
        assert_non_null(strstr(err.message, "'starts'"));
        assert_int_equal(start, 77);
    }
    put("starts", "4294967294");
    assert_int_equal(next_start(), UINT32_MAX);
}

static void restored_starts_go_on_above_the_one_given(void **state)
{
    (void)state;
    enter_known_run();
    lose("run");
    assert_int_equal(tether__directory_restore(&directory, 1234567, LIMIT, NULL), TETHER_OK);
    assert_int_equal(next_start(), 1234568);
    assert_int_equal(tether__directory_check_run(&directory, LIMIT, NULL), TETHER_OK);
}

static void restore_leaves_the_count_alone_when_another_was_quicker(void **state)
{
    (void)state;
    enter_known_run();
    lose("run");
    put("starts", "12");
    assert_int_equal(tether__directory_restore(&directory, 3, LIMIT, NULL), TETHER_OK);
    assert_int_equal(next_start(), 13);
}

static void restore_fails_when_another_run_has_begun(void **state)
{
    (void)state;
    tether_error err = {0};
    enter_known_run();
    put("run", "ffffffffffffffffffffffffffffffff");
    assert_int_equal(tether__directory_restore(&directory, 3, LIMIT, &err), TETHER_EUNAVAILABLE);
    assert_non_null(strstr(err.message, "another run"));
    assert_int_equal(tether__directory_check_run(&directory, LIMIT, NULL), TETHER_EUNAVAILABLE);
}

/* "Not found" would end sessions: a store without its keys cannot know who is in the group. */
static void lookup_distinguishes_lost_store_from_unknown_name(void **state)
{
    (void)state;
    struct tether__worker_record record;
    tether_error err = {0};
    enter_known_run();
    assert_int_equal(tether__directory_lookup(&directory, "nobody", LIMIT, &record, &err),
                     TETHER_ENOTFOUND);
    lose("run");
    assert_int_equal(tether__directory_lookup(&directory, "nobody", LIMIT, &record, &err),
                     TETHER_EUNAVAILABLE);
    assert_non_null(strstr(err.message, "has lost the keys"));
    put("run", "ffffffffffffffffffffffffffffffff");
    assert_int_equal(tether__directory_lookup(&directory, "nobody", LIMIT, &record, &err),
                     TETHER_EUNAVAILABLE);
    assert_non_null(strstr(err.message, "another run"));
}

static void publish(const char *name, uint64_t incarnation)
{
    struct tether__worker_record record = {.id = TETHER__FIRST_DYNAMIC_ID + 1,
                                           .incarnation = incarnation};
    snprintf(record.name, sizeof record.name, "%s", name);
    assert_int_equal(tether__directory_publish(&directory, &record, -1, NULL, NULL, LIMIT, NULL),
                     TETHER_OK);
}

static void assert_names(const char *names, size_t len)
{
    tether_buf found = TETHER_BUF_INIT;
    assert_int_equal(tether_store_get(store, "group/names", LIMIT, &found, NULL), TETHER_OK);
    assert_int_equal(found.len, len);
    assert_memory_equal(found.data, names, len);
    tether_buf_fini(&found);
}

static void remove_dead_takes_out_record_and_name_when_start_is_that_of_the_record(void **state)
{
    (void)state;
    struct tether__worker_record found;
    enter_known_run();
    publish("alive", 1);
    publish("dead", 2);
    assert_names("alive\0dead", 11);
    assert_int_equal(tether__directory_remove_dead(&directory, "dead", 2, LIMIT, NULL), TETHER_OK);
    assert_names("alive", 6);
    assert_int_equal(tether__directory_lookup(&directory, "dead", LIMIT, &found, NULL),
                     TETHER_ENOTFOUND);
    /* Another worker has forgotten it, too. */
    assert_int_equal(tether__directory_remove_dead(&directory, "dead", 2, LIMIT, NULL), TETHER_OK);
    assert_int_equal(tether__directory_remove_dead(&directory, "none", 3, LIMIT, NULL), TETHER_OK);
    assert_names("alive", 6);
    publish("dead", 3); /* a later start */
    assert_names("alive\0dead", 11);
}

static void remove_dead_leaves_record_and_name_when_later_start_has_replaced_it(void **state)
{
    (void)state;
    struct tether__worker_record found;
    enter_known_run();
    publish("worker", 2);
    publish("worker", 5);
    assert_int_equal(tether__directory_remove_dead(&directory, "worker", 2, LIMIT, NULL),
                     TETHER_OK);
    assert_names("worker", 7);
    assert_int_equal(tether__directory_lookup(&directory, "worker", LIMIT, &found, NULL),
                     TETHER_OK);
    assert_int_equal(found.incarnation, 5);
}

static void name_of_rank_fails_when_it_is_missing_or_no_name(void **state)
{
    (void)state;
    char name[128], huge[200];
    memset(huge, 'x', sizeof huge - 1);
    huge[sizeof huge - 1] = '\0';
    assert_int_equal(tether__directory_name_of_rank(&directory, 3, 1, name, NULL), TETHER_ETIMEOUT);
    put("rank/3", huge);
    assert_int_equal(tether__directory_name_of_rank(&directory, 3, LIMIT, name, NULL),
                     TETHER_ECORRUPT);
    put("rank/3", "carol");
    assert_int_equal(tether__directory_name_of_rank(&directory, 3, LIMIT, name, NULL), TETHER_OK);
    assert_string_equal(name, "carol");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(run_is_refused_when_it_is_no_run, setup, teardown),
        cmocka_unit_test_setup_teardown(count_start_fails_when_the_stored_number_is_invalid, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(restored_starts_go_on_above_the_one_given, setup, teardown),
        cmocka_unit_test_setup_teardown(restore_leaves_the_count_alone_when_another_was_quicker,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(restore_fails_when_another_run_has_begun, setup, teardown),
        cmocka_unit_test_setup_teardown(lookup_distinguishes_lost_store_from_unknown_name, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(
            remove_dead_takes_out_record_and_name_when_start_is_that_of_the_record, setup,
            teardown),
        cmocka_unit_test_setup_teardown(
            remove_dead_leaves_record_and_name_when_later_start_has_replaced_it, setup, teardown),
        cmocka_unit_test_setup_teardown(name_of_rank_fails_when_it_is_missing_or_no_name, setup,
                                        teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
