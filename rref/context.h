/* The reference context of one agent: the six tables of the protocol, and the rules for them.
 *
 *   owners            id → object that lives here. An entry exists while anything counts on it.
 *   forks             fork id and object → holder (a peer in one session); an object's first one is
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
 * All that has to do with one peer is also in lists of that peer's (struct tether__ref_peer), so
 * that a fence finds what it ends without a search. No operation walks a table.
 *
 * No clock, socket or thread of its own. What is to be done outside of the lock comes out as a list
 * of *collected* references and is done by tether__refs_settle().
 *
 * Lock rule: `mu` is a leaf. It may be taken with peer->mu held, never the other way round; nothing
 * is sent, released or called back while it is held.
 */
#ifndef TETHER_RREF_CONTEXT_H
#define TETHER_RREF_CONTEXT_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/heap.h"
#include "base/list.h"
#include "base/map.h"
#include "base/work_list.h"
#include "rpc/agent_internal.h"
#include "rpc/value_internal.h"
#include "rref/rref.h"

/* A peer in one session with it: what a fence ends. */
struct tether__party {
    struct tether__peer *peer; /* lives as long as the context */
    uint64_t epoch;
};

/* A reference that somebody else holds to an object of ours. */
struct tether__fork {
    struct tether__fork_key {
        tether_rref_id id;
        tether_rref *object; /* NULL: an object's inline fork that is not in use */
    } key;
    struct tether__party holder;
    struct tether__list by_holder; /* in a list of the holder's */
    struct tether__list by_object; /* of the object's inline fork: the head of all the others */
};

/* A text that references share: a type, or where something was made. */
struct tether__name {
    tether_bytes key; /* points to `text` */
    size_t refs;      /* under mu */
    char text[];
};

/* Why references broke: one for all that a fence breaks. */
struct tether__cause {
    _Atomic uint32_t refs;
    tether_error error;
};

/* What this worker has to do with one peer, in lists. An item stays in its list, whatever sessions
 * come and go; its party says which session it is of. A fence moves the lists to `ended` and then
 * goes through them in slices. Items of a later session go back to `live`. */
struct tether__ref_lists {
    struct tether__list forks;    /* tether__fork.by_holder: of our objects, held by the peer */
    struct tether__list users;    /* tether_rref.node: references here to objects of the peer's */
    struct tether__list children; /* tether__pending_child.node: references passed on to the peer */
    struct tether__list expected; /* tether_rref.node: objects that the peer is to have made here */
    struct tether__list asked;    /* tether__parked.by_asker: requests of the peer's that wait */
};

struct tether__ref_peer {
    struct tether__peer *peer;
    struct tether__ref_lists live, ended;
    size_t n_asked;              /* items of both `asked` lists */
    struct tether__list fencing; /* in refs->fencing while `ended` has items */
    struct tether__list awaited; /* tether__parked.by_maker: for objects that the peer is to make */
    struct tether__list makers;  /* in refs->makers while `awaited` has items */
    uint64_t looked_at_start, looked_at_fences; /* of the peer, when `awaited` was last looked at */
    struct tether__cause *why; /* of the last fence; NULL: there was no memory for it */
    tether_status why_code;
    tether_rref *deletes; /* that need not be told any more, linked by `next`: to be freed */
    struct tether__accept *accepts;
};

/* "I have it": made when the reference arrives, so that it cannot fail when it is due. */
struct tether__accept {
    struct tether__accept *next;
    tether_rref_id fork;
    struct tether__party parent;
};

struct tether__notice {
    tether_rref_lost_fn *fn;
    void *userdata;
    struct tether__notice *next;
};

