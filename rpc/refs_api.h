/* The functions of rpc for the reference layer, beside the headers of single units (outbox.h,
 * call.h). That layer reads no field of an agent, a peer or a session, and takes no lock of theirs:
 * tests/layers/seam.py checks that. Functions that end in _locked run in hooks (rpc/refs.h) that
 * hold peer->mu; the others run without a lock, or under the reference layer's own.
 *
 * A session is named by its number here: a session that has ended keeps its number, but no memory.
 */
#ifndef TETHER_RPC_REFS_API_H
#define TETHER_RPC_REFS_API_H

#include <stdatomic.h>

#include "rpc/agent/internal.h"
#include "rpc/peer/peer.h"

struct tether__call;
struct tether__use;

/* ---- The agent ---- */

/* Returns the context that attach() has made. */
static inline void *tether__agent_refs(const tether_agent *agent)
{
    return agent->ext;
}

/* Takes or gives back a count of the agent's memory, which is freed when there are no handles and
 * no counts left. */
static inline void tether__agent_keep_memory(tether_agent *agent)
{
    tether__life_retain(&agent->life);
}

static inline void tether__agent_return_memory(tether_agent *agent)
{
    tether__life_release(&agent->life);
}

/* The options with all defaults filled in, and the clock: immutable. */
static inline const struct tether_agent_opts *tether__agent_options(const tether_agent *agent)
{
    return &agent->opts;
}

static inline const struct tether__clock *tether__agent_clock(const tether_agent *agent)
{
    return agent->clock;
}

/* Returns the name, id and start of this worker, which do not change once the agent has started. */
static inline const struct tether__self *tether__agent_self(const tether_agent *agent)
{
    return &agent->self;
}

/* Returns the poller for threads that wait for no particular worker. */
static inline struct tether__poller *tether__agent_timers(const tether_agent *agent)
{
    return agent->timers;
}

/* Whether functions may run at this worker. They may from the time when start() joins the group
 * until shutdown() says goodbye. */
static inline bool tether__agent_is_running(const tether_agent *agent)
{
    int state = atomic_load(&agent->state);
    return state == TETHER__AGENT_RUNNING || state == TETHER__AGENT_JOINING ||
           state == TETHER__AGENT_STOPPING;
}

/* Enters a gate for public calls that only read the agent's state; this is allowed after
 * shutdown(), too. False: the agent is being released, and end_visit() must not be called. */
static inline bool tether__agent_visit(tether_agent *agent)
{
    return tether__call_gate_enter(&agent->visits);
}

static inline void tether__agent_end_visit(tether_agent *agent)
{
    tether__call_gate_leave(&agent->visits);
}

/* Registers an inline function of the library itself, which other workers can call. */
static inline tether_status tether__agent_serve(tether_agent *agent,
                                                const char *name,
                                                tether_fn *fn,
                                                void *userdata,
                                                tether_error *reterr)
{
    return tether__registry_add(
        &agent->registry, name,
        &(struct tether__function){.fn = fn, .run_inline = true, .userdata = userdata}, reterr);
}

/* ---- A peer ---- */

/* Returns the reference layer's struct for the peer; NULL: none. The lock of that layer must be
 * held. */
static inline void *tether__peer_refs(const struct tether__peer *peer)
{
    return peer->ref_peer;
}

static inline void tether__peer_set_refs(struct tether__peer *peer, void *ref_peer)
{
    peer->ref_peer = ref_peer;
}

static inline tether_agent *tether__peer_agent(const struct tether__peer *peer)
{
    return peer->agent;
}

static inline const char *tether__peer_name(const struct tether__peer *peer)
{
    return peer->name;
}

static inline bool tether__peer_is_self(const struct tether__peer *peer)
{
    return peer->is_self;
}

/* Returns the peer's worker id; UINT32_MAX: the peer was neither met nor found in the directory. */
static inline uint32_t tether__peer_id(const struct tether__peer *peer)
{
    return atomic_load(&peer->id);
}

/* Returns the start of the peer that this worker met last; 0: none. Read it before
 * tether__peer_fences(). */
static inline uint64_t tether__peer_start(const struct tether__peer *peer)
{
    return atomic_load(&peer->incarnation);
}

/* Returns the sum of the fences that both ends have counted with that start. */
static inline uint64_t tether__peer_fences(const struct tether__peer *peer)
{
    return atomic_load(&peer->fences);
}

/* Whether `start` is the start of this peer, and no other worker has taken the number. */
static inline bool tether__peer_has_start(const struct tether__peer *peer, uint64_t start)
{
    return start == tether__peer_start(peer) && !atomic_load(&peer->start.lost);
}

/* Returns the number of the present session. It does not change while peer->mu is held. */
static inline uint64_t tether__peer_session(const struct tether__peer *peer)
{
    return atomic_load(&peer->session_number);
}

/* Predicts the next session with the peer: its start, and its number of fences. */
void tether__peer_next_session(struct tether__peer *peer,
                               uint64_t *ret_start,
                               uint64_t *ret_made_in);

/* Connects to the peer unless its lease is watched already, so that its death is noticed. If the
 * present session is with an earlier start than `start`, asks the directory for the later start. */
void tether__peer_watch(struct tether__peer *peer, uint64_t start);

/* Queues a frame on the outgoing stream. */
tether_status tether__peer_queue_locked(struct tether__peer *peer,
                                        uint32_t kind,
                                        tether_bytes header);

/* Notes that the call uses `use` from now on, unless the call has ended (peer/calls/slots.h). */
void tether__call_tie(struct tether__call *call, struct tether__use use);

#endif
