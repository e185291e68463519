/* The holder of the full state (seed class BackendRendezvousStateHolderTest).
 *
 * In the seed, nodes write heartbeat times into the state. Here nodes publish numbers, and the
 * holder records on its own clock when a number was new. So the tests advance the clock and let
 * nodes send heartbeats.
 */
#include "rendezvous/elastic/sync/backend_holder.h"

#include <string.h>

#include "tests/lib/heap.h"
#include "tests/rendezvous/elastic/lib/fixture.h"

#define PERIOD (15 * S) /* half the keep-alive interval: how often the holder listens */

struct fixture {
    struct fake_env env;
    struct fake_backend backend;
    struct tether_rdzv_settings settings;
    struct tether__rdzv_heartbeats heartbeats;
    struct tether__rdzv_backend_holder holder;
};

static void make_holder(struct fixture *f, int64_t cache_ns)
{
    tether__rdzv_backend_holder_fini(&f->holder);
    tether__rdzv_backend_holder_init(&f->holder, f->backend.backend, &f->heartbeats, &f->settings,
                                     &f->env.base, cache_ns);
}

static int setup(void **state)
{
    static struct fixture fixture;
    struct fixture *f = &fixture;
    memset(f, 0, sizeof *f);
    fake_env_init(&f->env);
    fake_backend_init(&f->backend);
    f->settings = test_settings(1, 1);
    f->heartbeats = (struct tether__rdzv_heartbeats){.backend = f->backend.backend};
    make_holder(f, 0);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    tether__rdzv_backend_holder_fini(&f->holder);
    fake_backend_fini(&f->backend);
    return 0;
}

static enum tether__rdzv_sync sync_of(struct fixture *f)
{
    enum tether__rdzv_sync sync;
    tether_error err = {0};
    struct tether__rdzv_holder *holder = &f->holder.base;
    if (holder->ops->sync(holder, TETHER__NEVER, &sync, &err) != TETHER_OK)
        fail_msg("%s", err.message);
    return sync;
}

/* Changes the state of the holder in a visible way. */
static void change(struct fixture *f, uint64_t round)
{
    f->holder.state.round = round;
    f->holder.base.ops->mark_dirty(&f->holder.base, TETHER__RDZV_MARK_CLOSED);
}

static void assert_calls(struct fixture *f, int gets, int sets)
{
    assert_int_equal(f->backend.gets, gets);
    assert_int_equal(f->backend.sets, sets);
    f->backend.gets = f->backend.sets = 0;
}

static const char *const dummies[] = {"dummy1", "dummy2", "dummy3", "dummy4", "dummy5"};

static void create_state(struct fixture *f, struct tether__rdzv_state *state)
{
    tether__rdzv_state_init(state);
    state->round = 999;
    state->complete = true;
    state->deadline = fake_env_now(&f->env);
    state->closed = true;
    state->world_size = 3;
    for (int i = 0; i < 5; i++) {
        put_in(i < 3 ? &state->participants : &state->wait_list, dummies[i], i < 3 ? i : 0);
        put_heard(state, dummies[i], fake_env_now(&f->env));
    }
}

static void test_init_initializes_state_holder(void **state)
{
    struct fixture *f = *state;
    assert_state_empty(&f->holder.state);
    assert_calls(f, 0, 0);
}

static void test_sync_gets_empty_state_if_backend_state_does_not_exist(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(sync_of(f), TETHER__RDZV_CLEAN);
    assert_state_empty(&f->holder.state);
    assert_calls(f, 1, 0);
}

static void test_sync_gets_backend_state_if_local_state_is_clean(void **state)
{
    struct fixture *f = *state;
    struct tether__rdzv_state expected;
    create_state(f, &expected);
    for (int attempt = 1; attempt < 4; attempt++) {
        expected.round = (uint64_t)attempt;
        fake_backend_put(&f->backend, &expected, fake_env_now(&f->env));
        assert_int_equal(sync_of(f), TETHER__RDZV_CLEAN);
        assert_state_equal(&f->holder.state, &expected);
        assert_calls(f, 1, 0);
    }
    tether__rdzv_state_fini(&expected);
}

