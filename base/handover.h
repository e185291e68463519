/* Handing memory over through a library that the thread sanitizer cannot look into.
 *
 * gRPC guarantees that what a thread wrote before it started an operation is seen by the thread
 * that is told of its end. The sanitizer does not know that, since Debian's libgrpc is not compiled
 * with it: these two say it. Without the sanitizer they are nothing.
 */
#ifndef TETHER_BASE_HANDOVER_H
#define TETHER_BASE_HANDOVER_H

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#define tether__hand_over(ptr) __tsan_release((void *)(ptr)) /* before giving it away */
#define tether__take_over(ptr) __tsan_acquire((void *)(ptr)) /* after getting it */
#else
#define tether__hand_over(ptr) ((void)(ptr))
#define tether__take_over(ptr) ((void)(ptr))
#endif

#endif
