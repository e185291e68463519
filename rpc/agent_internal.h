/* Inside the agent: what its files share.
 *
 * - agent.c, options.c, register.c: start and stop, threads, functions
 * - join.c: into the group and out again
 * - directory.c, run.c: names and addresses in the store
 * - peer.c: one other worker; dialer.c: reaches it; timers.c: its lease; confirm.c: unproved claims
 * - stream.c: one stream to it; state.c: handshake; flush.c: sending; peer/receive.c: receiving
 * - fence.c: the end of a session; after.c: work after an unlock
 * - accept.c: who dials us; handshake.c: how both ends prove who they are
 * - call.c, peer/call_slots.c, complete.c: calls that we make, those in flight, their answers
 * - peer/call_dues.c: their deadlines
 * - request.c, retry.c: requests of the layer above, tried again until they are on their way
 * - receive.c, run.c, reply.c: calls that others make of us: how they arrive, run, are answered
 * - carrier.c: near and far, the two transports; poller.c: who polls them
 * - metrics.c: what is counted
 * - leave.c, attendance.c: leaving without losing a call
 *
 * Threads, of each carrier: the *server thread* polls the server side and runs inline functions;
 * whoever waits, else the *background thread*, polls the client side (poller.h); one background
 * thread runs the timers. Pool threads, started on demand, run pooled functions, and others talk to
 * the store.
 *
 * A *reaper* runs destructors that those threads have come to.
 *
 * Locks: agent->mu (the table of peers), peer->mu (one peer's session, lanes and calls). Neither is
 * held while a user's code runs. Order: agent->mu before peer->mu; the transport is called with
 * peer->mu held, and calls back only from poll(). peer->mu is taken by tether__peer_lock(): see
 * peer/after.h.
 */
#ifndef TETHER_RPC_AGENT_INTERNAL_H
#define TETHER_RPC_AGENT_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "base/heap.h"
#include "base/log_limit.h"
#include "base/map.h"
#include "base/threads/call_gate.h"
#include "base/threads/life.h"
#include "base/threads/pool.h"
#include "base/threads/reaper.h"
#include "base/trace_internal.h"
#include "rpc/agent.h"
#include "rpc/agent/metrics.h"
#include "rpc/call/budget.h"
#include "rpc/call/call.h"
#include "rpc/call/retry.h"
#include "rpc/future/internal.h"
#include "rpc/future/poller.h"
#include "rpc/future/thread_context.h"
#include "rpc/group/directory.h"
#include "rpc/handshake/handshake.h"
#include "rpc/handshake/pairing.h"
#include "rpc/lane/lane.h"
#include "rpc/peer/after.h"
#include "rpc/peer/calls/slots.h"
#include "rpc/peer/dialer.h"
#include "rpc/peer/outage.h"
#include "rpc/peer/session.h"
#include "rpc/peer/starts.h"
#include "rpc/peer/stream.h"
#include "rpc/peer/table.h"
#include "rpc/refs.h"
#include "rpc/serve/registry.h"
#include "rpc/serve/serve.h"
#include "rpc/transport/transport.h"

struct tether__peer;

/* What tests put in place of the real thing. */
struct tether__agent_hooks {
    tether_status (*make_transport)(void *userdata,
                                    const struct tether__transport_opts *opts,
                                    struct tether__transport **ret_transport,
                                    tether_error *reterr);
    const struct tether__clock *clock;
    /* When given, the agent has no threads: pooled functions and look-ups go here, and the test
     * polls the transport and runs the timers (tether__progress_run_due). */
    void (*submit)(void *userdata, tether_agent *agent, struct tether__task *task);
    /* Asked before a message is handed to the lane; anything but TETHER_OK fails this attempt. The
     * "faulty agent" of the modelled system. May be NULL. */
    tether_status (*before_send)(void *userdata, const char *peer, uint32_t kind);
    /* Seconds since 1970, or a number that grows faster than workers start. NULL: time(). */
    int64_t (*wall_clock)(void *userdata);
    void *userdata;
};

enum tether__agent_state {
    TETHER__AGENT_NEW,
    TETHER__AGENT_STARTING,
    TETHER__AGENT_JOINING, /* start() has not returned, but others may call already */
    TETHER__AGENT_RUNNING,
    TETHER__AGENT_STOPPING, /* shutdown() waits for what is under way */
    TETHER__AGENT_PARTING,  /* says goodbye: makes no calls, serves nobody, meets nobody */
    TETHER__AGENT_STOPPED,
};

