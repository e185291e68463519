/* Nodes in processes of their own, on real stores: joining at once and late, kill -9, and a store
 * that dies or is suspended.
 *
 * The test process runs the standalone store or etcd, which is outside the job. It shares a page of
 * memory with the nodes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "rendezvous/elastic/backend/etcd.h"
#include "rendezvous/elastic/handler/handler.h"
#include "rendezvous/store_tcp.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/etcd.h"
#include "tests/lib/proc.h"

#define INTERVAL_MS 600
#define ATTEMPTS 5 /* missed heartbeats before a node is dropped: three seconds */

enum mark { JOINED, FORMED, LOOKED, LATE, DONE, SERVING };

/* On the shared page. */
struct shared {
    char store[256];                          /* "tcp:<port>", "file:<path>", "etcd:<endpoint>" */
    _Atomic int ranks[TETHER_TEST_MAX_RANKS]; /* by process: its rank + 1 */
};

static struct shared *shared_of(struct tether_test_world *world)
{
    return (struct shared *)world->page;
}

static void check(tether_status st, const tether_error *err)
{
    if (st != TETHER_OK)
        fail_msg("%s: %s", tether_status_name(st), err->message);
}

/* ---- A node --------------------------------------------------------------------------------- */

struct node {
    struct tether_test_world *world;
    tether_store *store;
    tether_rdzv_backend *backend;
    tether_rdzv *rdzv;
    struct tether_rdzv_info info;
    tether_rdzv_event_fn *on_event;
    void *on_event_userdata;
};

static void open_store(struct node *node, const char *at)
{
    tether_error err = {0};
    tether_status st = TETHER_EINVAL;
    if (strncmp(at, "tcp:", 4) == 0) {
        st = tether_store_tcp_new(TETHER_STORE_TCP_OPTS(.port = atoi(at + 4)), &node->store, &err);
    } else if (strncmp(at, "file:", 5) == 0) {
        st = tether_store_file_new(at + 5, -1, &node->store, &err);
    } else if (strncmp(at, "etcd:", 5) == 0) {
        const struct tether_store_etcd_opts opts = {.size = sizeof opts, .endpoints = at + 5};
        st = tether_store_etcd_new(&opts, &node->store, &err);
        if (st == TETHER_OK)
            st = tether_rdzv_backend_etcd_new(&opts, "proc", &node->backend, &err);
    }
    check(st, &err);
}

static void make_handler(struct node *node, int min_nodes, int max_nodes)
{
    struct tether_rdzv_settings settings;
    tether_error err = {0};
    tether_rdzv_settings_init(&settings);
    settings.run_id = "proc";
    settings.min_nodes = min_nodes;
    settings.max_nodes = max_nodes;
    settings.timeouts.join_ms = TETHER_TEST_LIMIT_MS;
    settings.timeouts.last_call_ms = 500;
    settings.keep_alive_interval_ms = INTERVAL_MS;
    settings.keep_alive_max_attempts = ATTEMPTS;
    settings.local_addr = "127.0.0.1";
    settings.on_event = node->on_event;
    settings.on_event_userdata = node->on_event_userdata;
    check(tether_rdzv_new(&settings, node->store, node->backend, &node->rdzv, &err), &err);
}

static struct node start_node(struct tether_test_rank *self, int min_nodes, int max_nodes)
{
    struct node node = {.world = self->world};
    open_store(&node, shared_of(self->world)->store);
    make_handler(&node, min_nodes, max_nodes);
    return node;
}

static void next(struct node *node)
{
    tether_error err = {0};
    tether_rdzv_info_fini(&node->info);
    check(tether_rdzv_next(node->rdzv, &node->info, &err), &err);
}

/* Joins until the round has `world_size` nodes: on a busy machine this may take several rounds. */
static void next_until(struct node *node, int world_size)
{
    do
        next(node);
    while (node->info.world_size != world_size);
}

static void await_change(struct node *node)
{
    struct tether_rdzv_members members = {0};
    assert_eventually(tether_rdzv_members(node->rdzv, &members, NULL) == TETHER_OK &&
                      members.changed);
}

