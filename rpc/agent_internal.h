/* Inside the agent: what its files share.
 *
 * - agent.c, options.c: start and stop, threads
 * - join.c: into the group and out again
 * - directory.c: names and addresses in the store
 * - peer.c: one other worker, its session and its lease
 * - link.c: one stream to it: handshake, state, sending, receiving
 * - greeting.c: who dials us; handshake.c: how both ends prove who they are
 * - call.c, call_table.c, reply.c: calls that we make, those in flight, their answers
 * - withdraw.c: calls and replies that nobody wants any more, before they were sent
 * - request.c, retry.c: requests of the layer above, tried again until they are on their way
 * - dispatch.c, run.c, answer.c: calls that others make of us: how they arrive, run, are answered
 * - carrier.c: near and far, the two transports; progress.c: who polls them
 * - metrics.c: what is counted
 * - shutdown.c, wave.c: leaving without losing a call
 *
 * Threads, of each carrier: the *server thread* polls the server side and runs inline functions;
 * whoever waits, else the *background thread*, polls the client side (progress.h); one background
 * thread runs the timers. Pool threads run pooled functions; threads on demand talk to the store
 * (lookups.h).
 *
 * A *reaper* runs destructors that those threads have come to.
 *
 * Locks: agent->mu (the table of peers), peer->mu (one peer's session, lanes and calls). Neither is
 * held while a user's code runs. Order: agent->mu before peer->mu; the transport is called with
 * peer->mu held, and calls back only from poll().
 */
#ifndef TETHER_RPC_AGENT_INTERNAL_H
#define TETHER_RPC_AGENT_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/call_gate.h"
#include "base/clock.h"
#include "base/life.h"
#include "base/map.h"
#include "base/pool.h"
#include "base/trace_internal.h"
#include "rpc/agent.h"
#include "rpc/budget.h"
#include "rpc/current.h"
#include "rpc/directory.h"
#include "rpc/ext.h"
#include "rpc/future_internal.h"
#include "rpc/handshake.h"
#include "rpc/lane.h"
#include "rpc/metrics.h"
#include "rpc/progress.h"
#include "rpc/reaper.h"
#include "rpc/registry.h"
#include "rpc/retry.h"
#include "rpc/session.h"
#include "rpc/transport.h"

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
    _Atomic(struct tether__link *) unflushed; /* links with frames that wait for more, a stack */
    _Atomic uint64_t active_calls;            /* ours, until their callbacks have run */
    _Atomic uint64_t started_calls;           /* ours, ever */
    _Atomic uint64_t running;                 /* functions that run or wait to run for others */
    /* under mu */
    struct tether__map peers_by_name;
    struct tether__peer **peers; /* all of them, in the order in which we met */
    size_t n_peers, cap_peers;
    struct tether__peer_metrics gone; /* of peers that are gone, all together */
    bool any_gone;
    struct tether__list retries;   /* control messages that wait to be tried again */
    struct tether__list greetings; /* conns of peers that have not finished their handshake */
    tether_future *idle;           /* finished when active_calls or running comes to 0; or NULL */
    bool stop_is_over;             /* of the first shutdown(), whose result is: */
    tether_status stop_status;
    tether_error stop_error;
    pthread_cond_t stop_over;
    pthread_mutex_t mu;
};

/* One stream with a peer: the one that we dialled (out) or the one that it dialled (in). All under
 * peer->mu. */
struct tether__link {
    struct tether__peer *peer;
    struct tether__lane lane;
    struct tether__conn *conn; /* NULL: none */
    bool up;                   /* both have named the same numbers on this conn */
    bool sending;              /* the transport has not said sent() yet */
    uint64_t dial;             /* counts the conns that we dialled; 0: the peer does */
    uint64_t said;             /* the session's epoch that our last state on this conn named; 0 */
    struct tether__handshake *handshake; /* on a conn that we dialled, until it is done; or NULL */
    bool proved;               /* the other end of this conn has shown that it is the peer */
    uint64_t peer_incarnation; /* of the start at the other end; 0: not known yet */
    uint32_t held_back;        /* calls that wait to be written with others */
    bool is_unflushed;         /* among those of the agent, with the next of them: */
    struct tether__link *next_unflushed;
    bool receiving;   /* a thread handles a batch that came by this link */
    uint64_t epoch;   /* raised with each conn and each fence: a running receive notices */
    int64_t ack_due;  /* TETHER__NEVER: none owed */
    int64_t heard_at; /* when something last came on this conn, or it was made */
    int64_t pinged_at;
};

