/* Static groups, each rank a process: shutting down together without losing a call or waiting for
 * the dead. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/port.h"
#include "tests/rpc/group/static_group.h"
#include "tests/rpc/lib/crew.h"

/* ---- Shutting down under way ---- */

enum { HOPS, LEAVES, RELAYS, CHAINS = 20, LENGTH = 12 };

struct hopper {
    struct tether_test_rank *self;
    tether_agent *agent;
};

static void send_on(struct hopper *hopper, const char *fn, int hops, tether_future_cb *then)
{
    char to[32];
    tether_value *arg = crew_text("%d", hops);
    tether_error err = {0};
    snprintf(to, sizeof to, "worker%d", (hopper->self->rank + 1 + hops % 2) % hopper->self->size);
    tether_future *future = tether_rpc_async(hopper->agent, to, fn, arg, TETHER_DEFAULT_MS);
    crew_ok(tether_future_then(future, then, hopper), &err);
    tether_future_release(future);
    tether_value_release(arg);
}

static void must_have_worked(tether_future *future, void *userdata)
{
    (void)userdata;
    tether_error err = {0};
    crew_ok(tether_future_wait(future, 0, NULL, &err), &err);
}

/* A callback that makes a call. No other callback depends on it. */
static void leave_a_leaf(tether_future *future, void *userdata)
{
    struct hopper *hopper = userdata;
    tether_error err = {0};
    crew_ok(tether_future_wait(future, 0, NULL, &err), &err);
    char leaf[16];
    snprintf(leaf, sizeof leaf, "%d", LEAVES);
    tether_value *arg = crew_text("%s", leaf);
    tether_future *call =
        tether_rpc_async(hopper->agent, "worker0", "count", arg, TETHER_DEFAULT_MS);
    crew_ok(tether_future_then(call, must_have_worked, NULL), &err);
    tether_future_release(call);
    tether_value_release(arg);
}

/* Counts itself and goes on from here, without being waited for. */
static tether_status hop(void *userdata,
                         const tether_value *arg,
                         tether_value **ret_value,
                         tether_error *reterr)
{
    (void)ret_value, (void)reterr;
    struct hopper *hopper = userdata;
    int hops = atoi(tether_value_str(arg));
    atomic_fetch_add(&crew_page(hopper->self->world)->count[HOPS], 1);
    if (hops > 0)
        send_on(hopper, "hop", hops - 1, leave_a_leaf);
    return TETHER_OK;
}

/* Counts itself once those after it have, each of them waited for. */
static tether_status relay(void *userdata,
                           const tether_value *arg,
                           tether_value **ret_value,
                           tether_error *reterr)
{
    (void)ret_value;
    struct hopper *hopper = userdata;
    int hops = atoi(tether_value_str(arg));
    tether_status st = TETHER_OK;
    if (hops > 0) {
        char to[32];
        tether_value *next = crew_text("%d", hops - 1);
        snprintf(to, sizeof to, "worker%d", (hopper->self->rank + 1) % hopper->self->size);
        st = tether_rpc_sync(hopper->agent, to, "relay", next, TETHER_DEFAULT_MS, NULL, reterr);
        tether_value_release(next);
    }
    if (st == TETHER_OK)
        atomic_fetch_add(&crew_page(hopper->self->world)->count[RELAYS], 1);
    return st;
}

/* Starts chains of calls and shuts down at once: the others are anywhere between start and end. */
TETHER_PROC_ROLE(leaves_amid_calls)
{
    char url[512];
    tether_error err = {0};
    struct hopper hopper = {self, NULL};
    hopper.agent = crew_agent(
        self,
        TETHER_AGENT_OPTS(.rendezvous = group_url(self, url, sizeof url), .threads = CHAINS * N));
    crew_ok(tether_agent_register(hopper.agent, "hop", hop, &hopper, &err), &err);
    crew_ok(tether_agent_register(hopper.agent, "relay", relay, &hopper, &err), &err);
    crew_start(hopper.agent);
    for (int i = 0; i < CHAINS; i++)
        send_on(&hopper, i % 2 ? "hop" : "relay", i % 2 ? LENGTH : 3, must_have_worked);
    crew_stop(hopper.agent);
}

