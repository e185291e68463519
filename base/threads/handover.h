/* Memory hand-over through a library that is not built with the thread sanitizer.
 *
 * gRPC guarantees that the thread that receives the completion of an operation sees all writes that
 * another thread made before it started the operation. The sanitizer cannot see that, since
 * Debian's libgrpc is not built with it. These two macros tell it. Without the sanitizer they
 * expand to nothing.
 */
#ifndef TETHER_BASE_THREADS_HANDOVER_H
#define TETHER_BASE_THREADS_HANDOVER_H

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#define tether__hand_over(ptr) __tsan_release((void *)(ptr)) /* before giving it away */
#define tether__take_over(ptr) __tsan_acquire((void *)(ptr)) /* after getting it */
#else
#define tether__hand_over(ptr) ((void)(ptr))
#define tether__take_over(ptr) ((void)(ptr))
#endif

#endif
