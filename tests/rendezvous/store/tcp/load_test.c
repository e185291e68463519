/* The TCP store: limits of its server, large values, many threads, and failed allocations. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "rendezvous/store_tcp.h"
#include "tests/lib/heap.h"
#include "tests/rendezvous/store/suite_internal.h"
#include "tests/rendezvous/store/tcp/served.h"

#define LIMIT TETHER_TEST_LIMIT_MS

/* ---- Limits --------------------------------------------------------------------------------- */

/* The client checks the limits of its server before it sends. */
static void client_checks_limits_of_server(void **state)
{
    (void)state;
    tether_store_server *server = NULL;
    assert_ok(tether_store_server_new(TETHER_STORE_SERVER_OPTS(.limits = {.max_key = 8,
                                                                          .max_value = 100,
                                                                          .max_keys = 2,
                                                                          .max_message = 300}),
                                      &server, err));
    tether_store *store = store_dial("127.0.0.1", tether_store_server_port(server));
    char bytes[101] = "";
    tether_bytes most = tether_bytes_of(bytes, 100), more = tether_bytes_of(bytes, 101);
    const char *keys[] = {"a", "b", "c"};
    tether_bytes values[] = {most, most, most};
    tether_buf got[3] = {{0}};
    bool ready;
    assert_ok(tether_store_set(store, "12345678", most, LIMIT, err));
    tether_error error = {0};
    assert_status(tether_store_set(store, "123456789", most, LIMIT, &error), TETHER_ETOOBIG);
    assert_non_null(strstr(error.message, "8 bytes"));
    assert_status(tether_store_set(store, "k", more, LIMIT, &error), TETHER_ETOOBIG);
    assert_non_null(strstr(error.message, "101 bytes"));
    assert_non_null(strstr(error.message, "100"));
    assert_status(tether_store_append(store, "12345678", tether_bytes_str("x"), LIMIT, NULL),
                  TETHER_ETOOBIG); /* the value of both appends is too long, which only the server
                                      can detect */
    assert_status(tether_store_queue_push(store, "q", more, LIMIT, NULL), TETHER_ETOOBIG);
    assert_status(tether_store_compare_set(store, "k", more, most, LIMIT, NULL, NULL, NULL),
                  TETHER_ETOOBIG);
    assert_status(tether_store_multi_set(store, keys, values, 3, LIMIT, NULL), TETHER_ETOOBIG);
    assert_status(tether_store_check(store, keys, 3, LIMIT, &ready, NULL), TETHER_ETOOBIG);
    assert_ok(tether_store_multi_set(store, keys, values, 2, LIMIT, err));
    assert_ok(tether_store_multi_get(store, keys, 2, LIMIT, got, err));
    assert_int_equal(store_stats_of(server).malformed, 0); /* the server has closed no connection */
    assert_int_equal(store_stats_of(server).accepted, 1);
    for (int i = 0; i < 3; i++)
        tether_buf_fini(&got[i]);
    tether_store_release(store);
    tether_store_server_release(server);
}

/* The server answers with an error when a reply would be too long. */
static void server_bounds_size_of_replies(void **state)
{
    (void)state;
    tether_store_server *server = NULL;
    assert_ok(tether_store_server_new(TETHER_STORE_SERVER_OPTS(.limits = {.max_message = 1000}),
                                      &server, err));
    tether_store *store = store_dial("127.0.0.1", tether_store_server_port(server));
    char bytes[400] = "";
    tether_bytes value = tether_bytes_of(bytes, sizeof bytes);
    const char *keys[] = {"a", "b", "c"};
    tether_buf got[3] = {{0}};
    tether_store_keys listed = {NULL, 0};
    for (int i = 0; i < 3; i++)
        assert_ok(tether_store_set(store, keys[i], value, LIMIT, err));
    assert_status(tether_store_multi_get(store, keys, 3, LIMIT, got, NULL), TETHER_ETOOBIG);
    assert_ok(tether_store_multi_get(store, keys, 2, LIMIT, got, err));
    for (int i = 0; i < 100; i++) {
        char key[16];
        snprintf(key, sizeof key, "key%d", i);
        SET(key, "");
    }
    assert_status(tether_store_list_keys(store, LIMIT, &listed, NULL), TETHER_ETOOBIG);
    for (int i = 0; i < 3; i++)
        tether_buf_fini(&got[i]);
    tether_store_release(store);
    tether_store_server_release(server);
}

