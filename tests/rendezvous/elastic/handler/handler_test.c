/* The handler (seed classes DynamicRendezvousHandlerTest, DynamicRendezvousHandlerFromBackendTest
 * and CreateHandlerTest). */
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "rendezvous/elastic/handler/internal.h"
#include "tests/lib/wait.h"
#include "tests/rendezvous/elastic/lib/fixture.h"

struct fixture {
    struct fake_env env;
    struct fake_holder holder;
    struct dummy_store store;
    struct tether_rdzv_settings settings;
    struct tether__rdzv_node node;
    int failures; /* events that reported a failure */
    char last_event[32];
};

static struct fixture fixture;
static tether_store *hosted; /* the last server that was made; borrowed */

/* ---- Places to meet ------------------------------------------------------------------------- */

static bool no_tcp_store(tether_store *store, char addr[TETHER_RDZV_ADDR_MAX], uint16_t *port)
{
    (void)store, (void)addr, (void)port;
    return false;
}

static bool a_tcp_store(tether_store *store, char addr[TETHER_RDZV_ADDR_MAX], uint16_t *port)
{
    (void)store;
    strcpy(addr, "host");
    *port = 54321;
    return true;
}

static tether_status host(const char *addr,
                          bool insecure,
                          int timeout_ms,
                          tether_store **ret_server,
                          uint16_t *ret_port,
                          tether_error *reterr)
{
    (void)addr, (void)insecure, (void)timeout_ms;
    *ret_port = 54321;
    tether_status st = tether_store_hash_new(ret_server, reterr);
    hosted = *ret_server;
    return st;
}

static tether_status no_port(const char *addr, uint16_t *ret_port, tether_error *reterr)
{
    (void)addr, (void)ret_port;
    return tether_error_set(reterr, TETHER_EIO, "there is no port");
}

static const struct tether__rdzv_bootstrap_ops hosting = {no_tcp_store, host, no_port};
static const struct tether__rdzv_bootstrap_ops sharing = {a_tcp_store, host, no_port};

/* ---- Set-up --------------------------------------------------------------------------------- */

static void on_event(void *userdata, const struct tether_rdzv_event *event)
{
    struct fixture *f = userdata;
    if (event->kind == TETHER_RDZV_FAILED)
        f->failures++;
    snprintf(f->last_event, sizeof f->last_event, "%s", event->name);
}

static int setup(void **state)
{
    struct fixture *f = &fixture;
    memset(f, 0, sizeof *f);
    fake_env_init(&f->env);
    fake_holder_init(&f->holder, &f->env);
    dummy_store_init(&f->store);
    f->settings = test_settings(1, 1);
    f->settings.on_event = on_event;
    f->settings.on_event_userdata = f;
    f->node = node_of("this_node");
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    fake_holder_fini(&f->holder);
    dummy_store_fini(&f->store);
    return 0;
}

static tether_rdzv *create_with(struct fixture *f, const struct tether__rdzv_bootstrap_ops *ops)
{
    tether_rdzv *rdzv = NULL;
    tether_error err = {0};
    if (tether__rdzv_new_with(&f->settings, &f->node, "dummy_backend", f->store.store,
                              &f->holder.base, &f->env.base, ops, &rdzv, &err) != TETHER_OK)
        fail_msg("%s", err.message);
    return rdzv;
}

static tether_rdzv *create_handler(struct fixture *f)
{
    return create_with(f, &hosting);
}

static struct tether_rdzv_info next(tether_rdzv *rdzv)
{
    struct tether_rdzv_info info;
    tether_error err = {0};
    if (tether_rdzv_next(rdzv, &info, &err) != TETHER_OK)
        fail_msg("%s", err.message);
    return info;
}

/* ---- Where workers meet --------------------------------------------------------------------- */

