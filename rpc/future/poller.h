/* The poller: decides which thread polls the client side of the transport, so that a synchronous
 * call wakes no thread but the one that made it. It knows of no futures, only of flags that other
 * threads set.
 *
 * One thread at a time leads (polls); the others that wait follow (sleep on their semaphore). A
 * leader whose flag is set makes the first follower the leader. When no thread has led for a
 * moment, the background thread does, blocked in the transport. It costs nothing while nothing
 * happens, takes the replies that no thread waits for, and runs the timers. It yields as soon as a
 * thread wants to lead.
 *
 * While threads lead for short calls, the background thread looks every 2 ms whether one still does
 * and whether frames were deferred: so no call has to wake it. When the same thread has led for
 * that long and no frame is deferred, it *rests*: it sleeps until a timer is due, the leader stops
 * without a follower, or a thread defers a frame (frames_deferred()).
 *
 * Lock rule: `mu` is a leaf; neither poll() nor tick() runs under it.
 */
#ifndef TETHER_RPC_FUTURE_POLLER_H
#define TETHER_RPC_FUTURE_POLLER_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/list.h"
#include "base/status.h"

struct tether__life;
struct tether__transport;

/* One waiting thread, on its stack. */
struct tether__waiter {
    struct tether__list done_node;     /* in a list of the owner of the flag */
    struct tether__list follower_node; /* under poller->mu */
    struct tether__poller *poller;     /* NULL: none, it only sleeps */
    _Atomic bool polling;              /* it is in poll(), not asleep */
    sem_t wake;
};

struct tether__poller_ops {
    /* Runs the timers that are due by `now`; returns when it must be called next (TETHER__NEVER:
     * not). Background thread; must not block. */
    int64_t (*tick)(void *userdata, int64_t now);
    /* Writes the deferred frames. Any thread; before each poll that may block. */
    void (*flush)(void *userdata);
    /* Whether flush() has anything to write. Any thread. */
    bool (*deferred)(const void *userdata);
    /* Runs the destructors of objects that a polling or ticking thread has released. NULL: they run
     * on that thread. */
    struct tether__reaper *(*reaper)(void *userdata);
};

struct tether__poller {
    /* immutable after start() */
    struct tether__transport *transport;
    const struct tether__clock *clock;
    const struct tether__poller_ops *ops;
    void *userdata;
    struct tether__life *life; /* of what this is part of: everything that names it keeps it.
                                * Set after start(); NULL: it outlives all that */
    bool threaded;
    pthread_t thread;
    /* any thread */
    _Atomic int64_t next_due;  /* when tick() must run next */
    _Atomic bool threads_lead; /* a caller's thread leads, or has a moment ago; so flush() comes */
    _Atomic bool resting;      /* written under mu: the background thread looks no more */
    int postponed; /* events that the polling thread has handled while frames are deferred */
    _Atomic bool stopping; /* written under mu: no thread may begin to lead */
    /* under mu */
    bool led, background_leads, background_sleeps;
    int64_t last_led;              /* when a thread other than the background one last led */
    uint64_t turns;                /* counts the threads that began to lead */
    struct tether__list followers; /* waiters, first come first */
    pthread_cond_t background_wake, none_leads;
    pthread_mutex_t mu;
};

/* Starts the background thread, unless `threaded` is false (the simulation polls and ticks by
 * itself; then wait() polls in place). */
tether_status tether__poller_start(struct tether__poller *poller,
                                   struct tether__transport *transport,
                                   const struct tether__clock *clock,
                                   const struct tether__poller_ops *ops,
                                   void *userdata,
                                   bool threaded,
                                   tether_error *reterr);

/* Ends the background thread and joins it, and waits until no other thread polls. None will after
 * that: a thread that still waits sleeps until its flag is set. The client side may then be
 * polled by the caller, and the transport destroyed; kick() and wait() may come at any time. */
void tether__poller_stop(struct tether__poller *poller);

/* When no other thread can kick or wait any more. */
void tether__poller_fini(struct tether__poller *poller);

/* Has tick() called at `due` at the latest. Any thread; cheap when it already will be. */
void tether__poller_kick(struct tether__poller *poller, int64_t due);

/* Call after a frame was deferred for flush(): makes sure that the background thread flushes soon.
 * Any thread, under any lock but `mu`; cheap unless the background thread rests. */
void tether__poller_frames_deferred(struct tether__poller *poller);

/* Calls tick() if it is due. Without a background thread, the test does this. */
void tether__poller_run_due(struct tether__poller *poller, int64_t now);

void tether__waiter_init(struct tether__waiter *waiter, struct tether__poller *poller);
void tether__waiter_fini(struct tether__waiter *waiter);

/* Polls or sleeps until `*done` is set or `deadline` has passed. A thread that sets the flag calls
 * tether__waiter_wake() next, and `waiter` must stay until it has. */
void tether__poller_wait(struct tether__poller *poller,
                         const _Atomic bool *done,
                         struct tether__waiter *waiter,
                         int64_t deadline);

/* Polls or sleeps until `until`. */
void tether__poller_pause(struct tether__poller *poller, int64_t until);

/* Wakes a waiter that is either asleep or inside poll(). Any thread, with the lock of the flag's
 * owner held, which must not come after poller->mu. */
void tether__waiter_wake(struct tether__waiter *waiter);

/* Sleeps until another thread wakes the waiter or the deadline has passed. */
void tether__waiter_sleep(struct tether__waiter *waiter,
                          const struct tether__clock *clock,
                          int64_t deadline);

#endif
