/* Two workers, a process each, and a network between them that fails: cut and healed a thousand
 * times under load, slow, stranded, silent; and workers that are killed or stopped. Every call
 * completes, and runs exactly once.
 *
 * Each worker listens on a unix socket and is dialled at a proxy, so that the test, which owns the
 * proxies, controls each direction.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "rendezvous/store_tcp.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/tcp_proxy.h"
#include "tests/rpc/lib/crew.h"

#define LIMIT TETHER_TEST_LIMIT_MS

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CUTS 150
#else
#define CUTS 1000
#endif

/* ---- The scene ---- */

struct scene {
    char folder[32], port[16], arg[256];
    tether_store_server *server;
    struct tether_test_proxy *proxies[2];
};

static void scene_start(struct scene *scene, const char *words)
{
    char target[64];
    strcpy(scene->folder, "/tmp/tether-cut-XXXXXX"); /* a short path: it is for sockets */
    assert_non_null(mkdtemp(scene->folder));
    scene->server = crew_store_start(scene->port);
    for (int i = 0; i < 2; i++) {
        snprintf(target, sizeof target, "unix:%s/%d", scene->folder, i);
        scene->proxies[i] = tether_test_proxy_start(target);
    }
    snprintf(scene->arg, sizeof scene->arg, "%s %s %s %s %s", scene->port, scene->folder,
             tether_test_proxy_endpoint(scene->proxies[0]),
             tether_test_proxy_endpoint(scene->proxies[1]), words);
}

static void scene_end(struct scene *scene)
{
    for (int i = 0; i < 2; i++)
        tether_test_proxy_free(scene->proxies[i]);
    tether_store_server_release(scene->server);
    for (int i = 0; i < 2; i++) { /* of those that were killed */
        char path[64];
        snprintf(path, sizeof path, "%s/%d", scene->folder, i);
        unlink(path);
    }
    rmdir(scene->folder);
}

static void cut_both(struct scene *scene, bool refuse)
{
    for (int i = 0; i < 2; i++)
        tether_test_proxy_cut(scene->proxies[i], refuse);
}

/* ---- A worker behind its proxy ---- */

enum { MAX_CALLS = 400000, WINDOW = 48 };
enum { ISSUED, COMPLETED = 2 }; /* counters, by rank */
enum mark { READY, STOP, DRAINED, CHECKED };

static const char *const names[] = {"left", "right"};
static _Atomic uint8_t ran[MAX_CALLS]; /* how often the call with this number has run here */
static tether_reply *_Atomic held;

static int number_of(const tether_value *value)
{
    int number;
    assert_true(tether_value_bytes(value).len >= sizeof number);
    memcpy(&number, tether_value_bytes(value).data, sizeof number);
    return number;
}

/* Gives its argument back. */
static tether_status once(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    (void)userdata, (void)reterr;
    atomic_fetch_add(&ran[number_of(arg) % MAX_CALLS], 1);
    *ret_value = tether_value_retain((tether_value *)arg);
    return TETHER_OK;
}

static void hold(void *userdata, const tether_value *arg, tether_reply *reply)
{
    struct tether_test_world *world = userdata;
    (void)arg;
    atomic_store(&held, reply);
    tether_test_mark(world, READY);
}

static void let_go(void)
{
    tether_reply *reply = atomic_exchange(&held, NULL);
    if (reply)
        tether_reply_ok(reply, NULL);
}

struct place {
    tether_store *store;
    tether_agent *agent;
};