/* One way to other workers, and who polls it. Immutable after start(). */
struct tether__carrier {
    struct tether__transport *transport; /* NULL: this worker does not have it */
    struct tether__progress progress;
    pthread_t server_thread;
    bool progress_runs, server_thread_runs;
};

/* Three things end one after the other:
 *
 * - it runs: from start() to stop(), which closes `calls` and waits for the threads inside;
 * - the program has it: while there are `handles` (tether_agent_retain). The last release stops it,
 *   closes `visits`, and lets go of the store and of the reference layer;
 * - its memory is there, with that of its peers and pollers: `life`. The handles have one count of
 *   it together, each future one, each asynchronous reply, and the reference layer's context, which
 *   references keep. So what outlives the agent finds memory, and a gate that is closed.
 */
struct tether_agent {
    struct tether__life life;
    _Atomic uint32_t handles;
    struct tether__call_gate calls;  /* public calls that use threads, transports or the store */
    struct tether__call_gate visits; /* those that only look: also after shutdown() */
    /* immutable after new() */
    struct tether_agent_opts opts; /* strings are our own copies */
    const struct tether__clock *clock;
    struct tether__lane_limits lane_limits;
    struct tether__registry registry; /* immutable after start() */
    void *ext;                        /* the reference layer's; NULL: not in this program */
    /* immutable after start() */
    char name[TETHER_MAX_WORKER_NAME + 1];
    int rank, world_size;
    struct tether__self self;
    struct tether__carrier near, far;
    struct tether__progress *timers; /* that of the carrier whose background thread has them */
    struct tether__directory directory;
    struct tether__pool pool;
    _Atomic bool pool_runs;
    bool address_is_own;                           /* see struct tether__worker_record */
    bool published;                                /* the directory may have a record of ours */
    struct tether__metrics_server *metrics_server; /* NULL: none */
    char metrics_address[280];                     /* "" : none */
    tether_store *store;                           /* what tether_agent_store() lends; retained */
    /* any thread */
    struct tether__reaper reaper;
    struct tether__metrics metrics;
    _Atomic int state;
    _Atomic bool leaving;            /* runs nothing for others any more */
    _Atomic bool cut_short;          /* a graceful shutdown() is to end now */
    _Atomic bool replaced;           /* a later start of our name has joined: we are the ghost */
    _Atomic int64_t store_check_due; /* when to look whether the store has the run; 0: not begun */
    _Atomic bool checking_store;
    struct tether__task store_check; /* of who set checking_store */
    _Atomic int confirming; /* look-ups on behalf of peers that have not proved who they are */
    _Atomic uint32_t
        n_unlisted;           /* peers that have said hello and that the directory has not named */
    _Atomic uint32_t n_named; /* peers that others have named, and were never met */
    _Atomic(struct tether__stream *) deferred; /* streams with frames that wait for more, a stack */
    _Atomic uint64_t active_calls;             /* ours, until their callbacks have run */
    _Atomic uint64_t started_calls;            /* ours, ever */
    _Atomic uint64_t running;                  /* functions that run or wait to run for others */
    struct tether__log_limit refusals;         /* of streams that are accepted */
    struct tether__starts starts;              /* which peer has which */
    /* under mu */
    struct tether__map peers_by_name;
    struct tether__peer_entry *peers; /* see peer/table.h; n_peers without the dropped ones: */
    size_t n_entries, cap_entries, n_peers;
    uint64_t last_serial;
    struct tether__peer_metrics gone; /* of peers that are gone, all together */
    bool any_gone;
    struct tether__list retries;   /* control messages that wait to be tried again */
    struct tether__list greetings; /* conns of peers that have not finished their handshake */
    size_t n_greetings;
    tether_future *idle; /* finished when active_calls or running comes to 0; or NULL */
    bool stop_is_over;   /* of the first shutdown(), whose result is: */
    tether_status stop_status;
    tether_error stop_error;
    pthread_cond_t stop_over;
    pthread_mutex_t mu;
    /* under due_mu */
    struct tether__heap dues; /* peers by the time when their timers have to run */
    pthread_mutex_t due_mu;
    /* of the thread that runs the timers */
    bool all_saw_replaced;
};

