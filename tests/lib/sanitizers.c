/* What the thread sanitizer is to overlook, in every test that links tests/lib: what happens inside
 * of Debian's libgrpc, which is not compiled with it. Its runtime finds this function by name and
 * calls it before main(); without the sanitizer nobody does.
 */
#include "base/macros.h"

/* Weak: third_party/grpc_sanitizers.c, part of whatever links gRPC, goes before it. */
TETHER_API __attribute__((weak)) const char *__tsan_default_suppressions(void);

/* gRPC orders its own accesses by atomics that the thread sanitizer can't see. A pattern that names
 * a library matches reports with one of its frames in a stack of the access; a race of ours that
 * gRPC has no frame in is reported still. */
const char *__tsan_default_suppressions(void)
{
    return "race:libgrpc.so\n"
           "race:libgpr.so\n"
           "race:libabsl_\n"
           "deadlock:libgrpc.so\n";
}
