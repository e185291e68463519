/* How the library starts a thread of its own. */
#ifndef TETHER_BASE_THREAD_H
#define TETHER_BASE_THREAD_H

#include <pthread.h>

/* Starts `run(arg)` on a thread that debuggers and top call `name` (its first 15 characters). The
 * thread takes no signals but those of its own faults: they are the application's, and a peer that
 * hangs up must not end the process by SIGPIPE. Returns 0 or an errno. Any thread. */
int tether__thread_start(pthread_t *ret_thread,
                         const char *name,
                         void *(*run)(void *arg),
                         void *arg);

#endif
