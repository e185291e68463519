/* Dynamic groups, each worker a process: coming and going at any time, dying on the way in, and
 * taking over from an earlier start of the same name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "rendezvous/store_tcp.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/own_store.h"
#include "tests/rpc/lib/crew.h"

#define LIMIT TETHER_TEST_LIMIT_MS

/* ---- Coming and going ---- */

enum come_and_go { ROUNDS = 3, CALLS_A_ROUND = 40, WINDOW = 8 };
enum { DONE, CALLER_DONE };
enum { ANSWERED = 8, REFUSED = 16 }; /* counters, by rank; 0 and up: calls that ran */

static tether_status work(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    struct tether_test_rank *self = userdata;
    (void)arg, (void)ret_value, (void)reterr;
    atomic_fetch_add(&crew_page(self->world)->count[self->rank], 1);
    return TETHER_OK;
}

/* Joins, serves, leaves and joins again, under load all the time. */
static void come_and_go(struct tether_test_rank *self, tether_store *store)
{
    char name[16];
    snprintf(name, sizeof name, "w%d", self->rank);
    for (int round = 0; round < ROUNDS; round++) {
        tether_error err = {0};
        int64_t before = crew_count(self->world, self->rank);
        tether_agent *agent = crew_agent(self, TETHER_AGENT_OPTS(.store = store, .name = name));
        crew_ok(tether_agent_register(agent, "work", work, self, &err), &err);
        crew_start(agent);
        assert_eventually(crew_count(self->world, self->rank) >= before + CALLS_A_ROUND);
        crew_stop(agent);
    }
    tether_test_mark(self->world, DONE);
}

/* Keeps a window of calls to every worker open until all have left for good. */
static void call_them_all(struct tether_test_rank *self, tether_store *store)
{
    tether_future *calls[8][WINDOW] = {{0}};
    tether_agent *agent = crew_agent(self, TETHER_AGENT_OPTS(.store = store, .name = "caller"));
    crew_start(agent);
    for (bool last = false; !last;) {
        last = atomic_load(&self->world->marks[DONE]) == self->size - 1;
        for (int rank = 1; rank < self->size; rank++) {
            char name[16];
            snprintf(name, sizeof name, "w%d", rank);
            for (int i = 0; i < WINDOW; i++) {
                tether_error err = {0};
                if (calls[rank][i]) {
                    tether_status st = tether_future_wait(calls[rank][i], LIMIT, NULL, &err);
                    if (st != TETHER_OK && st != TETHER_ENOTFOUND && st != TETHER_EUNAVAILABLE)
                        fail_msg("%s: %s", tether_status_name(st), err.message);
                    int counter = (st == TETHER_OK ? ANSWERED : REFUSED) + rank;
                    atomic_fetch_add(&crew_page(self->world)->count[counter], 1);
                    tether_future_release(calls[rank][i]);
                }
                calls[rank][i] = last ? NULL : tether_rpc_async(agent, name, "work", NULL, LIMIT);
            }
        }
    }
    crew_stop(agent);
}

TETHER_PROC_ROLE(guest)
{
    tether_store *store = crew_store(self->arg);
    if (rank == 0)
        call_them_all(self, store);
    else
        come_and_go(self, store);
    tether_store_release(store);
}

static void dynamic_group_serves_calls_while_workers_join_and_leave(void **state)
{
    (void)state;
    enum { N = 4 };
    char port[16];
    tether_store_server *server = crew_store_start(port);
    struct tether_test_procs *procs = tether_test_procs_start(guest, .ranks = N, .arg = port);
    for (int rank = 0; rank < N; rank++)
        assert_true(tether_test_child_wait(procs->ranks[rank], LIMIT));
    for (int rank = 1; rank < N; rank++) {
        int64_t ran = crew_count(procs->world, rank);
        int64_t answered = crew_count(procs->world, ANSWERED + rank);
        int64_t refused = crew_count(procs->world, REFUSED + rank);
        assert_true(ran >= ROUNDS * CALLS_A_ROUND);
        /* A worker that left gracefully has answered all calls that it ran. */
        if (ran != answered)
            print_error("w%d ran %lld calls, %lld answered, %lld not\n", rank, (long long)ran,
                        (long long)answered, (long long)refused);
        assert_int_equal(ran, answered);
    }
    tether_test_procs_end(procs);
    tether_store_server_release(server);
}

