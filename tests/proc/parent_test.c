/* A reference is in flight when the process that passed it on (the parent) dies, or is declared
 * dead by the owner. Either the receiver (the child) gets a confirmed reference, or its function
 * does not run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/lib/cmocka.h"
#include "tests/proc/stage.h"

enum { LEASE_MS = 3000, LONG_LEASE_MS = 30000 };
enum { OWNER, PARENT, CHILD };
enum { UP, HELD, NEXT, ARRIVED, RELEASED, SETTLED, STOP }; /* marks */

/* ---- It dies before the owner has heard of the child ---- */

/* The parent passes a reference to the child and dies before the owner has heard of the child: the
 * object goes with it. No function of the child's has seen the reference, and a call whose reply
 * had it fails, for one reason or the other. */
static void run_orphan(struct actor *actor, bool in_reply)
{
    struct tether_test_world *world = actor->self->world;
    tether_error err = {0};
    crew_call(actor->agent, "w0", "name", NULL, "w0"); /* a stream to the owner is there */
    tether_test_mark(world, UP);
    tether_test_await_mark(world, NEXT, 1); /* from here on the network drops everything */
    tether_future *reply =
        in_reply ? tether_rpc_async(actor->agent, "w1", "give", NULL, LIMIT) : NULL;
    tether_test_mark(world, HELD);
    assert_eventually(tether_rref_counts(actor->agent).pending_users == 1);
    tether_test_mark(world, ARRIVED);
    if (in_reply) {
        tether_status st = tether_future_wait(reply, LIMIT, NULL, &err);
        assert_true(st == TETHER_EGONE || st == TETHER_EUNAVAILABLE);
        tether_future_release(reply);
    }
    assert_eventually(tether_rref_counts(actor->agent).pending_users == 0);
    assert_int_equal(n_held(), 0);
    await_nothing(actor->agent);
    tether_test_mark(world, STOP);
}

TETHER_PROC_ROLE(orphan)
{
    struct actor actor;
    bool in_reply = strstr(self->arg, " reply ") != NULL;
    bool second_life = atomic_load(&self->world->marks[ARRIVED]) > 0;
    actor_open(&actor, self, NULL);
    actor_start(&actor);
    if (rank == CHILD)
        run_orphan(&actor, in_reply);
    if (rank == PARENT && !second_life) {
        tether_error err = {0};
        tether_rref *rref = thing_make(&actor, "w0", 1);
        crew_ok(pass_on(&actor, "w1", "keep", rref, &err), &err); /* to itself, for "give" */
        tether_test_mark(self->world, UP);
        tether_test_await_mark(self->world, HELD, 1);
        if (!in_reply)
            tether_future_release(pass_on_async(&actor, "w2", "keep", rref));
    }
    if (rank == PARENT && second_life) /* so that the owner knows */
        crew_call(actor.agent, "w0", "name", NULL, "w0");
    tether_test_await_mark(self->world, STOP, 1);
    actor_close(&actor);
}

static void run_gone_with_its_parent(const char *words)
{
    struct stage stage;
    stage_start(&stage, 3, 9000, words); /* the child dials the owner anew after 6 s of silence */
    struct tether_test_procs *procs = tether_test_procs_start(orphan, .ranks = 3, .arg = stage.arg);
    stage_await(procs, UP, 2);
    tether_test_proxy_strand(stage.proxies[OWNER]);
    tether_test_mark(procs->world, NEXT);
    stage_await(procs, ARRIVED, 1);
    tether_test_signal(procs->world, PARENT, SIGKILL);
    tether_test_procs_restart(procs, PARENT, NULL);
    tether_test_procs_end(procs);
    stage_end(&stage);
}

static void reference_in_call_is_gone_when_parent_dies(void **state)
{
    (void)state;
    run_gone_with_its_parent("call");
}

static void reference_in_reply_is_gone_when_parent_dies(void **state)
{
    (void)state;
    run_gone_with_its_parent("reply");
}

/* The same with a parent that is only stopped, until the owner has given it up: it lives to hear
 * why its call was refused. The child is more patient than the owner, and cannot reach it
 * meanwhile. */
TETHER_PROC_ROLE(foster)
{
    struct actor actor;
    struct tether_test_world *world = self->world;
    tether_error err = {0};
    actor_open(&actor, self, &(struct actor_opts){.lease_ms = rank == CHILD ? LONG_LEASE_MS : 0});
    actor_start(&actor);
    if (rank == PARENT) {
        tether_rref *rref = thing_make(&actor, "w0", 1);
        tether_test_mark(world, HELD);
        tether_test_await_mark(world, NEXT, 1); /* no worker reaches the owner from here on */
        crew_fails(pass_on(&actor, "w2", "keep", rref, &err), &err, TETHER_EGONE, "");
        tether_rref_release(rref);
        tether_test_mark(world, STOP);
    }
    if (rank == CHILD) {
        assert_eventually(tether_rref_counts(actor.agent).pending_users == 1);
        tether_test_mark(world, ARRIVED);
        tether_test_await_mark(world, STOP, 1);
        assert_int_equal(n_held(), 0);
    }
    if (rank == OWNER) {
        tether_test_await_mark(world, ARRIVED, 1);
        assert_eventually(things_alive == 0);
        tether_test_mark(world, RELEASED);
    }
    tether_test_await_mark(world, STOP, 1);
    actor_close(&actor);
}