struct tether__peer {
    /* immutable */
    tether_agent *agent;
    tether_bytes name_key; /* of peers_by_name; points to `name` */
    char name[TETHER_MAX_WORKER_NAME + 1];
    uint64_t serial; /* of its entry in the table */
    bool is_self;
    bool is_observer; /* one of a few that come and go: it is never dialled, and not in metrics */
    _Atomic uint32_t refs;
    /* any thread */
    _Atomic uint64_t incarnation; /* of the start that we met last; 0: none */
    _Atomic uint32_t id; /* of that start, or of the one that the directory has; UINT32_MAX: none */
    _Atomic uint64_t fences; /* of both, in the present session; written before `incarnation` */
    _Atomic(struct tether__carrier *) carrier; /* that we last dialled it by, or would */
    _Atomic int64_t due_at;   /* changed under agent->due_mu; TETHER__NEVER: not in agent->dues */
    _Atomic uint32_t n_named; /* peers that exist because it has named them, and were never met */
    /* under agent->due_mu */
    struct tether__heap_node due;  /* in agent->dues */
    struct tether__peer *next_due; /* of the thread that runs the timers */
    /* under mu */
    struct tether__pairing pairing;
    struct tether__session *session; /* the present one, never NULL; a fence puts `spare` there */
    struct tether__session *spare;   /* NULL: nothing is in `session` (peer/session.h) */
    _Atomic uint64_t session_number; /* that of `session`; read without mu too */
    struct tether__peer *named_by;   /* until it was met; NULL: nobody, it counts for itself */
    uint64_t n_dials;                /* conns that we dialled; the peer compares them */
    int64_t heard_at;                /* when something last came in a session that has ended */
    struct tether__peer_metrics metrics;
    struct tether__log_limit closings;             /* of streams, for what the peer sent */
    struct tether__log_limit rejections, fencings; /* of streams by states, of the peer */
    struct tether__start start;
    struct tether__worker_record record; /* where it is; record.name "" until looked up */
    bool is_unlisted;                    /* it counts in agent->n_unlisted */
    bool record_is_old, looking_up;
    uint64_t dialled_start;       /* of the record that was dialled last */
    bool near_failed;             /* the last near conn did not come up: the next is a far one */
    bool left;                    /* we have said goodbye to it */
    bool fenced;                  /* given up, and not heard of since */
    struct tether__outage outage; /* whether it is known to be out of reach */
    int64_t idle_since;           /* TETHER__NEVER: it is not, or no tick has seen that */
    int64_t next_dial;            /* TETHER__NEVER: nothing to dial for */
    struct tether__budget budget; /* of retries */
    int backoff_ms;
    char last_error[192];
    tether_error refusal;  /* why one of us does not want the other; code 0 once a stream is up */
    uint64_t n_calls_ever; /* over all sessions: no number comes twice */
    void *ext_deletes, *ext_accepts; /* what the extension has gathered for this peer */
    _Atomic size_t n_gathered;       /* of both; read without mu, too */
    /* under the extension's lock */
    void *ext_peer;           /* what the extension has to do with this peer; NULL: nothing yet */
    uint64_t ext_first_epoch; /* sessions before this one are over */
    /* under mu */
    /* Finished when there is room for more calls; NULL: nobody waits. Read without mu by a thread
     * that has made room: it held mu since then. */
    tether_future *_Atomic room;
    struct tether__after after; /* for who unlocks it */
    pthread_mutex_t mu;
};

/* See peer/after.h. A call takes these locks a dozen times, mostly with nothing to run. */
static inline void tether__peer_lock(struct tether__peer *peer)
{
    pthread_mutex_lock(&peer->mu);
}

static inline void tether__peer_unlock(struct tether__peer *peer)
{
    if (peer->after.any)
        tether__peer_unlock_and_run(peer);
    else
        pthread_mutex_unlock(&peer->mu);
}

/* Every public call that uses more than the agent's memory is inside the gate `calls`. False: the
 * agent has stopped, do not leave. User code that runs meanwhile (a serialise(), a destructor) must
 * not stop the agent: that would wait for this thread. */
static inline bool tether__agent_enter(tether_agent *agent)
{
    bool entered = tether__call_gate_enter(&agent->calls);
    tether__current.inside += entered;
    return entered;
}

static inline void tether__agent_exit(tether_agent *agent)
{
    tether__current.inside--;
    tether__call_gate_leave(&agent->calls);
}

/* Whether it has begun to say goodbye, or is further. Who changes something for a peer looks under
 * peer->mu: who stops says so first and then ends all sessions under it. */
static inline bool tether__agent_is_parting(const tether_agent *agent)
{
    return atomic_load(&agent->state) >= TETHER__AGENT_PARTING;
}

/* The error of a graceful shutdown that was cut short. */
#define TETHER__CUT_SHORT "another thread has released the agent, or shut it down ungracefully"

