/* Calls to a worker that is known to be out of reach: they fail at once, say who died and how that
 * was noticed, and reach the worker again when it is back.
 *
 * In the tests with a killed worker the lease is ten times as long as a test may take, so nothing
 * there waits for it.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "rendezvous/store_tcp.h"
#include "rpc/agent.h"
#include "tests/lib/cmocka.h"
#include "tests/rpc/lib/certs.h"
#include "tests/rpc/lib/crew.h"

enum { LEASE_MS = 10 * TETHER_TEST_LIMIT_MS, LIMIT = TETHER_TEST_LIMIT_MS };
enum { SHORT_LEASE_MS = 1000 };
enum mark { READY, RUNS, DEAD, BACK, DONE };

/* The certificates have these names. */
static const char *const caller = "delta", *const worker = "alpha";

/* How the workers speak to each other: a role is told "way:port". ADVERTISED: the address of the
 * worker is not its own. */
enum way { NEAR, TCP, TLS, ADVERTISED, N_WAYS };

/* ---- A worker ---- */

struct place {
    tether_store *store;
    tether_agent *agent;
};

/* Runs until its process ends. */
static tether_status run_on(void *userdata,
                            const tether_value *arg,
                            tether_value **ret_value,
                            tether_error *reterr)
{
    struct tether_test_world *world = userdata;
    (void)arg, (void)ret_value, (void)reterr;
    tether_test_mark(world, RUNS);
    tether_test_await_mark(world, DONE, 1);
    return TETHER_OK;
}

static struct place take_place(struct tether_test_rank *self, int lease_ms)
{
    struct place place = {0};
    tether_error err = {0};
    enum way way = (enum way)(self->arg[0] - '0');
    place.store = crew_store(self->arg + 2);
    struct tether_agent_opts opts =
        *TETHER_AGENT_OPTS(.store = place.store, .lease_ms = lease_ms,
                           .name = self->rank ? worker : caller, .timeout_ms = LIMIT);
    opts.no_unix_socket = way != NEAR;
    if (way == TLS) {
        opts.tls_ca_pem = cert_right_ca;
        opts.tls_cert_pem = self->rank ? cert_alpha : cert_delta;
        opts.tls_key_pem = self->rank ? key_alpha : key_delta;
    }
    if (way == ADVERTISED)
        opts.advertise = "127.0.0.1:0";
    place.agent = crew_agent(self, &opts);
    crew_ok(tether_agent_register(place.agent, "run_on", run_on, self->world, &err), &err);
    crew_start(place.agent);
    return place;
}

static void leave_place(struct place *place)
{
    tether_agent_release(place->agent);
    tether_store_release(place->store);
}

static tether_worker look_at(tether_agent *agent, const char *name)
{
    tether_worker *workers = NULL, found = {0};
    tether_error err = {0};
    size_t n = 0;
    crew_ok(tether_agent_workers(agent, &workers, &n, &err), &err);
    for (size_t i = 0; i < n; i++)
        if (strcmp(workers[i].name, name) == 0)
            found = workers[i];
    tether_workers_free(workers);
    assert_string_equal(found.name, name);
    return found;
}

/* Calls a worker that may be restarting until it answers, as a user program would. */
static void call_until_it_answers(tether_agent *agent, const char *to)
{
    tether_error err = {0};
    tether_status st = TETHER_EUNAVAILABLE;
    for (int tries = 0; st == TETHER_EUNAVAILABLE && tether_test_nap(tries); tries++)
        st = tether_rpc_sync(agent, to, "name", NULL, LIMIT, NULL, &err);
    crew_ok(st, &err);
}

static void fail_many_calls(tether_agent *agent, const char *words)
{
    tether_error err = {0};
    int n_at_once = 0;
    for (int i = 0; i < 1000; i++) {
        crew_fails(tether_rpc_sync(agent, worker, "name", NULL, LIMIT, NULL, &err), &err,
                   TETHER_EUNAVAILABLE, words);
        crew_fails(err.code, &err, TETHER_EUNAVAILABLE, "(not sent");
        n_at_once += strstr(err.message, "calling 'name' failed at once (not sent): ") != NULL;
    }
    assert_true(n_at_once > 0); /* the first ones may have looked for the worker */
}

/* In the test: workers that meet in this way. */
static struct tether_test_procs *start_procs(const struct tether_test_proc_role *role,
                                             enum way way,
                                             tether_store_server **ret_server)
{
    char port[16];
    static char arg[32]; /* for processes that are started again, too */
    *ret_server = crew_store_start(port);
    snprintf(arg, sizeof arg, "%d:%s", way, port);
    return tether_test_procs_start_opts(role, &(struct tether_test_procs_opts){.arg = arg});
}

