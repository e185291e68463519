/* The TCP store's client with scripted servers: PyTorch's of several versions, ours, and servers
 * that are no store. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "rendezvous/store_tcp.h"
#include "tests/rendezvous/store/suite_internal.h"
#include "tests/rendezvous/store/tcp/fake_server.h"
#include "tests/rendezvous/store/tcp/raw.h"

#define LIMIT TETHER_TEST_LIMIT_MS
#define START(script) fake_start(script, sizeof script / sizeof script[0])

/* The first bytes of our client: VALIDATE, and a PING that asks whether the server is ours. */
#define HELLO VALIDATE "\x0dTeth"

/* The answer of our server: its limits of key, value, keys and message. */
#define WELCOME          \
    "Ther"               \
    "\0\x20\0\0\0\0\0\0" \
    "\0\0\0\x04\0\0\0\0" \
    "\0\0\x02\0\0\0\0\0" \
    "\0\0\0\x10\0\0\0\0"

/* Our client sends this after a request that PyTorch does not answer: a PING with the magic number,
 * which the server echoes. */
#define FENCE "\x0d\xce\xf7\x85\x3c"
#define ECHO "\xce\xf7\x85\x3c"

static tether_store *dial(struct fake_server *fake, tether_store_dialect dialect)
{
    tether_store *store = NULL;
    assert_ok(tether_store_tcp_new(
        TETHER_STORE_TCP_OPTS(.port = fake_port(fake), .dialect = dialect, .timeout_ms = LIMIT),
        &store, err));
    return store;
}

static void expect_number(tether_status st, int64_t number, int64_t expected)
{
    assert_status(st, TETHER_OK);
    assert_int_equal(number, expected);
}

/* ---- PyTorch -------------------------------------------------------------------------------- */

static void client_speaks_v_when_server_is_pytorch_2_5(void **state)
{
    (void)state;
    static const struct fake_step script[] = {
        FAKE(HELLO, "Teth"), /* 2.5 and later echo the nonce */
        FAKE("\x01" U64_2 "/k" U64_1 "v" FENCE, ECHO),
        FAKE("\x06" U64_1 U64_2 "/k", "\0"), /* get: WAIT ... */
        FAKE("\x03" U64_2 "/k", U64_1 "v"),  /* ... and GET */
        FAKE("\x04" U64_2 "/n" U64_MINUS_7, U64_MINUS_7),
        FAKE("\x05" U64_2 U64_2 "/k" U64_2 "/n", "\1"),
        FAKE("\x07", U64_3),
        FAKE("\x08" U64_2 "/k", U64_1),
        FAKE("\x09" U64_2 "/a" U64_2 "po" FENCE, ECHO),
        FAKE("\x06" U64_2 U64_2 "/a" U64_2 "/k", "\0"),
        FAKE("\x0a" U64_2 U64_2 "/a" U64_2 "/k", U64_2 "po" U64_0),
        FAKE("\x0b" U64_2 U64_2 "/p" U64_1 "1" U64_2 "/q" U64_0 FENCE, ECHO),
        FAKE("\x0e" U64_2 "/l" U64_1 "1" FENCE, ECHO),
        FAKE("\x10" U64_2 "/l", U64_1),
        FAKE("\x0f" U64_2 "/l", U64_0),           /* pop: another client was faster, */
        FAKE("\x06" U64_1 U64_2 "/l", "\0"),      /* so it waits, */
        FAKE("\x0f" U64_2 "/l", U64_1 U64_1 "1"), /* and the retry gets the next element */
        FAKE("\x11", U64_2 U64_2 "/k" U64_5 "init/"),
        FAKE("\x12" U64_2 "/b" U64_3, "\0"),
    };
    struct fake_server *fake = START(script);
    tether_store *store = dial(fake, TETHER_STORE_DIALECT_AUTO);
    assert_int_equal(tether_store_tcp_dialect(store), TETHER_STORE_DIALECT_V);
    SET("k", "v");
    EXPECT("k", "v");
    ADD("n", -7, -7);
    const char *two[] = {"k", "n"};
    bool ready = true;
    assert_ok(tether_store_check(store, two, 2, LIMIT, &ready, err));
    assert_false(ready);
    int64_t number = 0;
    tether_status st = tether_store_num_keys(store, LIMIT, &number, NULL);
    expect_number(st, number, 3);
    bool deleted = false;
    assert_ok(tether_store_delete(store, "k", LIMIT, &deleted, err));
    assert_true(deleted);
    assert_ok(tether_store_append(store, "a", tether_bytes_str("po"), LIMIT, err));
    tether_buf values[2] = {{0}};
    assert_ok(tether_store_multi_get(store, (const char *[]){"a", "k"}, 2, LIMIT, values, err));
    assert_string_equal(values[0].data, "po");
    assert_string_equal(values[1].data, "");
    assert_ok(tether_store_multi_set(store, (const char *[]){"p", "q"},
                                     (tether_bytes[]){tether_bytes_str("1"), tether_bytes_str("")},
                                     2, LIMIT, err));
    assert_ok(tether_store_queue_push(store, "l", tether_bytes_str("1"), LIMIT, err));
    st = tether_store_queue_len(store, "l", LIMIT, &number, NULL);
    expect_number(st, number, 1);
    assert_ok(tether_store_queue_pop(store, "l", LIMIT, &values[0], err));
    assert_string_equal(values[0].data, "1");
    tether_store_keys keys = {NULL, 0};
    assert_ok(tether_store_list_keys(store, LIMIT, &keys, err));
    assert_int_equal(keys.count, 1); /* "init/" is not a key of a user */
    assert_string_equal(keys.keys[0].data, "k");
    tether_store_keys_fini(&keys);
    assert_ok(tether_store_barrier(store, "b", 3, LIMIT, err));
    tether_buf_fini(&values[0]);
    tether_buf_fini(&values[1]);
    tether_store_release(store);
    fake_end(fake);
}

