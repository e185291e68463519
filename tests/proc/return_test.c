/* References when a process is started again, is stopped, or is cut off, and comes
 * back. */
#include "base/clock.h"
#include "tests/lib/cmocka.h"
#include "tests/proc/crash.h"
#include "tests/proc/stage.h"

/* ---- What the tests share ---- */

/* When it is over, the workers have left nothing behind. */
static void end(struct stage *stage, struct tether_test_procs *procs)
{
    tether_test_procs_end(procs);
    stage_check_store(stage, false);
    stage_end(stage);
}

/* A thing of our own, which `to` is given, too. */
static tether_rref *own_and_share(struct actor *actor, const char *to, int number)
{
    tether_value *value = thing_new(number);
    tether_rref *rref = NULL;
    tether_error err = {0};
    crew_ok(tether_rref_new(actor->agent, value, &rref, &err), &err);
    tether_value_release(value);
    crew_ok(pass_on(actor, to, "keep", rref, &err), &err);
    return rref;
}

/* ---- A worker is restarted under its name ---- */

/* The lease is long: only the new start can tell that the old one is gone. */
static void is_soon(struct tether_test_rank *self)
{
    int64_t took = now_ns() - crew_count(self->world, KILLED_AT);
    assert_true(took < LONG_LEASE_MS * TETHER__NS_PER_MS);
}

/* `victim` is killed once it holds something, and started again. */
static void kill_and_restart(const struct tether_test_proc_role *role, int victim)
{
    struct stage stage;
    struct tether_test_procs *procs = crash_begin(&stage, role, 2, LONG_LEASE_MS);
    stage_await(procs, HELD, 1);
    crash_kill(procs, victim);
    tether_test_procs_restart(procs, victim, NULL);
    end(&stage, procs);
}

static void trust_the_new_owner(struct actor *actor)
{
    struct tether_test_world *world = actor->self->world;
    tether_error err = {0};
    tether_test_await_mark(world, UP, 1);
    tether_rref *old = ask_for(actor, "w0");
    crash_watch_owner(old);
    thing_touch(old, 1);
    tether_test_mark(world, HELD);
    tether_test_await_mark(world, UP, 2);
    assert_eventually(crash_n_lost == 1);
    is_soon(actor->self);
    tether_rref *new = ask_for(actor, "w0");
    tether_rref_id a = tether_rref_get_id(old), b = tether_rref_get_id(new);
    assert_int_equal(a.creator, b.creator);
    assert_int_equal(a.counter, b.counter);
    assert_true(a.incarnation < b.incarnation);
    assert_false(tether_rref_equal(old, new));
    thing_touch(new, 2);
    crew_fails(thing_try(old, 2, &err), &err, TETHER_EOWNERDIED, "'w0'");
    tether_rref_release(old);
    thing_touch(new, 2); /* releasing the old one does not affect the new one */
    assert_int_equal(tether_rref_counts(actor->agent).confirmed_users, 1);
    crew_call(actor->agent, "w0", "drop", NULL, NULL);
    thing_touch(new, 2);
    tether_rref_release(new);
    tether_test_mark(world, STOP);
}

TETHER_PROC_ROLE(restarted_owner)
{
    struct actor actor;
    actor_open(&actor, self, NULL);
    actor_start(&actor);
    if (rank == OWNER) {
        /* The first thing of each life: only the start tells it from that of another. "w0" keeps
         * it, so that "give" has it. */
        int life = atomic_load(&self->world->marks[UP]) + 1;
        tether_rref_release(own_and_share(&actor, "w0", life));
        tether_test_mark(self->world, UP);
        tether_test_await_mark(self->world, STOP, 1);
    } else {
        trust_the_new_owner(&actor);
    }
    actor_close(&actor);
}

static void references_to_old_owner_do_not_affect_the_restarted_one(void **state)
{
    (void)state;
    kill_and_restart(&restarted_owner_role, OWNER);
}