/* Large values are complete in both directions, although the kernel splits them. */
static void large_values_pass_unchanged(void **state)
{
    (void)state;
    tether_store *store = NULL;
    assert_ok(tether_store_tcp_new(TETHER_STORE_TCP_OPTS(.is_host = true), &store, err));
    size_t size = (size_t)20 << 20;
    char *bytes = malloc(size);
    for (size_t i = 0; i < size; i++)
        bytes[i] = (char)(i * 7 >> 4);
    static const size_t sizes[] = {8191, 8192, 16383, 16384, 65536, 1 << 20, (size_t)20 << 20};
    const char *keys[] = {"a", "b", "c", "d", "e", "f"};
    tether_bytes values[6];
    tether_buf got[6] = {{0}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        tether_bytes value = tether_bytes_of(bytes, sizes[i]);
        bool swapped = false;
        assert_ok(tether_store_set(store, "k", value, LIMIT, err));
        assert_ok(tether_store_get(store, "k", LIMIT, &got[0], err));
        assert_true(tether_bytes_equal(tether_buf_bytes(&got[0]), value));
        assert_ok(tether_store_compare_set(store, "k", value, tether_bytes_of(bytes + 1, 9000),
                                           LIMIT, &swapped, &got[1], err));
        assert_true(swapped);
        assert_int_equal(got[1].len, 9000);
    }
    for (int i = 0; i < 6; i++) /* more large values than a request can borrow */
        values[i] = tether_bytes_of(bytes + i, 100000);
    assert_ok(tether_store_multi_set(store, keys, values, 6, LIMIT, err));
    assert_ok(tether_store_multi_get(store, keys, 6, LIMIT, got, err));
    for (int i = 0; i < 6; i++) {
        assert_true(tether_bytes_equal(tether_buf_bytes(&got[i]), values[i]));
        tether_buf_fini(&got[i]);
    }
    free(bytes);
    tether_store_release(store);
}

/* ---- Threads -------------------------------------------------------------------------------- */

#define THREADS 40
#define ROUNDS 50

static void *work_thread(void *arg)
{
    struct waiting *worker = arg;
    for (int i = 0; i < ROUNDS && worker->status == TETHER_OK; i++) {
        char key[32];
        int64_t sum;
        tether_buf value = TETHER_BUF_INIT;
        snprintf(key, sizeof key, "%p.%d", arg, i);
        worker->status = tether_store_set(worker->store, key, tether_bytes_str(key), LIMIT, NULL);
        if (worker->status == TETHER_OK)
            worker->status = tether_store_get(worker->store, key, LIMIT, &value, NULL);
        if (worker->status == TETHER_OK && strcmp(value.data, key) != 0)
            worker->status = TETHER_ECORRUPT; /* the reply of another thread */
        if (worker->status == TETHER_OK)
            worker->status = tether_store_add(worker->store, "sum", 1, LIMIT, &sum, NULL);
        tether_buf_fini(&value);
    }
    return NULL;
}

