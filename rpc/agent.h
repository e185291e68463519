/* The agent: this program as one worker of a group. Other workers find it by its name. It calls
 * functions that other workers have registered, and serves its own.
 *
 *     tether_agent *agent = NULL;
 *     tether_agent_new(TETHER_AGENT_OPTS(.name = "ps", .rendezvous = "env://"), &agent, &err);
 *     tether_agent_register(agent, "add", add, NULL, &err);
 *     tether_agent_start(agent, &err);
 *     tether_rpc_sync(agent, "trainer1", "step", arg, TETHER_DEFAULT_MS, &result, &err);
 *     tether_agent_shutdown(agent, true, &err);
 *     agent = tether_agent_release(agent);
 *
 * Lifetime: tether_agent_new() OK => you must tether_agent_release(). On error: nothing to undo.
 * start() is called once. Values, futures, references and replies may outlive the agent: operations
 * that need it then fail with TETHER_ESHUTDOWN. Several agents may live in one process, and a new
 * one may be made after another was released.
 *
 * An agent is reference-counted. Every function here may run while another thread stops or releases
 * the agent: shutdown() fails the operations that other threads wait for, and returns when those
 * threads have left the calls that they had begun. A thread that begins a call while another one
 * may release the agent needs a handle of its own (tether_agent_retain).
 *
 * Time: `int timeout_ms`: 0 polls, -1 for ever, TETHER_DEFAULT_MS the agent's default. Inside a
 * function that runs for a caller, TETHER_DEFAULT_MS means no longer than that caller waits.
 *
 * Ownership: arguments are borrowed for the call (options are copied), a result in a `ret_`
 * argument and every future is yours to release, an object that is LENT lives as long as your
 * handle. The `userdata` of a function must live until the agent is released, the type of a method
 * for ever.
 *
 * Threads: every function here may be called from any thread unless it says otherwise. Those that
 * block say so; inside an inline function or a callback they return TETHER_EDEADLK.
 */
#ifndef TETHER_RPC_AGENT_H
#define TETHER_RPC_AGENT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/macros.h"
#include "base/status.h"
#include "base/trace.h"
#include "rendezvous/store.h"
#include "rpc/future.h"
#include "rpc/value.h"

TETHER_BEGIN_DECLS

#define TETHER_MAX_WORKER_NAME 127

typedef struct tether_agent tether_agent;

/* All fields but `size` may be left out; zero means the default in brackets. Strings and arrays are
 * copied. */
struct tether_agent_opts {
    size_t size; /* set by TETHER_AGENT_OPTS */

    /* Name and addresses */
    const char *name;       /* 1 to 127 of [A-Za-z0-9_:.-]   ["worker<rank>"] */
    const char *rendezvous; /* URL where the group meets     ["env://"] */
    tether_store *store;    /* instead of `rendezvous`; retained. With `store`, set also: */
    int rank;               /*   this worker's number in a static group */
    int world_size;     /*   number of workers; 0: a dynamic group, joined and left at any time */
    const char *group;  /* separates groups that share a store; A-Z a-z 0-9 _ : . - /
                           ["tether"] */
    const char *listen; /* host:port or unix:path        ["127.0.0.1:0"] */
    /* host:port that others dial, if not `listen`; port 0: the port that this worker listens on */
    const char *advertise;
    /* Observe a group without joining it. An observer writes nothing to the store, claims no name,
     * cannot be called, and neither makes nor holds references; it may call functions, list the
     * workers and ask for their dumps. `name` names the observer in logs, `allowed_peers` and
     * certificates. start() is TETHER_ENOTFOUND when no worker of the group has ever joined. */
    bool observe;
    /* In a dynamic group: replaces a worker of the same name, also a live one. For a program that
     * has ended the earlier process itself, or wants to replace it. Without take_over, start() asks
     * that worker first, see there. */
    bool take_over;
    bool no_unix_socket; /* do not also listen on a unix socket for workers of this host */

    /* Time */
    int timeout_ms;       /* limit of a call [60000] */
    int start_timeout_ms; /* limit of start() as a whole [300000] */
    /* limit of each step of this worker's own in shutdown(), see there [100000] */
    int shutdown_timeout_ms;
    int lease_ms; /* silence after which a peer counts as dead; 100 to 86400000 [30000] */

