/* A condition variable for threads that poll while they wait.
 *
 * A thread that makes the condition true calls notify(), which costs one load while no thread
 * waits. A waiting thread enters the list before it looks at the condition, so it misses nothing.
 * It keeps the memory of the condition and of the poller, by a call gate for example.
 *
 * Lock rule: `mu` may be taken under any lock that may be held while a future is finished. No lock
 * is held while `holds` runs.
 */
#ifndef TETHER_RPC_FUTURE_CONDITION_H
#define TETHER_RPC_FUTURE_CONDITION_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"

struct tether__poller;

struct tether__condition {
    _Atomic unsigned n_waiting; /* number of threads in `waiters`; written under mu */
    /* under mu */
    struct tether__list waiters;
    pthread_mutex_t mu;
};

void tether__condition_init(struct tether__condition *condition);
/* no thread may use the condition any more */
void tether__condition_fini(struct tether__condition *condition);

/* Waits until holds(userdata) returns true, and returns true then. Returns false at the deadline.
 * Calls holds() at least once. */
bool tether__condition_wait(struct tether__condition *condition,
                            struct tether__poller *poller,
                            bool (*holds)(void *userdata),
                            void *userdata,
                            int64_t deadline);

void tether__condition_wake_all(struct tether__condition *condition);

static inline bool tether__condition_has_waiters(const struct tether__condition *condition)
{
    return atomic_load(&condition->n_waiting) > 0;
}

/* Makes all waiting threads call holds() again. The caller has changed the condition before, by an
 * atomic operation or under a lock that `holds` also takes. */
static inline void tether__condition_notify(struct tether__condition *condition)
{
    if (tether__condition_has_waiters(condition))
        tether__condition_wake_all(condition);
}

#endif