enum { THINGS = 8 };

static void make_things(struct actor *actor, int life, tether_rref *ret_held[THINGS])
{
    for (int i = 0; i < THINGS; i++)
        ret_held[i] = thing_make(actor, "w0", life * 100 + i);
}

static void touch_things(int life, tether_rref *const held[THINGS])
{
    for (int i = 0; i < THINGS; i++)
        thing_touch(held[i], life * 100 + i);
}

TETHER_PROC_ROLE(restarted_user)
{
    struct actor actor;
    tether_rref *held[THINGS];
    actor_open(&actor, self, NULL);
    actor_start(&actor);
    if (rank == USER) {
        int life = atomic_load(&self->world->marks[HELD]) + 1;
        make_things(&actor, life, held);
        tether_test_mark(self->world, HELD);
        tether_test_await_mark(self->world, RELEASED, 1); /* the first life is killed here */
        touch_things(life, held);
        for (int i = 0; i < THINGS; i++)
            tether_rref_release(held[i]);
    } else {
        tether_test_await_mark(self->world, HELD, 2);
        is_soon(
            self); /* the first start's references were released when the second start connected */
        assert_eventually(tether_rref_counts(actor.agent).forks == THINGS);
        assert_eventually(things_alive == THINGS);
        is_soon(self);
        tether_test_mark(self->world, RELEASED);
        assert_eventually(things_alive == 0);
    }
    actor_close(&actor);
}

static void references_of_old_user_do_not_affect_the_restarted_one(void **state)
{
    (void)state;
    kill_and_restart(&restarted_user_role, USER);
}

/* The old process is only stopped, and continues after the new one has taken its place. */
TETHER_PROC_ROLE(stale)
{
    enum { STALE = USER, NEW = OTHER };
    struct actor actor;
    tether_rref *held[THINGS];
    tether_error err = {0};
    struct tether_test_world *world = self->world;
    if (rank == NEW)
        tether_test_await_mark(world, KILLED, 1); /* stopped, that is */
    actor_open(&actor, self,
               &(struct actor_opts){
                   .name = rank == OWNER ? "w0" : "w1", .wait_for = 2, .take_over = rank == NEW});
    actor_start(&actor);
    if (rank == OWNER) {
        tether_test_await_mark(world, HELD, 2);
        assert_eventually(tether_rref_counts(actor.agent).forks == THINGS);
        tether_test_mark(world, RELEASED);
        tether_test_await_mark(world, STOP, 1);
        assert_int_equal(tether_rref_counts(actor.agent).forks, THINGS);
        tether_test_mark(world, NEXT);
        actor_close(&actor);
        return;
    }
    make_things(&actor, rank, held);
    for (int i = 0; i < THINGS; i++)
        crash_watch_owner(held[i]);
    tether_test_mark(world, HELD);
    if (rank == STALE) {
        tether_test_await_mark(world, KILLED, 2); /* goes on */
        assert_eventually(crash_n_lost == THINGS);
        for (int i = 0; i < THINGS; i++) {
            crew_fails(thing_try(held[i], rank * 100 + i, &err), &err, TETHER_EOWNERDIED, "'w0'");
            tether_rref_release(held[i]);
        }
        await_nothing(actor.agent);
        /* w0 has refused it. It believes w0 once the directory confirms that. */
        assert_eventually(tether_rpc_sync(actor.agent, "nobody", "name", NULL, LIMIT, NULL, NULL) ==
                          TETHER_EFENCED);
        crew_fails(tether_agent_shutdown(actor.agent, true, &err), &err, TETHER_EFENCED,
                   "replaced by a later start");
        tether_agent_release(actor.agent);
        tether_store_release(actor.store);
        tether_test_mark(world, STOP);
        return;
    }
    tether_test_await_mark(world, NEXT, 1);
    touch_things(rank, held);
    assert_int_equal(crash_n_lost, 0);
    for (int i = 0; i < THINGS; i++)
        tether_rref_release(held[i]);
    actor_close(&actor);
}

