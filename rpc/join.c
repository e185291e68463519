/* Joining the group: this start gets its number, makes itself known, and, in a static group, waits
 * until every rank has.
 *
 * Happy path: the store tells the run and counts the start (its incarnation) → the record with our
 * address goes into the directory → each rank's record is read in turn, waiting for those that are
 * not there yet.
 *
 * Failure modes: two ranks of one name, a later start of the same name: the error says so. Not
 * everybody comes in time: it names who is missing. A rank whose entry is that of an earlier run of
 * the group, which has left, counts as missing until it is back.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/log.h"
#include "rpc/agent_internal.h"

/* How often a rank that has left is looked for again; the store tells nobody that it is back. */
#define LOOK_AGAIN_MS 20
#define LOOK_AGAIN_MAX_MS 200

tether_status tether__agent_count_start(tether_agent *agent, int64_t deadline, tether_error *reterr)
{
    struct tether__directory *directory = &agent->directory;
    int left = tether__deadline_left_ms(agent->clock, deadline);
    if (agent->world_size > TETHER__FIRST_DYNAMIC_ID)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "world_size is %d, but a static group has at most %d workers",
                                agent->world_size, TETHER__FIRST_DYNAMIC_ID);
    if (agent->opts.observe) {
        /* Later than that of any observer before it, so that it may take its place at a worker. */
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
    if (st == TETHER_OK && agent->rank < 0) { /* a worker that comes back keeps its id */
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
                                           .world_size = (uint32_t)agent->world_size};
    snprintf(record.name, sizeof record.name, "%s", agent->name);
    snprintf(record.address, sizeof record.address, "%s", agent->self.address);
    if (agent->near.transport)
        snprintf(record.unix_address, sizeof record.unix_address, "%s",
                 agent->near.transport->address);
    snprintf(record.host, sizeof record.host, "%s", agent->directory.host);
    return record;
}

/* ---- The ranks of a static group ---- */

typedef char worker_name[TETHER_MAX_WORKER_NAME + 1];

static void nap(int ms)
{
    nanosleep(&(struct timespec){0, ms * 1000000L}, NULL);
}

/* Learns the name of a rank, waiting until it has had one ("" : it has left again). `names` has
 * those of the ranks before it. */
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

static tether_status other_world(const tether_agent *agent,
                                 const struct tether__worker_record *record,
                                 tether_error *reterr)
{
    return tether_error_set(reterr, TETHER_EINVAL,
                            "rank %u ('%s') was started with world_size %u, and this worker, rank "
                            "%d, with %d: give every worker the same world_size (WORLD_SIZE)",
                            record->id, record->name, record->world_size, agent->rank,
                            agent->world_size);
}

/* Looks once; TETHER_ENOTFOUND: it has left, and is not back yet. */
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
    if (st == TETHER_OK && ret_record->world_size != (uint32_t)agent->world_size) {
        other_world(agent, ret_record, reterr);
        /* One that started later is of our group; an earlier one may be left over. */
        return ret_record->incarnation > agent->self.incarnation ? TETHER_EINVAL : TETHER_ENOTFOUND;
    }
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
        if (tether__clock_now_ns(agent->clock) >= deadline)
            return names[rank][0] && record.world_size &&
                           record.world_size != (uint32_t)agent->world_size
                       ? other_world(agent, &record, reterr)
                       : TETHER_ETIMEOUT;
        nap(pause_ms);
        pause_ms = pause_ms * 2 < LOOK_AGAIN_MAX_MS ? pause_ms * 2 : LOOK_AGAIN_MAX_MS;
    }
    if (st == TETHER_OK)
        st = tether__agent_peer(agent, names[rank], &peer, reterr);
    if (st != TETHER_OK)
        return st;
    pthread_mutex_lock(&peer->mu);
    /* It may have said hello meanwhile. */
    if (peer->record.incarnation <= record.incarnation) {
        peer->record = record;
        atomic_store(&peer->id, record.id);
    }
    pthread_mutex_unlock(&peer->mu);
    tether__peer_release(peer);
    return TETHER_OK;
}

static bool has_come(tether_agent *agent, int rank, worker_name *names)
{
    return name_rank(agent, rank, names, 0, NULL) == TETHER_OK && names[rank][0];
}

/* Which ranks have not come, for the error message: not those that have come and given up, because
 * their time was over too. If one of those hosted the store nobody knows any more: then not even
 * this worker is there. */
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

/* Whether those who came wait for another number of ranks: then that is why some are missing. */
static tether_status name_other_world(tether_agent *agent, worker_name *names, tether_error *reterr)
{
    struct tether__worker_record record;
    for (int rank = 0; rank < agent->world_size && rank < 16; rank++)
        if (names[rank][0] &&
            tether__directory_lookup(&agent->directory, names[rank], 0, &record, NULL) ==
                TETHER_OK &&
            record.world_size && record.world_size != (uint32_t)agent->world_size)
            return other_world(agent, &record, reterr);
    return TETHER_ETIMEOUT;
}

