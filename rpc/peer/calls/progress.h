/* How far a call has come that may end without an answer.
 *
 * The lane knows whether the frame of a call was sent and whether its arrival is confirmed. Only
 * the other worker knows whether the call waits or runs there. So this worker asks about a call
 * that is open shortly before its deadline (call->ask_at): by a Ping with the numbers of such
 * calls. The answer is a Ping with the state of each. The call does not wait for the answer; if
 * none comes, the error says so. Calls that are answered in time cost nothing. A wait for the
 * future of a call that is shorter than the call asks likewise before it ends.
 *
 * Lock rule: functions whose name ends in `_locked` run under peer->mu; the others take it
 * themselves.
 */
#ifndef TETHER_RPC_PEER_CALLS_PROGRESS_H
#define TETHER_RPC_PEER_CALLS_PROGRESS_H

#include "base/status.h"
#include "protos/rpc.pb-c.h"
#include "rpc/future.h"

struct tether__call;
struct tether__peer;
struct tether__session;
struct tether__stream;

/* How far the frames of this worker's calls have come. An ended session keeps a copy, because its
 * lane is reset. */
struct tether__sent {
    uint64_t sent, acked; /* frames up to these numbers are sent, or acknowledged */
    bool up;              /* the stream was up */
};

/* The state of a call at the worker that was called. The numbers are also used on the wire. */
enum tether__call_state {
    TETHER__CALL_NOT_HERE, /* it has not arrived, or has been answered */
    TETHER__CALL_WAITS,    /* it waits until its references are confirmed or its object is made */
    TETHER__CALL_QUEUED,   /* it waits for a thread */
    TETHER__CALL_RUNS,     /* its function has begun and has not answered */
    TETHER__N_CALL_STATES,
};

/* In call->seq: the call is sent in pieces, so the number of its frame is not known. */
#define TETHER__SEQ_OF_PIECES UINT64_MAX

/* The most calls that a Ping can name; further ones are ignored. */
#define TETHER__MAX_ASKED 64

/* Returns when to ask the peer about a call that began at `started`; TETHER__NEVER: it has no
 * deadline. */
int64_t tether__call_ask_at(int64_t started, int64_t deadline);

/* Asks the peer about a call, unless the call has ended or its `ask_at` was handled before. */
void tether__call_ask(struct tether__call *call);
/* Calls that one Ping asks about. */
struct tether__asked {
    uint64_t ids[TETHER__MAX_ASKED];
    size_t n;
};

/* ask_later() notes that the call's `ask_at` has passed, and adds the call to `asked`, unless that
 * was done before or the peer cannot be asked about it. `asked` must have room. ask() sends one
 * Ping for all calls in `asked`, if there are any. */
void tether__call_ask_later_locked(struct tether__asked *asked, struct tether__call *call);
void tether__calls_ask_locked(struct tether__peer *peer, struct tether__asked *asked);

/* Handles a Ping that names calls: answers it, or stores the states in it if it is an answer. */
void tether__call_on_ping_locked(struct tether__stream *stream, const Tether__Ping *ping);

/* The `await` and `explain_wait` of the futures of calls (struct tether__future_ops). */
bool tether__call_future_await(tether_future *future, int64_t deadline);
void tether__call_explain_wait(tether_future *future, int timeout_ms, tether_error *ret_error);

struct tether__sent tether__sent_locked(const struct tether__stream *out);

/* Notes in the call how far it has come, for explain_end(). */
void tether__call_note_progress_locked(struct tether__call *call);
/* Notes the same for a call of an ended session. No other thread may use the call. */
void tether__call_note_ended(struct tether__call *call, const struct tether__session *ended);

/* Words the error of a call that ended without an answer: adds function, worker, elapsed time and
 * how far the call had come to `cause`, if it timed out or the worker was lost. */
void tether__call_explain_end(const struct tether__call *call,
                              tether_status status,
                              const tether_error *cause,
                              tether_error *ret_error);

#endif