static void passed_reference_is_gone_when_parent_is_fenced(void **state)
{
    (void)state;
    struct stage stage;
    stage_start(&stage, 3, LEASE_MS, "");
    struct tether_test_procs *procs = tether_test_procs_start(foster, .ranks = 3, .arg = stage.arg);
    stage_await(procs, HELD, 1);
    tether_test_proxy_cut(stage.proxies[OWNER], true);
    tether_test_mark(procs->world, NEXT);
    stage_await(procs, ARRIVED, 1);
    tether_test_signal(procs->world, PARENT, SIGSTOP);
    stage_await(procs, RELEASED, 1);
    tether_test_proxy_cut(stage.proxies[OWNER], false);
    tether_test_signal(procs->world, PARENT, SIGCONT);
    tether_test_procs_end(procs);
    stage_check_store(&stage, false);
    stage_end(&stage);
}

/* The parent passes on many references in calls and is killed meanwhile; this is repeated, each
 * time a little later. All references that the child's function has received are confirmed and
 * usable. All others leave no trace at the owner. */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { LIVES = 5, LATER_US = 4000 };
#else
enum { LIVES = 20, LATER_US = 200 };
#endif
enum { PASSED = 60, N_CAME = 0 /* a counter */ };

/* The last life lives. */
static void pass_many(struct actor *actor)
{
    struct tether_test_world *world = actor->self->world;
    int life = atomic_load(&world->marks[HELD]) + 1;
    tether_rref *rrefs[PASSED];
    tether_future *calls[PASSED];
    tether_error err = {0};
    for (int i = 0; i < PASSED; i++)
        rrefs[i] = thing_make(actor, "w0", 7);
    tether_test_mark(world, HELD);
    tether_test_await_mark(world, SETTLED, life - 1);
    tether_test_mark(world, NEXT);
    for (int i = 0; i < PASSED; i++) {
        calls[i] = pass_on_async(actor, "w2", "keep", rrefs[i]);
        tether_rref_release(rrefs[i]);
    }
    for (int i = 0; i < PASSED; i++) {
        crew_ok(tether_future_wait(calls[i], LIMIT, NULL, &err), &err);
        tether_future_release(calls[i]);
    }
}

static void touch_what_came(void)
{
    for (int i = 0; i < n_held(); i++)
        thing_touch(held_at(i), 7);
}

/* The child knows the successor of the dead parent, so no further reference of the parent can
 * arrive. */
static void look_at_what_came(struct actor *actor)
{
    tether_status st;
    do
        st = tether_rpc_sync(actor->agent, "w1", "name", NULL, LIMIT, NULL, NULL);
    while (st == TETHER_EUNAVAILABLE);
    assert_int_equal(st, TETHER_OK);
    assert_eventually(tether_rref_counts(actor->agent).pending_users == 0);
    assert_eventually(tether_rref_counts(actor->agent).confirmed_users == (size_t)n_held());
    touch_what_came();
    atomic_fetch_add(&crew_page(actor->self->world)->count[N_CAME], n_held());
    drop_held();
    await_nothing(actor->agent);
}

TETHER_PROC_ROLE(midst)
{
    struct actor actor;
    actor_open(&actor, self, NULL);
    actor_start(&actor);
    if (rank == PARENT)
        pass_many(&actor);
    for (int life = 1; rank == CHILD && life <= LIVES; life++) {
        tether_test_await_mark(self->world, HELD, life + 1); /* the next one is up */
        look_at_what_came(&actor);
        tether_test_mark(self->world, SETTLED);
    }
    if (rank == CHILD) {
        assert_eventually(n_held() == PASSED);
        touch_what_came();
        tether_test_mark(self->world, STOP);
    }
    tether_test_await_mark(self->world, STOP, 1);
    actor_close(&actor);
}

static void received_references_work_when_parent_dies(void **state)
{
    (void)state;
    struct stage stage;
    stage_start(&stage, 3, LONG_LEASE_MS, "");
    struct tether_test_procs *procs =
        tether_test_procs_start(midst, .ranks = 3, .arg = stage.arg, .timeout_ms = 3 * LIMIT);
    for (int life = 1; life <= LIVES; life++) {
        const struct timespec moment = {0, (life - 1) * LATER_US * 1000L};
        stage_await(procs, NEXT, life);
        nanosleep(&moment, NULL); /* not to wait for anything: to hit another moment each time */
        tether_test_signal(procs->world, PARENT, SIGKILL);
        tether_test_procs_restart(procs, PARENT, NULL);
    }
    stage_await(procs, STOP, 1);
    print_message("%lld of %d references came from %d parents that died\n",
                  (long long)crew_count(procs->world, N_CAME), LIVES * PASSED, LIVES);
    tether_test_procs_end(procs);
    stage_check_store(&stage, false);
    stage_end(&stage);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_in_call_is_gone_when_parent_dies),
        cmocka_unit_test(reference_in_reply_is_gone_when_parent_dies),
        cmocka_unit_test(passed_reference_is_gone_when_parent_is_fenced),
        cmocka_unit_test(received_references_work_when_parent_dies),
    };
    return cmocka_run_group_tests_name("references whose parents die", tests, NULL, NULL);
}
