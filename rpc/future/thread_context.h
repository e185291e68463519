/* What the running thread is doing for Tether right now: which function it runs for whom, whether
 * it may block, whether it is the one that polls. Thread-local; no locks.
 */
#ifndef TETHER_RPC_FUTURE_THREAD_CONTEXT_H
#define TETHER_RPC_FUTURE_THREAD_CONTEXT_H

#include <stdbool.h>

#include "base/trace_internal.h"
#include "rpc/agent.h"

struct tether__incoming;
struct tether__stream;
struct tether__progress;
struct tether__reaper;

struct tether__current {
    struct tether__incoming *incoming; /* the call whose function runs here; NULL: none */
    struct tether__progress *polling;  /* this thread polls for it right now; NULL: for none */
    unsigned must_not_block;           /* depth of callbacks and inline functions */
    unsigned inside;                   /* depth of public calls that an agent's stop waits for */
    unsigned destroying;               /* depth of destructors of user objects */
    struct tether__reaper *reaper;     /* this thread receives, has timers or looks workers up, so
                                        * destructors run there; NULL: they run here */
    struct tether__stream *receiving;  /* the flush scope: the batch that this thread handles came
                                        * by this stream; NULL: it handles none */
    bool has_deferred;                 /* frames for other streams wait for the end of the scope */
};

/* Hidden where it is declared, too: a file that takes it for another library's pays for that at
 * every access. */
extern __attribute__((visibility("hidden"))) _Thread_local struct tether__current tether__current;

/* The call whose function runs on this thread, and its trace. Code that runs here for somebody else
 * (a callback, a message that came while the function waits, a destructor) must not see them: leave
 * them before it runs, and come back to them after. */
struct tether__call_context {
    struct tether__incoming *incoming;
    tether_trace trace;
};

static inline struct tether__call_context tether__context_leave(void)
{
    struct tether__call_context left = {tether__current.incoming, tether__trace};
    tether__current.incoming = NULL;
    tether__trace = TETHER_TRACE_NONE;
    return left;
}

static inline void tether__context_return(struct tether__call_context left)
{
    tether__current.incoming = left.incoming;
    tether__trace = left.trace;
}

#endif
