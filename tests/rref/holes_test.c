/* The eleven holes that are known in the protocol that this one is modelled on
 * (torch.distributed.rpc), each made to happen over the simulated network. Each test would fail
 * there; the comment above it says what happened, and what holds here.
 *
 * w1 owns, w0 creates, w2 is passed what w0 has created, unless a test says otherwise. Time is
 * virtual: the waits cost nothing, and how long something takes is exact.
 */
#include <stdlib.h>
#include <string.h>

#include "rpc/peer/calls/slots.h"
#include "rpc/wire/packed.h"
#include "rref/context.h"
#include "rref/rref.h"
#include "tests/lib/cmocka.h"
#include "tests/rref/cast.h"

#define LEASE_MS 3000
#define TIMEOUT_MS 20000
#define MS TETHER__NS_PER_MS
#define SOON_MS 200 /* some messages there and back, and the wait of an acknowledgement */

/* ---- A network whose chosen messages fail ---- */

static struct {
    uint32_t kind;
    int left; /* how many more attempts fail */
    int n_deletes;
} fault;

static tether_status before_send(void *userdata, const char *peer, uint32_t kind)
{
    (void)userdata, (void)peer;
    fault.n_deletes += kind == TETHER__FRAME_USER_DELETE;
    if (kind != fault.kind || fault.left == 0)
        return TETHER_OK;
    fault.left--;
    return TETHER_EUNAVAILABLE;
}

/* ---- Objects that refer to each other, for circles ---- */

struct node {
    struct cast_counter counter; /* first: it is destroyed as one */
    tether_rref *other;
};

static void node_destroy(void *object)
{
    tether_rref *other = ((struct node *)object)->other;
    free(object);
    atomic_fetch_sub(&cast_n_live, 1);
    tether_rref_release(other);
}

static const tether_type node_type = {.name = "node", .destroy = node_destroy};

static tether_status make_node(void *userdata,
                               const tether_value *arg,
                               tether_value **ret_value,
                               tether_error *reterr)
{
    (void)userdata, (void)arg;
    struct node *node = calloc(1, sizeof *node);
    if (!node)
        abort();
    atomic_fetch_add(&cast_n_live, 1);
    return tether_value_new_object(&node_type, node, ret_value, reterr);
}

/* The node refers to what comes along, or to nothing any more. */
static tether_status node_link(void *userdata,
                               void *object,
                               const tether_value *arg,
                               tether_value **ret_value,
                               tether_error *reterr)
{
    (void)userdata, (void)ret_value, (void)reterr;
    struct node *node = object;
    tether_rref *before = node->other;
    node->other = tether_rref_retain(tether_value_rref(arg, 0));
    tether_rref_release(before);
    return TETHER_OK;
}

/* ---- Fixture ---- */

static void register_all(tether_agent *agent)
{
    cast_register(agent);
    assert_int_equal(tether_agent_register_inline(agent, "make_node", make_node, NULL, NULL),
                     TETHER_OK);
    assert_int_equal(
        tether_agent_register_method(agent, &node_type, "link", node_link, true, NULL, NULL),
        TETHER_OK);
    agent->lane_limits.inline_bytes = 100; /* so that a value of some hundred bytes is large */
    agent->lane_limits.fragment_bytes = 300;
}

static const struct tether_agent_opts *options(void)
{
    static struct tether_agent_opts opts;
    opts = *TETHER_AGENT_OPTS(.lease_ms = LEASE_MS, .timeout_ms = TIMEOUT_MS,
                              .shutdown_timeout_ms = 10000, .fail_on_leaks = true);
    return &opts;
}

static int start(void **state)
{
    static struct tether_test_world world;
    memset(&fault, 0, sizeof fault);
    cast_n_keeps = 0;
    tether_test_world_register = register_all;
    tether_test_world_before_send = before_send;
    tether_test_world_start(&world, TETHER_TEST_SIM, 3, options());
    *state = &world;
    return 0;
}

static int stop(void **state)
{
    cast_drop_all();
    tether_test_world_stop(*state);
    assert_int_equal(cast_n_live, 0); /* each test leaves no object behind */
    return 0;
}

static int64_t now_ms(struct tether_test_world *w)
{
    return tether_sim_now(w->sim) / MS;
}

static void pass_time(struct tether_test_world *w, int64_t ms)
{
    tether_sim_run(w->sim, NULL, NULL, ms);
}