static void messages_of_a_stale_incarnation_have_no_effect(void **state)
{
    (void)state;
    struct stage stage;
    struct tether_test_procs *procs = crash_begin(&stage, &stale_role, 3, LONG_LEASE_MS);
    stage_await(procs, HELD, 1);
    tether_test_signal(procs->world, USER, SIGSTOP);
    tether_test_mark(procs->world, KILLED);
    stage_await(procs, RELEASED, 1);
    tether_test_signal(procs->world, USER, SIGCONT);
    tether_test_mark(procs->world, KILLED);
    end(&stage, procs);
}

/* ---- Apart for longer than the lease, and together again ---- */

enum { HEALED = 30 };

/* Each holds a thing of the other's that it made, and one that it was given. */
TETHER_PROC_ROLE(estranged)
{
    struct actor actor;
    const char *other = rank == 0 ? "w1" : "w0";
    actor_open(&actor, self, NULL);
    actor_start(&actor);
    tether_rref *own = own_and_share(&actor, other, rank);
    tether_rref *made = thing_make(&actor, other, 10 + rank);
    assert_eventually(n_held() == 1);
    crash_watch_owner(made);
    crash_watch_owner(held_at(0));
    tether_test_mark(self->world, HELD);

    assert_eventually(crash_n_lost == 2);
    crash_is_of_no_use(&actor, made, other, other);
    crash_is_of_no_use(&actor, held_at(0), other, other);
    assert_eventually(tether_rref_counts(actor.agent).forks == 0); /* nor has the other any */
    assert_eventually(things_alive == 1); /* our own, which we hold; destructors run later */
    tether_test_mark(self->world, NOTICED + rank);

    tether_test_await_mark(self->world, HEALED, 1);
    tether_rref *new = thing_make(&actor, other, 20 + rank);
    thing_touch(new, 20 + rank);
    crash_is_of_no_use(&actor, made, other, other); /* a broken reference stays broken */
    assert_int_equal(crash_n_lost, 2);
    tether_rref_release(new);
    tether_rref_release(made);
    tether_rref_release(own);
    tether_test_mark(self->world, STOP);
    tether_test_await_mark(self->world, STOP, 2);
    actor_close(&actor);
}

static void both_sides_of_a_partition_break_their_references(void **state)
{
    (void)state;
    if (stage_is_local())
        skip(); /* a host is not divided */
    struct stage stage;
    struct tether_test_procs *procs = crash_begin(&stage, &estranged_role, 2, 2 * LEASE_MS);
    stage_await(procs, HELD, 2);
    stage_swallow(&stage);
    stage_await(procs, NOTICED, 1);
    stage_await(procs, NOTICED + 1, 1);
    stage_cut(&stage, false);
    tether_test_mark(procs->world, HEALED);
    end(&stage, procs);
}

static void fenced_worker_breaks_its_references(void **state)
{
    (void)state;
    struct stage stage;
    struct tether_test_procs *procs = crash_begin(&stage, &estranged_role, 2, 2 * LEASE_MS);
    stage_await(procs, HELD, 2);
    tether_test_signal(procs->world, 1, SIGSTOP);
    stage_await(procs, NOTICED, 1);
    tether_test_signal(procs->world, 1, SIGCONT);
    stage_await(procs, NOTICED + 1, 1);
    tether_test_mark(procs->world, HEALED);
    end(&stage, procs);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(references_to_old_owner_do_not_affect_the_restarted_one),
        cmocka_unit_test(references_of_old_user_do_not_affect_the_restarted_one),
        cmocka_unit_test(messages_of_a_stale_incarnation_have_no_effect),
        cmocka_unit_test(both_sides_of_a_partition_break_their_references),
        cmocka_unit_test(fenced_worker_breaks_its_references),
    };
    return cmocka_run_group_tests_name("references and processes that die", tests, NULL, NULL);
}
