/* A store that hangs, is gone, or comes back empty: workers that know each other go on, and
 * look-ups do not wait for each other. The workers have TCP connections, which the tests break. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/threads/pool.h"
#include "rpc/agent.h"
#include "rpc/agent/internal.h"
#include "rpc/group/directory.h"
#include "rpc/peer/admission/confirm.h"
#include "rpc/peer/peer.h"
#include "rpc/peer/session.h"
#include "rpc/transport/transport.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/own_store.h"
#include "tests/lib/wait.h"
#include "tests/rpc/lib/named.h"

#define LIMIT TETHER_TEST_LIMIT_MS

/* ---- A store with faults ---- */

struct faulty {
    _Atomic(tether_store *) inner;
    atomic_bool is_gone;
    atomic_bool hangs; /* reading the record of "slow" */
    atomic_int n_hanging;
    atomic_int n_late; /* how often the record of "late0", "late1", … was asked for */
};

static struct faulty faulty;

static void hang_over(const char *key)
{
    if (strstr(key, "worker/late"))
        atomic_fetch_add(&faulty.n_late, 1);
    if (!strstr(key, "worker/slow") || !atomic_load(&faulty.hangs))
        return;
    atomic_fetch_add(&faulty.n_hanging, 1);
    assert_eventually(!atomic_load(&faulty.hangs));
}

static tether_status run_or_fail(void *userdata, struct tether__store_op *op)
{
    (void)userdata;
    if (op->kind == TETHER__STORE_GET || op->kind == TETHER__STORE_CHECK)
        hang_over(op->keys[0]);
    return atomic_load(&faulty.is_gone)
               ? tether_error_set(&op->cause, TETHER_EUNAVAILABLE, "the store is gone")
               : tether__store_run(faulty.inner, op);
}

static tether_store *empty_store(void)
{
    tether_store *store = NULL;
    assert_int_equal(tether_store_hash_new(&store, NULL), TETHER_OK);
    return store;
}

static tether_store *make_store(void)
{
    tether_store *store = NULL;
    memset(&faulty, 0, sizeof faulty);
    faulty.inner = empty_store();
    assert_int_equal(tether_test_store_new(run_or_fail, NULL, 0, &store), TETHER_OK);
    return store;
}

/* ---- Workers ---- */

enum { LEASE_MS = 4000 };

static tether_agent *start(tether_store *store, const char *worker)
{
    return named_start(TETHER_AGENT_OPTS(.store = store, .name = worker, .threads = 1,
                                         .lease_ms = LEASE_MS, .no_unix_socket = true));
}

/* Breaks the connection that `agent` has dialled, as a network does. */
static void cut(tether_agent *agent, const char *to)
{
    struct tether__peer *peer = tether__agent_find_peer(agent, to);
    assert_non_null(peer);
    tether__peer_lock(peer);
    if (peer->session->out.conn)
        peer->session->out.conn->transport->ops->close(peer->session->out.conn, false);
    tether__peer_unlock(peer);
    tether__peer_release(peer);
}

static uint64_t session_number_of(tether_agent *agent, const char *with)
{
    struct tether__peer *peer = tether__agent_find_peer(agent, with);
    assert_non_null(peer);
    uint64_t session_number = atomic_load(&peer->session_number);
    tether__peer_release(peer);
    return session_number;
}

struct scene {
    tether_store *store;
    tether_agent *alpha, *delta;
    uint64_t session_number;
};

static void scene_start(struct scene *scene)
{
    scene->store = make_store();
    scene->alpha = start(scene->store, "alpha");
    scene->delta = start(scene->store, "delta");
    named_call(scene->alpha, "delta");
    named_call(scene->delta, "alpha");
    scene->session_number = session_number_of(scene->alpha, "delta");
}

/* Connections break, and come back without the session being lost. */
static void assert_reconnects(struct scene *scene)
{
    for (int i = 0; i < 5; i++) {
        cut(scene->alpha, "delta");
        cut(scene->delta, "alpha");
        named_call(scene->alpha, "delta");
        named_call(scene->delta, "alpha");
    }
    assert_int_equal(session_number_of(scene->alpha, "delta"), scene->session_number);
}

