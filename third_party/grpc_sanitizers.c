/* What the sanitizers are not to look at, for every program that links gRPC.
 *
 * Debian's gRPC and what is below it are not built with the thread sanitizer: it sees their
 * memcpy() and free(), but not the atomics and futexes that order them, and takes each such pair
 * for a race. So calls from these libraries are ignored. What our own code does stays under watch,
 * also with memory that gRPC hands out.
 *
 * A connection attempt that is under way when its channel is destroyed keeps gRPC's own threads for
 * a moment beyond grpc_shutdown_blocking(). If the process ends then, nobody has joined them.
 *
 * Part of the program rather than a file named by TSAN_OPTIONS, so that it holds wherever the
 * program is started from.
 */
#if defined(__SANITIZE_THREAD__)

__attribute__((visibility("default"))) const char *__tsan_default_suppressions(void);

const char *__tsan_default_suppressions(void)
{
    return "called_from_lib:libgrpc.so\n"
           "called_from_lib:libgpr.so\n"
           "called_from_lib:libupb.so\n"
           "called_from_lib:libaddress_sorting.so\n"
           "called_from_lib:libcares.so\n"
           "called_from_lib:libssl.so\n"
           "called_from_lib:libcrypto.so\n"
           "called_from_lib:libre2.so\n"
           "called_from_lib:libstdc++.so\n"
           "called_from_lib:libabsl_base.so\n"
           "called_from_lib:libabsl_cord.so\n"
           "called_from_lib:libabsl_cord_internal.so\n"
           "called_from_lib:libabsl_graphcycles_internal.so\n"
           "called_from_lib:libabsl_hash.so\n"
           "called_from_lib:libabsl_malloc_internal.so\n"
           "called_from_lib:libabsl_random_internal_pool_urbg.so\n"
           "called_from_lib:libabsl_raw_hash_set.so\n"
           "called_from_lib:libabsl_status.so\n"
           "called_from_lib:libabsl_statusor.so\n"
           "called_from_lib:libabsl_str_format_internal.so\n"
           "called_from_lib:libabsl_strings.so\n"
           "called_from_lib:libabsl_synchronization.so\n"
           "called_from_lib:libabsl_time.so\n"
           "called_from_lib:libabsl_time_zone.so\n"
           "thread:libgpr.so\n";
}

#elif defined(__SANITIZE_ADDRESS__)

/* A channel that is destroyed while the server at the other end, which has accepted, says nothing
 * leaves its connection to a timer, ten seconds at the most; a process that ends sooner is told of
 * a leak. */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);

const char *__lsan_default_suppressions(void)
{
    return "leak:grpc_create_chttp2_transport\n";
}

#else
typedef int nothing_here; /* a file must have something in it */
#endif