static void test_share_store_creates_tcp_store(void **state)
{
    struct fixture *f = *state;
    tether_rdzv *rdzv = create_handler(f);
    for (int round = 0; round < 2; round++) {
        hosted = NULL;
        struct tether_rdzv_info info = next(rdzv);
        assert_string_equal(info.master_addr, "this_node");
        assert_int_equal(info.master_port, 54321);
        assert_non_null(hosted);
        assert_ptr_equal(rdzv->server, hosted);
        assert_string_equal(f->store.last_set,
                            round == 0 ? "tether.rendezvous.dummy_run_id.0/MASTER_PORT"
                                       : "tether.rendezvous.dummy_run_id.1/MASTER_PORT");
        tether_rdzv_info_fini(&info);
    }
    tether_rdzv_release(rdzv);
}

static void test_share_store_when_tcp_store(void **state)
{
    struct fixture *f = *state;
    tether_rdzv *rdzv = create_with(f, &sharing);
    for (int round = 0; round < 2; round++) {
        struct tether_rdzv_info info = next(rdzv);
        assert_string_equal(info.master_addr, "host");
        assert_int_equal(info.master_port, 54321);
        /* The rendezvous' own store is used, so there is no other server. */
        assert_null(rdzv->server);
        tether_rdzv_info_fini(&info);
    }
    tether_rdzv_release(rdzv);
}

static atomic_bool host_runs, host_may_go_on;

/* The flags are relaxed and order nothing, so that the thread sanitizer finds accesses without a
 * lock. */
static tether_status slow_host(const char *addr,
                               bool insecure,
                               int timeout_ms,
                               tether_store **ret_server,
                               uint16_t *ret_port,
                               tether_error *reterr)
{
    atomic_store_explicit(&host_runs, true, memory_order_relaxed);
    while (!atomic_load_explicit(&host_may_go_on, memory_order_relaxed))
        sched_yield();
    return host(addr, insecure, timeout_ms, ret_server, ret_port, reterr);
}

static void *next_thread(void *arg)
{
    struct tether_rdzv_info info = next(arg);
    tether_rdzv_info_fini(&info);
    return NULL;
}

static void server_has_one_owner_when_shutdown_runs_during_next(void **state)
{
    struct fixture *f = *state;
    static const struct tether__rdzv_bootstrap_ops slow = {no_tcp_store, slow_host, no_port};
    tether_rdzv *rdzv = create_with(f, &slow);
    pthread_t thread;
    atomic_store(&host_runs, false);
    atomic_store(&host_may_go_on, false);
    assert_int_equal(pthread_create(&thread, NULL, next_thread, rdzv), 0);
    while (!atomic_load_explicit(&host_runs, memory_order_relaxed))
        sched_yield();
    assert_int_equal(tether_rdzv_shutdown(rdzv, NULL), TETHER_OK);
    atomic_store_explicit(&host_may_go_on, true, memory_order_relaxed);
    pthread_join(thread, NULL);
    tether_rdzv_release(rdzv);
}

/* ---- next ----------------------------------------------------------------------------------- */

static void test_next_rendezvous_skews_the_first_join_attempt(void **state)
{
    struct fixture *f = *state;
    static const struct {
        int round, nodes, delays;
    } rows[] = {{0, 2, 1}, {1, 2, 0}, {0, 1, 0}}; /* a single node needs no skew */
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        tether__rdzv_state_fini(&f->holder.state);
        f->holder.state.round = (uint64_t)rows[i].round;
        f->settings.max_nodes = rows[i].nodes;
        if (rows[i].nodes > 1)
            put_in(&f->holder.state.participants, "dummy1", 0);
        f->env.delays = 0;
        tether_rdzv *rdzv = create_handler(f);
        struct tether_rdzv_info info = next(rdzv);
        assert_int_equal(f->env.delays, rows[i].delays);
        tether_rdzv_info_fini(&info);
        tether_rdzv_release(rdzv);
    }
    assert_in_range(f->env.last_delay_ns, 0, 300 * TETHER__NS_PER_MS);
}

