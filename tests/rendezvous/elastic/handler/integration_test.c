/* Several handlers in one process, on one store and one backend (seed class IntegrationTest). */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/elastic/rules/codec.h"
#include "tests/lib/wait.h"
#include "tests/rendezvous/elastic/lib/fixture.h"

/* The store and backend that the handlers of a test share. */
struct meeting {
    tether_store *store;
    tether_rdzv_backend *backend;
    int made;
};

static const char *master_addr = "expected_address";

static bool locate_nothing(tether_store *store, char addr[TETHER_RDZV_ADDR_MAX], uint16_t *port)
{
    (void)store, (void)addr, (void)port;
    return false;
}

static bool locate_tcp(tether_store *store, char addr[TETHER_RDZV_ADDR_MAX], uint16_t *port)
{
    (void)store;
    strcpy(addr, master_addr);
    *port = 54321;
    return true;
}

static tether_status host_hash(const char *addr,
                               bool insecure,
                               int timeout_ms,
                               tether_store **ret_server,
                               uint16_t *ret_port,
                               tether_error *reterr)
{
    (void)addr, (void)insecure, (void)timeout_ms;
    *ret_port = 4242;
    return tether_store_hash_new(ret_server, reterr);
}

static tether_status port_123(const char *addr, uint16_t *ret_port, tether_error *reterr)
{
    (void)addr, (void)reterr;
    *ret_port = 123;
    return TETHER_OK;
}

static const struct tether__rdzv_bootstrap_ops no_tcp_store = {locate_nothing, host_hash, port_123};
static const struct tether__rdzv_bootstrap_ops on_tcp_store = {locate_tcp, host_hash, port_123};

static int setup(void **state)
{
    static struct meeting meeting;
    meeting = (struct meeting){0};
    assert_int_equal(tether_store_hash_new(&meeting.store, NULL), TETHER_OK);
    assert_int_equal(
        tether_rdzv_backend_store_new(meeting.store, "dummy_run_id", &meeting.backend, NULL),
        TETHER_OK);
    *state = &meeting;
    return 0;
}

static int teardown(void **state)
{
    struct meeting *meeting = *state;
    tether_rdzv_backend_release(meeting->backend);
    tether_store_release(meeting->store);
    return 0;
}

static struct tether_rdzv_settings quick_settings(int min_nodes, int max_nodes)
{
    struct tether_rdzv_settings settings = test_settings(min_nodes, max_nodes);
    settings.timeouts.join_ms = TETHER_TEST_LIMIT_MS;
    settings.timeouts.last_call_ms = 300;
    settings.keep_alive_interval_ms = 100;
    return settings;
}

static tether_rdzv *make(struct meeting *meeting,
                         const struct tether_rdzv_settings *base,
                         const struct tether__rdzv_bootstrap_ops *bootstrap)
{
    char addr[32];
    struct tether_rdzv_settings settings = *base;
    snprintf(addr, sizeof addr, "address_%d", meeting->made++);
    settings.local_addr = addr;
    tether_rdzv *rdzv = NULL;
    tether_error err = {0};
    if (tether__rdzv_new_in(&settings, meeting->store, meeting->backend, &tether__rdzv_env_system,
                            bootstrap, &rdzv, &err) != TETHER_OK)
        fail_msg("%s", err.message);
    return rdzv;
}

/* A next() in a thread of its own. */
struct join {
    tether_rdzv *rdzv;
    pthread_t thread;
    struct tether_rdzv_info info;
    tether_status status;
    tether_error err;
};

static void *join_thread(void *userdata)
{
    struct join *join = userdata;
    join->status = tether_rdzv_next(join->rdzv, &join->info, &join->err);
    return NULL;
}

static void join_begin(struct join *join, tether_rdzv *rdzv)
{
    *join = (struct join){.rdzv = rdzv};
    assert_int_equal(pthread_create(&join->thread, NULL, join_thread, join), 0);
}

static void join_end(struct join *join)
{
    pthread_join(join->thread, NULL);
    if (join->status != TETHER_OK)
        fail_msg("%s", join->err.message);
}

/* Returns the state that the backend has. */
static struct tether__rdzv_state read_state(struct meeting *meeting)
{
    tether_buf bytes = TETHER_BUF_INIT, token = TETHER_BUF_INIT;
    struct tether__rdzv_state state;
    tether__rdzv_state_init(&state);
    if (tether_rdzv_backend_get_state(meeting->backend, 0, &bytes, &token, NULL) == TETHER_OK)
        assert_int_equal(tether__rdzv_state_decode(tether_buf_bytes(&bytes), 0, &state, NULL),
                         TETHER_OK);
    tether_buf_fini(&bytes);
    tether_buf_fini(&token);
    return state;
}

struct counts {
    size_t participants, waiting, redundant;
};

static struct counts count(struct meeting *meeting)
{
    struct tether__rdzv_state state = read_state(meeting);
    struct counts counts = {state.participants.n, state.wait_list.n, state.redundancy_list.n};
    tether__rdzv_state_fini(&state);
    return counts;
}