/* ---- A store that ends its process ---- */

/* Passes everything on to another, and at one chosen moment, before its nth call or, for odd
 * moments, right after, marks that and ends its process, or waits for another mark. */
struct trap {
    tether_store *inner;
    int moment, now;
    struct tether_test_world *world;
    int mark, wait_for; /* -1: ends it */
};

static void pass_moment(struct trap *trap)
{
    if (trap->now++ == trap->moment) {
        tether_test_mark(trap->world, trap->mark);
        if (trap->wait_for < 0)
            raise(SIGKILL);
        tether_test_await_mark(trap->world, trap->wait_for, 1);
    }
}

static tether_status run_trapped(void *userdata, struct tether__store_op *op)
{
    struct trap *trap = userdata;
    pass_moment(trap);
    tether_status st = tether__store_run(trap->inner, op);
    pass_moment(trap);
    return st;
}

static tether_store *trap_store(struct trap *trap)
{
    tether_store *store = NULL;
    assert_int_equal(tether_test_store_new(run_trapped, trap, 0, &store), TETHER_OK);
    return store;
}

/* ---- Dying on the way in ---- */

enum { ENDED, LOOKED, SPRUNG };

/* `arg`: "port moment". */
TETHER_PROC_ROLE(joiner)
{
    (void)rank;
    tether_store *inner = crew_store(self->arg);
    struct trap trap = {.inner = inner,
                        .moment = atoi(strchr(self->arg, ' ')),
                        .world = self->world,
                        .mark = SPRUNG,
                        .wait_for = -1};
    tether_store *store = trap_store(&trap);
    tether_agent *agent =
        crew_agent(self, TETHER_AGENT_OPTS(.store = store, .name = "joiner", .lease_ms = 1000));
    crew_start(agent);
    crew_call(agent, "anchor", "name", NULL, "anchor");
    crew_stop(agent);
    tether_store_release(store);
    tether_store_release(inner);
}

/* Asserts that new workers can join and call after a worker has died while joining. */
static void look_whether_all_is_well(struct tether_test_rank *self, tether_agent *anchor, int round)
{
    char name[32];
    tether_store *store = tether_agent_store(anchor);
    tether_error err = {0};
    tether_worker *workers = NULL;
    size_t n = 0;
    snprintf(name, sizeof name, "newcomer%d", round);
    tether_agent *newcomer =
        crew_agent(self, TETHER_AGENT_OPTS(.store = store, .name = name, .lease_ms = 2000));
    crew_start(newcomer);
    crew_call(newcomer, "anchor", "name", NULL, "anchor");
    crew_ok(tether_agent_workers(newcomer, &workers, &n, &err), &err);
    assert_in_range(n, 2, 3);
    tether_workers_free(workers);
    /* A call of the dead worker fails without waiting for its timeout. */
    tether_status st = tether_rpc_sync(newcomer, "joiner", "name", NULL, LIMIT, NULL, &err);
    assert_true(st == TETHER_ENOTFOUND || st == TETHER_EUNAVAILABLE);
    crew_stop(newcomer);
}

static void group_continues_when_worker_dies_while_joining(void **state)
{
    (void)state;
    char port[16], arg[32];
    tether_error err = {0};
    tether_store_server *server = crew_store_start(port);
    tether_store *store = crew_store(port);
    struct tether_test_rank nobody;
    struct tether_test_procs *procs = NULL;
    tether_agent *anchor = NULL;
    for (int moment = 0;; moment++) {
        snprintf(arg, sizeof arg, "%s %d", port, moment);
        if (!procs) {
            procs = tether_test_procs_start(joiner, .ranks = 1, .arg = arg);
            nobody = (struct tether_test_rank){.world = procs->world};
            anchor = crew_agent(
                &nobody, TETHER_AGENT_OPTS(.store = store, .name = "anchor", .lease_ms = 1000));
            crew_start(anchor);
        } else {
            tether_test_procs_restart(procs, 0, arg);
        }
        assert_true(tether_test_child_wait(procs->ranks[0], LIMIT));
        if (atomic_load(&procs->world->marks[SPRUNG]) == moment) {
            assert_true(moment > 8); /* it passed so many moments */
            break;
        }
        look_whether_all_is_well(&nobody, anchor, moment);
    }
    crew_ok(tether_agent_shutdown(anchor, true, &err), &err);
    tether_agent_release(anchor);
    tether_test_procs_end(procs);
    tether_store_release(store);
    tether_store_server_release(server);
}

