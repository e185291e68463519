/* The group's members in the store: names of workers that left, and different world sizes. */
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
    for (int i = 0; i < 3; i++) { /* a worker that joins again is listed once */
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

static void await_rank(const char *group, int rank)
{
    char key[64];
    const char *keys[] = {key};
    snprintf(key, sizeof key, "%s/rank/%d", group, rank);
    assert_int_equal(tether_store_wait(store, keys, 1, LIMIT, NULL), TETHER_OK);
}

static void *start_rank(void *arg)
{
    struct rank *rank = arg;
    rank->status = tether_agent_start(rank->agent, &rank->error);
    return NULL;
}

/* Each waits for another number of ranks. All are told the reason, long before their time is up,
 * whichever starts first. */
static void start_fails_at_once_when_world_sizes_differ(void **state)
{
    (void)state;
    static const char *const groups[] = {"small", "large"};
    for (int larger = 0; larger < 2; larger++) { /* the world of those who start first */
        struct rank ranks[3] = {0};
        const int order[] = {0, 2, 1};
        tether_error err = {0};
        for (int n = 0; n < 3; n++) {
            int i = order[n], size = n < 2 ? 3 + larger : 4 - larger;
            if (tether_agent_new(
                    TETHER_AGENT_OPTS(.store = store, .group = groups[larger], .rank = i,
                                      .world_size = size, .start_timeout_ms = 10 * LIMIT),
                    &ranks[i].agent, &err) != TETHER_OK)
                fail_msg("%s", err.message);
            pthread_create(&ranks[i].thread, NULL, start_rank, &ranks[i]);
            await_rank(groups[larger], i);
        }
        for (int i = 0; i < 3; i++)
            pthread_join(ranks[i].thread, NULL);
        for (int i = 0; i < 3; i++) {
            if (ranks[i].status != TETHER_EINVAL ||
                !strstr(ranks[i].error.message, "was started with world_size") ||
                !strstr(ranks[i].error.message, ": give every worker the same world_size"))
                fail_msg("rank %d, larger %d: %s", i, larger, ranks[i].error.message);
            tether_agent_release(ranks[i].agent);
        }
    }
    /* The ranks and sizes are right now, so the earlier wrong ones have no effect. */
    struct rank ranks[2] = {0};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tether_agent_new(TETHER_AGENT_OPTS(.store = store, .group = "large",
                                                            .rank = i, .world_size = 2),
                                          &ranks[i].agent, NULL),
                         TETHER_OK);
        pthread_create(&ranks[i].thread, NULL, start_rank, &ranks[i]);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(ranks[i].thread, NULL);
    for (int i = 0; i < 2; i++) {
        if (ranks[i].status != TETHER_OK)
            fail_msg("rank %d: %s", i, ranks[i].error.message);
        tether_agent_release(ranks[i].agent);
    }
}

/* A start with a wrong token must neither replace the live worker nor be told that it is gone. */
static void second_start_is_refused_when_its_token_differs(void **state)
{
    (void)state;
    static const char *const tokens[][2] = {
        {NULL, "sesame"}, {"sesame", NULL}, {"sesame", "other"}};
    for (size_t i = 0; i < sizeof tokens / sizeof tokens[0]; i++) {
        tether_agent *first = NULL, *second = NULL;
        tether_error err = {0};
        if (tether_agent_new(TETHER_AGENT_OPTS(.name = "a", .store = store, .token = tokens[i][0]),
                             &first, &err) != TETHER_OK ||
            tether_agent_start(first, &err) != TETHER_OK ||
            tether_agent_new(TETHER_AGENT_OPTS(.name = "a", .store = store, .token = tokens[i][1]),
                             &second, &err) != TETHER_OK)
            fail_msg("%s", err.message);
        assert_int_equal(tether_agent_start(second, &err), TETHER_EAUTH);
        if (!strstr(err.message, "has another token than this start"))
            fail_msg("%zu: %s", i, err.message);
        assert_true(is_listed(first, "a"));
        tether_agent_release(second);
        tether_agent_release(first);
    }
}

static void second_start_is_refused_when_agent_has_no_name(void **state)
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
        cmocka_unit_test_setup_teardown(start_fails_at_once_when_world_sizes_differ, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(second_start_is_refused_when_its_token_differs, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(second_start_is_refused_when_agent_has_no_name, setup,
                                        teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