/* Many threads use one store: each gets its own replies, and few idle connections stay open. */
static void many_threads_share_one_store(void **state)
{
    (void)state;
    tether_store_server *server = store_serve_at(0);
    tether_store *store = store_dial("127.0.0.1", tether_store_server_port(server));
    struct waiting workers[THREADS] = {{0}};
    for (int i = 0; i < THREADS; i++) {
        workers[i].store = store;
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work_thread, &workers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(workers[i].thread, NULL);
    for (int i = 0; i < THREADS; i++)
        assert_status(workers[i].status, TETHER_OK);
    ADD("sum", 0, THREADS * ROUNDS);
    assert_eventually(store_stats_of(server).clients <= 16);
    tether_store_release(store);
    assert_eventually(store_stats_of(server).clients == 0);
    assert_int_equal(store_stats_of(server).buffered_bytes, 0);
    tether_store_server_release(server);
}

/* A single thread uses one connection for all calls, also after timeouts. */
static void one_thread_uses_one_connection(void **state)
{
    (void)state;
    tether_store_server *server = store_serve_at(0);
    tether_store *store = store_dial("127.0.0.1", tether_store_server_port(server));
    tether_buf value = TETHER_BUF_INIT;
    const char *key = "absent";
    for (int i = 0; i < 20; i++) {
        SET("k", "v");
        EXPECT("k", "v");
        assert_status(tether_store_get(store, key, i % 3, &value, NULL), TETHER_ETIMEOUT);
        assert_status(tether_store_wait(store, &key, 1, i % 3, NULL), TETHER_ETIMEOUT);
        assert_status(tether_store_barrier(store, "b", 1000, i % 3, NULL), TETHER_ETIMEOUT);
        assert_status(tether_store_add(store, "k", 1, LIMIT, NULL, NULL), TETHER_EINVAL);
    }
    assert_int_equal(store_stats_of(server).accepted, 1);
    assert_int_equal(store_stats_of(server).waiting, 0);
    tether_store_release(store);
    tether_store_server_release(server);
}

/* ---- No memory ------------------------------------------------------------------------------ */

/* Uses a host and a client. The server also runs out of memory, which its clients see as a closed
 * connection or a timeout. So any error is fine, as long as no memory is leaked. */
static tether_status use_host_and_client(void)
{
    tether_store *store = NULL;
    tether_buf values[2] = {{0}};
    tether_store_keys listed = {NULL, 0};
    const char *keys[] = {"a", "b"};
    tether_bytes two[] = {tether_bytes_str("1"), tether_bytes_str("2")};
    tether_status st =
        tether_store_tcp_new(TETHER_STORE_TCP_OPTS(.is_host = true, .timeout_ms = 2000,
                                                   .world_size = 1, .wait_for_workers = true),
                             &store, NULL);
    if (st == TETHER_OK)
        st = tether_store_multi_set(store, keys, two, 2, TETHER_DEFAULT_MS, NULL);
    if (st == TETHER_OK)
        st = tether_store_multi_get(store, keys, 2, TETHER_DEFAULT_MS, values, NULL);
    if (st == TETHER_OK)
        st = tether_store_append(store, "a", two[0], TETHER_DEFAULT_MS, NULL);
    if (st == TETHER_OK)
        st = tether_store_add(store, "n", 1, TETHER_DEFAULT_MS, NULL, NULL);
    if (st == TETHER_OK)
        st = tether_store_queue_push(store, "q", two[0], TETHER_DEFAULT_MS, NULL);
    if (st == TETHER_OK)
        st = tether_store_queue_pop(store, "q", TETHER_DEFAULT_MS, &values[0], NULL);
    if (st == TETHER_OK)
        st = tether_store_list_keys(store, TETHER_DEFAULT_MS, &listed, NULL);
    if (st == TETHER_OK &&
        tether_store_wait(store, (const char *[]){"x", "y"}, 2, 1, NULL) != TETHER_ETIMEOUT)
        st = TETHER_ENOMEM;
    tether_store_keys_fini(&listed);
    tether_buf_fini(&values[0]);
    tether_buf_fini(&values[1]);
    tether_store_release(store);
    return st;
}

static void tcp_store_reports_failed_allocations(void **state)
{
    (void)state;
    for (int n = 0;; n++) {
        tether_test_heap_fail_at(n);
        tether_status st = use_host_and_client();
        bool fired = tether_test_heap_fired();
        assert_int_equal(tether_test_heap_live(), 0);
        if (!fired) {
            assert_status(st, TETHER_OK);
            break;
        }
    }
    tether_test_heap_fail_never();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(client_checks_limits_of_server),
        cmocka_unit_test(server_bounds_size_of_replies),
        cmocka_unit_test(large_values_pass_unchanged),
        cmocka_unit_test(many_threads_share_one_store),
        cmocka_unit_test(one_thread_uses_one_connection),
        cmocka_unit_test(tcp_store_reports_failed_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