/* What a call uses that may be lost while it waits; {0, 0}: nothing. */
struct tether__use {
    uint64_t high, low;
};

/* A call that we made and that is not answered yet. */
struct tether__call {
    tether_future future;
    tether_agent *agent;
    struct tether__peer *peer; /* the future keeps the agent's memory, which has it */
    uint64_t id;
    int64_t deadline, started;
    tether_trace trace;
    struct tether__rider *held; /* until it has ended; NULL: nothing */
    struct tether__unsent
        *unsent;            /* under peer->mu: it may still be taken back; NULL: it may not */
    struct tether__use use; /* under peer->mu */
    uint64_t seq;           /* under peer->mu: of its frame; 0: it goes in pieces, or is no call */
    const char *progress;   /* how far it had come when it was given up, for messages; or NULL */
    bool about_object;      /* of the peer's, which is lost with it */
    void *result;           /* of remote(), for result_type(); NULL: it makes nothing */
    char function[];        /* for messages */
};

/* A power of two: so many slots a peer can have. */
#define TETHER__MAX_CALLS_PER_PEER (UINT32_C(1) << 24)

struct tether__call_slot {
    struct tether__call *call; /* NULL: free */
    union {
        uint32_t next_free; /* of a free slot */
        uint32_t prev_tied; /* of a taken slot: before its call in the chain; NO_SLOT: the first */
    };
    uint32_t first_tied; /* of the calls whose use hashes to this slot */
    uint32_t next_tied;  /* behind the call of this slot */
};

struct tether__peer {
    /* immutable */
    tether_agent *agent;
    tether_bytes name_key; /* of peers_by_name; points to `name` */
    char name[TETHER_MAX_WORKER_NAME + 1];
    bool is_self;
    bool is_observer; /* one of a few that come and go: it is never dialled, and not in metrics */
    _Atomic uint32_t refs;
    /* any thread */
    _Atomic uint64_t incarnation; /* of the start that we met last; 0: none */
    _Atomic uint32_t id; /* of that start, or of the one that the directory has; UINT32_MAX: none */
    _Atomic uint64_t fences; /* of both, in the present session; written before `incarnation` */
    _Atomic(struct tether__carrier *) carrier; /* that we last dialled it by, or would */
    _Atomic uint32_t n_named; /* peers that exist because it has named them, and were never met */
    /* under mu */
    struct tether__session session;
    struct tether__peer *named_by;  /* until it was met; NULL: nobody, it counts for itself */
    _Atomic uint64_t session_epoch; /* raised by every fence; read without mu too */
    struct tether__link out, in;
    struct tether__peer_metrics metrics;
    struct tether__worker_record record; /* where it is; record.name "" until looked up */
    bool record_is_old, looking_up;
    bool near_failed;      /* the last near conn did not come up: the next is a far one */
    uint64_t met_epoch;    /* the last session in which a stream was up */
    bool left;             /* we have said goodbye to it */
    bool fenced;           /* given up, and not heard of since */
    int64_t next_dial;     /* TETHER__NEVER: nothing to dial for */
    int64_t control_due;   /* the extension's messages failed and go again then; TETHER__NEVER */
    int64_t gather_due;    /* the extension's messages leave then, if nothing takes them along */
    int control_failures;  /* in a row */
    bool control_is_stuck; /* one of them cannot be sent, ever: the session is to be fenced */
    struct tether__budget budget; /* of retries */
    int backoff_ms;
    char last_error[192];
    tether_error refusal; /* why one of us does not want the other; code 0 once a stream is up */
    struct tether__call_slot *slots;
    uint32_t n_slots, first_free, n_calls;
    uint64_t n_calls_ever;              /* over all sessions: no number comes twice */
    int64_t calls_due;                  /* no call's deadline is earlier */
    struct tether__map incoming;        /* its calls that run here, by id */
    uint32_t n_waiting;                 /* of those, for references or an object */
    size_t waiting_bytes;               /* in the arguments of these */
    size_t kept_bytes;                  /* in the arguments of all calls in `incoming` */
    struct tether__list unsent_replies; /* large ones that may still be taken back */
    void *ext_deletes, *ext_accepts;    /* what the extension has gathered for this peer */
    /* under the extension's lock */
    void *ext_peer;           /* what the extension has to do with this peer; NULL: nothing yet */
    uint64_t ext_first_epoch; /* sessions before this one are over */
    /* under mu */
    tether_future *room; /* finished when there is room for more calls; NULL: nobody waits */
    pthread_mutex_t mu;
};

