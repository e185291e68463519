/* Two processes with one name in a dynamic group: the first one was killed or is stopped.
 * namesakes.h has their roles. */
#include <stdio.h>

#include "rpc/group/directory.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/port.h"
#include "tests/rpc/group/namesakes.h"
#include "tests/rpc/lib/crew.h"

/* ---- The first one was killed ---- */

/* Serves until it is told to go, or killed. */
TETHER_PROC_ROLE(heir)
{
    struct order order = namesake_read_order(self);
    tether_store *store = crew_store(order.port);
    struct tether_agent_opts opts = namesake_opts(&order, "alpha", store);
    tether_agent *agent = crew_agent(self, &opts);
    crew_start(agent);
    tether_test_mark(self->world, FIRST_IS_UP);
    tether_test_await_mark(self->world, FIRST_MAY_GO, 1);
    crew_stop(agent);
    tether_store_release(store);
}

/* Its lease is a day: a start that waited for it would fail at its own time limit. */
static void killed_worker_starts_again_at_once(void **state)
{
    (void)state;
    for (int way = 0; way < N_WAYS; way++) {
        struct scene scene;
        scene_start(&scene, heir, 1, way, 0);
        for (int life = 1; life <= 3; life++) {
            tether_test_await_mark(scene.procs->world, FIRST_IS_UP, life);
            if (life == 3)
                break;
            tether_test_signal(scene.procs->world, 0, SIGKILL);
            tether_test_procs_restart(scene.procs, 0, NULL);
        }
        tether_test_mark(scene.procs->world, FIRST_MAY_GO);
        scene_end(&scene);
    }
}

enum { AT_ITS_OWN_PORT, OTHER_AT_ITS_PORT };

/* Rank 0 listens at a port that it was given. Its second start does so again, and dials itself; or
 * it listens elsewhere, and rank 1, another worker, has got that port. */
TETHER_PROC_ROLE(tenant)
{
    struct order order = namesake_read_order(self);
    tether_store *store = crew_store(order.port);
    struct crew_page *page = crew_page(self->world);
    struct tether_agent_opts opts = namesake_opts(&order, rank == 0 ? "alpha" : "delta", store);
    bool is_first = rank == 0 && atomic_fetch_add(&page->count[0], 1) == 0;
    if (is_first || rank == 1 || order.number == AT_ITS_OWN_PORT)
        opts.listen = page->text[0];
    if (rank == 1)
        tether_test_await_mark(self->world, MAY_START, 1);
    if (is_first)
        snprintf(page->text[0], sizeof page->text[0], "127.0.0.1:%d", tether_test_quiet_port());
    tether_agent *agent = crew_agent(self, &opts);
    crew_start(agent);
    tether_test_mark(self->world, FIRST_IS_UP);
    tether_test_await_mark(self->world, FIRST_MAY_GO, 1);
    crew_stop(agent);
    tether_store_release(store);
}

static void killed_worker_starts_again_at_once_when_its_port_is_taken(void **state)
{
    (void)state;
    static const int ways[] = {FAR, TOKEN, MUTUAL_TLS, ONE_WAY_TLS};
    for (size_t i = 0; i < 2 * TETHER__ARRAY_LEN(ways); i++) {
        int number = i % 2 ? AT_ITS_OWN_PORT : OTHER_AT_ITS_PORT;
        struct scene scene;
        scene_start(&scene, tenant, number == AT_ITS_OWN_PORT ? 1 : 2, ways[i / 2], number);
        struct tether_test_world *world = scene.procs->world;
        tether_test_await_mark(world, FIRST_IS_UP, 1);
        tether_test_signal(world, 0, SIGKILL);
        tether_test_mark(world, MAY_START);
        if (number == OTHER_AT_ITS_PORT)
            tether_test_await_mark(world, FIRST_IS_UP, 2);
        tether_test_procs_restart(scene.procs, 0, NULL);
        tether_test_await_mark(world, FIRST_IS_UP, world->size + 1);
        tether_test_mark(world, FIRST_MAY_GO);
        scene_end(&scene);
    }
}

/* ---- The first one does not answer ---- */

