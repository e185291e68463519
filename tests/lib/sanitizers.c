/* Suppressions of the thread sanitizer for every test that links tests/lib: reports from inside of
 * Debian's libgrpc, which is not compiled with it. The sanitizer's runtime finds this function by
 * name and calls it before main(); without the sanitizer it is not called.
 */
#include "base/macros.h"

/* Weak: grpc_sanitizers.c, which is part of every program with gRPC, takes precedence. */
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
