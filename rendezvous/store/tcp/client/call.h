/* One call on a TCP store, from taking a connection to returning it.
 *
 * Happy path: begin() takes a connection, put_...() build the request, ask() sends it and waits for
 * the first byte of the reply, get_...() read it, end() returns the connection. With our server
 * (dialect T) every call is one request and one reply. PyTorch's dialects need more: a request
 * without a reply is followed by one that has a reply (a fence); a get is a wait and a get.
 *
 * Time: a waiting call that times out cancels its wait, so that the connection stays in step. If
 * the reply arrives before the cancel takes effect, it counts. A call with a timeout of 0 sends
 * request and cancel together, and the server answers from its present state. Other calls that time
 * out close their connection; the server may or may not have executed them.
 *
 * An idle connection may turn out to be closed. Calls that may safely be executed twice are sent
 * again on a new one; others fail.
 *
 * Threads: a call belongs to the thread that makes it.
 */
#ifndef TETHER_RENDEZVOUS_STORE_TCP_CLIENT_CALL_H
#define TETHER_RENDEZVOUS_STORE_TCP_CLIENT_CALL_H

#include "rendezvous/store/tcp/client/internal.h"

#define TETHER__STORE_CALL_NO_NUMBER \
    "the value is not a whole decimal number, or the sum is beyond 64 bits"

struct tether__store_call {
    struct tether__store_tcp *store;
    struct tether__store_conn *conn;
    int64_t deadline;
    bool is_poll;  /* the timeout of the call is 0 */
    bool reused;   /* the connection was idle, so the server may have closed it */
    bool repeat;   /* the request may be executed twice */
    bool canceled; /* CANCEL_WAIT has been sent */
    tether_error *reterr;
};

/* The deadline of a call with this timeout. 0 ms still allow a round trip. */
int64_t tether__store_call_deadline(int timeout_ms);

enum tether__store_call_repeat { TETHER__STORE_CALL_ONCE, TETHER__STORE_CALL_REPEATABLE };

tether_status tether__store_call_begin(struct tether__store_call *call,
                                       struct tether__store_tcp *store,
                                       int timeout_ms,
                                       enum tether__store_call_repeat repeat,
                                       tether_error *reterr);

/* Returns the connection. Returns its error, if it has one, otherwise `st`. */
tether_status tether__store_call_end(struct tether__store_call *call, tether_status st);

static inline bool tether__store_call_speaks_tether(const struct tether__store_call *call)
{
    return call->conn->dialect == TETHER_STORE_DIALECT_TETHER;
}

void tether__store_call_put_key(struct tether__store_call *call,
                                enum tether__store_wire_op op,
                                const char *key);
void tether__store_call_put_keys(struct tether__store_call *call,
                                 enum tether__store_wire_op op,
                                 const char *const *keys,
                                 size_t n);

/* Sends the request and waits for the reply to begin; a timeout is an error of the connection. */
void tether__store_call_ask(struct tether__store_call *call);

/* Reads the status of a reply of our server; TETHER_OK in dialects without one. */
tether_status tether__store_call_get_status(struct tether__store_call *call);

/* Sends a request that changes something, and returns once it is done, also in a dialect without a
 * reply to it. */
tether_status tether__store_call_carry_out(struct tether__store_call *call);

/* Sends a request that may wait. TETHER_OK: its wait is over, and the rest of the reply follows;
 * call settle() after reading it. TETHER_ECANCELED: it timed out. */
tether_status tether__store_call_wait(struct tether__store_call *call);
void tether__store_call_settle(struct tether__store_call *call);

/* Wait for keys, or check whether they exist, with a separate request. */
tether_status tether__store_call_wait_keys(struct tether__store_call *call,
                                           const char *const *keys,
                                           size_t n);
bool tether__store_call_check_keys(struct tether__store_call *call,
                                   const char *const *keys,
                                   size_t n);

/* Prepares the connection for the next request of the call. */
void tether__store_call_next_request(struct tether__store_call *call);

#endif