static void test_sync_gets_backend_state_if_local_state_is_old_and_dirty(void **state)
{
    struct fixture *f = *state;
    struct tether__rdzv_state expected;
    create_state(f, &expected);
    for (int attempt = 1; attempt < 4; attempt++) {
        fake_backend_put(&f->backend, &expected, fake_env_now(&f->env)); /* another has written */
        change(f, (uint64_t)attempt);
        assert_int_equal(sync_of(f), TETHER__RDZV_LOST);
        assert_state_equal(&f->holder.state, &expected);
        assert_calls(f, 0, 1);
    }
    tether__rdzv_state_fini(&expected);
}

static void test_sync_sets_backend_state_if_local_state_is_new_and_dirty(void **state)
{
    struct fixture *f = *state;
    for (int attempt = 1; attempt < 4; attempt++) {
        change(f, (uint64_t)attempt);
        assert_int_equal(sync_of(f), TETHER__RDZV_WRITTEN);
        assert_calls(f, 0, 1);

        /* Another holder reads the state of this one. */
        struct tether__rdzv_backend_holder other;
        tether__rdzv_backend_holder_init(&other, f->backend.backend, &f->heartbeats, &f->settings,
                                         &f->env.base, 0);
        enum tether__rdzv_sync sync;
        assert_int_equal(other.base.ops->sync(&other.base, TETHER__NEVER, &sync, NULL), TETHER_OK);
        assert_state_equal(&other.state, &f->holder.state);
        assert_int_equal(other.state.round, attempt);
        tether__rdzv_backend_holder_fini(&other);
        f->backend.gets = 0;
    }
}

static void test_sync_uses_cached_state_if_cache_duration_is_specified(void **state)
{
    struct fixture *f = *state;
    struct tether__rdzv_state written;
    create_state(f, &written);
    fake_backend_put(&f->backend, &written, fake_env_now(&f->env));
    static const int durations[] = {1, 5, 10};
    for (int i = 0; i < 3; i++) {
        make_holder(f, durations[i] * S);
        sync_of(f);
        assert_int_equal(sync_of(f), TETHER__RDZV_CLEAN);
        assert_calls(f, 1, 0);
        tether_test_clock_advance_ns(&f->env.clock, durations[i] * S);
        sync_of(f);
        assert_int_equal(sync_of(f), TETHER__RDZV_CLEAN);
        assert_calls(f, 0, 0);
    }
    tether__rdzv_state_fini(&written);
}

static void test_sync_gets_backend_state_if_cached_state_has_expired(void **state)
{
    struct fixture *f = *state;
    struct tether__rdzv_state written;
    create_state(f, &written);
    fake_backend_put(&f->backend, &written, fake_env_now(&f->env));
    make_holder(f, S);
    sync_of(f);
    assert_int_equal(sync_of(f), TETHER__RDZV_CLEAN);
    assert_calls(f, 1, 0);
    tether_test_clock_advance_ns(&f->env.clock, S + S / 100);
    sync_of(f);
    assert_int_equal(sync_of(f), TETHER__RDZV_CLEAN);
    assert_calls(f, 1, 0);
    tether__rdzv_state_fini(&written);
}

/* Advances the clock by `periods` x 15 s. At each step, before the holder reads the heartbeats, the
 * nodes of `beaters` that are not silent yet send one. */
struct beater {
    const char *addr;
    int age; /* periods since its last heartbeat, at the end */
};

static void live(struct fixture *f, const struct beater *beaters, size_t n, int periods)
{
    for (int left = periods; left >= 0; left--) {
        for (size_t i = 0; i < n; i++) {
            struct tether__rdzv_node node = node_of(beaters[i].addr);
            if (left >= beaters[i].age)
                fake_backend_beat(&f->backend, &node);
        }
        sync_of(f);
        if (left > 0)
            tether_test_clock_advance_ns(&f->env.clock, PERIOD);
    }
}

