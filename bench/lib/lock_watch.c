/* See lock_watch.h. The linker sends calls of these functions here (`--wrap`, in BUILD). A wait on
 * a condition releases the lock, so it ends one hold and begins another.
 */
#include "bench/lib/lock_watch.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

#define MAX_HELD 16 /* locks of one thread at a time */

int __real_pthread_mutex_lock(pthread_mutex_t *mu);
int __real_pthread_mutex_unlock(pthread_mutex_t *mu);
int __real_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mu);
int __real_pthread_cond_timedwait(pthread_cond_t *cond,
                                  pthread_mutex_t *mu,
                                  const struct timespec *until);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mu);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mu);
int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mu);
int __wrap_pthread_cond_timedwait(pthread_cond_t *cond,
                                  pthread_mutex_t *mu,
                                  const struct timespec *until);

extern char __executable_start[]; /* the linker's */

static _Atomic bool watching;
static _Atomic int64_t longest_ns;
static void *_Atomic longest_from, *_Atomic longest_to;

static _Thread_local struct {
    pthread_mutex_t *mu; /* NULL: free */
    int64_t since;
    void *at;
} held[MAX_HELD];

static int64_t thread_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* When two threads note at the same time, one value may be lost. Later ones are noted again. */
static void note(int64_t ns, void *from, void *to)
{
    if (ns <= atomic_load(&longest_ns))
        return;
    atomic_store(&longest_ns, ns);
    atomic_store(&longest_from, from);
    atomic_store(&longest_to, to);
}

static void begin_hold(pthread_mutex_t *mu, void *at)
{
    if (!atomic_load_explicit(&watching, memory_order_relaxed))
        return;
    for (int i = 0; i < MAX_HELD; i++) {
        if (held[i].mu)
            continue;
        held[i].mu = mu;
        held[i].at = at;
        held[i].since = thread_ns();
        break;
    }
}

static void end_hold(pthread_mutex_t *mu, void *at)
{
    for (int i = 0; i < MAX_HELD; i++) {
        if (held[i].mu != mu)
            continue;
        held[i].mu = NULL;
        if (atomic_load_explicit(&watching, memory_order_relaxed))
            note(thread_ns() - held[i].since, held[i].at, at);
        break;
    }
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *mu)
{
    int rc = __real_pthread_mutex_lock(mu);
    begin_hold(mu, __builtin_return_address(0));
    return rc;
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *mu)
{
    end_hold(mu, __builtin_return_address(0));
    return __real_pthread_mutex_unlock(mu);
}

int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mu)
{
    end_hold(mu, __builtin_return_address(0));
    int rc = __real_pthread_cond_wait(cond, mu);
    begin_hold(mu, __builtin_return_address(0));
    return rc;
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *cond,
                                  pthread_mutex_t *mu,
                                  const struct timespec *until)
{
    end_hold(mu, __builtin_return_address(0));
    int rc = __real_pthread_cond_timedwait(cond, mu, until);
    begin_hold(mu, __builtin_return_address(0));
    return rc;
}

void bench_locks_watch(bool on)
{
    if (on)
        atomic_store(&longest_ns, 0);
    atomic_store(&watching, on);
}

double bench_locks_longest_ms(void)
{
    return (double)atomic_load(&longest_ns) / 1e6;
}

void bench_locks_longest_at(unsigned long *ret_from, unsigned long *ret_to)
{
    *ret_from = (unsigned long)((char *)atomic_load(&longest_from) - __executable_start);
    *ret_to = (unsigned long)((char *)atomic_load(&longest_to) - __executable_start);
}
