/* Who is in a group, as the store has it: names that have left, and worlds of different sizes. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "rpc/agent.h"
#include "tests/lib/cmocka.h"

#define LIMIT 20000

static tether_store *store;

static int setup(void **state)
{
    (void)state;
    return tether_store_hash_new(&store, NULL);
}

static int teardown(void **state)
{
    (void)state;
    store = tether_store_release(store);
    return 0;
}

static tether_agent *start(const char *name)
{
    tether_agent *agent = NULL;
    tether_error err = {0};
    if (tether_agent_new(TETHER_AGENT_OPTS(.name = name, .store = store), &agent, &err) ||
        tether_agent_start(agent, &err))
        fail_msg("%s", err.message);
    return agent;
}

static void stop(tether_agent *agent)
{
    tether_error err = {0};
    if (tether_agent_shutdown(agent, true, &err) != TETHER_OK)
        fail_msg("%s", err.message);
    tether_agent_release(agent);
}

static size_t names_len(void)
{
    tether_buf names = TETHER_BUF_INIT;
    assert_int_equal(tether_store_get(store, "tether/names", LIMIT, &names, NULL), TETHER_OK);
    size_t len = names.len;
    tether_buf_fini(&names);
    return len;
}

static bool is_listed(tether_agent *agent, const char *name)
{
    tether_worker *workers = NULL;
    size_t n = 0;
    bool found = false;
    assert_int_equal(tether_agent_workers(agent, &workers, &n, NULL), TETHER_OK);
    for (size_t i = 0; i < n; i++)
        found = found || strcmp(workers[i].name, name) == 0;
    tether_workers_free(workers);
    return found;
}

static void list_of_names_stays_short_when_workers_come_and_go(void **state)
{
    (void)state;
    tether_agent *stays = start("stays");
    size_t alone = names_len();
    for (int i = 0; i < 30; i++) {
        char name[16];
        snprintf(name, sizeof name, "w%d", i);
        tether_agent *agent = start(name);
        assert_true(is_listed(stays, name));
        stop(agent);
        assert_int_equal(names_len(), alone);
    }
    for (int i = 0; i < 3; i++) { /* one that comes back is listed again, once */
        tether_agent *agent = start("again");
        assert_true(is_listed(stays, "again"));
        assert_int_equal(names_len(), alone + strlen("again") + 1);
        stop(agent);
        assert_false(is_listed(stays, "again"));
    }
    stop(stays);
    assert_int_equal(names_len(), 0);
}

struct rank {
    pthread_t thread;
    tether_agent *agent;
    tether_status status;
    tether_error error;
};

static void *start_rank(void *arg)
{
    struct rank *rank = arg;
    rank->status = tether_agent_start(rank->agent, &rank->error);
    return NULL;
}

/* Each waits for another number of ranks. It is told, and not only who is missing. */
static void different_world_sizes_are_told_as_such(void **state)
{
    (void)state;
    struct rank ranks[2] = {0};
    tether_error err = {0};
    for (int i = 0; i < 2; i++) {
        if (tether_agent_new(TETHER_AGENT_OPTS(.store = store, .rank = i, .world_size = 2 + i,
                                               .start_timeout_ms = 2000),
                             &ranks[i].agent, &err) != TETHER_OK)
            fail_msg("%s", err.message);
        pthread_create(&ranks[i].thread, NULL, start_rank, &ranks[i]);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(ranks[i].thread, NULL);
    assert_int_equal(ranks[0].status, TETHER_EINVAL);
    if (!strstr(ranks[0].error.message, "was started with world_size 3") ||
        !strstr(ranks[0].error.message, "with 2: give every worker the same world_size"))
        fail_msg("%s", ranks[0].error.message);
    assert_true(ranks[1].status == TETHER_EINVAL || ranks[1].status == TETHER_ETIMEOUT);
    for (int i = 0; i < 2; i++)
        tether_agent_release(ranks[i].agent);
}

static void a_second_start_is_told_without_a_name(void **state)
{
    (void)state;
    tether_agent *agent = NULL;
    tether_error err = {0};
    assert_int_equal(tether_agent_new(TETHER_AGENT_OPTS(.store = store, .rank = 0, .world_size = 1),
                                      &agent, &err),
                     TETHER_OK);
    assert_int_equal(tether_agent_start(agent, &err), TETHER_OK);
    assert_int_equal(tether_agent_start(agent, &err), TETHER_EINVAL);
    assert_memory_equal(err.message, "this worker has been started before", 35);
    stop(agent);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(list_of_names_stays_short_when_workers_come_and_go, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(different_world_sizes_are_told_as_such, setup, teardown),
        cmocka_unit_test_setup_teardown(a_second_start_is_told_without_a_name, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