static void test_sync_sanitizes_state(void **test_state)
{
    struct fixture *f = *test_state;
    struct tether__rdzv_state state, expected;
    create_state(f, &state);
    create_state(f, &expected);
    static const char *const dead[] = {"dead1", "dead2", "dead3", "dead4", "dead5"};
    for (int i = 0; i < 5; i++)
        put_in(i < 3 ? &state.participants : &state.wait_list, dead[i], 0);
    fake_backend_put(&f->backend, &state, fake_env_now(&f->env));

    /* A node is alive while its last heartbeat is at most 90 s old. */
    static const struct beater beaters[] = {
        {"dummy1", 0}, {"dummy2", 1}, {"dummy3", 2}, {"dummy4", 4}, {"dummy5", 6},
        {"dead1", 7},  {"dead2", 7},  {"dead3", 8},  {"dead4", 8},  {"dead5", 9},
    };
    live(f, beaters, TETHER__ARRAY_LEN(beaters), 10);
    for (int i = 0; i < 5; i++)
        put_heard(&expected, dummies[i], fake_env_now(&f->env) - beaters[i].age * PERIOD);
    assert_state_equal(&f->holder.state, &expected);
    tether__rdzv_state_fini(&state);
    tether__rdzv_state_fini(&expected);
}

static void test_sync_sanitizes_state_if_no_participants_is_left(void **test_state)
{
    struct fixture *f = *test_state;
    struct tether__rdzv_state state, expected;
    create_state(f, &state);
    fake_backend_put(&f->backend, &state, fake_env_now(&f->env));
    tether__rdzv_state_init(&expected);
    expected.round = 1000;
    expected.closed = true;
    expected.deadline = state.deadline;
    static const struct beater beaters[] = {
        {"dummy1", 7}, {"dummy2", 7}, {"dummy3", 7}, {"dummy4", 7}, {"dummy5", 7},
    };
    live(f, beaters, TETHER__ARRAY_LEN(beaters), 7);
    assert_state_equal(&f->holder.state, &expected);
    tether__rdzv_state_fini(&state);
}

static void test_sync_raises_error_if_backend_state_is_corrupt(void **state)
{
    struct fixture *f = *state;
    enum tether__rdzv_sync sync;
    tether_error err = {0};
    fake_backend_corrupt(&f->backend);
    assert_int_equal(f->holder.base.ops->sync(&f->holder.base, TETHER__NEVER, &sync, &err),
                     TETHER_ECORRUPT);
    assert_non_null(strstr(err.message, "the rendezvous state is corrupt"));
    assert_non_null(strstr(err.message, "dummy_run_id"));
}

/* When the store or this process is suspended for a minute, no node counts as dead. */
static void heartbeat_does_not_age_while_observer_is_suspended(void **test_state)
{
    struct fixture *f = *test_state;
    struct tether__rdzv_state state;
    create_state(f, &state);
    fake_backend_put(&f->backend, &state, fake_env_now(&f->env));
    static const struct beater beaters[] = {
        {"dummy1", 0}, {"dummy2", 0}, {"dummy3", 0}, {"dummy4", 0}, {"dummy5", 0},
    };
    live(f, beaters, 5, 3);
    tether_test_clock_advance_ns(&f->env.clock, 1000 * S);
    sync_of(f);
    assert_int_equal(f->holder.state.participants.n, 3);
    assert_int_equal(f->holder.state.wait_list.n, 2);
    /* Two periods of the gap count; after five more without a heartbeat the node is dead. */
    live(f, beaters, 0, 4);
    assert_int_equal(f->holder.state.participants.n, 3);
    tether_test_clock_advance_ns(&f->env.clock, PERIOD);
    sync_of(f);
    assert_int_equal(f->holder.state.participants.n, 0);
    tether__rdzv_state_fini(&state);
}

/* Reading the same last call again does not extend it. */
static void sync_does_not_restart_last_call(void **test_state)
{
    struct fixture *f = *test_state;
    struct tether__rdzv_state state;
    tether__rdzv_state_init(&state);
    state.deadline = fake_env_now(&f->env) + 30 * S;
    state.last_calls = 1;
    int64_t end = state.deadline;
    fake_backend_put(&f->backend, &state, fake_env_now(&f->env));
    sync_of(f);
    assert_int_equal(f->holder.state.deadline, end);
    int64_t written_at = fake_env_now(&f->env);
    tether_test_clock_advance_ns(&f->env.clock, 10 * S);
    state.round = 3;
    fake_backend_put(&f->backend, &state, written_at); /* "30 s left" again */
    sync_of(f);
    assert_int_equal(f->holder.state.round, 3);
    assert_int_equal(f->holder.state.deadline, end);
    state.last_calls = 2;
    fake_backend_put(&f->backend, &state, written_at);
    sync_of(f);
    assert_int_equal(f->holder.state.deadline, end + 10 * S);
}

