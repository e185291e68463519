/* Two processes with one name in a dynamic group. The second one is refused while the first one is
 * alive, whatever they speak; a worker that was killed, or has left, is replaced at once, and one
 * that does not answer when its lease is over.
 *
 * Rank 0 ("boss") calls the worker; rank 1 is the first worker named "alpha", rank 2 the second.
 */
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rendezvous/store_tcp.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/port.h"
#include "tests/rpc/lib/certs.h"
#include "tests/rpc/lib/crew.h"

#define LIMIT TETHER_TEST_LIMIT_MS
#define A_DAY_MS 86400000 /* a lease that is never over in a test */

enum { BOSS, FIRST, SECOND, N_RANKS };
enum { FIRST_IS_UP, MAY_START, SECOND_IS_THROUGH, FIRST_MAY_GO, DONE };

/* ---- Ways to speak to each other ---- */

enum { NEAR, FAR, TOKEN, MUTUAL_TLS, ONE_WAY_TLS, SOCKET_FILE, N_WAYS };

/* What a role is told: "port:way:number:folder". */
struct order {
    char port[16];
    int way, number;
    char folder[64]; /* for socket files */
};

static struct order read_order(const struct tether_test_rank *self)
{
    struct order order = {0};
    if (sscanf(self->arg, "%15[0-9]:%d:%d:%63s", order.port, &order.way, &order.number,
               order.folder) != 4)
        fail_msg("not an order: %s", self->arg);
    return order;
}

static struct tether_agent_opts options(const struct order *order,
                                        const char *name,
                                        tether_store *store)
{
    const int way = order->way;
    static char path[100];
    bool is_alpha = strcmp(name, "alpha") == 0;
    struct tether_agent_opts opts = *TETHER_AGENT_OPTS(.name = name, .store = store);
    opts.lease_ms = A_DAY_MS;
    opts.start_timeout_ms = opts.shutdown_timeout_ms = LIMIT;
    opts.no_unix_socket = way != NEAR;
    if (way == TOKEN || way == ONE_WAY_TLS)
        opts.token = "sesame";
    if (way == MUTUAL_TLS || way == ONE_WAY_TLS) {
        opts.tls_ca_pem = cert_right_ca;
        opts.tls_cert_pem = is_alpha ? cert_alpha : cert_delta;
        opts.tls_key_pem = is_alpha ? key_alpha : key_delta;
        opts.tls_one_way = way == ONE_WAY_TLS;
    }
    if (way == SOCKET_FILE) {
        snprintf(path, sizeof path, "unix:%s/%d", order->folder, (int)getpid());
        opts.listen = path;
    }
    return opts;
}

static const char *boss_name(int way)
{
    return way == MUTUAL_TLS || way == ONE_WAY_TLS ? "delta" : "boss";
}

static char folder[] = "/tmp/tether-namesakes-XXXXXX";

