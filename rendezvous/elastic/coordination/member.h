/* A node's part in a group of any size: the state holder that the handler uses.
 *
 * If every node read and rewrote the whole state to join, N nodes would move N x N entries. So one
 * node, the leader, keeps the state. The others, the followers, send it requests of a few bytes
 * through the store (keys.h) and read a few bytes back. Any node can lead. The first node of a
 * group does; when its heartbeats stop, or when it resigns, the node that notices first takes over.
 *
 * Happy path of a node that joins: sync() reads the summary; the op says join; sync() posts a
 * request. The request wakes the leader, which applies it (with all others that have arrived) to
 * the state in one compare-and-set and writes the node's assignment and the summary. The node waits
 * for the round's "done" key, reads its assignment, and has its rank.
 *
 * Safety: only the compare-and-set of the state decides. The summary, also written by
 * compare-and-set, carries the term, a number that one leader has once. A leader that was deposed
 * without noticing (its process was suspended) fails at its next write of either, and its
 * assignments go to keys of its old term, which no node reads. Liveness: a new leader reads the
 * state, goes on with the first request that the state does not contain, and publishes everything
 * again.
 *
 * leader.c has the leader's part, follower.c the followers', member.c what both share. Not
 * thread-safe except for pause().
 */
#ifndef TETHER_RENDEZVOUS_ELASTIC_COORDINATION_MEMBER_H
#define TETHER_RENDEZVOUS_ELASTIC_COORDINATION_MEMBER_H

#include "base/map.h"
#include "rendezvous/elastic/coordination/keys.h"
#include "rendezvous/elastic/sync/backend_holder.h"
#include "rendezvous/elastic/sync/heartbeat.h"

/* A change of the state that this node wants from the leader. */
struct tether__rdzv_request {
    enum tether__rdzv_request_state {
        TETHER__RDZV_REQUEST_NONE,
        TETHER__RDZV_REQUEST_WANTED, /* the next sync() must post the request */
        TETHER__RDZV_REQUEST_SENT,   /* posted as request `number`; not applied yet */
    } state;
    uint64_t number; /* number of the posted request; 0 unless SENT */
};

/* The state that the leader keeps, and how much of it the followers know. */
struct tether__rdzv_leadership {
    struct tether__rdzv_backend_holder full;
    bool new_term; /* the state has not been read in this term yet */
    /* the leader of the term before, if its heartbeats stopped; else empty */
    char dead_leader[TETHER__RDZV_NODE_TEXT];
    /* the term whose assignments were in force before this one; 0: none */
    uint64_t former_term;
    /* assignments and summary in the store do not have all changes of the state */
    bool unpublished;
    /* maps each node to its published assignment (struct published) */
    struct tether__map published;
    uint64_t announced; /* 1 + the last round with a "done" key; 0: none in this term */
    /* time of the last write of the state; limits the rate of writes */
    int64_t written_at;
    uint64_t deleted; /* requests up to this number have been deleted */
    uint64_t missing; /* a request that has a number but no key; 0: none */
    int64_t missing_since;
};

struct tether__rdzv_member_holder {
    struct tether__rdzv_holder base;

    /* immutable */
    /* this node; other code may change its field `previous` */
    const struct tether__rdzv_self *self;
    const struct tether_rdzv_settings *settings;
    const struct tether__rdzv_env *env;
    tether_store *store; /* the store under the prefix of the run; borrowed */
    struct tether__rdzv_heartbeats heartbeats;

    /* the role and requests of this node */
    struct tether__rdzv_leadership *leadership; /* NULL: a follower */
    bool withdrawn;      /* the node has left and only observes until it asks to join again */
    bool changed;        /* an action has been applied to the state since the last sync() */
    bool left_to_leader; /* that action needs no request, because the leader takes it by itself */
    struct tether__rdzv_request join, leave, close;
    struct {
        uint64_t count; /* heartbeats sent so far */
        bool due;       /* the next sync() has to send a heartbeat */
        bool sent;      /* a heartbeat was sent since the node joined, at `sent_at` */
        int64_t sent_at;
    } beat;

    /* the summary as last read or written */
    struct {
        bool exists;
        struct tether__rdzv_summary value;
        tether_buf raw;
        int64_t changed_at; /* when the beat in the summary last changed */
        int64_t read_at;
    } summary;

    /* follower only: this node's assignment, as of the summary's term and edition, and the partial
     * state */
    struct {
        bool read;
        uint64_t term, edition;
        struct tether__rdzv_assignment value;
    } assignment;
    struct tether__rdzv_state view;
};

/* `store` is the store under the prefix of the run. All arguments are borrowed for the holder's
 * lifetime. Does no I/O. */
void tether__rdzv_member_holder_init(struct tether__rdzv_member_holder *holder,
                                     const struct tether__rdzv_self *self,
                                     const struct tether_rdzv_settings *settings,
                                     tether_store *store,
                                     tether_rdzv_backend *backend,
                                     const struct tether__rdzv_env *env);
void tether__rdzv_member_holder_fini(struct tether__rdzv_member_holder *holder);

/* Takes this node off the lists and resigns if it leads, as far as that is possible before
 * `deadline`. For a node that gives up joining or leaves. */
void tether__rdzv_member_holder_withdraw(struct tether__rdzv_member_holder *holder,
                                         int64_t deadline);

/* Whether this node leads. A leader has to call sync() often, even when it has no request of its
 * own. */
bool tether__rdzv_member_holder_leads(const struct tether__rdzv_member_holder *holder);

#endif