static tether_status gather(tether_agent *agent, int64_t deadline, tether_error *reterr)
{
    worker_name *names = tether__calloc((size_t)agent->world_size, sizeof *names);
    if (!names)
        return tether_error_set(reterr, TETHER_ENOMEM, "no memory for the names of %d workers",
                                agent->world_size);
    tether_status st = TETHER_OK;
    /* First all the names: two of a kind give up, and who is late should still see why. */
    for (int rank = 0; st == TETHER_OK && rank < agent->world_size; rank++)
        st = name_rank(agent, rank, names, deadline, reterr);
    for (int rank = 0; st == TETHER_OK && rank < agent->world_size; rank++)
        st = find_rank(agent, rank, names, deadline, reterr);
    if (st == TETHER_ETIMEOUT)
        name_missing(agent, names, reterr);
    if (st == TETHER_ETIMEOUT)
        st = name_other_world(agent, names, reterr);
    tether__free(names);
    return st;
}

/* ---- In and out ---- */

tether_status tether__agent_join(tether_agent *agent, int64_t deadline, tether_error *reterr)
{
    struct tether__worker_record record = own_record(agent);
    if (agent->opts.observe)
        return TETHER_OK;
    agent->published = true; /* perhaps: what fails may have been done all the same */
    tether_status st =
        tether__directory_publish(&agent->directory, &record, agent->rank,
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
    tether__lookups_stop(&agent->directory.lookups); /* none may put the record back */
    agent->published = false;
    tether__directory_withdraw(&agent->directory, &record, for_good ? agent->rank : -1, timeout_ms,
                               NULL);
}

/* ---- A store that was lost ---- */

#define CHECK_TIMEOUT_MS 2000

/* The latest start that this worker has heard of. */
static uint64_t latest_start(tether_agent *agent)
{
    uint64_t latest = agent->self.incarnation;
    struct tether__peer *peer;
    for (size_t i = 0; (peer = tether__agent_peer_at(agent, i)); i++) {
        uint64_t start = tether__peer_known_start(peer);
        if (start > latest && !peer->is_observer) /* their starts are not counted */
            latest = start;
        tether__peer_release(peer);
    }
    return latest;
}

static void run_store_check(struct tether__task *task)
{
    tether_agent *agent = tether__container_of(task, tether_agent, store_check);
    struct tether__directory *directory = &agent->directory;
    tether_error why = {0};
    tether_status st = TETHER_ESHUTDOWN;
    if (atomic_load(&agent->state) == TETHER__AGENT_RUNNING)
        st = tether__directory_check_run(directory, CHECK_TIMEOUT_MS, &why);
    if (st == TETHER_ENOTFOUND) {
        struct tether__worker_record record = own_record(agent);
        st = tether__directory_restore(directory, latest_start(agent), CHECK_TIMEOUT_MS, &why);
        if (st == TETHER_OK)
            st = tether__directory_publish(directory, &record, agent->rank, CHECK_TIMEOUT_MS, &why);
        tether__log(TETHER_LOG_WARN, "rpc", "%s: the store has lost its keys; %s", agent->name,
                    st == TETHER_OK ? "this worker has registered again" : why.message);
    } else if (st == TETHER_OK && !atomic_load(&agent->replaced)) {
        /* Another worker may have put the run back: then only the own record is missing. */
        struct tether__worker_record record = own_record(agent), found;
        st = tether__directory_lookup(directory, agent->name, CHECK_TIMEOUT_MS, &found, &why);
        if (st == TETHER_ENOTFOUND)
            tether__directory_publish(directory, &record, agent->rank, CHECK_TIMEOUT_MS, &why);
        else if (st == TETHER_OK && found.incarnation > agent->self.incarnation)
            tether__agent_replaced(agent);
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
    bool is_simulated = agent->opts.hooks && agent->opts.hooks->submit;
    if (due == 0 || is_simulated || agent->opts.observe ||
        atomic_load(&agent->state) != TETHER__AGENT_RUNNING)
        return TETHER__NEVER;
    if (now < due)
        return due;
    due = now + agent->opts.lease_ms * TETHER__NS_PER_MS;
    atomic_store(&agent->store_check_due, due);
    if (!atomic_exchange(&agent->checking_store, true)) {
        agent->store_check.run = run_store_check;
        if (tether__agent_submit_lookup(agent, &agent->store_check) != TETHER_OK)
            atomic_store(&agent->checking_store, false);
    }
    return due;
}
