/* Joining the group: this start gets its number, enters its record into the directory, and, in a
 * static group, waits until every rank has done so.
 *
 * Happy path: read the run from the store and draw the number of this start (its incarnation) →
 * enter the record with this worker's address into the directory → read the record of each rank in
 * turn, waiting for those that have not joined yet.
 *
 * Failure modes: joining fails if two ranks have one name, if a later start of this name has
 * joined, if a live worker has this name (dynamic group, probe.h), or if world sizes differ
 * (sizes.h). If ranks are missing at the deadline, the error names them. A rank counts as missing
 * as well if its worker has left, until that is started again.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "rpc/agent/internal.h"
#include "rpc/group/group.h"
#include "rpc/group/probe.h"
#include "rpc/group/sizes.h"
#include "rpc/peer/admission/confirm.h"
#include "rpc/peer/admission/starts.h"
#include "rpc/peer/peer.h"
#include "rpc/peer/table.h"
#include "rpc/transport/transport.h"

/* The pauses between two look-ups of a rank that has left. They poll, since the store cannot notify
 * a waiter that the rank has joined again. */
#define LOOK_AGAIN_MS 20
#define LOOK_AGAIN_MAX_MS 200

/* How often a worker that waits for a rank compares world sizes, and with how many ranks at once.
 * Both are limited so that a thousand waiting workers do not overload the store. */
#define COMPARE_MS 250
#define COMPARE_MAX_MS 2000
#define COMPARE_AT_ONCE 4

tether_status tether__agent_count_start(tether_agent *agent, int64_t deadline, tether_error *reterr)
{
    struct tether__directory *directory = &agent->directory;
    int left = tether__deadline_left_ms(agent->clock, deadline);
    if (agent->world_size > TETHER__FIRST_DYNAMIC_ID)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "world_size is %d, but a static group has at most %d workers",
                                agent->world_size, TETHER__FIRST_DYNAMIC_ID);
    if (agent->opts.observe) {
        /* An observer takes its start number from the clock: it may not write to the store. */
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        agent->self.incarnation =
            (uint64_t)now.tv_sec * (uint64_t)TETHER__NS_PER_S + (uint64_t)now.tv_nsec;
        return tether__directory_find_run(directory, left, reterr);
    }
    tether_status st = tether__directory_enter_run(directory, left, reterr);
    if (st == TETHER_OK)
        st = tether__directory_count_start(directory, left, &agent->self.incarnation, reterr);
    agent->self.id = (uint32_t)agent->rank;
    /* a worker that joins again gets the id that it had */
    if (st == TETHER_OK && agent->rank < 0) {
        struct tether__worker_record old;
        bool was_here =
            tether__directory_lookup(directory, agent->name, left, &old, NULL) == TETHER_OK &&
            old.id >= TETHER__FIRST_DYNAMIC_ID;
        agent->self.id =
            was_here ? old.id : TETHER__FIRST_DYNAMIC_ID + (uint32_t)agent->self.incarnation;
    }
    return st;
}

static struct tether__worker_record own_record(const tether_agent *agent)
{
    struct tether__worker_record record = {.id = agent->self.id,
                                           .incarnation = agent->self.incarnation,
                                           .address_is_own = agent->address_is_own,
                                           .world_size = (uint32_t)agent->world_size};
    snprintf(record.name, sizeof record.name, "%s", agent->name);
    snprintf(record.address, sizeof record.address, "%s", agent->self.address);
    if (agent->local.transport)
        snprintf(record.unix_address, sizeof record.unix_address, "%s",
                 agent->local.transport->address);
    snprintf(record.host, sizeof record.host, "%s", agent->directory.host);
    return record;
}

/* ---- The ranks of a static group ---- */

typedef char worker_name[TETHER_MAX_WORKER_NAME + 1];

static void nap(int ms)
{
    nanosleep(&(struct timespec){0, ms * 1000000L}, NULL);
}

/* Reads the name of a rank into names[rank], waiting until a worker has joined with it; "": that
 * worker has left again. Fails if a lower rank in `names` has the same name. */
static tether_status name_rank(tether_agent *agent,
                               int rank,
                               worker_name *names,
                               int64_t deadline,
                               tether_error *reterr)
{
    tether_status st = tether__directory_name_of_rank(
        &agent->directory, rank, tether__deadline_left_ms(agent->clock, deadline), names[rank],
        reterr);
    for (int i = 0; st == TETHER_OK && names[rank][0] && i < rank; i++)
        if (strcmp(names[i], names[rank]) == 0)
            st = tether__directory_namesakes((uint32_t)i, (uint32_t)rank, names[rank], reterr);
    return st;
}