TETHER_PROC_ROLE(successor)
{
    struct order order = namesake_read_order(self); /* its number is the lease */
    tether_store *store = crew_store(order.port);
    tether_error err = {0};
    struct tether_agent_opts opts = namesake_opts(&order, "alpha", store);
    opts.lease_ms = order.number;
    if (rank == 1) {
        tether_test_await_mark(self->world, MAY_START, 1);
        if (opts.lease_ms == A_DAY_MS)
            opts.start_timeout_ms = 500;
    }
    tether_agent *agent = crew_agent(self, &opts);
    tether_status st = tether_agent_start(agent, &err);
    if (rank == 1 && opts.lease_ms == A_DAY_MS)
        crew_fails(st, &err, TETHER_ETIMEOUT, "'alpha'");
    else
        crew_ok(st, &err);
    tether_test_mark(self->world, rank == 0 ? FIRST_IS_UP : SECOND_IS_THROUGH);
    if (rank == 0) {
        bool stays = opts.lease_ms == A_DAY_MS;
        tether_worker worker;
        tether_test_await_mark(self->world, FIRST_MAY_GO, 1);
        do /* it notices by itself that it was replaced */
            crew_ok(tether_agent_worker(agent, "alpha", &worker, &err), &err);
        while (!stays && worker.incarnation == 1);
        assert_int_equal(worker.incarnation, stays ? 1 : 2);
        st = tether_agent_shutdown(agent, true, &err);
        assert_true(st == TETHER_OK || (!stays && st == TETHER_EFENCED));
        tether_test_mark(self->world, DONE);
    } else {
        tether_test_await_mark(self->world, DONE, 1);
    }
    tether_agent_release(agent);
    tether_store_release(store);
}

static void start_beside_stopped_worker(int way, int lease_ms)
{
    struct scene scene;
    scene_start(&scene, successor, 2, way, lease_ms);
    tether_test_await_mark(scene.procs->world, FIRST_IS_UP, 1);
    tether_test_signal(scene.procs->world, 0, SIGSTOP);
    tether_test_mark(scene.procs->world, MAY_START);
    tether_test_await_mark(scene.procs->world, SECOND_IS_THROUGH, 1);
    tether_test_signal(scene.procs->world, 0, SIGCONT);
    tether_test_mark(scene.procs->world, FIRST_MAY_GO);
    scene_end(&scene);
}

static void stopped_worker_is_replaced_when_lease_is_over(void **state)
{
    (void)state;
    for (int way = 0; way < N_WAYS; way++)
        start_beside_stopped_worker(way, 400);
}

static void stopped_worker_keeps_its_name_when_lease_runs(void **state)
{
    (void)state;
    start_beside_stopped_worker(NEAR, A_DAY_MS);
    start_beside_stopped_worker(FAR, A_DAY_MS);
    start_beside_stopped_worker(MUTUAL_TLS, A_DAY_MS);
}

/* ---- The first one is on another host, and listens on 127.0.0.1 there ---- */

static void worker_of_another_host_counts_as_gone_when_its_address_is_loopback(void **state)
{
    (void)state;
    tether_store *store = NULL;
    struct tether__directory elsewhere;
    struct tether__worker_record record = {.name = "alpha",
                                           .id = TETHER__FIRST_DYNAMIC_ID,
                                           .host = "another host",
                                           .address_is_own = true};
    tether_agent *agent = NULL;
    tether_error err = {0};
    snprintf(record.address, sizeof record.address, "127.0.0.1:%d", tether_test_quiet_port());
    crew_ok(tether_store_hash_new(&store, &err), &err);
    crew_ok(tether__directory_init(&elsewhere, store, "tether", &err), &err);
    crew_ok(tether__directory_enter_run(&elsewhere, LIMIT, &err), &err);
    crew_ok(tether__directory_count_start(&elsewhere, LIMIT, &record.incarnation, &err), &err);
    crew_ok(tether__directory_publish(&elsewhere, &record, -1, NULL, NULL, LIMIT, &err), &err);
    /* A start that waited for the lease would fail at its own time limit. */
    crew_ok(tether_agent_new(TETHER_AGENT_OPTS(.name = "alpha", .store = store,
                                               .lease_ms = A_DAY_MS, .start_timeout_ms = LIMIT),
                             &agent, &err),
            &err);
    crew_ok(tether_agent_start(agent, &err), &err);
    tether_agent_release(agent);
    tether__directory_fini(&elsewhere);
    tether_store_release(store);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_worker_starts_again_at_once),
        cmocka_unit_test(killed_worker_starts_again_at_once_when_its_port_is_taken),
        cmocka_unit_test(worker_of_another_host_counts_as_gone_when_its_address_is_loopback),
        cmocka_unit_test(stopped_worker_is_replaced_when_lease_is_over),
        cmocka_unit_test(stopped_worker_keeps_its_name_when_lease_runs),
    };
    return cmocka_run_group_tests_name("namesakes", tests, namesake_setup, namesake_teardown);
}