static void scene_end(struct scene *scene)
{
    tether_agent_release(scene->delta);
    tether_agent_release(scene->alpha);
    tether_store_release(scene->store);
    tether_store_release(faulty.inner);
}

/* ---- Tests ---- */

static void workers_reconnect_when_the_store_is_gone(void **state)
{
    (void)state;
    struct scene scene;
    scene_start(&scene);
    atomic_store(&faulty.is_gone, true);
    assert_reconnects(&scene);
    tether_error err = {0}; /* the loss delays only workers that join */
    assert_int_equal(tether_rpc_sync(scene.alpha, "new", "name", NULL, 500, NULL, &err),
                     TETHER_ETIMEOUT);
    scene_end(&scene);
}

static void start_fails_with_the_error_of_the_store_while_it_is_lost(void **state)
{
    (void)state;
    tether_store *store = make_store();
    tether_agent *early = NULL;
    tether_error err = {0};
    atomic_store(&faulty.is_gone, true);
    assert_int_equal(
        tether_agent_new(TETHER_AGENT_OPTS(.store = store, .name = "early"), &early, &err),
        TETHER_OK);
    assert_int_equal(tether_agent_start(early, &err), TETHER_EUNAVAILABLE);
    if (!strstr(err.message, "the store is gone"))
        fail_msg("%s", err.message);
    tether_agent_release(early);
    atomic_store(&faulty.is_gone, false);
    tether_agent *later = start(store, "early");
    named_call(later, "early");
    tether_agent_release(later);
    tether_store_release(store);
    tether_store_release(faulty.inner);
}

static void session_lasts_when_the_directory_has_lost_the_record(void **state)
{
    (void)state;
    struct scene scene;
    scene_start(&scene);
    assert_int_equal(tether_store_delete(faulty.inner, "tether/worker/delta", LIMIT, NULL, NULL),
                     TETHER_OK);
    struct tether__peer *delta = tether__agent_find_peer(scene.alpha, "delta");
    pthread_mutex_lock(&delta->mu);
    delta->dialer.record_is_old = true; /* so that the directory is asked */
    pthread_mutex_unlock(&delta->mu);
    tether__peer_release(delta);
    assert_reconnects(&scene);
    scene_end(&scene);
}

static bool is_registered(tether_agent *agent, const char *worker)
{
    tether_worker found;
    return tether_agent_worker(agent, worker, &found, NULL) == TETHER_OK;
}

static void workers_register_again_when_the_store_comes_back_empty(void **state)
{
    (void)state;
    struct scene scene;
    uint64_t before = (uint64_t)time(NULL);
    scene_start(&scene);
    tether_store *lost = atomic_exchange(&faulty.inner, empty_store());
    assert_eventually(is_registered(scene.alpha, "alpha") && is_registered(scene.alpha, "delta"));
    tether_store_release(lost);
    assert_reconnects(&scene);
    tether_agent *late = start(scene.store, "late");
    assert_string_equal(late->directory.run, scene.alpha->directory.run);
    assert_true(late->self.incarnation > scene.delta->self.incarnation);
    assert_true(late->self.incarnation > before); /* of starts that these workers do not know */
    named_call(late, "alpha");
    named_call(scene.delta, "late");
    tether_agent_release(late);
    scene_end(&scene);
}

static void another_run_in_the_store_is_an_error_and_no_fence(void **state)
{
    (void)state;
    struct scene scene;
    scene_start(&scene);
    tether_store *other = empty_store();
    tether_agent *intruder = start(other, "alpha"); /* begins a run of its own */
    tether_store *lost = atomic_exchange(&faulty.inner, other);
    assert_reconnects(&scene);
    tether_worker found;
    tether_error err = {0};
    assert_int_equal(tether_agent_worker(scene.delta, "alpha", &found, &err), TETHER_EUNAVAILABLE);
    assert_non_null(strstr(err.message, "another run"));
    assert_reconnects(&scene);
    tether_agent_release(intruder);
    tether_store_release(lost);
    scene_end(&scene);
}