static void end_node(struct node *node)
{
    tether_rdzv_info_fini(&node->info);
    tether_rdzv_release(node->rdzv);
    tether_rdzv_backend_release(node->backend);
    tether_store_release(node->store);
}

/* ---- Stores outside the job ----------------------------------------------------------------- */

/* Serves until the test ends. */
TETHER_PROC_ROLE(store_host)
{
    tether_store_server *server = NULL;
    tether_error err = {0};
    check(tether_store_server_new(TETHER_STORE_SERVER_OPTS(.port = 0), &server, &err), &err);
    snprintf(shared_of(self->world)->store, sizeof shared_of(self->world)->store, "tcp:%d",
             tether_store_server_port(server));
    tether_test_mark(self->world, SERVING);
    tether_test_await_mark(self->world, DONE, 1);
    tether_store_server_release(server);
}

struct outside {
    struct tether_test_procs *host; /* the TCP store's process, */
    struct tether_test_etcd *etcd;  /* or etcd */
    char at[256];
};

static struct outside start_store(const char *kind)
{
    struct outside outside = {0};
    if (strcmp(kind, "tcp") == 0) {
        outside.host = tether_test_procs_start(store_host, .ranks = 1);
        tether_test_await_mark(outside.host->world, SERVING, 1);
        strcpy(outside.at, shared_of(outside.host->world)->store);
    } else if (strcmp(kind, "etcd") == 0) {
        outside.etcd = tether_test_etcd_start(NULL);
        snprintf(outside.at, sizeof outside.at, "etcd:%s", tether_test_etcd_endpoint(outside.etcd));
    } else {
        static int files;
        const char *dir = getenv("TEST_TMPDIR");
        snprintf(outside.at, sizeof outside.at, "file:%s/proc-%d-%d", dir ? dir : "/tmp",
                 (int)getpid(), files++);
    }
    return outside;
}

static void end_store(struct outside *outside)
{
    if (outside->host) {
        tether_test_mark(outside->host->world, DONE);
        tether_test_procs_end(outside->host);
    }
    tether_test_etcd_free(outside->etcd);
}

/* Starts the processes of a job, which wait until the shared page names the store. */
#define start_job(role, outside, ...)                                                \
    ({                                                                               \
        struct tether_test_procs *job_ = tether_test_procs_start(role, __VA_ARGS__); \
        strcpy(shared_of(job_->world)->store, (outside)->at);                        \
        tether_test_mark(job_->world, SERVING);                                      \
        job_;                                                                        \
    })

static void await_store(struct tether_test_rank *self)
{
    tether_test_await_mark(self->world, SERVING, 1);
}

/* ---- Eight at once -------------------------------------------------------------------------- */

TETHER_PROC_ROLE(one_of_eight)
{
    await_store(self);
    struct node node = start_node(self, 8, 8);
    next(&node);
    assert_int_equal(node.info.world_size, 8);
    shared_of(self->world)->ranks[rank] = node.info.rank + 1;
    tether_test_mark(self->world, FORMED);
    /* Stay until all are done: rank 0 may run the store of the round. */
    tether_test_await_mark(self->world, FORMED, 8);
    end_node(&node);
}

static void eight_join(const char *kind)
{
    struct outside outside = start_store(kind);
    struct tether_test_procs *job = start_job(one_of_eight, &outside, .ranks = 8);
    tether_test_await_mark(job->world, FORMED, 8);
    unsigned seen = 0;
    for (int i = 0; i < 8; i++)
        seen |= 1u << (shared_of(job->world)->ranks[i] - 1);
    assert_int_equal(seen, 0xff);
    tether_test_procs_end(job);
    end_store(&outside);
}

static void eight_nodes_join_at_once(void **state)
{
    (void)state;
    eight_join("tcp");
    eight_join("file");
    eight_join("etcd");
}

/* ---- A late node ---------------------------------------------------------------------------- */

TETHER_PROC_ROLE(three_and_a_late_one)
{
    await_store(self);
    bool late = rank == 3;
    if (late)
        tether_test_await_mark(self->world, JOINED, 3);
    struct node node = start_node(self, 3, 4);
    if (!late) {
        next(&node);
        assert_int_equal(node.info.world_size, 3); /* the fourth has not started yet */
        tether_test_mark(self->world, JOINED);
        await_change(&node);
    }
    next_until(&node, 4);
    assert_true(node.info.round >= 1);
    tether_test_mark(self->world, FORMED);
    tether_test_await_mark(self->world, FORMED, 4);
    end_node(&node);
}

