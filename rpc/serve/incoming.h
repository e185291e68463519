/* A call from another worker, from its arrival to its reply. receive.c receives it, run.c runs it,
 * reply.c replies. The call of an inline function is on the stack of the thread that received it.
 */
#ifndef TETHER_RPC_SERVE_INCOMING_H
#define TETHER_RPC_SERVE_INCOMING_H

#include "base/status.h"
#include "base/threads/loop.h"
#include "base/trace.h"
#include "rpc/agent.h"
#include "rpc/refs.h"
#include "rpc/serve/registry.h"
#include "rpc/value.h"

struct tether__call;
struct tether__session;
struct tether__unary;

struct tether__incoming {
    /* immutable */
    uint64_t id; /* number of the call; key in session->incoming */
    tether_agent *agent;
    /* session in which the call arrived; retained; NULL for a call of a plain gRPC client */
    struct tether__session *session;
    struct tether__peer *peer; /* peer of `session` */
    struct tether__unary *unary;
    /* the caller's struct, for a call of this worker to itself */
    struct tether__call *local;
    const struct tether__function *function; /* NULL: no such function is registered */
    char function_name[TETHER__MAX_FUNCTION_NAME + 1];
    tether_value *arg;    /* never NULL */
    tether_value *object; /* object of a method call; NULL: none, or not found yet */
    int64_t deadline;
    tether_trace trace;
    size_t unread; /* bytes of replies that the caller had not acknowledged when the call arrived */
    bool on_heap;
    /* a remote() call: its result becomes the object `result`, which is NULL if the creator has
     * released it */
    bool has_result;
    bool has_target; /* a method call about the object `target` */
    void *result;
    Tether__RefId target;
    /* keeps the target while the references are confirmed; NULL: nothing kept */
    struct tether__attached_ref *held;
    tether_status refusal; /* why the function must not run; TETHER_OK: it may */
    /* message for `refusal`; NULL: the text of the status is used */
    tether_error *why_refused;
    uint64_t owner_incarnation;
    struct tether__resume resume; /* continues the call when its references are confirmed */
    /* the call waits for its references or its object, and counts in session->n_waiting; set under
     * peer->mu */
    bool waits;
    size_t waiting_bytes; /* size of the argument while the call waits */
    /* size of the argument, counted in the session while `listed`; under peer->mu */
    size_t held_bytes;
    bool listed; /* the call is in session->incoming; under peer->mu */
    /* an asynchronous function may reply after the agent was released, so its call holds a count of
     * the agent's memory */
    bool keeps_agent;
    /* any thread */
    /* of a kept call: one for the reply, one while an asynchronous function runs */
    _Atomic uint32_t refs;
    /* set first by the replying thread: the function's thread must not begin to read the call any
     * more */
    _Atomic bool answered;
    /* the function's thread reads the call now; the replying thread waits until it has finished */
    _Atomic bool looked_at;
    _Atomic bool cancelled;
    _Atomic bool runs; /* the function has begun */
    struct tether__task task;
};

/* The public handle is the incoming call itself. */
struct tether_reply {
    struct tether__incoming incoming;
};

/* ---- run.c ---- */

/* set_function() finds the function by its name. set_method() finds a method by its name and the
 * type of the object: only the owner of the object knows the type for certain. */
void tether__incoming_set_function(struct tether__incoming *incoming, const char *name, size_t len);
void tether__incoming_set_method(struct tether__incoming *incoming);

/* Keeps a call: copies it to the heap and adds it to session->incoming, so that it can wait and can
 * be cancelled. TETHER_ENOMEM; TETHER_EEXIST: the caller has used the number for two calls;
 * TETHER_EBUSY: the caller has too many calls here, or too many bytes in their arguments.
 * `has_refs`: never TETHER_EBUSY, since references that have arrived must be confirmed in any case.
 * On error the caller of keep() still has the call, and answers it with answer_unkept(). */
tether_status tether__incoming_keep(const struct tether__incoming *on_stack,
                                    bool has_refs,
                                    struct tether__incoming **ret_incoming);
void tether__incoming_answer_unkept(struct tether__incoming *on_stack, tether_status status);

/* Frees a kept call without a reply. No other code may have a pointer to the call yet. */
void tether__incoming_forget(struct tether__incoming *incoming);

/* Runs the function inline or on the pool, as it was registered. If it cannot be run, replies with
 * the error. TAKES the call, if it is kept. */
void tether__incoming_run(struct tether__incoming *incoming);

/* ---- reply.c ---- */

/* Removes the call from session->incoming, if it is there. */
void tether__incoming_unlist(struct tether__incoming *incoming);

/* Returns the argument for functions whose caller has sent none. It is static and never freed. */
tether_value *tether__empty_value(void);

/* Releases a reference count of a kept call. */
void tether__incoming_unref(struct tether__incoming *incoming);

/* Sends the reply and releases the call. `value` (may be NULL) is borrowed. */
void tether__incoming_answer(struct tether__incoming *incoming,
                             tether_status status,
                             const char *error,
                             tether_value *value);

#endif
