/* Remote references: hold, use, pass on and release objects that live on other workers.
 *
 *     tether_rref *model = tether_remote(agent, "ps", "make_model", arg, TETHER_DEFAULT_MS);
 *     tether_rref_sync(model, "train", batch, TETHER_DEFAULT_MS, &loss, &err);
 *     tether_value_attach(job, model, &err);       // sending `job` passes the reference on
 *     tether_rpc_sync(agent, "trainer2", "work", job, TETHER_DEFAULT_MS, NULL, &err);
 *     model = tether_rref_release(model);          // the last release anywhere frees the object
 *
 * The worker that an object lives on is its *owner*; every other worker that holds a reference is a
 * *user*. The owner keeps the object as long as a live worker holds a reference or one is in
 * flight. When a user dies, its references are released; when the owner dies, references to its
 * objects break: every use then returns TETHER_EOWNERDIED.
 *
 * Ownership: reference-counted. You release references and values that a function returns or puts
 * into a `ret_` argument, unless they are LENT. References may outlive the agent: using them then
 * gives TETHER_ESHUTDOWN.
 *
 * Threads: every function may be called on any thread, also in callbacks and inline functions.
 * Those that block (to_here(), rref_sync()) return TETHER_EDEADLK there.
 *
 * A NULL reference, as tether_value_rref() returns it for an argument without references, behaves
 * like a reference that is broken with TETHER_EINVAL.
 */
#ifndef TETHER_RREF_RREF_H
#define TETHER_RREF_RREF_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/macros.h"
#include "base/status.h"
#include "rpc/agent.h"
#include "rpc/future.h"
#include "rpc/value.h"

TETHER_BEGIN_DECLS

typedef struct tether_rref tether_rref;

/* ---- Making ---- */

/* Runs `fn` on worker `to` (a name or "#id"), which keeps the result as an object, and returns a
 * reference to that object at once. Never NULL: to_here(), status() and every other use report
 * errors. `timeout_ms` limits the creation of the object. */
#define tether_remote(agent, to, fn, arg, timeout_ms) \
    tether_remote_at(agent, to, fn, arg, timeout_ms, TETHER_HERE)

/* Creates a reference to `value` (retained), owned by this worker. TETHER_ENOMEM,
 * TETHER_ESHUTDOWN. */
#define tether_rref_new(agent, value, ret_rref, reterr) \
    tether_rref_new_at(agent, value, TETHER_HERE, ret_rref, reterr)

/* "file.c:12", for the report of references that were never released. */
#define TETHER_HERE __FILE__ ":" TETHER_HERE_TEXT(__LINE__)
#define TETHER_HERE_TEXT(line) TETHER_HERE_TEXT_(line)
#define TETHER_HERE_TEXT_(line) #line

/* The macros above call these, with the same errors; `site` must be a constant string. */
TETHER_API tether_rref *tether_remote_at(tether_agent *agent,
                                         const char *to,
                                         const char *fn,
                                         const tether_value *arg,
                                         int timeout_ms,
                                         const char *site);
TETHER_API tether_status tether_rref_new_at(tether_agent *agent,
                                            tether_value *value,
                                            const char *site,
                                            tether_rref **ret_rref,
                                            tether_error *reterr);

/* tether_rref_retain() returns `rref` itself; tether_rref_release() accepts NULL and returns NULL.
 */
TETHER_API tether_rref *tether_rref_retain(tether_rref *rref);
TETHER_API tether_rref *tether_rref_release(tether_rref *rref);

/* ---- Using ---- */

/* Fetches the object, once it has been made. Blocks. `*ret_value` is what the function returned:
 * the same bytes, or an object of the same type if this worker knows the type. The owner always
 * does, and gets the object itself; any other worker gets a copy if it has registered the type
 * (tether_agent_register_type() or a method of it) and the type has deserialise, else the bytes
 * that serialise made. `*ret_value` is NULL when the function returned nothing. Errors: the
 * cause of a broken reference, TETHER_ETIMEOUT, TETHER_ENOTSUP (its type has no serialise),
 * TETHER_EGONE. */