static void assert_soon(struct tether_test_world *w, bool (*done)(void *userdata), void *userdata)
{
    assert_true(tether_sim_run(w->sim, done, userdata, SOON_MS));
}

/* Everything is released within a lease and a second, at the workers that live. */
static bool w1_is_idle(void *userdata)
{
    struct tether_test_world *w = userdata;
    return cast_is_idle(w->agents[1]) && cast_n_live == 0;
}

static bool is_broken(void *userdata)
{
    return tether_rref_status(userdata, NULL) == TETHER_RREF_BROKEN;
}

static void assert_confirmed(tether_rref *rref)
{
    tether_future *future = tether_rref_confirmed(rref);
    assert_int_equal(tether_future_wait(future, 10000, NULL, NULL), TETHER_OK);
    tether_future_release(future);
}

static void leave_ok(struct tether_test_world *w, int i)
{
    tether_error err = {0};
    int64_t began = now_ms(w);
    if (tether_agent_shutdown(w->agents[i], true, &err) != TETHER_OK)
        fail_msg("w%d: %s", i, err.message);
    assert_in_range(now_ms(w) - began, 0, 1000);
}

/* ---- 1 ---- */

static bool one_call_is_held(void *userdata)
{
    return ((struct tether_test_world *)userdata)->n_held == 1;
}

/* There: remote() timed out while its function ran, and the user released the reference. The delete
 * reached an owner that had no entry yet; then the function returned, and the owner entered the
 * object with a fork that no message would ever delete. Both shutdowns waited 100 s and failed.
 *
 * Here: the owner enters object and fork when the call arrives, before the function runs. The
 * delete finds its fork, and the object is destroyed as soon as the function returns it. */
static void hole_01_object_is_destroyed_when_delete_overtakes_its_creation(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref = tether_remote(w->agents[0], "w1", "hold", NULL, 500);
    assert_soon(w, one_call_is_held, w);
    assert_int_equal(tether_rref_counts(w->agents[1]).forks, 1);
    assert_int_equal(tether_rref_to_here(rref, 10000, NULL, NULL), TETHER_ETIMEOUT);
    assert_in_range(now_ms(w), 500, 600); /* the waiting caller is woken */
    tether_rref_release(rref);
    assert_soon(w, cast_has_no_forks, w->agents[1]);
    tether_value *late = NULL;
    assert_int_equal(cast_new_counter(1, &late, NULL), TETHER_OK);
    tether_reply_ok(atomic_exchange(&w->held, NULL), late);
    tether_value_release(late);
    assert_int_equal(cast_n_live, 0); /* at once */
    cast_assert_nothing_left(w);
    leave_ok(w, 0);
    leave_ok(w, 1);
}

/* The same where the call itself is overtaken: its argument goes in pieces, behind which small
 * messages need not wait. An announce goes ahead, in order. */
static void hole_01_object_is_destroyed_when_delete_overtakes_a_large_creation(void **state)
{
    struct tether_test_world *w = *state;
    char words[2000];
    memset(words, '1', sizeof words - 1);
    words[sizeof words - 1] = '\0';
    cast_call_ok(w->agents[0], "w1", "echo");
    tether_value *arg = cast_text(words);
    tether_sim_part(w->sim, w->agents[0], w->agents[1], true);
    tether_rref *rref = tether_remote(w->agents[0], "w1", "make_counter", arg, 100);
    assert_int_equal(tether_rref_to_here(rref, 10000, NULL, NULL), TETHER_ETIMEOUT);
    tether_rref_release(rref); /* small: it goes before the last piece */
    tether_value_release(arg);
    tether_sim_part(w->sim, w->agents[0], w->agents[1], false);
    cast_call_ok(w->agents[0], "w1", "echo");
    pass_time(w, 1000);
    cast_assert_nothing_left(w);
}

/* ---- 2 ---- */

/* There: a repeated fork-request that arrived after the user-delete of the same fork created a fork
 * without a holder, so the object was never destroyed.
 *
 * Here: each message has a number in its lane, and is applied once. The copies below arrive and
 * have no effect. */
