/* Futures. See future.h for the rules and future/internal.h for the locks. */
#include "rpc/future.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status_internal.h"
#include "base/threads/handover.h"
#include "base/threads/life.h"
#include "base/threads/state.h"
#include "rpc/future/internal.h"
#include "rpc/future/poller.h"
#include "rpc/future/thread_context.h"

void tether__future_init(tether_future *future,
                         const struct tether__future_ops *ops,
                         struct tether__poller *poller)
{
    memset(future, 0, sizeof *future);
    future->ops = ops;
    tether__future_set_poller(future, poller);
    atomic_init(&future->refs, 1);
    future->status = TETHER_EBUSY;
    future->more_tail = &future->more;
    tether__list_init(&future->waiters);
    pthread_mutex_init(&future->mu, NULL);
}

void tether__future_set_poller(tether_future *future, struct tether__poller *poller)
{
    if (poller && poller->life)
        tether__life_retain(poller->life);
    future->poller = poller;
}

void tether__future_fini(tether_future *future)
{
    struct tether__poller *poller = future->poller;
    for (struct tether__callback *cb = future->more, *next; cb; cb = next) {
        next = cb->next;
        tether__free(cb);
    }
    tether_value_release(future->value);
    tether__free(future->error);
    pthread_mutex_destroy(&future->mu);
    if (poller && poller->life)
        tether__life_release(poller->life);
}

static void destroy_plain(tether_future *future)
{
    tether__future_fini(future);
    tether__free(future);
}

static const struct tether__future_ops plain_ops = {.destroy = destroy_plain};

tether_future *tether_future_new(void)
{
    tether_future *future = tether__malloc(sizeof *future);
    if (future)
        tether__future_init(future, &plain_ops, NULL);
    return future;
}

tether_future *tether__future_no_memory(void)
{
    static tether_future future = {
        .ops = &plain_ops,
        .refs = UINT32_MAX / 2,
        .done = true,
        .status = TETHER_ENOMEM,
        .mu = PTHREAD_MUTEX_INITIALIZER,
    };
    return &future;
}

tether_future *tether_future_retain(tether_future *future)
{
    if (future && future != tether__future_no_memory())
        atomic_fetch_add_explicit(&future->refs, 1, memory_order_relaxed);
    return future;
}

tether_future *tether_future_release(tether_future *future)
{
    if (future && future != tether__future_no_memory() &&
        atomic_fetch_sub_explicit(&future->refs, 1, memory_order_acq_rel) == 1)
        future->ops->destroy(future);
    return NULL;
}

static void run_callback(tether_future *future, const struct tether__callback *cb)
{
    struct tether__incoming *outer = tether__thread_state.incoming;
    /* the callback does not run on behalf of the caller that this thread serves */
    tether__thread_state.incoming = NULL;
    tether__thread_state.must_not_block++;
    cb->fn(future, cb->userdata);
    tether__thread_state.must_not_block--;
    tether__thread_state.incoming = outer;
}

bool tether__future_store(tether_future *future,
                          tether_status status,
                          const tether_error *error,
                          tether_value *value,
                          bool *ret_has_callbacks)
{
    *ret_has_callbacks = false;
    if (atomic_load(&future->done))
        return false;
    tether_error *copy = NULL;
    if (status != TETHER_OK && error && (copy = tether__malloc(sizeof *copy)))
        *copy = *error;
    tether_value_retain(value);

    pthread_mutex_lock(&future->mu);
    if (atomic_load_explicit(&future->done, memory_order_relaxed)) {
        pthread_mutex_unlock(&future->mu);
        tether__free(copy);
        tether_value_release(value);
        return false;
    }
    future->status = status;
    future->error = copy;
    future->value = value;
    /* count the future for its callbacks, or the last holder could free it as soon as it is done */
    if (future->first.fn) {
        *ret_has_callbacks = true;
        tether_future_retain(future);
    }
    future->finished_by = &tether__current;
    /* Makes all that user code has written visible to code that finds the future done
     * (base/threads/handover.h). */
    tether__hand_over(future);
    atomic_store(&future->done, true);
    struct tether__waiter *first = atomic_load(&future->waiter);
    if (first)
        tether__waiter_wake(first);
    TETHER__LIST_FOR_EACH(node, &future->waiters)
        tether__waiter_wake(tether__list_entry(node, struct tether__waiter, done_node));
    pthread_mutex_unlock(&future->mu);
    return true;
}