static void test_next_rendezvous_returns_expected_value(void **state)
{
    struct fixture *f = *state;
    put_in(&f->holder.state.participants, "dummy1", 0);
    put_in(&f->holder.state.participants, "dummy2", 0);
    f->settings.max_nodes = 3;
    tether_rdzv *rdzv = create_handler(f);
    struct tether_rdzv_info info = next(rdzv);
    assert_int_equal(info.rank, 2);
    assert_int_equal(info.world_size, 3);
    assert_int_equal(info.round, 0);
    assert_int_equal(info.master_port, 123); /* the value that the dummy store gives for each key */

    tether_buf value = TETHER_BUF_INIT;
    assert_int_equal(tether_store_get(info.store, "dummy_key", 0, &value, NULL), TETHER_OK);
    assert_string_equal(f->store.last_get, "tether.rendezvous.dummy_run_id.0/dummy_key");
    tether_buf_fini(&value);
    tether_rdzv_info_fini(&info);
    tether_rdzv_release(rdzv);
}

static void test_next_rendezvous_respects_the_requested_timeout(void **state)
{
    struct fixture *f = *state;
    f->holder.sync_takes_ns = 300 * TETHER__NS_PER_MS;
    f->settings.timeouts.join_ms = 200;
    tether_rdzv *rdzv = create_handler(f);
    struct tether_rdzv_info info;
    assert_int_equal(tether_rdzv_next(rdzv, &info, NULL), TETHER_ETIMEOUT);
    assert_int_equal(f->failures, 1);
    tether_rdzv_release(rdzv);
}

static void test_next_rendezvous_moves_to_next_round_if_called_repeatedly(void **state)
{
    struct fixture *f = *state;
    tether_rdzv *rdzv = create_handler(f);
    for (int i = 0; i < 4; i++) {
        struct tether_rdzv_info info = next(rdzv);
        assert_int_equal(f->holder.state.round, i);
        assert_int_equal(info.round, i);
        tether_rdzv_info_fini(&info);
    }
    tether_rdzv_release(rdzv);
}

static void second_next_fails_while_first_runs(void **state)
{
    struct fixture *f = *state;
    tether_rdzv *rdzv = create_handler(f);
    struct tether_rdzv_info info;
    rdzv->joining = true; /* as if another thread were inside next() */
    assert_int_equal(tether_rdzv_next(rdzv, &info, NULL), TETHER_EBUSY);
    assert_true(rdzv->joining);
    tether_rdzv_release(rdzv);
}

/* One reported event: its text, and the sizes of the group at that time. */
struct reported {
    char text[512];
    int participants, min_nodes, max_nodes;
};

static void on_event_reported(void *userdata, const struct tether_rdzv_event *event)
{
    struct reported *reported = userdata;
    size_t len = strlen(reported->text);
    snprintf(reported->text + len, sizeof reported->text - len, "%s %s: %s\n", event->name,
             tether_rdzv_event_kind_text(event->kind), event->message);
    reported->participants = event->participants;
    reported->min_nodes = event->min_nodes;
    reported->max_nodes = event->max_nodes;
    assert_string_equal(event->run_id, "dummy_run_id");
    assert_string_equal(event->node, "this_node_1_1");
}

static void handler_reports_every_step_as_event(void **state)
{
    struct fixture *f = *state;
    struct reported reported = {.text = ""};
    f->settings.on_event = on_event_reported;
    f->settings.on_event_userdata = &reported;
    put_in(&f->holder.state.participants, "dummy1", 0);
    f->settings.max_nodes = 2;
    tether_rdzv *rdzv = create_handler(f);
    struct tether_rdzv_info info = next(rdzv);
    tether__rdzv_stop_heartbeats(rdzv);
    assert_string_equal(reported.text,
                        "next init: this_node_1_1 attempts to join the next round\n"
                        "next running: this_node_1_1 joins the round\n"
                        "next succeeded: this_node_1_1 has joined round 0 as rank 1 of 2\n");
    assert_int_equal(reported.participants, 2);
    assert_int_equal(reported.min_nodes, 1);
    assert_int_equal(reported.max_nodes, 2);
    assert_string_equal(tether_rdzv_event_kind_text((tether_rdzv_event_kind)99), "?");
    tether_rdzv_info_fini(&info);
    tether_rdzv_release(rdzv);
}

/* ---- Closed --------------------------------------------------------------------------------- */

