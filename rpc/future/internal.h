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
    /* called by tether_future_cancel(); NULL: that only finishes the future */
    void (*cancel)(tether_future *future);
    void (*destroy)(tether_future *future); /* frees the struct that embeds the future */
    /* The next two functions are called by tether_future_wait() without a lock. Both may be NULL.
     */
    /* waits in place of tether__future_await() */
    bool (*await)(tether_future *future, int64_t deadline);
    /* Writes the error of a wait that timed out, with what the future waits for. */
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
    /* the fields below are under mu until the future is done, then constant */
    /* the thread that finished it, as the address of that thread's tether__current */
    const void *finished_by;
    tether_status status;
    tether_value *value;
    /* NULL when the status is TETHER_OK, or when there was no memory for the message */
    tether_error *error;
    /* the call has failed without a reply, so its status comes from the library */
    bool unanswered;
    struct tether__callback first, *more, **more_tail;
    /* waiter of the first thread that waits; NULL: no thread does */
    _Atomic(struct tether__waiter *) waiter;
    struct tether__list waiters; /* waiters of all further threads */
    struct tether__work work;    /* runs the callbacks when the future is done */
    pthread_mutex_t mu;
};

void tether__future_init(tether_future *future,
                         const struct tether__future_ops *ops,
                         struct tether__poller *poller);
void tether__future_fini(
    tether_future *future); /* frees the contents; the memory belongs to the caller */

/* Threads that wait for `future` will poll `poller`, whose memory must outlive the future. */
void tether__future_set_poller(tether_future *future, struct tether__poller *poller);

/* Waits until the future is done or `deadline` (of the system clock) has passed; returns whether
 * it is done. Does not check must_not_block. */
bool tether__future_await(tether_future *future, int64_t deadline);

/* Finishes the future, but does not run its callbacks. False: the future was done already. If it
 * has callbacks, `*ret_has_callbacks` is set and the caller gets a count: run them, then release
 * it. */
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

/* Returns TETHER_EINVAL for timeouts below TETHER_DEFAULT_MS, which have no meaning. */
tether_status tether__timeout_check(int timeout_ms, tether_error *reterr);

/* Returns the status and result of a done future; retains the value for `ret_value`. */
tether_status tether__future_result(tether_future *future,
                                    tether_value **ret_value,
                                    tether_error *reterr);

/* A future that was finished with TETHER_ENOMEM before the program started. Never freed. */
tether_future *tether__future_no_memory(void);

#endif
