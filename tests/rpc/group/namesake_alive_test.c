/* Two processes with one name in a dynamic group: the first one is alive, or leaves.
 * namesakes.h has their roles. */
#include <pthread.h>

#include "rendezvous/store_tcp.h"
#include "tests/lib/cmocka.h"
#include "tests/rpc/group/namesakes.h"
#include "tests/rpc/lib/crew.h"

static const char *boss_name(int way)
{
    return way == MUTUAL_TLS || way == ONE_WAY_TLS ? "delta" : "boss";
}

static tether_buf value_of(struct scene *scene, const char *key)
{
    tether_buf value = TETHER_BUF_INIT;
    tether_error err = {0};
    crew_ok(tether_store_get(scene->store, key, LIMIT, &value, &err), &err);
    return value;
}

/* ---- The first one is alive ---- */

/* The first one serves, and the second one cannot start. */
TETHER_PROC_ROLE(rival)
{
    struct order order = namesake_read_order(self);
    tether_store *store = crew_store(order.port);
    tether_error err = {0};
    struct tether_agent_opts opts =
        namesake_opts(&order, rank == BOSS ? boss_name(order.way) : "alpha", store);
    if (rank == SECOND)
        tether_test_await_mark(self->world, MAY_START, 1);
    tether_agent *agent = crew_agent(self, &opts);
    tether_status st = tether_agent_start(agent, &err);
    if (rank == SECOND) {
        crew_fails(st, &err, TETHER_EEXIST, "'alpha' is alive");
        tether_agent_release(agent);
        tether_test_mark(self->world, SECOND_IS_THROUGH);
        tether_store_release(store);
        return;
    }
    crew_ok(st, &err);
    tether_test_mark(self->world, FIRST_IS_UP);
    if (rank == BOSS) {
        tether_test_await_mark(self->world, FIRST_IS_UP, 2);
        crew_call(agent, "alpha", "name", NULL, "alpha");
        tether_test_mark(self->world, FIRST_IS_UP); /* and knows the boss */
        tether_test_await_mark(self->world, SECOND_IS_THROUGH, 1);
        for (int i = 0; i < 10; i++)
            crew_call(agent, "alpha", "name", NULL, "alpha");
        tether_test_mark(self->world, FIRST_MAY_GO);
    }
    tether_test_await_mark(self->world, FIRST_MAY_GO, 2); /* by the boss, and by the test */
    crew_stop(agent);
    tether_store_release(store);
}

static void second_start_is_refused(int way)
{
    struct scene scene;
    scene_start(&scene, rival, N_RANKS, way, 0);
    tether_test_await_mark(scene.procs->world, FIRST_IS_UP, 3);
    tether_buf record = value_of(&scene, "tether/worker/alpha");
    tether_buf names = value_of(&scene, "tether/names");
    tether_test_mark(scene.procs->world, MAY_START);
    tether_test_await_mark(scene.procs->world, SECOND_IS_THROUGH, 1);
    tether_buf record_after = value_of(&scene, "tether/worker/alpha");
    tether_buf names_after = value_of(&scene, "tether/names");
    assert_true(tether_bytes_equal(tether_buf_bytes(&record), tether_buf_bytes(&record_after)));
    assert_true(tether_bytes_equal(tether_buf_bytes(&names), tether_buf_bytes(&names_after)));
    tether_buf_fini(&record);
    tether_buf_fini(&names);
    tether_buf_fini(&record_after);
    tether_buf_fini(&names_after);
    tether_test_mark(scene.procs->world, FIRST_MAY_GO);
    scene_end(&scene);
}

static void second_start_is_refused_when_first_is_alive(void **state)
{
    (void)state;
    second_start_is_refused(NEAR);
}

static void second_start_is_refused_when_first_is_alive_over_tcp(void **state)
{
    (void)state;
    second_start_is_refused(FAR);
    second_start_is_refused(TOKEN);
}

static void second_start_is_refused_when_first_is_alive_over_tls(void **state)
{
    (void)state;
    second_start_is_refused(MUTUAL_TLS);
    second_start_is_refused(ONE_WAY_TLS);
}

static void second_start_is_refused_when_first_is_alive_at_a_socket_file(void **state)
{
    (void)state;
    second_start_is_refused(SOCKET_FILE);
}

/* ---- Take-over on request ---- */

