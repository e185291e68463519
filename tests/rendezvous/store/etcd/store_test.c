/* The etcd store on a real etcd: the conformance suite, and requests that exceed one
 * transaction. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/rendezvous/store/etcd/fixture.h"

#define LIMIT TETHER_TEST_LIMIT_MS

static char prefix[32];

static tether_store *make(void)
{
    static int made;
    snprintf(prefix, sizeof prefix, "suite/%d/", made++);
    return etcd_store(tether_test_etcd_endpoint(etcd), prefix);
}

static tether_store *join(tether_store *store)
{
    (void)store;
    return etcd_store(tether_test_etcd_endpoint(etcd), prefix);
}

static tether_store *make_under_prefix(void)
{
    return tether_test_store_under_prefix(make());
}

static tether_store *join_under_prefix(tether_store *store)
{
    return tether_test_store_under_prefix(join(tether_store_underlying(store)));
}

/* ---- Many keys ------------------------------------------------------------------------------ */

#define MANY 1100 /* more than one page, and nine transactions */

struct many {
    char names[MANY][24], texts[MANY][24];
    const char *keys[MANY];
    tether_bytes values[MANY];
    tether_buf got[MANY];
};

static struct many *many_new(void)
{
    struct many *many = calloc(1, sizeof *many);
    for (int i = 0; i < MANY; i++) {
        snprintf(many->names[i], sizeof many->names[i], "key%d", i);
        snprintf(many->texts[i], sizeof many->texts[i], "value%d", i);
        many->keys[i] = many->names[i];
        many->values[i] = tether_bytes_str(many->texts[i]);
    }
    return many;
}

static void operations_accept_more_keys_than_a_transaction(void **state)
{
    struct world *w = *state;
    tether_store *store = w->direct;
    struct many *many = many_new();
    assert_ok(tether_store_multi_set(store, many->keys, many->values, MANY, LIMIT, err));
    assert_ok(tether_store_multi_get(store, many->keys, MANY, LIMIT, many->got, err));
    for (int i = 0; i < MANY; i++) {
        assert_string_equal(many->got[i].data, many->texts[i]);
        tether_buf_fini(&many->got[i]);
    }
    bool ready = false;
    assert_ok(tether_store_check(store, many->keys, MANY, LIMIT, &ready, err));
    assert_true(ready);
    int64_t count = 0;
    assert_ok(tether_store_num_keys(store, LIMIT, &count, err));
    assert_int_equal(count, MANY);
    tether_store_keys listed = {NULL, 0};
    assert_ok(tether_store_list_keys(store, LIMIT, &listed, err));
    assert_int_equal(listed.count, MANY);
    for (size_t i = 1; i < listed.count; i++) /* none twice */
        assert_true(strcmp(listed.keys[i - 1].data, listed.keys[i].data) < 0);
    tether_store_keys_fini(&listed);
    assert_ok(tether_store_delete(store, many->keys[MANY - 1], LIMIT, NULL, err));
    assert_ok(tether_store_check(store, many->keys, MANY, LIMIT, &ready, err));
    assert_false(ready);
    free(many);
}

static struct many *awaited;

static void call_wait_many(struct run *run)
{
    run->status = tether_store_wait(run->store, awaited->keys, MANY, LIMIT, &run->error);
}

static void call_multi_get_many(struct run *run)
{
    run->status =
        tether_store_multi_get(run->store, awaited->keys, MANY, LIMIT, awaited->got, &run->error);
}

/* There are too many keys for a watcher each, so one watcher covers the span from the first to the
 * last. */
static void wait_ends_when_each_of_many_keys_exists(void **state)
{
    struct world *w = *state;
    tether_store *store = w->direct;
    awaited = many_new();
    awaited->keys[7] = awaited->keys[8]; /* named twice */
    struct run waiter = {.store = w->store, .call = call_wait_many};
    struct run getter = {.store = w->store, .call = call_multi_get_many};
    tether_test_proxy_look_for(w->proxy, under(w, "k/key0"));
    run_start(&waiter);
    run_start(&getter);
    assert_eventually(tether_test_proxy_seen(w->proxy) >= 5); /* three reads and two watches */
    for (int i = 0; i < MANY; i += 100)
        assert_ok(tether_store_multi_set(store, awaited->keys + i, awaited->values + i,
                                         i + 100 < MANY ? 100 : MANY - i, LIMIT, err));
    run_join(&waiter);
    run_join(&getter);
    for (int i = 0; i < MANY; i++) {
        if (i != 7)
            assert_string_equal(awaited->got[i].data, awaited->texts[i]);
        tether_buf_fini(&awaited->got[i]);
    }
    free(awaited);
}

