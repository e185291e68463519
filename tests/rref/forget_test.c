/* A hostile member names 10,000 workers that do not exist. The worker that receives the names
 * forgets them again: its table, its timers, its metrics and its memory are as before. A worker
 * that was connected and is gone is forgotten as well, and connected again when it comes back.
 */
#include <malloc.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "rendezvous/store_tcp.h"
#include "rpc/agent/internal.h"
#include "rpc/lane/lane.h"
#include "rpc/peer/peer.h"
#include "rpc/peer/session.h"
#include "rpc/peer/stream.h"
#include "rpc/wire/packed.h"
#include "rpc/wire/slice.h"
#include "rref/rref.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"
#include "tests/rpc/lib/crew.h"

enum { LIMIT = TETHER_TEST_LIMIT_MS, LEASE_MS = 600, ROUNDS = 10, NAMES = 1000 };
enum { WORKER, MEMBER };
enum mark { UP, READY, NAMED, FORGOTTEN, DONE };

static const char *const names[] = {"worker", "member"};

struct place {
    tether_store *store;
    tether_agent *agent;
};

static struct place take_place(struct tether_test_rank *self)
{
    struct place place = {.store = crew_store(self->arg)};
    place.agent = crew_agent(self, TETHER_AGENT_OPTS(.store = place.store, .lease_ms = LEASE_MS,
                                                     .name = names[self->rank]));
    crew_start(place.agent);
    tether_test_mark(self->world, UP);
    tether_test_await_mark(self->world, UP, 2);
    return place;
}

static void leave_place(struct place *place)
{
    tether_agent_release(place->agent);
    tether_store_release(place->store);
}

/* ---- The member ---- */

/* On a busy machine a lease may end before the other worker gets to send a heartbeat. */
static void call_until_it_answers(tether_agent *agent, const char *to)
{
    tether_error err = {0};
    tether_status st = TETHER_EUNAVAILABLE;
    for (int tries = 0; st == TETHER_EUNAVAILABLE || st == TETHER_EFENCED; tries++) {
        assert_true(tether_test_nap(tries));
        st = tether_rpc_sync(agent, to, "name", NULL, LIMIT, NULL, &err);
    }
    crew_ok(st, &err);
}

/* Asks for an object that a worker of this name is about to make. */
static void name_worker(struct tether__peer *to, uint64_t i)
{
    char name[32];
    struct tether__packed packed;
    Tether__ForkRequest request = TETHER__FORK_REQUEST__INIT;
    Tether__RefId object = {PROTOBUF_C_MESSAGE_INIT(&tether__ref_id__descriptor), 0, 900, i};
    Tether__RefId fork = object;
    snprintf(name, sizeof name, "nobody%llu", (unsigned long long)i);
    request.id = i;
    request.object = &object;
    request.fork = &fork;
    request.parent = name;
    request.timeout_ms = 1;
    assert_int_equal(tether__pack(&packed, &request.base), TETHER_OK);
    tether__peer_lock(to);
    assert_int_equal(tether__stream_send_locked(&to->session->out, TETHER__FRAME_FORK_REQUEST,
                                                packed.bytes, TETHER__SLICE_EMPTY, 0),
                     TETHER_OK);
    tether__peer_unlock(to);
    tether__packed_fini(&packed);
}

static void be_hostile(struct tether_test_rank *self, tether_agent *agent)
{
    call_until_it_answers(agent, "worker");
    struct tether__peer *worker = tether__agent_find_peer(agent, "worker");
    assert_non_null(worker);
    tether_test_mark(self->world, READY);
    for (uint64_t round = 0; round < ROUNDS; round++) {
        for (uint64_t i = 1; i <= NAMES; i++)
            name_worker(worker, round * NAMES + i);
        call_until_it_answers(agent, "worker"); /* it has heard of them by then */
        tether_test_mark(self->world, NAMED);
        tether_test_await_mark(self->world, FORGOTTEN, (int)round + 1);
    }
    tether__peer_release(worker);
}

/* ---- The worker ---- */

struct burden {
    size_t peers, timers, bytes;
};

static struct burden look(tether_agent *agent)
{
    struct burden burden = {.bytes = mallinfo2().uordblks};
    pthread_mutex_lock(&agent->mu);
    burden.peers = agent->n_peers;
    pthread_mutex_unlock(&agent->mu);
    pthread_mutex_lock(&agent->due_mu);
    burden.timers = agent->dues.count;
    pthread_mutex_unlock(&agent->due_mu);
    return burden;
}

static void await_peers(tether_agent *agent, size_t most)
{
    for (int tries = 0; look(agent).peers > most;)
        assert_true(tether_test_nap(tries++));
}

/* Waits until no more peers and timers are left than in `most`. A peer that is dropped leaves the
 * count of peers a moment before its timer is removed. */
static void await_burden(tether_agent *agent, struct burden most)
{
    for (int tries = 0;; tries++) {
        struct burden now = look(agent);
        if (now.peers <= most.peers && now.timers <= most.timers)
            return;
        assert_true(tether_test_nap(tries));
    }
}

