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
    uint64_t id; /* the key of session->incoming */
    tether_agent *agent;
    struct tether__session *session; /* that it came in; retained; NULL for a unary call */
    struct tether__peer *peer;       /* of that session */
    struct tether__unary *unary;
    struct tether__call *local;              /* the call itself, when it is our own */
    const struct tether__function *function; /* NULL: it is not registered */
    char function_name[TETHER__MAX_FUNCTION_NAME + 1];
    tether_value *arg;    /* never NULL */
    tether_value *object; /* that a method is given; NULL: none */
    int64_t deadline;
    tether_trace trace;
    size_t unread; /* bytes of replies that its caller had not taken when it came */
    bool on_heap;
    bool has_result; /* remote(): the result becomes the object `result`; NULL when its creator has
                        released it */
    bool has_target; /* a method call */
    void *result;
    Tether__RefId target;
    struct tether__attached_ref *held; /* the target, while the references are confirmed; or NULL */
    tether_status refusal;             /* it is not to run; TETHER_OK: it is */
    tether_error *why_refused;         /* NULL: the text of the status is used */
    uint64_t owner_incarnation;
    struct tether__resume resume; /* goes on when the references are confirmed */
    bool waits; /* for them, or for its object: it counts in session->n_waiting. Set under peer->mu
                 */
    size_t waiting_bytes; /* of its argument, then */
    size_t held_bytes;    /* under peer->mu: of its argument, while it is listed */
    bool listed;          /* under peer->mu: in session->incoming */
    bool keeps_agent; /* asynchronous: the reply may come after the agent was released, so it holds
                         one count of the agent's memory */
    /* any thread */
    _Atomic uint32_t refs;  /* on the heap: the reply handle, and the function while it runs */
    _Atomic bool answered;  /* then the running function's thread must not look at it any more... */
    _Atomic bool looked_at; /* ...and the thread that answers waits until it does not */
    _Atomic bool cancelled;
    _Atomic bool runs; /* its function has begun */
    struct tether__task task;
};

/* The public handle is the incoming call itself. */
struct tether_reply {
    struct tether__incoming incoming;
};

/* ---- run.c ---- */

/* Finds the function by its name. set_method: by the name that it has and the type of its object: a
 * method is registered under its type, which only the owner of the object knows for sure. */
void tether__incoming_set_function(struct tether__incoming *incoming, const char *name, size_t len);
void tether__incoming_set_method(struct tether__incoming *incoming);

/* Makes a heap copy and remembers it, so that it can be cancelled and can wait. TETHER_ENOMEM;
 * TETHER_EEXIST: the caller numbers two calls alike; TETHER_EBUSY: the caller has too many calls,
 * or bytes in their arguments, here (not with `has_refs`: references that have arrived are settled
 * in any case). On error the original is still yours, to answer with that. */
tether_status tether__incoming_keep(const struct tether__incoming *on_stack,
                                    bool has_refs,
                                    struct tether__incoming **ret_incoming);
void tether__incoming_answer_unkept(struct tether__incoming *on_stack, tether_status status);

/* Frees a kept call that no other code has a pointer to yet. */
void tether__incoming_forget(struct tether__incoming *incoming);

/* Runs the function inline or on the pool, as it was registered, or replies with the error that
 * prevents that. TAKES the call, if it is kept.
 */
void tether__incoming_run(struct tether__incoming *incoming);

/* ---- reply.c ---- */

/* Takes it out of session->incoming, if it is there. */
void tether__incoming_unlist(struct tether__incoming *incoming);

/* The argument of a function whose caller sent none. Never freed. */
tether_value *tether__empty_value(void);

/* Gives a count of a kept call back. */
void tether__incoming_unref(struct tether__incoming *incoming);

/* Sends the answer and gives the incoming call back. `value` (may be NULL) is borrowed. */
void tether__incoming_answer(struct tether__incoming *incoming,
                             tether_status status,
                             const char *error,
                             tether_value *value);

#endif
