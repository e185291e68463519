/* The lane: one end of an ordered, exactly-once channel of messages that outlives its connections.
 *
 * No I/O, clock, thread or lock of its own: messages and received bytes go in, bytes to send and
 * messages to deliver come out. The peer that owns it guards it.
 *
 * Happy path, sending: send() numbers a message and packs it behind others into the open *segment*;
 * pull() gives the next segment to write, with the latest ack in front; when the transport has
 * taken it, pull() is called again, and what gathered meanwhile leaves together. A segment is kept
 * until the other end has acknowledged its last frame, then its buffer is used again. A large
 * payload is not copied: it is the tail of its segment, held by reference. One larger than
 * `fragment_bytes` goes in pieces (Blob frames) ahead of its message, one piece a pull, so that
 * small messages slip in between.
 *
 * Happy path, receiving: receive() takes one Batch, skips frames seen before, delivers the rest in
 * order, puts blobs together, and notes what to acknowledge.
 *
 * Reconnect: connected(received) says how far the other end got; everything behind it is sent
 * again. Fence: reset() forgets both directions, finishes the watches with TETHER_EFENCED and
 * starts counting from 1 again.
 *
 * Failure modes: malformed bytes, a gap in the numbers, an ack of what was never sent, or a limit
 * exceeded is TETHER_ECORRUPT / TETHER_ETOOBIG from receive(): close the connection; state is as
 * before the bad frame. Over `max_unacked_bytes` send() is TETHER_EBUSY and nothing was queued.
 */
#ifndef TETHER_RPC_LANE_H
#define TETHER_RPC_LANE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "base/map.h"
#include "base/status.h"
#include "rpc/slice.h"

/* The numbers that the bodies have in Frame (protos/rpc.proto). The lane itself knows BLOB only. */
enum tether__frame_kind {
    TETHER__FRAME_HELLO = 2,
    TETHER__FRAME_PING = 3,
    TETHER__FRAME_BLOB = 4,
    TETHER__FRAME_CALL = 5,
    TETHER__FRAME_REPLY = 6,
    TETHER__FRAME_CANCEL = 7,
    TETHER__FRAME_GOODBYE = 8,
    TETHER__FRAME_FORK_REQUEST = 16,
    TETHER__FRAME_CHILD_ACCEPT = 17,
    TETHER__FRAME_USER_DELETE = 18,
    TETHER__FRAME_FETCH = 19,
};

struct tether__lane_limits {
    size_t segment_bytes;     /* a segment is closed beyond this (default 256 KiB) */
    size_t inline_bytes;      /* payloads up to this are copied into the segment (default 4 KiB) */
    size_t fragment_bytes;    /* payloads beyond this go in pieces (default 256 KiB) */
    size_t max_message_bytes; /* header + payload, either way (default 256 MiB) */
    size_t max_unacked_bytes; /* what may be queued or unacknowledged (default 64 MiB) */
    size_t max_blobs;         /* that the other end may have open at once (default 64) */
};
extern const struct tether__lane_limits tether__lane_default_limits;

/* One message as it arrives. Everything LENDS; `payload` may be retained. */
struct tether__inbound {
    uint32_t kind;
    bool numbered; /* false: hello, ping */
    tether_bytes header;
    struct tether__slice payload;
};

/* Called for each message, in order, once. A status other than OK stops receive(), which returns
 * it; the message counts as applied. */
typedef tether_status tether__lane_deliver(void *userdata, const struct tether__inbound *message);

/* Asks to be told when the other end has applied a message. Intrusive; `done` runs once, from
 * within receive() or connected() with TETHER_OK, or from reset() / fini() with TETHER_EFENCED. */
struct tether__lane_watch {
    struct tether__list node;
    uint64_t seq;
    void (*done)(struct tether__lane_watch *watch, tether_status status);
};

/* What to write next: one transport message made of up to three pieces. The slices are retained for
 * the caller, who releases them when written. */
struct tether__lane_out {
    struct tether__slice pieces[3];
    size_t n_pieces;
    uint8_t ack_storage[16]; /* piece 0 may point here: copy it before the struct goes away */
};

struct tether__lane {
    const struct tether__lane_limits *limits;
    /* sending */
    uint64_t next_seq; /* of the next message */
    uint64_t acked;    /* the other end has applied up to here */
    size_t unacked_bytes;
    struct tether__list segments; /* closed or sent, oldest first, until acknowledged */
    struct tether__list *unsent;  /* the first of them not yet written on this connection */
    struct tether__list spare;    /* segments to use again */
    struct tether__list bulk;     /* messages whose payload goes in pieces, oldest first */
    struct tether__list watches;  /* by number */
    uint64_t next_blob;
    size_t n_spare;
    bool connected;
    /* receiving */
    uint64_t received; /* applied up to here */
    uint64_t ack_told; /* the other end has been told this */
    size_t n_unacked_received_bytes;
    struct tether__map blobs;
};

tether_status tether__lane_init(struct tether__lane *lane,
                                const struct tether__lane_limits *limits);
void tether__lane_fini(struct tether__lane *lane); /* resets first */

/* Queues a message: `header` is the packed body (copied), `payload` (retained when it is large,
 * else copied) follows it. `watch` (may be NULL) is armed. TETHER_EBUSY, TETHER_ETOOBIG,
 * TETHER_ENOMEM: nothing happened. */
tether_status tether__lane_send(struct tether__lane *lane,
                                uint32_t kind,
                                tether_bytes header,
                                struct tether__slice payload,
                                struct tether__lane_watch *watch);

/* Puts an unnumbered message (hello, ping) in front of everything else, on the present connection
 * only. */
tether_status tether__lane_send_unnumbered(struct tether__lane *lane,
                                           uint32_t kind,
                                           tether_bytes header);

/* Gives the next message to write; false when there is nothing. Call again when it is written. An
 * acknowledgement alone is given when many bytes or frames have come in since the last, or when
 * `ack_now`. Until connected(), only unnumbered messages are given. */
bool tether__lane_pull(struct tether__lane *lane, bool ack_now, struct tether__lane_out *ret_out);

/* Takes one received Batch (LENDS). Delivers what is new. */
tether_status tether__lane_receive(struct tether__lane *lane,
                                   struct tether__slice batch,
                                   tether__lane_deliver *deliver,
                                   void *userdata,
                                   tether_error *reterr);

/* Received but unacknowledged: an ack is owed (send it within some tens of milliseconds). */
bool tether__lane_owes_ack(const struct tether__lane *lane);

/* A new connection is up in the same session; the other end has applied up to `received`.
 * TETHER_ECORRUPT when that was never sent. */
tether_status tether__lane_connected(struct tether__lane *lane, uint64_t received);
void tether__lane_disconnected(struct tether__lane *lane);

/* Ends the session: drops everything queued and half received, finishes watches with
 * TETHER_EFENCED, starts counting from 1 again. */
void tether__lane_reset(struct tether__lane *lane);

#endif
