/* What a store server does with the bytes of its clients, without any sockets.
 *
 * A hub is the server's data: the key-value core and what the sessions share. A session is one
 * client: bytes go in by feed(), replies gather in `out`, and sessions that have something to send
 * (also those whose wait somebody else's request has ended) are on the hub's `dirty` list for the
 * owner to flush.
 *
 * Failure: a request that cannot be parsed, or that its dialect can only answer by closing, sets
 * `why`: drop the session. Nothing of such a request has been applied. A dialect that has status
 * bytes (T) gets them instead where the request made sense.
 *
 * Bounds: feed() takes no further request while `out` holds TETHER__STORE_SESSION_HIGH_WATER bytes,
 * a reply is never longer than max_message, and all that the sessions hold together stays below
 * max_buffered; the session that would go beyond it is dropped.
 *
 * Threads: none here; a hub and its sessions belong to one thread.
 */
#ifndef TETHER_RENDEZVOUS_STORE_SESSION_H
#define TETHER_RENDEZVOUS_STORE_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/list.h"
#include "base/map.h"
#include "rendezvous/kv.h"
#include "rendezvous/store_wire.h"

#define TETHER__STORE_SESSION_HIGH_WATER ((size_t)1 << 20)

struct tether__store_hub {
    /* immutable */
    struct tether_store_limits limits;
    bool legacy_is_l1;

    struct tether__kv kv;
    struct tether__map watches; /* by key; of L0 clients only */
    struct tether__list dirty;  /* sessions, by `dirty_node` */
    struct tether__list claims; /* sessions that have one, by `claim_node` */
    size_t buffered;            /* bytes held by all sessions and for them */
    uint64_t requests, waiting; /* carried out so far; sessions that wait now */

    tether_bytes *views; /* scratch for requests of many keys */
    size_t n_views;
};

struct tether__store_session {
    struct tether__store_hub *hub;
    struct tether__store_wire_parser parser;
    const char *why;  /* set: drop it; static text */
    bool is_unsure;   /* its last request is whole if nothing follows soon; then settle() it */
    bool is_overload; /* not for what it sent, but for what the server would have to hold */

    tether_buf out; /* replies not yet taken by the owner */
    struct tether__list dirty_node;
    size_t owner_bytes; /* what the owner holds for it */
    size_t held_bytes;  /* what its wait and its watches hold */
    size_t charged;     /* what is in hub->buffered of it all */

    bool is_waiting;
    enum tether__store_wire_op waiting_op;
    struct tether__kv_waiter waiter;
    tether_buf awaited; /* encoded keys of a GET or MULTI_GET that waits */
    size_t wait_bytes;  /* part of held_bytes */
    size_t n_awaited;

    struct tether__kv_claim claim; /* to the element that ended its WAIT; it pops next */
    struct tether__list claim_node;
    bool claim_is_old; /* a sweep has seen it */

    struct tether__list watches; /* struct watch, store_watch.c */
    size_t n_watches;
};

/* `limits` must come from tether__store_wire_limits(). */
tether_status tether__store_hub_init(struct tether__store_hub *hub,
                                     const struct tether_store_limits *limits,
                                     bool legacy_is_l1);
void tether__store_hub_fini(struct tether__store_hub *hub); /* its sessions are gone by then */

void tether__store_session_init(struct tether__store_session *session,
                                struct tether__store_hub *hub);
void tether__store_session_fini(struct tether__store_session *session);

/* Takes claims away from sessions that have had theirs since the last sweep: a client pops right
 * after its WAIT, or does not pop at all. Whether there are claims left to be swept. */
bool tether__store_hub_sweep(struct tether__store_hub *hub);

/* Carries out the requests at the front of `data` and returns how many bytes they took. Stops early
 * when `why` is set or `out` is full. `*ret_need`: the bytes from there on that a next call needs
 * to get anywhere. */
size_t tether__store_session_feed(struct tether__store_session *session,
                                  const char *data,
                                  size_t len,
                                  size_t *ret_need);

/* Nothing has followed the request that the session is unsure of: the next feed() carries it out.
 */
void tether__store_session_settle(struct tether__store_session *session);

/* Books what the session holds: its `out`, and `owner_bytes` that the owner keeps for it besides.
 * False, and `why` set, when that is too much for the server. Call it after changing either. */
bool tether__store_session_charge(struct tether__store_session *session, size_t owner_bytes);

/* ---- Between the files of the session ------------------------------------------------------- */

/* Books `more` bytes for a wait or a watch; false, and nothing booked, when that is too much. */
bool tether__store_session_hold(struct tether__store_session *session, size_t more);

/* Appends `size` bytes to `out` for the caller to fill, and marks the session dirty. NULL: `why` is
 * set. */
char *tether__store_session_room(struct tether__store_session *session, size_t size);

void tether__store_session_fail(struct tether__store_session *session, const char *why);
void tether__store_session_overload(struct tether__store_session *session, const char *why);

/* Whether replies start with a status byte; whether it is one of PyTorch's before VALIDATE. */
static inline bool tether__store_session_has_status(const struct tether__store_session *session)
{
    return session->parser.dialect == TETHER_STORE_DIALECT_TETHER;
}

static inline bool tether__store_session_is_legacy(const struct tether__store_session *session)
{
    return session->parser.dialect == TETHER_STORE_DIALECT_L0 ||
           session->parser.dialect == TETHER_STORE_DIALECT_L1;
}

/* Carries out one request (store_requests.c). */
void tether__store_session_handle(struct tether__store_session *session,
                                  const struct tether__store_wire_request *req);

/* The session's claim (it may have none) goes to the next who waits; or has been used up. */
void tether__store_session_drop_claim(struct tether__store_session *session);

/* The wait is over, or is to be. Both do nothing when there is none. */
void tether__store_session_end_wait(struct tether__store_session *session);
void tether__store_session_cancel_wait(struct tether__store_session *session);

/* Watches (L0): starts one; tells the watchers of `key` that it changed from `old` to `now`, NULL
 * standing for no value; forgets all of a session. */
void tether__store_watch_start(struct tether__store_session *session, tether_bytes key);
bool tether__store_watched(const struct tether__store_hub *hub, tether_bytes key);
void tether__store_watch_tell(struct tether__store_hub *hub,
                              tether_bytes key,
                              const tether_bytes *old,
                              const tether_bytes *now);
void tether__store_watch_forget(struct tether__store_session *session);

#endif
