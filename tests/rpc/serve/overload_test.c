/* More than there is room for: threads that are all taken, functions that wait for each other, full
 * queues, bytes that do not get through. Calls fail in time and say why; control goes on. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "rpc/lane/lane.h"
#include "rpc/peer/peer.h"
#include "rpc/peer/session.h"
#include "rpc/peer/stream.h"
#include "rpc/wire/slice.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/tcp_proxy.h"
#include "tests/lib/wait.h"
#include "tests/rpc/lib/echo.h"

#define LIMIT TETHER_TEST_LIMIT_MS

/* ---- Two workers ---- */

struct house {
    tether_store *store;
    tether_agent *a, *b;
    struct tether_test_event entered, released; /* of "block" and "block_big" */
    struct tether_test_event left;              /* of "block_big": a result is queued, or refused */
    tether_reply *_Atomic held;
    char folder[32]; /* of b's socket; "": it needs none */
};

/* Holds its thread until the test lets go. */
static tether_status block(void *userdata,
                           const tether_value *arg,
                           tether_value **ret_value,
                           tether_error *reterr)
{
    struct house *house = userdata;
    (void)arg, (void)ret_value, (void)reterr;
    tether_test_event_signal(&house->entered);
    return tether_test_event_wait(&house->released, 1, LIMIT) ? TETHER_OK : TETHER_ETIMEOUT;
}

static void hold(void *userdata, const tether_value *arg, tether_reply *reply)
{
    struct house *house = userdata;
    (void)arg;
    atomic_store(&house->held, reply);
}

/* Calls itself on the other worker, to the depth that its argument says. */
static tether_status nest(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    tether_agent *agent = userdata;
    int depth = atoi(tether_value_str(arg));
    if (depth == 0)
        return tether_value_printf(ret_value, reterr, "bottom");
    tether_value *next = NULL;
    tether_status st = tether_value_printf(&next, reterr, "%d", depth - 1);
    if (st == TETHER_OK)
        st = tether_rpc_sync(agent, strcmp(tether_agent_name(agent), "a") == 0 ? "b" : "a", "nest",
                             next, 1000, ret_value, reterr);
    tether_value_release(next);
    return st;
}

static tether_status big(void *userdata,
                         const tether_value *arg,
                         tether_value **ret_value,
                         tether_error *reterr)
{
    static char bytes[200000];
    (void)userdata, (void)arg;
    return tether_value_new(tether_bytes_of(bytes, sizeof bytes), ret_value, reterr);
}

/* Blocks until the test goes on, then returns a large result. */
static void block_big(void *userdata, const tether_value *arg, tether_reply *reply)
{
    struct house *house = userdata;
    tether_value *value = NULL;
    (void)arg;
    tether_test_event_signal(&house->entered);
    tether_test_event_wait(&house->released, 1, LIMIT);
    assert_int_equal(big(NULL, NULL, &value, NULL), TETHER_OK);
    tether_reply_ok(reply, value);
    tether_value_release(value);
    tether_test_event_signal(&house->left);
}

static tether_agent *start(struct house *house,
                           const char *name,
                           const struct tether_agent_opts *opts)
{
    struct tether_agent_opts own = *opts;
    tether_agent *agent = NULL;
    tether_error err = {0};
    own.store = house->store;
    own.name = name;
    if (tether_agent_new(&own, &agent, &err) ||
        tether_agent_register_inline(agent, "echo", tether_test_echo, NULL, &err) ||
        tether_agent_register(agent, "echo_pooled", tether_test_echo, NULL, &err) ||
        tether_agent_register(agent, "block", block, house, &err) ||
        tether_agent_register(agent, "nest", nest, agent, &err) ||
        tether_agent_register_inline(agent, "big", big, NULL, &err) ||
        tether_agent_register_async(agent, "hold", hold, true, house, &err) ||
        tether_agent_register_async(agent, "block_big", block_big, false, house, &err) ||
        tether_agent_start(agent, &err))
        fail_msg("%s", err.message);
    return agent;
}

static void house_start(struct house *house, const struct tether_agent_opts *opts)
{
    memset(house, 0, sizeof *house);
    assert_int_equal(tether_store_hash_new(&house->store, NULL), TETHER_OK);
    tether_test_event_init(&house->entered);
    tether_test_event_init(&house->released);
    tether_test_event_init(&house->left);
    house->a = start(house, "a", opts);
    house->b = start(house, "b", opts);
}

