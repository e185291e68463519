/* Every backend, on real stores: the guarantees of backend.h, and three nodes that form a group. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/elastic/backend/etcd.h"
#include "rendezvous/elastic/backend/internal.h"
#include "rendezvous/elastic/handler/handler.h"
#include "rendezvous/store_tcp.h"
#include "tests/lib/child.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/etcd.h"
#include "tests/lib/wait.h"

#define SOON TETHER_TEST_LIMIT_MS
#define NODES 3

static struct tether_test_etcd *etcd;
static tether_store_server *server;

/* A kind of store and backend. Each open() stands for another process. */
struct kind {
    const char *name;
    tether_store *(*open)(const char *run_id);
    tether_rdzv_backend *(*backend)(tether_store *store, const char *run_id);
};

static void check(tether_status st, const tether_error *err)
{
    if (st != TETHER_OK)
        fail_msg("%s: %s", tether_status_name(st), err->message);
}

static tether_rdzv_backend *on_store(tether_store *store, const char *run_id)
{
    tether_rdzv_backend *backend = NULL;
    tether_error err = {0};
    check(tether_rdzv_backend_store_new(store, run_id, &backend, &err), &err);
    return backend;
}

static tether_store *open_hash(const char *run_id)
{
    /* The hash store of this process, which all share. */
    static tether_store *shared;
    static char shared_id[64];
    if (!shared || strcmp(shared_id, run_id) != 0) {
        shared = tether_store_release(shared);
        if (run_id[0] == '\0')
            return NULL;
        tether_error err = {0};
        check(tether_store_hash_new(&shared, &err), &err);
        snprintf(shared_id, sizeof shared_id, "%s", run_id);
    }
    return tether_store_retain(shared);
}

static tether_store *open_file(const char *run_id)
{
    tether_store *store = NULL;
    tether_error err = {0};
    char path[512];
    const char *dir = getenv("TEST_TMPDIR");
    snprintf(path, sizeof path, "%s/%s", dir ? dir : "/tmp", run_id);
    check(tether_store_file_new(path, -1, &store, &err), &err);
    return store;
}

static tether_store *open_tcp(const char *run_id)
{
    (void)run_id;
    tether_store *store = NULL;
    tether_error err = {0};
    check(tether_store_tcp_new(TETHER_STORE_TCP_OPTS(.port = tether_store_server_port(server)),
                               &store, &err),
          &err);
    return store;
}

static tether_store *open_etcd(const char *run_id)
{
    (void)run_id;
    tether_store *store = NULL;
    tether_error err = {0};
    check(tether_store_etcd_new(
              TETHER_STORE_ETCD_OPTS(.endpoints = tether_test_etcd_endpoint(etcd)), &store, &err),
          &err);
    return store;
}

static tether_rdzv_backend *on_etcd(tether_store *store, const char *run_id)
{
    (void)store;
    tether_rdzv_backend *backend = NULL;
    tether_error err = {0};
    check(tether_rdzv_backend_etcd_new(
              TETHER_STORE_ETCD_OPTS(.endpoints = tether_test_etcd_endpoint(etcd)), run_id,
              &backend, &err),
          &err);
    return backend;
}

static const struct kind kinds[] = {
    {"hash", open_hash, on_store},
    {"file", open_file, on_store},
    {"tcp", open_tcp, on_store},
    {"etcd", open_etcd, on_etcd},
};

/* ---- Compare and set ------------------------------------------------------------------------ */

static bool set(tether_rdzv_backend *backend,
                const char *state,
                tether_buf *token,
                tether_buf *ret_state)
{
    bool has_set = false;
    tether_buf new_token = TETHER_BUF_INIT;
    tether_error err = {0};
    check(tether_rdzv_backend_set_state(backend, tether_bytes_str(state), tether_buf_bytes(token),
                                        SOON, &has_set, ret_state, &new_token, &err),
          &err);
    tether_buf_fini(token);
    *token = new_token;
    return has_set;
}