/* What one peer can make this worker hold. Each is documented in docs/security.md.
 * - replies that the peer has not acknowledged: a result that does not fit is replaced by an error;
 * - the same, when the peer goes on asking for more: then its session is fenced;
 * - arguments of its calls that have not finished, and the number of these. */
static inline size_t tether__most_unread(const tether_agent *agent)
{
    return 2 * agent->opts.max_bytes_per_peer + agent->opts.max_message_bytes;
}

static inline size_t tether__most_unread_asking(const tether_agent *agent)
{
    return tether__most_unread(agent) + agent->opts.max_bytes_per_peer;
}

static inline size_t tether__most_kept_bytes(const tether_agent *agent)
{
    return 4 * agent->opts.max_bytes_per_peer;
}

static inline size_t tether__most_kept_calls(const tether_agent *agent)
{
    return 2 * (size_t)agent->opts.max_calls_per_peer;
}

/* What a fence leaves to be done once the lock is gone. */
struct tether__aftermath {
    struct tether__peer *peer;   /* retained; NULL: no session has ended */
    uint64_t ended_epoch;        /* the session, and all before it */
    struct tether__call **calls; /* to be failed; in flight no more */
    size_t n_calls;
    tether_status status;
    tether_error error;
    tether_future *room;
};

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

/* Runs `task`, which may block on the store, on a thread for that, or wherever the test wants it.
 */
tether_status tether__agent_submit_lookup(tether_agent *agent, struct tether__task *task);

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
struct tether__peer *tether__peer_retain(struct tether__peer *peer);
void tether__peer_release(struct tether__peer *peer);

/* Finds the peer called `name`, or makes it (not yet looked up). Gives a retained peer. */
tether_status tether__agent_peer(tether_agent *agent,
                                 const char *name,
                                 struct tether__peer **ret_peer,
                                 tether_error *reterr);

/* The same for a name in a message of `by`. TETHER_EBUSY: it has named TETHER__MAX_NAMES_PER_PEER
 * workers that this one had never heard of, and none of them was met since. */
#define TETHER__MAX_NAMES_PER_PEER 1024
tether_status tether__agent_peer_named_by(tether_agent *agent,
                                          struct tether__peer *by,
                                          const char *name,
                                          struct tether__peer **ret_peer,
                                          tether_error *reterr);

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

/* The i-th peer, retained; NULL when there are no more. They only become more. */
struct tether__peer *tether__agent_peer_at(tether_agent *agent, size_t i);

/* Nobody waits for room for a call any more. */
void tether__peer_drop_room(struct tether__peer *peer);

/* Starts to connect, if nothing is under way yet. */
void tether__peer_connect_locked(struct tether__peer *peer);
/* Asks the directory for the present start of the peer, also while a session with an earlier start
 * stands: what the directory says then ends that session. */
void tether__peer_look_up_locked(struct tether__peer *peer);

