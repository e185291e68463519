/* Suppressions of the thread sanitizer for every test that links tests/lib: reports from inside
 * Debian's libgrpc, which is not compiled with the sanitizer. The sanitizer's runtime finds this
 * function by name and calls it before main(); without the sanitizer it is not called.
 */
#include "base/macros.h"

/* Weak: grpc_sanitizers.c, which is part of every program with gRPC, takes precedence. */
TETHER_API __attribute__((weak)) const char *__tsan_default_suppressions(void);

/* gRPC orders its own accesses by atomics that the thread sanitizer can't see. A pattern with the
 * name of a library matches reports with a frame of it in a stack of the access. Races without a
 * gRPC frame are still reported. */
const char *__tsan_default_suppressions(void)
{
    return "race:libgrpc.so\n"
           "race:libgpr.so\n"
           "race:libabsl_\n"
           "deadlock:libgrpc.so\n";
}