/* There may be millions: a user is allocated without what only an owner has. */
struct tether_rref {
    struct tether__rider rider;
    struct tether__refs *context; /* retained */
    tether_rref_id id;
    _Atomic uint32_t refs;
    bool is_owner; /* immutable */
    /* under mu */
    uint8_t state;               /* tether_rref_state; see tether__rref_state_locked() */
    uint8_t cause_code;          /* tether_status, with BROKEN */
    bool in_table : 1;           /* owners or users */
    bool lost : 1;               /* the owner is: notices have been or are being given */
    bool site_is_name : 1;       /* `site` is of a struct tether__name, not static */
    bool known_to_owner : 1;     /* of a user: the owner must be told when we let go */
    const char *type;            /* of a struct tether__name; NULL: not known, or bytes */
    const char *site;            /* where it was made */
    struct tether__cause *cause; /* with BROKEN; NULL when there was no memory for it */
    struct tether__list node;    /* of the owner's (user) or maker's (expected object) lists, or of
                                  * refs->own */
    tether_future *settled;      /* done when confirmed (user) or made (owner), or broken; NULL */
    struct tether__notice
        *notices; /* a circle: the last one, whose `next` is the first; NULL: none */
    union {
        struct tether_rref *next; /* in a list of collected ones, or of deletes for a peer */
        struct tether__work work; /* when it is collected, or its creation has failed */
    };
    union {
        struct {
            tether_rref_id fork; /* the key of users */
            struct tether__party owner;
            _Atomic uint32_t owner_incarnation; /* 0: the one that we first meet; read without mu */
            uint32_t owner_id; /* UINT32_MAX: not known, ask tether__rref_owner_id() */
        } user;
        struct {
            tether_value *value;       /* NULL until made, or when nothing was returned */
            struct tether__fork first; /* most objects have one fork: it needs no memory */
            uint32_t n_forks;
            bool passed_on; /* there has been a fork */
            bool making;    /* its function has not returned */
            bool expected;  /* nor has its call arrived: `making` counts for nothing yet */
            struct tether__party maker; /* who makes the call; only while it is expected */
        } owner;
    };
};

struct tether__pending_child {
    tether_rref_id fork; /* the key */
    struct tether_rref *parent;
    struct tether__party child;
    struct tether__list node; /* of the child's lists */
};

/* A request about an object that is not there yet, or not made yet. It is in several lists, so that
 * whatever answers it finds it without a search. */
struct tether__parked {
    struct tether__list node;               /* of its object, or of decided requests */
    struct tether__list by_asker, by_maker; /* of a tether__ref_peer */
    struct tether__heap_node by_deadline;   /* in refs->deadlines, unless it has none */
    struct tether__parked_fork {
        tether_rref_id id;
        struct tether__peer *from;
    } fork; /* of a fork-request: the key of refs->waiting_forks */
    bool in_waiting_forks;
    enum {
        TETHER__PARKED_FORK,   /* a fork-request */
        TETHER__PARKED_FETCH,  /* a fetch */
        TETHER__PARKED_TARGET, /* a method call */
        TETHER__PARKED_HERE,   /* to_here() on the owner itself */
    } what;
    struct tether__party from;
    uint64_t request; /* to be answered: of a fork, a fetch */
    tether_rref_id object;
    struct tether__awaited *awaited;
    struct tether__peer *maker; /* of the object, when it is not there yet; NULL: not known */
    uint64_t made_in;           /* with a maker: the session that the object is to come in */
    uint32_t n_not_there;       /* how often the directory has not had the maker since */
    int64_t deadline;
    struct tether__resume *resume; /* of a target */
    tether_future *future;         /* of to_here() */
    tether_rref *held;             /* one count of the object, if it is there */
    /* the answer, once it is decided and the request is out of the lists: */
    struct tether__work work;
    tether_status status;
    const char *why; /* NULL: as `held` is broken with */
};

/* An object that requests wait for. */
struct tether__awaited {
    tether_rref_id id;                   /* the key */
    struct tether__list forks;           /* answered when the object is there */
    struct tether__list uses;            /* answered when it has been made */
    struct tether__watermark *mark;      /* whose heap it is in; NULL: the object has come */
    struct tether__heap_node by_counter; /* of `mark` */
};

/* How far the creations of one start of a creator have come in. */
struct tether__watermark {
    uint64_t key;                /* the creator's incarnation */
    uint64_t counter;            /* 0: none has come, but some object is awaited */
    struct tether__heap awaited; /* of objects that have not come, by their counters */
    struct tether__list passed;  /* in refs->passed while some of them are behind `counter` */
};

