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
        *incoming; /* the call whose function runs here (rpc/serve); NULL: none */
    /* nesting depth of callbacks and inline functions, which must not block */
    unsigned must_not_block;
    unsigned destroying; /* nesting depth of destructors of user objects */
    /* the reaper for this thread's destructors, if the thread receives messages, runs timers or
     * looks workers up; NULL: destructors run here */
    struct tether__reaper *reaper;
};

/* Hidden in its declaration, too. Otherwise the compiler assumes that another library may define
 * it, which makes each access slower.
 */
extern __attribute__((
    visibility("hidden"))) _Thread_local struct tether__thread_state tether__thread_state;

/* The call whose function runs on this thread, and its trace. Code that runs here for another
 * caller (a callback, a message that came while the function waits, a destructor) must not see
 * them. So save and clear them before it runs, and restore them afterwards. */
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