static void check_set_state_needs_current_token(const struct kind *kind)
{
    char run_id[32];
    snprintf(run_id, sizeof run_id, "%s-cas", kind->name);
    tether_store *store = kind->open(run_id);
    tether_rdzv_backend *mine = kind->backend(store, run_id), *yours = kind->backend(store, run_id);
    tether_buf state = TETHER_BUF_INIT, my_token = TETHER_BUF_INIT, your_token = TETHER_BUF_INIT;
    tether_error err = {0};

    assert_int_equal(tether_rdzv_backend_get_state(mine, SOON, &state, &my_token, &err),
                     TETHER_ENOTFOUND);
    assert_true(set(mine, "one", &my_token, &state));
    assert_string_equal(state.data, "one");

    /* The state exists already: the call fails and gives the present state. */
    assert_false(set(yours, "two", &your_token, &state));
    assert_string_equal(state.data, "one");
    assert_true(set(yours, "two", &your_token, &state));
    assert_string_equal(state.data, "two");

    assert_false(set(mine, "three", &my_token, &state));
    assert_string_equal(state.data, "two");

    /* A token from a read works like one from a write. */
    check(tether_rdzv_backend_get_state(mine, SOON, &state, &my_token, &err), &err);
    assert_string_equal(state.data, "two");
    assert_true(set(mine, "four", &my_token, &state));

    tether_buf_fini(&state);
    tether_buf_fini(&my_token);
    tether_buf_fini(&your_token);
    tether_rdzv_backend_release(mine);
    tether_rdzv_backend_release(yours);
    tether_store_release(store);
}

static void check_heartbeats_are_read_as_written(const struct kind *kind)
{
    char run_id[32];
    snprintf(run_id, sizeof run_id, "%s-beats", kind->name);
    tether_store *store = kind->open(run_id);
    tether_rdzv_backend *backend = kind->backend(store, run_id);
    tether_error err = {0};
    if (backend->ops.beat) {
        static const char *const nodes[] = {"b_1_0", "a_1_0", "c_1_0", "a_1_01"};
        uint64_t counts[4] = {9, 9, 9, 9};
        check(backend->ops.read_beats(backend->impl, nodes, 4, SOON, counts, &err), &err);
        assert_int_equal(counts[0] + counts[1] + counts[2] + counts[3], 0);
        check(backend->ops.beat(backend->impl, "a_1_0", 1, 60000, SOON, &err), &err);
        check(backend->ops.beat(backend->impl, "b_1_0", 7, 60000, SOON, &err), &err);
        check(backend->ops.beat(backend->impl, "a_1_0", 2, 60000, SOON, &err), &err);
        check(backend->ops.read_beats(backend->impl, nodes, 4, SOON, counts, &err), &err);
        assert_int_equal(counts[0], 7);
        assert_int_equal(counts[1], 2);
        assert_int_equal(counts[2], 0);
        assert_int_equal(counts[3], 0);
    }
    tether_rdzv_backend_release(backend);
    tether_store_release(store);
}

/* ---- Meeting -------------------------------------------------------------------------------- */

struct node {
    tether_store *store;
    tether_rdzv_backend *backend;
    tether_rdzv *rdzv;
    pthread_t thread;
    struct tether_rdzv_info info;
    tether_status status;
    tether_error err;
};

static void *run_node(void *userdata)
{
    struct node *node = userdata;
    node->status = tether_rdzv_next(node->rdzv, &node->info, &node->err);
    return NULL;
}

/* All nodes join a round at the same time. */
static void form(struct node *nodes, int n)
{
    for (int i = 0; i < n; i++)
        assert_int_equal(pthread_create(&nodes[i].thread, NULL, run_node, &nodes[i]), 0);
    for (int i = 0; i < n; i++)
        pthread_join(nodes[i].thread, NULL);
    int ranks = 0;
    for (int i = 0; i < n; i++) {
        check(nodes[i].status, &nodes[i].err);
        assert_int_equal(nodes[i].info.world_size, n);
        assert_int_equal(nodes[i].info.round, nodes[0].info.round);
        assert_string_equal(nodes[i].info.master_addr, nodes[0].info.master_addr);
        assert_int_equal(nodes[i].info.master_port, nodes[0].info.master_port);
        ranks |= 1 << nodes[i].info.rank;
    }
    assert_int_equal(ranks, (1 << n) - 1);
}

/* The address that the nodes got belongs to a store that all can use. */
static void use_store_of_round(struct node *nodes, int n)
{
    for (int i = 0; i < n; i++) {
        tether_store *store = NULL;
        tether_error err = {0};
        int64_t count = 0;
        check(tether_store_tcp_new(TETHER_STORE_TCP_OPTS(.host = nodes[i].info.master_addr,
                                                         .port = nodes[i].info.master_port),
                                   &store, &err),
              &err);
        check(tether_store_add(store, "come", 1, SOON, &count, &err), &err);
        assert_int_equal(count, i + 1);
        tether_store_delete(store, i == n - 1 ? "come" : "nothing", SOON, NULL, NULL);
        tether_store_release(store);
    }
}

