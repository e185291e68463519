/* Suppressions of the sanitizers for every program that links gRPC.
 *
 * Debian's gRPC and the libraries below it are not built with the thread sanitizer. The sanitizer
 * sees their memcpy() and free(), but not the atomics and futexes that order these, and reports
 * races. So it ignores calls from these libraries. It still watches our own code, also with memory
 * that gRPC has allocated.
 *
 * A connection attempt that runs while its channel is destroyed keeps gRPC's own threads alive for
 * a moment after grpc_shutdown_blocking(). If the process ends then, these threads are not joined.
 *
 * The suppressions are part of the program, not a file that TSAN_OPTIONS names. So they apply in
 * any working directory.
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

/* When a channel is destroyed while the server has accepted its connection and sent nothing yet, a
 * timer frees the connection, after ten seconds at most. If the process ends earlier, the sanitizer
 * reports a leak. */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);

const char *__lsan_default_suppressions(void)
{
    return "leak:grpc_create_chttp2_transport\n";
}

#else
typedef int nothing_here; /* C does not allow an empty file */
#endif
