/* Whether a peer is known to be out of reach. See outage.h. */
#include "rpc/peer/connect/outage.h"

#include <stdio.h>

#include "base/text.h"

#define PAUSE_FIRST_MS 20
#define ATTEMPT_MAX_MS 2000

void tether__outage_init(struct tether__outage *outage)
{
    *outage = (struct tether__outage){.give_up_at = TETHER__NEVER};
}

void tether__outage_begin(struct tether__outage *outage,
                          enum tether__outage_kind kind,
                          uint64_t start,
                          const char *how,
                          int64_t now)
{
    if (outage->kind == TETHER__NO_OUTAGE || outage->start != start) {
        tether__outage_init(outage);
        outage->start = start;
        outage->since = outage->retry_at = now; /* now, so that the first call begins an attempt */
        outage->pause_ms = PAUSE_FIRST_MS;
    }
    outage->kind = kind;
    tether__text_fit(outage->how, sizeof outage->how, tether_bytes_str(how));
}

void tether__outage_end(struct tether__outage *outage)
{
    if (outage->kind != TETHER__NO_OUTAGE)
        tether__outage_init(outage);
}

int64_t tether__outage_try(struct tether__outage *outage, uint32_t lease_ms, int64_t now)
{
    int64_t limit_ms = lease_ms / 4 < ATTEMPT_MAX_MS ? lease_ms / 4 : ATTEMPT_MAX_MS;
    if (outage->kind != TETHER__DEAD || outage->give_up_at != TETHER__NEVER)
        return now;
    int64_t from = now > outage->retry_at ? now : outage->retry_at;
    outage->give_up_at = from + limit_ms * TETHER__NS_PER_MS;
    return from;
}

void tether__outage_tried(struct tether__outage *outage, int64_t now)
{
    if (outage->give_up_at == TETHER__NEVER)
        return;
    outage->give_up_at = TETHER__NEVER;
    outage->retry_at = now + outage->pause_ms * TETHER__NS_PER_MS;
    int longer = 2 * outage->pause_ms;
    outage->pause_ms = longer < TETHER__OUTAGE_PAUSE_MAX_MS ? longer : TETHER__OUTAGE_PAUSE_MAX_MS;
}

tether_status tether__outage_error(const struct tether__outage *outage,
                                   const char *name,
                                   int64_t now,
                                   tether_error *reterr)
{
    bool is_dead = outage->kind == TETHER__DEAD;
    char which[32] = "never met";
    if (outage->start)
        snprintf(which, sizeof which, "start %llu", (unsigned long long)outage->start);
    return tether_error_set(reterr, TETHER_EUNAVAILABLE,
                            "worker '%s' (%s) is %s, noticed %lld ms ago: %s; %s", name, which,
                            is_dead ? "dead" : "lost",
                            (long long)((now - outage->since) / TETHER__NS_PER_MS), outage->how,
                            is_dead ? "start it again: calls find its next start"
                                    : "calls reach it again when it answers");
}
