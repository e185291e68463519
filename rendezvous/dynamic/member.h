/* A node's part in a group of any size: the state holder that the handler uses.
 *
 * If every node read and rewrote the whole state to join, N nodes would move N x N entries. So one
 * node, the leader, keeps the state, and the others tell it what they want in notes of a few bytes
 * (notes.h) and read a few bytes back. Any node can be the leader; the first to come is, and when
 * its heartbeats stop, or it says that it goes, whoever notices first takes over.
 *
 * Happy path, a node that joins: sync() reads the head; the op says join; sync() leaves a wish; the
 * leader, woken by the wish, folds it (and all others that have come by then) into the state with
 * one compare-and-set, writes the node's place and the head; the node waits for the round's "done"
 * note, reads its place, and has its rank.
 *
 * What makes it safe: only the compare-and-set of the state counts. The head, also written by
 * compare-and-set, carries the term, a number that one leader has once; a leader that was deposed
 * without knowing (it slept) fails at its next write of either, and the places it writes go to keys
 * of its old term that nobody reads. What makes it live: a new leader reads the state, takes up the
 * wishes where the state says that the last one left off, and publishes everything anew.
 *
 * leader.c has the part of the leader, follower.c that of the others, member.c what they share.
 * Not thread-safe but for pause().
 */
#ifndef TETHER_RENDEZVOUS_DYNAMIC_MEMBER_H
#define TETHER_RENDEZVOUS_DYNAMIC_MEMBER_H

#include "base/map.h"
#include "rendezvous/dynamic/backend_holder.h"
#include "rendezvous/dynamic/notes.h"
#include "rendezvous/dynamic/pulse.h"

struct tether__rdzv_member_holder {
    struct tether__rdzv_holder base;

    /* immutable */
    const struct tether__rdzv_self *self; /* `previous` may change */
    const struct tether_rdzv_settings *settings;
    const struct tether__rdzv_env *env;
    struct tether__rdzv_notes notes;
    struct tether__rdzv_pulse pulse;

    /* this node */
    bool leads;
    bool withdrawn;      /* it has gone, and only looks on; until it asks to join again */
    uint64_t beats;      /* heartbeats sent */
    bool beat_wanted;    /* one is due */
    bool beaten;         /* `beat_at` counts */
    int64_t beat_at;     /* the last one that got through */
    bool changed;        /* an action has been applied to the state */
    bool left_to_leader; /* one that a follower can't ask for: the leader does it by itself */
    bool join_wanted, leave_wanted, close_wanted;  /* not yet asked for */
    uint64_t join_asked, leave_asked, close_asked; /* number of the wish; 0: none under way */

    /* the head, as last read or written */
    bool has_head;
    struct tether__rdzv_head head;
    tether_buf head_raw;
    int64_t head_heard_at;  /* when its beat was new */
    int64_t head_looked_at; /* when it was read */

    /* follower: what it knows, and the place that goes with the head's term and edition */
    struct tether__rdzv_state view;
    struct tether__rdzv_place place;
    bool place_read;
    uint64_t place_term, place_edition;

    /* leader: the full state, and what of it has been published */
    struct tether__rdzv_backend_holder full;
    bool fresh;                               /* has just begun to lead */
    char dead_leader[TETHER__RDZV_NODE_TEXT]; /* fresh: the one before, whose heartbeats stopped */
    uint64_t places_before; /* the term whose places were in force before its own; 0: none were */
    bool unpublished;       /* the state is ahead of places and head */
    int64_t folded_at;      /* when the state was last written: it is not done too often */
    uint64_t forgotten;     /* wishes up to here are removed */
    bool round_announced;   /* "done" has been written for `announced_round` */
    uint64_t announced_round;
    struct tether__map published; /* of struct published: node -> place */
    uint64_t hole;                /* a wish that is numbered but not there; 0: none */
    int64_t hole_since;
};

/* `store` is the one under the rendezvous' prefix; all arguments but `env` are borrowed for the
 * lifetime. Talks to nobody. TETHER_ENOMEM. */
tether_status tether__rdzv_member_holder_init(struct tether__rdzv_member_holder *holder,
                                              const struct tether__rdzv_self *self,
                                              const struct tether_rdzv_settings *settings,
                                              tether_store *store,
                                              tether_rdzv_backend *backend,
                                              const struct tether__rdzv_env *env,
                                              tether_error *reterr);
void tether__rdzv_member_holder_fini(struct tether__rdzv_member_holder *holder);

/* Takes back what is under way and lets others lead, as well as it can be done by `deadline`: for a
 * node that gives up or goes. */
void tether__rdzv_member_holder_withdraw(struct tether__rdzv_member_holder *holder,
                                         int64_t deadline);

/* How long the lists may stay as they are without a look: the leader has to keep an eye on them. */
bool tether__rdzv_member_holder_leads(const struct tether__rdzv_member_holder *holder);

#endif