TETHER_PROC_ROLE(usurper)
{
    struct order order = namesake_read_order(self);
    tether_store *store = crew_store(order.port);
    tether_error err = {0};
    struct tether_agent_opts opts =
        namesake_opts(&order, rank == BOSS ? boss_name(order.way) : "alpha", store);
    opts.take_over = rank == SECOND;
    if (rank == SECOND)
        tether_test_await_mark(self->world, FIRST_IS_UP, 3);
    tether_agent *agent = crew_agent(self, &opts);
    crew_start(agent);
    if (rank == BOSS) {
        tether_test_mark(self->world, FIRST_IS_UP);
        tether_test_await_mark(self->world, FIRST_IS_UP, 2);
        crew_call(agent, "alpha", "name", NULL, "alpha");
        tether_test_mark(self->world, FIRST_IS_UP);
        tether_test_await_mark(self->world, DONE, 2);
        crew_stop(agent);
    } else if (rank == FIRST) {
        tether_test_mark(self->world, FIRST_IS_UP);
        tether_test_await_mark(self->world, SECOND_IS_THROUGH, 1);
        while (tether_rpc_sync(agent, boss_name(order.way), "name", NULL, LIMIT, NULL, &err) !=
               TETHER_EFENCED) {
        }
        tether_test_mark(self->world, DONE);
        tether_agent_release(agent);
    } else {
        crew_call(agent, boss_name(order.way), "name", NULL, NULL); /* it meets the new start */
        tether_test_mark(self->world, SECOND_IS_THROUGH);
        tether_test_await_mark(self->world, DONE, 1);
        tether_test_mark(self->world, DONE);
        crew_stop(agent);
    }
    tether_store_release(store);
}

static void live_worker_is_replaced_when_takeover_is_asked_for(void **state)
{
    (void)state;
    static const int ways[] = {NEAR, FAR, MUTUAL_TLS};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(ways); i++) {
        struct scene scene;
        scene_start(&scene, usurper, N_RANKS, ways[i], 0);
        scene_end(&scene);
    }
}

/* ---- Several at once ---- */

enum { N_RACERS = 6, WINS = 0, LOSSES = 1 };

TETHER_PROC_ROLE(racer)
{
    struct order order = namesake_read_order(self); /* its number is how many rounds there are */
    tether_store *store = crew_store(order.port);
    tether_error err = {0};
    struct crew_page *page = crew_page(self->world);
    struct tether_agent_opts opts = namesake_opts(&order, "alpha", store);
    for (int round = 0; round < order.number; round++) {
        tether_agent *agent = crew_agent(self, &opts);
        tether_test_mark(self->world, 2 * round);
        tether_test_await_mark(self->world, 2 * round, N_RACERS); /* ready, steady */
        tether_status st = tether_agent_start(agent, &err);
        if (st != TETHER_OK)
            crew_fails(st, &err, TETHER_EEXIST, "'alpha' is alive");
        atomic_fetch_add(&page->count[st == TETHER_OK ? WINS : LOSSES], 1);
        tether_test_mark(self->world, 2 * round + 1);
        tether_test_await_mark(self->world, 2 * round + 1, N_RACERS);
        tether_agent_release(agent);
    }
    tether_store_release(store);
}

static void one_of_many_wins_when_they_start_at_once(void **state)
{
    (void)state;
    static const struct {
        int way, rounds;
    } races[] = {{NEAR, 8}, {FAR, 8}, {MUTUAL_TLS, 4}};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(races); i++) {
        struct scene scene;
        scene_start(&scene, racer, N_RACERS, races[i].way, races[i].rounds);
        struct tether_test_world *world = scene.procs->world;
        tether_test_await_mark(world, 2 * races[i].rounds - 1, N_RACERS);
        assert_int_equal(crew_count(world, WINS), races[i].rounds);
        assert_int_equal(crew_count(world, LOSSES), races[i].rounds * (N_RACERS - 1));
        tether_test_procs_end(scene.procs);
        tether_buf names = value_of(&scene, "tether/names");
        assert_int_equal(names.len, 0); /* the losers have left no keys behind */
        tether_buf_fini(&names);
        tether_store_release(scene.store);
        tether_store_server_release(scene.server);
    }
}

/* ---- The first one leaves ---- */

static _Atomic(tether_reply *) held_reply;

static void keep(void *userdata, const tether_value *arg, tether_reply *reply)
{
    (void)userdata, (void)arg;
    atomic_store(&held_reply, reply);
}

static void *answer_later(void *world)
{
    tether_test_await_mark(world, SECOND_IS_THROUGH, 1);
    tether_reply_ok(atomic_load(&held_reply), NULL);
    return NULL;
}