static void house_stop(struct house *house)
{
    tether_reply *held = atomic_exchange(&house->held, NULL);
    if (held)
        tether_reply_ok(held, NULL);
    tether_agent_release(house->a);
    tether_agent_release(house->b);
    tether_test_event_fini(&house->entered);
    tether_test_event_fini(&house->released);
    tether_test_event_fini(&house->left);
    tether_store_release(house->store);
    char path[64];
    snprintf(path, sizeof path, "%s/b", house->folder);
    if (house->folder[0]) {
        unlink(path); /* gRPC may have done so */
        assert_int_equal(rmdir(house->folder), 0);
    }
}

static tether_value *bytes_of(size_t len)
{
    tether_value *value = NULL;
    char *bytes = calloc(1, len + 1);
    assert_int_equal(tether_value_new(tether_bytes_of(bytes, len), &value, NULL), TETHER_OK);
    free(bytes);
    return value;
}

static void expect(tether_status st, const tether_error *err, tether_status want, const char *words)
{
    if (st != want || (st != TETHER_OK && !strstr(err->message, words)))
        fail_msg("not %s '%s' but %s: %s", tether_status_name(want), words, tether_status_name(st),
                 err->message);
}

static void call(tether_agent *from,
                 const char *to,
                 const char *fn,
                 int timeout_ms,
                 tether_status want,
                 const char *words)
{
    tether_error err = {0};
    expect(tether_rpc_sync(from, to, fn, NULL, timeout_ms, NULL, &err), &err, want, words);
}

static void await_all(tether_future **futures, int n, tether_status want)
{
    for (int i = 0; i < n; i++) {
        tether_error err = {0};
        expect(tether_future_wait(futures[i], LIMIT, NULL, &err), &err, want, "");
        tether_future_release(futures[i]);
    }
}

/* ---- Threads ---- */

/* The lease is shorter than the time for which the pool is full: were pings to wait for a thread,
 * the workers would give each other up. */
static void control_messages_are_handled_when_the_pool_is_full(void **state)
{
    (void)state;
    struct house house;
    tether_future *blocks[4];
    tether_error err = {0};
    house_start(&house, TETHER_AGENT_OPTS(.threads = 2, .lease_ms = 1000));
    for (int i = 0; i < 4; i++) /* two run, two wait */
        blocks[i] = tether_rpc_async(house.a, "b", "block", NULL, -1);
    assert_true(tether_test_event_wait(&house.entered, 2, LIMIT));
    tether_future *held = tether_rpc_async(house.a, "b", "hold", NULL, -1);
    int64_t end = tether__deadline_in(&tether__clock_system, 2500);
    while (tether__clock_now_ns(&tether__clock_system) < end) {
        call(house.a, "b", "echo", LIMIT, TETHER_OK, "");
        call(house.b, "a", "echo_pooled", LIMIT, TETHER_OK, "");
        call(house.a, "b", "echo_pooled", 100, TETHER_ETIMEOUT, "'b'");
        tether_future *late = tether_rpc_async(house.a, "b", "echo_pooled", NULL, 50);
        expect(tether_future_wait(late, LIMIT, NULL, &err), &err, TETHER_ETIMEOUT, "'b'");
        tether_future_release(late);
    }
    assert_false(tether_future_is_done(held)); /* no session has ended */
    tether_test_event_signal(&house.released);
    await_all(blocks, 4, TETHER_OK);
    call(house.a, "b", "echo_pooled", LIMIT, TETHER_OK, "");
    tether_future_cancel(held);
    tether_future_release(held);
    house_stop(&house);
}

/* Depth 4 needs three threads at a, where there are two. */
static void nested_calls_time_out_when_they_use_up_the_pool(void **state)
{
    (void)state;
    struct house house;
    tether_error err = {0};
    tether_value *depth = NULL;
    house_start(&house, TETHER_AGENT_OPTS(.threads = 2));
    tether_agent *c = start(&house, "c", TETHER_AGENT_OPTS(.threads = 2));
    assert_int_equal(tether_value_printf(&depth, &err, "4"), TETHER_OK);
    expect(tether_rpc_sync(c, "a", "nest", depth, LIMIT, NULL, &err), &err, TETHER_ETIMEOUT,
           "all 2 threads of worker 'a' are in functions");
    tether_value_release(depth);
    assert_int_equal(tether_value_printf(&depth, &err, "3"), TETHER_OK); /* that fits */
    tether_status st; /* once what was given up has ended */
    do
        st = tether_rpc_sync(c, "a", "nest", depth, LIMIT, NULL, &err);
    while (st == TETHER_ETIMEOUT);
    expect(st, &err, TETHER_OK, "");
    tether_value_release(depth);
    tether_agent_release(c);
    house_stop(&house);
}

