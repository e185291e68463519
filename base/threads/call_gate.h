/* A gate that counts the threads inside an object, so that the thread that frees the object can
 * wait for them.
 *
 *     if (!tether__call_gate_enter(&gate))      every public call of the object
 *         return TETHER_ESHUTDOWN;
 *     …
 *     tether__call_gate_leave(&gate);
 *
 *     tether__call_gate_close(&gate);           from now on enter() fails
 *     tether__call_gate_wait(&gate);            no thread is inside: free the object
 *
 * Between close() and wait(), fail the operations that threads inside wait for, so that they
 * return.
 *
 * Cost: one atomic operation to enter, one to leave; no lock while the gate is open. A thread may
 * enter again while it is inside. It must not wait() then: it would wait for itself.
 *
 * Threads: any. The memory must be valid when enter() is called. Threads leave a closed gate under
 * `mu`, so leave() does not touch the memory after wait() has returned.
 */
#ifndef TETHER_BASE_THREADS_CALL_GATE_H
#define TETHER_BASE_THREADS_CALL_GATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define TETHER__GATE_CLOSED (UINT64_C(1) << 63)

struct tether__call_gate {
    _Atomic uint64_t word; /* number of threads inside; the highest bit means closed */
    pthread_mutex_t mu;
    pthread_cond_t empty;
};

void tether__call_gate_init(struct tether__call_gate *gate);
void tether__call_gate_fini(struct tether__call_gate *gate); /* no thread may be inside */

/* Does the rest of leave() for a closed gate. */
void tether__call_gate_leave_closed(struct tether__call_gate *gate);

/* Enters the gate. False: the gate is closed, and the caller must not call leave(). */
static inline bool tether__call_gate_enter(struct tether__call_gate *gate)
{
    if (!(atomic_fetch_add(&gate->word, 1) & TETHER__GATE_CLOSED))
        return true;
    tether__call_gate_leave_closed(gate);
    return false;
}

static inline void tether__call_gate_leave(struct tether__call_gate *gate)
{
    uint64_t word = atomic_load_explicit(&gate->word, memory_order_relaxed);
    while (!(word & TETHER__GATE_CLOSED))
        if (atomic_compare_exchange_weak(&gate->word, &word, word - 1))
            return;
    tether__call_gate_leave_closed(gate);
}

/* Makes enter() fail from now on. A second call does nothing. */
void tether__call_gate_close(struct tether__call_gate *gate);

/* Returns when no thread is inside. Call it after close(). Several threads may wait. No deadline:
 * the owner of the gate makes the threads inside return. */
void tether__call_gate_wait(struct tether__call_gate *gate);

static inline bool tether__call_gate_is_closed(const struct tether__call_gate *gate)
{
    return atomic_load(&gate->word) & TETHER__GATE_CLOSED;
}

#endif