/* The error of a call that could not enter. */
tether_status tether__agent_has_stopped(const char *what, tether_error *reterr);

/* Both ends of a conn show certificates, and their names count. */
static inline bool tether__has_mutual_tls(const tether_agent *agent)
{
    return agent->opts.tls_cert_pem && agent->opts.tls_ca_pem && !agent->opts.tls_one_way;
}

/* Runs `task` on a thread of `pool`, or wherever the test wants it. */
tether_status tether__agent_submit(tether_agent *agent,
                                   struct tether__pool *pool,
                                   struct tether__task *task);

/* Does what is due by `now` and says when it wants to be called next. Background thread. */
int64_t tether__agent_tick(void *agent, int64_t now);

/* Has that happen at `due` at the latest. Any thread; cheap when it already will. */
static inline void tether__agent_kick(tether_agent *agent, int64_t due)
{
    tether__progress_kick(agent->timers, due);
}

/* ---- carrier.c ---- */

/* Makes the transports and listens. */
tether_status tether__carriers_listen(tether_agent *agent, tether_error *reterr);

/* Starts who polls them; not `threaded`, the simulation does. */
tether_status tether__carriers_run(tether_agent *agent, bool threaded, tether_error *reterr);

/* stop() ends all conns and joins the threads; destroy() then gives the transports back. Threads of
 * the program may kick and wait until fini(), in vain. All in any state. */
void tether__carriers_stop(tether_agent *agent);
void tether__carriers_destroy(tether_agent *agent);
void tether__carriers_fini(tether_agent *agent);

/* ---- join.c ---- */

/* Gives this start its incarnation and its id. Blocks on the store. */
tether_status tether__agent_count_start(tether_agent *agent,
                                        int64_t deadline,
                                        tether_error *reterr);

/* Makes this worker known; in a static group also waits for every rank. Blocks on the store. */
tether_status tether__agent_join(tether_agent *agent, int64_t deadline, tether_error *reterr);

/* Takes this worker out of the directory, once. Not `for_good`, its rank keeps its name, so that
 * whoever still looks for the ranks sees why the start failed. */
void tether__agent_leave(tether_agent *agent, bool for_good, int timeout_ms);

/* Looks now and then whether the store still has the run, which a store that was started again has
 * lost: then puts the run and this worker's record back. Says when to look again. */
int64_t tether__agent_store_tick(tether_agent *agent, int64_t now);
void tether__agent_store_check_at(tether_agent *agent, int64_t due);

/* ---- peer.c ---- */
tether_status tether__peer_new(tether_agent *agent,
                               const char *name,
                               struct tether__peer **ret_peer);

/* Everybody that refers to a peer holds a count of it, except its own lists in the reference layer
 * (forks, children, expected objects) and `named_by`. */
struct tether__peer *tether__peer_retain(struct tether__peer *peer); /* NULL is fine */
void tether__peer_release(struct tether__peer *peer);                /* NULL is fine */

/* Finds the peer called `name`, or makes it (not yet looked up). Gives a retained peer. */
tether_status tether__agent_peer(tether_agent *agent,
                                 const char *name,
                                 struct tether__peer **ret_peer,
                                 tether_error *reterr);

/* The same for a name in a message of `by`. TETHER_EBUSY: it has named TETHER__MAX_NAMES_PER_PEER
 * workers that this one had never heard of, or all peers TETHER__MAX_NAMES, and none of them was
 * met since. */
#define TETHER__MAX_NAMES_PER_PEER 1024
#define TETHER__MAX_NAMES 16384
tether_status tether__agent_peer_named_by(tether_agent *agent,
                                          struct tether__peer *by,
                                          const char *name,
                                          struct tether__peer **ret_peer,
                                          tether_error *reterr);

/* The peer was met, or goes: it no longer counts for the peer that has named it. */
void tether__peer_end_naming_locked(struct tether__peer *peer);

/* A peer that has said hello, and that the directory has not named, needs one of
 * TETHER__MAX_UNLISTED places: so a member that invents names cannot make peers without end. False:
 * all are taken. The peer keeps its place until the directory names it, or it is dropped. */
#define TETHER__MAX_UNLISTED 256
bool tether__agent_take_place(tether_agent *agent);
void tether__agent_return_place(tether_agent *agent);
void tether__peer_end_unlisted_locked(struct tether__peer *peer);

/* The peer called `name`, retained, if there is one; else NULL. */
struct tether__peer *tether__agent_find_peer(tether_agent *agent, const char *name);