TETHER_API tether_status tether_rref_to_here(tether_rref *rref,
                                             int timeout_ms,
                                             tether_value **ret_value,
                                             tether_error *reterr);
TETHER_API tether_future *tether_rref_to_here_async(tether_rref *rref, int timeout_ms);

/* The object itself (LENDS), on the owner, when it has been made; never waits. TETHER_EINVAL on any
 * other worker, TETHER_EBUSY while it is being made. */
TETHER_API tether_status tether_rref_local_value(tether_rref *rref,
                                                 tether_value **ret_value,
                                                 tether_error *reterr);

/* Calls a method of the object's type on its owner, with the object (tether_agent_register_method).
 * Errors as for calls, and the cause of a broken reference. rref_sync() blocks. rref_remote() keeps
 * the result on the owner and returns a reference to it. */
TETHER_API tether_status tether_rref_sync(tether_rref *rref,
                                          const char *method,
                                          const tether_value *arg,
                                          int timeout_ms,
                                          tether_value **ret_value,
                                          tether_error *reterr);
TETHER_API tether_future *tether_rref_async(tether_rref *rref,
                                            const char *method,
                                            const tether_value *arg,
                                            int timeout_ms);
#define tether_rref_remote(rref, method, arg, timeout_ms) \
    tether_rref_remote_at(rref, method, arg, timeout_ms, TETHER_HERE)
TETHER_API tether_rref *tether_rref_remote_at(tether_rref *rref,
                                              const char *method,
                                              const tether_value *arg,
                                              int timeout_ms,
                                              const char *site);

/* ---- Passing on ---- */

/* Attaches `rref` (retained) to `value`: a worker that receives the value receives a reference of
 * its own. TETHER_ETOOBIG, TETHER_ENOMEM. A call or reply with the value fails with the reference's
 * cause when the reference is broken, and with TETHER_EINVAL when it belongs to another agent of
 * this process than the one that sends. */
TETHER_API tether_status tether_value_attach(tether_value *value,
                                             tether_rref *rref,
                                             tether_error *reterr);

/* The number of references that are attached to a value, and the one at index `i` (LENDS; NULL
 * when `i` is too large). */
TETHER_API size_t tether_value_n_rrefs(const tether_value *value);
TETHER_API tether_rref *tether_value_rref(const tether_value *value, size_t i);

/* ---- State and identity ---- */

typedef struct tether_rref_id {
    uint32_t creator;     /* id of the worker that created the object */
    uint32_t incarnation; /* number of the creator's start; no two starts in a run have the same */
    uint64_t counter;
} tether_rref_id;

typedef enum tether_rref_state {
    TETHER_RREF_PENDING,   /* the owner has not confirmed it yet */
    TETHER_RREF_CONFIRMED, /* the owner has registered it, or is this worker */
    TETHER_RREF_BROKEN,    /* it cannot be used: see the cause */
    TETHER_RREF_RELEASED,  /* released by the agent's shutdown */
} tether_rref_state;

/* tether_rref_status() returns the present state; if that is BROKEN, `reterr` (may be NULL) gets
 * the cause. tether_rref_state_name() returns the name of a state, such as "pending" ("?" for an
 * unknown one; static string). Never fail. */
TETHER_API tether_rref_state tether_rref_status(const tether_rref *rref, tether_error *reterr);
TETHER_API const char *tether_rref_state_name(tether_rref_state state);

/* Whether this worker owns the object; the worker id of the owner (UINT32_MAX before this worker
 * has connected to it) and its name; the object's type; its id. Never fail; LENT strings live as
 * long as the reference. */
TETHER_API bool tether_rref_is_owner(const tether_rref *rref);
TETHER_API uint32_t tether_rref_owner(const tether_rref *rref);
TETHER_API const char *tether_rref_owner_name(const tether_rref *rref); /* LENDS */
TETHER_API const char *tether_rref_type(const tether_rref *rref); /* LENDS; "": not known, bytes */
TETHER_API tether_rref_id tether_rref_get_id(const tether_rref *rref);

