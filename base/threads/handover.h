/* Memory hand-over that the thread sanitizer cannot see by itself.
 *
 * gRPC guarantees that the thread that receives the completion of an operation sees all writes that
 * another thread made before it started the operation. The sanitizer cannot see that, since
 * Debian's libgrpc is not built with it. These two macros tell it.
 *
 * Programs of users may be built with the sanitizer, and use a Tether that is not. Its locks are
 * seen there, its atomics are not. So where a user's data is ordered by an atomic alone, these
 * macros also tell the sanitizer of such a program, if there is one: its functions are weak symbols
 * here.
 */
#ifndef TETHER_BASE_THREADS_HANDOVER_H
#define TETHER_BASE_THREADS_HANDOVER_H

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
/* call it before giving the memory to another thread */
#define tether__hand_over(ptr) __tsan_release((void *)(ptr))
/* call it after receiving the memory from another thread */
#define tether__take_over(ptr) __tsan_acquire((void *)(ptr))
#else
void __tsan_release(void *ptr) __attribute__((weak));
void __tsan_acquire(void *ptr) __attribute__((weak));
#define tether__hand_over(ptr) (__tsan_release ? __tsan_release((void *)(ptr)) : (void)0)
#define tether__take_over(ptr) (__tsan_acquire ? __tsan_acquire((void *)(ptr)) : (void)0)
#endif

#endif