/* Whether `record` is that of a later start with another world_size. The record of an earlier start
 * may be left over from another attempt to start the group. If it is not, that worker sees the
 * record of this one and reports the difference. */
static bool differs(const tether_agent *agent, const struct tether__worker_record *record)
{
    return record->world_size != (uint32_t)agent->world_size &&
           record->incarnation > agent->self.incarnation;
}

/* Reads the records of COMPARE_AT_ONCE ranks, from `*at` on, and skips ranks that have not joined.
 * Returns TETHER_EINVAL if one has another world_size, else TETHER_OK. */
static tether_status compare_sizes(tether_agent *agent,
                                   worker_name *names,
                                   int *at,
                                   tether_error *reterr)
{
    struct tether__worker_record record;
    for (int n = 0; n < COMPARE_AT_ONCE && n < agent->world_size; n++, (*at)++) {
        int rank = *at % agent->world_size;
        if (name_rank(agent, rank, names, 0, NULL) == TETHER_OK && names[rank][0] &&
            tether__directory_lookup(&agent->directory, names[rank], 0, &record, NULL) ==
                TETHER_OK &&
            record.id == (uint32_t)rank && differs(agent, &record))
            return tether__sizes_clash(agent, &record, reterr);
    }
    return tether__sizes_check(agent, reterr);
}

/* Like name_rank(). While the rank has not joined, compares world sizes from time to time. */
static tether_status await_name(tether_agent *agent,
                                int rank,
                                worker_name *names,
                                int64_t deadline,
                                tether_error *reterr)
{
    int at = agent->rank + 1;
    for (int wait_ms = COMPARE_MS;; wait_ms *= wait_ms < COMPARE_MAX_MS ? 2 : 1) {
        int64_t until = tether__deadline_in(agent->clock, wait_ms);
        tether_status st =
            name_rank(agent, rank, names, until < deadline ? until : deadline, reterr);
        if (st != TETHER_ETIMEOUT)
            return st;
        if (compare_sizes(agent, names, &at, reterr) != TETHER_OK)
            return TETHER_EINVAL;
        if (tether__clock_now_ns(agent->clock) >= deadline)
            return TETHER_ETIMEOUT;
    }
}

/* Reads the record of a rank once. TETHER_ENOTFOUND: its worker has left and has not joined again.
 */
static tether_status look_for_rank(tether_agent *agent,
                                   int rank,
                                   worker_name *names,
                                   int64_t deadline,
                                   struct tether__worker_record *ret_record,
                                   tether_error *reterr)
{
    tether_status st = name_rank(agent, rank, names, deadline, reterr);
    if (st == TETHER_OK && !names[rank][0])
        return TETHER_ENOTFOUND;
    if (st == TETHER_OK)
        st = tether__directory_lookup(&agent->directory, names[rank],
                                      tether__deadline_left_ms(agent->clock, deadline), ret_record,
                                      reterr);
    if (st == TETHER_OK && ret_record->id != (uint32_t)rank)
        st = tether__directory_namesakes(ret_record->id, (uint32_t)rank, names[rank], reterr);
    if (st == TETHER_OK && differs(agent, ret_record))
        return tether__sizes_clash(agent, ret_record, reterr);
    if (st == TETHER_OK && ret_record->world_size != (uint32_t)agent->world_size)
        return TETHER_ENOTFOUND;
    return st;
}

static tether_status find_rank(tether_agent *agent,
                               int rank,
                               worker_name *names,
                               int64_t deadline,
                               tether_error *reterr)
{
    struct tether__worker_record record;
    struct tether__peer *peer;
    tether_status st;
    int pause_ms = LOOK_AGAIN_MS;
    record.world_size = 0;
    while ((st = look_for_rank(agent, rank, names, deadline, &record, reterr)) ==
           TETHER_ENOTFOUND) {
        if (tether__sizes_check(agent, reterr) != TETHER_OK)
            return TETHER_EINVAL;
        if (tether__clock_now_ns(agent->clock) >= deadline)
            return names[rank][0] && record.world_size &&
                           record.world_size != (uint32_t)agent->world_size
                       ? tether__sizes_differ(agent, &record, reterr)
                       : TETHER_ETIMEOUT;
        nap(pause_ms);
        pause_ms = pause_ms * 2 < LOOK_AGAIN_MAX_MS ? pause_ms * 2 : LOOK_AGAIN_MAX_MS;
    }
    if (st == TETHER_OK)
        st = tether__agent_peer(agent, names[rank], &peer, reterr);
    if (st != TETHER_OK)
        return st;
    tether__peer_lock(peer);
    /* Do not replace what a later start, which may have connected meanwhile, has told. */
    if (peer->dialer.record.incarnation <= record.incarnation) {
        tether__dialer_learn(&peer->dialer, &record);
        /* if this fails, it is tried again when a stream comes up */
        tether__start_take_locked(peer, record.incarnation, NULL);
        tether__peer_end_unlisted_locked(peer);
        atomic_store(&peer->id, record.id);
    }
    tether__peer_unlock(peer);
    tether__peer_release(peer);
    return TETHER_OK;
}

