/* Workers of one host, which connect by unix sockets. A closed socket shows the death of a worker
 * at once. Where unix sockets cannot be used, calls go over the network.
 *
 * The lease is ten times as long as a test may take, so nothing here waits for it to be over.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/log_limit.h"
#include "rendezvous/store_tcp.h"
#include "rpc/agent/internal.h"
#include "rpc/agent/routes.h"
#include "rpc/peer/peer.h"
#include "rpc/transport/transport.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/user.h"
#include "tests/rpc/lib/crew.h"
#include "tests/rpc/lib/raw_socket.h"

enum { LEASE_MS = 10 * TETHER_TEST_LIMIT_MS, LIMIT = TETHER_TEST_LIMIT_MS };
enum mark { READY, RUNS, WAITS, DONE };

static const char *const names[] = {"left", "right"};

/* ---- The scene ---- */

struct scene {
    char port[16];
    tether_store_server *server;
};

static void scene_start(struct scene *scene)
{
    scene->server = crew_store_start(scene->port);
}

static void scene_end(struct scene *scene)
{
    tether_store_server_release(scene->server);
}

/* ---- A worker ---- */

struct place {
    tether_store *store;
    tether_agent *agent;
};

/* Runs until its caller has given up. */
static tether_status run_on(void *userdata,
                            const tether_value *arg,
                            tether_value **ret_value,
                            tether_error *reterr)
{
    struct tether_test_world *world = userdata;
    (void)arg, (void)ret_value, (void)reterr;
    tether_test_mark(world, RUNS);
    assert_eventually(tether_caller_has_cancelled());
    tether_test_mark(world, DONE);
    return TETHER_OK;
}

static struct place take_place(struct tether_test_rank *self)
{
    struct place place = {0};
    tether_error err = {0};
    place.store = crew_store(self->arg);
    place.agent =
        crew_agent(self, TETHER_AGENT_OPTS(.store = place.store, .lease_ms = LEASE_MS,
                                           .name = names[self->rank], .timeout_ms = LIMIT));
    crew_ok(tether_agent_register(place.agent, "run_on", run_on, self->world, &err), &err);
    crew_start(place.agent);
    return place;
}

static void leave_place(struct place *place)
{
    tether_agent_release(place->agent);
    tether_store_release(place->store);
}

/* Both workers have started. */
static struct place take_place_with(struct tether_test_rank *self)
{
    struct place place = take_place(self);
    tether_test_mark(self->world, READY);
    tether_test_await_mark(self->world, READY, 2);
    return place;
}

static bool is_local(tether_agent *agent, const char *name)
{
    struct tether__peer *peer = NULL;
    tether_error err = {0};
    crew_ok(tether__agent_peer(agent, name, &peer, &err), &err);
    bool local = atomic_load(&peer->route) == &agent->local;
    tether__peer_release(peer);
    return local;
}

/* ---- Death ---- */

/* The left one calls, the right one is killed, and started again when the left one waits for it. */
TETHER_PROC_ROLE(widowed)
{
    bool second_life = atomic_load(&self->world->marks[WAITS]) > 0;
    struct place place = second_life ? take_place(self) : take_place_with(self);
    tether_error err = {0};
    if (rank == 0) {
        tether_future *call = tether_rpc_async(place.agent, "right", "run_on", NULL, LIMIT);
        crew_fails(tether_future_wait(call, LIMIT, NULL, &err), &err, TETHER_EUNAVAILABLE,
                   "its process has ended");
        tether_future_release(call);
        tether_test_mark(self->world, WAITS);
        tether_status st;
        do /* the first call may still go to the process that died */
            st = tether_rpc_sync(place.agent, "right", "name", NULL, LIMIT, NULL, &err);
        while (st == TETHER_EUNAVAILABLE);
        crew_ok(st, &err);
        assert_true(is_local(place.agent, "right"));
        tether_test_mark(self->world, DONE);
    } else {
        tether_test_await_mark(self->world, DONE, 1);
    }
    leave_place(&place);
}

static void caller_notices_killed_worker_at_once(void **state)
{
    (void)state;
    struct scene scene;
    scene_start(&scene);
    struct tether_test_procs *procs = tether_test_procs_start(widowed, .arg = scene.port);
    tether_test_await_mark(procs->world, RUNS, 1);
    tether_test_signal(procs->world, 1, SIGKILL);
    tether_test_await_mark(procs->world, WAITS, 1);
    tether_test_procs_restart(procs, 1, NULL);
    tether_test_procs_end(procs);
    scene_end(&scene);
}

