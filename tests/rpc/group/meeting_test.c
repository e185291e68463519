/* Static groups, each rank a process: meeting at every kind of place, missing ranks, and several
 * ranks in one process. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/port.h"
#include "tests/rpc/group/static_group.h"
#include "tests/rpc/lib/crew.h"

/* ---- Meeting ---- */

TETHER_PROC_ROLE(member)
{
    char url[512], expected[32];
    tether_error err = {0};
    tether_worker *workers = NULL;
    size_t n = 0;
    tether_agent *agent =
        crew_agent(self, TETHER_AGENT_OPTS(.rendezvous = group_url(self, url, sizeof url)));
    crew_start(agent);
    snprintf(expected, sizeof expected, "worker%d", rank);
    assert_string_equal(tether_agent_name(agent), expected);
    assert_int_equal(tether_agent_rank(agent), rank);
    assert_int_equal(tether_agent_id(agent), rank);
    assert_int_equal(tether_agent_world_size(agent), self->size);

    crew_ok(tether_agent_workers(agent, &workers, &n, &err), &err);
    assert_int_equal(n, self->size);
    for (int i = 0; i < self->size; i++) {
        char by_id[16];
        snprintf(expected, sizeof expected, "worker%d", i);
        snprintf(by_id, sizeof by_id, "#%d", i);
        assert_string_equal(workers[i].name, expected);
        crew_call(agent, expected, "name", NULL, expected);
        /* also a worker that was never called by its name */
        crew_call(agent, by_id, "name", NULL, expected);
    }
    tether_workers_free(workers);

    crew_ok(tether_agent_shutdown(agent, true, &err), &err);
    crew_ok(tether_agent_shutdown(agent, true, &err), &err);
    crew_fails(tether_rpc_sync(agent, "worker0", "name", NULL, 1000, NULL, &err), &err,
               TETHER_ESHUTDOWN, "shut down");
    tether_agent_release(agent);
}

static void group_forms_at_tcp_url(void **state)
{
    (void)state;
    char place[64];
    snprintf(place, sizeof place, "tcp://127.0.0.1:%d", tether_test_quiet_port());
    tether_test_procs_end(tether_test_procs_start(member, .ranks = N, .arg = place));
}

static void group_forms_at_env_url(void **state)
{
    (void)state;
    char place[64];
    snprintf(place, sizeof place, "env://%d", tether_test_quiet_port());
    tether_test_procs_end(tether_test_procs_start(member, .ranks = N, .arg = place));
}

static void group_forms_at_file_url(void **state)
{
    (void)state;
    char place[256];
    group_file_place(place, sizeof place);
    tether_test_procs_end(tether_test_procs_start(member, .ranks = N, .arg = place));
}

/* ---- Missing ranks ---- */

/* All ranks except 1 and 3. */
TETHER_PROC_ROLE(waits_in_vain)
{
    char url[512];
    tether_error err = {0};
    if (rank % 2 == 1)
        return;
    int64_t began = tether__clock_now_ns(&tether__clock_system);
    tether_agent *agent =
        crew_agent(self, TETHER_AGENT_OPTS(.rendezvous = group_url(self, url, sizeof url),
                                           .start_timeout_ms = 6000));
    tether_status st = tether_agent_start(agent, &err);
    int64_t took_ms = (tether__clock_now_ns(&tether__clock_system) - began) / TETHER__NS_PER_MS;
    /* Rank 0 may give up, and with it the store that it hosts, before rank 2 has. */
    bool store_is_gone = rank != 0 && strstr(err.message, "the store does not answer");
    if (rank == 0 || (st == TETHER_ETIMEOUT && !store_is_gone))
        crew_fails(st, &err, TETHER_ETIMEOUT, "rank 1, 3 of 4 did not join");
    else if (store_is_gone)
        assert_int_equal(st, TETHER_ETIMEOUT);
    else
        assert_int_equal(st, TETHER_EUNAVAILABLE);
    assert_true(took_ms < TETHER_TEST_LIMIT_MS / 2);
    tether_agent_release(agent);
}

static void start_timeout_names_missing_ranks(void **state)
{
    (void)state;
    char place[256];
    group_file_place(place, sizeof place);
    tether_test_procs_end(tether_test_procs_start(waits_in_vain, .ranks = N, .arg = place));
    snprintf(place, sizeof place, "tcp://127.0.0.1:%d", tether_test_quiet_port());
    tether_test_procs_end(tether_test_procs_start(waits_in_vain, .ranks = N, .arg = place));
}

