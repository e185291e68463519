/* Leaders and followers: elections, a leader that leaves or dies, and the keys that remain. The
 * memory tests at the end use real time, the others virtual time. */
#include "rendezvous/elastic/coordination/member.h"

#include <string.h>

#include "tests/lib/heap.h"
#include "tests/rendezvous/elastic/lib/fixture.h"
#include "tests/rendezvous/elastic/sim/node.h"

#define LATENCY_NS (500 * INT64_C(1000))
#define INTERVAL_NS (5 * S)
#define LIFETIME_NS (15 * S)

static struct sim_job job;

static int setup(void **state)
{
    struct tether_rdzv_settings settings = test_settings(2, 5);
    settings.run_id = "sim";
    settings.keep_alive_interval_ms = INTERVAL_NS / TETHER__NS_PER_MS;
    settings.timeouts.last_call_ms = 1000;
    sim_job_init(&job, 7, 5, &settings, LATENCY_NS);
    *state = &job;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    sim_job_fini(&job);
    return 0;
}

/* Starts the first `n` nodes and runs until they are a group. */
static void form(int n)
{
    uint64_t round;
    for (int i = 0; i < n; i++)
        sim_node_start(&job.nodes[i]);
    sim_run(job.sim, 5 * S);
    assert_int_equal(sim_job_in_round(&job, n, &round), n);
    assert_int_equal(round, 0);
}

static int leader(void)
{
    int found = -1;
    for (int i = 0; i < job.n; i++) {
        if (job.nodes[i].fiber && !sim_ended(job.nodes[i].fiber) &&
            tether__rdzv_member_holder_leads(&job.nodes[i].member)) {
            assert_int_equal(found, -1);
            found = i;
        }
    }
    return found;
}

/* Runs in small steps until `n` nodes are in a round of that size other than round 0; returns the
 * time. */
static int64_t form_again(int n, int64_t limit)
{
    int64_t since = sim_now(job.sim);
    uint64_t round = 0;
    while (sim_job_in_round(&job, n, &round) != n || round == 0) {
        if (sim_now(job.sim) > since + limit)
            fail_msg("%d nodes are not a group after %lld s", n, (long long)(limit / S));
        sim_run(job.sim, sim_now(job.sim) + S / 10);
    }
    return sim_now(job.sim) - since;
}

static void follower_takes_over_at_once_when_leader_leaves(void **state)
{
    (void)state;
    form(4);
    int first = leader();
    assert_int_not_equal(first, -1);
    job.nodes[first].leave = true;
    /* Followers notice at their next heartbeat; they need not miss heartbeats of the leader. */
    int64_t took = form_again(3, LIFETIME_NS);
    assert_true(took < 2 * INTERVAL_NS + 3 * S);
    assert_int_not_equal(leader(), first);
    assert_int_not_equal(leader(), -1);
}

static void follower_takes_over_and_drops_leader_when_leader_dies(void **state)
{
    (void)state;
    form(4);
    int first = leader();
    sim_node_kill(&job.nodes[first]);
    int64_t took = form_again(3, 2 * LIFETIME_NS);
    /* The lifetime of the leader, the next heartbeat, and no extra time for the dead node. */
    assert_true(took < LIFETIME_NS + 2 * INTERVAL_NS + 3 * S);
    assert_int_not_equal(leader(), -1);
}

static void leader_steps_down_when_it_was_suspended_for_too_long(void **state)
{
    (void)state;
    form(4);
    int first = leader();
    sim_freeze(job.sim, job.nodes[first].fiber, sim_now(job.sim) + 60 * S);
    form_again(3, 2 * LIFETIME_NS);
    assert_true(
        tether__rdzv_member_holder_leads(&job.nodes[first].member)); /* it has not noticed yet */
    sim_run(job.sim, 80 * S);
    /* It has joined the others. */
    uint64_t round;
    assert_int_equal(sim_job_in_round(&job, 4, &round), 4);
    assert_false(tether__rdzv_member_holder_leads(&job.nodes[first].member));
}