static int setup(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

/* Processes that were killed have left their sockets. */
static int teardown(void **state)
{
    (void)state;
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        unlinkat(dirfd(dir), entry->d_name, 0);
    closedir(dir);
    return rmdir(folder);
}

/* ---- The processes of a test and their store ---- */

struct scene {
    char port[16];
    tether_store_server *server;
    tether_store *store;
    struct tether_test_procs *procs;
    char arg[128]; /* of the processes, also of those that are started again */
};

#define scene_start(scene, role, n_ranks, way, number)                                           \
    do {                                                                                         \
        (scene)->server = crew_store_start((scene)->port);                                       \
        (scene)->store = crew_store((scene)->port);                                              \
        snprintf((scene)->arg, sizeof(scene)->arg, "%s:%d:%d:%s", (scene)->port, way, number,    \
                 folder);                                                                        \
        (scene)->procs = tether_test_procs_start(role, .ranks = (n_ranks), .arg = (scene)->arg); \
    } while (0)

static void scene_end(struct scene *scene)
{
    tether_test_procs_end(scene->procs);
    tether_store_release(scene->store);
    tether_store_server_release(scene->server);
}

static tether_buf value_of(struct scene *scene, const char *key)
{
    tether_buf value = TETHER_BUF_INIT;
    tether_error err = {0};
    crew_ok(tether_store_get(scene->store, key, LIMIT, &value, &err), &err);
    return value;
}

/* ---- The first one is alive ---- */

/* The first one serves, and the second one cannot start. */
TETHER_PROC_ROLE(rival)
{
    struct order order = read_order(self);
    tether_store *store = crew_store(order.port);
    tether_error err = {0};
    struct tether_agent_opts opts =
        options(&order, rank == BOSS ? boss_name(order.way) : "alpha", store);
    if (rank == SECOND)
        tether_test_await_mark(self->world, MAY_START, 1);
    tether_agent *agent = crew_agent(self, &opts);
    tether_status st = tether_agent_start(agent, &err);
    if (rank == SECOND) {
        crew_fails(st, &err, TETHER_EEXIST, "'alpha' is alive");
        tether_agent_release(agent);
        tether_test_mark(self->world, SECOND_IS_THROUGH);
        tether_store_release(store);
        return;
    }
    crew_ok(st, &err);
    tether_test_mark(self->world, FIRST_IS_UP);
    if (rank == BOSS) {
        tether_test_await_mark(self->world, FIRST_IS_UP, 2);
        crew_call(agent, "alpha", "name", NULL, "alpha");
        tether_test_mark(self->world, FIRST_IS_UP); /* and knows the boss */
        tether_test_await_mark(self->world, SECOND_IS_THROUGH, 1);
        for (int i = 0; i < 10; i++)
            crew_call(agent, "alpha", "name", NULL, "alpha");
        tether_test_mark(self->world, FIRST_MAY_GO);
    }
    tether_test_await_mark(self->world, FIRST_MAY_GO, 2); /* by the boss, and by the test */
    crew_stop(agent);
    tether_store_release(store);
}

static void second_start_is_refused(int way)
{
    struct scene scene;
    scene_start(&scene, rival, N_RANKS, way, 0);
    tether_test_await_mark(scene.procs->world, FIRST_IS_UP, 3);
    tether_buf record = value_of(&scene, "tether/worker/alpha");
    tether_buf names = value_of(&scene, "tether/names");
    tether_test_mark(scene.procs->world, MAY_START);
    tether_test_await_mark(scene.procs->world, SECOND_IS_THROUGH, 1);
    tether_buf record_after = value_of(&scene, "tether/worker/alpha");
    tether_buf names_after = value_of(&scene, "tether/names");
    assert_true(tether_bytes_equal(tether_buf_bytes(&record), tether_buf_bytes(&record_after)));
    assert_true(tether_bytes_equal(tether_buf_bytes(&names), tether_buf_bytes(&names_after)));
    tether_buf_fini(&record);
    tether_buf_fini(&names);
    tether_buf_fini(&record_after);
    tether_buf_fini(&names_after);
    tether_test_mark(scene.procs->world, FIRST_MAY_GO);
    scene_end(&scene);
}

static void second_start_is_refused_when_first_is_alive(void **state)
{
    (void)state;
    second_start_is_refused(NEAR);
}

static void second_start_is_refused_when_first_is_alive_over_tcp(void **state)
{
    (void)state;
    second_start_is_refused(FAR);
    second_start_is_refused(TOKEN);
}

static void second_start_is_refused_when_first_is_alive_over_tls(void **state)
{
    (void)state;
    second_start_is_refused(MUTUAL_TLS);
    second_start_is_refused(ONE_WAY_TLS);
}

static void second_start_is_refused_when_first_is_alive_at_a_socket_file(void **state)
{
    (void)state;
    second_start_is_refused(SOCKET_FILE);
}

/* ---- The first one was killed ---- */

/* Serves until it is told to go, or killed. */
TETHER_PROC_ROLE(heir)
{
    struct order order = read_order(self);
    tether_store *store = crew_store(order.port);
    struct tether_agent_opts opts = options(&order, "alpha", store);
    tether_agent *agent = crew_agent(self, &opts);
    crew_start(agent);
    tether_test_mark(self->world, FIRST_IS_UP);
    tether_test_await_mark(self->world, FIRST_MAY_GO, 1);
    crew_stop(agent);
    tether_store_release(store);
}

/* Its lease is a day: a start that waited for it would fail at its own time limit. */
static void killed_worker_starts_again_at_once(void **state)
{
    (void)state;
    for (int way = 0; way < N_WAYS; way++) {
        struct scene scene;
        scene_start(&scene, heir, 1, way, 0);
        for (int life = 1; life <= 3; life++) {
            tether_test_await_mark(scene.procs->world, FIRST_IS_UP, life);
            if (life == 3)
                break;
            tether_test_signal(scene.procs->world, 0, SIGKILL);
            tether_test_procs_restart(scene.procs, 0, NULL);
        }
        tether_test_mark(scene.procs->world, FIRST_MAY_GO);
        scene_end(&scene);
    }
}

enum { AT_ITS_OWN_PORT, OTHER_AT_ITS_PORT };

/* Rank 0 listens at a port that it was given. Its second start does so again, and dials itself; or
 * it listens elsewhere, and rank 1, another worker, has got that port. */
TETHER_PROC_ROLE(tenant)
{
    struct order order = read_order(self);
    tether_store *store = crew_store(order.port);
    struct crew_page *page = crew_page(self->world);
    struct tether_agent_opts opts = options(&order, rank == 0 ? "alpha" : "delta", store);
    bool is_first = rank == 0 && atomic_fetch_add(&page->count[0], 1) == 0;
    if (is_first || rank == 1 || order.number == AT_ITS_OWN_PORT)
        opts.listen = page->text[0];
    if (rank == 1)
        tether_test_await_mark(self->world, MAY_START, 1);
    if (is_first)
        snprintf(page->text[0], sizeof page->text[0], "127.0.0.1:%d", tether_test_quiet_port());
    tether_agent *agent = crew_agent(self, &opts);
    crew_start(agent);
    tether_test_mark(self->world, FIRST_IS_UP);
    tether_test_await_mark(self->world, FIRST_MAY_GO, 1);
    crew_stop(agent);
    tether_store_release(store);
}

static void killed_worker_starts_again_at_once_when_its_port_is_taken(void **state)
{
    (void)state;
    static const int ways[] = {FAR, TOKEN, MUTUAL_TLS, ONE_WAY_TLS};
    for (size_t i = 0; i < 2 * TETHER__ARRAY_LEN(ways); i++) {
        int number = i % 2 ? AT_ITS_OWN_PORT : OTHER_AT_ITS_PORT;
        struct scene scene;
        scene_start(&scene, tenant, number == AT_ITS_OWN_PORT ? 1 : 2, ways[i / 2], number);
        struct tether_test_world *world = scene.procs->world;
        tether_test_await_mark(world, FIRST_IS_UP, 1);
        tether_test_signal(world, 0, SIGKILL);
        tether_test_mark(world, MAY_START);
        if (number == OTHER_AT_ITS_PORT)
            tether_test_await_mark(world, FIRST_IS_UP, 2);
        tether_test_procs_restart(scene.procs, 0, NULL);
        tether_test_await_mark(world, FIRST_IS_UP, world->size + 1);
        tether_test_mark(world, FIRST_MAY_GO);
        scene_end(&scene);
    }
}

/* ---- The first one does not answer ---- */

TETHER_PROC_ROLE(successor)
{
    struct order order = read_order(self); /* its number is the lease */
    tether_store *store = crew_store(order.port);
    tether_error err = {0};
    struct tether_agent_opts opts = options(&order, "alpha", store);
    opts.lease_ms = order.number;
    if (rank == 1) {
        tether_test_await_mark(self->world, MAY_START, 1);
        if (opts.lease_ms == A_DAY_MS)
            opts.start_timeout_ms = 500;
    }
    tether_agent *agent = crew_agent(self, &opts);
    tether_status st = tether_agent_start(agent, &err);
    if (rank == 1 && opts.lease_ms == A_DAY_MS)
        crew_fails(st, &err, TETHER_ETIMEOUT, "'alpha'");
    else
        crew_ok(st, &err);
    tether_test_mark(self->world, rank == 0 ? FIRST_IS_UP : SECOND_IS_THROUGH);
    if (rank == 0) {
        bool stays = opts.lease_ms == A_DAY_MS;
        tether_worker worker;
        tether_test_await_mark(self->world, FIRST_MAY_GO, 1);
        do /* it notices by itself that it was replaced */
            crew_ok(tether_agent_worker(agent, "alpha", &worker, &err), &err);
        while (!stays && worker.incarnation == 1);
        assert_int_equal(worker.incarnation, stays ? 1 : 2);
        st = tether_agent_shutdown(agent, true, &err);
        assert_true(st == TETHER_OK || (!stays && st == TETHER_EFENCED));
        tether_test_mark(self->world, DONE);
    } else {
        tether_test_await_mark(self->world, DONE, 1);
    }
    tether_agent_release(agent);
    tether_store_release(store);
}

static void start_beside_stopped_worker(int way, int lease_ms)
{
    struct scene scene;
    scene_start(&scene, successor, 2, way, lease_ms);
    tether_test_await_mark(scene.procs->world, FIRST_IS_UP, 1);
    tether_test_signal(scene.procs->world, 0, SIGSTOP);
    tether_test_mark(scene.procs->world, MAY_START);
    tether_test_await_mark(scene.procs->world, SECOND_IS_THROUGH, 1);
    tether_test_signal(scene.procs->world, 0, SIGCONT);
    tether_test_mark(scene.procs->world, FIRST_MAY_GO);
    scene_end(&scene);
}

static void stopped_worker_is_replaced_when_lease_is_over(void **state)
{
    (void)state;
    for (int way = 0; way < N_WAYS; way++)
        start_beside_stopped_worker(way, 400);
}

static void stopped_worker_keeps_its_name_when_lease_runs(void **state)
{
    (void)state;
    start_beside_stopped_worker(NEAR, A_DAY_MS);
    start_beside_stopped_worker(FAR, A_DAY_MS);
    start_beside_stopped_worker(MUTUAL_TLS, A_DAY_MS);
}

/* ---- Take-over on request ---- */

TETHER_PROC_ROLE(usurper)
{
    struct order order = read_order(self);
    tether_store *store = crew_store(order.port);
    tether_error err = {0};
    struct tether_agent_opts opts =
        options(&order, rank == BOSS ? boss_name(order.way) : "alpha", store);
    opts.take_over = rank == SECOND;
    if (rank == SECOND)
        tether_test_await_mark(self->world, FIRST_IS_UP, 3);
    tether_agent *agent = crew_agent(self, &opts);
    crew_start(agent);
    if (rank == BOSS) {
        tether_test_mark(self->world, FIRST_IS_UP);
        tether_test_await_mark(self->world, FIRST_IS_UP, 2);
        crew_call(agent, "alpha", "name", NULL, "alpha");
        tether_test_mark(self->world, FIRST_IS_UP);
        tether_test_await_mark(self->world, DONE, 2);
        crew_stop(agent);
    } else if (rank == FIRST) {
        tether_test_mark(self->world, FIRST_IS_UP);
        tether_test_await_mark(self->world, SECOND_IS_THROUGH, 1);
        while (tether_rpc_sync(agent, boss_name(order.way), "name", NULL, LIMIT, NULL, &err) !=
               TETHER_EFENCED) {
        }
        tether_test_mark(self->world, DONE);
        tether_agent_release(agent);
    } else {
        crew_call(agent, boss_name(order.way), "name", NULL, NULL); /* it meets the new start */
        tether_test_mark(self->world, SECOND_IS_THROUGH);
        tether_test_await_mark(self->world, DONE, 1);
        tether_test_mark(self->world, DONE);
        crew_stop(agent);
    }
    tether_store_release(store);
}

static void live_worker_is_replaced_when_takeover_is_asked_for(void **state)
{
    (void)state;
    static const int ways[] = {NEAR, FAR, MUTUAL_TLS};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(ways); i++) {
        struct scene scene;
        scene_start(&scene, usurper, N_RANKS, ways[i], 0);
        scene_end(&scene);
    }
}

