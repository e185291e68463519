/* The retry budget: retries are a bounded share of all messages to a peer, so that many failures at
 * once do not cause a flood of attempts when there is least room for them.
 *
 * Each peer has a bucket of ten tokens, full at first. A call or request adds a tenth of a token
 * when it is first sent; a retry costs a token. Besides, a token is added every ten seconds,
 * because messages that must arrive are retried even when nothing else is sent. A retry that finds
 * no token waits until there is one.
 *
 * So of n calls in t seconds there are at most 10 + n / 10 + t / 10 retries. A budget is guarded by
 * the lock of the struct that it is part of. Callers pass the present time.
 */
#ifndef TETHER_RPC_CALL_BUDGET_H
#define TETHER_RPC_CALL_BUDGET_H

#include "base/clock.h"

/* The size of the bucket, and the price of things, in thousandths of a token. */
enum { TETHER__BUDGET_FULL = 10000, TETHER__BUDGET_EARNED = 100, TETHER__BUDGET_RETRY = 1000 };

/* How long it takes until time alone adds a thousandth of a token. */
#define TETHER__BUDGET_TRICKLE_NS (10 * TETHER__NS_PER_MS)

struct tether__budget {
    int64_t thousandths;
    /* `thousandths` includes the tokens that time alone has added up to here */
    int64_t trickled_at;
};

static inline void tether__budget_init(struct tether__budget *budget, int64_t now)
{
    *budget = (struct tether__budget){TETHER__BUDGET_FULL, now};
}

/* Adds a tenth of a token, because a call or request is sent for the first time. */
static inline void tether__budget_earn(struct tether__budget *budget)
{
    if (budget->thousandths < TETHER__BUDGET_FULL)
        budget->thousandths += TETHER__BUDGET_EARNED;
}

/* Pays for a retry and returns 0. If there is no token, returns when there will be one. */
static inline int64_t tether__budget_spend(struct tether__budget *budget, int64_t now)
{
    int64_t trickled = (now - budget->trickled_at) / TETHER__BUDGET_TRICKLE_NS;
    budget->trickled_at += trickled * TETHER__BUDGET_TRICKLE_NS;
    budget->thousandths += trickled;
    if (budget->thousandths > TETHER__BUDGET_FULL)
        budget->thousandths = TETHER__BUDGET_FULL;
    int64_t missing = TETHER__BUDGET_RETRY - budget->thousandths;
    if (missing > 0)
        return budget->trickled_at + missing * TETHER__BUDGET_TRICKLE_NS;
    budget->thousandths -= TETHER__BUDGET_RETRY;
    return 0;
}

/* Gives back the price of a retry that was not sent. */
static inline void tether__budget_refund(struct tether__budget *budget)
{
    budget->thousandths += TETHER__BUDGET_RETRY;
}

#endif