static void take_number_only(void *userdata)
{
    int64_t number;
    (void)userdata;
    assert_int_equal(tether_store_add(job.run_store, "requests", 1, 1000, &number, NULL),
                     TETHER_OK);
}

/* A node takes the number of a request and dies before it writes the request. */
static void leader_skips_request_that_is_never_written(void **state)
{
    (void)state;
    form(3);
    sim_start(job.sim, take_number_only, NULL);
    sim_run(job.sim, sim_now(job.sim) + S);
    sim_node_start(&job.nodes[3]);
    int64_t took = form_again(4, 30 * S);
    assert_true(took > S);
    assert_true(took < 2 * INTERVAL_NS + 5 * S);
}

static void write_garbage(void *userdata)
{
    const char *key = userdata;
    assert_int_equal(
        tether_store_set(job.run_store, key, tether_bytes_str("not a message of ours"), 1000, NULL),
        TETHER_OK);
}

static void join_fails_when_summary_is_corrupt(void **state)
{
    (void)state;
    sim_start(job.sim, write_garbage, "summary");
    sim_node_start(&job.nodes[0]);
    job.nodes[0].starts_at = S;
    sim_run(job.sim, 3 * S);
    assert_true(sim_ended(job.nodes[0].fiber));
    assert_int_equal(job.nodes[0].ended, TETHER_ECORRUPT);
}

static void leader_ignores_corrupt_request(void **state)
{
    (void)state;
    form(3);
    sim_start(job.sim, take_number_only, NULL);
    sim_start(job.sim, write_garbage, "request/3");
    sim_node_start(&job.nodes[3]);
    form_again(4, 30 * S);
}

static void leader_deletes_keys_of_nodes_that_left(void **state)
{
    (void)state;
    form(5);
    for (int i = 0; i < 4; i++) {
        job.nodes[i].leave = true;
        sim_run(job.sim, sim_now(job.sim) + 20 * S);
    }
    tether_store_keys keys = {0};
    assert_int_equal(sim_store_keys(job.store, &keys), TETHER_OK);
    int beats = 0, assignments = 0, requests = 0;
    for (size_t i = 0; i < keys.count; i++) {
        beats += strstr(keys.keys[i].data, "/beat/") != NULL;
        assignments += strstr(keys.keys[i].data, "/assignment/") != NULL;
        requests += strstr(keys.keys[i].data, "/request/") != NULL;
    }
    tether_store_keys_fini(&keys);
    assert_int_equal(beats, 1); /* of the last node */
    assert_in_range(assignments, 0, 1);
    assert_int_equal(requests, 0);
}

/* ---- Memory --------------------------------------------------------------------------------- */

struct pair {
    struct tether__rdzv_self self[2];
    struct tether__rdzv_member_holder member[2];
    struct tether_rdzv_settings settings;
    struct fake_env env;
};

static tether_status sync_of(struct pair *pair, int who, enum tether__rdzv_sync *ret_sync)
{
    struct tether__rdzv_holder *holder = &pair->member[who].base;
    return holder->ops->sync(holder, TETHER__NEVER, ret_sync, NULL);
}

static tether_status ask_to_join(struct pair *pair, int who)
{
    struct tether__rdzv_holder *holder = &pair->member[who].base;
    tether_status st =
        tether__rdzv_apply(holder->ops->state(holder), TETHER__RDZV_ADD_TO_PARTICIPANTS,
                           &pair->self[who], &pair->settings, fake_env_now(&pair->env));
    if (st == TETHER_OK)
        holder->ops->mark_dirty(holder, TETHER__RDZV_ADD_TO_PARTICIPANTS);
    return st;
}

