/* Inside a future: for code that finishes futures and for threads that wait on them.
 *
 * `mu` is a leaf lock. A waiting thread hangs its waiter into the future; finish() wakes it, either
 * by its semaphore or, when that thread is inside the transport's poll, by waking the poll.
 *
 * The first thread that waits needs no lock if it finishes the future itself, as a thread that
 * polls for its own reply does. It sets `waiter` and then looks at `done`; finish() does the two
 * the other way round, so one of them sees the other. A thread that did not finish the future takes
 * `mu` before its waiter is gone: finish() wakes under `mu`.
 */
#ifndef TETHER_RPC_FUTURE_INTERNAL_H
#define TETHER_RPC_FUTURE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/list.h"
#include "base/threads/work_list.h"
#include "rpc/future.h"

struct tether__poller;
struct tether__waiter;

struct tether__future_ops {
    void (*cancel)(tether_future *future);  /* NULL: cancel just finishes it */
    void (*destroy)(tether_future *future); /* frees what the future is embedded in */
    /* For tether_future_wait(), with no lock held. Both may be NULL. */
    bool (*await)(tether_future *future, int64_t deadline); /* instead of tether__future_await() */
    /* Words the error of a wait that was not long enough: it says what the future waits for. */
    void (*explain_wait)(tether_future *future, int timeout_ms, tether_error *ret_error);
};

struct tether__callback {
    tether_future_cb *fn;
    void *userdata;
    struct tether__callback *next;
};

struct tether_future {
    const struct tether__future_ops *ops;
    /* The poller that a waiting thread runs to finish the future; the future keeps it alive. NULL:
     * another thread finishes it. Set with set_poller(), before a thread waits. */
    struct tether__poller *poller;
    _Atomic uint32_t refs;
    _Atomic bool done;
    /* under mu until done, then constant */
    const void *finished_by; /* the thread, by the address of its tether__current */
    tether_status status;
    tether_value *value;
    tether_error *error; /* NULL when OK, or when there was no memory for the message */
    bool unanswered;     /* a call failed without a reply: its status is the library's own */
    struct tether__callback first, *more, **more_tail;
    _Atomic(struct tether__waiter *) waiter; /* of the first thread that waits; NULL: none does */
    struct tether__list waiters;             /* of all further threads */
    struct tether__work work;                /* runs the callbacks, once it is done */
    pthread_mutex_t mu;
};

void tether__future_init(tether_future *future,
                         const struct tether__future_ops *ops,
                         struct tether__poller *poller);
void tether__future_fini(
    tether_future *future); /* releases its contents; the memory is the owner's */

/* Threads that wait for `future` will poll `poller`, whose memory must outlive the future. */
void tether__future_set_poller(tether_future *future, struct tether__poller *poller);

/* As tether_future_wait(), with an absolute deadline (of the system clock) and no value taken:
 * whether it is done. Does not look at must_not_block. */
bool tether__future_await(tether_future *future, int64_t deadline);

/* Finishes the future, but does not run its callbacks. False: it was done already. If it has
 * callbacks, `*ret_has_callbacks` is set and the caller gets a count: run them, then release it. */
bool tether__future_store(tether_future *future,
                          tether_status status,
                          const tether_error *error,
                          tether_value *value,
                          bool *ret_has_callbacks);
void tether__future_run_callbacks(tether_future *future);

/* Whether a done call failed because its peer was lost. A function may return the same status. */
static inline bool tether__future_is_loss(const tether_future *future)
{
    return future->unanswered &&
           (future->status == TETHER_EUNAVAILABLE || future->status == TETHER_EFENCED ||
            future->status == TETHER_EOWNERDIED);
}

/* TETHER_EINVAL for a timeout below TETHER_DEFAULT_MS: it means nothing. */
tether_status tether__timeout_check(int timeout_ms, tether_error *reterr);

/* The result of a done future: retains the value for `ret_value`. */
tether_status tether__future_result(tether_future *future,
                                    tether_value **ret_value,
                                    tether_error *reterr);

/* A future that was finished with TETHER_ENOMEM before the program started. Never freed. */
tether_future *tether__future_no_memory(void);

#endif