/* ---- Several at once ---- */

enum { N_RACERS = 6, WINS = 0, LOSSES = 1 };

TETHER_PROC_ROLE(racer)
{
    struct order order = read_order(self); /* its number is how many rounds there are */
    tether_store *store = crew_store(order.port);
    tether_error err = {0};
    struct crew_page *page = crew_page(self->world);
    struct tether_agent_opts opts = options(&order, "alpha", store);
    for (int round = 0; round < order.number; round++) {
        tether_agent *agent = crew_agent(self, &opts);
        tether_test_mark(self->world, 2 * round);
        tether_test_await_mark(self->world, 2 * round, N_RACERS); /* ready, steady */
        tether_status st = tether_agent_start(agent, &err);
        if (st != TETHER_OK)
            crew_fails(st, &err, TETHER_EEXIST, "'alpha' is alive");
        atomic_fetch_add(&page->count[st == TETHER_OK ? WINS : LOSSES], 1);
        tether_test_mark(self->world, 2 * round + 1);
        tether_test_await_mark(self->world, 2 * round + 1, N_RACERS);
        tether_agent_release(agent);
    }
    tether_store_release(store);
}

static void one_of_many_wins_when_they_start_at_once(void **state)
{
    (void)state;
    static const struct {
        int way, rounds;
    } races[] = {{NEAR, 8}, {FAR, 8}, {MUTUAL_TLS, 4}};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(races); i++) {
        struct scene scene;
        scene_start(&scene, racer, N_RACERS, races[i].way, races[i].rounds);
        struct tether_test_world *world = scene.procs->world;
        tether_test_await_mark(world, 2 * races[i].rounds - 1, N_RACERS);
        assert_int_equal(crew_count(world, WINS), races[i].rounds);
        assert_int_equal(crew_count(world, LOSSES), races[i].rounds * (N_RACERS - 1));
        tether_test_procs_end(scene.procs);
        tether_buf names = value_of(&scene, "tether/names");
        assert_int_equal(names.len, 0); /* who lost has left nothing behind */
        tether_buf_fini(&names);
        tether_store_release(scene.store);
        tether_store_server_release(scene.server);
    }
}

