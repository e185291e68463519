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
        /* NULL: this is the first fork inside an object's entry, and it is not in use */
        tether_rref *object;
        /* the worker that holds the fork; part of the key, because another worker may use the
         * same fork id */
        struct tether__peer *peer;
    } key;
    struct tether__ref_session holder;
    struct tether__list by_holder; /* a node of the list `forks` of the holder */
    /* in the entry's own fork this is the head of the list of all other forks of the object */
    struct tether__list by_object;
};

struct tether__notice {
    tether_rref_lost_fn *fn;
    void *userdata;
    struct tether__notice *next;
};

/* One entry. There may be millions, so a user's entry is allocated without the fields that only an
 * owner needs. */
struct tether_rref {
    struct tether__attached_ref attached;
    struct tether__refs *context; /* retained */
    tether_rref_id id;
    _Atomic uint32_t refs;
    bool is_owner; /* immutable */
    /* under mu */
    uint8_t state;      /* tether_rref_state; see tether__rref_state_locked() */
    uint8_t cause_code; /* the tether_status of the cause, when the state is BROKEN */
    bool in_table : 1;  /* is in the table `owners` or `users` */
    /* the owner is lost; notices of the loss have been given or are being given */
    bool lost : 1;
    /* `site` belongs to a struct tether__name; false: it is a static string */
    bool site_is_name : 1;
    /* of a user: the owner may have this fork, so it must be told of the release */
    bool known_to_owner : 1;
    /* belongs to a struct tether__name; NULL: not known, or the object is bytes */
    const char *type;
    const char *site; /* file and line where the reference was created */
    /* set when the state is BROKEN; NULL if there was no memory for it */
    struct tether__cause *cause;
    /* a node of the owner's list `users`, of the creator's list `expected`, or of refs->own */
    struct tether__list node;
    /* a future that is done when the reference is confirmed (user), made (owner), or broken;
     * NULL: none was asked for */
    tether_future *ready;
    struct tether__notice *notices; /* a circular list: points to the last notice, whose `next` is
                                       the first; NULL: none */
    union {
        struct tether_rref *next; /* the next entry of a tether__collected list */
        /* runs when the entry is collected, or when its creation has failed */
        struct tether__work work;
        struct tether__outbox_item outgoing; /* of a user: the user-delete for the owner */
    };
    union {
        struct {
            tether_rref_id fork; /* the key in the table `users` */
            /* the session with the owner; the peer is retained, NULL: none */
            struct tether__ref_session owner;
            /* 0: any start, the one that this worker connects to first. Read without mu */
            _Atomic uint32_t owner_incarnation;
            /* worker id of the owner; UINT32_MAX: not known, ask tether__rref_owner_id() */
            uint32_t owner_id;
        } user;
        struct {
            /* the object; NULL until it is made, or when its function returned nothing */
            tether_value *value;
            /* the first fork, stored here because most objects have only one */
            struct tether__fork first;
            uint32_t n_forks;
            bool passed_on; /* at least one fork of the object has existed */
            bool making;    /* the function that makes the object has not returned */
            /* the call that makes the object has not arrived: then `making` holds no count */
            bool expected;
            /* the worker that has the object made; valid only while it is expected */
            struct tether__ref_session creator;
        } owner;
    };
};

struct tether__pending_child {
    tether_rref_id fork; /* the key in the table `children` */
    struct tether_rref *parent;
    struct tether__ref_session child;
    struct tether__list node; /* a node of the receiver's list `children` */
};

/* Entries whose last count was dropped, to be passed to tether__refs_run_collected(). */
struct tether__collected {
    struct tether_rref *first; /* linked by `next` */
};

/* A new entry, of which the caller holds one count. NULL: no memory. */
tether_rref *tether__rref_alloc(struct tether__refs *refs, bool is_owner, tether_rref_id id);

/* Gives a count back; the last one puts the entry into `collected`. */
void tether__rref_drop_locked(tether_rref *rref, struct tether__collected *collected);

void tether__rref_free(tether_rref *rref); /* frees a collected entry, after its owner was told */

/* Finishes collected entries: destroys objects, tells owners. Call it without a lock. */
void tether__refs_run_collected(struct tether__refs *refs, struct tether__collected *collected);

tether_rref *tether__owner_find_locked(struct tether__refs *refs, tether_rref_id id);
/* Returns whether one more object of this creator may be expected. There is a limit, because
 * objects that are announced but never made take memory. */
bool tether__may_expect_locked(struct tether__refs *refs, struct tether__peer *creator);
/* Marks an expected object as no longer expected: its call has come, or will not come. */
void tether__expected_remove_locked(tether_rref *rref);
/* Returns whether the id was given by the creator's present start. Without this check a worker
 * could use up the ids of another. */
