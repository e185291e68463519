/* A condition variable for threads that poll while they wait. See condition.h. */
#include "rpc/future/condition.h"

#include "base/clock.h"
#include "rpc/future/poller.h"

/* One waiting thread, on its stack. */
struct entry {
    struct tether__waiter waiter;
    _Atomic bool notified; /* written under condition->mu */
};

void tether__condition_init(struct tether__condition *condition)
{
    atomic_init(&condition->n_waiting, 0);
    tether__list_init(&condition->waiters);
    pthread_mutex_init(&condition->mu, NULL);
}

void tether__condition_fini(struct tether__condition *condition)
{
    pthread_mutex_destroy(&condition->mu);
}

static void enter(struct tether__condition *condition, struct entry *entry)
{
    pthread_mutex_lock(&condition->mu);
    tether__list_push_back(&condition->waiters, &entry->waiter.done_node);
    atomic_fetch_add(&condition->n_waiting, 1);
    pthread_mutex_unlock(&condition->mu);
}

/* Takes the entry out of the list. wake_all() wakes under the lock, so it no longer uses the entry
 * afterwards. */
static void leave(struct tether__condition *condition, struct entry *entry)
{
    pthread_mutex_lock(&condition->mu);
    tether__list_remove(&entry->waiter.done_node);
    atomic_fetch_sub(&condition->n_waiting, 1);
    pthread_mutex_unlock(&condition->mu);
}

bool tether__condition_wait(struct tether__condition *condition,
                            struct tether__poller *poller,
                            bool (*holds)(void *userdata),
                            void *userdata,
                            int64_t deadline)
{
    struct entry entry;
    bool done = holds(userdata);
    if (done || tether__clock_now_ns(poller->clock) >= deadline)
        return done;
    tether__waiter_init(&entry.waiter, poller);
    atomic_init(&entry.notified, false);
    enter(condition, &entry);
    while (!(done = holds(userdata)) && tether__clock_now_ns(poller->clock) < deadline) {
        tether__poller_wait(poller, &entry.notified, &entry.waiter, deadline);
        atomic_store(&entry.notified, false);
    }
    leave(condition, &entry);
    tether__waiter_fini(&entry.waiter);
    return done;
}

void tether__condition_wake_all(struct tether__condition *condition)
{
    pthread_mutex_lock(&condition->mu);
    TETHER__LIST_FOR_EACH(node, &condition->waiters) {
        struct tether__waiter *waiter = tether__list_entry(node, struct tether__waiter, done_node);
        struct entry *entry = tether__container_of(waiter, struct entry, waiter);
        if (!atomic_exchange(&entry->notified, true))
            tether__waiter_wake(waiter);
    }
    pthread_mutex_unlock(&condition->mu);
}