static void hole_02_fork_request_adds_no_fork_when_repeated_after_delete(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref = cast_remote_counter(w->agents[0], "w1", "1");
    assert_confirmed(rref);
    cast_call_ok(w->agents[2], "w1", "echo"); /* they know each other */
    tether_sim_duplicate(w->sim, 1, 500 * MS);
    cast_send_ok(w->agents[0], "w2", "keep", rref);
    assert_int_equal(tether_rref_counts(w->agents[1]).forks, 2);
    cast_call_ok(w->agents[0], "w2", "drop");
    pass_time(w, 50); /* the delete is quicker than the copies */
    assert_int_equal(tether_rref_counts(w->agents[1]).forks, 1);
    int before = tether_sim_faults(w->sim)->duplicated;
    pass_time(w, 1000);
    assert_true(tether_sim_faults(w->sim)->duplicated > before);
    assert_int_equal(tether_rref_counts(w->agents[1]).forks, 1);
    assert_int_equal(cast_n_keeps, 1);
    tether_rref_release(rref);
    cast_assert_nothing_left(w);
}

/* ---- 3 ---- */

static enum tether__outcome pack_fetch(void *userdata,
                                       uint64_t id,
                                       uint32_t timeout_ms,
                                       struct tether__packed *ret_packed)
{
    Tether__Fetch message = TETHER__FETCH__INIT;
    message.id = id;
    message.object = userdata;
    message.timeout_ms = timeout_ms;
    return tether__outcome_of(tether__pack(ret_packed, &message.base));
}

static enum tether__outcome pack_fork_request(void *userdata,
                                              uint64_t id,
                                              uint32_t timeout_ms,
                                              struct tether__packed *ret_packed)
{
    Tether__ForkRequest message = TETHER__FORK_REQUEST__INIT;
    Tether__RefId fork = TETHER__REF_ID__INIT;
    fork.incarnation = fork.counter = 12345;
    message.id = id;
    message.object = userdata;
    message.fork = &fork;
    message.timeout_ms = timeout_ms;
    return tether__outcome_of(tether__pack(ret_packed, &message.base));
}

/* Asks w1 about an object as no program of ours would; says how it went and how long it took. */
static tether_status ask(struct tether_test_world *w,
                         uint32_t kind,
                         tether_rref_id object,
                         int timeout_ms,
                         int64_t *ret_took_ms)
{
    struct tether__peer *owner;
    tether_future *future = NULL;
    struct tether__call *call = NULL;
    Tether__RefId id = tether__wire_id(object);
    int64_t deadline = tether__call_deadline(w->agents[0], timeout_ms);
    int64_t began = now_ms(w);
    assert_int_equal(tether__agent_peer(w->agents[0], "w1", &owner, NULL), TETHER_OK);
    if (kind == TETHER__FRAME_CALL) { /* a method */
        struct tether__call_target target = {.target = &id};
        assert_int_equal(
            tether__call_start(w->agents[0], owner, "add", &target, NULL, deadline, &call, NULL),
            TETHER_OK);
        future = &call->future;
    } else {
        assert_int_equal(
            tether__call_request(owner, kind, "late", false, deadline,
                                 kind == TETHER__FRAME_FETCH ? pack_fetch : pack_fork_request, &id,
                                 &future, NULL),
            TETHER_OK);
    }
    tether__peer_release(owner);
    tether_status st = tether_future_wait(future, 60000, NULL, NULL);
    tether_future_release(future);
    *ret_took_ms = now_ms(w) - began;
    return st;
}

/* There: a request for a destroyed object looked like one for an object that was still to be
 * created, and waited for ever.
 *
 * Here: the owner knows how far each creator's counter has come. It answers TETHER_EGONE at once
 * for a destroyed object, and lets a request for an object that may still be created wait until the
 * deadline of the request. */
