/* References when the process that holds them, or the one that owns the object, dies.
 *
 * Where something must happen within a lease and a second, it is tried several times and must be on
 * time once: a busy machine is late now and then, a mistake always is. That it happens at all is
 * asked of every try.
 */
#include "tests/proc/crash.h"
#include "base/clock.h"
#include "tests/lib/cmocka.h"
#include "tests/proc/stage.h"

/* ---- What the tests share ---- */

static bool on_time(struct tether_test_rank *self)
{
    int64_t took = now_ns() - crew_count(self->world, KILLED_AT);
    return took <= (LEASE_MS + 1000) * TETHER__NS_PER_MS;
}

/* ---- A user dies ---- */

/* Holds things of the owner's, some of them only passed on, until it is killed. */
static void hold_until_killed(struct actor *actor)
{
    enum { N = 20 };
    tether_rref *held[N];
    tether_error err = {0};
    for (int i = 0; i < N; i++) {
        held[i] = thing_make(actor, "w0", i);
        thing_touch(held[i], i);
    }
    crew_ok(pass_on(actor, "w2", "keep", held[0], &err), &err);
    tether_rref_release(
        tether_remote(actor->agent, "w0", "make_never", NULL, LIMIT)); /* not even made yet */
    tether_test_mark(actor->self->world, HELD);
    tether_test_await_mark(actor->self->world, STOP, 1);
}

/* Of each life of the user only what it passed on is left. */
static void outlive_users(struct actor *actor)
{
    struct tether_test_world *world = actor->self->world;
    for (int life = 1; !atomic_load(&world->marks[STOP]); life++) {
        tether_test_await_mark(world, KILLED, life);
        if (atomic_load(&world->marks[STOP]))
            break;
        assert_eventually(tether_rref_counts(actor->agent).forks == (size_t)life);
        if (on_time(actor->self))
            tether_test_mark(world, IN_TIME);
        tether_test_mark(world, RELEASED);
    }
}

TETHER_PROC_ROLE(bequest)
{
    struct actor actor;
    actor_open(&actor, self, NULL);
    actor_start(&actor);
    tether_test_mark(self->world, UP);
    if (rank == USER)
        hold_until_killed(&actor);
    if (rank == OWNER)
        outlive_users(&actor);
    tether_test_await_mark(self->world, STOP, 1);
    if (rank == OTHER) /* it still has the reference that it was given */
        thing_touch(held_at(0), 0);
    actor_close(&actor);
}

static void references_of_user_are_released_when_it_dies(void **state)
{
    (void)state;
    struct stage stage;
    struct tether_test_procs *procs = crash_begin(&stage, &bequest_role, 3, LEASE_MS);
    struct tether_test_world *world = procs->world;
    for (int life = 1; life <= TRIES && !atomic_load(&world->marks[IN_TIME]); life++) {
        if (life > 1)
            tether_test_procs_restart(procs, USER, NULL);
        stage_await(procs, HELD, life);
        crash_kill(procs, USER);
        tether_test_mark(world, KILLED);
        stage_await(procs, RELEASED, life);
    }
    assert_true(atomic_load(&world->marks[IN_TIME]) > 0);
    tether_test_mark(world, STOP);
    tether_test_mark(world, KILLED);
    tether_test_procs_end(procs);
    stage_end(&stage);
}

/* ---- The owner dies ---- */

/* Waits in every way there is for an owner that dies. */
static void bury_owner(struct actor *actor, int life)
{
    struct tether_test_world *world = actor->self->world;
    const char *third = actor->self->rank == 1 ? "w2" : "w1";
    tether_error err = {0};
    atomic_store(&crash_n_lost, 0);
    tether_rref *made = thing_make(actor, "w0", life);
    tether_rref *unmade = tether_remote(actor->agent, "w0", "make_never", NULL, LIMIT);
    crew_ok(pass_on(actor, third, "keep", made, &err), &err);
    assert_eventually(n_held() == 1);
    tether_rref *given = tether_rref_retain(held_at(0));
    drop_held();
    crash_watch_owner(made);
    crash_watch_owner(unmade);
    crash_watch_owner(given);
    tether_future *waiting[] = {
        tether_rref_async(made, "linger", NULL, LIMIT),
        tether_rref_async(given, "linger", NULL, LIMIT),
        tether_rref_to_here_async(unmade, LIMIT),
        tether_rref_async(unmade, "touch", NULL, LIMIT),
    };
    tether_test_mark(world, HELD);
    tether_test_await_mark(world, KILLED, life);
    for (size_t i = 0; i < TETHER__ARRAY_LEN(waiting); i++)
        crash_ends_with_owner(waiting[i], "w0");
    assert_eventually(crash_n_lost == 3);
    if (on_time(actor->self))
        tether_test_mark(world, IN_TIME);
    crash_is_of_no_use(actor, made, "w0", third);
    crash_is_of_no_use(actor, given, "w0", third);
    crash_is_of_no_use(actor, unmade, "w0", third);
    assert_int_equal(crash_n_lost, 3); /* once each */
    tether_rref_release(made);
    tether_rref_release(unmade);
    tether_rref_release(given);
    await_nothing(actor->agent);
    tether_test_mark(world, NOTICED);
}

TETHER_PROC_ROLE(bereaved)
{
    struct actor actor;
    actor_open(&actor, self, NULL);
    actor_start(&actor);
    tether_test_mark(self->world, UP);
    for (int life = 1; rank != OWNER && !atomic_load(&self->world->marks[STOP]); life++) {
        bury_owner(&actor, life);
        tether_test_await_mark(self->world, NEXT, life);
    }
    tether_test_await_mark(self->world, STOP, 1);
    actor_close(&actor);
}

static void references_break_at_all_users_when_owner_dies(void **state)
{
    (void)state;
    struct stage stage;
    struct tether_test_procs *procs = crash_begin(&stage, &bereaved_role, 3, LEASE_MS);
    struct tether_test_world *world = procs->world;
    for (int life = 1; life <= TRIES; life++) {
        int in_time = atomic_load(&world->marks[IN_TIME]);
        stage_await(procs, HELD, 2 * life);
        crash_kill(procs, OWNER);
        tether_test_mark(world, KILLED);
        stage_await(procs, NOTICED, 2 * life);
        bool both = atomic_load(&world->marks[IN_TIME]) == in_time + 2;
        if (both || life == TRIES)
            tether_test_mark(world, STOP);
        tether_test_procs_restart(procs, OWNER, NULL);
        stage_await(procs, UP, 3 + life);
        tether_test_mark(world, NEXT);
        if (both)
            break;
        assert_true(life < TRIES);
    }
    tether_test_procs_end(procs);
    stage_end(&stage);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(references_of_user_are_released_when_it_dies),
        cmocka_unit_test(references_break_at_all_users_when_owner_dies),
    };
    return cmocka_run_group_tests_name("references and processes that die", tests, NULL, NULL);
}
