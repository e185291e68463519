/* Whether a peer is known to be out of reach, and when it is tried again. No I/O, clock, thread or
 * lock of its own; docs/membership.md has the rules.
 *
 * LOST: its lease is over. It may be slow, stopped or cut off. Calls look it up, dial it, and have
 * the length of a lease for that: this state is only shown.
 * DEAD: that start is over for certain, since its process has ended. Only the directory is asked,
 * for a later start.
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

/* The longest pause after an attempt. A worker that is called again finds a restarted one within
 * this time. */
#define TETHER__OUTAGE_PAUSE_MAX_MS 500

#define TETHER__OUTAGE_HOW_SIZE 160

enum tether__outage_kind { TETHER__NO_OUTAGE, TETHER__LOST, TETHER__DEAD };

struct tether__outage {
    enum tether__outage_kind kind;
    uint64_t start;     /* the start of the peer that is out of reach; 0: not known */
    int64_t since;      /* when that was noticed */
    int64_t retry_at;   /* no attempt to reach the peer begins earlier */
    int64_t give_up_at; /* the end of the present attempt; TETHER__NEVER: there is none */
    int pause_ms;       /* after the next attempt that fails */
    char how[TETHER__OUTAGE_HOW_SIZE]; /* it was noticed */
};

void tether__outage_init(struct tether__outage *outage);

/* The start is out of reach. If that was known already, only `kind` and `how` are taken over. */
void tether__outage_begin(struct tether__outage *outage,
                          enum tether__outage_kind kind,
                          uint64_t start,
                          const char *how,
                          int64_t now);
void tether__outage_end(struct tether__outage *outage);

/* An attempt begins, unless one is under way: it has a quarter of a lease, two seconds at most.
 * Says when it begins: now, or at `retry_at`. Without an outage: now. */
int64_t tether__outage_try(struct tether__outage *outage, uint32_t lease_ms, int64_t now);

/* The attempt, if one is under way, has failed. */
void tether__outage_tried(struct tether__outage *outage, int64_t now);

/* Whether a call made now fails at once. */
static inline bool tether__outage_refuses(const struct tether__outage *outage, int64_t now)
{
    return outage->kind == TETHER__DEAD && outage->give_up_at == TETHER__NEVER &&
           now < outage->retry_at;
}

/* The error of calls to worker `name`. */
tether_status tether__outage_error(const struct tether__outage *outage,
                                   const char *name,
                                   int64_t now,
                                   tether_error *reterr);

#endif