    /* Limits */
    int threads;               /* threads for pooled functions [16] */
    int max_queued;            /* calls waiting for a thread; a quarter of it is for calls of plain
                                * gRPC clients that have not ended        [4096] */
    int max_calls_per_peer;    /* calls in flight to one peer; also calls of one peer that wait here
                                * for references or an object             [16384] */
    size_t max_bytes_per_peer; /* bytes sent to a peer and not yet acknowledged; also in the
                                * arguments of calls that wait as above. Twice as much for requests
                                * of all plain gRPC clients, and for their results [64 MiB] */
    size_t max_message_bytes;  /* one call or reply, with its names and references; at least
                                * 64 KiB                                  [256 MiB] */
    int spin_us; /* poll this long before blocking; -1: never. Off on a host with one CPU  [50] */

    /* Security: PEM files, or the PEM text itself in the *_pem fields */
    const char *tls_ca_file, *tls_cert_file, *tls_key_file;
    const char *tls_ca_pem, *tls_cert_pem, *tls_key_pem;
    bool tls_one_way;  /* workers that connect need no certificate; without a CA, the system's roots
                          verify the workers that we dial. Needs a token */
    const char *token; /* shared secret that peers and plain clients must have */
    /* Names that may connect; NULL: any of the group. With TLS the certificate of a worker must
     * contain its name, and plain clients need a certificate with one of these names. */
    const char *const *allowed_peers;
    size_t n_allowed_peers;
    bool insecure; /* allow other hosts to connect without TLS, also to metrics_listen */

    bool fail_on_leaks; /* a graceful shutdown() fails when references leak (see rref.h) */

    const char *metrics_listen; /* host:port for Prometheus text; NULL: none */

    const struct tether__agent_hooks *hooks; /* for Tether's own tests; leave it NULL */
};

#define TETHER_AGENT_OPTS(...) TETHER__OPTS(tether_agent_opts, __VA_ARGS__)

/* Checks the options and creates an agent that is not started. Errors: TETHER_EINVAL (an option is
 * invalid), TETHER_EIO (a file cannot be read), TETHER_EPERM (a listen address would be open to
 * other hosts or users), TETHER_ENOMEM. */
TETHER_API tether_status tether_agent_new(const struct tether_agent_opts *opts,
                                          tether_agent **ret_agent,
                                          tether_error *reterr);

/* ---- Functions that others may call; register them before start() ---- */

/* Runs for a caller. `arg` is borrowed and never NULL. On success put the result into `*ret_value`
 * (the library takes it over; NULL: no result). Otherwise return a status and set `reterr`: the
 * caller gets both. */
typedef tether_status tether_fn(void *userdata,
                                const tether_value *arg,
                                tether_value **ret_value,
                                tether_error *reterr);

/* A *pooled* function runs on one of the agent's threads and may block. A call made in it blocks
 * that thread, so functions that wait for each other can use up the pool; then they fail at their
 * timeouts. TETHER_EEXIST, TETHER_EINVAL (a bad name, one that begins with "tether.", or after
 * start()), TETHER_ENOMEM. */
TETHER_API tether_status tether_agent_register(tether_agent *agent,
                                               const char *name,
                                               tether_fn *fn,
                                               void *userdata,
                                               tether_error *reterr);

/* An *inline* function runs at once on the thread that received the call: for short work that never
 * blocks. It saves two thread switches. Errors as for tether_agent_register(). */
TETHER_API tether_status tether_agent_register_inline(tether_agent *agent,
                                                      const char *name,
                                                      tether_fn *fn,
                                                      void *userdata,
                                                      tether_error *reterr);

/* An *asynchronous* function returns at once and answers later, from any thread, through `reply`,
 * which it TAKES: answer exactly once with tether_reply_ok() or tether_reply_error(). It runs on a
 * pool thread, or on the receiving thread with `run_inline`. `arg` lives until the function has
 * returned and the call is answered. Errors as for tether_agent_register(). */