/* The latest start of the peer that we have met or that the directory has told us; 0: none. */
uint64_t tether__peer_known_start(struct tether__peer *peer);
uint64_t tether__peer_known_start_locked(const struct tether__peer *peer);

/* Who best polls for what this peer sends back. */
static inline struct tether__progress *tether__peer_progress(struct tether__peer *peer)
{
    return &atomic_load_explicit(&peer->carrier, memory_order_relaxed)->progress;
}

/* ---- fence.c ---- */

/* Ends the session: everything of it fails, once the lock is released: with `error`, or with
 * `status`, and as cause the last error of the peer or, without one, `why`. */
void tether__peer_end_session_locked(struct tether__peer *peer,
                                     tether_status status,
                                     const char *why);
void tether__peer_end_session_with_locked(struct tether__peer *peer, const tether_error *error);

/* A fence, on our own account: nothing is tried any more until somebody wants the peer again. */
void tether__peer_give_up_locked(struct tether__peer *peer, tether_status status, const char *why);
void tether__peer_give_up_with_locked(struct tether__peer *peer,
                                      const tether_error *error,
                                      const char *why);
void tether__peer_fence_locked(struct tether__peer *peer, const char *why); /* alone for `why` */

/* The same, unless the session has ended: a message of it says nothing about the next one. */
void tether__session_fence(struct tether__session *session, const char *why);

/* ---- confirm.c ---- */

/* We have been told that a later start of this worker has joined: from here on everything that it
 * has with others fails with TETHER_EFENCED. Any lock may be held. */
#define TETHER__REPLACED "this worker has been replaced by a later start of the same name"
void tether__agent_replaced(tether_agent *agent);

/* Somebody says so: the directory is asked. Any lock may be held. */
void tether__agent_told_replaced(tether_agent *agent);

/* Somebody says that it is start `incarnation` of worker `name`, and cannot prove it: asks the
 * directory, and makes the peer if it says so too. A few at a time; the rest must come again. */
void tether__agent_confirm(tether_agent *agent, const char *name, uint64_t incarnation);

/* ---- timers.c ---- */

/* Does what is due; says when it wants to be called again. `*ret_idle_is_over`: to be dropped. */
int64_t tether__peer_tick(struct tether__peer *peer, int64_t now, bool *ret_idle_is_over);

/* Whether a message of this kind may be handed to the lane now (a test may say no). */
tether_status tether__peer_may_send(const struct tether__peer *peer, uint32_t kind);

/* The extension's messages for this peer could not be handed over. `may_pass`: they will be tried
 * again; else they never can be, and the session ends: what they were to tell is told by that. */
void tether__peer_control_failed_locked(struct tether__peer *peer, bool may_pass);

/* ---- table.c ---- */

/* When a peer that is idle now may be dropped; TETHER__NEVER: it is not idle. */
int64_t tether__peer_idle_until_locked(struct tether__peer *peer, int64_t now);

/* ---- admit.c ---- */

/* Finds who this is; `*ret_peer` is retained. TETHER_EUNAVAILABLE: it has to try again. */
tether_status tether__admit_peer(tether_agent *agent,
                                 const struct tether__handshake *handshake,
                                 bool is_proved,
                                 struct tether__peer **ret_peer,
                                 uint64_t *ret_known, /* its latest start; 0: none */
                                 tether_error *reterr);

/* Whether its stream may take the place of the one that is there. */
bool tether__admit_locked(struct tether__peer *peer,
                          const Tether__State *state,
                          tether_error *ret_why);

/* ---- accept.c ---- */
extern const struct tether__transport_events tether__agent_transport_events;

/* Whether the allow-list, if there is one, has this name. */
bool tether__name_is_allowed(const tether_agent *agent, const char *name);

/* Closes conns whose handshake is overdue; says when to look again. */
int64_t tether__greetings_tick(tether_agent *agent, int64_t now);

/* ---- leave.c ---- */

/* Graceful: returns once nothing is under way anywhere in the group, or says what still is. */
tether_status tether__agent_drain(tether_agent *agent, int64_t deadline, tether_error *reterr);

/* A count came to 0: who drains should look. */
void tether__agent_tell_idle(tether_agent *agent);

/* Tells every peer that we leave, waits a moment until they know, and ends all sessions. */
void tether__agent_say_goodbye(tether_agent *agent);
void tether__agent_end_sessions(tether_agent *agent, const char *why);

#include "rpc/peer/limits.h"

#endif
