/* Static groups, each rank a process: meeting at every kind of place, who is missing, and shutting
 * down together without losing a call or waiting for the dead. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "rendezvous/store_tcp.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/port.h"
#include "tests/rpc/lib/crew.h"

enum { N = 4 };
enum mark { STARTED, KILLED, STOPPED };

/* A file:// place that nobody has used. */
static void file_place(char *ret_place, size_t size)
{
    static int n;
    const char *folder = getenv("TEST_TMPDIR");
    snprintf(ret_place, size, "file://%s/group-%d-%d", folder ? folder : "/tmp", getpid(), n++);
}

/* Where this rank meets the others: `place` with its numbers, or those in the environment. */
static const char *url_of(const struct tether_test_rank *self, char *url, size_t size)
{
    char number[16];
    if (strncmp(self->arg, "env://", 6) != 0) {
        snprintf(url, size, "%s?rank=%d&world_size=%d", self->arg, self->rank, self->size);
        return url;
    }
    snprintf(number, sizeof number, "%d", self->rank);
    setenv("RANK", number, 1);
    snprintf(number, sizeof number, "%d", self->size);
    setenv("WORLD_SIZE", number, 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", self->arg + 6, 1);
    return "env://";
}

/* ---- Meeting ---- */

TETHER_PROC_ROLE(member)
{
    char url[512], expected[32];
    tether_error err = {0};
    tether_worker *workers = NULL;
    size_t n = 0;
    tether_agent *agent =
        crew_agent(self, TETHER_AGENT_OPTS(.rendezvous = url_of(self, url, sizeof url)));
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
        crew_call(agent, by_id, "name", NULL, expected); /* also one never spoken to by name */
    }
    tether_workers_free(workers);

    crew_ok(tether_agent_shutdown(agent, true, &err), &err);
    crew_ok(tether_agent_shutdown(agent, true, &err), &err);
    crew_fails(tether_rpc_sync(agent, "worker0", "name", NULL, 1000, NULL, &err), &err,
               TETHER_ESHUTDOWN, "shut down");
    tether_agent_release(agent);
}

static void meets_at_tcp(void **state)
{
    (void)state;
    char place[64];
    snprintf(place, sizeof place, "tcp://127.0.0.1:%d", tether_test_quiet_port());
    tether_test_procs_end(tether_test_procs_start(member, .ranks = N, .arg = place));
}

static void meets_at_env(void **state)
{
    (void)state;
    char place[64];
    snprintf(place, sizeof place, "env://%d", tether_test_quiet_port());
    tether_test_procs_end(tether_test_procs_start(member, .ranks = N, .arg = place));
}

static void meets_at_file(void **state)
{
    (void)state;
    char place[256];
    file_place(place, sizeof place);
    tether_test_procs_end(tether_test_procs_start(member, .ranks = N, .arg = place));
}

/* ---- Who is missing ---- */