static void lookups_of_several_workers_run_in_parallel(void **state)
{
    (void)state;
    struct scene scene;
    scene_start(&scene);
    atomic_store(&faulty.hangs, true);
    tether_future *slow = tether_rpc_async(scene.alpha, "slow", "name", NULL, LIMIT);
    assert_eventually(atomic_load(&faulty.n_hanging) > 0);
    tether_agent *late = start(scene.store, "late");
    named_call(scene.alpha, "late"); /* which is looked up meanwhile */
    atomic_store(&faulty.hangs, false);
    assert_int_equal(tether_future_wait(slow, LIMIT, NULL, NULL), TETHER_ENOTFOUND);
    tether_future_release(slow);
    tether_agent_release(late);
    scene_end(&scene);
}

static size_t n_queued_lookups(tether_agent *agent)
{
    return tether__pool_stats(&agent->directory.lookups).queued;
}

/* docs/security.md: 4 at once. The others are not queued, so that those of this worker go on. */
static void unproved_starts_are_looked_up_four_at_once(void **state)
{
    (void)state;
    enum { CLAIMS = 20, AT_ONCE = 4 };
    struct scene scene;
    scene_start(&scene);
    atomic_store(&faulty.hangs, true);
    for (int i = 0; i < CLAIMS; i++) {
        char name[16];
        snprintf(name, sizeof name, "slow%d", i);
        tether__agent_confirm(scene.alpha, name, 1);
    }
    assert_eventually(atomic_load(&faulty.n_hanging) == AT_ONCE && !n_queued_lookups(scene.alpha));
    tether_agent *late = start(scene.store, "late");
    named_call(scene.alpha, "late"); /* which is looked up meanwhile */
    assert_int_equal(atomic_load(&faulty.n_hanging), AT_ONCE);
    atomic_store(&faulty.hangs, false);
    tether_agent_release(late);
    scene_end(&scene);
}

static void *release(void *agent)
{
    return tether_agent_release(agent);
}

/* With a store that does not answer, each of these operations would take until its deadline. */
static void release_drops_queued_lookups_when_the_store_hangs(void **state)
{
    (void)state;
    enum { HANGING = TETHER__MAX_LOOKUP_THREADS, LATE = 4, N = HANGING + LATE };
    struct scene scene;
    tether_future *calls[N];
    pthread_t releaser;
    scene_start(&scene);
    atomic_store(&faulty.hangs, true);
    for (int i = 0; i < N; i++) {
        char to[16];
        snprintf(to, sizeof to, i < HANGING ? "slow%d" : "late%d", i);
        calls[i] = tether_rpc_async(scene.alpha, to, "name", NULL, LIMIT);
        if (i < HANGING)
            assert_eventually(atomic_load(&faulty.n_hanging) == i + 1);
    }
    assert_eventually(n_queued_lookups(scene.alpha) == LATE);
    assert_int_equal(pthread_create(&releaser, NULL, release, scene.alpha), 0);
    for (int i = 0; i < N; i++) {
        assert_int_equal(tether_future_wait(calls[i], LIMIT, NULL, NULL), TETHER_ESHUTDOWN);
        tether_future_release(calls[i]);
    }
    atomic_store(&faulty.hangs, false); /* release() waits for those that have begun */
    pthread_join(releaser, NULL);
    assert_int_equal(atomic_load(&faulty.n_late), 0);
    scene.alpha = NULL;
    scene_end(&scene);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(workers_reconnect_when_the_store_is_gone),
        cmocka_unit_test(start_fails_with_the_error_of_the_store_while_it_is_lost),
        cmocka_unit_test(session_lasts_when_the_directory_has_lost_the_record),
        cmocka_unit_test(workers_register_again_when_the_store_comes_back_empty),
        cmocka_unit_test(another_run_in_the_store_is_an_error_and_no_fence),
        cmocka_unit_test(lookups_of_several_workers_run_in_parallel),
        cmocka_unit_test(unproved_starts_are_looked_up_four_at_once),
        cmocka_unit_test(release_drops_queued_lookups_when_the_store_hangs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