static void test_is_closed_returns_expected_value(void **state)
{
    struct fixture *f = *state;
    for (int closed = 0; closed < 2; closed++) {
        f->holder.state.closed = closed;
        f->holder.syncs = 0;
        tether_rdzv *rdzv = create_handler(f);
        bool answer = !closed;
        assert_int_equal(tether_rdzv_is_closed(rdzv, &answer, NULL), TETHER_OK);
        assert_int_equal(answer, closed);
        assert_int_equal(f->holder.syncs, 1);
        tether_rdzv_release(rdzv);
    }
}

static void test_is_closed_records_and_raises_exceptions(void **state)
{
    struct fixture *f = *state;
    f->holder.fail = TETHER_EIO;
    tether_rdzv *rdzv = create_handler(f);
    bool closed = true;
    tether_error err = {0};
    assert_int_equal(tether_rdzv_is_closed(rdzv, &closed, &err), TETHER_EIO);
    assert_string_equal(err.message, "test error");
    assert_true(closed); /* set on success only */
    assert_int_equal(f->failures, 1);
    assert_string_equal(f->last_event, "is_closed");
    tether_rdzv_release(rdzv);
}

static void test_set_closed_closes_rendezvous(void **state)
{
    struct fixture *f = *state;
    tether_rdzv *rdzv = create_handler(f);
    assert_int_equal(tether_rdzv_set_closed(rdzv, NULL), TETHER_OK);
    assert_true(f->holder.state.closed);
    tether_rdzv_release(rdzv);
}

static void test_set_closed_respects_the_requested_timeout(void **state)
{
    struct fixture *f = *state;
    f->holder.sync_takes_ns = 300 * TETHER__NS_PER_MS;
    f->settings.timeouts.close_ms = 200;
    tether_rdzv *rdzv = create_handler(f);
    assert_int_equal(tether_rdzv_set_closed(rdzv, NULL), TETHER_ETIMEOUT);
    tether_rdzv_release(rdzv);
}

static void test_set_closed_can_be_called_multiple_times(void **state)
{
    struct fixture *f = *state;
    tether_rdzv *rdzv = create_handler(f);
    assert_int_equal(tether_rdzv_set_closed(rdzv, NULL), TETHER_OK);
    assert_int_equal(tether_rdzv_set_closed(rdzv, NULL), TETHER_OK);
    assert_true(f->holder.state.closed);
    tether_rdzv_release(rdzv);
}

static void test_set_closed_records_and_raises_exceptions(void **state)
{
    struct fixture *f = *state;
    f->holder.fail = TETHER_EUNAVAILABLE;
    tether_rdzv *rdzv = create_handler(f);
    assert_int_equal(tether_rdzv_set_closed(rdzv, NULL), TETHER_EUNAVAILABLE);
    assert_int_equal(f->failures, 1);
    assert_string_equal(f->last_event, "set_closed");
    tether_rdzv_release(rdzv);
}

/* ---- Waiting nodes, and members ------------------------------------------------------------- */

static void test_num_nodes_waiting_returns_expected_value(void **state)
{
    struct fixture *f = *state;
    put_in(&f->holder.state.wait_list, "dummy1", 0);
    put_in(&f->holder.state.wait_list, "dummy2", 0);
    tether_rdzv *rdzv = create_handler(f);
    int count = 0;
    assert_int_equal(tether_rdzv_num_nodes_waiting(rdzv, &count, NULL), TETHER_OK);
    assert_int_equal(count, 2);
    assert_int_equal(f->holder.syncs, 1);

    /* A second call at once makes no request to the store. */
    assert_int_equal(tether_rdzv_num_nodes_waiting(rdzv, &count, NULL), TETHER_OK);
    assert_int_equal(f->holder.syncs, 1);
    tether_test_clock_advance_ms(&f->env.clock, 1000);
    assert_int_equal(tether_rdzv_num_nodes_waiting(rdzv, &count, NULL), TETHER_OK);
    assert_int_equal(f->holder.syncs, 2);
    tether_rdzv_release(rdzv);
}

