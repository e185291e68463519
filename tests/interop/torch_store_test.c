/* The TCP store and a real PyTorch (Debian's python3-torch, 1.13): their client on our server,
 * their process group on our server, our client on theirs. torch_store.py is their side. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/store_tcp.h"
#include "tests/lib/child.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"

#define LIMIT TETHER_TEST_LIMIT_MS
#define PYTHON "/usr/bin/python3" /* Debian's, which has Debian's packages */
#define SCRIPT "tests/interop/torch_store.py"
#define RANKS 3

static void show_and_fail(const struct tether_test_child *child)
{
    char *output = tether_test_child_output(child);
    print_error("%s\n", output);
    free(output);
    fail_msg("PyTorch's side ended with %s", tether_test_child_result(child));
}

static void expect_passed(struct tether_test_child *child)
{
    if (!tether_test_child_wait(child, LIMIT) || !tether_test_child_ok(child))
        show_and_fail(child);
    tether_test_child_free(child);
}

#define FIND_TORCH                                 \
    "import importlib.util as i\n"                 \
    "found = i.find_spec('torch') is not None\n"   \
    "print('installed' if found else 'missing')\n" \
    "if found:\n"                                  \
    "    import torch.distributed\n"

/* Skips the test where PyTorch is not installed; `./dev interop` installs it. An installed PyTorch
 * that cannot be imported fails the test. */
static void need_torch(void)
{
    struct tether_test_child *child =
        tether_test_child_start((const char *const[]){PYTHON, "-c", FIND_TORCH, NULL});
    if (!tether_test_child_wait(child, LIMIT) || !tether_test_child_ok(child))
        show_and_fail(child);
    char *output = tether_test_child_output(child);
    bool missing = strstr(output, "missing") != NULL;
    free(output);
    tether_test_child_free(child);
    if (missing)
        skip();
}

static tether_store_server *serve(char port[8])
{
    tether_store_server *server = NULL;
    assert_int_equal(tether_store_server_new(TETHER_STORE_SERVER_OPTS(0), &server, NULL),
                     TETHER_OK);
    snprintf(port, 8, "%d", tether_store_server_port(server));
    return server;
}

static void test_their_client_every_call(void **state)
{
    (void)state;
    need_torch();
    char port[8];
    tether_store_server *server = serve(port);
    expect_passed(
        tether_test_child_start((const char *const[]){PYTHON, SCRIPT, "client", port, NULL}));
    struct tether_store_server_stats stats;
    tether_store_server_stats(server, &stats);
    assert_int_equal(stats.malformed, 0);
    assert_int_equal(stats.stalled, 0);
    tether_store_server_release(server);
}

static void test_their_process_group(void **state)
{
    (void)state;
    need_torch();
    char port[8], size[8], rank[8];
    tether_store_server *server = serve(port);
    struct tether_test_child *ranks[RANKS];
    snprintf(size, sizeof size, "%d", RANKS);
    for (int i = 0; i < RANKS; i++) {
        snprintf(rank, sizeof rank, "%d", i);
        ranks[i] = tether_test_child_start(
            (const char *const[]){PYTHON, SCRIPT, "rank", port, rank, size, NULL});
    }
    for (int i = 0; i < RANKS; i++)
        expect_passed(ranks[i]);
    tether_store_server_release(server);
}

/* ---- Our client on their server ------------------------------------------------------------- */

static struct tether_test_child *their_server(int *ret_port)
{
    struct tether_test_child *child =
        tether_test_child_start((const char *const[]){PYTHON, SCRIPT, "serve", NULL});
    *ret_port = 0;
    for (int tries = 0; *ret_port == 0; tries++) {
        char *output = tether_test_child_output(child);
        if (strchr(output, '\n'))
            sscanf(output, "port %d", ret_port);
        free(output);
        if (tether_test_child_wait(child, 0) || !tether_test_nap(tries))
            show_and_fail(child);
    }
    return child;
}

static void set(tether_store *store, const char *key, tether_bytes value)
{
    tether_error error = {0};
    if (tether_store_set(store, key, value, LIMIT, &error) != TETHER_OK)
        fail_msg("%s", error.message);
}

static void expect(tether_store *store, const char *key, tether_bytes expected)
{
    tether_error error = {0};
    tether_buf value = TETHER_BUF_INIT;
    if (tether_store_get(store, key, LIMIT, &value, &error) != TETHER_OK)
        fail_msg("%s", error.message);
    assert_true(tether_bytes_equal(tether_buf_bytes(&value), expected));
    tether_buf_fini(&value);
}

static void add(tether_store *store, const char *key, int64_t delta, int64_t expected)
{
    int64_t sum = 0;
    assert_int_equal(tether_store_add(store, key, delta, LIMIT, &sum, NULL), TETHER_OK);
    assert_int_equal(sum, expected);
}

static void compare_set(tether_store *store,
                        const char *expected,
                        const char *desired,
                        bool swaps,
                        const char *answer)
{
    bool swapped = !swaps;
    tether_buf value = TETHER_BUF_INIT;
    assert_int_equal(
        tether_store_compare_set(store, "cas", tether_bytes_str(expected),
                                 tether_bytes_str(desired), LIMIT, &swapped, &value, NULL),
        TETHER_OK);
    assert_int_equal(swapped, swaps);
    assert_string_equal(value.data, answer);
    tether_buf_fini(&value);
}