static void hole_03_request_fails_at_once_when_object_is_destroyed(void **state)
{
    struct tether_test_world *w = *state;
    static const uint32_t kinds[] = {TETHER__FRAME_FETCH, TETHER__FRAME_FORK_REQUEST,
                                     TETHER__FRAME_CALL};
    tether_rref *rref = cast_remote_counter(w->agents[0], "w1", "7");
    tether_rref_id gone = tether_rref_get_id(rref), to_come = gone;
    to_come.counter += 1000;

    /* A fetch that was sent before the delete finds its object. */
    tether_future *fetch = tether_rref_to_here_async(rref, 10000);
    tether_rref_release(rref);
    assert_int_equal(tether_future_wait(fetch, 10000, NULL, NULL), TETHER_OK);
    tether_future_release(fetch);
    cast_assert_nothing_left(w);

    for (size_t i = 0; i < TETHER__ARRAY_LEN(kinds); i++) {
        int64_t took_ms;
        assert_int_equal(ask(w, kinds[i], gone, 10000, &took_ms), TETHER_EGONE);
        assert_in_range(took_ms, 0, SOON_MS);
        assert_int_equal(ask(w, kinds[i], to_come, 1500, &took_ms), TETHER_ETIMEOUT);
        assert_in_range(took_ms, 1400, 1500 + SOON_MS);
        pass_time(w, SOON_MS);
        assert_int_equal(tether_rref_counts(w->agents[1]).pending_owners, 0);
    }
    cast_assert_nothing_left(w);
}

/* ---- 4 ---- */

/* There: when the last attempt of a fork-request had failed, an exception left a callback that did
 * not expect it, and the process of the child was aborted.
 *
 * Here: the call that brought the reference fails with TETHER_EOWNERDIED before its function runs,
 * the parent is told all the same, and the worker goes on. */
static void hole_04_call_fails_when_fork_request_is_never_delivered(void **state)
{
    struct tether_test_world *w = *state;
    tether_error err = {0};
    tether_rref *rref = cast_remote_counter(w->agents[0], "w1", "1");
    assert_confirmed(rref);
    fault.kind = TETHER__FRAME_FORK_REQUEST;
    fault.left = 1000;
    tether_future *future = cast_send_async(w->agents[0], "w2", "keep", rref, 60000);
    assert_int_equal(tether_future_wait(future, 60000, NULL, &err), TETHER_EOWNERDIED);
    tether_future_release(future);
    assert_int_equal(fault.left, 1000 - 6);
    assert_int_equal(cast_n_keeps, 0);
    pass_time(w, SOON_MS);
    assert_int_equal(tether_rref_counts(w->agents[0]).pending_children, 0);
    assert_true(cast_is_idle(w->agents[2]));
    fault.left = 0;
    cast_send_ok(w->agents[0], "w2", "keep", rref); /* the failure has no other effect */
    cast_add_ok(cast_held[2], "1", "2");
    cast_call_ok(w->agents[0], "w2", "drop");
    tether_rref_release(rref);
    cast_assert_nothing_left(w);
}

/* ---- 5 ---- */

/* Passes w0's reference to w2, whose accepts do not get through, and releases it. */
static void pass_without_accept(struct tether_test_world *w, int failures)
{
    tether_rref *rref = cast_remote_counter(w->agents[0], "w1", "1");
    assert_confirmed(rref);
    fault.kind = TETHER__FRAME_CHILD_ACCEPT;
    fault.left = failures;
    cast_send_ok(w->agents[0], "w2", "keep", rref);
    tether_rref_release(rref);
    assert_int_equal(tether_rref_counts(w->agents[0]).pending_children, 1);
}

static bool w0_is_idle(void *userdata)
{
    return cast_is_idle(((struct tether_test_world *)userdata)->agents[0]);
}

/* There: after five retries the accept was lost for good; the parent kept its pin, and with it the
 * object, for ever.
 *
 * Here: it is tried for as long as the session stands; and when the session ends, since the child
 * died or is cut off, the pin ends with it. */
static void hole_05_parent_keeps_reference_when_accept_is_lost_repeatedly(void **state)
{
    struct tether_test_world *w = *state;
    pass_without_accept(w, 20);
    cast_call_ok(w->agents[0], "w2", "drop");
    pass_time(w, 10000);
    assert_int_equal(tether_rref_counts(w->agents[0]).pending_children, 1);
    assert_int_equal(cast_n_live, 1); /* pinned, not forgotten */
    assert_true(tether_sim_run(w->sim, cast_nothing_is_left, w, 120000));
    assert_int_equal(fault.left, 0);
}

static void hole_05_parent_releases_reference_when_accepting_child_dies(void **state)
{
    struct tether_test_world *w = *state;
    pass_without_accept(w, INT32_MAX);
    tether_sim_kill(w->sim, w->agents[2]);
    assert_true(tether_sim_run(w->sim, w0_is_idle, w, LEASE_MS + 1000));
    assert_true(tether_sim_run(w->sim, w1_is_idle, w, LEASE_MS + 1000));
}