/* `arg`: "port folder proxy0 proxy1 lease". */
static struct place take_place(struct tether_test_rank *self)
{
    char port[16], folder[32], proxies[2][32], listen[64];
    int lease_ms;
    tether_error err = {0};
    assert_int_equal(sscanf(self->arg, "%15s %31s %31s %31s %d", port, folder, proxies[0],
                            proxies[1], &lease_ms),
                     5);
    snprintf(listen, sizeof listen, "unix:%s/%d", folder, self->rank);
    struct place place = {.store = crew_store(port)};
    place.agent = crew_agent(
        self, TETHER_AGENT_OPTS(.store = place.store, .name = names[self->rank], .listen = listen,
                                .advertise = proxies[self->rank], .no_unix_socket = true,
                                .lease_ms = lease_ms, .timeout_ms = LIMIT));
    crew_ok(tether_agent_register_inline(place.agent, "once", once, NULL, &err), &err);
    crew_ok(tether_agent_register(place.agent, "once_pooled", once, NULL, &err), &err);
    crew_ok(tether_agent_register_async(place.agent, "hold", hold, true, self->world, &err), &err);
    crew_start(place.agent);
    tether_test_mark(self->world, READY);
    tether_test_await_mark(self->world, READY, 2);
    return place;
}

static void leave_place(struct place *place)
{
    let_go();
    tether_agent_release(place->agent);
    tether_store_release(place->store);
}

/* ---- Load ---- */

/* Most are small, some take a segment of their own, some go in pieces. */
static tether_future *issue(tether_agent *agent, const char *to, int number)
{
    static const size_t sizes[] = {4, 64, 64, 5000, 4, 64, 300, 64, 4, 70000, 64, 64};
    size_t n = TETHER__ARRAY_LEN(sizes);
    size_t size = number % 997 == 0 ? 700000 : sizes[(size_t)number % n];
    tether_value *arg = NULL;
    tether_error err = {0};
    char *bytes = calloc(1, size);
    memcpy(bytes, &number, sizeof number);
    crew_ok(tether_value_new(tether_bytes_of(bytes, size), &arg, &err), &err);
    free(bytes);
    tether_future *future =
        tether_rpc_async(agent, to, number % 5 ? "once" : "once_pooled", arg, LIMIT);
    tether_value_release(arg);
    return future;
}

static void collect(struct tether_test_rank *self, tether_future *future, int number)
{
    tether_error err = {0};
    tether_value *value = NULL;
    tether_status st = tether_future_wait(future, LIMIT, &value, &err);
    if (st != TETHER_OK)
        fail_msg("call %d: %s: %s", number, tether_status_name(st), err.message);
    assert_int_equal(number_of(value), number);
    atomic_fetch_add(&crew_page(self->world)->count[COMPLETED + self->rank], 1);
    tether_value_release(value);
    tether_future_release(future);
}

TETHER_PROC_ROLE(loaded)
{
    struct place place = take_place(self);
    const char *other = names[!rank];
    tether_future *calls[WINDOW] = {0};
    int n = 0;
    for (; n < MAX_CALLS && !atomic_load(&self->world->marks[STOP]); n++) {
        if (n >= WINDOW)
            collect(self, calls[n % WINDOW], n - WINDOW);
        calls[n % WINDOW] = issue(place.agent, other, n);
    }
    for (int i = n < WINDOW ? 0 : n - WINDOW; i < n; i++)
        collect(self, calls[i % WINDOW], i);
    atomic_store(&crew_page(self->world)->count[ISSUED + rank], n);
    tether_test_mark(self->world, DRAINED);
    tether_test_await_mark(self->world, DRAINED, 2);
    int expected = (int)crew_count(self->world, ISSUED + !rank);
    for (int i = 0; i < MAX_CALLS; i++)
        if (ran[i] != (i < expected))
            fail_msg("call %d of %d ran %d times", i, expected, ran[i]);
    tether_test_mark(self->world, CHECKED);
    tether_test_await_mark(self->world, CHECKED, 2);
    leave_place(&place);
}

static int64_t completed(struct tether_test_procs *procs)
{
    return crew_count(procs->world, COMPLETED) + crew_count(procs->world, COMPLETED + 1);
}

/* The waits of a test end when a rank does; tether_test_procs_end() then shows why it ended. */
static bool a_rank_ended(struct tether_test_procs *procs)
{
    return tether_test_child_wait(procs->ranks[0], 0) || tether_test_child_wait(procs->ranks[1], 0);
}

/* Waits until some more calls are through: the net works. */
static void await_progress(struct tether_test_procs *procs, int n)
{
    int64_t goal = completed(procs) + n;
    assert_eventually(completed(procs) >= goal || a_rank_ended(procs));
}

