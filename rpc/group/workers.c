/* Returns names, ids and addresses of this worker and of the others, and their states. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "base/threads/state.h"
#include "rendezvous/store.h"
#include "rpc/agent.h"
#include "rpc/agent/internal.h"
#include "rpc/group/directory.h"
#include "rpc/peer/connect/outage.h"
#include "rpc/peer/peer.h"
#include "rpc/peer/session.h"

#define LOOKUP_TIMEOUT_MS 10000

const char *tether_agent_name(const tether_agent *agent)
{
    return agent->name;
}

uint32_t tether_agent_id(const tether_agent *agent)
{
    return agent->self.id;
}

int tether_agent_rank(const tether_agent *agent)
{
    return agent->rank;
}

int tether_agent_world_size(const tether_agent *agent)
{
    return agent->world_size;
}

const char *tether_agent_address(const tether_agent *agent)
{
    return agent->self.address ? agent->self.address : "";
}

const char *tether_agent_metrics_address(const tether_agent *agent)
{
    return agent->metrics_address;
}

tether_store *tether_agent_store(const tether_agent *agent)
{
    return agent->store;
}

/* Enters the agent for a look-up, which may wait for the store. On success the caller leaves
 * afterwards. */
static tether_status enter(tether_agent *agent, tether_error *reterr)
{
    if (tether__thread_state.must_not_block)
        return tether_error_set(reterr, TETHER_EDEADLK,
                                "looking up workers may wait for the store: not in an inline "
                                "function or a callback");
    if (tether__agent_enter(agent)) {
        if (atomic_load(&agent->state) == TETHER__AGENT_RUNNING)
            return TETHER_OK;
        tether__agent_exit(agent);
    }
    return tether_error_set(reterr, TETHER_ESHUTDOWN,
                            "looking up workers: the agent is not running: do it between "
                            "tether_agent_start() and tether_agent_shutdown()");
}

const char *tether_worker_state_name(tether_worker_state state)
{
    static const char *const names[] = {
        [TETHER_WORKER_UNKNOWN] = "unknown",
        [TETHER_WORKER_CONNECTED] = "connected",
        [TETHER_WORKER_LOST] = "lost",
        [TETHER_WORKER_DEAD] = "dead",
    };
    return (size_t)state < TETHER__ARRAY_LEN(names) ? names[state] : "unknown";
}

static tether_worker_state state_of(tether_agent *agent, const struct tether__worker_record *record)
{
    tether_worker_state state = TETHER_WORKER_UNKNOWN;
    struct tether__peer *peer = tether__agent_find_peer(agent, record->name);
    if (strcmp(record->name, agent->name) == 0)
        state = TETHER_WORKER_CONNECTED;
    else if (peer) {
        tether__peer_lock(peer);
        if (peer->outage.kind != TETHER__NO_OUTAGE && record->incarnation <= peer->outage.start)
            state = peer->outage.kind == TETHER__DEAD ? TETHER_WORKER_DEAD : TETHER_WORKER_LOST;
        else if ((peer->session->out.up || peer->session->in.up) &&
                 record->incarnation == peer->pairing.peer_incarnation)
            state = TETHER_WORKER_CONNECTED;
        tether__peer_unlock(peer);
    }
    if (peer)
        tether__peer_release(peer);
    return state;
}

static void fill_worker(tether_agent *agent,
                        tether_worker *worker,
                        const struct tether__worker_record *record)
{
    worker->state = state_of(agent, record);
    memcpy(worker->name, record->name, sizeof worker->name);
    worker->id = record->id;
    worker->incarnation = record->incarnation;
    memcpy(worker->address, record->address, sizeof worker->address);
}

tether_status tether_agent_worker(tether_agent *agent,
                                  const char *name,
                                  tether_worker *ret_worker,
                                  tether_error *reterr)
{
    struct tether__worker_record record;
    tether_status st = enter(agent, reterr);
    if (st != TETHER_OK)
        return st;
    if (!name || !name[0] || strlen(name) > TETHER_MAX_WORKER_NAME)
        st = tether_error_set(
            reterr, TETHER_EINVAL,
            "looking up a worker: its name is missing or too long: give 1 to %d characters",
            TETHER_MAX_WORKER_NAME);
    if (st == TETHER_OK)
        st = tether__directory_lookup(&agent->directory, name, LOOKUP_TIMEOUT_MS, &record, reterr);
    if (st == TETHER_OK)
        fill_worker(agent, ret_worker, &record);
    tether__agent_exit(agent);
    return st;
}

static int by_id(const void *a, const void *b)
{
    uint32_t x = ((const tether_worker *)a)->id, y = ((const tether_worker *)b)->id;
    return (x > y) - (x < y);
}

tether_status tether_agent_workers(tether_agent *agent,
                                   tether_worker **ret_workers,
                                   size_t *ret_n,
                                   tether_error *reterr)
{
    struct tether__worker_record *records = NULL;
    size_t n = 0;
    tether_status st = enter(agent, reterr);
    if (st != TETHER_OK)
        return st;
    st = tether__directory_list(&agent->directory, LOOKUP_TIMEOUT_MS, &records, &n, reterr);
    if (st != TETHER_OK) {
        tether__agent_exit(agent);
        return st;
    }
    tether_worker *workers = tether__calloc(n ? n : 1, sizeof *workers);
    if (workers) {
        for (size_t i = 0; i < n; i++)
            fill_worker(agent, &workers[i], &records[i]);
        qsort(workers, n, sizeof *workers, by_id);
        *ret_workers = workers;
        *ret_n = n;
    }
    tether__free(records);
    tether__agent_exit(agent);
    return workers ? TETHER_OK
                   : tether_error_set(reterr, TETHER_ENOMEM, "no memory for the list of workers");
}

void tether_workers_free(tether_worker *workers)
{
    tether__free(workers);
}

tether_status tether_agent_worker_by_id(tether_agent *agent,
                                        uint32_t id,
                                        tether_worker *ret_worker,
                                        tether_error *reterr)
{
    tether_worker *workers;
    size_t n;
    tether_status st = tether_agent_workers(agent, &workers, &n, reterr);
    if (st != TETHER_OK)
        return st;
    st = TETHER_ENOTFOUND;
    for (size_t i = 0; i < n && st != TETHER_OK; i++)
        if (workers[i].id == id) {
            *ret_worker = workers[i];
            st = TETHER_OK;
        }
    tether_workers_free(workers);
    return st == TETHER_OK ? st
                           : tether_error_set(reterr, st, "no worker of the group has id %u", id);
}