typedef struct tether_reply tether_reply;
typedef void tether_async_fn(void *userdata, const tether_value *arg, tether_reply *reply);
TETHER_API tether_status tether_agent_register_async(tether_agent *agent,
                                                     const char *name,
                                                     tether_async_fn *fn,
                                                     bool run_inline,
                                                     void *userdata,
                                                     tether_error *reterr);

/* A *method* gets the object that the call is about (LENDS; see rref/rref.h). It is registered for
 * one type under "type.name", pooled or inline as for functions. Errors as for
 * tether_agent_register(). */
typedef tether_status tether_method(void *userdata,
                                    void *object,
                                    const tether_value *arg,
                                    tether_value **ret_value,
                                    tether_error *reterr);
TETHER_API tether_status tether_agent_register_method(tether_agent *agent,
                                                      const tether_type *type,
                                                      const char *name,
                                                      tether_method *method,
                                                      bool run_inline,
                                                      void *userdata,
                                                      tether_error *reterr);

/* Registers a type, so that copies of its objects are received as objects (otherwise as bytes).
 * Registering a method also registers its type. TETHER_EEXIST, TETHER_EINVAL, TETHER_ENOMEM. */
TETHER_API tether_status tether_agent_register_type(tether_agent *agent,
                                                    const tether_type *type,
                                                    tether_error *reterr);

/* Sends the reply and releases the handle. `value` (may be NULL) is borrowed. Never blocks; if the
 * value can't be sent, the caller gets an error. */
TETHER_API void tether_reply_ok(tether_reply *reply, tether_value *value);
TETHER_API void tether_reply_error(tether_reply *reply,
                                   tether_status status,
                                   const char *format,
                                   ...) TETHER_PRINTF(3, 4);

/* Whether the caller no longer waits: it cancelled, timed out or died. Stop working then, but still
 * answer.
 */
TETHER_API bool tether_reply_is_cancelled(const tether_reply *reply);

/* The caller's trace id (base/trace.h), for a function that answers from another thread. */
TETHER_API tether_trace tether_reply_trace(const tether_reply *reply);

/* Inside a function that runs for a caller: the caller's name (LENDS; NULL outside of one), how
 * long it still waits (-1: for ever, or outside), and whether it has given up. A callback or
 * destructor that runs on the function's thread counts as outside, and so does a function whose
 * call has been answered. */
TETHER_API const char *tether_caller_name(void);
TETHER_API int tether_caller_time_left_ms(void);
TETHER_API bool tether_caller_has_cancelled(void);

/* ---- Start and shutdown ---- */

/* Meets the other workers of the group, then serves calls. Blocks until the group is complete
 * (static) or this worker has joined (dynamic), at most start_timeout_ms. On error the agent can
 * only be released.
 *
 * A dynamic group may have a worker of the same name already. start() asks it where it listens. If
 * it answers, start() is TETHER_EEXIST and nothing has changed. If no process listens there any
 * more, or another worker does, this worker replaces it at once. If it does not answer (it is
 * stopped, or its host cannot be reached), start() waits for lease_ms and then replaces it; a
 * worker that was replaced and goes on fails with TETHER_EFENCED. In a static group a rank that is
 * started again replaces its earlier start without asking.
 *
 * TETHER_ETIMEOUT (the message names the missing ranks, or the store that did not answer),
 * TETHER_EEXIST (two workers of one name), TETHER_EAUTH, TETHER_EPERM (a live worker of this name
 * has another token, or refuses this certificate), TETHER_EADDRINUSE (`listen`), TETHER_EINVAL
 * (started twice; the meeting point or the certificates are wrong), TETHER_EDEADLK (called from an
 * inline function or a callback: the agent can still be started elsewhere), TETHER_EUNAVAILABLE
 * (the store went away), TETHER_EIO, TETHER_ENOMEM, and errors of the store or rendezvous. */
TETHER_API tether_status tether_agent_start(tether_agent *agent, tether_error *reterr);