static void end_procs(struct tether_test_procs *procs, tether_store_server *server)
{
    tether_test_procs_end(procs);
    tether_store_server_release(server);
}

/* Kills the worker when it is at `mark`, and starts it again when the caller has noticed. */
static void kill_and_restart(const struct tether_test_proc_role *role, enum way way, enum mark mark)
{
    tether_store_server *server;
    struct tether_test_procs *procs = start_procs(role, way, &server);
    tether_test_await_mark(procs->world, mark, 1);
    tether_test_signal(procs->world, 1, SIGKILL);
    tether_test_await_mark(procs->world, DEAD, 1);
    tether_test_procs_restart(procs, 1, NULL);
    end_procs(procs, server);
}

/* ---- A killed worker ---- */

/* The caller calls; the worker is killed, and started again when the caller has noticed. */
TETHER_PROC_ROLE(killed)
{
    bool is_second = atomic_load(&self->world->marks[DEAD]) > 0;
    struct place place = take_place(self, LEASE_MS);
    tether_error err = {0};
    char start[32];
    if (is_second)
        tether_test_mark(self->world, BACK);
    if (rank == 1) {
        tether_test_mark(self->world, READY);
        tether_test_await_mark(self->world, DONE, 1);
    } else {
        tether_test_await_mark(self->world, READY, 1);
        tether_future *call = tether_rpc_async(place.agent, worker, "run_on", NULL, LIMIT);
        crew_fails(tether_future_wait(call, LIMIT, NULL, &err), &err, TETHER_EUNAVAILABLE,
                   "its process has ended");
        tether_future_release(call);
        tether_worker before = look_at(place.agent, worker);
        snprintf(start, sizeof start, "(start %llu)", (unsigned long long)before.incarnation);
        fail_many_calls(place.agent, start);
        fail_many_calls(place.agent, "start it again");
        assert_int_equal(look_at(place.agent, worker).state, TETHER_WORKER_DEAD);
        assert_int_equal(look_at(place.agent, caller).state, TETHER_WORKER_CONNECTED);
        tether_test_mark(self->world, DEAD);
        tether_test_await_mark(self->world, BACK, 1);
        call_until_it_answers(place.agent, worker);
        tether_worker after = look_at(place.agent, worker);
        assert_int_equal(after.state, TETHER_WORKER_CONNECTED);
        assert_true(after.incarnation > before.incarnation);
        tether_test_mark(self->world, DONE);
    }
    leave_place(&place);
}

static void calls_fail_at_once_when_worker_is_dead(void **state)
{
    (void)state;
    for (enum way way = NEAR; way <= TLS; way++)
        kill_and_restart(&killed_role, way, RUNS);
}

/* The caller knows the worker from the store alone. */
TETHER_PROC_ROLE(never_met)
{
    if (rank == 0)
        tether_test_await_mark(self->world, DEAD, 1);
    struct place place = take_place(self, LEASE_MS);
    tether_test_mark(self->world, READY);
    if (rank == 0) {
        fail_many_calls(place.agent, "its process has ended");
        assert_int_equal(look_at(place.agent, worker).state, TETHER_WORKER_DEAD);
        tether_test_mark(self->world, DONE);
    }
    tether_test_await_mark(self->world, DONE, 1);
    leave_place(&place);
}

static void first_call_fails_at_once_when_worker_died_before(void **state)
{
    (void)state;
    for (enum way way = NEAR; way <= TLS; way++) {
        tether_store_server *server;
        struct tether_test_procs *procs = start_procs(&never_met_role, way, &server);
        tether_test_await_mark(procs->world, READY, 1);
        tether_test_signal(procs->world, 1, SIGKILL);
        tether_test_mark(procs->world, DEAD);
        end_procs(procs, server);
    }
}

/* The caller has met the first start, and does not call until the second has joined. */
TETHER_PROC_ROLE(away)
{
    bool is_second = atomic_load(&self->world->marks[DEAD]) > 0;
    struct place place = take_place(self, LEASE_MS);
    tether_error err = {0};
    if (is_second)
        tether_test_mark(self->world, BACK);
    if (rank == 0) {
        tether_test_await_mark(self->world, READY, 1);
        crew_call(place.agent, worker, "name", NULL, worker);
        tether_test_mark(self->world, RUNS);
        while (look_at(place.agent, worker).state != TETHER_WORKER_DEAD)
            assert_true(tether_test_nap(0));
        tether_test_mark(self->world, DEAD);
        tether_test_await_mark(self->world, BACK, 1);
        crew_ok(tether_rpc_sync(place.agent, worker, "name", NULL, LIMIT, NULL, &err), &err);
        tether_test_mark(self->world, DONE);
    } else {
        tether_test_mark(self->world, READY);
        tether_test_await_mark(self->world, DONE, 1);
    }
    leave_place(&place);
}