static void hole_05_parent_releases_reference_when_accepting_child_is_cut_off(void **state)
{
    struct tether_test_world *w = *state;
    pass_without_accept(w, INT32_MAX);
    tether_sim_part(w->sim, w->agents[0], w->agents[2], true);
    assert_true(tether_sim_run(w->sim, w0_is_idle, w, LEASE_MS + 1000));
    cast_add_ok(cast_held[2], "1", "2"); /* the child's reference has a fork of its own */
    tether_sim_heal(w->sim);
    cast_held[2] = tether_rref_release(cast_held[2]);
    fault.left = 0;
    cast_assert_nothing_left(w);
}

/* ---- 6 ---- */

/* There: remote() to a peer that was dead failed with an error that the code did not count among
 * those of a network, so the reference stayed among the pending ones for ever.
 *
 * Here: every failure of a creation breaks its reference, with the cause. Waiting callers are
 * woken, and nothing stays pending. */
static void hole_06_reference_breaks_when_creation_is_sent_to_a_dead_worker(void **state)
{
    struct tether_test_world *w = *state;
    cast_call_ok(w->agents[0], "w1", "echo");
    tether_rref *running = tether_remote(w->agents[0], "w1", "hold", NULL, 60000);
    assert_soon(w, one_call_is_held, w);
    tether_sim_kill(w->sim, w->agents[1]); /* while a function of ours runs there */
    tether_sim_kill(w->sim, w->agents[2]); /* which we have never met */
    const struct {
        const char *to;
        tether_status status;
    } rows[] = {
        {"w1", TETHER_EOWNERDIED},
        {"w2", TETHER_EOWNERDIED},
        {"nobody", TETHER_ENOTFOUND},
    };
    int64_t began = now_ms(w);
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        tether_rref *rref = tether_remote(w->agents[0], rows[i].to, "make_counter", NULL, 60000);
        tether_future *confirmed = tether_rref_confirmed(rref);
        assert_int_equal(tether_future_wait(confirmed, 60000, NULL, NULL), rows[i].status);
        assert_int_equal(tether_rref_to_here(rref, 60000, NULL, NULL), rows[i].status);
        assert_int_equal(tether_rref_counts(w->agents[0]).pending_users, 0);
        tether_future_release(confirmed);
        tether_rref_release(rref);
    }
    assert_in_range(now_ms(w) - began, 0, 2 * (LEASE_MS + 1000)); /* one after the other */
    assert_true(is_broken(running));
    tether_rref_release(running);
    assert_true(cast_is_idle(w->agents[0]));
    leave_ok(w, 0);
}

/* ---- 7 ---- */

/* There: a fork named the worker that had created it, not its holder, and nothing removed it when a
 * user crashed.
 *
 * Here: a fork names its holder in one session. When that session ends because heartbeats are
 * missing, the fork is removed; an object without forks is destroyed within a lease and a
 * second. */
static void hole_07_forks_are_removed_when_user_crashes(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref = cast_remote_counter(w->agents[0], "w1", "1");
    cast_send_ok(w->agents[0], "w2", "keep", rref);
    pass_time(w, SOON_MS);
    assert_int_equal(tether_rref_counts(w->agents[1]).forks, 2);
    tether_sim_kill(w->sim, w->agents[0]); /* it made the fork that w2 holds */
    pass_time(w, LEASE_MS + 1000);
    assert_int_equal(tether_rref_counts(w->agents[1]).forks, 1);
    cast_add_ok(cast_held[2], "1", "2"); /* which is w2's all the same */
    tether_sim_kill(w->sim, w->agents[2]);
    assert_true(tether_sim_run(w->sim, w1_is_idle, w, LEASE_MS + 1000));
    tether_rref_release(rref);
}

/* ---- 8 ---- */

/* There: an owner that passed on its object entered the fork when it packed the message. When the
 * message then could not be sent, the fork stayed.
 *
 * Here: the owner removes a fork whose message was not queued. A fork whose message was queued and
 * never applied ends with the session of its receiver. A receiver that does not want the reference
 * returns it. */