bool tether__is_of_creator(struct tether__peer *creator, tether_rref_id id);
/* Makes an entry for an object whose creation `creator` has announced; the caller holds one count.
 * NULL: no memory. */
tether_rref *tether__owner_expect_locked(struct tether__refs *refs,
                                         tether_rref_id id,
                                         struct tether__ref_session creator);
/* puts the entry into the table `owners`, unless it is there */
tether_status tether__owner_add_locked(tether_rref *rref);
/* Handles the arrival of the call that makes an object. `*ret_result` is the entry that will keep
 * the result; NULL: the creator has released it already. DONE, REFUSED or NO_MEMORY. */
enum tether__outcome tether__owner_called(struct tether__refs *refs,
                                          struct tether__ref_session creator,
                                          const Tether__Call *call,
                                          void **ret_result,
                                          tether_error *reterr);
/* Ends the creation of the object `rref`, with its value or with an error. */
void tether__owner_made(tether_rref *rref,
                        tether_status status,
                        const char *error,
                        tether_value *value);
/* Breaks `rref` because our own call that was to make the object has ended before its function
 * ran. */
void tether__owner_give_up(tether_rref *rref, tether_status status, const tether_error *error);
enum tether__outcome tether__refs_on_announce(struct tether__refs *refs,
                                              struct tether__ref_session creator,
                                              const Tether__Announce *message);

/* Adds a fork for a holder. TETHER_EEXIST: the holder has a fork with this id from another
 * session; nothing is counted. TETHER_EFENCED, TETHER_ENOMEM. Different holders may use the same
 * fork id. */
tether_status tether__fork_add_locked(tether_rref *rref,
                                      tether_rref_id fork,
                                      struct tether__ref_session holder);
/* Removes a fork. False: this peer has no fork with that id. */
bool tether__fork_remove_locked(tether_rref *rref,
                                tether_rref_id fork,
                                struct tether__peer *peer,
                                struct tether__collected *collected);
/* Removes a fork from the table or from the object's entry, and drops its count. */
void tether__fork_drop_locked(struct tether__fork *fork, struct tether__collected *collected);
/* Returns the fork after `fork`; NULL starts with the first. Returns NULL after the last. */
struct tether__fork *tether__fork_next_locked(tether_rref *rref, struct tether__fork *fork);

tether_status tether__user_add_locked(tether_rref *rref);
/* removes the entry from `users`, where it must be */
void tether__user_remove_locked(tether_rref *rref);
void tether__user_set_state_locked(tether_rref *rref, tether_rref_state state);

/* The state as callers see it. A reference of a session that has ended counts as broken at once,
 * even before the fence has processed it. */
tether_rref_state tether__rref_state_locked(const tether_rref *rref);

/* Breaks the reference. Returns the future that waits for it, for the caller to finish; NULL:
 * none. */
tether_future *tether__rref_break_locked(tether_rref *rref, tether_status status, const char *why);
/* Like tether__rref_break_locked(), with a cause that several references share (NULL: there was no
 * memory for one). */
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

/* The worker id of the owner of a user's reference; UINT32_MAX: this worker has not met the owner
 * yet. */
static inline uint32_t tether__rref_owner_id(const tether_rref *rref)
{
    if (rref->user.owner_id != UINT32_MAX || !rref->user.owner.peer)
        return rref->user.owner_id;
    return tether__peer_id(rref->user.owner.peer);
}

/* Finishes a future that was returned under the lock (NULL: does nothing) and releases it. */
void tether__future_finish_and_release(tether_future *future,
                                       tether_status status,
                                       const tether_error *error);

/* TETHER_OK if the reference can be used. Otherwise fills `reterr` with the cause of a broken
 * reference, or says that the agent has stopped. */
tether_status tether__rref_usable_locked(const tether_rref *rref, tether_error *reterr);

/* Takes out the notice that was attached first; NULL: no notice is left. */
struct tether__notice *tether__notice_take_locked(tether_rref *rref);
/* runs the callbacks of tether_rref_on_owner_lost(); call it without a lock */
void tether__rref_give_notice(tether_rref *rref);

/* Returns whether there is no reference: NULL, or the static reference that functions which never
 * return NULL give when they fail. tether__rref_none_cause() says why. */
static inline bool tether__rref_is_none(const tether_rref *rref)
{
    return !rref || !rref->context;
}
tether_status tether__rref_none_cause(const tether_rref *rref, tether_error *reterr);

#endif