static void test_all_nodes_join_rendezvous(void **state)
{
    struct meeting *meeting = *state;
    struct tether_rdzv_settings settings = quick_settings(2, 2);
    struct join joins[2];
    for (int i = 0; i < 2; i++)
        join_begin(&joins[i], make(meeting, &settings, &no_tcp_store));
    for (int i = 0; i < 2; i++) {
        join_end(&joins[i]);
        assert_ptr_equal(tether_store_underlying(joins[i].info.store), meeting->store);
        assert_int_equal(joins[i].info.world_size, 2);
    }
    assert_int_not_equal(joins[0].info.rank, joins[1].info.rank);
    assert_string_equal(joins[0].info.master_addr, joins[1].info.master_addr);
    assert_int_equal(joins[0].info.master_port, 4242);
    assert_int_equal(joins[1].info.master_port, 4242);
    for (int i = 0; i < 2; i++) {
        tether_rdzv_info_fini(&joins[i].info);
        tether_rdzv_release(joins[i].rdzv);
    }
}

static void test_redundancy_list(void **state)
{
    struct meeting *meeting = *state;
    struct tether_rdzv_settings settings = quick_settings(2, 2);
    struct join joins[3];
    for (int i = 0; i < 2; i++)
        join_begin(&joins[i], make(meeting, &settings, &no_tcp_store));
    for (int i = 0; i < 2; i++)
        join_end(&joins[i]);
    join_begin(&joins[2], make(meeting, &settings, &no_tcp_store));
    assert_eventually(count(meeting).redundant == 1);
    struct tether__rdzv_state seen = read_state(meeting);
    assert_string_equal(seen.redundancy_list.members[0]->node.addr, "address_2");
    tether__rdzv_state_fini(&seen);

    /* Closing ends the wait of the spare. */
    assert_int_equal(tether_rdzv_set_closed(joins[0].rdzv, NULL), TETHER_OK);
    pthread_join(joins[2].thread, NULL);
    assert_int_equal(joins[2].status, TETHER_ESHUTDOWN);
    for (int i = 0; i < 3; i++) {
        tether_rdzv_info_fini(&joins[i].info);
        tether_rdzv_release(joins[i].rdzv);
    }
}

static void test_redundancy_transition_to_wait_list_then_join_rendezvous(void **state)
{
    struct meeting *meeting = *state;
    struct tether_rdzv_settings settings = quick_settings(1, 2);
    struct join joins[3];
    /* A round needs two nodes. On a busy machine one may come long after the other: the last call
     * must not be over, and the first must not count as dead. */
    settings.timeouts.last_call_ms = TETHER_TEST_LIMIT_MS;
    settings.keep_alive_interval_ms = 500;
    for (int i = 0; i < 2; i++)
        join_begin(&joins[i], make(meeting, &settings, &no_tcp_store));
    for (int i = 0; i < 2; i++) {
        join_end(&joins[i]);
        assert_int_equal(joins[i].info.world_size, 2);
    }
    join_begin(&joins[2], make(meeting, &settings, &no_tcp_store));
    assert_eventually(count(meeting).redundant == 1);

    /* The second node dies: the spare is let onto the wait list, */
    tether__rdzv_stop_heartbeats(joins[1].rdzv);
    assert_eventually(count(meeting).participants == 1);
    assert_eventually(count(meeting).waiting == 1);

    /* the first one notices, and both form the next round. */
    struct tether_rdzv_members members = {0};
    assert_eventually(tether_rdzv_members(joins[0].rdzv, &members, NULL) == TETHER_OK &&
                      members.changed && members.waiting == 1);
    tether_rdzv_info_fini(&joins[0].info);
    assert_int_equal(tether_rdzv_next(joins[0].rdzv, &joins[0].info, NULL), TETHER_OK);
    join_end(&joins[2]);
    assert_int_equal(joins[0].info.round, 1);
    assert_int_equal(joins[2].info.round, 1);
    assert_int_equal(joins[0].info.world_size, 2);
    assert_int_equal(joins[2].info.world_size, 2);
    for (int i = 0; i < 3; i++) {
        tether_rdzv_info_fini(&joins[i].info);
        tether_rdzv_release(joins[i].rdzv);
    }
}

static void test_use_agent_store_is_true_by_default(void **state)
{
    struct meeting *meeting = *state;
    struct tether_rdzv_settings settings = quick_settings(1, 2);
    tether_rdzv *rdzv = make(meeting, &settings, &no_tcp_store);
    assert_true(tether_rdzv_use_agent_store(rdzv));
    tether_rdzv_release(rdzv);
}

static void test_use_agent_store_is_disabled(void **state)
{
    struct meeting *meeting = *state;
    struct tether_rdzv_settings settings = quick_settings(1, 2);
    setenv("TETHER_DISABLE_SHARED_STORE", "1", 1);
    tether_rdzv *by_environment = make(meeting, &settings, &no_tcp_store);
    unsetenv("TETHER_DISABLE_SHARED_STORE");
    assert_false(tether_rdzv_use_agent_store(by_environment));
    tether_rdzv_release(by_environment);

    settings.own_store = true;
    tether_rdzv *by_setting = make(meeting, &settings, &no_tcp_store);
    assert_false(tether_rdzv_use_agent_store(by_setting));
    tether_rdzv_release(by_setting);
}