static void hole_08_fork_is_removed_when_its_message_fails(void **state)
{
    struct tether_test_world *w = *state;
    tether_error err = {0};
    tether_rref *mine = cast_own_counter(w->agents[0], 7);

    fault.kind = TETHER__FRAME_CALL; /* the network does not take it */
    fault.left = 1;
    assert_int_equal(cast_send(w->agents[0], "w1", "keep", mine, &err), TETHER_EUNAVAILABLE);
    assert_int_equal(tether_rref_counts(w->agents[0]).forks, 0);

    w->agents[0]->lane_limits.max_message_bytes = 20; /* the lane does not */
    assert_int_equal(cast_send(w->agents[0], "w1", "keep", mine, &err), TETHER_ETOOBIG);
    assert_int_equal(tether_rref_counts(w->agents[0]).forks, 0);
    w->agents[0]->lane_limits.max_message_bytes = tether__lane_default_limits.max_message_bytes;

    assert_int_equal(cast_send(w->agents[0], "w1", "no_such_function", mine, &err),
                     TETHER_ENOTFOUND);
    assert_soon(w, cast_has_no_forks, w->agents[0]);

    assert_int_equal(cast_send(w->agents[0], "nobody", "keep", mine, &err), TETHER_ENOTFOUND);
    assert_soon(w, cast_has_no_forks, w->agents[0]);

    tether_sim_kill(w->sim, w->agents[2]);
    tether_future *future = cast_send_async(w->agents[0], "w2", "keep", mine, 60000);
    assert_int_equal(tether_rref_counts(w->agents[0]).forks, 1); /* it may get there */
    assert_true(tether_sim_run(w->sim, cast_has_no_forks, w->agents[0], LEASE_MS + 1000));
    assert_int_equal(tether_future_wait(future, 1000, NULL, &err), TETHER_EUNAVAILABLE);
    tether_future_release(future);

    tether_rref_release(mine);
    assert_int_equal(cast_n_live, 0);
    assert_int_equal(cast_n_keeps, 0);
}

/* In a reply: its caller has given up before it comes. */
static void hole_08_fork_is_removed_when_its_reply_is_not_awaited(void **state)
{
    struct tether_test_world *w = *state;
    cast_held[1] = cast_own_counter(w->agents[1], 7);
    cast_call_ok(w->agents[0], "w1", "echo");
    tether_sim_slow(w->sim, w->agents[1], w->agents[0], 1000 * MS);
    assert_int_equal(tether_rpc_sync(w->agents[0], "w1", "give", NULL, 100, NULL, NULL),
                     TETHER_ETIMEOUT);
    assert_int_equal(tether_rref_counts(w->agents[1]).forks, 1);
    assert_true(tether_sim_run(w->sim, cast_has_no_forks, w->agents[1], 2000));
    cast_held[1] = tether_rref_release(cast_held[1]);
    cast_assert_nothing_left(w);
}

/* ---- 9 ---- */

/* There: the process had one context of references, and its flag "destroyed" stayed true: the
 * second agent of a process never sent a delete.
 *
 * Here: each agent has its own context. References of an earlier agent can be released, but not
 * used. */
static void hole_09_references_work_when_a_process_starts_a_second_agent(void **state)
{
    (void)state;
    tether_rref *of_before = NULL;
    for (int life = 1; life <= 3; life++) {
        struct tether_test_world w;
        void *fixture = &w;
        memset(&fault, 0, sizeof fault);
        tether_test_world_register = register_all;
        tether_test_world_before_send = before_send;
        tether_test_world_start(&w, TETHER_TEST_SIM, 3, options());
        tether_rref *rref = cast_remote_counter(w.agents[0], "w1", "1");
        cast_send_ok(w.agents[0], "w2", "keep", rref);
        cast_call_ok(w.agents[0], "w2", "drop");
        tether_rref_release(rref);
        cast_assert_nothing_left(&w);
        assert_int_equal(fault.n_deletes, 2);
        if (of_before) {
            assert_int_equal(tether_rref_to_here(of_before, 1000, NULL, NULL), TETHER_ESHUTDOWN);
            of_before = tether_rref_release(of_before);
        }
        of_before = cast_remote_counter(w.agents[1], "w2", "1");
        assert_confirmed(of_before);
        leave_ok(&w, 0);
        assert_int_equal(tether_agent_shutdown(w.agents[1], true, NULL), TETHER_ELEAK);
        leave_ok(&w, 2); /* and is not held up by what w1 forgot */
        assert_int_equal(cast_n_live, 0);
        stop(&fixture);
    }
    tether_rref_release(of_before);
}