void tether__future_run_callbacks(tether_future *future)
{
    struct tether__callback *more = future->more;
    future->more = NULL;
    run_callback(future, &future->first);
    for (struct tether__callback *next; more; more = next) {
        next = more->next;
        run_callback(future, more);
        tether__free(more);
    }
}

static void run_callbacks(struct tether__work *work)
{
    tether_future *future = tether__container_of(work, tether_future, work);
    tether__future_run_callbacks(future);
    tether_future_release(future);
}

bool tether_future_finish(tether_future *future,
                          tether_status status,
                          const tether_error *error,
                          tether_value *value)
{
    bool has_callbacks;
    status = tether__status_from_outside((int)status);
    bool first = tether__future_store(future, status, error, value, &has_callbacks);
    if (has_callbacks) {
        future->work.run = run_callbacks;
        tether__work_run(&future->work);
    }
    return first;
}

static tether_status add_callback_locked(tether_future *future, struct tether__callback callback)
{
    if (!future->first.fn) {
        future->first = callback;
        return TETHER_OK;
    }
    struct tether__callback *extra = tether__malloc(sizeof *extra);
    if (!extra)
        return TETHER_ENOMEM;
    *extra = callback;
    *future->more_tail = extra;
    future->more_tail = &extra->next;
    return TETHER_OK;
}

/* A callback that was attached after its future was done and is not stored in the future. */
struct late_callback {
    struct tether__work work;
    tether_future *future;
    struct tether__callback callback;
    bool on_heap;
};

static void run_late_callback(struct tether__work *work)
{
    struct late_callback *late = tether__container_of(work, struct late_callback, work);
    tether_future *future = late->future;
    run_callback(future, &late->callback);
    if (late->on_heap)
        tether__free(late);
    tether_future_release(future);
}

/* Runs a callback of a done future from the work list, because it may attach another callback, and
 * so on. */
static tether_status run_late(tether_future *future, struct tether__callback callback)
{
    struct late_callback on_stack, *late = &on_stack;
    bool nested = tether__work_is_running();
    if (nested && !(late = tether__malloc(sizeof *late)))
        return TETHER_ENOMEM;
    *late = (struct late_callback){
        {NULL, run_late_callback}, tether_future_retain(future), callback, nested};
    tether__work_run(&late->work);
    return TETHER_OK;
}

tether_status tether_future_then(tether_future *future, tether_future_cb *cb, void *userdata)
{
    struct tether__callback callback = {cb, userdata, NULL};
    pthread_mutex_lock(&future->mu);
    if (!atomic_load(&future->done)) {
        tether_status st = add_callback_locked(future, callback);
        pthread_mutex_unlock(&future->mu);
        return st;
    }
    bool is_first = !future->first.fn && future != tether__future_no_memory();
    if (is_first)
        future->first = callback; /* stored in the future itself, so it needs no memory */
    pthread_mutex_unlock(&future->mu);
    if (!is_first)
        return run_late(future, callback);
    tether_future_retain(future);
    future->work.run = run_callbacks;
    tether__work_run(&future->work);
    return TETHER_OK;
}

void tether_future_cancel(tether_future *future)
{
    if (atomic_load(&future->done))
        return;
    if (future->ops->cancel) {
        future->ops->cancel(future);
        return;
    }
    tether_error error;
    tether_error_set(&error, TETHER_ECANCELED, "canceled by its holder");
    tether_future_finish(future, TETHER_ECANCELED, &error, NULL);
}

bool tether_future_is_done(const tether_future *future)
{
    bool done = atomic_load(&future->done);
    if (done)
        tether__take_over(future);
    return done;
}

tether_status tether_future_status(const tether_future *future, tether_error *reterr)
{
    if (!tether_future_is_done(future))
        return TETHER_EBUSY;
    if (future->status != TETHER_OK && reterr) {
        if (future->error)
            *reterr = *future->error;
        else
            tether_error_set(reterr, future->status, "%s", tether_status_text(future->status));
    }
    return future->status;
}