struct tether__refs {
    /* immutable */
    tether_agent *agent; /* its memory is kept; it has been released once this is `detached` */
    _Atomic uint32_t refs;
    /* any thread */
    _Atomic uint64_t next_counter;
    _Atomic uint64_t n_told; /* user-deletes and child-accepts, ever */
    _Atomic bool detached;
    _Atomic size_t n_under_way; /* fork-requests, and what has gathered for peers: see counts */
    /* under mu */
    struct tether__map owners, users, children, watermarks, names;
    struct tether__map forks;         /* all but the one in each owner entry */
    struct tether__map awaited;       /* objects that requests wait for */
    struct tether__map waiting_forks; /* of the fork-requests that wait */
    struct tether__heap deadlines;    /* of requests that wait */
    struct tether__list own;          /* tether_rref.node: objects that were made by this worker */
    struct tether__list fencing;      /* ref_peers with ended items */
    struct tether__list makers;       /* ref_peers that are to make what somebody waits for */
    struct tether__list passed;       /* watermarks that have passed what somebody waits for */
    size_t n_parked;
    size_t n_forks, n_pending, n_confirmed, n_broken;
    tether_future *calm; /* done when what shutdown waits for has come; NULL: nobody waits */
    bool draining;
    pthread_mutex_t mu;
};

/* What comes out of the lock. */
struct tether__collected {
    struct tether_rref *first; /* linked by `next`: nobody refers to them any more */
};

struct tether__refs *tether__refs_of(tether_agent *agent);
struct tether__refs *tether__refs_retain(struct tether__refs *refs);
void tether__refs_release(struct tether__refs *refs);

static inline bool tether__id_equal(tether_rref_id a, tether_rref_id b)
{
    return a.creator == b.creator && a.incarnation == b.incarnation && a.counter == b.counter;
}

tether_rref_id tether__refs_new_id(struct tether__refs *refs);

/* Our own copy of a text that comes again and again, to be given back. NULL: no memory. */
const char *tether__name_get_locked(struct tether__refs *refs, const char *text);
const char *tether__name_get_bytes_locked(struct tether__refs *refs, tether_bytes key);
void tether__name_put_locked(struct tether__refs *refs, const char *text); /* NULL is fine */
const char *tether__name_retain_locked(const char *text);                  /* NULL is fine */

#define TETHER__MAX_SITE 255 /* bytes of a site that came from another worker; the rest is cut */

/* The worker id of the owner of a user's reference; UINT32_MAX: nobody has met it yet. */
static inline uint32_t tether__rref_owner_id(const tether_rref *rref)
{
    if (rref->user.owner_id != UINT32_MAX || !rref->user.owner.peer)
        return rref->user.owner_id;
    return atomic_load(&rref->user.owner.peer->id);
}

/* Counts messages of the protocol that begin (1) or have ended (-1), for tether_rref_counts(). */
static inline void tether__refs_count_message(struct tether__refs *refs, int n)
{
    atomic_fetch_add_explicit(&refs->n_under_way, (size_t)n, memory_order_relaxed);
}

/* Whether the session has ended, and everything of it been released: nothing more may be held in
 * its name. A message that was on a thread's hands meanwhile finds out so. */
static inline bool tether__party_is_over_locked(struct tether__party party)
{
    return party.epoch < party.peer->ext_first_epoch;
}

/* The lists of a peer. NULL: no memory. */
struct tether__ref_peer *tether__ref_peer_locked(struct tether__peer *peer);

struct tether__cause *tether__cause_new(const tether_error *error); /* NULL: no memory */
struct tether__cause *tether__cause_retain(struct tether__cause *cause);
void tether__cause_release(struct tether__cause *cause); /* NULL is fine */

/* ---- context.c: entries and their counts ---- */

/* A new entry, of which the caller holds one count. NULL: no memory. */
tether_rref *tether__rref_alloc(struct tether__refs *refs, bool is_owner, tether_rref_id id);

/* Gives a count back; the last one puts the entry into `collected`. */
void tether__rref_drop_locked(tether_rref *rref, struct tether__collected *collected);

void tether__rref_free(tether_rref *rref); /* a collected one, when all is told */