/* Ends the session: everything of it fails with `status`. Then call settle() without the lock. */
void tether__peer_end_session_locked(struct tether__peer *peer,
                                     tether_status status,
                                     const char *why,
                                     struct tether__aftermath *ret_aftermath);
void tether__aftermath_settle(struct tether__aftermath *aftermath);

/* A fence, on our own account: nothing is tried any more until somebody wants the peer again. Then
 * call settle() without the lock. fence() does both: the peer has left. */
void tether__peer_give_up_locked(struct tether__peer *peer,
                                 tether_status status,
                                 const char *why,
                                 struct tether__aftermath *ret_aftermath);
void tether__peer_fence(struct tether__peer *peer, const char *why);

/* We have been told that a later start of this worker has joined: from here on everything that it
 * has with others fails with TETHER_EFENCED. Any lock may be held. */
#define TETHER__REPLACED "this worker has been replaced by a later start of the same name"
void tether__agent_replaced(tether_agent *agent);

/* Somebody says so: who has proved itself is believed, for anybody else the directory is asked. Any
 * lock may be held. */
void tether__agent_told_replaced(tether_agent *agent, bool is_proved);

/* Somebody says that it is start `incarnation` of worker `name`, and cannot prove it: asks the
 * directory, and makes the peer if it says so too. A few at a time; the rest must come again. */
void tether__agent_confirm(tether_agent *agent, const char *name, uint64_t incarnation);

/* Does what is due; says when it wants to be called again. */
int64_t tether__peer_tick(struct tether__peer *peer, int64_t now);

/* The directory has answered (record NULL: with this error). Directory thread. */
void tether__peer_found(struct tether__peer *peer,
                        const struct tether__worker_record *record,
                        tether_status status,
                        const tether_error *error);

/* ---- link.c ---- */
void tether__link_dial_locked(struct tether__link *link,
                              struct tether__carrier *carrier,
                              const char *address);
void tether__link_flush_locked(struct tether__link *link, bool ack_now);
/* Leaves what is queued for the next poll, when one is sure to come soon; else flushes.
 * `nobody_waits`: for the answer to what was queued last. */
void tether__link_flush_soon_locked(struct tether__link *link, bool nobody_waits);
void tether__agent_flush(void *agent); /* what was left so */
bool tether__agent_has_unflushed(const void *agent);
void tether__link_drop_locked(struct tether__link *link); /* closes the conn, if any */

/* False: another thread, of the other carrier, is still at a message of the conn before. What
 * follows must not overtake it, and it may yet have to come again. Who has dialled tries later. */
bool tether__link_is_free_locked(const struct tether__link *link, tether_error *ret_why);

/* Makes a conn that the peer dialled its stream, and answers its state. `sending`: the last send on
 * it is not out yet; `proved`: the peer has shown that it is who it says. */
void tether__link_accept_locked(struct tether__link *link,
                                struct tether__conn *conn,
                                bool sending,
                                bool proved,
                                const Tether__State *state,
                                struct tether__aftermath *ret_aftermath);

/* ---- greeting.c ---- */
extern const struct tether__transport_events tether__agent_transport_events;

/* Whether the allow-list, if there is one, has this name. */
bool tether__name_is_allowed(const tether_agent *agent, const char *name);

/* Closes conns whose handshake is overdue; says when to look again. */
int64_t tether__greetings_tick(tether_agent *agent, int64_t now);

/* Packs nothing, just queues and flushes. */
tether_status tether__link_send_locked(struct tether__link *link,
                                       uint32_t kind,
                                       tether_bytes header,
                                       struct tether__slice payload,
                                       struct tether__lane_watch *watch);

/* Whether a message of this kind may be handed to the lane now (a test may say no). */
tether_status tether__peer_may_send(const struct tether__peer *peer, uint32_t kind);

/* The extension's messages for this peer could not be handed over. `may_pass`: they will be tried
 * again; else they never can be, and the session ends: what they were to tell is told by that. */
void tether__peer_control_failed_locked(struct tether__peer *peer, bool may_pass);