/* A write with an unknown result is repeated, which shows whether it was applied. */
static void sync_repeats_write_after_failure(void **state)
{
    struct fixture *f = *state;
    enum tether__rdzv_sync sync;
    change(f, 5);
    f->backend.fail = TETHER_ETIMEOUT;
    assert_int_equal(f->holder.base.ops->sync(&f->holder.base, TETHER__NEVER, &sync, NULL),
                     TETHER_ETIMEOUT);
    assert_int_equal(f->holder.state.round, 5);
    f->backend.fail = TETHER_OK;
    assert_int_equal(sync_of(f), TETHER__RDZV_WRITTEN);
    assert_int_equal(f->holder.state.round, 5);
}

static tether_status write_and_read(void *userdata)
{
    (void)userdata;
    struct fake_env env;
    struct tether_rdzv_settings settings = test_settings(1, 1);
    struct tether__rdzv_backend_holder writer, reader;
    struct tether__rdzv_node node = node_of("dummy1");
    enum tether__rdzv_sync sync;
    tether_store *store = NULL;
    tether_rdzv_backend *on_store = NULL;
    fake_env_init(&env);
    tether_status st = tether_store_hash_new(&store, NULL);
    if (st == TETHER_OK)
        st = tether_rdzv_backend_store_new(store, "run", &on_store, NULL);
    if (st != TETHER_OK) {
        tether_store_release(store);
        return st;
    }
    struct tether__rdzv_heartbeats heartbeats = {on_store, store, 1000};
    tether__rdzv_backend_holder_init(&writer, on_store, &heartbeats, &settings, &env.base, 0);
    tether__rdzv_backend_holder_init(&reader, on_store, &heartbeats, &settings, &env.base, 0);
    if (!tether__rdzv_roster_add(&writer.state.participants, &node))
        st = TETHER_ENOMEM;
    writer.dirty = true;
    if (st == TETHER_OK)
        st = tether__rdzv_heartbeat_send(&heartbeats, &node, 1, 0, NULL);
    if (st == TETHER_OK)
        st = writer.base.ops->sync(&writer.base, TETHER__NEVER, &sync, NULL);
    if (st == TETHER_OK)
        st = reader.base.ops->sync(&reader.base, TETHER__NEVER, &sync, NULL);
    if (st == TETHER_OK)
        assert_int_equal(reader.state.participants.n, 1);
    tether__rdzv_backend_holder_fini(&writer);
    tether__rdzv_backend_holder_fini(&reader);
    tether_rdzv_backend_release(on_store);
    tether_store_release(store);
    return st;
}

static void holder_state_is_unchanged_when_allocation_fails(void **state)
{
    (void)state;
    tether_test_heap_fail_each(write_and_read, NULL);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_init_initializes_state_holder),
        TEST(test_sync_gets_empty_state_if_backend_state_does_not_exist),
        TEST(test_sync_gets_backend_state_if_local_state_is_clean),
        TEST(test_sync_gets_backend_state_if_local_state_is_old_and_dirty),
        TEST(test_sync_sets_backend_state_if_local_state_is_new_and_dirty),
        TEST(test_sync_uses_cached_state_if_cache_duration_is_specified),
        TEST(test_sync_gets_backend_state_if_cached_state_has_expired),
        TEST(test_sync_sanitizes_state),
        TEST(test_sync_sanitizes_state_if_no_participants_is_left),
        TEST(test_sync_raises_error_if_backend_state_is_corrupt),
        TEST(heartbeat_does_not_age_while_observer_is_suspended),
        TEST(sync_does_not_restart_last_call),
        TEST(sync_repeats_write_after_failure),
        cmocka_unit_test(holder_state_is_unchanged_when_allocation_fails),
    };
    return cmocka_run_group_tests_name("dynamic holder", tests, NULL, NULL);
}
