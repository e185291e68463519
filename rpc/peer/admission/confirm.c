/* Asks the directory about claims that a peer has not proved. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/status.h"
#include "base/threads/loop.h"
#include "base/threads/reaper.h"
#include "base/threads/state.h"
#include "rpc/agent.h"
#include "rpc/agent/internal.h"
#include "rpc/group/directory.h"
#include "rpc/peer/admission/confirm.h"
#include "rpc/peer/connect/reach.h"
#include "rpc/peer/peer.h"

#define LOOKUP_TIMEOUT_MS 5000

/* The most look-ups at once for peers that have not proved who they are, so that this worker's own
 * look-ups are not delayed. */
#define MAX_CONFIRMING 4

struct confirmation {
    struct tether__task task;
    tether_agent *agent;
    uint64_t incarnation;
    char name[TETHER_MAX_WORKER_NAME + 1];
};

static void learn_start(tether_agent *agent, const struct tether__worker_record *record)
{
    struct tether__peer *peer;
    if (tether__agent_peer(agent, record->name, &peer, NULL) != TETHER_OK)
        return;
    tether__peer_lock(peer);
    if (record->incarnation >= tether__peer_known_start_locked(peer))
        tether__peer_learn_record_locked(peer, record);
    tether__peer_unlock(peer);
    tether__peer_release(peer);
}

static void run_confirmation(struct tether__task *task)
{
    struct confirmation *confirmation = tether__container_of(task, struct confirmation, task);
    tether_agent *agent = confirmation->agent;
    struct tether__worker_record record;
    tether_status st = TETHER_ESHUTDOWN;
    if (!tether__agent_is_parting(agent))
        st = tether__directory_lookup(&agent->directory, confirmation->name, LOOKUP_TIMEOUT_MS,
                                      &record, NULL);
    if (st == TETHER_OK && strcmp(confirmation->name, agent->name) == 0) {
        if (record.incarnation > agent->self.incarnation)
            tether__agent_replaced(agent);
    } else if (st == TETHER_OK && record.incarnation == confirmation->incarnation) {
        struct tether__reaper *outer = tether__thread_state.reaper;
        tether__thread_state.reaper = &agent->reaper;
        learn_start(agent, &record);
        tether__thread_state.reaper = outer;
    }
    tether__free(confirmation);
    atomic_fetch_sub(&agent->confirming, 1);
}

void tether__agent_confirm(tether_agent *agent, const char *name, uint64_t incarnation)
{
    struct confirmation *confirmation = NULL;
    if (atomic_fetch_add(&agent->confirming, 1) < MAX_CONFIRMING)
        confirmation = tether__calloc(1, sizeof *confirmation);
    if (confirmation) {
        confirmation->task.run = run_confirmation;
        confirmation->agent = agent;
        confirmation->incarnation = incarnation;
        snprintf(confirmation->name, sizeof confirmation->name, "%s", name);
        if (tether__agent_submit(agent, &agent->directory.lookups, &confirmation->task) ==
            TETHER_OK)
            return;
        tether__free(confirmation);
    }
    atomic_fetch_sub(&agent->confirming, 1);
}

void tether__agent_on_replaced(tether_agent *agent)
{
    tether__agent_confirm(agent, agent->name, 0);
}

void tether__agent_replaced(tether_agent *agent)
{
    if (atomic_exchange(&agent->replaced, true))
        return;
    tether__log(TETHER_LOG_WARN, "rpc", "%s: %s", agent->name, TETHER__REPLACED);
    tether__agent_kick(agent, 0);
}