static void calls_continue_when_connections_are_cut_and_healed(void **state)
{
    (void)state;
    struct scene scene;
    scene_start(&scene, "30000");
    struct tether_test_procs *procs =
        tether_test_procs_start(loaded, .ranks = 2, .arg = scene.arg, .timeout_ms = 5 * LIMIT);
    tether_test_await_mark(procs->world, READY, 2);
    for (int i = 0; i < CUTS; i++) {
        if (i % 10 == 9) { /* while it is being dialled */
            cut_both(&scene, true);
            cut_both(&scene, false);
        } else if (i % 3 == 0) {
            cut_both(&scene, false);
        } else {
            tether_test_proxy_cut(scene.proxies[i % 2], false);
        }
        await_progress(procs, i % 7 * 20);
    }
    await_progress(procs, 100);
    tether_test_mark(procs->world, STOP);
    print_message("%lld calls through %d cuts and %d connections\n", (long long)completed(procs),
                  CUTS,
                  tether_test_proxy_connections(scene.proxies[0]) +
                      tether_test_proxy_connections(scene.proxies[1]));
    tether_test_procs_end(procs);
    scene_end(&scene);
}

static void calls_succeed_over_a_slow_network(void **state)
{
    (void)state;
    struct scene scene;
    scene_start(&scene, "30000");
    struct tether_test_procs *procs = tether_test_procs_start(loaded, .ranks = 2, .arg = scene.arg);
    tether_test_await_mark(procs->world, READY, 2);
    for (int i = 0; i < 2; i++)
        tether_test_proxy_delay(scene.proxies[i], 10);
    await_progress(procs, 200);
    tether_test_proxy_delay(scene.proxies[0], 0);
    tether_test_proxy_dribble(scene.proxies[0], true);
    await_progress(procs, 50);
    cut_both(&scene, false);
    await_progress(procs, 50);
    tether_test_proxy_dribble(scene.proxies[0], false);
    tether_test_proxy_delay(scene.proxies[1], 0);
    tether_test_mark(procs->world, STOP);
    tether_test_procs_end(procs);
    scene_end(&scene);
}

/* A router forgets the connections of one direction; those of the other keep the lease alive. */
static void calls_continue_when_a_connection_is_stranded(void **state)
{
    (void)state;
    struct scene scene;
    /* The streams are given up after 6 s. A machine so busy that it runs none of the processes for
     * seconds (5.7 s were seen) does not end the lease. */
    scene_start(&scene, "9000");
    struct tether_test_procs *procs = tether_test_procs_start(loaded, .ranks = 2, .arg = scene.arg);
    tether_test_await_mark(procs->world, READY, 2);
    await_progress(procs, 100);
    for (int i = 0; i < 2; i++) {
        int dialled = tether_test_proxy_connections(scene.proxies[i]);
        tether_test_proxy_strand(scene.proxies[i]);
        assert_eventually(tether_test_proxy_connections(scene.proxies[i]) > dialled ||
                          a_rank_ended(procs));
        int64_t goal = crew_count(procs->world, COMPLETED + !i) + 2 * WINDOW;
        assert_eventually(crew_count(procs->world, COMPLETED + !i) >= goal || a_rank_ended(procs));
    }
    tether_test_mark(procs->world, STOP);
    tether_test_procs_end(procs);
    scene_end(&scene);
}

/* ---- Killed, stopped, cut off ---- */

enum { CALLED = 8, FAILED, ALIVE }; /* further marks */