static void test_num_nodes_waiting_records_and_raises_exceptions(void **state)
{
    struct fixture *f = *state;
    f->holder.fail = TETHER_ETIMEOUT;
    tether_rdzv *rdzv = create_handler(f);
    int count = -1;
    assert_int_equal(tether_rdzv_num_nodes_waiting(rdzv, &count, NULL), TETHER_ETIMEOUT);
    assert_int_equal(count, -1);
    assert_int_equal(f->failures, 1);
    tether_rdzv_release(rdzv);
}

/* All reasons to call next() again. */
static void members_reports_change_of_group(void **state)
{
    struct fixture *f = *state;
    put_in(&f->holder.state.participants, "dummy1", 0);
    f->settings.min_nodes = f->settings.max_nodes = 2;
    tether_rdzv *rdzv = create_handler(f);
    struct tether_rdzv_members members;
    assert_int_equal(tether_rdzv_members(rdzv, &members, NULL), TETHER_OK);
    assert_false(members.changed); /* not joined yet */
    struct tether_rdzv_info info = next(rdzv);
    tether__rdzv_stop_heartbeats(rdzv);

    struct tether__rdzv_state *seen = &f->holder.state;
    assert_int_equal(tether_rdzv_members(rdzv, &members, NULL), TETHER_OK);
    assert_false(members.changed);
    assert_int_equal(members.world_size, 2);
    assert_int_equal(members.participants, 2);

    put_in(&seen->wait_list, "newcomer", 0);
    assert_int_equal(tether_rdzv_members(rdzv, &members, NULL), TETHER_OK);
    assert_true(members.changed);
    assert_int_equal(members.waiting, 1);
    struct tether__rdzv_node newcomer = node_of("newcomer"), peer = node_of("dummy1");
    tether__rdzv_roster_remove(&seen->wait_list, &newcomer);

    tether__rdzv_roster_remove(&seen->participants, &peer);
    assert_int_equal(tether_rdzv_members(rdzv, &members, NULL), TETHER_OK);
    assert_true(members.changed);
    assert_int_equal(members.participants, 1);
    put_in(&seen->participants, "dummy1", 0);

    seen->closed = true;
    assert_int_equal(tether_rdzv_members(rdzv, &members, NULL), TETHER_OK);
    assert_true(members.changed && members.closed);
    seen->closed = false;

    seen->round++;
    assert_int_equal(tether_rdzv_members(rdzv, &members, NULL), TETHER_OK);
    assert_true(members.changed);
    seen->round--;
    assert_int_equal(tether_rdzv_members(rdzv, &members, NULL), TETHER_OK);
    assert_false(members.changed);
    tether_rdzv_info_fini(&info);
    tether_rdzv_release(rdzv);
}

/* ---- Shutting down -------------------------------------------------------------------------- */

static void test_shutdown_closes_rendezvous_and_returns_true(void **state)
{
    struct fixture *f = *state;
    tether_rdzv *rdzv = create_handler(f);
    assert_int_equal(tether_rdzv_shutdown(rdzv, NULL), TETHER_OK);
    assert_true(f->holder.state.closed);
    tether_rdzv_release(rdzv);
}

static void test_shutdown_returns_false_if_rendezvous_cannot_be_closed(void **state)
{
    struct fixture *f = *state;
    f->holder.fail = TETHER_EUNAVAILABLE;
    tether_rdzv *rdzv = create_handler(f);
    assert_int_equal(tether_rdzv_shutdown(rdzv, NULL), TETHER_EUNAVAILABLE);
    tether_rdzv_release(rdzv);
}

static void test_shutdown_can_be_called_multiple_times(void **state)
{
    struct fixture *f = *state;
    tether_rdzv *rdzv = create_handler(f);
    assert_int_equal(tether_rdzv_shutdown(rdzv, NULL), TETHER_OK);
    assert_int_equal(tether_rdzv_shutdown(rdzv, NULL), TETHER_OK);
    assert_true(f->holder.state.closed);
    tether_rdzv_release(rdzv);
}