static void check_nodes_form_groups(const struct kind *kind)
{
    char run_id[32];
    snprintf(run_id, sizeof run_id, "%s-meet", kind->name);
    struct node nodes[NODES] = {0};
    int ranks[NODES];
    for (int i = 0; i < NODES; i++) {
        tether_error err = {0};
        struct tether_rdzv_settings settings;
        tether_rdzv_settings_init(&settings);
        settings.run_id = run_id;
        settings.min_nodes = settings.max_nodes = NODES;
        settings.timeouts.join_ms = SOON;
        settings.local_addr = "127.0.0.1";
        settings.rank_hint = i == 2 ? 0 : -1;
        nodes[i].store = kind->open(run_id);
        nodes[i].backend = kind->backend(nodes[i].store, run_id);
        check(tether_rdzv_new(&settings, nodes[i].store, nodes[i].backend, &nodes[i].rdzv, &err),
              &err);
    }
    form(nodes, NODES);
    use_store_of_round(nodes, NODES);
    assert_int_equal(nodes[2].info.rank, 0); /* as it wished */
    for (int i = 0; i < NODES; i++) {
        ranks[i] = nodes[i].info.rank;
        tether_rdzv_info_fini(&nodes[i].info);
    }
    form(nodes, NODES);
    use_store_of_round(nodes, NODES);
    for (int i = 0; i < NODES; i++) {
        assert_int_equal(nodes[i].info.round, 1);
        assert_int_equal(nodes[i].info.rank, ranks[i]); /* ranks are sticky */
    }

    /* One node leaves: the others notice, and the job is not closed. */
    struct tether_rdzv_members members = {0};
    tether_error err = {0};
    check(tether_rdzv_leave(nodes[0].rdzv, &err), &err);
    assert_eventually(tether_rdzv_members(nodes[1].rdzv, &members, NULL) == TETHER_OK &&
                      members.changed);
    assert_int_equal(members.participants, NODES - 1);
    assert_false(members.closed);
    check(tether_rdzv_shutdown(nodes[1].rdzv, &err), &err);
    bool closed = false;
    assert_eventually(tether_rdzv_is_closed(nodes[2].rdzv, &closed, NULL) == TETHER_OK && closed);
    for (int i = 0; i < NODES; i++) {
        tether_rdzv_info_fini(&nodes[i].info);
        tether_rdzv_release(nodes[i].rdzv);
        tether_rdzv_backend_release(nodes[i].backend);
        tether_store_release(nodes[i].store);
    }
}

/* ---- Making one ----------------------------------------------------------------------------- */

static void new_names_missing_function_of_backend(void **state)
{
    (void)state;
    tether_rdzv_backend *backend = NULL;
    tether_error err = {0};
    struct tether_rdzv_backend_ops ops = {.size = sizeof ops};
    assert_int_equal(tether_rdzv_backend_new(&ops, NULL, "mine", &backend, &err), TETHER_EINVAL);
    assert_non_null(strstr(err.message, "get_state"));
    assert_int_equal(
        tether_rdzv_backend_etcd_new(&(struct tether_store_etcd_opts){0}, "run", &backend, &err),
        TETHER_EINVAL);
    assert_int_equal(tether_rdzv_backend_etcd_new(
                         TETHER_STORE_ETCD_OPTS(.endpoints = "127.0.0.1:1", .timeout_ms = 100),
                         "run", &backend, &err),
                     TETHER_EUNAVAILABLE);
    assert_null(backend);
}

static void on_all_kinds(void (*test)(const struct kind *kind))
{
    for (size_t i = 0; i < TETHER__ARRAY_LEN(kinds); i++)
        test(&kinds[i]);
}

static void set_state_fails_when_token_is_old(void **state)
{
    (void)state;
    on_all_kinds(check_set_state_needs_current_token);
}

static void heartbeats_are_read_as_written(void **state)
{
    (void)state;
    on_all_kinds(check_heartbeats_are_read_as_written);
}

static void nodes_join_through_backend(void **state)
{
    (void)state;
    on_all_kinds(check_nodes_form_groups);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    tether_error err = {0};
    if (tether_store_server_new(TETHER_STORE_SERVER_OPTS(.port = 0), &server, &err) != TETHER_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    etcd = tether_test_etcd_start(NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(set_state_fails_when_token_is_old),
        cmocka_unit_test(heartbeats_are_read_as_written),
        cmocka_unit_test(nodes_join_through_backend),
        cmocka_unit_test(new_names_missing_function_of_backend),
    };
    int failed = cmocka_run_group_tests_name("dynamic backends", tests, NULL, NULL);
    open_hash("");
    tether_test_etcd_free(etcd);
    tether_store_server_release(server);
    return failed;
}