static bool has_come(tether_agent *agent, int rank, worker_name *names)
{
    return name_rank(agent, rank, names, 0, NULL) == TETHER_OK && names[rank][0];
}

/* Finds the missing ranks for the error message. Ranks that had joined may have timed out as well,
 * and one of them may have hosted the store. Then the store does not answer, not even for this
 * worker's own rank, and the missing ranks are unknown. */
static void name_missing(tether_agent *agent, worker_name *names, tether_error *reterr)
{
    tether_buf list = TETHER_BUF_INIT;
    int missing = 0;
    for (int rank = 0; rank < agent->world_size && missing < 16; rank++)
        if (!has_come(agent, rank, names) &&
            tether_buf_printf(&list, "%s%d", missing++ ? ", " : "", rank) != TETHER_OK)
            break;
    if (has_come(agent, agent->rank, names))
        tether_error_set(reterr, TETHER_ETIMEOUT,
                         "rank %s of %d did not join within %d ms: is it running, and does it use "
                         "the same meeting point?",
                         list.len ? list.data : "?", agent->world_size,
                         agent->opts.start_timeout_ms);
    else
        tether_error_set(reterr, TETHER_ETIMEOUT,
                         "not all of %d ranks joined within %d ms; which ones cannot be told, the "
                         "store does not answer: see what the worker that hosts it says",
                         agent->world_size, agent->opts.start_timeout_ms);
    tether_buf_fini(&list);
}

static tether_status gather(tether_agent *agent, int64_t deadline, tether_error *reterr)
{
    worker_name *names = tether__calloc((size_t)agent->world_size, sizeof *names);
    if (!names)
        return tether_error_set(reterr, TETHER_ENOMEM, "no memory for the names of %d workers",
                                agent->world_size);
    tether_status st = TETHER_OK;
    /* Read all names before any record: two ranks with one name make joining fail here. A late rank
     * reads the same names, so it fails for the same reason. */
    for (int rank = 0; st == TETHER_OK && rank < agent->world_size; rank++)
        st = await_name(agent, rank, names, deadline, reterr);
    for (int rank = 0; st == TETHER_OK && rank < agent->world_size; rank++)
        st = find_rank(agent, rank, names, deadline, reterr);
    if (st == TETHER_ETIMEOUT)
        name_missing(agent, names, reterr);
    tether__free(names);
    return st;
}

/* ---- Joining and leaving ---- */

struct entrant {
    tether_agent *agent;
    int64_t deadline;
};

static tether_status may_replace(void *userdata,
                                 const struct tether__worker_record *other,
                                 tether_error *reterr)
{
    const struct entrant *entrant = userdata;
    return tether__agent_may_replace(entrant->agent, other, entrant->deadline, reterr);
}

/* Whether to ask a worker of the same name whether it is alive before replacing it. A rank of a
 * static group always replaces its earlier start. The simulation has no thread that could wait for
 * an answer. */
static bool asks_first(const tether_agent *agent)
{
    bool is_simulated = agent->opts.hooks && agent->opts.hooks->submit;
    return agent->world_size == 0 && !agent->opts.take_over && !is_simulated;
}

tether_status tether__agent_join(tether_agent *agent, int64_t deadline, tether_error *reterr)
{
    struct tether__worker_record record = own_record(agent);
    struct entrant entrant = {agent, deadline};
    if (agent->opts.observe)
        return TETHER_OK;
    /* set even if publish() fails: the store may have carried the request out */
    agent->published = true;
    tether_status st = tether__directory_publish(
        &agent->directory, &record, agent->rank, asks_first(agent) ? may_replace : NULL, &entrant,
        tether__deadline_left_ms(agent->clock, deadline), reterr);
    if (st == TETHER_OK && agent->world_size > 0)
        st = gather(agent, deadline, reterr);
    return st;
}

void tether__agent_leave(tether_agent *agent, bool for_good, int timeout_ms)
{
    if (!agent->published)
        return;
    struct tether__worker_record record = own_record(agent);
    /* no look-up thread may put the record back after this */
    tether__pool_stop(&agent->directory.lookups);
    agent->published = false;
    tether__directory_withdraw(&agent->directory, &record, for_good ? agent->rank : -1, timeout_ms,
                               NULL);
}