static void queue_of_pooled_calls_is_bounded(void **state)
{
    (void)state;
    struct house house;
    tether_future *blocks[3];
    house_start(&house, TETHER_AGENT_OPTS(.threads = 1, .max_queued = 2));
    blocks[0] = tether_rpc_async(house.a, "b", "block", NULL, -1);
    assert_true(tether_test_event_wait(&house.entered, 1, LIMIT)); /* it is not in the queue */
    for (int i = 1; i < 3; i++)
        blocks[i] = tether_rpc_async(house.a, "b", "block", NULL, -1);
    call(house.a, "b", "echo_pooled", LIMIT, TETHER_EBUSY, "the queue is full");
    call(house.a, "b", "echo", LIMIT, TETHER_OK, "");
    tether_test_event_signal(&house.released);
    await_all(blocks, 3, TETHER_OK);
    call(house.a, "b", "echo_pooled", LIMIT, TETHER_OK, "");
    house_stop(&house);
}

/* ---- Bytes ---- */

#define KB 1000

/* As house_start, but everything that a says to b, and is answered, goes through the proxy. */
static struct tether_test_proxy *house_start_apart(struct house *house,
                                                   const struct tether_agent_opts *opts)
{
    char listen[64];
    struct tether_agent_opts own = *opts;
    memset(house, 0, sizeof *house);
    strcpy(house->folder, "/tmp/tether-overload-XXXXXX"); /* a short path: it is for a socket */
    assert_non_null(mkdtemp(house->folder));
    assert_int_equal(tether_store_hash_new(&house->store, NULL), TETHER_OK);
    tether_test_event_init(&house->entered);
    tether_test_event_init(&house->released);
    tether_test_event_init(&house->left);
    snprintf(listen, sizeof listen, "unix:%s/b", house->folder);
    struct tether_test_proxy *proxy = tether_test_proxy_start(listen);
    house->a = start(house, "a", opts);
    own.listen = listen;
    own.advertise = tether_test_proxy_endpoint(proxy);
    own.no_unix_socket = true;
    house->b = start(house, "b", &own);
    return proxy;
}

static void unacknowledged_bytes_are_bounded(void **state)
{
    (void)state;
    struct house house;
    tether_error err = {0};
    struct tether_test_proxy *proxy =
        house_start_apart(&house, TETHER_AGENT_OPTS(.max_bytes_per_peer = 250 * KB));
    tether_value *arg = bytes_of(100 * KB);
    tether_test_proxy_cut(proxy, true); /* nothing gets through */
    tether_future *first[2], *third;
    for (int i = 0; i < 2; i++)
        first[i] = tether_rpc_async(house.a, "b", "echo", arg, LIMIT);
    third = tether_rpc_async(house.a, "b", "echo", arg, LIMIT);
    assert_true(tether_future_is_done(third));
    expect(tether_future_wait(third, 0, NULL, &err), &err, TETHER_EBUSY, "max_bytes_per_peer");
    tether_future_release(third);
    expect(tether_rpc_sync(house.a, "b", "echo", arg, 100, NULL, &err), &err, TETHER_EBUSY,
           "max_bytes_per_peer");
    third = tether_rpc_async(house.a, "b", "echo", NULL, LIMIT); /* a small one fits */
    assert_false(tether_future_is_done(third));
    tether_test_proxy_cut(proxy, false);
    await_all(first, 2, TETHER_OK);
    await_all(&third, 1, TETHER_OK);
    expect(tether_rpc_sync(house.a, "b", "echo", arg, LIMIT, NULL, &err), &err, TETHER_OK, "");
    tether_value_release(arg);
    house_stop(&house);
    tether_test_proxy_free(proxy);
}

/* A message larger than the bound goes when nothing else does; and a synchronous call that waits
 * for room gets it when bytes have arrived, although no call has ended. */