/* The first one drains: a function for the boss still runs there. */
TETHER_PROC_ROLE(leaver)
{
    struct order order = namesake_read_order(self);
    tether_store *store = crew_store(order.port);
    tether_error err = {0};
    struct tether_agent_opts opts =
        namesake_opts(&order, rank == BOSS ? boss_name(order.way) : "alpha", store);
    if (rank == SECOND)
        tether_test_await_mark(self->world, MAY_START, 1);
    tether_agent *agent = crew_agent(self, &opts);
    crew_ok(tether_agent_register_async(agent, "keep", keep, true, NULL, &err), &err);
    tether_status st = tether_agent_start(agent, &err);
    if (rank == SECOND) { /* while the first one drains; then again until it has gone */
        crew_fails(st, &err, TETHER_EEXIST, "'alpha' is alive");
        tether_test_mark(self->world, SECOND_IS_THROUGH);
        while (st != TETHER_OK) {
            tether_agent_release(agent);
            agent = crew_agent(self, &opts);
            st = tether_agent_start(agent, &err);
            if (st != TETHER_OK)
                crew_fails(st, &err, TETHER_EEXIST, "'alpha' is alive");
        }
        crew_stop(agent);
        tether_store_release(store);
        return;
    }
    crew_ok(st, &err);
    tether_test_mark(self->world, FIRST_IS_UP);
    if (rank == BOSS) {
        tether_test_await_mark(self->world, FIRST_IS_UP, 2);
        tether_future *pending = tether_rpc_async(agent, "alpha", "keep", NULL, LIMIT);
        crew_ok(tether_future_wait(pending, LIMIT, NULL, &err), &err);
        tether_future_release(pending);
    } else {
        assert_eventually(atomic_load(&held_reply));
        tether_test_mark(self->world, MAY_START);
        /* This thread shuts down, another answers when the second one was refused. */
        pthread_t thread;
        pthread_create(&thread, NULL, answer_later, self->world);
        crew_ok(tether_agent_shutdown(agent, true, &err), &err);
        pthread_join(thread, NULL);
    }
    tether_agent_release(agent);
    tether_store_release(store);
}

/* The goodbye takes its time: the boss is stopped and does not answer it. The second start comes
 * meanwhile, and waits for the record to go, not for the lease. */
TETHER_PROC_ROLE(goodbye)
{
    struct order order = namesake_read_order(self);
    tether_store *store = crew_store(order.port);
    tether_error err = {0};
    struct tether_agent_opts opts =
        namesake_opts(&order, rank == BOSS ? boss_name(order.way) : "alpha", store);
    opts.lease_ms = rank == SECOND ? A_DAY_MS : 2000;
    if (rank == SECOND)
        tether_test_await_mark(self->world, MAY_START, 1);
    tether_agent *agent = crew_agent(self, &opts);
    tether_status st = tether_agent_start(agent, &err);
    while (rank == SECOND && st == TETHER_EEXIST) { /* it had not begun to say goodbye */
        tether_agent_release(agent);
        agent = crew_agent(self, &opts);
        st = tether_agent_start(agent, &err);
    }
    crew_ok(st, &err);
    tether_test_mark(self->world, rank == SECOND ? SECOND_IS_THROUGH : FIRST_IS_UP);
    if (rank == FIRST) {
        tether_test_await_mark(self->world, FIRST_IS_UP, 2);
        crew_call(agent, boss_name(order.way), "name", NULL, NULL);
        tether_test_mark(self->world, FIRST_IS_UP);
        tether_test_await_mark(self->world, FIRST_MAY_GO, 1);
        tether_test_mark(self->world, MAY_START);
        tether_agent_shutdown(agent, false, NULL);
    }
    if (rank == BOSS)
        tether_test_await_mark(self->world, SECOND_IS_THROUGH, 1);
    tether_agent_release(agent);
    tether_store_release(store);
}

static void second_start_waits_when_first_says_goodbye(void **state)
{
    (void)state;
    static const int ways[] = {NEAR, FAR, MUTUAL_TLS};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(ways); i++) {
        struct scene scene;
        scene_start(&scene, goodbye, N_RANKS, ways[i], 0);
        tether_test_await_mark(scene.procs->world, FIRST_IS_UP, 3);
        tether_test_signal(scene.procs->world, BOSS, SIGSTOP);
        tether_test_mark(scene.procs->world, FIRST_MAY_GO);
        tether_test_await_mark(scene.procs->world, SECOND_IS_THROUGH, 1);
        tether_test_signal(scene.procs->world, BOSS, SIGCONT);
        scene_end(&scene);
    }
}

static void second_start_succeeds_when_first_has_left(void **state)
{
    (void)state;
    static const int ways[] = {NEAR, FAR, MUTUAL_TLS};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(ways); i++) {
        struct scene scene;
        scene_start(&scene, leaver, N_RANKS, ways[i], 0);
        scene_end(&scene);
    }
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(second_start_is_refused_when_first_is_alive),
        cmocka_unit_test(second_start_is_refused_when_first_is_alive_over_tcp),
        cmocka_unit_test(second_start_is_refused_when_first_is_alive_over_tls),
        cmocka_unit_test(second_start_is_refused_when_first_is_alive_at_a_socket_file),
        cmocka_unit_test(live_worker_is_replaced_when_takeover_is_asked_for),
        cmocka_unit_test(one_of_many_wins_when_they_start_at_once),
        cmocka_unit_test(second_start_succeeds_when_first_has_left),
        cmocka_unit_test(second_start_waits_when_first_says_goodbye),
    };
    return cmocka_run_group_tests_name("namesakes", tests, namesake_setup, namesake_teardown);
}