/* The first node leads, the second asks to join, and the round of two becomes complete. */
static tether_status meet(struct pair *pair)
{
    enum tether__rdzv_sync sync;
    tether_status st = sync_of(pair, 0, &sync);
    if (st == TETHER_OK)
        st = ask_to_join(pair, 0);
    if (st == TETHER_OK)
        st = sync_of(pair, 0, &sync);
    if (st == TETHER_OK)
        st = sync_of(pair, 1, &sync);
    if (st == TETHER_OK)
        st = ask_to_join(pair, 1);
    if (st == TETHER_OK)
        st = sync_of(pair, 1, &sync);
    if (st == TETHER_OK)
        st = sync_of(pair, 0, &sync);
    if (st == TETHER_OK)
        st = sync_of(pair, 1, &sync);
    if (st != TETHER_OK)
        return st;
    for (int i = 0; i < 2; i++) {
        struct tether__rdzv_holder *holder = &pair->member[i].base;
        const struct tether__rdzv_state *state = holder->ops->state(holder);
        const struct tether__rdzv_member *self =
            tether__rdzv_roster_find(&state->participants, &pair->self[i].node);
        assert_true(state->complete);
        assert_int_equal(state->world_size, 2);
        assert_non_null(self);
        assert_int_equal(self->rank, i);
    }
    return TETHER_OK;
}

static tether_status meet_on_a_hash_store(void *userdata)
{
    (void)userdata;
    struct pair pair = {0};
    tether_store *store = NULL;
    tether_rdzv_backend *backend = NULL;
    int made = 0;
    fake_env_init(&pair.env);
    pair.settings = test_settings(2, 2);
    tether_status st = tether_store_hash_new(&store, NULL);
    if (st == TETHER_OK)
        st = tether_rdzv_backend_store_new(store, "run", &backend, NULL);
    while (made < 2 && st == TETHER_OK) {
        pair.self[made] = (struct tether__rdzv_self){{"host", made, 0}, -1, -1, 0};
        tether__rdzv_member_holder_init(&pair.member[made], &pair.self[made], &pair.settings, store,
                                        backend, &pair.env.base);
        made++;
    }
    if (st == TETHER_OK)
        st = meet(&pair);
    while (made > 0)
        tether__rdzv_member_holder_fini(&pair.member[--made]);
    tether_rdzv_backend_release(backend);
    tether_store_release(store);
    return st;
}

static void leader_and_follower_report_failed_allocations(void **state)
{
    (void)state;
    tether_test_heap_fail_each(meet_on_a_hash_store, NULL);
}

/* A group of one node: new(), next(), leave(). */
static tether_status form_group_of_one(void *userdata)
{
    (void)userdata;
    struct tether_rdzv_settings settings = test_settings(1, 1);
    settings.local_addr = "127.0.0.1";
    settings.own_store = true;
    tether_store *store = NULL;
    tether_rdzv *rdzv = NULL;
    struct tether_rdzv_info info = {0};
    tether_status st = tether_store_hash_new(&store, NULL);
    if (st == TETHER_OK)
        st = tether_rdzv_new(&settings, store, NULL, &rdzv, NULL);
    if (st == TETHER_OK)
        st = tether_rdzv_next(rdzv, &info, NULL);
    if (st == TETHER_OK)
        st = tether_rdzv_leave(rdzv, NULL);
    tether_rdzv_info_fini(&info);
    tether_rdzv_release(rdzv);
    tether_store_release(store);
    return st;
}

static void handler_reports_failed_allocations(void **state)
{
    (void)state;
    tether_test_heap_fail_each(form_group_of_one, NULL);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(follower_takes_over_at_once_when_leader_leaves),
        TEST(follower_takes_over_and_drops_leader_when_leader_dies),
        TEST(leader_steps_down_when_it_was_suspended_for_too_long),
        TEST(leader_skips_request_that_is_never_written),
        TEST(join_fails_when_summary_is_corrupt),
        TEST(leader_ignores_corrupt_request),
        TEST(leader_deletes_keys_of_nodes_that_left),
        cmocka_unit_test(leader_and_follower_report_failed_allocations),
        cmocka_unit_test(handler_reports_failed_allocations),
    };
    return cmocka_run_group_tests_name("dynamic member", tests, NULL, NULL);
}