/* The left worker calls and waits, while the test kills, stops or cuts off the right one. */
TETHER_PROC_ROLE(bereaved)
{
    struct place place = take_place(self);
    tether_error err = {0};
    if (rank == 1) {
        tether_test_await_mark(self->world, STOP, 1);
    } else {
        tether_future *calls[] = {tether_rpc_async(place.agent, "right", "hold", NULL, -1),
                                  tether_rpc_async(place.agent, "right", "name", NULL, -1)};
        tether_test_await_mark(self->world, READY, 3); /* it runs there */
        tether_test_mark(self->world, CALLED);
        crew_fails(tether_future_wait(calls[0], LIMIT, NULL, &err), &err, TETHER_EUNAVAILABLE,
                   "'right'");
        tether_future_wait(calls[1], LIMIT, NULL, &err);
        for (int i = 0; i < 2; i++)
            tether_future_release(calls[i]);
        /* nor does a new call hang */
        crew_fails(tether_rpc_sync(place.agent, "right", "name", NULL, -1, NULL, &err), &err,
                   TETHER_EUNAVAILABLE, "'right'");
    }
    leave_place(&place);
}

static void call_fails_when_callee_is_killed(void **state)
{
    (void)state;
    struct scene scene;
    scene_start(&scene, "1500");
    struct tether_test_procs *procs =
        tether_test_procs_start(bereaved, .ranks = 2, .arg = scene.arg);
    tether_test_await_mark(procs->world, CALLED, 1);
    tether_test_signal(procs->world, 1, SIGKILL);
    tether_test_procs_end(procs);
    scene_end(&scene);
}

/* The right one is killed and started again, far within the lease: that alone tells the left
 * one that its call is lost, and the new start can be called. */
TETHER_PROC_ROLE(remarried)
{
    bool second_life = atomic_load(&self->world->marks[CALLED]) > 0;
    struct place place = take_place(self);
    tether_error err = {0};
    if (rank == 1 && !second_life) {
        tether_test_await_mark(self->world, STOP, 1);
    } else if (rank == 0) {
        tether_future *call = tether_rpc_async(place.agent, "right", "hold", NULL, -1);
        tether_test_await_mark(self->world, READY, 3); /* it runs there */
        tether_test_mark(self->world, CALLED);
        crew_fails(tether_future_wait(call, LIMIT, NULL, &err), &err, TETHER_EUNAVAILABLE,
                   "'right'");
        tether_future_release(call);
        tether_status st;
        do /* the first may still be for the one that died */
            st = tether_rpc_sync(place.agent, "right", "name", NULL, LIMIT, NULL, &err);
        while (st == TETHER_EUNAVAILABLE);
        crew_ok(st, &err);
    }
    if (rank == 0 || second_life) {
        crew_call(place.agent, names[!rank], "name", NULL, names[!rank]);
        tether_test_mark(self->world, DRAINED);
        tether_test_await_mark(self->world, DRAINED, 2);
    }
    leave_place(&place);
}

static void call_fails_when_callee_is_restarted(void **state)
{
    (void)state;
    struct scene scene;
    scene_start(&scene, "600000"); /* ten times as long as the test may take */
    struct tether_test_procs *procs =
        tether_test_procs_start(remarried, .ranks = 2, .arg = scene.arg);
    tether_test_await_mark(procs->world, CALLED, 1);
    tether_test_signal(procs->world, 1, SIGKILL);
    tether_test_procs_restart(procs, 1, NULL);
    tether_test_procs_end(procs);
    scene_end(&scene);
}

/* Makes calls all the while; none may fail. */
TETHER_PROC_ROLE(patient)
{
    struct place place = take_place(self);
    for (int n = 0; !atomic_load(&self->world->marks[STOP]); n++) {
        collect(self, issue(place.agent, names[!rank], n), n);
        tether_test_mark(self->world, CALLED + rank);
    }
    tether_test_mark(self->world, DRAINED);
    tether_test_await_mark(self->world, DRAINED, 2);
    leave_place(&place);
}

static void nap_ms(int ms)
{
    struct timespec time = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&time, NULL);
}

static void call_succeeds_when_callee_is_stopped_for_less_than_the_lease(void **state)
{
    (void)state;
    struct scene scene;
    scene_start(&scene, "6000"); /* the streams are given up after 4 s */
    struct tether_test_procs *procs =
        tether_test_procs_start(patient, .ranks = 2, .arg = scene.arg);
    static const int naps[] = {50, 300, 4300};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(naps); i++) {
        await_progress(procs, 100);
        tether_test_signal(procs->world, (int)i % 2, SIGSTOP);
        nap_ms(naps[i]);
        tether_test_signal(procs->world, (int)i % 2, SIGCONT);
    }
    await_progress(procs, 100);
    tether_test_mark(procs->world, STOP);
    tether_test_procs_end(procs);
    scene_end(&scene);
}