static void join_two(struct meeting *meeting,
                     const struct tether_rdzv_settings *settings,
                     const struct tether__rdzv_bootstrap_ops *bootstrap,
                     const char *expected_addr,
                     uint16_t expected_port)
{
    struct join joins[2];
    for (int i = 0; i < 2; i++)
        join_begin(&joins[i], make(meeting, settings, bootstrap));
    for (int i = 0; i < 2; i++)
        join_end(&joins[i]);
    for (int i = 0; i < 2; i++) {
        /* The store of the round is the meeting's, under the round's prefix. */
        tether_buf value = TETHER_BUF_INIT;
        assert_int_equal(
            tether_store_set(joins[i].info.store, "key", tether_bytes_str("v"), 0, NULL),
            TETHER_OK);
        assert_int_equal(tether_store_get(meeting->store, "tether.rendezvous.dummy_run_id.0/key", 0,
                                          &value, NULL),
                         TETHER_OK);
        tether_buf_fini(&value);
        assert_ptr_equal(tether_store_underlying(joins[i].info.store), meeting->store);
        if (expected_addr)
            assert_string_equal(joins[i].info.master_addr, expected_addr);
        assert_int_equal(joins[i].info.master_port, expected_port);
    }
    assert_string_equal(joins[0].info.master_addr, joins[1].info.master_addr);
    for (int i = 0; i < 2; i++) {
        tether_rdzv_info_fini(&joins[i].info);
        tether_rdzv_release(joins[i].rdzv);
    }
}

static void test_share_tcp_store_from_backend(void **state)
{
    struct tether_rdzv_settings settings = quick_settings(2, 2);
    join_two(*state, &settings, &on_tcp_store, master_addr, 54321);
}

static void test_share_tcp_store_is_disabled(void **state)
{
    struct tether_rdzv_settings settings = quick_settings(2, 2);
    settings.own_store = true;
    join_two(*state, &settings, &on_tcp_store, NULL, 123);
}

/* A canceled node leaves all lists, also when another node leads. */
static void cancel_ends_next_of_waiting_node(void **state)
{
    struct meeting *meeting = *state;
    struct tether_rdzv_settings settings = quick_settings(2, 2);
    for (int follower = 0; follower < 2; follower++) {
        /* The first time the node is alone and leads; the second time another node leads. */
        struct join joins[2];
        settings.min_nodes = settings.max_nodes = 2 + follower;
        if (follower) {
            join_begin(&joins[1], make(meeting, &settings, &no_tcp_store));
            assert_eventually(count(meeting).participants == 1);
        }
        join_begin(&joins[0], make(meeting, &settings, &no_tcp_store));
        assert_eventually(count(meeting).participants == (size_t)follower + 1);
        for (int i = 0; i <= follower; i++) {
            tether_rdzv_cancel(joins[i].rdzv);
            pthread_join(joins[i].thread, NULL);
            assert_int_equal(joins[i].status, TETHER_ECANCELED);
            /* A canceled follower has posted a request to leave, which the next leader applies. */
            if (i < follower)
                assert_eventually(count(meeting).participants == 1);
        }
        for (int i = 0; i <= follower; i++)
            tether_rdzv_release(joins[i].rdzv);
    }
}

static void next_succeeds_after_earlier_timeout(void **state)
{
    struct meeting *meeting = *state;
    struct tether_rdzv_settings settings = quick_settings(2, 2);
    settings.timeouts.join_ms = 200;
    tether_rdzv *early = make(meeting, &settings, &no_tcp_store);
    struct tether_rdzv_info info;
    tether_error err = {0};
    assert_int_equal(tether_rdzv_next(early, &info, &err), TETHER_ETIMEOUT);
    assert_non_null(strstr(err.message, "of 2 to 2 nodes"));
    assert_int_equal(count(meeting).participants, 0);
    tether_rdzv_release(early);

    /* No entry of the canceled node is left in the state. */
    settings.timeouts.join_ms = TETHER_TEST_LIMIT_MS;
    struct join joins[2];
    for (int i = 0; i < 2; i++)
        join_begin(&joins[i], make(meeting, &settings, &no_tcp_store));
    for (int i = 0; i < 2; i++) {
        join_end(&joins[i]);
        tether_rdzv_info_fini(&joins[i].info);
        tether_rdzv_release(joins[i].rdzv);
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_all_nodes_join_rendezvous),
        TEST(test_redundancy_list),
        TEST(test_redundancy_transition_to_wait_list_then_join_rendezvous),
        TEST(test_use_agent_store_is_true_by_default),
        TEST(test_use_agent_store_is_disabled),
        TEST(test_share_tcp_store_from_backend),
        TEST(test_share_tcp_store_is_disabled),
        TEST(cancel_ends_next_of_waiting_node),
        TEST(next_succeeds_after_earlier_timeout),
    };
    return cmocka_run_group_tests_name("dynamic integration", tests, NULL, NULL);
}