/* Does what collected entries leave to be done: destroys objects, tells owners. No lock held. */
void tether__refs_settle(struct tether__refs *refs, struct tether__collected *collected);

tether_rref *tether__owner_find_locked(struct tether__refs *refs, tether_rref_id id);
/* A new entry for an object that `maker` is about to have made here; the caller holds one count.
 * NULL: no memory. */
tether_rref *tether__owner_expect_locked(struct tether__refs *refs,
                                         tether_rref_id id,
                                         struct tether__party maker);
tether_status tether__owner_add_locked(tether_rref *rref); /* into the table, if it is not there */
/* TETHER_EEXIST: another peer, or another session, holds a fork with this id; nothing is counted.
 * TETHER_EFENCED, TETHER_ENOMEM. */
tether_status tether__fork_add_locked(tether_rref *rref,
                                      tether_rref_id fork,
                                      struct tether__party holder);
/* False: there is no such fork of that peer's. */
bool tether__fork_remove_locked(tether_rref *rref,
                                tether_rref_id fork,
                                struct tether__peer *peer,
                                struct tether__collected *collected);
/* Takes out a fork, wherever it is. */
void tether__fork_drop_locked(struct tether__fork *fork, struct tether__collected *collected);
/* Walks the forks of an object: starts with `fork` NULL; NULL: that was the last. */
struct tether__fork *tether__fork_next_locked(tether_rref *rref, struct tether__fork *fork);

tether_status tether__user_add_locked(tether_rref *rref);
void tether__user_set_state_locked(tether_rref *rref, tether_rref_state state);

/* The state as everybody may see it: a reference of a session that has ended is broken from that
 * moment on, also when its fence has not come to it yet. */
tether_rref_state tether__rref_state_locked(const tether_rref *rref);

/* The reference cannot be used any more. Gives the future that waits for it, to be finished. */
tether_future *tether__rref_break_locked(tether_rref *rref, tether_status status, const char *why);
/* The same, with a cause that is shared (NULL: there is no memory for one). */
tether_future *tether__rref_break_with_locked(tether_rref *rref,
                                              tether_status status,
                                              struct tether__cause *cause);

tether_status tether__child_add_locked(struct tether__refs *refs,
                                       tether_rref *parent,
                                       tether_rref_id fork,
                                       struct tether__party child);
void tether__child_drop_locked(struct tether__refs *refs,
                               struct tether__pending_child *child,
                               struct tether__collected *collected);
void tether__child_remove_locked(struct tether__refs *refs,
                                 tether_rref_id fork,
                                 struct tether__peer *peer,
                                 struct tether__collected *collected);

/* Whether an object that is not in the table may still come, or has been and gone. */
bool tether__may_come_locked(struct tether__refs *refs, tether_rref_id id);
/* Whoever waits for an object that the watermark has passed is answered by tether__unpark_passed().
 */
tether_status tether__watermark_raise_locked(struct tether__refs *refs, tether_rref_id id);
/* The watermark of an id's creator, made if there is none. NULL: no memory. */
struct tether__watermark *tether__watermark_locked(struct tether__refs *refs, tether_rref_id id);
/* Frees a watermark that says nothing and that nobody is in. */
void tether__watermark_forget_locked(struct tether__refs *refs, struct tether__watermark *mark);

/* Finishes a future that came out of the lock (NULL: nothing) and gives it back. */
void tether__future_settle(tether_future *future, tether_status status, const tether_error *error);

/* The cause of a broken reference, or that the agent has stopped. */
tether_status tether__rref_usable_locked(const tether_rref *rref, tether_error *reterr);

/* ---- send.c ---- */
tether_status tether__refs_pack_locked(void *ext,
                                       struct tether__peer *peer,
                                       const tether_value *value,
                                       bool in_reply,
                                       struct tether__ref_pack *ret_pack,
                                       tether_error *reterr);
void tether__refs_undo_locked(void *ext, struct tether__peer *peer, struct tether__ref_pack *pack);
void tether__refs_pack_fini(struct tether__ref_pack *pack);
tether_status tether__refs_check(void *ext,
                                 const tether_value *value,
                                 bool sending,
                                 tether_error *reterr);
void tether__refs_before_write_locked(void *ext,
                                      struct tether__peer *peer,
                                      struct tether__link *link);