/* Waits for two keys, which must exist at the same time. */
static void call_wait_two(struct run *run)
{
    const char *keys[] = {"one", "two"};
    run->status = tether_store_wait(run->store, keys, 2, LIMIT, &run->error);
    run->flag = true;
}

static void wait_continues_when_a_key_is_deleted_meanwhile(void **state)
{
    struct world *w = *state;
    tether_store *store = w->direct;
    struct run waiter = {.store = w->store, .call = call_wait_two};
    tether_test_proxy_look_for(w->proxy, "k/one");
    run_start(&waiter);
    assert_eventually(tether_test_proxy_seen(w->proxy) == 2);
    SET("one", "x");
    assert_ok(tether_store_delete(store, "one", LIMIT, NULL, err));
    SET("two", "x");
    /* It reads the keys again and watches again. */
    assert_eventually(tether_test_proxy_seen(w->proxy) == 4);
    assert_ok(tether_store_delete(store, "two", LIMIT, NULL, err));
    SET("one", "x");
    assert_eventually(tether_test_proxy_seen(w->proxy) >= 5);
    assert_ok(tether_store_queue_push(store, "two", tether_bytes_str("x"), LIMIT, err));
    run_join(&waiter);
}

/* ---- Sizes ---------------------------------------------------------------------------------- */

static void set_fails_when_value_exceeds_limit_of_etcd(void **state)
{
    struct world *w = *state;
    tether_store *store = w->direct;
    size_t len = 3 << 20;
    char *large = calloc(1, len);
    SET("key", "before");
    /* Larger than a request may be, and larger than etcd reads at all. */
    static const size_t sizes[] = {1600000, 3 << 20};
    for (int i = 0; i < 2; i++) {
        tether_error error = {0};
        assert_status(
            tether_store_set(store, "key", tether_bytes_of(large, sizes[i]), LIMIT, &error),
            TETHER_ETOOBIG);
        assert_non_null(strstr(error.message, "'key'"));
        EXPECT("key", "before");
    }
    /* Together too large for one transaction, although each fits. */
    const char *keys[] = {"a", "b", "c", "d"};
    tether_bytes values[4];
    for (int i = 0; i < 4; i++)
        values[i] = tether_bytes_of(large, 700000);
    assert_ok(tether_store_multi_set(store, keys, values, 4, LIMIT, err));
    tether_buf got[4] = {{0}};
    assert_ok(tether_store_multi_get(store, keys, 4, LIMIT, got, err));
    for (int i = 0; i < 4; i++) {
        assert_int_equal(got[i].len, 700000);
        tether_buf_fini(&got[i]);
    }
    free(large);
}

static void stores_share_no_keys_when_prefixes_differ(void **state)
{
    struct world *w = *state;
    tether_store *store = w->direct;
    char sibling[64];
    snprintf(sibling, sizeof sibling, "%.*s-2/", (int)strlen(w->prefix) - 1, w->prefix);
    SET("key", "value");
    static const char *const prefixes[] = {"", NULL, "tether", "other/"};
    for (size_t i = 0; i <= sizeof prefixes / sizeof prefixes[0]; i++) {
        tether_store *other =
            etcd_store(tether_test_etcd_endpoint(etcd),
                       i < sizeof prefixes / sizeof prefixes[0] ? prefixes[i] : sibling);
        int64_t count = -1;
        assert_false(suite_check(other, "key"));
        assert_ok(tether_store_num_keys(other, LIMIT, &count, err));
        assert_int_equal(count, 0);
        tether_store_release(other);
    }
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    etcd = tether_test_etcd_start(NULL);
    const struct CMUnitTest tests[] = {
        WORLD_TEST(operations_accept_more_keys_than_a_transaction),
        WORLD_TEST(wait_ends_when_each_of_many_keys_exists),
        WORLD_TEST(wait_continues_when_a_key_is_deleted_meanwhile),
        WORLD_TEST(set_fails_when_value_exceeds_limit_of_etcd),
        WORLD_TEST(stores_share_no_keys_when_prefixes_differ),
    };
    int failed =
        tether_test_store_suite(TETHER_TEST_STORE_KIND(.name = "etcd", .make = make, .join = join,
                                                       .extended = true, .queues = true));
    failed += tether_test_store_suite(
        TETHER_TEST_STORE_KIND(.name = "prefix over etcd", .make = make_under_prefix,
                               .join = join_under_prefix, .extended = true, .queues = true));
    failed += cmocka_run_group_tests_name("etcd store, more", tests, NULL, NULL);
    tether_test_etcd_free(etcd);
    return failed;
}