/* ---- The first one leaves ---- */

static _Atomic(tether_reply *) kept;

static void keep(void *userdata, const tether_value *arg, tether_reply *reply)
{
    (void)userdata, (void)arg;
    atomic_store(&kept, reply);
}

static void *answer_later(void *world)
{
    tether_test_await_mark(world, SECOND_IS_THROUGH, 1);
    tether_reply_ok(atomic_load(&kept), NULL);
    return NULL;
}

/* The first one drains: a function for the boss still runs there. */
TETHER_PROC_ROLE(leaver)
{
    struct order order = read_order(self);
    tether_store *store = crew_store(order.port);
    tether_error err = {0};
    struct tether_agent_opts opts =
        options(&order, rank == BOSS ? boss_name(order.way) : "alpha", store);
    if (rank == SECOND)
        tether_test_await_mark(self->world, MAY_START, 1);
    tether_agent *agent = crew_agent(self, &opts);
    crew_ok(tether_agent_register_async(agent, "keep", keep, true, NULL, &err), &err);
    tether_status st = tether_agent_start(agent, &err);
    if (rank == SECOND) { /* while the first one drains; then again until it has gone */
        crew_fails(st, &err, TETHER_EEXIST, "'alpha' is alive");
        tether_test_mark(self->world, SECOND_IS_THROUGH);
        while (st != TETHER_OK) {
            tether_agent_release(agent);
            agent = crew_agent(self, &opts);
            st = tether_agent_start(agent, &err);
            if (st != TETHER_OK)
                crew_fails(st, &err, TETHER_EEXIST, "'alpha' is alive");
        }
        crew_stop(agent);
        tether_store_release(store);
        return;
    }
    crew_ok(st, &err);
    tether_test_mark(self->world, FIRST_IS_UP);
    if (rank == BOSS) {
        tether_test_await_mark(self->world, FIRST_IS_UP, 2);
        tether_future *pending = tether_rpc_async(agent, "alpha", "keep", NULL, LIMIT);
        crew_ok(tether_future_wait(pending, LIMIT, NULL, &err), &err);
        tether_future_release(pending);
    } else {
        assert_eventually(atomic_load(&kept));
        tether_test_mark(self->world, MAY_START);
        /* This thread shuts down, another answers when the second one was refused. */
        pthread_t thread;
        pthread_create(&thread, NULL, answer_later, self->world);
        crew_ok(tether_agent_shutdown(agent, true, &err), &err);
        pthread_join(thread, NULL);
    }
    tether_agent_release(agent);
    tether_store_release(store);
}