/* ---- A store that has lost its keys ---- */

#define CHECK_TIMEOUT_MS 2000

/* Returns the latest start that the directory has named. Start numbers that workers claim are
 * ignored: a false, huge one would use up the numbers, which end at UINT32_MAX. */
static uint64_t latest_start(tether_agent *agent)
{
    uint64_t latest = agent->self.incarnation;
    struct tether__peer *peer;
    for (uint64_t at = 0; (peer = tether__agent_next_peer(agent, &at));) {
        tether__peer_lock(peer);
        if (peer->dialer.record.name[0] && peer->dialer.record.incarnation > latest)
            latest = peer->dialer.record.incarnation;
        tether__peer_unlock(peer);
        tether__peer_release(peer);
    }
    return latest;
}

/* Returns the number from which the counter of starts continues after a loss: the present time in
 * seconds, or the latest known start if that is higher. No earlier start is above it unless, since
 * the previous loss, workers have started more often than once a second. */
static uint64_t restored_starts(tether_agent *agent)
{
    const struct tether__agent_hooks *hooks = agent->opts.hooks;
    uint64_t latest = latest_start(agent);
    int64_t wall = hooks && hooks->wall_clock ? hooks->wall_clock(hooks->userdata) : time(NULL);
    return wall > 0 && latest < (uint64_t)wall ? (uint64_t)wall : latest;
}

/* Whether this worker's record belongs into the directory; also while shutdown() waits for the
 * other workers. */
static bool is_member(tether_agent *agent)
{
    int state = atomic_load(&agent->state);
    return state == TETHER__AGENT_RUNNING || state == TETHER__AGENT_STOPPING;
}

/* Enters this worker's record into the directory again, unless a later start has one there. */
static tether_status register_again(tether_agent *agent, tether_error *reterr)
{
    struct tether__worker_record record = own_record(agent);
    return tether__directory_publish(&agent->directory, &record, agent->rank, NULL, NULL,
                                     CHECK_TIMEOUT_MS, reterr);
}

/* Checks this worker's own record in a store that has the run. After a loss another worker may have
 * put the run back. Then this worker's record is missing, or a stale start of it has entered its
 * own. */
static void check_own_record(tether_agent *agent)
{
    struct tether__worker_record found;
    uint64_t mine = agent->self.incarnation;
    tether_status st =
        tether__directory_lookup(&agent->directory, agent->name, CHECK_TIMEOUT_MS, &found, NULL);
    if (st == TETHER_ENOTFOUND || (st == TETHER_OK && found.incarnation < mine))
        register_again(agent, NULL);
    else if (st == TETHER_OK && found.incarnation > mine)
        tether__agent_replaced(agent);
}

static void run_store_check(struct tether__task *task)
{
    tether_agent *agent = tether__container_of(task, tether_agent, store_check);
    tether_error why = {0};
    tether_status st = TETHER_ESHUTDOWN;
    /* A start that was replaced must not change the directory. */
    if (is_member(agent) && !atomic_load(&agent->replaced))
        st = tether__directory_check_run(&agent->directory, CHECK_TIMEOUT_MS, &why);
    if (st == TETHER_ENOTFOUND) {
        st = tether__directory_restore(&agent->directory, restored_starts(agent), CHECK_TIMEOUT_MS,
                                       &why);
        if (st == TETHER_OK)
            st = register_again(agent, &why);
        tether__log(TETHER_LOG_WARN, "rpc", "%s: the store has lost its keys; %s", agent->name,
                    st == TETHER_OK ? "this worker has registered again" : why.message);
    } else if (st == TETHER_OK) {
        check_own_record(agent);
    }
    atomic_store(&agent->checking_store, false);
}

void tether__agent_store_check_at(tether_agent *agent, int64_t due)
{
    atomic_store(&agent->store_check_due, due);
    tether__agent_kick(agent, due);
}

int64_t tether__agent_store_tick(tether_agent *agent, int64_t now)
{
    int64_t due = atomic_load(&agent->store_check_due);
    if (due == 0 || agent->opts.observe || !is_member(agent))
        return TETHER__NEVER;
    if (now < due)
        return due;
    due = now + agent->opts.lease_ms * TETHER__NS_PER_MS;
    atomic_store(&agent->store_check_due, due);
    if (!atomic_exchange(&agent->checking_store, true)) {
        agent->store_check.run = run_store_check;
        if (tether__agent_submit(agent, &agent->directory.lookups, &agent->store_check) !=
            TETHER_OK)
            atomic_store(&agent->checking_store, false);
    }
    return due;
}