/* Tells the owner, with others, that `rref` is gone; frees it when that is queued. */
void tether__refs_queue_delete(tether_rref *rref);
uint64_t tether__refs_told(void *ext, bool *ret_under_way);
/* Tells the parent, with others. TAKES `accept` (NULL: nothing). No lock held. */
void tether__refs_queue_accept(struct tether__accept *accept);
/* The session `epoch` is over: what has gathered for it is not to be told any more. Gives it,
 * linked by `next`, to be freed. */
void tether__refs_drop_gathered(struct tether__peer *peer,
                                uint64_t epoch,
                                tether_rref **ret_deletes,
                                struct tether__accept **ret_accepts);

/* ---- receive.c ---- */
enum tether__outcome tether__refs_take(void *ext,
                                       struct tether__peer *peer,
                                       uint64_t epoch,
                                       Tether__Ref **refs,
                                       size_t n,
                                       tether_value *value,
                                       struct tether__arrival **ret_arrival);
void tether__refs_untake(struct tether__arrival *arrival);
enum tether__outcome tether__refs_confirm(struct tether__arrival *arrival,
                                          struct tether__resume *resume,
                                          tether_error *reterr);
enum tether__outcome tether__refs_frame(void *ext,
                                        struct tether__peer *peer,
                                        uint64_t epoch,
                                        const struct tether__inbound *message,
                                        size_t unread);

/* ---- remote.c ---- */
enum tether__outcome tether__refs_remote_arrived(void *ext,
                                                 struct tether__peer *peer,
                                                 uint64_t epoch,
                                                 const Tether__Call *call,
                                                 void **ret_result,
                                                 tether_error *reterr);
enum tether__outcome tether__refs_on_announce(struct tether__refs *refs,
                                              struct tether__party maker,
                                              const Tether__Announce *message);
void tether__refs_remote_done(void *result,
                              tether_status status,
                              const char *error,
                              tether_value *value);
void tether__refs_result_type(void *result, const char *type);
struct tether__rider *tether__refs_hold_target(void *ext,
                                               const Tether__RefId *target,
                                               uint64_t owner_incarnation);
enum tether__outcome tether__refs_find_target(void *ext,
                                              struct tether__peer *peer,
                                              uint64_t epoch,
                                              const Tether__RefId *target,
                                              uint64_t owner_incarnation,
                                              int64_t deadline,
                                              struct tether__resume *resume,
                                              tether_value **ret_object,
                                              tether_error *reterr);
/* The object `rref` has been made, or not. */
void tether__owner_made(tether_rref *rref,
                        tether_status status,
                        const char *error,
                        tether_value *value);

/* Takes out the notice that was attached first; NULL: there is none. */
struct tether__notice *tether__notice_take_locked(tether_rref *rref);

bool tether__rref_is_no_memory(const tether_rref *rref); /* the one for when there is none */

/* ---- rref.c ---- */

/* A call about the object: where it goes, and what it says of the object. */
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
/* If the object is still being made, `call` (of a use of it) fails when that does. */
void tether__rref_tie(tether_rref *rref, struct tether__call *call);
struct tether__use tether__rref_use_of(const tether_rref *rref);

/* ---- parked.c ---- */
/* Has a request wait. `there` (NULL: not there yet) is kept until it is answered. False: no memory.
 */
/* Whether a request of the peer's may wait: a peer has so many calls at most under way, so an
 * honest one never runs into this. */
bool tether__may_park_locked(struct tether__refs *refs, struct tether__peer *peer);
bool tether__park_locked(struct tether__refs *refs,
                         const struct tether__parked *request,
                         tether_rref *there);
/* Whether the object will not come, since its maker was restarted, or the session that it was to
 * come in has ended, before we met the maker again. (What ends while we know it is a fence's.) */
bool tether__parked_in_vain(const struct tether__parked *parked);
/* Answers what was parked for this object, now that it is there (or made, or gone). */
void tether__unpark(struct tether__refs *refs, tether_rref_id object);
/* Answers what was parked for objects that have been and gone, as watermarks show. */
void tether__unpark_passed(struct tether__refs *refs);
/* Who asked for this fork does not want it any more: it must not come to be one. */
void tether__unpark_fork_locked(struct tether__refs *refs,
                                tether_rref_id fork,
                                struct tether__peer *peer);