/* The goodbye takes its time: the boss is stopped and does not answer it. The second start comes
 * meanwhile, and waits for the record to go, not for the lease. */
TETHER_PROC_ROLE(goodbye)
{
    struct order order = read_order(self);
    tether_store *store = crew_store(order.port);
    tether_error err = {0};
    struct tether_agent_opts opts =
        options(&order, rank == BOSS ? boss_name(order.way) : "alpha", store);
    opts.lease_ms = rank == SECOND ? A_DAY_MS : 2000;
    if (rank == SECOND)
        tether_test_await_mark(self->world, MAY_START, 1);
    tether_agent *agent = crew_agent(self, &opts);
    tether_status st = tether_agent_start(agent, &err);
    while (rank == SECOND && st == TETHER_EEXIST) { /* it had not begun to say goodbye */
        tether_agent_release(agent);
        agent = crew_agent(self, &opts);
        st = tether_agent_start(agent, &err);
    }
    crew_ok(st, &err);
    tether_test_mark(self->world, rank == SECOND ? SECOND_IS_THROUGH : FIRST_IS_UP);
    if (rank == FIRST) {
        tether_test_await_mark(self->world, FIRST_IS_UP, 2);
        crew_call(agent, boss_name(order.way), "name", NULL, NULL);
        tether_test_mark(self->world, FIRST_IS_UP);
        tether_test_await_mark(self->world, FIRST_MAY_GO, 1);
        tether_test_mark(self->world, MAY_START);
        tether_agent_shutdown(agent, false, NULL);
    }
    if (rank == BOSS)
        tether_test_await_mark(self->world, SECOND_IS_THROUGH, 1);
    tether_agent_release(agent);
    tether_store_release(store);
}