static void waiting_call_is_sent_when_bytes_are_acknowledged(void **state)
{
    (void)state;
    struct house house;
    tether_error err = {0};
    house_start(&house, TETHER_AGENT_OPTS(.max_bytes_per_peer = 250 * KB));
    tether_value *huge = bytes_of(2000 * KB), *large = bytes_of(200 * KB);
    tether_future *pending = tether_rpc_async(house.a, "b", "hold", huge, -1);
    for (int i = 0; i < 5; i++) {
        expect(tether_rpc_sync(house.a, "b", "echo", large, LIMIT, NULL, &err), &err, TETHER_OK,
               "");
        assert_false(tether_future_is_done(pending));
    }
    tether_future_cancel(pending);
    tether_future_release(pending);
    tether_value_release(huge);
    tether_value_release(large);
    house_stop(&house);
}

/* A caller that does not read its replies is refused further calls. Every call is answered, by its
 * result or by that error.
 */
static void unread_replies_are_bounded(void **state)
{
    (void)state;
    enum { N = 20 };
    struct house house;
    tether_future *calls[N];
    int n_ok = 0;
    struct tether_test_proxy *proxy =
        house_start_apart(&house, TETHER_AGENT_OPTS(.max_bytes_per_peer = 250 * KB));
    call(house.a, "b", "echo", LIMIT, TETHER_OK, "");
    tether_test_proxy_delay(proxy, 20);
    for (int i = 0; i < N; i++)
        calls[i] = tether_rpc_async(house.a, "b", "big", NULL, -1);
    for (int i = 0; i < N; i++) {
        tether_error err = {0};
        tether_value *value = NULL;
        tether_status st = tether_future_wait(calls[i], LIMIT, &value, &err);
        if (st != TETHER_OK)
            expect(st, &err, TETHER_EBUSY, "max_bytes_per_peer");
        else
            assert_int_equal(tether_value_bytes(value).len, 200000);
        n_ok += st == TETHER_OK;
        tether_value_release(value);
        tether_future_release(calls[i]);
    }
    assert_in_range(n_ok, 2, N);
    tether_test_proxy_delay(proxy, 0);
    tether_error err = {0};
    tether_status st; /* when the last acknowledgement is through */
    do
        st = tether_rpc_sync(house.a, "b", "big", NULL, LIMIT, NULL, &err);
    while (st == TETHER_EBUSY);
    expect(st, &err, TETHER_OK, "");
    house_stop(&house);
    tether_test_proxy_free(proxy);
}

/* The pool is full, and every queued call keeps its argument. The caller's own limit is larger. */
static void call_is_refused_when_queued_arguments_exceed_limit(void **state)
{
    (void)state;
    enum { N = 20 };
    struct house house;
    tether_future *calls[N], *blocked;
    int n_refused = 0;
    house_start(&house, TETHER_AGENT_OPTS(.threads = 1, .max_bytes_per_peer = 100 * KB));
    tether_agent *c = start(&house, "c", TETHER_AGENT_OPTS(.threads = 1));
    tether_value *arg = bytes_of(50 * KB);
    blocked = tether_rpc_async(c, "b", "block", NULL, -1);
    assert_true(tether_test_event_wait(&house.entered, 1, LIMIT));
    for (int i = 0; i < N; i++)
        calls[i] = tether_rpc_async(c, "b", "echo_pooled", arg, -1);
    call(c, "b", "echo", LIMIT, TETHER_OK, ""); /* behind all of them */
    call(house.a, "b", "echo", LIMIT, TETHER_OK, "");
    tether_future *other = tether_rpc_async(house.a, "b", "echo_pooled", arg, -1);
    tether_test_event_signal(&house.released);
    await_all(&blocked, 1, TETHER_OK);
    await_all(&other, 1, TETHER_OK); /* another caller has its own limit */
    for (int i = 0; i < N; i++) {
        tether_error err = {0};
        tether_status st = tether_future_wait(calls[i], LIMIT, NULL, &err);
        if (st != TETHER_OK) {
            expect(st, &err, TETHER_EBUSY, "max_bytes_per_peer");
            n_refused++;
        }
        tether_future_release(calls[i]);
    }
    assert_int_equal(n_refused, N - 8); /* four times the limit is kept */
    tether_error err = {0};
    expect(tether_rpc_sync(c, "b", "echo_pooled", arg, LIMIT, NULL, &err), &err, TETHER_OK, "");
    tether_value_release(arg);
    tether_agent_release(c);
    house_stop(&house);
}