/* The reply does not tell whether compare_set has swapped, so the client reads the value first. */
static void compare_set_reads_the_value_first_in_dialect_v(void **state)
{
    (void)state;
    static const struct fake_step script[] = {
        FAKE(HELLO, "Teth"),
        FAKE("\x06" U64_1 U64_2 "/k\x0c", "\1"), /* reads first: the key is absent */
        FAKE("\x02" U64_2 "/k" U64_0 U64_1 "v", U64_1 "v"),
        FAKE("\x06" U64_1 U64_2 "/k\x0c", "\0\1"), /* a look: there, */
        FAKE("\x03" U64_2 "/k", U64_1 "v"),        /* the value is the desired one already */
    };
    struct fake_server *fake = START(script);
    tether_store *store = dial(fake, TETHER_STORE_DIALECT_AUTO);
    tether_buf value = TETHER_BUF_INIT;
    for (int i = 0; i < 2; i++) {
        bool swapped = i;
        assert_ok(tether_store_compare_set(store, "k", tether_bytes_str(""), tether_bytes_str("v"),
                                           LIMIT, &swapped, &value, err));
        assert_int_equal(swapped, i == 0);
        assert_string_equal(value.data, "v");
    }
    tether_buf_fini(&value);
    tether_store_release(store);
    fake_end(fake);
}

/* A wait that times out is canceled, and the connection is used again. */
static void connection_is_kept_when_wait_times_out_in_dialect_v(void **state)
{
    (void)state;
    static const struct fake_step script[] = {
        FAKE(HELLO, "Teth"),
        FAKE("\x06" U64_1 U64_2 "/x", ""),
        FAKE("\x0c", "\1"),
        FAKE("\x06" U64_1 U64_2 "/x", ""),
        FAKE("\x0c", "\0\1"), /* the key came after the cancel was sent */
        FAKE("\x12" U64_2 "/b" U64_2, ""),
        FAKE("\x0c", "\1"),
        FAKE("\x07", U64_1),
    };
    struct fake_server *fake = START(script);
    tether_store *store = dial(fake, TETHER_STORE_DIALECT_AUTO);
    const char *key = "x";
    assert_status(tether_store_wait(store, &key, 1, 20, NULL), TETHER_ETIMEOUT);
    assert_ok(tether_store_wait(store, &key, 1, 20, err));
    assert_status(tether_store_barrier(store, "b", 2, 20, NULL), TETHER_ETIMEOUT);
    int64_t number = 0;
    assert_ok(tether_store_num_keys(store, LIMIT, &number, err));
    tether_store_release(store);
    fake_end(fake);
}

