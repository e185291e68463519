/* A worker of a static group that shuts down serves until the whole group is done, however long
 * that takes. Two programs, a thread each, take turns on one simulation, so that hours pass in no
 * time; the store that both use runs the simulation while a program waits for a key. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/threads/cond.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/own_store.h"
#include "tests/lib/wait.h"
#include "tests/rpc/lib/sim_net.h"

enum { N = 2, STEP_MS = 100, MINUTE_MS = 60 * 1000 };

/* ---- Turns ---- */

static struct {
    pthread_mutex_t mu;
    pthread_cond_t changed;
    int turn;
    bool over[N]; /* this program has ended */
} stage;
static _Thread_local int self_rank;

/* Runs on threads of its own, where cmocka cannot fail a test. */
static void await_turn_locked(void)
{
    int64_t deadline = tether__deadline_in(&tether__clock_system, TETHER_TEST_LIMIT_MS);
    while (stage.turn != self_rank)
        if (!tether__cond_wait(&stage.changed, &stage.mu, deadline)) {
            print_error("rank %d has not got its turn after %d ms\n", self_rank,
                        TETHER_TEST_LIMIT_MS);
            abort();
        }
}

static void take_turn(int rank)
{
    self_rank = rank;
    pthread_mutex_lock(&stage.mu);
    await_turn_locked();
}

static void pass_turn(void)
{
    int other = 1 - self_rank;
    if (stage.over[other])
        return;
    stage.turn = other;
    pthread_cond_broadcast(&stage.changed);
    await_turn_locked();
}

static void end_turns(void)
{
    stage.over[self_rank] = true;
    stage.turn = 1 - self_rank;
    pthread_cond_broadcast(&stage.changed);
    pthread_mutex_unlock(&stage.mu);
}

/* ---- A store in virtual time ---- */

static struct tether_sim *sim;
static tether_store *keys_here;

/* Lets the other program run, then a moment of virtual time pass. */
static void pass_time(void)
{
    pass_turn();
    tether_sim_run(sim, NULL, NULL, STEP_MS);
}

static tether_status run_in_virtual_time(void *userdata, struct tether__store_op *op)
{
    (void)userdata;
    int ms = op->timeout_ms;
    int64_t deadline = tether__deadline_in(&tether_sim_clock(sim)->base, ms);
    bool waits = op->kind == TETHER__STORE_WAIT || op->kind == TETHER__STORE_GET;
    for (bool ready = false; waits && !ready;) {
        tether_status st = tether_store_check(keys_here, op->keys, op->n, 0, &ready, &op->cause);
        if (st != TETHER_OK)
            return st;
        if (ready)
            break;
        if (tether__clock_now_ns(&tether_sim_clock(sim)->base) >= deadline)
            return tether_error_set(&op->cause, TETHER_ETIMEOUT, "no key '%s' within %d ms",
                                    op->keys[0], ms);
        pass_time();
    }
    op->timeout_ms = 0;
    return tether__store_run(keys_here, op);
}

/* ---- Two programs ---- */

struct program {
    int rank;
    void (*work)(tether_agent *agent); /* between start and shutdown; NULL: nothing */
    pthread_t thread;
    tether_status status; /* of shutdown() */
    tether_error error;
    int64_t ended_ms;
};

static tether_reply *held;

static void hold(void *userdata, const tether_value *arg, tether_reply *reply)
{
    (void)userdata, (void)arg;
    held = reply;
}

static tether_status echo(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    (void)userdata, (void)arg;
    return tether_value_printf(ret_value, reterr, "here");
}

static int64_t now_ms(void)
{
    return tether_sim_now(sim) / TETHER__NS_PER_MS;
}

static void *run_program(void *arg)
{
    struct program *program = arg;
    tether_error err = {0};
    tether_store *store = NULL;
    tether_agent *agent = NULL;
    take_turn(program->rank);
    tether_status st = tether_test_store_new(run_in_virtual_time, NULL, 0, &store);
    if (st == TETHER_OK)
        st = tether_agent_new(TETHER_AGENT_OPTS(.store = store, .rank = program->rank,
                                                .world_size = N, .hooks = tether_sim_hooks(sim)),
                              &agent, &err);
    if (st == TETHER_OK)
        st = tether_agent_register_inline(agent, "echo", echo, NULL, &err);
    if (st == TETHER_OK)
        st = tether_agent_register_async(agent, "hold", hold, true, NULL, &err);
    if (st == TETHER_OK)
        st = tether_agent_start(agent, &err);
    if (st == TETHER_OK && program->work)
        program->work(agent);
    if (st == TETHER_OK)
        st = tether_agent_shutdown(agent, true, &err);
    program->status = st;
    program->error = err;
    program->ended_ms = now_ms();
    tether_agent_release(agent);
    tether_store_release(store);
    end_turns();
    return NULL;
}

