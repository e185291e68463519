/* Calls with large arguments or results that are cancelled: the rest of a message is
 * dropped. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/macros.h"
#include "rpc/agent/counters.h"
#include "rpc/peer/peer.h"
#include "rpc/peer/session.h"
#include "tests/lib/cmocka.h"
#include "tests/rpc/lib/world.h"

#define MIB ((size_t)1024 * 1024)

static tether_value *bytes_of(size_t len)
{
    tether_value *value = NULL;
    char *bytes = calloc(1, len);
    assert_int_equal(tether_value_new(tether_bytes_of(bytes, len), &value, NULL), TETHER_OK);
    free(bytes);
    return value;
}

/* A call of "note" on w1 with so long an argument. */
static tether_future *note(struct tether_test_world *w, size_t len, int timeout_ms)
{
    tether_value *arg = bytes_of(len);
    tether_future *future = tether_rpc_async(w->agents[0], "w1", "note", arg, timeout_ms);
    tether_value_release(arg);
    return future;
}

static void call_small(struct tether_test_world *w)
{
    tether_error err = {0};
    tether_status st = tether_rpc_sync(w->agents[0], "w1", "echo", NULL, 60000, NULL, &err);
    if (st != TETHER_OK)
        fail_msg("%s", err.message);
}

/* The unacknowledged bytes of w0's lane to w1, and the bytes that were written. */
static void look(struct tether_test_world *w, size_t *ret_unacked, size_t *ret_sent)
{
    struct tether__peer *peer = NULL;
    assert_int_equal(tether__agent_peer(w->agents[0], "w1", &peer, NULL), TETHER_OK);
    tether__peer_lock(peer);
    *ret_unacked = peer->session->out.lane.unacked_bytes;
    *ret_sent = peer->metrics.bytes_sent;
    tether__peer_unlock(peer);
    tether__peer_release(peer);
}

static bool one_mib_is_sent(void *userdata)
{
    size_t unacked, sent;
    look(userdata, &unacked, &sent);
    return sent >= MIB;
}

static bool all_is_acknowledged(void *userdata)
{
    size_t unacked, sent;
    look(userdata, &unacked, &sent);
    return unacked == 0;
}

/* ---- At a chosen moment, in virtual time ---- */

enum moment { BEFORE_A_STREAM_IS_UP, BEFORE_ITS_TURN, MIDWAY, ALL_QUEUED };

static const struct row {
    const char *name;
    enum moment moment;
    bool times_out; /* the network fails at that moment, and comes back when its time is over */
    size_t len, max_sent;
    int ran;
} rows[] = {
    {"before a stream is up", BEFORE_A_STREAM_IS_UP, false, 20 * MIB, MIB, 0},
    {"before a stream is up, by its time", BEFORE_A_STREAM_IS_UP, true, 20 * MIB, MIB, 0},
    {"before its turn", BEFORE_ITS_TURN, false, 20 * MIB, MIB, 0},
    {"before its turn, by its time", BEFORE_ITS_TURN, true, 20 * MIB, MIB, 0},
    {"midway", MIDWAY, false, 20 * MIB, 2 * MIB, 0},
    {"midway, by its time", MIDWAY, true, 20 * MIB, 3 * MIB, 0}, /* the first pieces go twice */
    {"when all of it is queued", ALL_QUEUED, false, MIB, 2 * MIB, 1},
};

static void reach(struct tether_test_world *w, enum moment moment)
{
    if (moment == MIDWAY || moment == ALL_QUEUED)
        assert_true(tether_sim_run(w->sim, one_mib_is_sent, w, 10));
}

static void give_up(const struct row *row)
{
    struct tether_test_world w;
    tether_error err = {0};
    size_t unacked, sent;
    tether_test_world_start(&w, TETHER_TEST_SIM, 2, NULL);
    if (row->moment != BEFORE_A_STREAM_IS_UP)
        call_small(&w);
    tether_future *call = note(&w, row->len, row->times_out ? 50 : 60000);
    reach(&w, row->moment);
    if (row->times_out)
        tether_sim_part(w.sim, w.agents[0], w.agents[1], true);
    else
        tether_future_cancel(call);
    assert_int_equal(tether_future_wait(call, -1, NULL, &err),
                     row->times_out ? TETHER_ETIMEOUT : TETHER_ECANCELED);
    tether_future_release(call);
    tether_sim_heal(w.sim);
    call_small(&w);
    assert_true(tether_test_world_wait(&w, all_is_acknowledged, &w));
    look(&w, &unacked, &sent);
    if (sent > row->max_sent || w.n_noted != row->ran)
        fail_msg("%s: %zu bytes were sent, and the function ran %d times", row->name, sent,
                 w.n_noted);
    tether_test_world_stop(&w);
}

static void call_is_not_sent_further_when_given_up(void **state)
{
    (void)state;
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++)
        give_up(&rows[i]);
}

/* ---- Results ---- */

static tether_status big(void *userdata,
                         const tether_value *arg,
                         tether_value **ret_value,
                         tether_error *reterr)
{
    (void)userdata, (void)arg, (void)reterr;
    *ret_value = bytes_of(20 * MIB);
    return TETHER_OK;
}

