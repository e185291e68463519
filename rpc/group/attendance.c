/* Makes the workers of a static group wait for each other through the store. See attendance.h. */
#include "rpc/group/attendance.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "rpc/agent/internal.h"
#include "rpc/peer/admission/confirm.h"
#include "rpc/peer/connect/reach.h"
#include "rpc/peer/peer.h"
#include "rpc/peer/table.h"

/* When a waiting worker first checks whether the missing workers are alive. The interval between
 * checks then grows up to a fraction of the lease, because the wait may last for days. */
#define LOOK_AROUND_MS 200
#define LOOKS_PER_LEASE 4

/* To how many of the missing workers one check connects. */
#define MAX_ASKED 32

/* ---- The attendance ---- */

tether_status tether__attendance_init(struct tether__attendance *attendance,
                                      const tether_agent *agent)
{
    size_t max = (size_t)agent->world_size;
    *attendance =
        (struct tether__attendance){.workers = tether__calloc(max, sizeof *attendance->workers),
                                    .keys = tether__calloc(max, sizeof *attendance->keys),
                                    .arrived = tether__calloc(max, sizeof *attendance->arrived)};
    if (attendance->workers && attendance->keys && attendance->arrived)
        return TETHER_OK;
    tether__attendance_fini(attendance);
    return TETHER_ENOMEM;
}

void tether__attendance_fini(struct tether__attendance *attendance)
{
    tether__free(attendance->workers);
    tether__free(attendance->keys);
    tether__free(attendance->arrived);
    *attendance = (struct tether__attendance){0};
}

uint64_t tether__peer_start_locked(const struct tether__peer *peer)
{
    return peer->pairing.peer_incarnation > peer->dialer.record.incarnation
               ? peer->pairing.peer_incarnation
               : peer->dialer.record.incarnation;
}

static void name_key(char key[TETHER__BARRIER_KEY],
                     const char *barrier,
                     int rank,
                     uint64_t incarnation)
{
    snprintf(key, TETHER__BARRIER_KEY, "%s/%d.%llu", barrier, rank,
             (unsigned long long)incarnation);
}

static void name_keys(struct tether__attendance *attendance, const char *barrier)
{
    for (size_t i = 0; i < attendance->n; i++) {
        struct tether__attendance_entry *worker = &attendance->workers[i];
        name_key(worker->key, barrier, worker->rank, worker->incarnation);
        attendance->keys[i] = worker->key;
    }
}

void tether__attendance_update(struct tether__attendance *attendance, tether_agent *agent)
{
    struct tether__peer *peer;
    attendance->n = 0;
    for (uint64_t at = 0; (peer = tether__agent_next_peer(agent, &at));) {
        tether__peer_lock(peer);
        int rank = peer->dialer.record.name[0] ? (int)peer->dialer.record.id : -1;
        if (!peer->is_self && !peer->fenced && rank >= 0 && rank < agent->world_size &&
            attendance->n < (size_t)agent->world_size)
            attendance->workers[attendance->n++] =
                (struct tether__attendance_entry){rank, tether__peer_start_locked(peer), ""};
        tether__peer_unlock(peer);
        tether__peer_release(peer);
    }
}

/* ---- Waiting for the other workers ---- */

/* Connects to the worker of `rank`, so that its lease runs and shows whether it is alive. */
static void ask_for_life(tether_agent *agent, int rank)
{
    struct tether__peer *peer;
    for (uint64_t at = 0; (peer = tether__agent_next_peer(agent, &at));) {
        tether__peer_lock(peer);
        if (peer->dialer.record.name[0] && (int)peer->dialer.record.id == rank)
            tether__peer_connect_locked(peer);
        tether__peer_unlock(peer);
        tether__peer_release(peer);
    }
}

/* Removes the workers that have arrived, so that a later look asks about fewer. */
static void strike_arrived(struct tether__attendance *attendance)
{
    size_t n = 0;
    for (size_t i = 0; i < attendance->n; i++)
        if (attendance->arrived[attendance->workers[i].rank] != attendance->workers[i].incarnation)
            attendance->workers[n++] = attendance->workers[i];
    attendance->n = n;
}

/* Looks for ranks that have not arrived, beginning at a rank that changes with `look`. Returns one
 * of them; -1 if all have arrived, or if the store did not answer (`ret_why` has its error). */
static int look_around(tether_agent *agent,
                       struct tether__attendance *attendance,
                       unsigned look,
                       tether_error *ret_why)
{
    int missing = -1;
    size_t n_missing = 0;
    for (size_t i = 0; i < attendance->n && n_missing < MAX_ASKED; i++) {
        size_t at = (i + (size_t)look * MAX_ASKED) % attendance->n;
        const struct tether__attendance_entry *worker = &attendance->workers[at];
        bool here = false;
        if (tether_store_check(agent->directory.store, &attendance->keys[at], 1, LOOK_AROUND_MS,
                               &here, ret_why) != TETHER_OK)
            continue;
        if (here) {
            attendance->arrived[worker->rank] = worker->incarnation;
        } else {
            ask_for_life(agent, worker->rank);
            n_missing++;
            missing = missing < 0 ? worker->rank : missing;
        }
    }
    return missing;
}