static void late_node_waits_and_joins_next_round(void **state)
{
    (void)state;
    struct outside outside = start_store("tcp");
    tether_test_procs_end(start_job(three_and_a_late_one, &outside, .ranks = 4));
    end_store(&outside);
}

/* ---- kill -9 -------------------------------------------------------------------------------- */

TETHER_PROC_ROLE(survivor)
{
    await_store(self);
    struct node node = start_node(self, 2, 3);
    next_until(&node, 3);
    shared_of(self->world)->ranks[rank] = node.info.rank + 1;
    tether_test_mark(self->world, JOINED);
    tether_test_await_mark(self->world, LATE, 1); /* the victim is killed here */
    int64_t killed_at = tether__clock_now_ms(&tether__clock_system);
    await_change(&node);
    next_until(&node, 2);
    int64_t took = tether__clock_now_ms(&tether__clock_system) - killed_at;
    print_message("formed again %lld ms after the kill\n", (long long)took);
    tether_test_mark(self->world, FORMED);
    tether_test_await_mark(self->world, FORMED, 2);
    end_node(&node);
}

/* Kills the process that has `victim_rank` in the round. */
static void kill_one(const char *kind, int victim_rank)
{
    struct outside outside = start_store(kind);
    struct tether_test_procs *job = start_job(survivor, &outside, .ranks = 3);
    tether_test_await_mark(job->world, JOINED, 3);
    int victim = 0;
    while (shared_of(job->world)->ranks[victim] != victim_rank + 1)
        victim++;
    tether_test_signal(job->world, victim, SIGKILL);
    tether_test_mark(job->world, LATE);
    tether_test_procs_end(job);
    end_store(&outside);
}

static void group_reforms_without_killed_node(void **state)
{
    (void)state;
    kill_one("tcp", 1);
}

/* Rank 0 runs the store of the round, and may be the leader. */
static void group_reforms_when_first_node_is_killed(void **state)
{
    (void)state;
    kill_one("tcp", 0);
    kill_one("etcd", 0);
}

/* ---- The store dies ------------------------------------------------------------------------- */

TETHER_PROC_ROLE(guest_of_rank_0)
{
    struct node node = {.world = self->world};
    tether_error err = {0};
    if (rank == 0) { /* rank 0 hosts the store in its own process */
        check(tether_store_tcp_new(TETHER_STORE_TCP_OPTS(.is_host = true), &node.store, &err),
              &err);
        snprintf(shared_of(self->world)->store, sizeof shared_of(self->world)->store, "tcp:%d",
                 tether_store_tcp_port(node.store));
        tether_test_mark(self->world, SERVING);
    } else {
        await_store(self);
        open_store(&node, shared_of(self->world)->store);
    }
    make_handler(&node, 3, 3);
    next(&node);
    tether_test_mark(self->world, JOINED);
    tether_test_await_mark(self->world, LATE, 1);

    /* The store has died with rank 0: next() must fail with an error that says so. */
    tether_status st = tether_rdzv_next(node.rdzv, &node.info, &err);
    if (st != TETHER_EUNAVAILABLE && st != TETHER_ETIMEOUT)
        fail_msg("%s: %s", tether_status_name(st), err.message);
    print_message("%s: %s\n", tether_status_name(st), err.message);
    end_node(&node);
}

static void nodes_get_error_when_host_of_store_dies(void **state)
{
    (void)state;
    struct tether_test_procs *job = tether_test_procs_start(guest_of_rank_0, .ranks = 3);
    tether_test_await_mark(job->world, JOINED, 3);
    tether_test_signal(job->world, 0, SIGKILL);
    tether_test_mark(job->world, LATE);
    tether_test_procs_end(job);
}

static void count_failures(void *userdata, const struct tether_rdzv_event *event)
{
    if (event->kind == TETHER_RDZV_FAILED && strcmp(event->name, "keep_alive") == 0)
        ++*(_Atomic int *)userdata;
}