TETHER_PROC_ROLE(namesake)
{
    char url[512];
    tether_error err = {0};
    tether_agent *agent = crew_agent(
        self, TETHER_AGENT_OPTS(.rendezvous = group_url(self, url, sizeof url),
                                .name = rank < 2 ? "twin" : NULL, .start_timeout_ms = 20000));
    crew_fails(tether_agent_start(agent, &err), &err, TETHER_EEXIST,
               "ranks 0 and 1 are both called 'twin'");
    tether_agent_release(agent);
}

static void start_refuses_two_ranks_of_one_name(void **state)
{
    (void)state;
    char place[256];
    group_file_place(place, sizeof place);
    tether_test_procs_end(tether_test_procs_start(namesake, .ranks = 3, .arg = place));
}

/* ---- Several in one process ---- */

struct housemate {
    struct tether_test_rank *self;
    tether_store *store;
    int rank;
    pthread_t thread;
};

static void *live(void *arg)
{
    struct housemate *mate = arg;
    tether_agent *agent = crew_agent(
        mate->self,
        TETHER_AGENT_OPTS(.store = mate->store, .rank = mate->rank, .world_size = N, .threads = 2));
    crew_start(agent);
    for (int i = 0; i < N; i++) {
        char name[32];
        snprintf(name, sizeof name, "worker%d", i);
        crew_call(agent, name, "name", NULL, name);
    }
    crew_stop(agent);
    return NULL;
}

TETHER_PROC_ROLE(house)
{
    (void)rank;
    struct housemate mates[N];
    tether_store *store = NULL;
    tether_error err = {0};
    crew_ok(tether_store_hash_new(&store, &err), &err);
    for (int i = 0; i < N; i++) {
        mates[i] = (struct housemate){.self = self, .store = store, .rank = i};
        assert_int_equal(pthread_create(&mates[i].thread, NULL, live, &mates[i]), 0);
    }
    for (int i = 0; i < N; i++)
        pthread_join(mates[i].thread, NULL);
    tether_store_release(store);
}

static void several_agents_work_in_one_process(void **state)
{
    (void)state;
    tether_test_procs_end(tether_test_procs_start(house, .ranks = 1));
}

/* ---- Numbers that tell workers and starts apart ---- */

static tether_agent *numbered(struct tether_test_rank *self,
                              tether_store *store,
                              const char *name,
                              int rank,
                              int world_size)
{
    tether_agent *agent =
        crew_agent(self, TETHER_AGENT_OPTS(.store = store, .name = name, .rank = rank,
                                           .world_size = world_size, .threads = 1));
    crew_start(agent);
    return agent;
}

TETHER_PROC_ROLE(numbers)
{
    (void)rank;
    tether_store *store = NULL;
    tether_worker first, second;
    tether_error err = {0};
    crew_ok(tether_store_hash_new(&store, &err), &err);
    tether_agent *observer = numbered(self, store, "observer", 0, 0);
    tether_agent *agent = numbered(self, store, "ada", 0, 1);
    assert_int_equal(tether_agent_id(agent), 0);
    assert_int_not_equal(tether_agent_id(observer), 0);
    crew_ok(tether_agent_worker(observer, "ada", &first, &err), &err);
    crew_stop(agent);
    /* Another name takes the rank: its start must have a number of its own. */
    agent = numbered(self, store, "bob", 0, 1);
    crew_ok(tether_agent_worker(observer, "bob", &second, &err), &err);
    assert_int_equal(second.id, first.id);
    assert_int_not_equal(second.incarnation, first.incarnation);
    crew_stop(agent);
    crew_stop(observer);
    tether_store_release(store);
}

static void worker_without_rank_has_its_own_id_when_it_joins_before_rank_0(void **state)
{
    (void)state;
    tether_test_procs_end(tether_test_procs_start(numbers, .ranks = 1));
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(group_forms_at_tcp_url),
        cmocka_unit_test(group_forms_at_env_url),
        cmocka_unit_test(group_forms_at_file_url),
        cmocka_unit_test(start_timeout_names_missing_ranks),
        cmocka_unit_test(start_refuses_two_ranks_of_one_name),
        cmocka_unit_test(several_agents_work_in_one_process),
        cmocka_unit_test(worker_without_rank_has_its_own_id_when_it_joins_before_rank_0),
    };
    return cmocka_run_group_tests_name("static groups", tests, NULL, NULL);
}
