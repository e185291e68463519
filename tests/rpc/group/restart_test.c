/* Static groups, each rank a process: a group, a rank or a store that starts or ends again. */
#include <stdio.h>
#include <string.h>

#include "rendezvous/store_tcp.h"
#include "tests/lib/cmocka.h"
#include "tests/rpc/group/static_group.h"
#include "tests/rpc/lib/crew.h"

/* A store that outlives the group: the file that `place` names, or at a port. */
static tether_store *store_at(const char *place)
{
    tether_store *store = NULL;
    tether_error err = {0};
    if (strncmp(place, "file://", 7) != 0)
        return crew_store(place);
    crew_ok(tether_store_file_new(place + 7, -1, &store, &err), &err);
    return store;
}

/* The same process, store and group, several times: nothing of the last time may be left. */
TETHER_PROC_ROLE(comes_again)
{
    tether_store *store = store_at(self->arg);
    for (int round = 0; round < 4; round++) {
        tether_agent *agent =
            crew_agent(self, TETHER_AGENT_OPTS(.store = store, .rank = rank,
                                               .world_size = self->size, .lease_ms = 5000));
        crew_start(agent);
        for (int i = 0; i < self->size; i++) {
            char name[32];
            snprintf(name, sizeof name, "worker%d", i);
            crew_call(agent, name, "name", NULL, name);
        }
        if (round == 2) { /* in this round the workers stop ungracefully, so the test itself keeps
                             them in step */
            tether_test_mark(self->world, STARTED);
            tether_test_await_mark(self->world, STARTED, self->size);
            tether_agent_release(agent);
            tether_test_mark(self->world, STOPPED);
            tether_test_await_mark(self->world, STOPPED, self->size);
        } else {
            crew_stop(agent);
        }
    }
    tether_store_release(store);
}

static void static_group_can_be_started_again_at_the_same_store(void **state)
{
    (void)state;
    char port[16];
    tether_store_server *server = crew_store_start(port);
    tether_test_procs_end(tether_test_procs_start(comes_again, .ranks = 3, .arg = port));
    tether_store_server_release(server);
}

static int n_shutdown_keys(const char *place)
{
    tether_store *store = store_at(place);
    tether_store_keys keys = {0};
    tether_error err = {0};
    int n = 0;
    crew_ok(tether_store_list_keys(store, TETHER_TEST_LIMIT_MS, &keys, &err), &err);
    assert_true(keys.count > 0); /* it is the store of the group */
    for (size_t i = 0; i < keys.count; i++)
        n += strstr(keys.keys[i].data, "/shutdown/") != NULL;
    tether_store_keys_fini(&keys);
    tether_store_release(store);
    return n;
}

static void static_group_deletes_its_shutdown_keys(void **state)
{
    (void)state;
    char place[256];
    group_file_place(place, sizeof place);
    tether_test_procs_end(tether_test_procs_start(comes_again, .ranks = 3, .arg = place));
    assert_int_equal(n_shutdown_keys(place), 0);
}

/* Rank 2 is stopped for so long that the others leave without it. Their shutdown records stay in
 * the store, so it can leave, too. */
TETHER_PROC_ROLE(leaves_late)
{
    tether_store *store = store_at(self->arg);
    tether_agent *agent =
        crew_agent(self, TETHER_AGENT_OPTS(.store = store, .rank = rank, .world_size = self->size,
                                           .lease_ms = 1500));
    crew_start(agent);
    tether_test_mark(self->world, STARTED);
    tether_test_await_mark(self->world, KILLED, 1);
    crew_stop(agent);
    tether_store_release(store);
}

static void stopped_worker_can_leave_after_the_others(void **state)
{
    (void)state;
    char place[256];
    group_file_place(place, sizeof place);
    struct tether_test_procs *procs =
        tether_test_procs_start(leaves_late, .ranks = 3, .arg = place);
    tether_test_await_mark(procs->world, STARTED, 3);
    tether_test_signal(procs->world, 2, SIGSTOP);
    tether_test_mark(procs->world, KILLED);
    for (int rank = 0; rank < 2; rank++)
        assert_true(tether_test_child_wait(procs->ranks[rank], TETHER_TEST_LIMIT_MS));
    assert_true(n_shutdown_keys(place) > 0);
    tether_test_signal(procs->world, 2, SIGCONT);
    tether_test_procs_end(procs);
}

/* A rank that was killed comes back, meets those that went on, and all leave together. */
TETHER_PROC_ROLE(comes_back)
{
    bool second_life = strchr(self->arg, '!') != NULL;
    tether_store *store = crew_store(self->arg);
    tether_agent *agent =
        crew_agent(self, TETHER_AGENT_OPTS(.store = store, .rank = rank, .world_size = self->size,
                                           .lease_ms = 5000));
    crew_start(agent);
    tether_test_mark(self->world, STARTED);
    if (rank == 1 && !second_life) {
        tether_test_await_mark(self->world, STOPPED, 1);
        return;
    }
    tether_test_await_mark(self->world, STARTED, self->size + 1);
    if (rank == 1)
        crew_call(agent, "worker0", "name", NULL, "worker0");
    if (rank == 2) {
        tether_error err = {0};
        tether_status st; /* the first may still be for the one that died */
        do
            st = tether_rpc_sync(agent, "worker1", "name", NULL, TETHER_DEFAULT_MS, NULL, &err);
        while (st == TETHER_EUNAVAILABLE);
        crew_ok(st, &err);
    }
    crew_stop(agent);
    tether_store_release(store);
}

static void static_group_accepts_a_restarted_rank(void **state)
{
    (void)state;
    char port[16], again[20];
    tether_store_server *server = crew_store_start(port);
    snprintf(again, sizeof again, "%s!", port);
    struct tether_test_procs *procs = tether_test_procs_start(comes_back, .ranks = 3, .arg = port);
    tether_test_await_mark(procs->world, STARTED, 3);
    tether_test_signal(procs->world, 1, SIGKILL);
    tether_test_procs_restart(procs, 1, again);
    tether_test_procs_end(procs);
    tether_store_server_release(server);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(static_group_can_be_started_again_at_the_same_store),
        cmocka_unit_test(static_group_deletes_its_shutdown_keys),
        cmocka_unit_test(stopped_worker_can_leave_after_the_others),
        cmocka_unit_test(static_group_accepts_a_restarted_rank),
    };
    return cmocka_run_group_tests_name("static groups", tests, NULL, NULL);
}
