/* One call on a TCP store, from taking a connection to giving it back.
 *
 * Happy path: begin() takes a connection, put_...() build the request, ask() sends it and waits for
 * the first byte of the reply, get_...() read it, end() gives the connection back. Where the server
 * is ours (dialect T) every call is one request and one reply. PyTorch's dialects need more: a
 * request without a reply is followed by one that has (a fence), a get is a wait and a get.
 *
 * Time: a call that waits and runs out of time cancels its wait, so that the connection stays in
 * step. Should the reply be under way already, it counts. A call with no time at all sends request
 * and cancel together: the server answers what is there now. Other calls that run out of time lose
 * their connection, and nobody can tell whether they were carried out.
 *
 * A connection that was idle may turn out dead. Calls that may as well be carried out twice are
 * sent again on a new one; others fail.
 *
 * Threads: a call belongs to the thread that makes it.
 */
#ifndef TETHER_RENDEZVOUS_STORE_CALL_H
#define TETHER_RENDEZVOUS_STORE_CALL_H

#include "rendezvous/store_tcp_internal.h"

#define TETHER__STORE_CALL_NO_NUMBER \
    "the value is not a whole decimal number, or the sum is beyond 64 bits"

struct tether__store_call {
    struct tether__store_tcp *store;
    struct tether__store_conn *conn;
    int64_t deadline;
    bool is_poll;  /* time-out 0 */
    bool reused;   /* the connection was idle before */
    bool repeat;   /* may be carried out twice */
    bool canceled; /* CANCEL_WAIT is under way */
    tether_error *reterr;
};

/* When a call with this time-out ends. 0 ms still need a round trip. */
int64_t tether__store_call_deadline(int timeout_ms);

enum tether__store_call_repeat { TETHER__STORE_CALL_ONCE, TETHER__STORE_CALL_REPEATABLE };

tether_status tether__store_call_begin(struct tether__store_call *call,
                                       struct tether__store_tcp *store,
                                       int timeout_ms,
                                       enum tether__store_call_repeat repeat,
                                       tether_error *reterr);

/* `st`, unless something went wrong with the connection: then that. */
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

/* Sends the request and waits for the reply to begin; that it does not is an error. */
void tether__store_call_ask(struct tether__store_call *call);

/* The status that our server's replies start with; TETHER_OK in dialects that have none. */
tether_status tether__store_call_get_status(struct tether__store_call *call);

/* For a request that changes something: sends it and ends the call once it is done, also where the
 * dialect has no reply to it. */
tether_status tether__store_call_carry_out(struct tether__store_call *call);

/* For a request that may wait. TETHER_OK: what it waits for is there, and the rest of its reply
 * follows; settle() after reading it. TETHER_ECANCELED: it was not there in time. */
tether_status tether__store_call_wait(struct tether__store_call *call);
void tether__store_call_settle(struct tether__store_call *call);

/* Waits for keys, or looks whether they are there, by a request of its own. */
tether_status tether__store_call_wait_keys(struct tether__store_call *call,
                                           const char *const *keys,
                                           size_t n);
bool tether__store_call_check_keys(struct tether__store_call *call,
                                   const char *const *keys,
                                   size_t n);

/* Readies the connection for the call's next request. */
void tether__store_call_next_request(struct tether__store_call *call);

#endif
