/* Starting a thread with a name and without the application's signals. */
#include "base/threads/thread.h"

#include <signal.h>
#include <stdio.h>

#include "base/macros.h"
#include "base/threads/state.h"

_Thread_local struct tether__thread_state tether__thread_state;

#define NAME_SIZE 16 /* the kernel's limit of a thread's name, with the NUL */

/* Signals that the library's threads do not block. The kernel delivers a fault to the thread that
 * caused it, and crash handlers rely on that. */
static const int own_faults[] = {SIGABRT, SIGBUS, SIGFPE,  SIGILL,
                                 SIGSEGV, SIGSYS, SIGTRAP, SIGPROF};

int tether__thread_start(pthread_t *ret_thread,
                         const char *name,
                         void *(*run)(void *arg),
                         void *arg)
{
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t i = 0; i < TETHER__ARRAY_LEN(own_faults); i++)
        sigdelset(&blocked, own_faults[i]);

    /* A new thread inherits the signal mask of the thread that starts it. */
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    int rc = pthread_create(ret_thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0)
        return rc;

    char short_name[NAME_SIZE];
    snprintf(short_name, sizeof short_name, "%s", name);
    pthread_setname_np(*ret_thread, short_name);
    return 0;
}
