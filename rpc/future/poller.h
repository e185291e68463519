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
    struct tether__list done_node;     /* a node of a list that belongs to the owner of the flag */
    struct tether__list follower_node; /* a node of `followers`; under poller->mu */
    struct tether__poller *poller;     /* the poller to use; NULL: the thread only sleeps */
    /* the thread is in poll(), so it must be woken through the transport */
    _Atomic bool polling;
    sem_t wake;
};

struct tether__poller_ops {
    /* Runs the timers that are due by `now`. Returns when to call it again (TETHER__NEVER: no
     * timer is set). Called on the background thread; must not block. */
    int64_t (*tick)(void *userdata, int64_t now);
    /* Writes the deferred frames. Called on any thread before a poll that may block. */
    void (*flush)(void *userdata);
    /* Whether flush() has anything to write. Any thread. */
    bool (*deferred)(const void *userdata);
    /* Returns the reaper for destructors of objects that are released on a polling or ticking
     * thread. NULL: they run on that thread. */
    struct tether__reaper *(*reaper)(void *userdata);
};

struct tether__poller {
    /* immutable after start() */
    struct tether__transport *transport;
    const struct tether__clock *clock;
    const struct tether__poller_ops *ops;
    void *userdata;
    /* life of the struct that embeds the poller. Set after start(); NULL: that struct outlives
     * all users */
    struct tether__life *life;
    bool threaded;
    pthread_t thread;
    /* any thread */
    _Atomic int64_t next_due; /* when tick() must run next */
    /* a caller's thread leads or led a moment ago, so it calls flush() */
    _Atomic bool threads_lead;
    _Atomic bool resting; /* the background thread has stopped checking; written under mu */
    int postponed;        /* events that the polling thread has handled while frames are deferred */
    _Atomic bool stopping; /* no thread may begin to lead; written under mu */
    /* under mu */
    bool led, background_leads, background_sleeps;
    int64_t last_led;              /* when a thread other than the background one last led */
    uint64_t turns;                /* counts how often a thread began to lead */
    struct tether__list followers; /* waiters that sleep, the one that came first is first */
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

/* Ends the background thread and joins it, and waits until no other thread polls. No thread polls
 * after that: a thread that still waits sleeps until its flag is set. The client side may then be
 * polled by the caller, and the transport destroyed; kick() and wait() may come at any time. */
void tether__poller_stop(struct tether__poller *poller);

/* Frees the poller's resources. No other thread may kick or wait any more. */
void tether__poller_fini(struct tether__poller *poller);

/* Makes tick() run at `due` at the latest. Any thread; cheap if it is due earlier anyway. */
void tether__poller_kick(struct tether__poller *poller, int64_t due);

/* Call after a frame was deferred for flush(): makes sure that the background thread flushes soon.
 * Any thread, under any lock but `mu`; cheap unless the background thread rests. */
void tether__poller_frames_deferred(struct tether__poller *poller);

/* Calls tick() if it is due. Tests without a background thread call this. */
void tether__poller_run_due(struct tether__poller *poller, int64_t now);

void tether__waiter_init(struct tether__waiter *waiter, struct tether__poller *poller);
void tether__waiter_fini(struct tether__waiter *waiter);

/* Polls or sleeps until `*done` is set or `deadline` has passed. A thread that sets the flag then
 * calls tether__waiter_wake(), and `waiter` must stay valid until that has returned. */
void tether__poller_wait(struct tether__poller *poller,
                         const _Atomic bool *done,
                         struct tether__waiter *waiter,
                         int64_t deadline);

/* Polls or sleeps until the time `until`. */
void tether__poller_pause(struct tether__poller *poller, int64_t until);

/* Wakes a waiter that is asleep or inside poll(). Any thread. The caller holds the lock of the
 * flag's owner, which must come before poller->mu in the lock order. */
void tether__waiter_wake(struct tether__waiter *waiter);

/* Sleeps until another thread wakes the waiter or the deadline has passed. */
void tether__waiter_sleep(struct tether__waiter *waiter,
                          const struct tether__clock *clock,
                          int64_t deadline);

#endif