/* Graceful, in a static group: serves until every live worker of the group shuts down and no call
 * is in flight, calls made by callbacks included, so that no call is lost. Dead workers are
 * skipped. There is no limit on the time that live workers take: a worker that only serves others
 * may call shutdown() right after start(). shutdown_timeout_ms limits each step of this worker's
 * own: requests to the store, functions that run here although their callers have given up,
 * references that are not released. Graceful, in a dynamic group: waits for its own calls and for
 * the functions that run here, both within shutdown_timeout_ms. Not graceful: calls in flight fail
 * with TETHER_ESHUTDOWN. In all cases shutdown() blocks. A second shutdown() waits for the first
 * and returns its result; one that is not graceful makes a graceful one end now, with
 * TETHER_ESHUTDOWN. The agent has stopped in every case but two: TETHER_EDEADLK (called from a
 * function, a callback, or user code that a call of yours runs) and TETHER_EINVAL (start() was
 * never called or has not returned). Otherwise an error says what was not graceful about it:
 * TETHER_ETIMEOUT, TETHER_ELEAK (`fail_on_leaks`), TETHER_EUNAVAILABLE (the store is gone). */
TETHER_API tether_status tether_agent_shutdown(tether_agent *agent,
                                               bool graceful,
                                               tether_error *reterr);

/* Returns one more handle of the same agent, to be released like the first. For a thread that uses
 * the agent while another thread may release it. Accepts NULL. Never fails. */
TETHER_API tether_agent *tether_agent_retain(tether_agent *agent);

/* Releases a handle. Accepts NULL, returns NULL. The last release of a running agent shuts it down
 * ungracefully and blocks until that is done. In a function or a callback it does not block: a
 * separate thread completes the shutdown. If start() or shutdown() runs on another thread,
 * release() returns at once and that thread completes the release; start() then returns
 * TETHER_ESHUTDOWN, and shutdown() is no longer graceful. */
TETHER_API tether_agent *tether_agent_release(tether_agent *agent);

/* ---- Calls ---- */

/* Calls function `fn` on worker `to` (a name, or "#7" for the worker with id 7) with `arg` (may be
 * NULL: no bytes; borrowed) and waits for the result. Blocks. `*ret_value` is yours (NULL when the
 * function returned nothing; from another worker an empty value is NULL, too). Errors:
 * TETHER_ENOTFOUND (no such worker or function), TETHER_ETIMEOUT, TETHER_EUNAVAILABLE (the worker
 * died or can't be reached), TETHER_EFENCED (it has ended the session with this worker, or a later
 * start of this worker's name has replaced it), TETHER_EAUTH, TETHER_EPERM (it refuses this
 * worker), TETHER_ESHUTDOWN, TETHER_ETOOBIG, TETHER_EDEADLK, TETHER_ENOMEM, or what the function
 * returned; the message names the worker. */
TETHER_API tether_status tether_rpc_sync(tether_agent *agent,
                                         const char *to,
                                         const char *fn,
                                         const tether_value *arg,
                                         int timeout_ms,
                                         tether_value **ret_value,
                                         tether_error *reterr);

/* Makes the same call without waiting for the result. Never returns NULL and never blocks: every
 * error arrives in the future, also TETHER_EBUSY when too much is in flight to that worker.
 *
 * Order: calls of one thread to one worker whose arguments have up to 256 KiB arrive in the order
 * in which they were made. Inline functions run as calls arrive, one at a time for each caller.
 * Pooled functions begin in that order if threads are free, but run side by side. A call may be
 * overtaken by later calls if its argument is larger, or while its attached references are being
 * registered. Answers come in any order. If a call must run after another one, make it when the
 * other one is answered.
 */
TETHER_API tether_future *tether_rpc_async(tether_agent *agent,
                                           const char *to,
                                           const char *fn,
                                           const tether_value *arg,
                                           int timeout_ms);

/* Options of tether_rpc_sync_with() and tether_rpc_async_with(). Zero means the default in
 * brackets; NULL in place of the struct: all defaults. */
struct tether_call_opts {
    size_t size;    /* set by TETHER_CALL_OPTS */
    int timeout_ms; /* -1: for ever  [TETHER_DEFAULT_MS] */
    /* trace id that is sent with the call [the trace id of this thread, base/trace.h] */
    tether_trace trace;
};

#define TETHER_CALL_OPTS(...) TETHER__OPTS(tether_call_opts, __VA_ARGS__)