static void test_shutdown_records_and_raises_exceptions(void **state)
{
    struct fixture *f = *state;
    f->holder.fail = TETHER_EINTERNAL;
    tether_rdzv *rdzv = create_handler(f);
    tether_error err = {0};
    assert_int_equal(tether_rdzv_shutdown(rdzv, &err), TETHER_EINTERNAL);
    assert_string_equal(err.message, "test error");
    assert_int_equal(f->failures, 1);
    tether_rdzv_release(rdzv);
}

/* leave() must not close the job. */
static void leave_removes_only_this_node(void **state)
{
    struct fixture *f = *state;
    put_in(&f->holder.state.participants, "dummy1", 0);
    f->settings.max_nodes = 2;
    tether_rdzv *rdzv = create_handler(f);
    struct tether_rdzv_info info = next(rdzv);
    assert_int_equal(tether_rdzv_leave(rdzv, NULL), TETHER_OK);
    assert_int_equal(f->holder.state.participants.n, 1);
    assert_false(f->holder.state.closed);
    assert_false(rdzv->beating);
    tether_rdzv_info_fini(&info);
    tether_rdzv_release(rdzv);
}

/* ---- Keep-alive ----------------------------------------------------------------------------- */

static int64_t last_heartbeat(struct fixture *f)
{
    return tether__rdzv_roster_find(&f->holder.state.last_heartbeats, &f->node)->heard_at;
}

static void test_keep_alive_updates_last_heartbeat(void **state)
{
    struct fixture *f = *state;
    int64_t now = fake_env_now(&f->env);
    put_heard(&f->holder.state, "this_node", now - 60 * S);
    tether_rdzv *rdzv = create_handler(f);
    tether__rdzv_keep_alive(rdzv);
    assert_int_equal(last_heartbeat(f), now);
    assert_int_equal(f->failures, 0);
    tether_rdzv_release(rdzv);
}

static void assert_keep_alive_swallows_rendezvous_errors(struct fixture *f)
{
    int64_t last = fake_env_now(&f->env) - 60 * S;
    put_heard(&f->holder.state, "this_node", last);
    tether_rdzv *rdzv = create_handler(f);
    tether__rdzv_keep_alive(rdzv);
    assert_int_equal(last_heartbeat(f), last);
    assert_int_equal(f->failures, 1);
    assert_string_equal(f->last_event, "keep_alive");
    tether_rdzv_release(rdzv);
}

static void test_keep_alive_swallows_rendezvous_errors(void **state)
{
    struct fixture *f = *state;
    f->holder.fail = TETHER_EUNAVAILABLE;
    assert_keep_alive_swallows_rendezvous_errors(f);
}

static void test_keep_alive_respects_the_requested_timeout(void **state)
{
    struct fixture *f = *state;
    f->holder.sync_takes_ns = 300 * TETHER__NS_PER_MS;
    f->settings.timeouts.heartbeat_ms = 200;
    assert_keep_alive_swallows_rendezvous_errors(f);
}