/* ---- 10 ---- */

static void assert_value(tether_rref *rref, int n)
{
    tether_value *value = NULL;
    assert_int_equal(tether_rref_to_here(rref, 10000, &value, NULL), TETHER_OK);
    assert_int_equal(((struct cast_counter *)tether_value_object(value, &cast_counter_type))->n, n);
    tether_value_release(value);
}

/* Kills a worker and starts it anew. Gives what is left of the former start. */
static tether_agent *start_again(struct tether_test_world *w, int i)
{
    tether_agent *former = w->agents[i];
    tether_sim_kill(w->sim, former);
    tether_test_world_start_one(w, i, options());
    return former;
}

/* There: a worker that was started again counted its ids from 0, so that a reference, or a late
 * delete, of its former start could mean an object of the new one.
 *
 * Here: an id has the creator's incarnation in it, and a request names the start of the owner that
 * it means. */
static void hole_10_ids_differ_when_a_creator_restarts(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *before = cast_remote_counter(w->agents[0], "w1", "100");
    cast_send_ok(w->agents[0], "w2", "keep", before);
    tether_rref_id old_id = tether_rref_get_id(before);
    tether_rref_release(before);
    tether_agent *former_w0 = start_again(w, 0), *former_w1;

    tether_rref *after = cast_remote_counter(w->agents[0], "w1", "200");
    tether_rref_id new_id = tether_rref_get_id(after);
    assert_int_equal(new_id.creator, old_id.creator);
    assert_int_equal(new_id.counter, old_id.counter);
    assert_int_not_equal(new_id.incarnation, old_id.incarnation);
    assert_value(after, 200);
    assert_value(cast_held[2], 100);
    cast_held[2] = tether_rref_release(cast_held[2]); /* its delete means the old one */
    pass_time(w, LEASE_MS + 1000);
    assert_int_equal(tether_rref_counts(w->agents[1]).forks, 1);
    assert_value(after, 200);

    /* The owner is started again, and its new objects are not the one that `after` refers to. */
    former_w1 = start_again(w, 1);
    assert_true(tether_sim_run(w->sim, is_broken, after, LEASE_MS + 1000));
    tether_rref *newer = cast_remote_counter(w->agents[0], "w1", "300");
    assert_value(newer, 300);
    assert_int_equal(tether_rref_to_here(after, 10000, NULL, NULL), TETHER_EOWNERDIED);
    tether_rref_release(after);
    pass_time(w, SOON_MS);
    assert_value(newer, 300);
    tether_rref_release(newer);
    tether_agent_release(former_w0); /* not before: a process that was killed takes no leave */
    tether_agent_release(former_w1);
    cast_assert_nothing_left(w);
}

/* w2 has met the new start of w1, w0 has not, and passes on what it had of the old one. */
static void hole_10_reference_breaks_when_its_owner_restarts(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref = cast_remote_counter(w->agents[0], "w1", "1");
    assert_confirmed(rref);
    tether_sim_pause(w->sim, w->agents[0], true); /* it must not hear of it yet */
    tether_agent *former_w1 = start_again(w, 1);
    cast_call_ok(w->agents[2], "w1", "echo");
    tether_sim_pause(w->sim, w->agents[0], false);
    int64_t began = now_ms(w);
    assert_int_equal(cast_send(w->agents[0], "w2", "keep", rref, NULL), TETHER_EGONE);
    assert_in_range(now_ms(w) - began, 0, SOON_MS); /* it does not wait for it to come */
    assert_int_equal(cast_n_keeps, 0);
    tether_rref_release(rref);
    tether_agent_release(former_w1);
}

/* ---- 11 ---- */

static tether_rref *remote_node(struct tether_test_world *w, const char *to)
{
    tether_rref *rref = tether_remote(w->agents[0], to, "make_node", NULL, 10000);
    assert_confirmed(rref);
    return rref;
}

static void link_nodes(tether_rref *from, tether_rref *to)
{
    tether_value *arg = cast_text("");
    if (to)
        assert_int_equal(tether_value_attach(arg, to, NULL), TETHER_OK);
    assert_int_equal(tether_rref_sync(from, "link", arg, 10000, NULL, NULL), TETHER_OK);
    tether_value_release(arg);
}