/* ---- Taking over ---- */

enum { BOSS_IS_UP, OLD_IS_UP, STOPPED, NEW_IS_UP, CONTINUED, OLD_KNOWS, NEW_MAY_GO };
enum { BOSS, OLD, NEW };

static tether_reply *held_reply;

static void keep(void *userdata, const tether_value *arg, tether_reply *reply)
{
    (void)userdata, (void)arg;
    held_reply = reply;
}

static tether_status who(void *userdata,
                         const tether_value *arg,
                         tether_value **ret_value,
                         tether_error *reterr)
{
    struct tether_test_rank *self = userdata;
    (void)arg;
    return tether_value_printf(ret_value, reterr, "%d", self->rank);
}

static void run_boss(struct tether_test_rank *self, tether_agent *agent)
{
    bool shy = strchr(self->arg, '!') != NULL;
    tether_value *result = NULL;
    tether_error err = {0};
    tether_status st;
    tether_test_mark(self->world, BOSS_IS_UP);
    tether_test_await_mark(self->world, OLD_IS_UP, 1);
    crew_call(agent, "w", "who", NULL, "1");
    tether_test_mark(self->world, STOPPED); /* the test may stop it now */
    tether_test_await_mark(self->world, NEW_IS_UP, 1);
    /* A successor that has dialled this worker is found at once. Otherwise it is found when the
     * lease of the old one ends. Calls in flight to the old one fail. */
    do
        st = tether_rpc_sync(agent, "w", "who", NULL, LIMIT, &result, &err);
    while (shy && st == TETHER_EUNAVAILABLE);
    crew_ok(st, &err);
    assert_string_equal(tether_value_str(result), "2");
    tether_value_release(result);
    tether_test_mark(self->world, CONTINUED);
    tether_test_await_mark(self->world, OLD_KNOWS, 1);
    crew_call(agent, "w", "who", NULL, "2"); /* the old one's end has not touched it */
    tether_test_mark(self->world, NEW_MAY_GO);
    assert_true(tether_reply_is_cancelled(held_reply)); /* its caller is no more */
    tether_reply_ok(held_reply, NULL);
    crew_ok(tether_agent_shutdown(agent, true, &err), &err);
}

static void run_old(struct tether_test_rank *self, tether_agent *agent)
{
    tether_error err = {0};
    tether_test_await_mark(self->world, BOSS_IS_UP, 1);
    crew_call(agent, "boss", "name", NULL, "boss");
    tether_future *pending = tether_rpc_async(agent, "boss", "keep", NULL, LIMIT);
    tether_test_mark(self->world, OLD_IS_UP);
    tether_test_await_mark(self->world, CONTINUED, 2); /* by the boss, and by the test */
    tether_status st = tether_future_wait(pending, LIMIT, NULL, &err);
    assert_true(st == TETHER_EFENCED || st == TETHER_EUNAVAILABLE);
    tether_future_release(pending);
    crew_fails(tether_rpc_sync(agent, "boss", "name", NULL, LIMIT, NULL, &err), &err,
               TETHER_EFENCED, "replaced by a later start");
    crew_fails(tether_rpc_sync(agent, "boss", "name", NULL, LIMIT, NULL, &err), &err,
               TETHER_EFENCED, "replaced by a later start");
    crew_fails(tether_agent_shutdown(agent, true, &err), &err, TETHER_EFENCED,
               "replaced by a later start");
    tether_test_mark(self->world, OLD_KNOWS);
}

static void run_new(struct tether_test_rank *self, tether_agent *agent)
{
    bool shy = strchr(self->arg, '!') != NULL;
    tether_error err = {0};
    if (!shy)
        crew_call(agent, "boss", "name", NULL, "boss");
    tether_test_mark(self->world, NEW_IS_UP);
    tether_test_await_mark(self->world, NEW_MAY_GO, 1);
    crew_ok(tether_agent_shutdown(agent, true, &err), &err);
}

