/* How the running thread takes part in polling and flushing. Thread-local; no locks. */
#ifndef TETHER_RPC_FUTURE_THREAD_CONTEXT_H
#define TETHER_RPC_FUTURE_THREAD_CONTEXT_H

#include <stdbool.h>

struct tether__stream;
struct tether__poller;

struct tether__current {
    /* the poller for which this thread polls right now; NULL: none */
    struct tether__poller *polling;
    unsigned inside; /* depth of public calls that an agent's stop waits for */
    /* the flush scope: the stream of the batch that this thread handles; NULL: it handles none */
    struct tether__stream *receiving;
    /* frames for other streams were deferred until the end of the scope */
    bool has_deferred;
};

/* Hidden in the declaration, too. Otherwise the compiler assumes that it may be in another
 * library, which makes every access slower. */
extern __attribute__((visibility("hidden"))) _Thread_local struct tether__current tether__current;

#endif
