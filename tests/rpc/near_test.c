/* Workers of one host, which meet on unix sockets: what becomes of the socket shows who has died,
 * at once; and where it cannot be used they call each other all the same.
 *
 * The lease is ten times as long as a test may take, so nothing here waits for it to be over.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rendezvous/store_tcp.h"
#include "rpc/agent_internal.h"
#include "tests/lib/cmocka.h"
#include "tests/rpc/crew.h"

enum { LEASE_MS = 10 * TETHER_TEST_LIMIT_MS, LIMIT = TETHER_TEST_LIMIT_MS };
enum mark { READY, RUNS, WAITS, DONE };

static const char *const names[] = {"left", "right"};

/* ---- The scene ---- */

struct scene {
    char folder[32], port[16], arg[64];
    tether_store_server *server;
};

/* Each rank has a folder of its own for its socket. */
static void folder_of(char *ret_path, size_t size, const char *folder, int rank)
{
    snprintf(ret_path, size, "%s/%d", folder, rank);
}

static void scene_start(struct scene *scene)
{
    char path[64];
    strcpy(scene->folder, "/tmp/tether-near-XXXXXX"); /* a short path: it is for sockets */
    assert_non_null(mkdtemp(scene->folder));
    for (int rank = 0; rank < 2; rank++) {
        folder_of(path, sizeof path, scene->folder, rank);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    scene->server = crew_store_start(scene->port);
    snprintf(scene->arg, sizeof scene->arg, "%s %s", scene->port, scene->folder);
}

/* Removes what is in the folder, and says how much that was. */
static int empty(const char *path)
{
    int n = 0;
    DIR *dir = opendir(path);
    assert_non_null(dir);
    for (struct dirent *it; (it = readdir(dir));)
        if (it->d_name[0] != '.')
            n += unlinkat(dirfd(dir), it->d_name, 0) == 0;
    closedir(dir);
    return n;
}

static void scene_end(struct scene *scene)
{
    char path[64];
    for (int rank = 0; rank < 2; rank++) {
        folder_of(path, sizeof path, scene->folder, rank);
        empty(path); /* of those that were killed */
        rmdir(path);
    }
    rmdir(scene->folder);
    tether_store_server_release(scene->server);
}

/* ---- A worker ---- */

struct place {
    tether_store *store;
    tether_agent *agent;
    char folder[32];
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

static struct place take_place(struct tether_test_rank *self, const char *socket_folder)
{
    struct place place = {0};
    char port[16], own[64];
    tether_error err = {0};
    assert_int_equal(sscanf(self->arg, "%15s %31s", port, place.folder), 2);
    folder_of(own, sizeof own, place.folder, self->rank);
    setenv("TMPDIR", socket_folder ? socket_folder : own, true);
    place.store = crew_store(port);
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

/* Both are there. */
static struct place take_place_with(struct tether_test_rank *self, const char *socket_folder)
{
    struct place place = take_place(self, socket_folder);
    tether_test_mark(self->world, READY);
    tether_test_await_mark(self->world, READY, 2);
    return place;
}

static bool is_near(tether_agent *agent, const char *name)
{
    struct tether__peer *peer = NULL;
    tether_error err = {0};
    crew_ok(tether__agent_peer(agent, name, &peer, &err), &err);
    bool near = atomic_load(&peer->carrier) == &agent->near;
    tether__peer_release(peer);
    return near;
}

/* ---- Death ---- */

/* The left one calls, the right one is killed, and started again when the left one waits for it. */
TETHER_PROC_ROLE(widowed)
{
    bool second_life = atomic_load(&self->world->marks[WAITS]) > 0;
    struct place place = second_life ? take_place(self, NULL) : take_place_with(self, NULL);
    tether_error err = {0};
    if (rank == 0) {
        tether_future *call = tether_rpc_async(place.agent, "right", "run_on", NULL, LIMIT);
        crew_fails(tether_future_wait(call, LIMIT, NULL, &err), &err, TETHER_EUNAVAILABLE,
                   "its process has ended");
        tether_future_release(call);
        tether_test_mark(self->world, WAITS);
        tether_status st;
        do /* the first may still be for the one that died */
            st = tether_rpc_sync(place.agent, "right", "name", NULL, LIMIT, NULL, &err);
        while (st == TETHER_EUNAVAILABLE);
        crew_ok(st, &err);
        assert_true(is_near(place.agent, "right"));
        tether_test_mark(self->world, DONE);
    } else {
        tether_test_await_mark(self->world, DONE, 1);
    }
    leave_place(&place);
}

static void a_killed_worker_is_noticed_at_once(void **state)
{
    (void)state;
    struct scene scene;
    scene_start(&scene);
    struct tether_test_procs *procs = tether_test_procs_start(widowed, .arg = scene.arg);
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
    struct place place = take_place_with(self, NULL);
    if (rank == 1)
        tether_rpc_sync(place.agent, "left", "run_on", NULL, LIMIT, NULL, NULL);
    tether_test_await_mark(self->world, DONE, 1);
    leave_place(&place);
}

static void a_killed_caller_is_noticed_at_once(void **state)
{
    (void)state;
    struct scene scene;
    scene_start(&scene);
    struct tether_test_procs *procs = tether_test_procs_start(relieved, .arg = scene.arg);
    tether_test_await_mark(procs->world, RUNS, 1);
    tether_test_signal(procs->world, 1, SIGKILL);
    tether_test_procs_end(procs);
    scene_end(&scene);
}

/* ---- No socket ---- */

/* The right one's socket is not to be seen, as from within a container. */
TETHER_PROC_ROLE(veiled)
{
    struct place place = take_place_with(self, NULL);
    char path[64];
    folder_of(path, sizeof path, place.folder, 1);
    if (rank == 0) {
        assert_int_equal(empty(path), 1);
        crew_call(place.agent, "right", "name", NULL, "right");
        assert_false(is_near(place.agent, "right"));
        tether_test_mark(self->world, DONE);
    }
    tether_test_await_mark(self->world, DONE, 1);
    if (rank == 1) {
        crew_call(place.agent, "left", "name", NULL, "left"); /* the other way it is */
        assert_true(is_near(place.agent, "left"));
        tether_test_mark(self->world, DONE);
    }
    tether_test_await_mark(self->world, DONE, 2);
    leave_place(&place);
}

static void without_its_file_they_meet_by_grpc(void **state)
{
    (void)state;
    struct scene scene;
    scene_start(&scene);
    tether_test_procs_end(tether_test_procs_start(veiled, .arg = scene.arg));
    scene_end(&scene);
}

/* The right one has nowhere to put a socket. */
TETHER_PROC_ROLE(homeless)
{
    struct place place = take_place_with(self, rank == 1 ? "/nonexistent" : NULL);
    crew_call(place.agent, names[!rank], "name", NULL, names[!rank]);
    assert_false(is_near(place.agent, names[!rank]));
    tether_test_mark(self->world, DONE);
    tether_test_await_mark(self->world, DONE, 2);
    leave_place(&place);
}

static void without_a_folder_they_meet_by_grpc(void **state)
{
    (void)state;
    struct scene scene;
    scene_start(&scene);
    tether_test_procs_end(tether_test_procs_start(homeless, .arg = scene.arg));
    scene_end(&scene);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_worker_is_noticed_at_once),
        cmocka_unit_test(a_killed_caller_is_noticed_at_once),
        cmocka_unit_test(without_its_file_they_meet_by_grpc),
        cmocka_unit_test(without_a_folder_they_meet_by_grpc),
    };
    return cmocka_run_group_tests_name("near", tests, NULL, NULL);
}
