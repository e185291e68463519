/* Our client with servers that behave like several versions of PyTorch's. */
#include <stdio.h>

#include "rendezvous/store_tcp.h"
#include "tests/rendezvous/store/suite_internal.h"
#include "tests/rendezvous/store/tcp/torch_server.h"

#define LIMIT TETHER_TEST_LIMIT_MS

static const struct torch_version *version;
static struct torch_server *torch; /* the newest version */
static struct torch_server *all[256];
static size_t n_all;

static tether_store *dial(void)
{
    tether_store *store = NULL;
    assert_ok(tether_store_tcp_new(
        TETHER_STORE_TCP_OPTS(.port = torch_server_port(torch),
                              .dialect = version->has_validate ? TETHER_STORE_DIALECT_AUTO
                                                               : TETHER_STORE_DIALECT_L1),
        &store, err));
    return store;
}

static int stop_all(void **state)
{
    (void)state;
    while (n_all > 0)
        torch_server_stop(all[--n_all]);
    return 0;
}

static tether_store *make(void)
{
    assert_true(n_all < sizeof all / sizeof all[0]);
    torch = all[n_all++] = torch_server_start(version);
    return dial();
}

static tether_store *join(tether_store *store)
{
    (void)store;
    return dial();
}

/* ---- Operations that a version lacks -------------------------------------------------------- */

static tether_store *make_for(const struct torch_version *of)
{
    version = of;
    return make();
}

static void barrier_is_emulated_when_the_server_lacks_it(void **state)
{
    (void)state;
    static const struct torch_version *const versions[] = {&torch_2_4, &torch_2_8,
                                                           &torch_2_8_legacy};
    for (size_t i = 0; i < 3; i++) {
        tether_store *store = make_for(versions[i]), *other = dial();
        assert_status(tether_store_barrier(store, "b", 2, 0, NULL), TETHER_ETIMEOUT);
        /* The first caller stays counted. */
        assert_ok(tether_store_barrier(other, "b", 2, LIMIT, err));
        tether_store_release(other);
        tether_store_release(store);
    }
}

static void barrier_uses_server_when_it_has_one(void **state)
{
    (void)state;
    tether_store *store = make_for(&torch_2_11);
    assert_ok(tether_store_barrier(store, "b", 1, LIMIT, err));
    EXPECT("b", "1");
    assert_int_equal(torch_server_unknown_ops(torch), 0);
    tether_store_release(store);
}

static void list_keys_is_not_supported_when_the_server_lacks_it(void **state)
{
    (void)state;
    tether_store *store = make_for(&torch_2_8);
    tether_store_keys keys = {NULL, 0};
    tether_error error = {0};
    assert_status(tether_store_list_keys(store, LIMIT, &keys, &error), TETHER_ENOTSUP);
    assert_non_null(strstr(error.message, "2.10"));
    tether_store_release(store);
    store = make_for(&torch_2_11);
    SET("k", "v");
    assert_ok(tether_store_list_keys(store, LIMIT, &keys, err));
    assert_int_equal(keys.count, 1);
    tether_store_keys_fini(&keys);
    tether_store_release(store);
}

static void queues_are_not_supported_when_the_server_lacks_them(void **state)
{
    (void)state;
    static const struct torch_version *const versions[] = {&torch_2_4, &torch_2_8_legacy};
    for (size_t i = 0; i < 2; i++) {
        tether_store *store = make_for(versions[i]);
        tether_buf value = TETHER_BUF_INIT;
        int64_t len;
        tether_error error = {0};
        assert_status(tether_store_queue_push(store, "q", tether_bytes_str("x"), LIMIT, &error),
                      TETHER_ENOTSUP);
        assert_non_null(strstr(error.message, "2.8"));
        assert_status(tether_store_queue_pop(store, "q", LIMIT, &value, NULL), TETHER_ENOTSUP);
        assert_status(tether_store_queue_pop(store, "q", 0, &value, NULL), TETHER_ENOTSUP);
        assert_status(tether_store_queue_len(store, "q", LIMIT, &len, NULL), TETHER_ENOTSUP);
        SET("k", "v"); /* and the store is still usable */
        EXPECT("k", "v");
        tether_store_release(store);
    }
}

