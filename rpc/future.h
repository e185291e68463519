/* Futures: the result of an operation that has not ended yet.
 *
 * A future is finished once, by the code that makes the result: with a value, or with an error.
 * cancel() only asks for that. When it is finished, waiting threads wake up, and the callbacks run,
 * each once, on the thread that finished it, in the order in which they were attached, with no lock
 * held.
 *
 * Ownership: reference-counted. A future that the library gives you is yours: release it, also
 * before it is done (the call goes on). The value inside belongs to the future; wait() gives you a
 * reference of your own.
 */
#ifndef TETHER_RPC_FUTURE_H
#define TETHER_RPC_FUTURE_H

#include <stdbool.h>

#include "base/macros.h"
#include "base/status.h"
#include "rpc/value.h"

TETHER_BEGIN_DECLS

typedef struct tether_future tether_future;

/* A callback runs once, on the finishing thread, or on the attaching thread if the future is done
 * already. It runs at once; but if a callback finishes a future, or attaches to one that is done,
 * that future's callbacks run when the first callback has returned. It must not block: a blocking
 * call of Tether in it returns TETHER_EDEADLK. */
typedef void tether_future_cb(tether_future *future, void *userdata);

/* Waits until the future is done or `timeout_ms` has passed (0 polls, -1 for ever;
 * TETHER_DEFAULT_MS: as long as the call itself may last). On success `*ret_value` (may be NULL) is
 * the result, yours to release; it can be NULL when the function returned nothing. TETHER_ETIMEOUT
 * when it is not done in time: the caller may wait again. The error of a wait for a call then names
 * the function, the worker, how long the call has lasted, and how far it has come. TETHER_EDEADLK
 * in a callback or an inline function. Else the error that the future was finished with. Any thread
 * otherwise. */
TETHER_API tether_status tether_future_wait(tether_future *future,
                                            int timeout_ms,
                                            tether_value **ret_value,
                                            tether_error *reterr);

/* Calls `cb` when the future is done. TETHER_ENOMEM (then `cb` is never called). Any thread. */
TETHER_API tether_status tether_future_then(tether_future *future,
                                            tether_future_cb *cb,
                                            void *userdata);

/* Asks to finish with TETHER_ECANCELED: the caller stops waiting at once, and the callee gets a
 * cancel message and may or may not stop. Has no effect on a future that is done. Any thread. */
TETHER_API void tether_future_cancel(tether_future *future);

/* Whether it is done, and how: never blocks. `status` and `value` (LENDS) need a done future;
 * before that they are TETHER_EBUSY and NULL. Any thread. */
TETHER_API bool tether_future_is_done(const tether_future *future);
TETHER_API tether_status tether_future_status(const tether_future *future, tether_error *reterr);
TETHER_API tether_value *tether_future_value(const tether_future *future);

/* all: a future that is done when all of these are, or as soon as one of them fails (with its
 * error). any: one that is done when any of these is (with its result). Retains them. Never NULL:
 * out of memory is a future finished with TETHER_ENOMEM. With none: all is done at once, any is
 * TETHER_EINVAL. Any thread. */
TETHER_API tether_future *tether_future_all(tether_future *const *futures, size_t n);
TETHER_API tether_future *tether_future_any(tether_future *const *futures, size_t n);

/* A future of your own, to be finished with tether_future_finish(). NULL when out of memory. Any
 * thread. */
TETHER_API tether_future *tether_future_new(void);

/* Finishes it: TETHER_OK with `value` (may be NULL; retained), else `status` with the message of
 * `error` (may be NULL); a number that is no status counts as TETHER_EREMOTE. Returns false, and
 * changes nothing, when it was done already. Any thread. */
TETHER_API bool tether_future_finish(tether_future *future,
                                     tether_status status,
                                     const tether_error *error,
                                     tether_value *value);

/* Retain gives the same future back; release accepts NULL and returns NULL. Any thread. */
TETHER_API tether_future *tether_future_retain(tether_future *future);
TETHER_API tether_future *tether_future_release(tether_future *future);

TETHER_END_DECLS

#endif