static void second_start_waits_when_first_says_goodbye(void **state)
{
    (void)state;
    static const int ways[] = {NEAR, FAR, MUTUAL_TLS};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(ways); i++) {
        struct scene scene;
        scene_start(&scene, goodbye, N_RANKS, ways[i], 0);
        tether_test_await_mark(scene.procs->world, FIRST_IS_UP, 3);
        tether_test_signal(scene.procs->world, BOSS, SIGSTOP);
        tether_test_mark(scene.procs->world, FIRST_MAY_GO);
        tether_test_await_mark(scene.procs->world, SECOND_IS_THROUGH, 1);
        tether_test_signal(scene.procs->world, BOSS, SIGCONT);
        scene_end(&scene);
    }
}

static void second_start_succeeds_when_first_has_left(void **state)
{
    (void)state;
    static const int ways[] = {NEAR, FAR, MUTUAL_TLS};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(ways); i++) {
        struct scene scene;
        scene_start(&scene, leaver, N_RANKS, ways[i], 0);
        scene_end(&scene);
    }
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(second_start_is_refused_when_first_is_alive),
        cmocka_unit_test(second_start_is_refused_when_first_is_alive_over_tcp),
        cmocka_unit_test(second_start_is_refused_when_first_is_alive_over_tls),
        cmocka_unit_test(second_start_is_refused_when_first_is_alive_at_a_socket_file),
        cmocka_unit_test(killed_worker_starts_again_at_once),
        cmocka_unit_test(killed_worker_starts_again_at_once_when_its_port_is_taken),
        cmocka_unit_test(stopped_worker_is_replaced_when_lease_is_over),
        cmocka_unit_test(stopped_worker_keeps_its_name_when_lease_runs),
        cmocka_unit_test(live_worker_is_replaced_when_takeover_is_asked_for),
        cmocka_unit_test(one_of_many_wins_when_they_start_at_once),
        cmocka_unit_test(second_start_succeeds_when_first_has_left),
        cmocka_unit_test(second_start_waits_when_first_says_goodbye),
    };
    return cmocka_run_group_tests_name("namesakes", tests, setup, teardown);
}