/* A running round continues without the store, but no node can join or be dropped. */
TETHER_PROC_ROLE(orphan)
{
    await_store(self);
    _Atomic int failures = 0;
    struct node node = {.world = self->world};
    open_store(&node, shared_of(self->world)->store);
    node.on_event = count_failures;
    node.on_event_userdata = &failures;
    make_handler(&node, 3, 3);
    next(&node);
    tether_test_mark(self->world, JOINED);
    tether_test_await_mark(self->world, LATE, 1); /* the store has been killed */
    assert_eventually(failures > 0);
    tether_error err = {0};
    tether_status st = tether_rdzv_next(node.rdzv, &node.info, &err);
    if (st != TETHER_EUNAVAILABLE && st != TETHER_ETIMEOUT)
        fail_msg("%s: %s", tether_status_name(st), err.message);
    end_node(&node);
}

static void nodes_survive_when_store_of_round_dies(void **state)
{
    (void)state;
    struct outside outside = start_store("tcp");
    struct tether_test_procs *job = start_job(orphan, &outside, .ranks = 3);
    tether_test_await_mark(job->world, JOINED, 3);
    tether_test_signal(outside.host->world, 0, SIGKILL);
    tether_test_mark(job->world, LATE);
    tether_test_procs_end(job);
    end_store(&outside);
}

/* ---- The store is suspended ----------------------------------------------------------------- */

TETHER_PROC_ROLE(patient)
{
    await_store(self);
    struct node node = start_node(self, 3, 3);
    next(&node);
    tether_test_mark(self->world, JOINED);
    tether_test_await_mark(self->world, LATE, 1); /* the store runs again */

    /* A dropped node would be missing by now. */
    struct tether_rdzv_members members;
    int64_t until =
        tether__clock_now_ms(&tether__clock_system) + (int64_t)INTERVAL_MS * (ATTEMPTS + 1);
    while (tether__clock_now_ms(&tether__clock_system) < until) {
        tether_error err = {0};
        check(tether_rdzv_members(node.rdzv, &members, &err), &err);
        if (members.changed)
            fail_msg("%d of %d nodes are left in round %llu", members.participants,
                     members.world_size, (unsigned long long)members.round);
        usleep(100 * 1000); /* between two looks: time has to pass here */
    }
    tether_test_mark(self->world, LOOKED);
    tether_test_await_mark(self->world, LOOKED, 3);
    end_node(&node);
}

/* etcd keeps its data when it is killed and restarted, so this is like a pause. */
static void group_keeps_all_nodes_while_etcd_restarts(void **state)
{
    (void)state;
    struct outside outside = start_store("etcd");
    struct tether_test_procs *job = start_job(patient, &outside, .ranks = 3);
    tether_test_await_mark(job->world, JOINED, 3);
    tether_test_etcd_kill(outside.etcd);
    tether_test_etcd_restart(outside.etcd);
    tether_test_mark(job->world, LATE);
    tether_test_procs_end(job);
    end_store(&outside);
}

static void group_keeps_all_nodes_while_store_is_suspended(void **state)
{
    (void)state;
    struct outside outside = start_store("tcp");
    struct tether_test_procs *job = start_job(patient, &outside, .ranks = 3);
    tether_test_await_mark(job->world, JOINED, 3);
    tether_test_signal(outside.host->world, 0, SIGSTOP);
    usleep(3 * INTERVAL_MS * 1000); /* shorter than a lease */
    tether_test_signal(outside.host->world, 0, SIGCONT);
    tether_test_mark(job->world, LATE);
    tether_test_procs_end(job);
    end_store(&outside);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(eight_nodes_join_at_once),
        cmocka_unit_test(late_node_waits_and_joins_next_round),
        cmocka_unit_test(group_reforms_without_killed_node),
        cmocka_unit_test(group_reforms_when_first_node_is_killed),
        cmocka_unit_test(nodes_get_error_when_host_of_store_dies),
        cmocka_unit_test(nodes_survive_when_store_of_round_dies),
        cmocka_unit_test(group_keeps_all_nodes_while_store_is_suspended),
        cmocka_unit_test(group_keeps_all_nodes_while_etcd_restarts),
    };
    return cmocka_run_group_tests_name("dynamic processes", tests, NULL, NULL);
}