/* ---- call.c ---- */

/* What makes a call one about an object. */
struct tether__call_target {
    Tether__RefId *target; /* a method call */
    bool makes;            /* remote(): */
    uint64_t result[3], result_fork[3];
    uint64_t owner_incarnation;
    const char *site, *arg_type;
    tether_value *local_object; /* a method call on this worker itself */
    void *result_here;          /* remote() on this worker itself: remote_done() TAKES it */
    void *result_there; /* remote() on another: result_type() gets it, before the future is done */
    struct tether__rider
        *about;     /* whose object it is; held if letting go could overtake the call */
    bool in_pieces; /* set before prepare_locked(): what follows may overtake the call */
    bool announced; /* set by it */
    /* Runs before the header is packed, in the order in which calls are queued. May be NULL. */
    tether_status (*prepare_locked)(void *userdata,
                                    struct tether__peer *peer,
                                    struct tether__call_target *target);
    void *prepare_userdata;
};

tether_status tether__call_check(tether_agent *agent,
                                 const char *fn,
                                 int timeout_ms,
                                 tether_error *reterr);
int64_t tether__call_deadline(tether_agent *agent, int timeout_ms);
tether_status tether__agent_resolve(tether_agent *agent,
                                    const char *to,
                                    struct tether__peer **ret_peer,
                                    tether_error *reterr);

/* Queues the call. On success its future is on its way to being finished, and yours to release. */
tether_status tether__call_start(tether_agent *agent,
                                 struct tether__peer *peer,
                                 const char *fn,
                                 const struct tether__call_target *target,
                                 const tether_value *arg,
                                 int64_t deadline,
                                 struct tether__call **ret_call,
                                 tether_error *reterr);

/* Sends a request of another kind, whose body `pack` makes once its number is known, and gives the
 * future of its reply. `must_arrive`: an attempt that fails is tried again (retry.h), and
 * `userdata` must live until the future is done. */
struct tether__packed;
/* DONE, NO_MEMORY, or REFUSED: the session that the request belongs to is over, do not send it. */
typedef enum tether__outcome tether__call_pack(void *userdata,
                                               uint64_t id,
                                               uint32_t timeout_ms,
                                               struct tether__packed *ret_packed);
tether_status tether__call_request(struct tether__peer *peer,
                                   uint32_t kind,
                                   const char *label,
                                   bool must_arrive,
                                   int64_t deadline,
                                   tether__call_pack *pack,
                                   void *userdata,
                                   tether_future **ret_future,
                                   tether_error *reterr);

/* Answers a request of the extension's. No lock held. */
void tether__reply_to(struct tether__peer *peer,
                      uint64_t session_epoch,
                      uint64_t id,
                      tether_status status,
                      const char *error,
                      tether_value *value);

/* ---- call_table.c ---- */
tether_status tether__call_new(tether_agent *agent,
                               struct tether__peer *peer,
                               const char *fn,
                               int64_t deadline,
                               struct tether__call **ret_call);
void tether__call_abandon(struct tether__call *call, bool had_slot); /* never on its way */
tether_status tether__call_put_locked(struct tether__peer *peer, struct tether__call *call);
struct tether__call *tether__call_peek_locked(struct tether__peer *peer, uint64_t id);
struct tether__call *tether__call_take_locked(struct tether__peer *peer, uint64_t id);
void tether__call_give_up(struct tether__call *call,
                          tether_status status,
                          const tether_error *error); /* if it is still in its slot */
tether_status tether__call_explain(tether_error *reterr,
                                   tether_status status,
                                   const struct tether__peer *peer,
                                   const char *fn,
                                   size_t len);
uint32_t tether__call_wire_timeout(tether_agent *agent, int64_t deadline);
void tether__call_finish(struct tether__call *call,
                         tether_status status,
                         const tether_error *error,
                         tether_value *value); /* out of its slot; no lock held */