/* 2.2 to 2.4 close the connection on a PING, and accept no CHECK of no keys. */
static void client_sends_no_ping_when_server_is_pytorch_2_2(void **state)
{
    (void)state;
#define CHECK_INIT "\x05" U64_1 U64_5 "init/"
    static const struct fake_step script[] = {
        FAKE(HELLO, ""),
        FAKE_CLOSE,
        FAKE(VALIDATE CHECK_INIT, "\1"),
        FAKE("\x01" U64_2 "/k" U64_1 "v" CHECK_INIT, "\1"), /* a fence that these versions know */
        FAKE("\x07", U64_1),
    };
    struct fake_server *fake = START(script);
    tether_store *store = dial(fake, TETHER_STORE_DIALECT_AUTO);
    assert_int_equal(tether_store_tcp_dialect(store), TETHER_STORE_DIALECT_V);
    SET("k", "v");
    int64_t number = 0;
    assert_ok(tether_store_num_keys(store, LIMIT, &number, err));
    tether_store_release(store);
    fake_end(fake);
}

static void client_speaks_l0_when_told_to(void **state)
{
    (void)state;
#define CHECK_INIT_LEGACY "\x04" U64_1 U64_5 "init/"
    static const struct fake_step script[] = {
        FAKE("\x00" U64_2 "/k" U64_2 "v1" CHECK_INIT_LEGACY, "\1"),
        FAKE("\x05" U64_1 U64_2 "/k", "\0"),
        FAKE("\x02" U64_2 "/k", U64_2 "v1"),
        FAKE("\x03" U64_2 "/n" U64_MINUS_7, U64_MINUS_2),
        FAKE("\x08" U64_2 "/k", U64_0),
        FAKE("\x04" U64_1 U64_2 "/x", "\1"), /* a poll can only CHECK */
        FAKE("\x06", U64_2),
    };
    struct fake_server *fake = START(script);
    tether_store *store = dial(fake, TETHER_STORE_DIALECT_L0);
    assert_false(tether_store_has_extended_api(store));
    SET("k", "v1");
    EXPECT("k", "v1");
    ADD("n", -7, -2);
    bool deleted = true;
    assert_ok(tether_store_delete(store, "k", LIMIT, &deleted, err));
    assert_false(deleted);
    const char *key = "x";
    assert_status(tether_store_wait(store, &key, 1, 0, NULL), TETHER_ETIMEOUT);
    int64_t number = 0;
    assert_ok(tether_store_num_keys(store, LIMIT, &number, err));
    tether_store_release(store);
    fake_end(fake);
}

/* L0 can't cancel a wait, so the client closes the connection, and the next call opens a new
 * one. */
static void connection_is_closed_when_wait_times_out_in_dialect_l0(void **state)
{
    (void)state;
    static const struct fake_step script[] = {
        FAKE("\x05" U64_1 U64_2 "/x", ""),
        FAKE_AWAIT_CLOSE,
        FAKE("\x06", U64_2),
    };
    struct fake_server *fake = START(script);
    tether_store *store = dial(fake, TETHER_STORE_DIALECT_L0);
    const char *key = "x";
    assert_status(tether_store_wait(store, &key, 1, 20, NULL), TETHER_ETIMEOUT);
    int64_t number = 0;
    assert_ok(tether_store_num_keys(store, LIMIT, &number, err));
    tether_store_release(store);
    fake_end(fake);
}

/* The client knows PyTorch's limits and does not send requests beyond them. */
static void calls_fail_when_arguments_exceed_limits_of_pytorch(void **state)
{
    (void)state;
    static const struct fake_step script[] = {FAKE(HELLO, "Teth"), FAKE("\x07", U64_0)};
    struct fake_server *fake = START(script);
    tether_store *store = dial(fake, TETHER_STORE_DIALECT_AUTO);
    size_t size = ((size_t)8 << 20) + 1;
    char *large = calloc(1, size);
    tether_error error = {0};
    assert_status(tether_store_set(store, "k", tether_bytes_of(large, size), LIMIT, &error),
                  TETHER_ETOOBIG);
    assert_non_null(strstr(error.message, "8388608"));
    memset(large, 'k', TETHER_STORE_MAX_KEY);
    large[TETHER_STORE_MAX_KEY] = '\0'; /* with its "/" one byte longer than PyTorch allows */
    assert_status(tether_store_set(store, large, tether_bytes_str(""), LIMIT, NULL),
                  TETHER_ETOOBIG);
    free(large);
    int64_t number = 0;
    assert_ok(tether_store_num_keys(store, LIMIT, &number, err)); /* still on that connection */
    tether_store_release(store);
    fake_end(fake);
}

