/* The agent as the units of rpc see it: its options, clock, gates, counters and tables.
 *
 * Threads, of each transport: the *server thread* polls the server side and runs inline functions;
 * a thread that waits, else the *background thread*, polls the client side (future/poller.h). One
 * background thread runs the timers. Pool threads, started on demand, run pooled functions, and
 * others talk to the store. A *reaper* runs the destructors of objects that those threads have
 * released.
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

#include "base/heap.h"
#include "base/list.h"
#include "base/log_limit.h"
#include "base/map.h"
#include "base/status.h"
#include "base/threads/call_gate.h"
#include "base/threads/life.h"
#include "base/threads/loop.h"
#include "base/threads/pool.h"
#include "base/threads/reaper.h"
#include "rendezvous/store.h"
#include "rpc/agent.h"
#include "rpc/agent/counters.h"
#include "rpc/agent/routes.h"
#include "rpc/future/condition.h"
#include "rpc/future/poller.h"
#include "rpc/future/thread_context.h"
#include "rpc/group/directory.h"
#include "rpc/handshake/pairing.h"
#include "rpc/lane/lane.h"
#include "rpc/peer/admission/starts.h"
#include "rpc/serve/registry.h"

struct tether__peer_entry;
struct tether__transport_opts;

/* Functions that tests put in the place of parts of the agent. May be NULL. */
struct tether__agent_hooks {
    tether_status (*make_transport)(void *userdata,
                                    const struct tether__transport_opts *opts,
                                    struct tether__transport **ret_transport,
                                    tether_error *reterr);
    const struct tether__clock *clock;
    /* When given, the agent has no threads: pooled functions and look-ups go here, and the test
     * polls the transport and runs the timers (tether__poller_run_due). */
    void (*submit)(void *userdata, tether_agent *agent, struct tether__task *task);
    /* Called before a message is handed to the lane; any status but TETHER_OK makes this attempt
     * fail. Tests inject faults with it. May be NULL. */
    tether_status (*before_send)(void *userdata, const char *peer, uint32_t kind);
    /* Returns the seconds since 1970, or any number that grows faster than workers start. NULL:
     * time() is used. */
    int64_t (*wall_clock)(void *userdata);
    void *userdata;
};

enum tether__agent_state {
    TETHER__AGENT_NEW,
    TETHER__AGENT_STARTING,
    TETHER__AGENT_JOINING, /* start() has not returned, but others may call already */
    TETHER__AGENT_RUNNING,
    TETHER__AGENT_STOPPING, /* shutdown() waits for calls in flight */
    TETHER__AGENT_PARTING,  /* says goodbye: makes no calls, serves no calls, accepts no workers */
    TETHER__AGENT_STOPPED,
};

/* An agent ends in three steps:
 *
 * - it stops running: stop() closes the gate `calls` and waits for the threads inside;
 * - the program releases its last handle (`handles`, tether_agent_retain): that stops the agent,
 *   closes the gate `visits`, and releases the store and the reference layer;
 * - its memory is freed, with that of its peers and pollers, when `life` has no counts left. All
 *   handles together hold one count. Each future holds one, each asynchronous reply, and the
 *   context of the reference layer, which references keep. So objects that outlive the agent can
 *   still use its memory, and find its gates closed.
 */
