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

/* How far the frames of our calls have come. An ended session keeps it, since its lane is reset. */
struct tether__sent {
    uint64_t sent, acked; /* up to these numbers, as in the lane */
    bool up;              /* the stream */
};

/* The state of a call at the worker that was called, on the wire too. */
enum tether__call_state {
    TETHER__CALL_NOT_HERE, /* it has not arrived, or has been answered */
    TETHER__CALL_WAITS,    /* for its references to be confirmed, or for its object to be made */
    TETHER__CALL_QUEUED,   /* it waits for a thread */
    TETHER__CALL_RUNS,     /* its function has begun and has not answered */
    TETHER__N_CALL_STATES,
};

/* The frame of a call that goes in pieces has no number that this worker knows. */
#define TETHER__SEQ_OF_PIECES UINT64_MAX

/* A Ping names so many calls at most; further numbers are ignored. */
#define TETHER__MAX_ASKED 64

/* When to ask about a call that began at `started`. */
int64_t tether__call_ask_at(int64_t started, int64_t deadline);

/* Asks about a call, unless it has ended or has been asked about. */
void tether__call_ask(struct tether__call *call);
/* Calls that one Ping asks about. */
struct tether__asked {
    uint64_t ids[TETHER__MAX_ASKED];
    size_t n;
};

/* Notes that the time to ask about the call has come, and adds it to a question that has room for
 * it, unless it was asked about or cannot be. The other one sends the question, if it names any
 * call. */
void tether__call_ask_later_locked(struct tether__asked *asked, struct tether__call *call);
void tether__calls_ask_locked(struct tether__peer *peer, struct tether__asked *asked);

/* A Ping that is not empty: answers it, or takes the answer. */
void tether__call_on_ping_locked(struct tether__stream *stream, const Tether__Ping *ping);

/* Of the future of a call (struct tether__future_ops). */
bool tether__call_future_await(tether_future *future, int64_t deadline);
void tether__call_explain_wait(tether_future *future, int timeout_ms, tether_error *ret_error);

struct tether__sent tether__sent_locked(const struct tether__stream *out);

/* Notes in the call how far it has come, for explain_end(). */
void tether__call_note_progress_locked(struct tether__call *call);
/* The same for a call of a session that has ended. The caller has the call for itself. */
void tether__call_note_ended(struct tether__call *call, const struct tether__session *ended);

/* Words the error of a call that ended without an answer: adds function, worker, elapsed time and
 * how far the call had come to `cause`, if it timed out or the worker was lost. */
void tether__call_explain_end(const struct tether__call *call,
                              tether_status status,
                              const tether_error *cause,
                              tether_error *ret_error);

#endif