/* PyTorch's server refuses an add by closing the connection; the value shows whether it was
 * invalid. */
static void add_explains_failure_when_pytorch_closes_connection(void **state)
{
    (void)state;
    static const struct fake_step script[] = {
        FAKE(HELLO, "Teth"),
        FAKE("\x04" U64_2 "/k" U64_1, ""),
        FAKE_CLOSE,
        FAKE(VALIDATE FENCE, ECHO), /* the client knows the dialect now */
        FAKE("\x06" U64_1 U64_2 "/k\x0c", "\0\1"),
        FAKE("\x03" U64_2 "/k", U64_1 "x"),
    };
    struct fake_server *fake = START(script);
    tether_store *store = dial(fake, TETHER_STORE_DIALECT_AUTO);
    assert_status(tether_store_add(store, "k", 1, LIMIT, NULL, NULL), TETHER_EINVAL);
    tether_store_release(store);
    fake_end(fake);
}

/* ---- Ours ----------------------------------------------------------------------------------- */

static void client_uses_dialect_t_when_server_is_tethers(void **state)
{
    (void)state;
    static const struct fake_step script[] = {
        FAKE(HELLO, WELCOME),
        FAKE("\x01" U64_2 "/k" U64_1 "v", "\0"), /* answered by itself */
        FAKE("\x03" U64_2 "/k", "\0" U64_1 "v"), /* a get is one request */
        FAKE("\x04" U64_2 "/k" U64_1, "\2"),     /* EINVAL, and the connection stays open */
        FAKE("\x02" U64_2 "/k" U64_1 "v" U64_1 "w", "\0\1" U64_1 "w"),
        FAKE("\x02" U64_2 "/k" U64_1 "v" U64_1 "w", "\0\0" U64_1 "w"),
        FAKE("\x0f" U64_2 "/l", "\0" U64_1 "e"), /* so is a pop */
        FAKE("\x0f" U64_2 "/l\x0c", "\6"),       /* a poll: the request and a cancel */
        FAKE("\x03" U64_2 "/k\x0c", "\0" U64_1 "w\6"),
        FAKE("\x03" U64_2 "/x", ""), /* times out, */
        FAKE("\x0c", "\6"),          /* and is canceled */
        FAKE("\x03" U64_2 "/x", ""),
        /* The value came before the cancel took effect, so it counts. */
        FAKE("\x0c", "\0" U64_1 "!\6"),
        FAKE("\x0f" U64_2 "/l", ""),
        /* A popped element counts too, since no other client can get it. */
        FAKE("\x0c", "\0" U64_1 "f\6"),
        /* refused; the cancel has a reply of its own. */
        FAKE("\x0a" U64_2 U64_2 "/a" U64_2 "/b\x0c", "\x0f\6"),
        FAKE("\x07", "\0" U64_1),
    };
    struct fake_server *fake = START(script);
    tether_store *store = dial(fake, TETHER_STORE_DIALECT_AUTO);
    assert_int_equal(tether_store_tcp_dialect(store), TETHER_STORE_DIALECT_TETHER);
    tether_buf value = TETHER_BUF_INIT;
    SET("k", "v");
    EXPECT("k", "v");
    assert_status(tether_store_add(store, "k", 1, LIMIT, NULL, NULL), TETHER_EINVAL);
    for (int i = 0; i < 2; i++) {
        bool swapped = i;
        assert_ok(tether_store_compare_set(store, "k", tether_bytes_str("v"), tether_bytes_str("w"),
                                           LIMIT, &swapped, NULL, err));
        assert_int_equal(swapped, i == 0);
    }
    assert_ok(tether_store_queue_pop(store, "l", LIMIT, &value, err));
    assert_string_equal(value.data, "e");
    assert_status(tether_store_queue_pop(store, "l", 0, &value, NULL), TETHER_ENOTFOUND);
    assert_ok(tether_store_try_get(store, "k", LIMIT, &value, err));
    assert_string_equal(value.data, "w");
    assert_status(tether_store_get(store, "x", 20, &value, NULL), TETHER_ETIMEOUT);
    assert_ok(tether_store_get(store, "x", 20, &value, err));
    assert_string_equal(value.data, "!");
    assert_ok(tether_store_queue_pop(store, "l", 20, &value, err));
    assert_string_equal(value.data, "f");
    tether_buf two[2] = {{0}};
    assert_status(tether_store_multi_get(store, (const char *[]){"a", "b"}, 2, 0, two, NULL),
                  TETHER_ETOOBIG);
    int64_t number = 0;
    assert_ok(tether_store_num_keys(store, LIMIT, &number, err));
    tether_buf_fini(&value);
    tether_store_release(store);
    fake_end(fake);
}