static tether_status await_all(tether_agent *agent,
                               const char *barrier,
                               struct tether__attendance *attendance,
                               int64_t deadline,
                               tether_error *reterr)
{
    int max_wait_ms = agent->opts.lease_ms / LOOKS_PER_LEASE;
    int wait_ms = LOOK_AROUND_MS;
    for (unsigned look = 0;; look++) {
        tether_error why;
        tether__attendance_update(attendance, agent);
        strike_arrived(attendance);
        name_keys(attendance, barrier);
        tether_status st = tether_store_wait(agent->directory.store, attendance->keys,
                                             attendance->n, wait_ms, &why);
        if (st == TETHER_OK)
            return TETHER_OK;
        if (st != TETHER_ETIMEOUT)
            return tether_error_set(reterr, st, "%s", why.message);
        if (atomic_load(&agent->replaced))
            return tether_error_set(reterr, TETHER_EFENCED, TETHER__REPLACED);
        if (atomic_load(&agent->cut_short))
            return tether_error_set(reterr, TETHER_ESHUTDOWN, TETHER__CUT_SHORT);
        why.code = TETHER_OK;
        int missing = look_around(agent, attendance, look, &why);
        wait_ms = wait_ms < max_wait_ms / 2 ? wait_ms * 2 : wait_ms;
        if (tether__clock_now_ns(agent->clock) < deadline)
            continue;
        if (missing >= 0)
            return tether_error_set(reterr, TETHER_ETIMEOUT,
                                    "rank %d did not reach '%s' within shutdown_timeout_ms",
                                    missing, barrier);
        if (why.code != TETHER_OK)
            return tether_error_set(reterr, why.code, "waiting for all ranks at '%s': %s", barrier,
                                    why.message);
    }
}

/* Adds up the numbers of all ranks. If the store does not answer, fails: counting 0 instead would
 * shut the group down although calls are in flight. */
static tether_status sum_of(tether_agent *agent,
                            const struct tether__attendance *attendance,
                            int left_ms,
                            int64_t *ret_sum,
                            tether_error *reterr)
{
    int64_t sum = 0;
    tether_status st = TETHER_OK;
    for (size_t i = 0; st == TETHER_OK && i < attendance->n; i++) {
        tether_buf number = TETHER_BUF_INIT;
        st = tether_store_try_get(agent->directory.store, attendance->keys[i], left_ms, &number,
                                  reterr);
        if (st == TETHER_OK && number.data)
            sum += strtoll(number.data, NULL, 10);
        tether_buf_fini(&number);
    }
    if (st == TETHER_OK)
        *ret_sum = sum;
    return st;
}

tether_status tether__barrier_arrive(tether_agent *agent,
                                     const char *barrier,
                                     int64_t number,
                                     tether_error *reterr)
{
    char key[TETHER__BARRIER_KEY];
    char text[24];
    name_key(key, barrier, agent->rank, agent->self.incarnation);
    snprintf(text, sizeof text, "%lld", (long long)number);
    return tether_store_set(agent->directory.store, key, tether_bytes_str(text),
                            agent->opts.shutdown_timeout_ms, reterr);
}

tether_status tether__barrier_await(tether_agent *agent,
                                    const char *barrier,
                                    int64_t deadline,
                                    int64_t *ret_sum,
                                    tether_error *reterr)
{
    struct tether__attendance attendance;
    tether_status st = tether__attendance_init(&attendance, agent);
    if (st != TETHER_OK)
        return tether_error_set(reterr, st, "no memory to wait for %d workers", agent->world_size);
    st = await_all(agent, barrier, &attendance, deadline, reterr);
    if (st == TETHER_OK && ret_sum) {
        tether__attendance_update(&attendance, agent);
        name_keys(&attendance, barrier);
        st = sum_of(agent, &attendance, agent->opts.shutdown_timeout_ms, ret_sum, reterr);
    }
    tether__attendance_fini(&attendance);
    return st;
}

tether_status tether__barrier_pass(tether_agent *agent,
                                   const char *barrier,
                                   int64_t number,
                                   int64_t *ret_sum,
                                   tether_error *reterr)
{
    int64_t others = 0;
    tether_status st = tether__barrier_arrive(agent, barrier, number, reterr);
    if (st == TETHER_OK)
        st = tether__barrier_await(agent, barrier, TETHER__NEVER, ret_sum ? &others : NULL, reterr);
    if (st == TETHER_OK && ret_sum)
        *ret_sum = number + others;
    return st;
}

/* ---- Removing a barrier ---- */

tether_status tether__barrier_forget_key(tether_agent *agent, const char *key, int64_t deadline)
{
    bool was_there;
    return tether_store_delete(agent->directory.store, key,
                               tether__deadline_left_ms(agent->clock, deadline), &was_there, NULL);
}

bool tether__barrier_has_all(tether_agent *agent,
                             const char *barrier,
                             struct tether__attendance *attendance,
                             int64_t deadline)
{
    bool all = false;
    name_keys(attendance, barrier);
    return tether_store_check(agent->directory.store, attendance->keys, attendance->n,
                              tether__deadline_left_ms(agent->clock, deadline), &all,
                              NULL) == TETHER_OK &&
           all;
}

tether_status tether__barrier_forget(tether_agent *agent,
                                     const char *barrier,
                                     struct tether__attendance *attendance,
                                     int64_t deadline)
{
    char own[TETHER__BARRIER_KEY];
    name_keys(attendance, barrier);
    name_key(own, barrier, agent->rank, agent->self.incarnation);
    tether_status st = tether__barrier_forget_key(agent, own, deadline);
    for (size_t i = 0; st == TETHER_OK && i < attendance->n; i++)
        st = tether__barrier_forget_key(agent, attendance->keys[i], deadline);
    return st;
}