/* Both wait for the other in a call. The right one is stopped until the left one has given it up;
 * then it learns that, and both get on again. */
TETHER_PROC_ROLE(estranged)
{
    struct place place = take_place(self);
    tether_error err = {0};
    tether_future *call = tether_rpc_async(place.agent, names[!rank], "hold", NULL, -1);
    tether_test_await_mark(self->world, READY, 4); /* both run */
    tether_test_mark(self->world, CALLED);
    tether_status st = tether_future_wait(call, LIMIT, NULL, &err);
    assert_true(st == TETHER_EUNAVAILABLE || st == TETHER_EFENCED);
    if (rank == 0)
        assert_int_equal(st, TETHER_EUNAVAILABLE);
    assert_non_null(strstr(err.message, names[!rank]));
    tether_future_release(call);
    tether_test_mark(self->world, FAILED + rank);
    tether_test_await_mark(self->world, FAILED + 1, 1);
    do /* the first may still meet the end of what was */
        st = tether_rpc_sync(place.agent, names[!rank], "name", NULL, LIMIT, NULL, &err);
    while (st == TETHER_EUNAVAILABLE || st == TETHER_EFENCED);
    crew_ok(st, &err);
    assert_true(tether_reply_is_cancelled(atomic_load(&held))); /* its call is cancelled */
    tether_test_mark(self->world, DRAINED);
    tether_test_await_mark(self->world, DRAINED, 2);
    leave_place(&place);
}

static void call_fails_when_callee_is_stopped_for_longer_than_the_lease(void **state)
{
    (void)state;
    struct scene scene;
    scene_start(&scene, "1500");
    struct tether_test_procs *procs =
        tether_test_procs_start(estranged, .ranks = 2, .arg = scene.arg);
    tether_test_await_mark(procs->world, CALLED, 2);
    tether_test_signal(procs->world, 1, SIGSTOP);
    tether_test_await_mark(procs->world, FAILED, 1);
    tether_test_signal(procs->world, 1, SIGCONT);
    tether_test_procs_end(procs);
    scene_end(&scene);
}

/* The same by a network that loses everything for longer than the lease. */
static void both_ends_fence_when_cut_off_for_longer_than_the_lease(void **state)
{
    (void)state;
    struct scene scene;
    scene_start(&scene, "1500");
    struct tether_test_procs *procs =
        tether_test_procs_start(estranged, .ranks = 2, .arg = scene.arg);
    tether_test_await_mark(procs->world, CALLED, 2);
    for (int i = 0; i < 2; i++)
        tether_test_proxy_swallow(scene.proxies[i],
                                  TETHER_TEST_FROM_CLIENT | TETHER_TEST_FROM_SERVER);
    tether_test_await_mark(procs->world, FAILED, 1);
    tether_test_await_mark(procs->world, FAILED + 1, 1);
    cut_both(&scene, false);
    tether_test_procs_end(procs);
    scene_end(&scene);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_continue_when_connections_are_cut_and_healed),
        cmocka_unit_test(calls_succeed_over_a_slow_network),
        cmocka_unit_test(calls_continue_when_a_connection_is_stranded),
        cmocka_unit_test(call_fails_when_callee_is_killed),
        cmocka_unit_test(call_fails_when_callee_is_restarted),
        cmocka_unit_test(call_succeeds_when_callee_is_stopped_for_less_than_the_lease),
        cmocka_unit_test(call_fails_when_callee_is_stopped_for_longer_than_the_lease),
        cmocka_unit_test(both_ends_fence_when_cut_off_for_longer_than_the_lease),
    };
    return cmocka_run_group_tests_name("networks that fail", tests, NULL, NULL);
}