/* ---- Servers that are no store -------------------------------------------------------------- */

static void expect_refusal(const struct fake_step *script,
                           size_t n,
                           tether_store_dialect dialect,
                           tether_status expected)
{
    struct fake_server *fake = fake_start(script, n);
    tether_store *store = NULL;
    tether_error error = {0};
    tether_status st = tether_store_tcp_new(
        TETHER_STORE_TCP_OPTS(.port = fake_port(fake), .dialect = dialect, .timeout_ms = 300),
        &store, &error);
    assert_status(st, expected);
    assert_null(store);
    assert_non_null(strstr(error.message, "127.0.0.1"));
    fake_end(fake);
}

static void new_fails_when_server_is_no_store(void **state)
{
    (void)state;
    static const struct fake_step web[] = {FAKE(HELLO, "HTTP/1.1 400 Bad Request\r\n\r\n")};
    static const struct fake_step mute[] = {FAKE(HELLO, "")};
    static const struct fake_step cut[] = {FAKE(HELLO, "Ther\0\x20")};
    static const struct fake_step torch[] = {FAKE(HELLO, "Teth")};
    expect_refusal(web, 1, TETHER_STORE_DIALECT_AUTO, TETHER_EUNAVAILABLE);
    expect_refusal(mute, 1, TETHER_STORE_DIALECT_AUTO, TETHER_ETIMEOUT);
    expect_refusal(cut, 1, TETHER_STORE_DIALECT_AUTO, TETHER_ETIMEOUT);
    expect_refusal(torch, 1, TETHER_STORE_DIALECT_TETHER, TETHER_ENOTSUP);
}

/* Malformed replies are detected; they cost one connection and little memory. */
static void calls_fail_when_reply_is_malformed(void **state)
{
    (void)state;
    static const struct {
        struct fake_step script[2];
        tether_status expected;
    } table[] = {
        {{FAKE(HELLO, WELCOME), FAKE("\x03" U64_2 "/k", "\0\xff\xff\xff\xff\xff\xff\xff\xff")},
         TETHER_ECORRUPT}, /* a value of unlimited length */
        {{FAKE(HELLO, WELCOME), FAKE("\x03" U64_2 "/k", "\x99")}, TETHER_ECORRUPT},
        {{FAKE(HELLO, WELCOME), FAKE("\x03" U64_2 "/k", "\0" U64_6 "half")}, TETHER_ETIMEOUT},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct fake_server *fake = fake_start(table[i].script, 2);
        tether_store *store = dial(fake, TETHER_STORE_DIALECT_AUTO);
        tether_buf value = TETHER_BUF_INIT;
        assert_status(tether_store_get(store, "k", 100, &value, NULL), table[i].expected);
        assert_null(value.data);
        tether_store_release(store);
        fake_end(fake);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(client_speaks_v_when_server_is_pytorch_2_5),
        cmocka_unit_test(compare_set_reads_the_value_first_in_dialect_v),
        cmocka_unit_test(connection_is_kept_when_wait_times_out_in_dialect_v),
        cmocka_unit_test(client_sends_no_ping_when_server_is_pytorch_2_2),
        cmocka_unit_test(client_speaks_l0_when_told_to),
        cmocka_unit_test(connection_is_closed_when_wait_times_out_in_dialect_l0),
        cmocka_unit_test(calls_fail_when_arguments_exceed_limits_of_pytorch),
        cmocka_unit_test(add_explains_failure_when_pytorch_closes_connection),
        cmocka_unit_test(client_uses_dialect_t_when_server_is_tethers),
        cmocka_unit_test(new_fails_when_server_is_no_store),
        cmocka_unit_test(calls_fail_when_reply_is_malformed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