static void test_our_client_every_call(void **state)
{
    (void)state;
    need_torch();
    int port;
    struct tether_test_child *theirs = their_server(&port);
    tether_store *store = NULL;
    tether_error error = {0};
    if (tether_store_tcp_new(TETHER_STORE_TCP_OPTS(.port = port, .timeout_ms = LIMIT,
                                                   .dialect = TETHER_STORE_DIALECT_L0),
                             &store, &error) != TETHER_OK)
        fail_msg("%s", error.message);
    size_t size = (size_t)9 << 20;
    char *large = malloc(size);
    for (size_t i = 0; i < size; i++)
        large[i] = (char)(i >> 8);

    set(store, "key", tether_bytes_of("\0\xff any bytes", 12));
    expect(store, "key", tether_bytes_of("\0\xff any bytes", 12));
    set(store, "large", tether_bytes_of(large, size));
    expect(store, "large", tether_bytes_of(large, size));
    free(large);
    add(store, "n", 5, 5);
    add(store, "n", -7, -2);
    compare_set(store, "wrong", "x", false, "wrong");
    compare_set(store, "", "one", true, "one");
    compare_set(store, "", "one", false, "one"); /* it was the desired value before */
    compare_set(store, "one", "two", true, "two");

    bool flag = false;
    const char *keys[] = {"key", "n"}, *never = "never";
    assert_int_equal(tether_store_check(store, keys, 2, LIMIT, &flag, NULL), TETHER_OK);
    assert_true(flag);
    assert_int_equal(tether_store_check(store, &never, 1, LIMIT, &flag, NULL), TETHER_OK);
    assert_false(flag);
    assert_int_equal(tether_store_wait(store, keys, 2, LIMIT, NULL), TETHER_OK);
    assert_int_equal(tether_store_wait(store, &never, 1, 0, NULL), TETHER_ETIMEOUT);
    assert_int_equal(tether_store_wait(store, &never, 1, 200, NULL), TETHER_ETIMEOUT);
    tether_buf value = TETHER_BUF_INIT;
    assert_int_equal(tether_store_get(store, "never", 200, &value, NULL), TETHER_ETIMEOUT);
    assert_int_equal(tether_store_try_get(store, "never", LIMIT, &value, NULL), TETHER_ENOTFOUND);
    set(store, "text", tether_bytes_str("no number"));
    assert_int_equal(tether_store_add(store, "text", 1, LIMIT, NULL, NULL), TETHER_EINVAL);

    int64_t count = 0;
    assert_int_equal(tether_store_num_keys(store, LIMIT, &count, NULL), TETHER_OK);
    assert_int_equal(count, 5); /* and not 768: a wait that is given up leaves nothing astray */
    assert_int_equal(tether_store_delete(store, "key", LIMIT, &flag, NULL), TETHER_OK);
    assert_true(flag);
    assert_int_equal(tether_store_delete(store, "key", LIMIT, &flag, NULL), TETHER_OK);
    assert_false(flag);

    /* Operations that their version lacks are emulated. */
    assert_false(tether_store_has_extended_api(store));
    tether_bytes two[] = {tether_bytes_str("1"), tether_bytes_str("2")};
    tether_buf got[2] = {{0}};
    assert_int_equal(tether_store_multi_set(store, keys, two, 2, LIMIT, NULL), TETHER_OK);
    assert_int_equal(tether_store_append(store, "key", two[1], LIMIT, NULL), TETHER_OK);
    assert_int_equal(tether_store_multi_get(store, keys, 2, LIMIT, got, NULL), TETHER_OK);
    assert_string_equal(got[0].data, "12");
    assert_string_equal(got[1].data, "2");
    assert_int_equal(tether_store_barrier(store, "barrier", 1, LIMIT, NULL), TETHER_OK);
    assert_int_equal(tether_store_queue_len(store, "q", LIMIT, &count, NULL), TETHER_ENOTSUP);
    for (int i = 0; i < 2; i++)
        tether_buf_fini(&got[i]);
    tether_buf_fini(&value);
    tether_store_release(store);
    tether_test_child_free(theirs);
}

/* A client that expects a later version gets an error in time, and does not block their server. */
static void test_their_server_is_too_old(void **state)
{
    (void)state;
    need_torch();
    int port;
    struct tether_test_child *theirs = their_server(&port);
    tether_store *store = NULL;
    tether_error error = {0};
    assert_int_equal(tether_store_tcp_new(TETHER_STORE_TCP_OPTS(.port = port, .timeout_ms = 1000),
                                          &store, &error),
                     TETHER_ETIMEOUT);
    assert_non_null(strstr(error.message, "L0"));
    assert_int_equal(tether_store_tcp_new(TETHER_STORE_TCP_OPTS(.port = port, .timeout_ms = LIMIT,
                                                                .dialect = TETHER_STORE_DIALECT_L0),
                                          &store, NULL),
                     TETHER_OK);
    add(store, "n", 1, 1);
    tether_store_release(store);
    tether_test_child_free(theirs);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_their_client_every_call),
        cmocka_unit_test(test_their_process_group),
        cmocka_unit_test(test_our_client_every_call),
        cmocka_unit_test(test_their_server_is_too_old),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
