/* The reference context of one agent: the six tables of the protocol, and the rules for them.
 *
 *   owners            id → object that lives here. An entry exists while anything counts on it.
 *   forks             fork id, object and holder → session of the holder; an object's first one is
 *                     in its entry
 *   awaited           id → requests about an object that has not been made yet ("pending owners")
 *   users             fork id → reference held here, pending, confirmed or broken
 *   pending children  fork id → reference that was passed on, pinned until the receiver accepts
 *   watermarks        creator's start → how far its creations have come in, to tell "gone" from
 * "not yet"
 *
 * One count decides: `refs` of an owner entry counts handles, forks and the creation under way;
 * that of a user reference counts handles, pins (pending children) and the confirmation under way.
 * When it comes to 0 the entry is collected: an owner's object is destroyed, a user's owner is
 * told.
 *
 * Every item that concerns a peer is also in one of that peer's lists (struct tether__ref_peer),
 * so that a fence finds the items that it ends without a search. No operation walks a table.
 *
 * The context has no clock, socket or thread of its own. Work that must not run under the lock
 * comes out as a list of *collected* references; tether__refs_run_collected() does it.
 *
 * Lock rule: `mu` is a leaf. It may be taken with the lock of a peer held, never the other way
 * round; nothing is sent, released or called back while it is held.
 */
#ifndef TETHER_RREF_CONTEXT_H
#define TETHER_RREF_CONTEXT_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/heap.h"
#include "base/list.h"
#include "base/map.h"
#include "rpc/call/call.h"
#include "rpc/refs_api.h"
#include "rref/entry.h"
#include "rref/id.h"
#include "rref/session.h"
#include "rref/waiting.h"

struct tether__use;

struct tether__refs {
    /* immutable */
    /* the memory stays valid, but the agent itself has been released once `detached` is set */
    tether_agent *agent;
    const struct tether_agent_opts *opts;
    const struct tether__clock *clock;
    const struct tether__self *self; /* immutable once the agent has started */
    _Atomic uint32_t refs;
    /* how many waiting requests may be handled while the lock is held once; tests change it */
    size_t waiting_slice;
    /* any thread */
    _Atomic uint64_t next_counter;
    _Atomic bool detached;
    /* fork-requests without a reply, and deletes and accepts that gather for peers: the
     * `pending_futures` of tether_rref_counts() */
    _Atomic size_t n_under_way;
    /* under mu */
    struct tether__map owners, users, children, watermarks, names;
    /* all forks except the first of each object, which is in the object's entry */
    struct tether__map forks;
    struct tether__map awaited;       /* tether__awaited: objects that requests wait for */
    struct tether__map waiting_forks; /* the fork-requests among the waiting requests, by fork */
    struct tether__heap deadlines;    /* the deadlines of waiting requests */
    struct tether__list own;          /* tether_rref.node: objects that were made by this worker */
    /* peers whose `ended` lists still have items of a fenced session */
    struct tether__list fencing;
    /* awaited objects that have come, with requests that are not answered yet */
    struct tether__list answering;
    /* peers whose session was lost, with requests for their objects that are not checked yet */
    struct tether__list losses;
    struct tether__list creators; /* peers that are to create objects for which requests wait */
    /* watermarks that have passed objects for which requests still wait */
    struct tether__list passed;
    struct tether__list retired; /* watermarks of starts that have ended, oldest first */
    size_t n_retired;
    size_t n_waiting;
    size_t n_forks, n_pending, n_confirmed, n_broken;
    tether_future *drained; /* done when no reference or message is left that shutdown waits for;
                               NULL: no shutdown waits */
    bool draining;
    pthread_mutex_t mu;
};

struct tether__refs *tether__refs_of(tether_agent *agent);
/* called when the last count of `refs` is released */
void tether__refs_destroy(struct tether__refs *refs);

static inline struct tether__refs *tether__refs_retain(struct tether__refs *refs)
{
    atomic_fetch_add_explicit(&refs->refs, 1, memory_order_relaxed);
    return refs;
}

static inline void tether__refs_release(struct tether__refs *refs)
{
    if (atomic_fetch_sub_explicit(&refs->refs, 1, memory_order_acq_rel) == 1)
        tether__refs_destroy(refs);
}

static inline int64_t tether__refs_now(const struct tether__refs *refs)
{
    return tether__clock_now_ns(refs->clock);
}

/* Whether a message that names this start of a worker means us. 0: its sender has not met the
 * owner, so any start is meant. */
static inline bool tether__refs_is_me(const struct tether__refs *refs, uint64_t owner_incarnation)
{
    return !owner_incarnation || owner_incarnation == refs->self->incarnation;
}

tether_rref_id tether__refs_new_id(struct tether__refs *refs);

/* A text that references share: a type, or where something was made. */
struct tether__name {
    tether_bytes key; /* points to `text` */
    size_t refs;      /* under mu */
    char text[];
};

/* Returns our own copy of a text that often repeats; give it back with name_put. NULL: no memory.
 */
const char *tether__name_get_locked(struct tether__refs *refs, const char *text);
const char *tether__name_get_bytes_locked(struct tether__refs *refs, tether_bytes key);
void tether__name_put_locked(struct tether__refs *refs, const char *text); /* NULL is fine */
const char *tether__name_retain_locked(const char *text);                  /* NULL is fine */

#define TETHER__MAX_SITE 255 /* how many bytes of a site received from another worker are kept */

/* Counts messages of the protocol for tether_rref_counts(): `n` is 1 when a message begins, -1
 * when it has ended. */
static inline void tether__refs_count_message(struct tether__refs *refs, int n)
{
    atomic_fetch_add_explicit(&refs->n_under_way, (size_t)n, memory_order_relaxed);
}

/* A future that has failed already. Never NULL. */
tether_future *tether__failed_future(tether_status status, const tether_error *error);

/* A call of a method or a fetch: the peer that it goes to, and the fields that name the object. */
struct tether__rref_use {
    struct tether__peer *peer; /* retained */
    struct tether__call_target target;
    Tether__RefId id;
};
tether_status tether__rref_begin_use(tether_rref *rref,
                                     const char *method,
                                     struct tether__rref_use *ret_use,
                                     tether_error *reterr);
void tether__rref_end_use(struct tether__rref_use *use);
/* Makes `call`, which uses `rref`, fail if the object is still being created and its creation
 * fails. */
void tether__rref_tie(tether_rref *rref, struct tether__call *call);
struct tether__use tether__rref_use_of(const tether_rref *rref);

tether_status tether__refs_register_dump(struct tether__refs *refs, tether_error *reterr);

void tether__refs_check_drained_locked(struct tether__refs *refs, tether_future **ret_drained);

#endif