/* Returns whether both references refer to the same object. */
TETHER_API bool tether_rref_equal(const tether_rref *a, const tether_rref *b);

/* Returns whether the owner has confirmed the reference. The second function returns a future
 * (yours; never NULL) that is done when the owner confirms, or fails with the cause when the
 * reference breaks first. */
TETHER_API bool tether_rref_confirmed_by_owner(const tether_rref *rref);
TETHER_API tether_future *tether_rref_confirmed(tether_rref *rref);

/* Calls `fn` once if the owner is lost while the reference is held; at once if it already is. Runs
 * on the thread that notices; must not block. TETHER_ENOMEM. */
typedef void tether_rref_lost_fn(tether_rref *rref, void *userdata);
TETHER_API tether_status tether_rref_on_owner_lost(tether_rref *rref,
                                                   tether_rref_lost_fn *fn,
                                                   void *userdata,
                                                   tether_error *reterr);

/* ---- Weak references: they do not keep the object alive ---- */

typedef struct tether_rref_weak tether_rref_weak;

/* Creates a weak reference to the object of `rref`. Yours to release. */
TETHER_API tether_rref_weak *tether_rref_weak_new(
    tether_rref *rref); /* NULL: no memory, or no reference */
/* Returns the reference, retained, if this worker still holds it; else NULL. Accepts NULL. */
TETHER_API tether_rref *tether_rref_weak_lock(tether_rref_weak *weak);
TETHER_API tether_rref_weak *tether_rref_weak_release(tether_rref_weak *weak);

/* ---- Leaks ----
 *
 * A leak is a reference that the program has not released when a graceful tether_agent_shutdown()
 * has nothing more to wait for: calls have ended, and in a static group no release of a reference
 * is in flight between any two workers. These count:
 *
 *   - a reference to another worker's object, in any state: confirmed, pending or broken;
 *   - a reference to an object of this worker that was made here (tether_rref_new(), or
 *     tether_remote() to this worker) and that no other worker refers to.
 *
 * A reference that an object holds is released by the object's destructor. So it leaks only if the
 * object is not released: because a worker leaks a reference to it, or because objects refer to
 * each other in a circle. A worker that leaves a dynamic group cannot know what the others are
 * about to release: it waits until no release has come for 200 ms.
 *
 * Shutdown releases leaked references, so that it delays no other worker, and logs where they were
 * made; with `fail_on_leaks` it returns TETHER_ELEAK with the same text. Releasing them later is
 * fine. It waits for pending references first: one that is still pending when shutdown_timeout_ms
 * is over makes it return TETHER_ETIMEOUT instead, and is logged with the others. */

/* ---- Inspection ---- */

struct tether_rref_counts {
    size_t owners;           /* objects of this worker that others may refer to */
    size_t forks;            /* references to them that other workers hold */
    size_t pending_owners;   /* requests that wait for objects that have not been made yet */
    size_t pending_users;    /* references held here that their owner has not confirmed */
    size_t confirmed_users;  /* references held here that their owner has confirmed */
    size_t pending_children; /* references passed on that the receiver has not accepted */
    size_t broken_users;     /* broken references held here: the program can only release them */
    /* fork-requests without a reply; user-deletes and child-accepts that are not sent yet */
    size_t pending_futures;
};

/* The present counts; all zero while the agent is being released. */
TETHER_API struct tether_rref_counts tether_rref_counts(tether_agent *agent);

/* Writes all references and objects that this worker knows, as readable text or as JSON. An
 * object's first 64 holders are named at most, the others counted. The text is written in slices:
 * references that are created or released meanwhile may be missing or listed. TETHER_ENOMEM,
 * TETHER_ESHUTDOWN (the agent is being released). */
TETHER_API tether_status tether_rref_dump(tether_agent *agent, bool json, tether_buf *ret_text);

TETHER_END_DECLS

#endif