/* w1's node refers to w2's, and that to w1's. */
static tether_rref *make_circle(struct tether_test_world *w)
{
    tether_rref *a = remote_node(w, "w1"), *b = remote_node(w, "w2");
    link_nodes(a, b);
    link_nodes(b, a);
    tether_rref_release(b);
    pass_time(w, SOON_MS);
    assert_int_equal(tether_rref_counts(w->agents[1]).owners, 1);
    assert_int_equal(tether_rref_counts(w->agents[2]).owners, 1);
    return a;
}

/* There: objects of several workers that refer to each other in a circle were never collected, and
 * nothing showed them.
 *
 * Here circles are not collected automatically either: that needs a view of all workers at once,
 * which counting does not have. But a dump shows them, with their holders and sites. A circle that
 * is opened at one place is destroyed. A circle that no program can reach does not delay a
 * shutdown, which names and releases it. When a worker of the circle dies, the rest is destroyed
 * within a lease. */
static void hole_11_dump_shows_circle_and_opening_it_destroys_it(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *a = make_circle(w);
    for (int i = 1; i <= 2; i++) {
        tether_buf text = TETHER_BUF_INIT;
        assert_int_equal(tether_rref_dump(w->agents[i], false, &text), TETHER_OK);
        assert_non_null(strstr(text.data, i == 1 ? "w2" : "held by: w1"));
        assert_non_null(strstr(text.data, "holes_test.c:"));
        tether_buf_fini(&text);
    }
    link_nodes(a, NULL);
    tether_rref_release(a);
    cast_assert_nothing_left(w);
}

static void hole_11_shutdown_is_not_delayed_by_a_circle(void **state)
{
    struct tether_test_world *w = *state;
    tether_error err = {0};
    tether_rref_release(make_circle(w));
    pass_time(w, 10 * LEASE_MS);
    assert_int_equal(cast_n_live, 2);
    int64_t began = now_ms(w);
    assert_int_equal(tether_agent_shutdown(w->agents[1], true, &err), TETHER_ELEAK);
    assert_in_range(now_ms(w) - began, 0, 1000);
    assert_non_null(strstr(err.message, "of 'w2'"));
    assert_true(tether_sim_run(w->sim, cast_has_no_forks, w->agents[2], SOON_MS));
    leave_ok(w, 2);
}

static bool one_node_is_left(void *userdata)
{
    struct tether_test_world *w = userdata;
    return cast_n_live == 1 && cast_is_idle(w->agents[2]);
}

static void hole_11_a_circle_goes_when_a_worker_of_it_dies(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref_release(make_circle(w));
    pass_time(w, SOON_MS);
    tether_sim_kill(w->sim, w->agents[1]);
    assert_true(tether_sim_run(w->sim, one_node_is_left, w, LEASE_MS + 1000));
}

#define THREE(name) cmocka_unit_test_setup_teardown(name, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        THREE(hole_01_object_is_destroyed_when_delete_overtakes_its_creation),
        THREE(hole_01_object_is_destroyed_when_delete_overtakes_a_large_creation),
        THREE(hole_02_fork_request_adds_no_fork_when_repeated_after_delete),
        THREE(hole_03_request_fails_at_once_when_object_is_destroyed),
        THREE(hole_04_call_fails_when_fork_request_is_never_delivered),
        THREE(hole_05_parent_keeps_reference_when_accept_is_lost_repeatedly),
        THREE(hole_05_parent_releases_reference_when_accepting_child_dies),
        THREE(hole_05_parent_releases_reference_when_accepting_child_is_cut_off),
        THREE(hole_06_reference_breaks_when_creation_is_sent_to_a_dead_worker),
        THREE(hole_07_forks_are_removed_when_user_crashes),
        THREE(hole_08_fork_is_removed_when_its_message_fails),
        THREE(hole_08_fork_is_removed_when_its_reply_is_not_awaited),
        cmocka_unit_test(hole_09_references_work_when_a_process_starts_a_second_agent),
        THREE(hole_10_ids_differ_when_a_creator_restarts),
        THREE(hole_10_reference_breaks_when_its_owner_restarts),
        THREE(hole_11_dump_shows_circle_and_opening_it_destroys_it),
        THREE(hole_11_shutdown_is_not_delayed_by_a_circle),
        THREE(hole_11_a_circle_goes_when_a_worker_of_it_dies),
    };
    return cmocka_run_group_tests_name("the eleven holes", tests, NULL, NULL);
}
