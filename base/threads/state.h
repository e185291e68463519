/* The state of the running thread: whether its code may block, and where destructors run.
 *
 * Thread-local; no locks.
 */
#ifndef TETHER_BASE_THREADS_STATE_H
#define TETHER_BASE_THREADS_STATE_H

#include "base/trace_internal.h"

struct tether__incoming;
struct tether__reaper;

struct tether__thread_state {
    struct tether__incoming
        *incoming;                 /* the call whose function runs here (rpc/serve); NULL: none */
    unsigned must_not_block;       /* depth of callbacks and inline functions */
    unsigned destroying;           /* depth of destructors of user objects */
    struct tether__reaper *reaper; /* runs destructors for this thread, which receives, has timers
                                    * or looks workers up; NULL: they run here */
};

/* Hidden in its declaration, too: otherwise each access goes through the table of another library.
 */
extern __attribute__((
    visibility("hidden"))) _Thread_local struct tether__thread_state tether__thread_state;

/* The call whose function runs on this thread, and its trace. Code that runs here for another
 * caller (a callback, a message that came while the function waits, a destructor) must not see
 * them: leave them before it runs, and come back to them after. */
struct tether__call_context {
    struct tether__incoming *incoming;
    tether_trace trace;
};

static inline struct tether__call_context tether__context_leave(void)
{
    struct tether__call_context left = {tether__thread_state.incoming, tether__trace};
    tether__thread_state.incoming = NULL;
    tether__trace = TETHER_TRACE_NONE;
    return left;
}

static inline void tether__context_return(struct tether__call_context left)
{
    tether__thread_state.incoming = left.incoming;
    tether__trace = left.trace;
}

#endif