static void endure(struct tether_test_rank *self, tether_agent *agent)
{
    tether_test_await_mark(self->world, READY, 1);
    struct burden before = look(agent), most = before, after;
    for (int round = 1; round <= ROUNDS; round++) {
        tether_test_await_mark(self->world, NAMED, round);
        struct burden now = look(agent);
        most = now.peers > most.peers ? now : most;
        await_burden(agent, before);
        tether_test_mark(self->world, FORGOTTEN);
    }
    after = look(agent);
    print_message("peers %zu, at most %zu, then %zu; bytes %zu, %zu, %zu\n", before.peers,
                  most.peers, after.peers, before.bytes, most.bytes, after.bytes);
    assert_true(most.peers > before.peers); /* otherwise the attack did not reach the worker */
    assert_in_range(after.timers, 0, before.timers);
    assert_true(after.bytes < before.bytes + 1024 * 1024);
    tether_buf text = TETHER_BUF_INIT;
    assert_int_equal(tether_agent_metrics(agent, &text), TETHER_OK);
    assert_null(strstr(text.data, "nobody"));
    tether_buf_fini(&text);
}

TETHER_PROC_ROLE(named)
{
    struct place place = take_place(self);
    if (rank == MEMBER)
        be_hostile(self, place.agent);
    else
        endure(self, place.agent);
    tether_test_mark(self->world, DONE);
    tether_test_await_mark(self->world, DONE, 2);
    leave_place(&place);
}

static void names_from_a_hostile_member_are_forgotten(void **state)
{
    (void)state;
    char port[16];
    tether_store_server *server = crew_store_start(port);
    tether_test_procs_end(tether_test_procs_start(named, .arg = port));
    tether_store_server_release(server);
}

/* ---- A worker that is gone ---- */

/* The member is stopped for so long that it is forgotten, and then goes on. Its reference is to an
 * object that was released with its session. */
TETHER_PROC_ROLE(forgotten)
{
    struct place place = take_place(self);
    tether_error err = {0};
    tether_rref *rref = NULL;
    if (rank == MEMBER) {
        rref = tether_remote(place.agent, "worker", "name", NULL, LIMIT);
        crew_ok(tether_rref_to_here(rref, LIMIT, NULL, &err), &err);
        tether_test_mark(self->world, READY);
        tether_test_await_mark(self->world, FORGOTTEN, 1);
        tether_status st = TETHER_OK;
        for (int tries = 0; st == TETHER_OK && tether_test_nap(tries); tries++)
            st = tether_rref_to_here(rref, LIMIT, NULL, &err);
        crew_fails(st, &err, TETHER_EOWNERDIED, "lost");
        call_until_it_answers(place.agent, "worker");
        tether_test_mark(self->world, DONE);
    } else {
        size_t alone = look(place.agent).peers;
        tether_test_await_mark(self->world, READY, 1);
        assert_true(look(place.agent).peers > alone);
        tether_test_signal(self->world, MEMBER, SIGSTOP);
        await_peers(place.agent, alone);
        assert_true(atomic_load(&place.agent->self.forgotten_start) > 0);
        tether_test_mark(self->world, FORGOTTEN);
        tether_test_signal(self->world, MEMBER, SIGCONT);
    }
    tether_test_await_mark(self->world, DONE, 1);
    tether_rref_release(rref);
    leave_place(&place);
}

static void forgotten_worker_comes_back_to_a_new_session(void **state)
{
    (void)state;
    char port[16];
    tether_store_server *server = crew_store_start(port);
    tether_test_procs_end(tether_test_procs_start(forgotten, .arg = port));
    tether_store_server_release(server);
}

/* ---- A worker that was killed ---- */

static bool is_named(tether_store *store, const char *name)
{
    tether_buf list = TETHER_BUF_INIT;
    bool found = false;
    assert_int_equal(tether_store_get(store, "tether/names", LIMIT, &list, NULL), TETHER_OK);
    for (size_t at = 0; at < list.len; at += strlen(list.data + at) + 1)
        found |= strcmp(list.data + at, name) == 0;
    tether_buf_fini(&list);
    return found;
}

TETHER_PROC_ROLE(killed)
{
    struct place place = take_place(self);
    tether_error err = {0};
    if (rank == MEMBER) {
        tether_test_await_mark(self->world, DONE, 1); /* it is killed meanwhile */
    } else {
        call_until_it_answers(place.agent, "member");
        assert_true(is_named(place.store, "member"));
        tether_test_signal(self->world, MEMBER, SIGKILL);
        for (int tries = 0; is_named(place.store, "member"); tries++)
            assert_true(tether_test_nap(tries));
        assert_true(is_named(place.store, "worker"));
        crew_fails(tether_agent_worker(place.agent, "member", &(tether_worker){0}, &err), &err,
                   TETHER_ENOTFOUND, "no worker named 'member'");
    }
    leave_place(&place);
}

static void directory_drops_killed_worker_when_its_peer_forgets_it(void **state)
{
    (void)state;
    char port[16];
    tether_store_server *server = crew_store_start(port);
    tether_test_procs_end(tether_test_procs_start(killed, .arg = port));
    tether_store_server_release(server);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_from_a_hostile_member_are_forgotten),
        cmocka_unit_test(forgotten_worker_comes_back_to_a_new_session),
        cmocka_unit_test(directory_drops_killed_worker_when_its_peer_forgets_it),
    };
    return cmocka_run_group_tests_name("forget", tests, NULL, NULL);
}