/* As tether_rpc_sync() and tether_rpc_async(): blocking, ownership and errors. */
TETHER_API tether_status tether_rpc_sync_with(tether_agent *agent,
                                              const char *to,
                                              const char *fn,
                                              const tether_value *arg,
                                              const struct tether_call_opts *opts,
                                              tether_value **ret_value,
                                              tether_error *reterr);
TETHER_API tether_future *tether_rpc_async_with(tether_agent *agent,
                                                const char *to,
                                                const char *fn,
                                                const tether_value *arg,
                                                const struct tether_call_opts *opts);

/* ---- Workers ---- */

/* The state of another worker, as known here without asking it (docs/membership.md). LOST and DEAD
 * last until a connection is up again or a later start has joined. */
typedef enum tether_worker_state {
    TETHER_WORKER_UNKNOWN,   /* not connected, because no connection was needed yet */
    TETHER_WORKER_CONNECTED, /* a connection is up; also the state of this worker itself */
    TETHER_WORKER_LOST,      /* silent for lease_ms: it may be slow or cut off */
    TETHER_WORKER_DEAD,      /* this start is over for certain: calls fail at once */
} tether_worker_state;

typedef struct tether_worker {
    char name[TETHER_MAX_WORKER_NAME + 1];
    uint32_t id;
    uint64_t incarnation; /* 0: not met yet */
    char address[256];
    tether_worker_state state;
} tether_worker;

/* "unknown", "connected", "lost", "dead". Never NULL. */
TETHER_API const char *tether_worker_state_name(tether_worker_state state);

/* This worker's own identity, address and store. Never fail. */
TETHER_API const char *tether_agent_name(const tether_agent *agent);    /* LENDS; after start() */
TETHER_API uint32_t tether_agent_id(const tether_agent *agent);         /* after start() */
TETHER_API int tether_agent_rank(const tether_agent *agent);            /* -1 in a dynamic group */
TETHER_API int tether_agent_world_size(const tether_agent *agent);      /* 0 in a dynamic group */
TETHER_API const char *tether_agent_address(const tether_agent *agent); /* LENDS; after start() */
TETHER_API tether_store *tether_agent_store(const tether_agent *agent); /* LENDS; after start() */

/* Looks up a worker; may ask the store (blocks). TETHER_ENOTFOUND, TETHER_EINVAL (no name),
 * TETHER_ESHUTDOWN (not running), TETHER_EDEADLK, or an error of the store. */
TETHER_API tether_status tether_agent_worker(tether_agent *agent,
                                             const char *name,
                                             tether_worker *ret_worker,
                                             tether_error *reterr);
TETHER_API tether_status tether_agent_worker_by_id(tether_agent *agent,
                                                   uint32_t id,
                                                   tether_worker *ret_worker,
                                                   tether_error *reterr);

/* All workers of the group, this one included, by id; free with tether_workers_free(). A killed
 * worker is listed until a worker that was connected to it forgets it, ten leases later. May ask
 * the store (blocks). TETHER_ESHUTDOWN (not running), TETHER_EDEADLK, TETHER_ENOMEM, or an error of
 * the store. */
TETHER_API tether_status tether_agent_workers(tether_agent *agent,
                                              tether_worker **ret_workers,
                                              size_t *ret_n,
                                              tether_error *reterr);
TETHER_API void tether_workers_free(tether_worker *workers);

/* ---- Metrics ---- */

/* Writes the agent's counters in the text format of Prometheus: calls, latencies, and bytes,
 * errors, connects and fences of each peer. Five minutes after a dead peer was last heard, its
 * counters are added to those of peer="(gone)"; with short leases earlier, when the worker forgets
 * the peer, ten leases after its session has ended. Workers that this one never connected to have
 * no counters. Replaces the content of `ret_text`. TETHER_ENOMEM, TETHER_ESHUTDOWN (it is being
 * released). */
TETHER_API tether_status tether_agent_metrics(tether_agent *agent, tether_buf *ret_text);

/* The address at which the metrics are served (option metrics_listen); "" if they are not served.
 * LENDS; after start(). Never fails. */
TETHER_API const char *tether_agent_metrics_address(const tether_agent *agent);

TETHER_END_DECLS

#endif
