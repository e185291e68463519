/* The first start of gRPC in a process. */
#include "net/grpc_init.h"

#include <dlfcn.h>
#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/macros.h"

/* gRPC's default, epoll1, has one epoll set for the whole process: the thread that polls it reads
 * every socket and hands events of other queues to the threads that wait there. With a server
 * thread that always polls, each reply to a waiting caller would wake two threads. "poll" gives
 * each queue its own sockets, but checks all of them each time: with many sockets that costs more
 * than the hand-over (docs/decisions.md has the figures). */
#define POLL_STRATEGY "GRPC_POLL_STRATEGY"
#define MAX_PEERS_TO_POLL 64

static bool few_peers(int expected_peers)
{
    /* launchers such as torchrun set the number of workers here */
    const char *world_size = getenv("WORLD_SIZE");
    if (expected_peers == 0 && world_size)
        expected_peers = atoi(world_size);
    return expected_peers <= MAX_PEERS_TO_POLL;
}

/* Starts gRPC with one more environment variable. gRPC reads it only here, and other threads may be
 * in getenv(). So this replaces the array instead of changing it, and child processes do not see
 * it. A thread that reads `environ` meanwhile gets one of two complete arrays, so the thread
 * sanitizer must not report it. */
__attribute__((no_sanitize("thread"))) static void init_with_variable(char *variable)
{
    /* static, because another thread may still read the old environment afterwards */
    static char *with_variable[4096];
    char **before = environ;
    size_t n = 0;
    while (before && before[n])
        n++;
    if (n + 2 > TETHER__ARRAY_LEN(with_variable)) {
        grpc_init();
        return;
    }
    for (size_t i = 0; i < n; i++)
        with_variable[i] = before[i];
    with_variable[n] = variable;
    environ = with_variable;
    grpc_init();
    if (environ == with_variable)
        environ = before;
}

/* Debian builds Abseil, whose mutexes gRPC uses, with deadlock detection: a fifth of the
 * instructions of a call, and a global lock. This turns it off through the C++ name of Abseil's
 * switch; without such a symbol nothing changes. */
static void switch_off_lock_checks(void)
{
    void (*set_mode)(int) = dlsym(
        RTLD_DEFAULT, "_ZN4absl7debian329SetMutexDeadlockDetectionModeENS0_15OnDeadlockCycleE");
    if (set_mode)
        set_mode(0);
}

/* Errors that gRPC prints reach our caller as a status anyway, so they are logged as explanations.
 */
static void log_to_hook(gpr_log_func_args *args)
{
    tether__log(TETHER_LOG_DEBUG, "grpc", "%s", args->message);
}

void tether__grpc_init(int expected_peers)
{
    static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
    static bool chosen;
    pthread_mutex_lock(&mu);
    if (chosen) {
        grpc_init();
    } else {
        chosen = true;
        switch_off_lock_checks();
        tether__alloc_keep_freed();
        if (!getenv("GRPC_VERBOSITY") && !getenv("GRPC_TRACE"))
            gpr_set_log_function(log_to_hook);
        if (!getenv(POLL_STRATEGY) && few_peers(expected_peers))
            init_with_variable(POLL_STRATEGY "=poll");
        else
            grpc_init();
    }
    pthread_mutex_unlock(&mu);
}

bool tether__grpc_has_descriptors(void)
{
    int fds[8]; /* gRPC 1.51 opens three descriptors; check with some more */
    size_t n = 0;
    while (n < TETHER__ARRAY_LEN(fds) && (fds[n] = eventfd(0, EFD_CLOEXEC)) >= 0)
        n++;
    for (size_t i = 0; i < n; i++)
        close(fds[i]);
    return n == TETHER__ARRAY_LEN(fds);
}