static void graceful_shutdown_loses_no_call(void **state)
{
    (void)state;
    char places[2][256];
    group_file_place(places[0], sizeof places[0]);
    snprintf(places[1], sizeof places[1], "tcp://127.0.0.1:%d", tether_test_quiet_port());
    for (int i = 0; i < 2; i++) {
        struct tether_test_procs *procs =
            tether_test_procs_start(leaves_amid_calls, .ranks = N, .arg = places[i]);
        for (int rank = 0; rank < N; rank++)
            assert_true(tether_test_child_wait(procs->ranks[rank], TETHER_TEST_LIMIT_MS));
        int64_t hops = crew_count(procs->world, HOPS), leaves = crew_count(procs->world, LEAVES),
                relays = crew_count(procs->world, RELAYS);
        tether_test_procs_end(procs);
        assert_int_equal(hops, N * CHAINS / 2 * (LENGTH + 1));
        assert_int_equal(leaves, N * CHAINS / 2 * LENGTH);
        assert_int_equal(relays, N * CHAINS / 2 * 4);
    }
}

/* ---- The dead ---- */

/* Rank 2 is killed. No other rank has connected to it, except rank 3 if `arg` says so. */
TETHER_PROC_ROLE(survivor)
{
    char url[512];
    tether_agent *agent = crew_agent(
        self, TETHER_AGENT_OPTS(.rendezvous = group_url(self, url, sizeof url), .lease_ms = 1500));
    crew_start(agent);
    if (rank == 3)
        crew_call(agent, "worker2", "name", NULL, "worker2");
    tether_test_mark(self->world, STARTED);
    tether_test_await_mark(self->world, KILLED, 1);
    crew_stop(agent);
}

static void graceful_shutdown_skips_dead_workers(void **state)
{
    (void)state;
    char places[2][256];
    group_file_place(places[0], sizeof places[0]);
    snprintf(places[1], sizeof places[1], "tcp://127.0.0.1:%d", tether_test_quiet_port());
    for (int i = 0; i < 2; i++) {
        struct tether_test_procs *procs =
            tether_test_procs_start(survivor, .ranks = N, .arg = places[i]);
        tether_test_await_mark(procs->world, STARTED, N);
        tether_test_signal(procs->world, 2, SIGKILL);
        tether_test_mark(procs->world, KILLED);
        tether_test_procs_end(procs); /* within its limit, not within shutdown_timeout_ms */
    }
}

/* Rank 0 hosts the store, and is killed. The others can still call each other; that they cannot
 * leave together any more they are told, not kept waiting. */
static _Atomic bool has_heard_of_rank_0;

static void on_log(void *userdata, tether_log_level level, const char *area, const char *message)
{
    (void)userdata, (void)area;
    if (level == TETHER_LOG_WARN && strstr(message, "rank 0 ('worker0') is gone") &&
        strstr(message, "if it hosted the store, nobody can join any more"))
        atomic_store(&has_heard_of_rank_0, true);
}

