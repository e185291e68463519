/* Hub and sessions: the part of a store server that handles the bytes of its clients, without
 * sockets.
 *
 * A hub has the server's data: the key-value core and the data that sessions share. A session is
 * one client. feed() gives it bytes, and its replies gather in `out`. The hub's `dirty` list has
 * the sessions with bytes to send, also those whose wait a request of another session has ended;
 * the owner flushes them.
 *
 * Failure: a request that cannot be parsed, or that its dialect can only answer by closing, sets
 * `why`: the owner drops the session. Such a request has changed nothing. In a dialect with status
 * bytes (T), a valid request that fails gets a status instead.
 *
 * Bounds: feed() accepts no further request while `out` holds TETHER__STORE_SESSION_HIGH_WATER
 * bytes, a reply is never longer than max_message, and all sessions together hold at most
 * max_buffered bytes. A session that would exceed that is dropped.
 *
 * Threads: none here; a hub and its sessions belong to one thread.
 */
#ifndef TETHER_RENDEZVOUS_STORE_TCP_SERVER_SESSION_H
#define TETHER_RENDEZVOUS_STORE_TCP_SERVER_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/list.h"
#include "base/map.h"
#include "rendezvous/store/kv/kv.h"
#include "rendezvous/store/tcp/wire/wire.h"

#define TETHER__STORE_SESSION_HIGH_WATER ((size_t)1 << 20)

struct tether__store_hub {
    /* immutable */
    struct tether_store_limits limits;
    bool legacy_is_l1;

    struct tether__kv kv;
    struct tether__map watches; /* maps a key to its watches; only L0 clients have any */
    struct tether__list dirty;  /* sessions, by `dirty_node` */
    struct tether__list claims; /* sessions with a claim, by `claim_node` */
    size_t buffered;            /* bytes held by all sessions and for them */
    /* number of requests executed so far, and of sessions that wait now */
    uint64_t requests, waiting;

    tether_bytes *views; /* scratch for requests of many keys */
    size_t n_views;
};

struct tether__store_session {
    struct tether__store_hub *hub;
    struct tether__store_wire_parser parser;
    const char *why; /* set: drop the session; static text */
    /* the last request is complete unless more bytes follow soon; the owner then calls settle() */
    bool is_unsure;
    bool has_spoken;  /* the client has made a whole request */
    bool is_overload; /* `why` is a limit of the server, not an invalid request */

    tether_buf out; /* replies that the owner has not taken yet */
    struct tether__list dirty_node;
    size_t owner_bytes; /* bytes that the owner holds for this session */
    size_t held_bytes;  /* bytes charged for its wait and its watches */
    size_t charged;     /* the session's share of hub->buffered */

    bool is_waiting;
    enum tether__store_wire_op waiting_op;
    struct tether__kv_waiter waiter;
    tether_buf awaited; /* encoded keys of a GET or MULTI_GET that waits */
    size_t wait_bytes;  /* the part of held_bytes that belongs to the wait */
    size_t n_awaited;

    struct tether__kv_claim
        claim; /* claim to the element that ended its WAIT; its next request should pop it */
    struct tether__list claim_node;
    bool claim_is_old; /* the claim existed at the last sweep */

    struct tether__list watches; /* list of struct watch (store/tcp/server/watch.c) */
    size_t n_watches;
};

/* `limits` must come from tether__store_wire_limits(). */
tether_status tether__store_hub_init(struct tether__store_hub *hub,
                                     const struct tether_store_limits *limits,
                                     bool legacy_is_l1);
/* frees the hub; call it after all sessions have ended */
void tether__store_hub_fini(struct tether__store_hub *hub);

void tether__store_session_init(struct tether__store_session *session,
                                struct tether__store_hub *hub);
void tether__store_session_fini(struct tether__store_session *session);

/* Ends claims that existed at the last sweep: a client that wants the element pops right after its
 * WAIT. Returns whether claims are left. */
bool tether__store_hub_sweep(struct tether__store_hub *hub);

/* Executes the requests at the front of `data` and returns how many bytes they took. Stops early
 * when `why` is set or `out` is full. `*ret_need`: how many bytes from there on the next call
 * needs. */
size_t tether__store_session_feed(struct tether__store_session *session,
                                  const char *data,
                                  size_t len,
                                  size_t *ret_need);

/* Notes that nothing has followed the unsure request, so the next feed() executes it. */
void tether__store_session_settle(struct tether__store_session *session);

/* Charges the session for its `out` and for the `owner_bytes` that the owner holds for it. False,
 * with `why` set, when that exceeds the limit of the server. Call it after changing either. */
bool tether__store_session_charge(struct tether__store_session *session, size_t owner_bytes);

/* ---- Between the files of the session ------------------------------------------------------- */

/* Charges `more` bytes for a wait or a watch; false, without a charge, when that exceeds the limit.
 */
bool tether__store_session_hold(struct tether__store_session *session, size_t more);

/* Appends `size` bytes to `out`, which the caller fills in, and marks the session dirty. NULL:
 * `why` is set. */
char *tether__store_session_room(struct tether__store_session *session, size_t size);

void tether__store_session_fail(struct tether__store_session *session, const char *why);
void tether__store_session_overload(struct tether__store_session *session, const char *why);

/* Whether replies start with a status byte (T); whether the dialect is L0 or L1. */
static inline bool tether__store_session_has_status(const struct tether__store_session *session)
{
    return session->parser.dialect == TETHER_STORE_DIALECT_TETHER;
}

static inline bool tether__store_session_is_legacy(const struct tether__store_session *session)
{
    return session->parser.dialect == TETHER_STORE_DIALECT_L0 ||
           session->parser.dialect == TETHER_STORE_DIALECT_L1;
}

/* requests.c: executes one request. */
void tether__store_session_handle(struct tether__store_session *session,
                                  const struct tether__store_wire_request *req);

/* Ends the session's claim, if it has one: the element goes to the next waiter. */
void tether__store_session_drop_claim(struct tether__store_session *session);

/* Both end the wait: end_wait() after it is over, cancel_wait() early. Without a wait they do
 * nothing. */
void tether__store_session_end_wait(struct tether__store_session *session);
void tether__store_session_cancel_wait(struct tether__store_session *session);

/* watch.c, for L0: start a watch; check whether a key is watched; notify the watchers of `key` that
 * it changed from `old` to `now` (NULL: no value); end all watches of a session. */
void tether__store_watch_start(struct tether__store_session *session, tether_bytes key);
bool tether__store_watched(const struct tether__store_hub *hub, tether_bytes key);
void tether__store_watch_notify(struct tether__store_hub *hub,
                                tether_bytes key,
                                const tether_bytes *old,
                                const tether_bytes *now);
void tether__store_watch_end(struct tether__store_session *session);

#endif