static void first_call_succeeds_when_dead_worker_has_been_restarted(void **state)
{
    (void)state;
    for (enum way way = NEAR; way <= TLS; way++)
        kill_and_restart(&away_role, way, RUNS);
}

/* Only the worker calls: the caller, which has served it, learns of its death all the same. */
TETHER_PROC_ROLE(served)
{
    bool is_second = atomic_load(&self->world->marks[DEAD]) > 0;
    struct place place = take_place(self, LEASE_MS);
    tether_test_mark(self->world, READY);
    tether_test_await_mark(self->world, READY, 2);
    if (rank == 1 && !is_second) {
        crew_call(place.agent, caller, "name", NULL, caller);
        tether_test_mark(self->world, RUNS);
    } else if (rank == 0) {
        while (look_at(place.agent, worker).state != TETHER_WORKER_DEAD)
            assert_true(tether_test_nap(0));
        tether_test_mark(self->world, DEAD);
        tether_test_mark(self->world, DONE);
    }
    tether_test_await_mark(self->world, DONE, 1);
    leave_place(&place);
}

static void death_of_client_is_noticed(void **state)
{
    (void)state;
    for (enum way way = NEAR; way <= TLS; way++)
        kill_and_restart(&served_role, way, RUNS);
}

/* ---- An address that is not the worker's own ---- */

TETHER_PROC_ROLE(behind_proxy)
{
    if (rank == 0)
        tether_test_await_mark(self->world, DEAD, 1);
    struct place place = take_place(self, SHORT_LEASE_MS);
    tether_error err = {0};
    tether_test_mark(self->world, READY);
    if (rank == 0) {
        crew_fails(tether_rpc_sync(place.agent, worker, "name", NULL, LIMIT, NULL, &err), &err,
                   TETHER_EUNAVAILABLE, "is lost");
        assert_int_equal(look_at(place.agent, worker).state, TETHER_WORKER_LOST);
        tether_test_mark(self->world, DONE);
    }
    tether_test_await_mark(self->world, DONE, 1);
    leave_place(&place);
}

static void refusal_of_advertised_address_does_not_count(void **state)
{
    (void)state;
    tether_store_server *server;
    struct tether_test_procs *procs = start_procs(&behind_proxy_role, ADVERTISED, &server);
    tether_test_await_mark(procs->world, READY, 1);
    tether_test_signal(procs->world, 1, SIGKILL);
    tether_test_mark(procs->world, DEAD);
    end_procs(procs, server);
}

/* ---- A stopped worker ---- */

TETHER_PROC_ROLE(stopped)
{
    struct place place = take_place(self, SHORT_LEASE_MS);
    tether_error err = {0};
    tether_test_mark(self->world, READY);
    tether_test_await_mark(self->world, READY, 2);
    if (rank == 0) {
        tether_worker before = look_at(place.agent, worker);
        tether_future *call = tether_rpc_async(place.agent, worker, "run_on", NULL, LIMIT);
        tether_test_await_mark(self->world, RUNS, 1);
        tether_test_signal(self->world, 1, SIGSTOP);
        crew_fails(tether_future_wait(call, LIMIT, NULL, &err), &err, TETHER_EUNAVAILABLE, "lost");
        tether_future_release(call);
        crew_fails(tether_rpc_sync(place.agent, worker, "name", NULL, LIMIT, NULL, &err), &err,
                   TETHER_EUNAVAILABLE, "calls reach it again");
        assert_int_equal(look_at(place.agent, worker).state, TETHER_WORKER_LOST);
        tether_test_signal(self->world, 1, SIGCONT);
        call_until_it_answers(place.agent, worker);
        tether_worker after = look_at(place.agent, worker);
        assert_int_equal(after.state, TETHER_WORKER_CONNECTED);
        assert_int_equal(after.incarnation, before.incarnation);
        tether_test_mark(self->world, DONE);
    }
    tether_test_await_mark(self->world, DONE, 1);
    leave_place(&place);
}

static void lost_worker_is_called_again_when_it_goes_on(void **state)
{
    (void)state;
    tether_store_server *server;
    struct tether_test_procs *procs = start_procs(&stopped_role, NEAR, &server);
    end_procs(procs, server);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_fail_at_once_when_worker_is_dead),
        cmocka_unit_test(first_call_fails_at_once_when_worker_died_before),
        cmocka_unit_test(first_call_succeeds_when_dead_worker_has_been_restarted),
        cmocka_unit_test(death_of_client_is_noticed),
        cmocka_unit_test(refusal_of_advertised_address_does_not_count),
        cmocka_unit_test(lost_worker_is_called_again_when_it_goes_on),
    };
    return cmocka_run_group_tests_name("death", tests, NULL, NULL);
}