/* Everybody but ranks 1 and 3. */
TETHER_PROC_ROLE(waits_in_vain)
{
    char url[512];
    tether_error err = {0};
    if (rank % 2 == 1)
        return;
    int64_t began = tether__clock_now_ns(&tether__clock_system);
    tether_agent *agent = crew_agent(
        self,
        TETHER_AGENT_OPTS(.rendezvous = url_of(self, url, sizeof url), .start_timeout_ms = 6000));
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

static void names_who_is_missing(void **state)
{
    (void)state;
    char place[256];
    file_place(place, sizeof place);
    tether_test_procs_end(tether_test_procs_start(waits_in_vain, .ranks = N, .arg = place));
    snprintf(place, sizeof place, "tcp://127.0.0.1:%d", tether_test_quiet_port());
    tether_test_procs_end(tether_test_procs_start(waits_in_vain, .ranks = N, .arg = place));
}

TETHER_PROC_ROLE(namesake)
{
    char url[512];
    tether_error err = {0};
    tether_agent *agent = crew_agent(
        self, TETHER_AGENT_OPTS(.rendezvous = url_of(self, url, sizeof url),
                                .name = rank < 2 ? "twin" : NULL, .start_timeout_ms = 20000));
    crew_fails(tether_agent_start(agent, &err), &err, TETHER_EEXIST,
               "ranks 0 and 1 are both called 'twin'");
    tether_agent_release(agent);
}

static void wants_different_names(void **state)
{
    (void)state;
    char place[256];
    file_place(place, sizeof place);
    tether_test_procs_end(tether_test_procs_start(namesake, .ranks = 3, .arg = place));
}

/* ---- Shutting down under way ---- */

enum { HOPS, LEAVES, RELAYS, CHAINS = 20, LENGTH = 12 };

struct hopper {
    struct tether_test_rank *self;
    tether_agent *agent;
};

static void send_on(struct hopper *hopper, const char *fn, int hops, tether_future_cb *then)
{
    char to[32];
    tether_value *arg = crew_text("%d", hops);
    tether_error err = {0};
    snprintf(to, sizeof to, "worker%d", (hopper->self->rank + 1 + hops % 2) % hopper->self->size);
    tether_future *future = tether_rpc_async(hopper->agent, to, fn, arg, TETHER_DEFAULT_MS);
    crew_ok(tether_future_then(future, then, hopper), &err);
    tether_future_release(future);
    tether_value_release(arg);
}

static void must_have_worked(tether_future *future, void *userdata)
{
    (void)userdata;
    tether_error err = {0};
    crew_ok(tether_future_wait(future, 0, NULL, &err), &err);
}

/* A callback that makes a call: nobody else counts on it. */
static void leave_a_leaf(tether_future *future, void *userdata)
{
    struct hopper *hopper = userdata;
    tether_error err = {0};
    crew_ok(tether_future_wait(future, 0, NULL, &err), &err);
    char leaf[16];
    snprintf(leaf, sizeof leaf, "%d", LEAVES);
    tether_value *arg = crew_text("%s", leaf);
    tether_future *call =
        tether_rpc_async(hopper->agent, "worker0", "count", arg, TETHER_DEFAULT_MS);
    crew_ok(tether_future_then(call, must_have_worked, NULL), &err);
    tether_future_release(call);
    tether_value_release(arg);
}

/* Counts itself and goes on from here, without being waited for. */
static tether_status hop(void *userdata,
                         const tether_value *arg,
                         tether_value **ret_value,
                         tether_error *reterr)
{
    (void)ret_value, (void)reterr;
    struct hopper *hopper = userdata;
    int hops = atoi(tether_value_str(arg));
    atomic_fetch_add(&crew_page(hopper->self->world)->count[HOPS], 1);
    if (hops > 0)
        send_on(hopper, "hop", hops - 1, leave_a_leaf);
    return TETHER_OK;
}

/* Counts itself once those after it have, each of them waited for. */
static tether_status relay(void *userdata,
                           const tether_value *arg,
                           tether_value **ret_value,
                           tether_error *reterr)
{
    (void)ret_value;
    struct hopper *hopper = userdata;
    int hops = atoi(tether_value_str(arg));
    tether_status st = TETHER_OK;
    if (hops > 0) {
        char to[32];
        tether_value *next = crew_text("%d", hops - 1);
        snprintf(to, sizeof to, "worker%d", (hopper->self->rank + 1) % hopper->self->size);
        st = tether_rpc_sync(hopper->agent, to, "relay", next, TETHER_DEFAULT_MS, NULL, reterr);
        tether_value_release(next);
    }
    if (st == TETHER_OK)
        atomic_fetch_add(&crew_page(hopper->self->world)->count[RELAYS], 1);
    return st;
}

/* Starts chains of calls and shuts down at once: the others are anywhere between start and end. */
TETHER_PROC_ROLE(leaves_amid_calls)
{
    char url[512];
    tether_error err = {0};
    struct hopper hopper = {self, NULL};
    hopper.agent = crew_agent(self, TETHER_AGENT_OPTS(.rendezvous = url_of(self, url, sizeof url),
                                                      .threads = CHAINS * N));
    crew_ok(tether_agent_register(hopper.agent, "hop", hop, &hopper, &err), &err);
    crew_ok(tether_agent_register(hopper.agent, "relay", relay, &hopper, &err), &err);
    crew_start(hopper.agent);
    for (int i = 0; i < CHAINS; i++)
        send_on(&hopper, i % 2 ? "hop" : "relay", i % 2 ? LENGTH : 3, must_have_worked);
    crew_stop(hopper.agent);
}

static void loses_no_call_in_shutdown(void **state)
{
    (void)state;
    char places[2][256];
    file_place(places[0], sizeof places[0]);
    snprintf(places[1], sizeof places[1], "tcp://127.0.0.1:%d", tether_test_quiet_port());
    for (int i = 0; i < 2; i++) {
        struct tether_test_procs *procs =
            tether_test_procs_start(leaves_amid_calls, .ranks = N, .arg = places[i]);
        for (int rank = 0; rank < N; rank++)
            assert_true(tether_test_child_wait(procs->ranks[rank], TETHER_TEST_LIMIT_MS));
        int64_t hops = crew_count(procs->world, HOPS), leaves = crew_count(procs->world, LEAVES),
                relays = crew_count(procs->world, RELAYS);
        tether_test_procs_end(procs);
        assert_int_equal(hops, N * CHAINS / 2 * (LENGTH + 1));
        assert_int_equal(leaves, N * CHAINS / 2 * LENGTH);
        assert_int_equal(relays, N * CHAINS / 2 * 4);
    }
}

/* ---- The dead ---- */

/* Rank 2 is killed; nobody has ever spoken with it, but for rank 3 when `arg` says so. */
TETHER_PROC_ROLE(survivor)
{
    char url[512];
    tether_agent *agent = crew_agent(
        self, TETHER_AGENT_OPTS(.rendezvous = url_of(self, url, sizeof url), .lease_ms = 1500));
    crew_start(agent);
    if (rank == 3)
        crew_call(agent, "worker2", "name", NULL, "worker2");
    tether_test_mark(self->world, STARTED);
    tether_test_await_mark(self->world, KILLED, 1);
    crew_stop(agent);
}

static void skips_the_dead(void **state)
{
    (void)state;
    char places[2][256];
    file_place(places[0], sizeof places[0]);
    snprintf(places[1], sizeof places[1], "tcp://127.0.0.1:%d", tether_test_quiet_port());
    for (int i = 0; i < 2; i++) {
        struct tether_test_procs *procs =
            tether_test_procs_start(survivor, .ranks = N, .arg = places[i]);
        tether_test_await_mark(procs->world, STARTED, N);
        tether_test_signal(procs->world, 2, SIGKILL);
        tether_test_mark(procs->world, KILLED);
        tether_test_procs_end(procs); /* within its limit, not within shutdown_timeout_ms */
    }
}

/* Rank 0 hosts the store, and is killed. The others can still call each other; that they cannot
 * leave together any more they are told, not kept waiting. */
static _Atomic bool has_heard_of_rank_0;

static void hear(void *userdata, tether_log_level level, const char *area, const char *message)
{
    (void)userdata, (void)area;
    if (level == TETHER_LOG_WARN && strstr(message, "rank 0 ('worker0') is gone") &&
        strstr(message, "if it hosted the store, nobody can join any more"))
        atomic_store(&has_heard_of_rank_0, true);
}

TETHER_PROC_ROLE(orphan)
{
    char url[512];
    tether_error err = {0};
    tether_set_log(TETHER_LOG_WARN, hear, NULL);
    tether_agent *agent = crew_agent(
        self, TETHER_AGENT_OPTS(.rendezvous = url_of(self, url, sizeof url), .lease_ms = 1500,
                                .shutdown_timeout_ms = 2 * TETHER_TEST_LIMIT_MS));
    crew_start(agent);
    if (rank != 0)
        crew_call(agent, "worker0", "name", NULL, NULL);
    tether_test_mark(self->world, STARTED);
    tether_test_await_mark(self->world, KILLED, 1);
    assert_eventually(atomic_load(&has_heard_of_rank_0)); /* long before it shuts down */
    crew_call(agent, rank == 1 ? "worker2" : "worker1", "name", NULL, NULL);
    tether_test_mark(self->world, STOPPED);
    tether_test_await_mark(self->world, STOPPED, 2);
    /* A call of one's own is finished all the same, and the other hears that this one leaves. */
    tether_future *last = tether_rpc_async(agent, rank == 1 ? "worker2" : "worker1", "name", NULL,
                                           TETHER_TEST_LIMIT_MS);
    crew_fails(tether_agent_shutdown(agent, true, &err), &err, TETHER_EUNAVAILABLE,
               "this worker has finished its calls and left alone");
    assert_string_equal(err.message + strlen(err.message) - 12, " run there?)");
    tether_status answer = tether_future_wait(last, TETHER_TEST_LIMIT_MS, NULL, &err);
    if (answer != TETHER_OK && answer != TETHER_EUNAVAILABLE) /* the other may have left before */
        fail_msg("%s", err.message);
    tether_future_release(last);
    tether_agent_release(agent);
}

static void says_when_the_store_is_gone(void **state)
{
    (void)state;
    char place[64];
    snprintf(place, sizeof place, "tcp://127.0.0.1:%d", tether_test_quiet_port());
    struct tether_test_procs *procs = tether_test_procs_start(orphan, .ranks = 3, .arg = place);
    tether_test_await_mark(procs->world, STARTED, 3);
    tether_test_signal(procs->world, 0, SIGKILL);
    tether_test_mark(procs->world, KILLED);
    tether_test_procs_end(procs);
}

/* Kills itself in the middle of shutting down: when it has been asked to run a function for the
 * third time. */
static tether_status die_at_three(void *userdata,
                                  const tether_value *arg,
                                  tether_value **ret_value,
                                  tether_error *reterr)
{
    (void)arg, (void)ret_value, (void)reterr;
    struct hopper *hopper = userdata;
    if (atomic_fetch_add(&crew_page(hopper->self->world)->count[HOPS], 1) == 2)
        raise(SIGKILL);
    return TETHER_OK;
}

TETHER_PROC_ROLE(dies_in_shutdown)
{
    tether_error err = {0};
    char url[512];
    struct hopper hopper = {self, NULL};
    hopper.agent = crew_agent(
        self, TETHER_AGENT_OPTS(.rendezvous = url_of(self, url, sizeof url), .lease_ms = 1500));
    crew_ok(tether_agent_register(hopper.agent, "die", die_at_three, &hopper, &err), &err);
    crew_start(hopper.agent);
    if (rank == 0) { /* from here on rank 1 waits for us in its shutdown */
        tether_test_await_mark(self->world, STARTED, 2);
        for (int i = 0; i < 3; i++) {
            tether_status st = tether_rpc_sync(hopper.agent, "worker1", "die", NULL,
                                               TETHER_TEST_LIMIT_MS, NULL, &err);
            crew_fails(st, &err, i < 2 ? TETHER_OK : TETHER_EUNAVAILABLE, "worker1");
        }
    } else {
        tether_test_mark(self->world, STARTED);
    }
    crew_stop(hopper.agent);
}

static void skips_who_dies_in_shutdown(void **state)
{
    (void)state;
    char place[256];
    file_place(place, sizeof place);
    tether_test_procs_end(tether_test_procs_start(dies_in_shutdown, .ranks = 3, .arg = place,
                                                  .dies = {[1] = SIGKILL}));
}

/* ---- Again ---- */

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
        if (round == 2) { /* not every end is a graceful one; then it is ours to keep step */
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

static void starts_again(void **state)
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

static void leaves_nothing_behind(void **state)
{
    (void)state;
    char place[256];
    file_place(place, sizeof place);
    tether_test_procs_end(tether_test_procs_start(comes_again, .ranks = 3, .arg = place));
    assert_int_equal(n_shutdown_keys(place), 0);
}

/* Rank 2 is stopped for so long that the others leave without it. What they have said stays for it,
 * and lets it leave, too. */
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

static void who_is_late_can_leave(void **state)
{
    (void)state;
    char place[256];
    file_place(place, sizeof place);
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

static void takes_a_rank_back(void **state)
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

static void several_live_in_one_process(void **state)
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
        cmocka_unit_test(meets_at_tcp),
        cmocka_unit_test(meets_at_env),
        cmocka_unit_test(meets_at_file),
        cmocka_unit_test(names_who_is_missing),
        cmocka_unit_test(wants_different_names),
        cmocka_unit_test(loses_no_call_in_shutdown),
        cmocka_unit_test(skips_the_dead),
        cmocka_unit_test(says_when_the_store_is_gone),
        cmocka_unit_test(skips_who_dies_in_shutdown),
        cmocka_unit_test(starts_again),
        cmocka_unit_test(leaves_nothing_behind),
        cmocka_unit_test(who_is_late_can_leave),
        cmocka_unit_test(takes_a_rank_back),
        cmocka_unit_test(several_live_in_one_process),
        cmocka_unit_test(worker_without_rank_has_its_own_id_when_it_joins_before_rank_0),
    };
    return cmocka_run_group_tests_name("static groups", tests, NULL, NULL);
}