TETHER_PROC_ROLE(succession)
{
    tether_store *store = crew_store(self->arg);
    tether_error err = {0};
    if (rank == NEW)
        tether_test_await_mark(self->world, STOPPED, 2);
    tether_agent *agent =
        crew_agent(self, TETHER_AGENT_OPTS(.store = store, .name = rank == BOSS ? "boss" : "w",
                                           .lease_ms = 2000, .shutdown_timeout_ms = LIMIT));
    crew_ok(tether_agent_register_inline(agent, "who", who, self, &err), &err);
    crew_ok(tether_agent_register_async(agent, "keep", keep, true, NULL, &err), &err);
    crew_start(agent);
    (rank == BOSS ? run_boss : rank == OLD ? run_old : run_new)(self, agent);
    tether_agent_release(agent);
    tether_store_release(store);
}

/* With '!' the new worker makes no calls. */
static void take_over(const char *shyness)
{
    char port[16], arg[20];
    tether_store_server *server = crew_store_start(port);
    snprintf(arg, sizeof arg, "%s%s", port, shyness);
    struct tether_test_procs *procs = tether_test_procs_start(succession, .ranks = 3, .arg = arg);
    tether_test_await_mark(procs->world, STOPPED, 1);
    tether_test_signal(procs->world, OLD, SIGSTOP);
    tether_test_mark(procs->world, STOPPED);
    tether_test_await_mark(procs->world, CONTINUED, 1);
    tether_test_signal(procs->world, OLD, SIGCONT);
    tether_test_mark(procs->world, CONTINUED);
    tether_test_procs_end(procs);
    tether_store_server_release(server);
}

static void calls_reach_later_start_when_it_has_connected(void **state)
{
    (void)state;
    take_over("");
}

static void calls_reach_later_start_when_it_makes_no_calls(void **state)
{
    (void)state;
    take_over("!");
}

/* ---- Being late ---- */

enum { PAUSED, SECOND_IS_IN, FIRST_KNOWS };

/* Rank 0 is held up right after its start has been counted; meanwhile rank 1 joins under the same
 * name. */
TETHER_PROC_ROLE(latecomer)
{
    tether_error err = {0};
    tether_store *inner = crew_store(self->arg);
    struct trap trap = {.inner = inner,
                        .moment = 3, /* behind the run */
                        .world = self->world,
                        .mark = PAUSED,
                        .wait_for = SECOND_IS_IN};
    tether_store *trapped = trap_store(&trap);
    if (rank == 1)
        tether_test_await_mark(self->world, PAUSED, 1);
    tether_agent *agent =
        crew_agent(self, TETHER_AGENT_OPTS(.store = rank == 0 ? trapped : inner, .name = "twice"));
    tether_status st = tether_agent_start(agent, &err);
    if (rank == 0) {
        crew_fails(st, &err, TETHER_EEXIST, "'twice' is alive");
        tether_agent_release(agent);
        tether_test_mark(self->world, FIRST_KNOWS);
    } else {
        tether_worker worker;
        crew_ok(st, &err);
        tether_test_mark(self->world, SECOND_IS_IN);
        tether_test_await_mark(self->world, FIRST_KNOWS, 1);
        crew_ok(tether_agent_worker(agent, "twice", &worker, &err), &err);
        /* its record was neither overwritten nor removed */
        assert_int_equal(worker.incarnation, 2);
        crew_stop(agent);
    }
    tether_store_release(trapped);
    tether_store_release(inner);
}

static void earlier_start_is_refused_when_a_later_one_has_joined(void **state)
{
    (void)state;
    char port[16];
    tether_store_server *server = crew_store_start(port);
    tether_test_procs_end(tether_test_procs_start(latecomer, .ranks = 2, .arg = port));
    tether_store_server_release(server);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dynamic_group_serves_calls_while_workers_join_and_leave),
        cmocka_unit_test(group_continues_when_worker_dies_while_joining),
        cmocka_unit_test(calls_reach_later_start_when_it_has_connected),
        cmocka_unit_test(calls_reach_later_start_when_it_makes_no_calls),
        cmocka_unit_test(earlier_start_is_refused_when_a_later_one_has_joined),
    };
    return cmocka_run_group_tests_name("dynamic groups", tests, NULL, NULL);
}