static bool thread_exists(const char *name)
{
    bool found = false;
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    for (struct dirent *task; (task = readdir(tasks));) {
        char path[300], comm[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
        FILE *file = task->d_name[0] == '.' ? NULL : fopen(path, "r");
        if (file && fgets(comm, sizeof comm, file)) {
            comm[strcspn(comm, "\n")] = '\0';
            found |= strcmp(comm, name) == 0;
        }
        if (file)
            fclose(file);
    }
    closedir(tasks);
    return found;
}

static void test_keep_alive_thread_is_started_with_next_rendezvous_and_stopped_with_shutdown(
    void **state)
{
    struct fixture *f = *state;
    f->node.local_id = 2;
    tether_rdzv *rdzv = create_handler(f);
    assert_false(thread_exists("rdzv-2"));
    struct tether_rdzv_info info = next(rdzv);
    assert_eventually(thread_exists("rdzv-2")); /* it names itself */
    assert_int_equal(tether_rdzv_shutdown(rdzv, NULL), TETHER_OK);
    assert_false(thread_exists("rdzv-2"));
    tether_rdzv_info_fini(&info);
    tether_rdzv_release(rdzv);
}

static void test_keep_alive_thread_is_started_with_next_rendezvous_and_stopped_with_finalizer(
    void **state)
{
    struct fixture *f = *state;
    f->node.local_id = 3;
    tether_rdzv *rdzv = create_handler(f);
    assert_false(thread_exists("rdzv-3"));
    struct tether_rdzv_info info = next(rdzv);
    assert_eventually(thread_exists("rdzv-3"));
    tether_rdzv_info_fini(&info);
    tether_rdzv_release(rdzv);
    assert_false(thread_exists("rdzv-3"));
}

/* ---- Made from a backend -------------------------------------------------------------------- */

static void create_and_check(struct fixture *f, const struct tether_rdzv_settings *settings)
{
    struct fake_backend backend;
    tether_rdzv *rdzv = NULL;
    tether_error err = {0};
    fake_backend_init(&backend);
    if (tether_rdzv_new(settings, f->store.store, backend.backend, &rdzv, &err) != TETHER_OK)
        fail_msg("%s", err.message);
    const struct tether_rdzv_settings *copy = tether_rdzv_get_settings(rdzv);
    assert_string_equal(tether_rdzv_get_backend(rdzv), "fake_backend");
    assert_string_equal(tether_rdzv_get_run_id(rdzv), settings->run_id);
    assert_string_equal(copy->run_id, settings->run_id);
    assert_ptr_not_equal(copy->run_id, settings->run_id);
    assert_int_equal(copy->min_nodes, settings->min_nodes);
    assert_int_equal(copy->max_nodes, settings->max_nodes);
    assert_memory_equal(&copy->timeouts, &settings->timeouts, sizeof copy->timeouts);
    assert_int_equal(backend.gets + backend.sets, 0); /* no request was made */
    tether_rdzv_release(rdzv);
    fake_backend_fini(&backend);
}

static void test_init_initializes_handler(void **state)
{
    struct fixture *f = *state;
    f->settings = test_settings(3, 6);
    f->settings.timeouts = (struct tether_rdzv_timeouts){50000, 60000, 70000, 8000};
    create_and_check(f, &f->settings);
}

static void test_init_initializes_handler_if_timeout_is_not_specified(void **state)
{
    struct fixture *f = *state;
    f->settings = test_settings(3, 6);
    create_and_check(f, &f->settings);
    assert_int_equal(f->settings.timeouts.join_ms, TETHER_RDZV_JOIN_MS);
}

static void test_init_initializes_handler_if_min_and_max_nodes_are_equal(void **state)
{
    struct fixture *f = *state;
    f->settings = test_settings(3, 3);
    create_and_check(f, &f->settings);
}

static void assert_refused(struct fixture *f, int min_nodes, int max_nodes, const char *message)
{
    tether_rdzv *rdzv = NULL;
    tether_error err = {0};
    f->settings.min_nodes = min_nodes;
    f->settings.max_nodes = max_nodes;
    assert_int_equal(tether_rdzv_new(&f->settings, f->store.store, NULL, &rdzv, &err),
                     TETHER_EINVAL);
    assert_string_equal(err.message, message);
    assert_null(rdzv);
}

static void test_init_raises_error_if_min_nodes_is_not_positive(void **state)
{
    struct fixture *f = *state;
    assert_refused(f, 0, 6, "the minimum number of nodes (0) must be greater than zero");
    assert_refused(f, -10, 6, "the minimum number of nodes (-10) must be greater than zero");
}

static void test_init_raises_error_if_max_nodes_is_less_than_min(void **state)
{
    assert_refused(*state, 3, 2,
                   "the maximum number of nodes (2) must be greater than or equal to the minimum "
                   "number of nodes (3)");
}

/* ---- Made from configuration ---------------------------------------------------------------- */

static void test_create_handler_returns_handler(void **state)
{
    struct fixture *f = *state;
    f->settings = test_settings(3, 6);
    assert_int_equal(tether_rdzv_settings_set(&f->settings, "join_timeout", "50", NULL), TETHER_OK);
    assert_int_equal(tether_rdzv_settings_set(&f->settings, "last_call_timeout", "60", NULL),
                     TETHER_OK);
    assert_int_equal(tether_rdzv_settings_set(&f->settings, "close_timeout", "70", NULL),
                     TETHER_OK);
    assert_int_equal(f->settings.timeouts.join_ms, 50000);
    assert_int_equal(f->settings.timeouts.last_call_ms, 60000);
    assert_int_equal(f->settings.timeouts.close_ms, 70000);
    create_and_check(f, &f->settings);
}

static void test_create_handler_returns_handler_if_timeout_is_not_specified(void **state)
{
    struct fixture *f = *state;
    tether_rdzv *rdzv = NULL;
    f->settings = test_settings(3, 6);
    assert_int_equal(tether_rdzv_new(&f->settings, f->store.store, NULL, &rdzv, NULL), TETHER_OK);
    const struct tether_rdzv_timeouts *timeouts = &tether_rdzv_get_settings(rdzv)->timeouts;
    assert_int_equal(timeouts->join_ms, 600000);
    assert_int_equal(timeouts->last_call_ms, 30000);
    assert_int_equal(timeouts->close_ms, 30000);
    assert_string_equal(tether_rdzv_get_backend(rdzv), "store"); /* no backend given */
    tether_rdzv_release(rdzv);
}

static void test_create_handler_records_and_raises_exceptions(void **state)
{
    struct fixture *f = *state;
    tether_rdzv *rdzv = NULL;
    tether_error err = {0};
    f->settings.timeouts.join_ms = 0;
    assert_int_equal(tether_rdzv_new(&f->settings, f->store.store, NULL, &rdzv, &err),
                     TETHER_EINVAL);
    assert_string_equal(err.message, "the join timeout (0 s) must be positive");
    assert_int_equal(f->failures, 1);
    assert_string_equal(f->last_event, "new");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_share_store_creates_tcp_store),
        TEST(test_share_store_when_tcp_store),
        TEST(server_has_one_owner_when_shutdown_runs_during_next),
        TEST(test_next_rendezvous_skews_the_first_join_attempt),
        TEST(test_next_rendezvous_returns_expected_value),
        TEST(test_next_rendezvous_respects_the_requested_timeout),
        TEST(test_next_rendezvous_moves_to_next_round_if_called_repeatedly),
        TEST(second_next_fails_while_first_runs),
        TEST(handler_reports_every_step_as_event),
        TEST(test_is_closed_returns_expected_value),
        TEST(test_is_closed_records_and_raises_exceptions),
        TEST(test_set_closed_closes_rendezvous),
        TEST(test_set_closed_respects_the_requested_timeout),
        TEST(test_set_closed_can_be_called_multiple_times),
        TEST(test_set_closed_records_and_raises_exceptions),
        TEST(test_num_nodes_waiting_returns_expected_value),
        TEST(test_num_nodes_waiting_records_and_raises_exceptions),
        TEST(members_reports_change_of_group),
        TEST(test_shutdown_closes_rendezvous_and_returns_true),
        TEST(test_shutdown_returns_false_if_rendezvous_cannot_be_closed),
        TEST(test_shutdown_can_be_called_multiple_times),
        TEST(test_shutdown_records_and_raises_exceptions),
        TEST(leave_removes_only_this_node),
        TEST(test_keep_alive_updates_last_heartbeat),
        TEST(test_keep_alive_swallows_rendezvous_errors),
        TEST(test_keep_alive_respects_the_requested_timeout),
        TEST(test_keep_alive_thread_is_started_with_next_rendezvous_and_stopped_with_shutdown),
        TEST(test_keep_alive_thread_is_started_with_next_rendezvous_and_stopped_with_finalizer),
        TEST(test_init_initializes_handler),
        TEST(test_init_initializes_handler_if_timeout_is_not_specified),
        TEST(test_init_initializes_handler_if_min_and_max_nodes_are_equal),
        TEST(test_init_raises_error_if_min_nodes_is_not_positive),
        TEST(test_init_raises_error_if_max_nodes_is_less_than_min),
        TEST(test_create_handler_returns_handler),
        TEST(test_create_handler_returns_handler_if_timeout_is_not_specified),
        TEST(test_create_handler_records_and_raises_exceptions),
    };
    return cmocka_run_group_tests_name("dynamic handler", tests, NULL, NULL);
}