static void run_both(struct program programs[N])
{
    assert_int_equal(tether_store_hash_new(&keys_here, NULL), TETHER_OK);
    sim = tether_sim_new(7);
    held = NULL;
    stage.turn = 0;
    memset(stage.over, 0, sizeof stage.over);
    pthread_mutex_init(&stage.mu, NULL);
    tether__cond_init(&stage.changed);
    for (int i = 0; i < N; i++) {
        programs[i].rank = i;
        assert_int_equal(pthread_create(&programs[i].thread, NULL, run_program, &programs[i]), 0);
    }
    for (int i = 0; i < N; i++)
        pthread_join(programs[i].thread, NULL);
    if (held) /* its worker has stopped meanwhile: answering late is safe, and frees the call */
        tether_reply_ok(held, NULL);
    held = NULL;
    tether_sim_free(sim);
    keys_here = tether_store_release(keys_here);
    pthread_cond_destroy(&stage.changed);
    pthread_mutex_destroy(&stage.mu);
}

static void assert_graceful(const struct program *program)
{
    if (program->status != TETHER_OK)
        fail_msg("rank %d after %lld ms: %s: %s", program->rank, (long long)program->ended_ms,
                 tether_status_name(program->status), program->error.message);
}

static void pass_minutes(int minutes)
{
    int64_t until = now_ms() + (int64_t)minutes * MINUTE_MS;
    while (now_ms() < until)
        pass_time();
}

/* ---- Tests ---- */

static int n_answered;

static void work_for_an_hour(tether_agent *agent)
{
    for (int i = 0; i < 6; i++) {
        pass_minutes(10);
        n_answered += tether_rpc_sync(agent, "worker1", "echo", NULL, TETHER_DEFAULT_MS, NULL,
                                      NULL) == TETHER_OK;
    }
}

static void shutdown_serves_until_group_is_done_when_job_outlives_every_default(void **state)
{
    (void)state;
    struct program programs[N] = {{.work = work_for_an_hour}};
    n_answered = 0;
    run_both(programs);
    assert_graceful(&programs[0]);
    assert_graceful(&programs[1]);
    assert_int_equal(n_answered, 6);
    assert_true(programs[1].ended_ms >= 60 * MINUTE_MS);
}

static void answer_held(void *userdata)
{
    (void)userdata;
    tether_reply_ok(held, NULL);
    held = NULL;
}

static tether_future *long_call;

static void begin_long_call(tether_agent *agent)
{
    long_call = tether_rpc_async(agent, "worker1", "hold", NULL, -1);
    while (!held)
        pass_time();
    tether_sim_after(sim, 30 * MINUTE_MS * TETHER__NS_PER_MS, answer_held, NULL);
}

static void shutdown_waits_for_function_when_its_caller_still_waits(void **state)
{
    (void)state;
    struct program programs[N] = {{.work = begin_long_call}};
    run_both(programs);
    assert_graceful(&programs[0]);
    assert_graceful(&programs[1]);
    assert_int_equal(tether_future_wait(long_call, 0, NULL, NULL), TETHER_OK);
    long_call = tether_future_release(long_call);
}

static void begin_call_and_give_up(tether_agent *agent)
{
    assert_int_equal(tether_rpc_sync(agent, "worker1", "hold", NULL, 1000, NULL, NULL),
                     TETHER_ETIMEOUT);
    tether_sim_after(sim, 30 * MINUTE_MS * TETHER__NS_PER_MS, answer_held, NULL);
}

static void shutdown_limits_wait_for_function_when_its_caller_gave_up(void **state)
{
    (void)state;
    struct program programs[N] = {{.work = begin_call_and_give_up}};
    run_both(programs);
    assert_graceful(&programs[0]);
    assert_int_equal(programs[1].status, TETHER_ETIMEOUT);
    assert_non_null(strstr(programs[1].error.message, "1 functions"));
    assert_true(programs[1].ended_ms < 10 * MINUTE_MS);
}

static void die(tether_agent *agent)
{
    tether_sim_kill(sim, agent);
}

static void shutdown_goes_on_without_worker_that_died(void **state)
{
    (void)state;
    struct program programs[N] = {[1] = {.work = die}};
    run_both(programs);
    assert_graceful(&programs[0]);
    assert_true(programs[0].ended_ms < 5 * MINUTE_MS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shutdown_serves_until_group_is_done_when_job_outlives_every_default),
        cmocka_unit_test(shutdown_waits_for_function_when_its_caller_still_waits),
        cmocka_unit_test(shutdown_limits_wait_for_function_when_its_caller_gave_up),
        cmocka_unit_test(shutdown_goes_on_without_worker_that_died),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
