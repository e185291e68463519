/* How the running thread takes part in polling and flushing. Thread-local; no locks. */
#ifndef TETHER_RPC_FUTURE_THREAD_CONTEXT_H
#define TETHER_RPC_FUTURE_THREAD_CONTEXT_H

#include <stdbool.h>

struct tether__stream;
struct tether__poller;

struct tether__current {
    struct tether__poller *polling;   /* this thread polls for it right now; NULL: for none */
    unsigned inside;                  /* depth of public calls that an agent's stop waits for */
    struct tether__stream *receiving; /* the flush scope: the batch that this thread handles came
                                       * by this stream; NULL: it handles none */
    bool has_deferred;                /* frames for other streams wait for the end of the scope */
};

/* Hidden where it is declared, too: a file that takes it for another library's pays for that at
 * every access. */
extern __attribute__((visibility("hidden"))) _Thread_local struct tether__current tether__current;

#endif