static void missing_operation_is_probed_once(void **state)
{
    (void)state;
    tether_store *store = make_for(&torch_2_4);
    tether_store_keys keys = {NULL, 0};
    int64_t len;
    assert_status(tether_store_list_keys(store, LIMIT, &keys, NULL), TETHER_ENOTSUP);
    assert_status(tether_store_queue_len(store, "q", LIMIT, &len, NULL), TETHER_ENOTSUP);
    assert_ok(tether_store_barrier(store, "b", 1, LIMIT, err));
    int sent = torch_server_unknown_ops(torch);
    /* Three PINGs of our client, and each operation with its probe. */
    assert_in_range(sent, 3, 3 + 2 * 3);
    for (int i = 0; i < 5; i++) {
        assert_status(tether_store_list_keys(store, LIMIT, &keys, NULL), TETHER_ENOTSUP);
        assert_status(tether_store_queue_len(store, "q", LIMIT, &len, NULL), TETHER_ENOTSUP);
        assert_status(tether_store_queue_push(store, "q", tether_bytes_str("x"), LIMIT, NULL),
                      TETHER_ENOTSUP);
        assert_ok(tether_store_barrier(store, "b", 1, LIMIT, err));
    }
    assert_int_equal(torch_server_unknown_ops(torch), sent);
    int64_t count = 0;
    assert_ok(tether_store_num_keys(store, LIMIT, &count, err));
    assert_int_equal(count, 2); /* of the emulated barrier: the probe has deleted its key */
    tether_store_release(store);
}

static void calls_fail_when_server_is_gone(void **state)
{
    (void)state;
    tether_store *store = make_for(&torch_2_11);
    stop_all(NULL);
    tether_store_keys keys = {NULL, 0};
    int64_t len;
    assert_status(tether_store_list_keys(store, LIMIT, &keys, NULL), TETHER_EUNAVAILABLE);
    assert_status(tether_store_queue_len(store, "q", LIMIT, &len, NULL), TETHER_EUNAVAILABLE);
    assert_status(tether_store_barrier(store, "b", 1, LIMIT, NULL), TETHER_EUNAVAILABLE);
    tether_store_release(store);
}

int main(void)
{
    static const struct {
        const struct torch_version *version;
        struct tether_test_store_kind kind;
    } kinds[] = {
        {&torch_2_1, {.name = "tcp on PyTorch 2.1"}},
        {&torch_2_4, {.name = "tcp on PyTorch 2.4"}},
        {&torch_2_8, {.name = "tcp on PyTorch 2.8", .queues = true, .no_list_keys = true}},
        {&torch_2_8_legacy, {.name = "tcp on PyTorch 2.8 without libuv"}},
        {&torch_2_11, {.name = "tcp on PyTorch 2.11", .queues = true}},
    };
    int failed = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        struct tether_test_store_kind kind = kinds[i].kind;
        kind.make = make;
        kind.join = join;
        kind.extended = kind.torch_wire = true;
        version = kinds[i].version;
        failed += tether_test_store_suite(&kind);
        stop_all(NULL);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(barrier_is_emulated_when_the_server_lacks_it),
        cmocka_unit_test(barrier_uses_server_when_it_has_one),
        cmocka_unit_test(list_keys_is_not_supported_when_the_server_lacks_it),
        cmocka_unit_test(queues_are_not_supported_when_the_server_lacks_them),
        cmocka_unit_test(missing_operation_is_probed_once),
        cmocka_unit_test(calls_fail_when_server_is_gone),
    };
    return failed + cmocka_run_group_tests(tests, NULL, stop_all);
}
