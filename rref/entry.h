/* Entries of the tables: objects that live here, references held here, and their counts. */
#ifndef TETHER_RREF_ENTRY_H
#define TETHER_RREF_ENTRY_H

#include <stdatomic.h>

#include "base/list.h"
#include "base/threads/work_list.h"
#include "rpc/peer/outbox.h"
#include "rpc/refs_api.h"
#include "rpc/wire/value_internal.h"
#include "rref/session.h"

/* A reference that another worker holds to an object of ours. */
struct tether__fork {
    struct tether__fork_key {
        tether_rref_id id;
        tether_rref *object;       /* NULL: an object's inline fork that is not in use */
        struct tether__peer *peer; /* its holder: another worker may know the id */
    } key;
    struct tether__ref_session holder;
    struct tether__list by_holder; /* in a list of the holder's */
    struct tether__list by_object; /* of the object's inline fork: the head of all the others */
};

struct tether__notice {
    tether_rref_lost_fn *fn;
    void *userdata;
    struct tether__notice *next;
};

/* There may be millions: a user is allocated without what only an owner has. */
struct tether_rref {
    struct tether__attached_ref attached;
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
    struct tether__list node; /* of the owner's (user) or creator's (expected object) lists, or of
                               * refs->own */
    tether_future *ready;     /* done when confirmed (user) or made (owner), or broken; NULL */
    struct tether__notice
        *notices; /* a circle: the last one, whose `next` is the first; NULL: none */
    union {
        struct tether_rref *next;            /* in a list of collected ones */
        struct tether__work work;            /* when it is collected, or its creation has failed */
        struct tether__outbox_item outgoing; /* of a user: "it is gone", for the owner */
    };
    union {
        struct {
            tether_rref_id fork;                /* the key of users */
            struct tether__ref_session owner;   /* retained; NULL: none */
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
            struct tether__ref_session creator; /* the caller; only while it is expected */
        } owner;
    };
};

struct tether__pending_child {
    tether_rref_id fork; /* the key */
    struct tether_rref *parent;
    struct tether__ref_session child;
    struct tether__list node; /* of the child's lists */
};

/* Entries without any count left, for tether__refs_run_collected(). */
struct tether__collected {
    struct tether_rref *first; /* linked by `next`: they have no count left */
};

/* A new entry, of which the caller holds one count. NULL: no memory. */
tether_rref *tether__rref_alloc(struct tether__refs *refs, bool is_owner, tether_rref_id id);

/* Gives a count back; the last one puts the entry into `collected`. */
void tether__rref_drop_locked(tether_rref *rref, struct tether__collected *collected);

void tether__rref_free(tether_rref *rref); /* a collected one, when all is told */

/* Does what collected entries leave to be done: destroys objects, tells owners. No lock held. */
void tether__refs_run_collected(struct tether__refs *refs, struct tether__collected *collected);

tether_rref *tether__owner_find_locked(struct tether__refs *refs, tether_rref_id id);
/* Whether one more object of the creator may be expected: objects that it announces and never has
 * made take memory. */
bool tether__may_expect_locked(struct tether__refs *refs, struct tether__peer *creator);
/* The object is no longer only expected: its call has come, or will not. */
void tether__expected_remove_locked(tether_rref *rref);
/* Whether the id is one that the creator's present start has given: otherwise one worker could use
 * up the ids of another. */
bool tether__is_of_creator(struct tether__peer *creator, tether_rref_id id);
/* A new entry for an object that `creator` is about to have made here; the caller holds one count.
 * NULL: no memory. */
tether_rref *tether__owner_expect_locked(struct tether__refs *refs,
                                         tether_rref_id id,
                                         struct tether__ref_session creator);
tether_status tether__owner_add_locked(tether_rref *rref); /* into the table, if it is not there */
/* The call that makes an object has arrived: its result will be kept. `*ret_result` stands for it;
 * NULL: its creator has released it. DONE, REFUSED or NO_MEMORY. */
enum tether__outcome tether__owner_called(struct tether__refs *refs,
                                          struct tether__ref_session creator,
                                          const Tether__Call *call,
                                          void **ret_result,
                                          tether_error *reterr);
/* The object `rref` has been made, or not. */
void tether__owner_made(tether_rref *rref,
                        tether_status status,
                        const char *error,
                        tether_value *value);
/* Our own call that was to make the object has ended without its function. */
void tether__owner_give_up(tether_rref *rref, tether_status status, const tether_error *error);
enum tether__outcome tether__refs_on_announce(struct tether__refs *refs,
                                              struct tether__ref_session creator,
                                              const Tether__Announce *message);

/* TETHER_EEXIST: the holder has a fork with this id from another session; nothing is counted.
 * TETHER_EFENCED, TETHER_ENOMEM. A fork of another holder with the same id is another fork. */
tether_status tether__fork_add_locked(tether_rref *rref,
                                      tether_rref_id fork,
                                      struct tether__ref_session holder);
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
void tether__user_remove_locked(tether_rref *rref); /* which is in the table */
void tether__user_set_state_locked(tether_rref *rref, tether_rref_state state);

/* The state as callers see it: a reference of a session that has ended is broken from that
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
                                       struct tether__ref_session child);
void tether__child_drop_locked(struct tether__refs *refs,
                               struct tether__pending_child *child,
                               struct tether__collected *collected);
void tether__child_remove_locked(struct tether__refs *refs,
                                 tether_rref_id fork,
                                 struct tether__peer *peer,
                                 struct tether__collected *collected);

/* The worker id of the owner of a user's reference; UINT32_MAX: it was not met yet. */
static inline uint32_t tether__rref_owner_id(const tether_rref *rref)
{
    if (rref->user.owner_id != UINT32_MAX || !rref->user.owner.peer)
        return rref->user.owner_id;
    return tether__peer_id(rref->user.owner.peer);
}

/* Finishes a future that came out of the lock (NULL: nothing) and gives it back. */
void tether__future_finish_and_release(tether_future *future,
                                       tether_status status,
                                       const tether_error *error);

/* The cause of a broken reference, or that the agent has stopped. */
tether_status tether__rref_usable_locked(const tether_rref *rref, tether_error *reterr);

/* Takes out the notice that was attached first; NULL: there is none. */
struct tether__notice *tether__notice_take_locked(tether_rref *rref);
void tether__rref_give_notice(tether_rref *rref); /* no lock held */

/* Whether there is no reference: NULL, or what a function that never returns NULL gives instead of
 * one. tether__rref_none_cause() says why. */
static inline bool tether__rref_is_none(const tether_rref *rref)
{
    return !rref || !rref->context;
}
tether_status tether__rref_none_cause(const tether_rref *rref, tether_error *reterr);

#endif