static void register_big(tether_agent *agent)
{
    assert_int_equal(tether_agent_register(agent, "big", big, NULL, NULL), TETHER_OK);
}

/* The metrics of w1 about w0, and the unacknowledged bytes of w1's replies. */
static struct tether__peer_metrics look_back(struct tether_test_world *w, size_t *ret_unacked)
{
    struct tether__peer *peer = NULL;
    assert_int_equal(tether__agent_peer(w->agents[1], "w0", &peer, NULL), TETHER_OK);
    tether__peer_lock(peer);
    struct tether__peer_metrics metrics = peer->metrics;
    *ret_unacked = peer->session->in.lane.unacked_bytes;
    tether__peer_unlock(peer);
    tether__peer_release(peer);
    return metrics;
}

static bool one_mib_came_back(void *userdata)
{
    size_t unacked;
    return look_back(userdata, &unacked).bytes_sent >= MIB;
}

static bool all_came_back(void *userdata)
{
    size_t unacked;
    look_back(userdata, &unacked);
    return unacked == 0;
}

/* The one that answers is held up midway; the cancel is there when it goes on. */
static void rest_of_result_is_not_sent_when_call_is_cancelled(void **state)
{
    (void)state;
    struct tether_test_world w;
    size_t unacked;
    tether_test_world_start(&w, TETHER_TEST_SIM, 2, NULL);
    tether_future *call = tether_rpc_async(w.agents[0], "w1", "big", NULL, 60000);
    assert_true(tether_sim_run(w.sim, one_mib_came_back, &w, 10000));
    tether_sim_pause(w.sim, w.agents[1], true);
    tether_future_cancel(call);
    tether_future_release(call);
    tether_sim_run(w.sim, NULL, NULL, 10);
    tether_sim_pause(w.sim, w.agents[1], false);
    call_small(&w);
    assert_true(tether_test_world_wait(&w, all_came_back, &w));
    struct tether__peer_metrics metrics = look_back(&w, &unacked);
    assert_true(metrics.bytes_sent < 2 * MIB);
    tether_test_world_stop(&w);
}

static bool hold_is_cancelled(void *userdata)
{
    tether_reply *held = atomic_load(&((struct tether_test_world *)userdata)->held);
    return held && tether_reply_is_cancelled(held);
}

/* The function comes to its result when the cancel is there already. */
static void result_is_not_sent_when_call_was_cancelled_before(void **state)
{
    (void)state;
    struct tether_test_world w;
    size_t unacked;
    tether_test_world_start(&w, TETHER_TEST_SIM, 2, NULL);
    tether_future *call = tether_rpc_async(w.agents[0], "w1", "hold", NULL, 60000);
    tether_sim_run(w.sim, NULL, NULL, 10);
    tether_future_cancel(call);
    tether_future_release(call);
    assert_true(tether_test_world_wait(&w, hold_is_cancelled, &w));
    tether_value *result = bytes_of(20 * MIB);
    tether_reply_ok(atomic_exchange(&w.held, NULL), result);
    tether_value_release(result);
    call_small(&w);
    assert_true(tether_test_world_wait(&w, all_came_back, &w));
    struct tether__peer_metrics metrics = look_back(&w, &unacked);
    assert_true(metrics.bytes_sent < MIB);
    tether_test_world_stop(&w);
}

/* ---- At any moment, over gRPC ---- */

static void streams_survive_many_cancels(void **state)
{
    (void)state;
    struct tether_test_world w;
    tether_test_world_start(&w, TETHER_TEST_GRPC, 2,
                            TETHER_AGENT_OPTS(.max_bytes_per_peer = 1000 * MIB));
    call_small(&w);
    for (int i = 0; i < 40; i++) {
        tether_error err = {0};
        tether_future *calls[4];
        for (int n = 0; n < 3; n++)
            calls[n] = note(&w, (size_t)(n + 1) * 3 * MIB, i % 4 == 0 ? 1 + n : 60000);
        calls[3] = tether_rpc_async(w.agents[0], "w1", "big", NULL, 60000);
        for (int n = 0; n < i; n++)
            call_small(&w);
        for (int n = 0; n < 4; n++) {
            tether_future_cancel(calls[n]);
            tether_status st = tether_future_wait(calls[n], -1, NULL, &err);
            assert_true(st == TETHER_OK || st == TETHER_ECANCELED || st == TETHER_ETIMEOUT);
            tether_future_release(calls[n]);
        }
    }
    call_small(&w);
    assert_true(tether_test_world_wait(&w, all_is_acknowledged, &w));
    assert_true(tether_test_world_wait(&w, all_came_back, &w));
    tether_test_world_stop(&w);
}

int main(void)
{
    tether_test_world_register = register_big;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(call_is_not_sent_further_when_given_up),
        cmocka_unit_test(rest_of_result_is_not_sent_when_call_is_cancelled),
        cmocka_unit_test(result_is_not_sent_when_call_was_cancelled_before),
        cmocka_unit_test(streams_survive_many_cancels),
    };
    return cmocka_run_group_tests_name("withdrawn calls", tests, NULL, NULL);
}