/* The right one calls and is killed; the left one has never called it. */
TETHER_PROC_ROLE(relieved)
{
    struct place place = take_place_with(self);
    if (rank == 1)
        tether_rpc_sync(place.agent, "left", "run_on", NULL, LIMIT, NULL, NULL);
    tether_test_await_mark(self->world, DONE, 1);
    leave_place(&place);
}

static void worker_notices_killed_caller_at_once(void **state)
{
    (void)state;
    struct scene scene;
    scene_start(&scene);
    struct tether_test_procs *procs = tether_test_procs_start(relieved, .arg = scene.port);
    tether_test_await_mark(procs->world, RUNS, 1);
    tether_test_signal(procs->world, 1, SIGKILL);
    tether_test_procs_end(procs);
    scene_end(&scene);
}

/* ---- Two users ---- */

/* The right worker runs as another user. The test needs the right to change its user. */
TETHER_PROC_ROLE(other_user)
{
    uid_t user = geteuid();
    if (rank == 1)
        assert_true(tether_test_become(TETHER_TEST_OTHER_USER));
    struct place place = take_place_with(self);
    crew_call(place.agent, names[!rank], "name", NULL, names[!rank]);
    assert_false(is_local(place.agent, names[!rank]));
    tether_test_mark(self->world, DONE);
    tether_test_await_mark(self->world, DONE, 2);
    leave_place(&place);
    assert_true(tether_test_become(user)); /* sanitizers want to look around at the end */
}

static void workers_of_two_users_connect_over_grpc(void **state)
{
    (void)state;
    struct scene scene;
    tether_test_need_other_user();
    scene_start(&scene);
    tether_test_procs_end(tether_test_procs_start(other_user, .arg = scene.port));
    scene_end(&scene);
}

static atomic_int n_others_logged;

static void count_others(void *userdata,
                         tether_log_level level,
                         const char *area,
                         const char *message)
{
    (void)userdata, (void)level, (void)area;
    if (strstr(message, "runs as another user"))
        atomic_fetch_add(&n_others_logged, 1);
}

/* The right one, of another user, connects to the left one's socket again and again. */
TETHER_PROC_ROLE(knocking)
{
    if (rank == 0) {
        int64_t start = tether__clock_now_ns(&tether__clock_system);
        tether_set_log(TETHER_LOG_INFO, count_others, NULL);
        struct place place = take_place(self);
        snprintf((char *)self->world->page, sizeof self->world->page, "%s",
                 place.agent->local.transport->address);
        tether_test_mark(self->world, READY);
        tether_test_await_mark(self->world, DONE, 1);
        int64_t minutes =
            (tether__clock_now_ns(&tether__clock_system) - start) / TETHER__LOG_PAUSE_NS;
        assert_in_range(atomic_load(&n_others_logged), 1, 1 + minutes);
        leave_place(&place);
        tether_set_log(TETHER_LOG_NONE, NULL, NULL);
        return;
    }
    uid_t user = geteuid();
    tether_test_await_mark(self->world, READY, 1);
    assert_true(tether_test_become(TETHER_TEST_OTHER_USER));
    for (int i = 0; i < 100; i++) {
        int fd = raw_connect((const char *)self->world->page);
        raw_await_hangup(fd, "a process of another user");
        close(fd);
    }
    assert_true(tether_test_become(user)); /* sanitizers want to look around at the end */
    tether_test_mark(self->world, DONE);
}

static void log_has_one_line_when_another_user_connects_often(void **state)
{
    (void)state;
    struct scene scene;
    tether_test_need_other_user();
    scene_start(&scene);
    tether_test_procs_end(tether_test_procs_start(knocking, .arg = scene.port));
    scene_end(&scene);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(caller_notices_killed_worker_at_once),
        cmocka_unit_test(worker_notices_killed_caller_at_once),
        cmocka_unit_test(workers_of_two_users_connect_over_grpc),
        cmocka_unit_test(log_has_one_line_when_another_user_connects_often),
    };
    return cmocka_run_group_tests_name("local", tests, NULL, NULL);
}