struct tether_agent {
    struct tether__life life;
    _Atomic uint32_t handles;
    struct tether__call_gate calls; /* public calls that use threads, transports or the store */
    /* public calls that only read memory: allowed after shutdown(), too */
    struct tether__call_gate visits;
    /* immutable after new() */
    struct tether_agent_opts opts; /* its strings are copies that the agent owns */
    const struct tether__clock *clock;
    struct tether__lane_limits lane_limits;
    struct tether__registry registry; /* immutable after start() */
    /* context of the reference layer; NULL: that layer is not in this program */
    void *ext;
    /* immutable after start() */
    char name[TETHER_MAX_WORKER_NAME + 1];
    int rank, world_size;
    struct tether__self self;
    struct tether__route local, network; /* network: immutable once network_start.runs */
    struct tether__network_start network_start;
    struct tether__poller *timers; /* the poller whose background thread runs the timers */
    struct tether__directory directory;
    struct tether__pool pool;
    _Atomic bool pool_runs;
    bool address_is_own; /* see struct tether__worker_record */
    /* the directory may have a record of this worker */
    bool published;
    struct tether__metrics_server *metrics_server; /* NULL: none */
    char metrics_address[280];                     /* "": metrics are not served */
    tether_store *store;                           /* lent by tether_agent_store(); retained */
    /* any thread */
    struct tether__reaper reaper;
    struct tether__metrics metrics;
    _Atomic int state;
    _Atomic bool leaving;   /* this worker refuses new calls from others */
    _Atomic bool cut_short; /* a graceful shutdown() must end now */
    /* a later start of this worker's name has joined: this start is stale */
    _Atomic bool replaced;
    /* when to check whether the store still has the run; 0: checks have not begun */
    _Atomic int64_t store_check_due;
    _Atomic bool checking_store;
    struct tether__task store_check; /* owned by the thread that set checking_store */
    _Atomic int confirming;          /* look-ups on behalf of peers that are not authenticated */
    _Atomic uint32_t n_unlisted;     /* peers that have connected and are not in the directory */
    _Atomic uint32_t n_named; /* peers that exist only because messages of others have named them */
    /* stack of streams with deferred frames (peer/flush.c) */
    _Atomic(struct tether__stream *) deferred;
    /* calls of this worker whose callbacks have not finished yet */
    _Atomic uint64_t active_calls;
    _Atomic uint64_t started_calls; /* calls that this worker has made since its start */
    /* items that were posted to outboxes since the start */
    _Atomic uint64_t n_posted;
    _Atomic uint64_t running; /* calls of others that run or wait here */
    /* threads that wait until active_calls or running is 0 */
    struct tether__condition idle;
    struct tether__log_limit refusals; /* limits the log of refused connections */
    struct tether__starts starts;      /* table of the peers' start numbers */
    /* under mu */
    struct tether__map peers_by_name;
    struct tether__peer_entry *peers; /* see peer/table.h; n_peers excludes dropped ones */
    size_t n_entries, cap_entries, n_peers;
    uint64_t last_serial;
    struct tether__peer_metrics gone; /* sums of the counters of all forgotten peers */
    bool any_gone;
    /* control messages that are tried again, ordered by due time */
    struct tether__heap retries;
    struct tether__list pending_conns; /* conns of peers that have not finished their handshake */
    size_t n_pending;
    bool stop_is_over; /* the first shutdown() has ended; its result follows */
    tether_status stop_status;
    tether_error stop_error;
    pthread_cond_t stop_over;
    pthread_mutex_t mu;
    /* under due_mu */
    struct tether__heap dues; /* peers, ordered by the time when their timers must run */
    pthread_mutex_t due_mu;
    /* used only by the thread that runs the timers */
    bool all_saw_replaced;
};

/* Every public call that uses more than the agent's memory enters the gate `calls`. False: the
 * agent has stopped, and tether__agent_exit() must not be called. User code that runs inside the
 * gate (a serialise(), a destructor) must not stop the agent, because that would wait for this
 * thread. */
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

/* Whether the agent has begun to send goodbyes, or has stopped. A thread that changes a peer asks
 * this under peer->mu. The thread that stops the agent sets the state first and then ends all
 * sessions under peer->mu. */
static inline bool tether__agent_is_parting(const tether_agent *agent)
{
    return atomic_load(&agent->state) >= TETHER__AGENT_PARTING;
}

/* The error of a graceful shutdown that was cut short. */
#define TETHER__CUT_SHORT "another thread has released the agent, or shut it down ungracefully"

/* Fills the error of a public call for which tether__agent_enter() has failed. */
tether_status tether__agent_has_stopped(const char *what, tether_error *reterr);

/* Whether both ends of a conn must show certificates, whose names are checked. */
static inline bool tether__has_mutual_tls(const tether_agent *agent)
{
    return agent->opts.tls_cert_pem && agent->opts.tls_ca_pem && !agent->opts.tls_one_way;
}

/* Runs `task` on a thread of `pool`; in tests with the hook `submit`, passes it to that hook. */
tether_status tether__agent_submit(tether_agent *agent,
                                   struct tether__pool *pool,
                                   struct tether__task *task);

/* Runs the timers that are due by `now` and returns when it must be called next. Background
 * thread. */
int64_t tether__agent_tick(void *agent, int64_t now);

/* Makes tether__agent_tick() run at `due` at the latest. Any thread; cheap when it runs by then
 * anyway. */
static inline void tether__agent_kick(tether_agent *agent, int64_t due)
{
    tether__poller_kick(agent->timers, due);
}

#endif