TETHER_PROC_ROLE(orphan)
{
    char url[512];
    tether_error err = {0};
    tether_set_log(TETHER_LOG_WARN, on_log, NULL);
    tether_agent *agent = crew_agent(
        self, TETHER_AGENT_OPTS(.rendezvous = group_url(self, url, sizeof url), .lease_ms = 1500,
                                .shutdown_timeout_ms = 2 * TETHER_TEST_LIMIT_MS));
    crew_start(agent);
    if (rank != 0)
        crew_call(agent, "worker0", "name", NULL, NULL);
    tether_test_mark(self->world, STARTED);
    tether_test_await_mark(self->world, KILLED, 1);
    assert_eventually(atomic_load(&has_heard_of_rank_0)); /* long before it shuts down */
    crew_call(agent, rank == 1 ? "worker2" : "worker1", "name", NULL, NULL);
    tether_test_mark(self->world, STOPPED);
    tether_test_await_mark(self->world, STOPPED, 2);
    /* A call of one's own is finished all the same, and the other hears that this one leaves. */
    tether_future *last = tether_rpc_async(agent, rank == 1 ? "worker2" : "worker1", "name", NULL,
                                           TETHER_TEST_LIMIT_MS);
    crew_fails(tether_agent_shutdown(agent, true, &err), &err, TETHER_EUNAVAILABLE,
               "this worker has finished its calls and left alone");
    assert_string_equal(err.message + strlen(err.message) - 12, " run there?)");
    tether_status answer = tether_future_wait(last, TETHER_TEST_LIMIT_MS, NULL, &err);
    if (answer != TETHER_OK && answer != TETHER_EUNAVAILABLE) /* the other may have left before */
        fail_msg("%s", err.message);
    tether_future_release(last);
    tether_agent_release(agent);
}

static void graceful_shutdown_reports_when_the_store_is_gone(void **state)
{
    (void)state;
    char place[64];
    snprintf(place, sizeof place, "tcp://127.0.0.1:%d", tether_test_quiet_port());
    struct tether_test_procs *procs = tether_test_procs_start(orphan, .ranks = 3, .arg = place);
    tether_test_await_mark(procs->world, STARTED, 3);
    tether_test_signal(procs->world, 0, SIGKILL);
    tether_test_mark(procs->world, KILLED);
    tether_test_procs_end(procs);
}

/* Kills itself in the middle of shutting down: when it has been asked to run a function for the
 * third time. */
static tether_status die_at_three(void *userdata,
                                  const tether_value *arg,
                                  tether_value **ret_value,
                                  tether_error *reterr)
{
    (void)arg, (void)ret_value, (void)reterr;
    struct hopper *hopper = userdata;
    if (atomic_fetch_add(&crew_page(hopper->self->world)->count[HOPS], 1) == 2)
        raise(SIGKILL);
    return TETHER_OK;
}

TETHER_PROC_ROLE(dies_in_shutdown)
{
    tether_error err = {0};
    char url[512];
    struct hopper hopper = {self, NULL};
    hopper.agent = crew_agent(
        self, TETHER_AGENT_OPTS(.rendezvous = group_url(self, url, sizeof url), .lease_ms = 1500));
    crew_ok(tether_agent_register(hopper.agent, "die", die_at_three, &hopper, &err), &err);
    crew_start(hopper.agent);
    if (rank == 0) { /* from here on rank 1 waits for us in its shutdown */
        tether_test_await_mark(self->world, STARTED, 2);
        for (int i = 0; i < 3; i++) {
            tether_status st = tether_rpc_sync(hopper.agent, "worker1", "die", NULL,
                                               TETHER_TEST_LIMIT_MS, NULL, &err);
            crew_fails(st, &err, i < 2 ? TETHER_OK : TETHER_EUNAVAILABLE, "worker1");
        }
    } else {
        tether_test_mark(self->world, STARTED);
    }
    crew_stop(hopper.agent);
}

static void graceful_shutdown_skips_worker_that_dies_meanwhile(void **state)
{
    (void)state;
    char place[256];
    group_file_place(place, sizeof place);
    tether_test_procs_end(tether_test_procs_start(dies_in_shutdown, .ranks = 3, .arg = place,
                                                  .dies = {[1] = SIGKILL}));
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(graceful_shutdown_loses_no_call),
        cmocka_unit_test(graceful_shutdown_skips_dead_workers),
        cmocka_unit_test(graceful_shutdown_reports_when_the_store_is_gone),
        cmocka_unit_test(graceful_shutdown_skips_worker_that_dies_meanwhile),
    };
    return cmocka_run_group_tests_name("static groups", tests, NULL, NULL);
}
