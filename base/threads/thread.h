/* Starts the threads of the library. */
#ifndef TETHER_BASE_THREADS_THREAD_H
#define TETHER_BASE_THREADS_THREAD_H

#include <pthread.h>

/* Starts `run(arg)` on a thread that debuggers and top call `name` (its first 15 characters). The
 * thread blocks all signals except those of its own faults: signals belong to the application, and
 * a closed connection must not end the process by SIGPIPE. Returns 0 or an errno. Any thread. */
int tether__thread_start(pthread_t *ret_thread,
                         const char *name,
                         void *(*run)(void *arg),
                         void *arg);

#endif
