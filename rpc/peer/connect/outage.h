/* Whether a peer is known to be out of reach, and when it is tried again. No I/O, clock, thread or
 * lock of its own; docs/membership.md has the rules.
 *
 * LOST: the lease of the peer is over. The peer may be slow, stopped or cut off. The state is shown
 * to users, but does not change calls: a call looks the peer up, dials it, and may wait for the
 * length of a lease.
 * DEAD: the process of the start that is out of reach has certainly ended. Its
 * address is not dialled any more; only the directory is asked, for a later start.
 *
 * Calls to a DEAD peer begin *attempts*: an attempt asks the directory, and calls made meanwhile
 * wait for its result. After an attempt that failed, calls fail at once until `retry_at`. That
 * pause grows, so that the store is not flooded.
 *
 * An outage ends when a stream with the peer is up, from either side, or when the directory has a
 * later start.
 */
#ifndef TETHER_RPC_PEER_OUTAGE_H
#define TETHER_RPC_PEER_OUTAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/status.h"

/* The longest pause between two attempts to reach a DEAD peer. Calls find a restarted peer within
 * this time. */
#define TETHER__OUTAGE_PAUSE_MAX_MS 500

#define TETHER__OUTAGE_HOW_SIZE 160

enum tether__outage_kind { TETHER__NO_OUTAGE, TETHER__LOST, TETHER__DEAD };

struct tether__outage {
    enum tether__outage_kind kind;
    uint64_t start;     /* the start of the peer that is out of reach; 0: not known */
    int64_t since;      /* when the outage was noticed */
    int64_t retry_at;   /* no attempt to reach the peer begins earlier */
    int64_t give_up_at; /* the end of the present attempt; TETHER__NEVER: there is none */
    int pause_ms;       /* the pause after the next failed attempt */
    char how[TETHER__OUTAGE_HOW_SIZE]; /* how the outage was noticed, for messages */
};

void tether__outage_init(struct tether__outage *outage);

/* Notes that `start` of the peer is out of reach. During an outage of the same start only `kind`
 * and `how` change. */
void tether__outage_begin(struct tether__outage *outage,
                          enum tether__outage_kind kind,
                          uint64_t start,
                          const char *how,
                          int64_t now);
void tether__outage_end(struct tether__outage *outage);

/* Begins an attempt to reach a DEAD peer, unless one is under way. It may take a quarter of a
 * lease, at most two seconds. Returns when the attempt begins: `now`, or `retry_at` if that is
 * later. Returns `now` if the peer is not DEAD. */
int64_t tether__outage_try(struct tether__outage *outage, uint32_t lease_ms, int64_t now);

/* Notes that the attempt, if one is under way, has failed. */
void tether__outage_tried(struct tether__outage *outage, int64_t now);

/* Whether a call made now fails at once. */
static inline bool tether__outage_refuses(const struct tether__outage *outage, int64_t now)
{
    return outage->kind == TETHER__DEAD && outage->give_up_at == TETHER__NEVER &&
           now < outage->retry_at;
}

/* Fills the error of calls to worker `name` during the outage. */
tether_status tether__outage_error(const struct tether__outage *outage,
                                   const char *name,
                                   int64_t now,
                                   tether_error *reterr);

#endif