/* The call uses this from here on, if it has not ended. */
void tether__call_tie_locked(struct tether__call *call, struct tether__use use);
/* Fails all that use this and wait for an answer, and tells the peer. No lock held. */
void tether__calls_end_use(struct tether__peer *peer,
                           struct tether__use use,
                           tether_status status,
                           const tether_error *error);
/* Words the error of a call that ended without an answer: adds function, worker, elapsed time and
 * how far the call had come to `cause`, if it timed out or the worker was lost. */
void tether__call_explain_end(const struct tether__call *call,
                              tether_status status,
                              const tether_error *cause,
                              tether_error *ret_error);
/* Why a call whose time is over has no answer: TETHER_ETIMEOUT, or why one of both workers refuses
 * the other. */
tether_status tether__peer_silence_locked(const struct tether__peer *peer, tether_error *ret_why);
int64_t tether__calls_expire_locked(struct tether__peer *peer,
                                    int64_t now,
                                    struct tether__aftermath *ret_aftermath);

/* ---- withdraw.c ---- */

/* A watch for a call in pieces, to be given to the lane; NULL: no memory, it can't be taken back.
 * unwatch: the lane did not want it after all. */
struct tether__lane_watch *tether__call_watch_locked(struct tether__call *call);
void tether__call_unwatch_locked(struct tether__call *call);

/* The call ends, what is left of it goes on. */
void tether__call_let_arrive_locked(struct tether__call *call);

/* Whether the call was taken back, so that it never arrives. */
bool tether__call_withdraw_locked(struct tether__call *call);

/* The same for a reply that goes in pieces, by the number of its call. unwatch: NULL is fine. */
struct tether__lane_watch *tether__reply_watch_locked(struct tether__peer *peer, uint64_t id);
void tether__reply_unwatch_locked(struct tether__lane_watch *watch);
void tether__reply_withdraw_locked(struct tether__peer *peer, uint64_t id); /* if it still can be */

/* ---- reply.c ---- */
/* Both take a message of the session `epoch`. DONE, REFUSED (it is malformed) or NO_MEMORY. */
enum tether__outcome tether__call_on_reply(struct tether__peer *peer,
                                           uint64_t epoch,
                                           const struct tether__inbound *message);

/* ---- dispatch.c ---- */
struct tether__incoming;
enum tether__outcome tether__dispatch_call(struct tether__peer *peer,
                                           uint64_t epoch,
                                           const struct tether__inbound *message,
                                           size_t unread);
enum tether__outcome tether__dispatch_cancel(struct tether__peer *peer,
                                             const struct tether__inbound *message);
/* For clients that speak only gRPC: whether one may call, and its call. See transport.h. */
tether_status tether__dispatch_admit(tether_agent *agent,
                                     tether_bytes token,
                                     const char *const *cert_names,
                                     tether_error *reterr);
void tether__dispatch_unary(tether_agent *agent, struct tether__unary *unary);
void tether__dispatch_local(struct tether__call *call,
                            const struct tether__call_target *target,
                            const tether_value *arg);

/* ---- run.c, answer.c ---- */
/* The function that runs for this call, if it runs, can see that nobody waits for it any more. */
void tether__incoming_cancel_locked(struct tether__peer *peer, uint64_t id);
void tether__incoming_cancel_all_locked(struct tether__peer *peer);
const char *tether__incoming_caller(const struct tether__incoming *incoming);
int64_t tether__incoming_deadline(const struct tether__incoming *incoming);
bool tether__incoming_cancelled(const struct tether__incoming *incoming);

/* ---- shutdown.c ---- */

/* Graceful: returns once nothing is under way anywhere in the group, or says what still is. */
tether_status tether__agent_drain(tether_agent *agent, int64_t deadline, tether_error *reterr);

/* A count came to 0: who drains should look. */
void tether__agent_tell_idle(tether_agent *agent);

/* Tells every peer that we leave, waits a moment until they know, and ends all sessions. */
void tether__agent_say_goodbye(tether_agent *agent);
void tether__agent_end_sessions(tether_agent *agent, const char *why);

#endif