/* All functions begin before any of them has a result, so none is refused beforehand. */
static void result_becomes_error_when_unread_replies_exceed_limit(void **state)
{
    (void)state;
    enum { N = 16 };
    struct house house;
    tether_future *calls[N];
    int n_ok = 0;
    struct tether_test_proxy *proxy =
        house_start_apart(&house, TETHER_AGENT_OPTS(.threads = N, .max_bytes_per_peer = 100 * KB,
                                                    .max_message_bytes = 250 * KB));
    for (int i = 0; i < N; i++)
        calls[i] = tether_rpc_async(house.a, "b", "block_big", NULL, -1);
    assert_true(tether_test_event_wait(&house.entered, N, LIMIT));
    tether_test_proxy_cut(proxy, true); /* no reply is acknowledged */
    tether_test_event_signal(&house.released);
    assert_true(tether_test_event_wait(&house.left, N, LIMIT));
    tether_test_proxy_cut(proxy, false);
    for (int i = 0; i < N; i++) {
        tether_error err = {0};
        tether_status st = tether_future_wait(calls[i], LIMIT, NULL, &err);
        if (st != TETHER_OK)
            expect(st, &err, TETHER_EBUSY, "max_bytes_per_peer");
        n_ok += st == TETHER_OK;
        tether_future_release(calls[i]);
    }
    /* 450 KB of replies may wait: two of 200 KB. A reply may slip out before the cut, or while a
     * later function still runs. */
    assert_in_range(n_ok, 2, N - 1);
    call(house.a, "b", "echo", LIMIT, TETHER_OK, "");
    house_stop(&house);
    tether_test_proxy_free(proxy);
}

/* ---- Malformed messages ---- */

static void send_garbage(tether_agent *agent, const char *to, uint32_t kind)
{
    static const uint8_t garbage[] = {0x0a, 0xff, 0xff, 0xff, 0x07, 'x'}; /* ends too soon */
    struct tether__peer *peer;
    assert_int_equal(tether__agent_peer(agent, to, &peer, NULL), TETHER_OK);
    tether__peer_lock(peer);
    assert_int_equal(tether__stream_send_locked(&peer->session->out, kind,
                                                tether_bytes_of(garbage, sizeof garbage),
                                                TETHER__SLICE_EMPTY, 0),
                     TETHER_OK);
    tether__peer_unlock(peer);
    tether__peer_release(peer);
}

static void session_is_fenced_when_peer_sends_malformed_message(void **state)
{
    (void)state;
    static const uint32_t kinds[] = {TETHER__FRAME_CALL, TETHER__FRAME_REPLY, TETHER__FRAME_CANCEL};
    struct house house;
    house_start(&house, TETHER_AGENT_OPTS(.threads = 1));
    for (size_t i = 0; i < TETHER__ARRAY_LEN(kinds); i++) {
        tether_error err = {0};
        call(house.a, "b", "echo", LIMIT, TETHER_OK, "");
        tether_future *held = tether_rpc_async(house.a, "b", "hold", NULL, -1);
        send_garbage(house.a, "b", kinds[i]);
        expect(tether_future_wait(held, LIMIT, NULL, &err), &err, TETHER_EFENCED, "'b'");
        tether_future_release(held);
        tether_reply *reply = atomic_exchange(&house.held, NULL);
        if (reply)
            tether_reply_ok(reply, NULL);
        call(house.a, "b", "echo", LIMIT, TETHER_OK, ""); /* in a new session */
    }
    house_stop(&house);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(control_messages_are_handled_when_the_pool_is_full),
        cmocka_unit_test(nested_calls_time_out_when_they_use_up_the_pool),
        cmocka_unit_test(queue_of_pooled_calls_is_bounded),
        cmocka_unit_test(unacknowledged_bytes_are_bounded),
        cmocka_unit_test(waiting_call_is_sent_when_bytes_are_acknowledged),
        cmocka_unit_test(unread_replies_are_bounded),
        cmocka_unit_test(call_is_refused_when_queued_arguments_exceed_limit),
        cmocka_unit_test(result_becomes_error_when_unread_replies_exceed_limit),
        cmocka_unit_test(session_is_fenced_when_peer_sends_malformed_message),
    };
    return cmocka_run_group_tests_name("overload", tests, NULL, NULL);
}
