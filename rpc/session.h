/* The session of a pair of workers: who the other one is, and whether both still agree that they
 * have been together all along. No I/O, clock, thread or lock of its own.
 *
 * A worker start has an incarnation (from an atomic add in the store), and each worker counts how
 * often it has fenced the other's present incarnation. The session is those four numbers: mine and
 * yours. HELLO carries them; a stream is up once both ends have named the same four. They only
 * grow, so no message is needed to agree on a new session: whoever fences raises its own count, and
 * the other learns it from the next HELLO.
 *
 *   HELLO says                          it means                      what happens here
 *   my numbers and yours as I have them same session                  ACCEPT: resume both
 * directions higher incarnation of the sender    it was restarted              FENCED: reset, then
 * resume higher fence count of the sender    it has fenced me              FENCED_BY_PEER: break
 * what I hold of it, reset, resume lower fence count or incarnation    it has not heard that I
 * ANSWER: my hello tells it; it of mine than I have                 fenced it must say hello again
 *   lower incarnation of the sender     a ghost of an earlier start   REJECT
 *   other name, group, version, token   not for me                    REJECT
 *
 * Lease: any batch renews it (heard()); tick() says when to ping and when the lease is over.
 */
#ifndef TETHER_RPC_SESSION_H
#define TETHER_RPC_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/status.h"

#define TETHER__WIRE_VERSION 1
#define TETHER__MAX_NAME 127

/* What this worker says of itself to everybody; set once, outlives its sessions. */
struct tether__self {
    const char *group, *name, *address, *token; /* token may be NULL */
    uint32_t id;
    uint64_t incarnation;
    uint32_t lease_ms;
};

struct tether__session {
    const struct tether__self *self;
    /* what I know of the other */
    char peer_name[TETHER__MAX_NAME + 1];
    uint32_t peer_id;
    uint64_t peer_incarnation; /* 0: never met */
    uint64_t my_fence, peer_fence;
    uint32_t lease_ms; /* the longer of both wishes */
    /* lease, in ns of the caller's clock */
    int64_t heard_at, pinged_at;
    bool watching; /* the lease runs */
};

enum tether__hello_verdict {
    TETHER__HELLO_ACCEPT,         /* same session: resume from `received` */
    TETHER__HELLO_FENCED,         /* new session since the peer was restarted: reset, then resume */
    TETHER__HELLO_FENCED_BY_PEER, /* new session since the peer gave me up: break, reset, resume */
    TETHER__HELLO_ANSWER, /* the peer is behind: answer with my hello, then await its next */
    TETHER__HELLO_REJECT, /* not a peer of mine: close */
};

struct tether__hello_result {
    enum tether__hello_verdict verdict;
    uint64_t received; /* how far the peer got in this session; 0 in a new one */
};

enum tether__lease_verdict { TETHER__LEASE_FINE, TETHER__LEASE_PING, TETHER__LEASE_OVER };

/* `peer_incarnation` 0: not known yet (the directory in the store usually tells). */
void tether__session_init(struct tether__session *session,
                          const struct tether__self *self,
                          const char *peer_name,
                          uint32_t peer_id,
                          uint64_t peer_incarnation);

/* Packs my hello for this peer; `received` is the lane's. */
tether_status tether__session_hello(const struct tether__session *session,
                                    uint64_t received,
                                    tether_buf *ret_body);

/* Judges the peer's hello and takes over what it tells. On REJECT `reterr` says why, as a sentence
 * for the log and for the peer. */
struct tether__hello_result tether__session_on_hello(struct tether__session *session,
                                                     tether_bytes body,
                                                     tether_error *reterr);

/* Who sent this hello, for finding the session that it belongs to. */
struct tether__hello_peek {
    char from_name[TETHER__MAX_NAME + 1];
    char address[256];
    uint32_t from_id;
    uint64_t from_incarnation;
};
tether_status tether__hello_peek(tether_bytes body,
                                 struct tether__hello_peek *ret_peek,
                                 tether_error *reterr);

/* I give the peer up: a new session from here on. The caller resets the lanes and tells everybody.
 */
void tether__session_fence(struct tether__session *session);

/* The lease: starts with the first hello that is accepted. `*ret_next` is when to look again. */
void tether__session_heard(struct tether__session *session, int64_t now);
enum tether__lease_verdict tether__session_tick(struct tether__session *session,
                                                int64_t now,
                                                int64_t *ret_next);

#endif