/* Takes a request out of all lists but the one that `node` is in then: for the answer. */
void tether__unpark_one_locked(struct tether__refs *refs,
                               struct tether__parked *parked,
                               struct tether__list *decided,
                               tether_status status,
                               const char *why);
void tether__answer_decided(struct tether__list *decided);
int64_t tether__refs_tick(void *ext, int64_t now);
/* Meets the maker of an object that somebody waits for, or finds out that it cannot be met: the
 * session, or its end, tells whether the object may still come. `start`: the one that makes it. A
 * session with an earlier start tells nothing: the directory is asked for the later one. */
void tether__maker_watch(struct tether__peer *maker, uint64_t start);
/* The session has ended; `not_there`: because the directory does not have the peer. Looks again at
 * requests for objects that the peer is to make. */
void tether__unpark_made_by(struct tether__refs *refs, struct tether__peer *peer, bool not_there);

/* ---- fence.c ---- */
void tether__refs_fenced(void *ext,
                         struct tether__peer *peer,
                         uint64_t epoch,
                         const tether_error *why);
/* The status that a fence of its owner breaks a reference with. */
tether_status tether__fence_code(const struct tether__ref_peer *ref_peer, const tether_rref *rref);
/* Goes on with fences that have not come to all items yet, for a short time. When to go on then. */
int64_t tether__fence_go_on(struct tether__refs *refs, int64_t now);
/* Frees what has gathered for sessions up to `epoch`, or leaves it to the fence's slices. */
void tether__fence_drop_gathered(struct tether__refs *refs,
                                 struct tether__peer *peer,
                                 uint64_t epoch);
void tether__fence_finish(struct tether__refs *refs); /* all of them */
void tether__rref_give_notice(tether_rref *rref);     /* no lock held */

/* ---- describe.c ---- */
tether_status tether__refs_register_dump(struct tether__refs *refs, tether_error *reterr);

/* ---- drain.c ---- */
tether_status tether__refs_drain(void *ext, int64_t deadline, tether_error *reterr);
void tether__refs_check_calm_locked(struct tether__refs *refs, tether_future **ret_calm);

/* ---- wire ids ---- */
static inline Tether__RefId tether__wire_id(tether_rref_id id)
{
    Tether__RefId wire = TETHER__REF_ID__INIT;
    wire.creator = id.creator;
    wire.incarnation = id.incarnation;
    wire.counter = id.counter;
    return wire;
}

/* An absent id is all zeros, which no id is. */
static inline tether_rref_id tether__id_from_wire(const Tether__RefId *wire)
{
    if (!wire)
        return (tether_rref_id){0, 0, 0};
    return (tether_rref_id){wire->creator, (uint32_t)wire->incarnation, wire->counter};
}

static inline void tether__id_to_numbers(tether_rref_id id, uint64_t ret_numbers[3])
{
    ret_numbers[0] = id.creator;
    ret_numbers[1] = id.incarnation;
    ret_numbers[2] = id.counter;
}

/* What are not three numbers are no id: all zeros. */
static inline tether_rref_id tether__id_from_numbers(const uint64_t *numbers, size_t n)
{
    if (n != 3)
        return (tether_rref_id){0, 0, 0};
    return (tether_rref_id){(uint32_t)numbers[0], (uint32_t)numbers[1], numbers[2]};
}

/* How many ids the columns hold; 0 when they are not alike. NULL: none. */
static inline size_t tether__ids_count(const Tether__RefIds *ids)
{
    return ids && ids->n_creator == ids->n_incarnation && ids->n_creator == ids->n_counter
               ? ids->n_creator
               : 0;
}

static inline tether_rref_id tether__ids_at(const Tether__RefIds *ids, size_t i)
{
    return (tether_rref_id){ids->creator[i], (uint32_t)ids->incarnation[i], ids->counter[i]};
}

static inline bool tether__id_is_set(tether_rref_id id)
{
    return id.incarnation != 0;
}

#endif