tether_value *tether_future_value(const tether_future *future)
{
    return tether_future_is_done(future) ? future->value : NULL;
}

tether_status tether__future_result(tether_future *future,
                                    tether_value **ret_value,
                                    tether_error *reterr)
{
    tether_status st = tether_future_status(future, reterr);
    if (st == TETHER_OK && ret_value)
        *ret_value = tether_value_retain(future->value);
    return st;
}

static void add_waiter(tether_future *future, struct tether__waiter *waiter)
{
    struct tether__waiter *none = NULL;
    if (atomic_compare_exchange_strong(&future->waiter, &none, waiter))
        return;
    pthread_mutex_lock(&future->mu);
    tether__list_push_back(&future->waiters, &waiter->done_node);
    pthread_mutex_unlock(&future->mu);
}

static void remove_waiter(tether_future *future, struct tether__waiter *waiter)
{
    bool is_first = atomic_load_explicit(&future->waiter, memory_order_relaxed) == waiter;
    if (is_first && atomic_load(&future->done) && future->finished_by == &tether__current) {
        atomic_store_explicit(&future->waiter, NULL, memory_order_relaxed);
        return;
    }
    pthread_mutex_lock(&future->mu); /* waits also until finish() no longer uses our waiter */
    if (is_first)
        atomic_store(&future->waiter, NULL);
    tether__list_remove(&waiter->done_node);
    pthread_mutex_unlock(&future->mu);
}

bool tether__future_await(tether_future *future, int64_t deadline)
{
    if (atomic_load(&future->done))
        return true;
    struct tether__waiter waiter;
    const struct tether__clock *clock =
        future->poller ? future->poller->clock : &tether__clock_system;
    tether__waiter_init(&waiter, future->poller);
    add_waiter(future, &waiter);
    if (future->poller)
        tether__poller_wait(future->poller, &future->done, &waiter, deadline);
    else
        while (!atomic_load(&future->done) && tether__clock_now_ns(clock) < deadline)
            tether__waiter_sleep(&waiter, clock, deadline);
    remove_waiter(future, &waiter);
    tether__waiter_fini(&waiter);
    return atomic_load(&future->done);
}

tether_status tether__timeout_check(int timeout_ms, tether_error *reterr)
{
    if (timeout_ms >= TETHER_DEFAULT_MS)
        return TETHER_OK;
    return tether_error_set(reterr, TETHER_EINVAL,
                            "timeout_ms is %d: use 0 or more, -1 for no limit, or "
                            "TETHER_DEFAULT_MS",
                            timeout_ms);
}

static bool await(tether_future *future, int64_t deadline)
{
    return future->ops->await ? future->ops->await(future, deadline)
                              : tether__future_await(future, deadline);
}

static tether_status not_done(tether_future *future, int timeout_ms, tether_error *reterr)
{
    tether_error error;
    if (future->ops->explain_wait)
        future->ops->explain_wait(future, timeout_ms, &error);
    else
        tether_error_set(&error, TETHER_ETIMEOUT,
                         "waiting for a future timed out after %d ms: nobody has finished it "
                         "yet, wait again or cancel it",
                         timeout_ms);
    if (reterr)
        *reterr = error;
    return TETHER_ETIMEOUT;
}

tether_status tether_future_wait(tether_future *future,
                                 int timeout_ms,
                                 tether_value **ret_value,
                                 tether_error *reterr)
{
    tether_status st = tether__timeout_check(timeout_ms, reterr);
    if (st != TETHER_OK)
        return st;
    if (!atomic_load(&future->done)) {
        if (timeout_ms != 0 && tether__thread_state.must_not_block)
            return tether_error_set(reterr, TETHER_EDEADLK,
                                    "waiting here would stop the thread that brings the result: "
                                    "use tether_future_then() or register the function as pooled");
        const struct tether__clock *clock =
            future->poller ? future->poller->clock : &tether__clock_system;
        if (!await(future, tether__deadline_in(clock, timeout_ms)))
            return not_done(future, timeout_ms, reterr);
    }
    return tether__future_result(future, ret_value, reterr);
}
