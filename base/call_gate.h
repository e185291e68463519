/* A gate that counts the threads inside, so that whoever takes the object apart can wait for them.
 *
 *     if (!tether__call_gate_enter(&gate))      every public call of the object
 *         return TETHER_ESHUTDOWN;
 *     …
 *     tether__call_gate_leave(&gate);
 *
 *     tether__call_gate_close(&gate);           once: nobody gets in any more
 *     tether__call_gate_wait(&gate);            everybody is out: free what they used
 *
 * Between close() and wait() make those who are inside return: fail what they wait for.
 *
 * Cost: one atomic operation to enter, one to leave; no lock while the gate is open. A thread may
 * enter again while it is inside. It must not wait() then: it would wait for itself.
 *
 * Threads: any. The memory must be there when enter() is called; leave() does not touch it after
 * the thread that waits has seen the thread leave: once the gate is closed, threads leave under
 * `mu`.
 */
#ifndef TETHER_BASE_CALL_GATE_H
#define TETHER_BASE_CALL_GATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define TETHER__GATE_CLOSED (UINT64_C(1) << 63)

struct tether__call_gate {
    _Atomic uint64_t word; /* how many are inside; the highest bit says that it is closed */
    pthread_mutex_t mu;
    pthread_cond_t empty;
};

void tether__call_gate_init(struct tether__call_gate *gate);
void tether__call_gate_fini(struct tether__call_gate *gate); /* nobody is inside */

/* The path for a gate that is closed. */
void tether__call_gate_leave_closed(struct tether__call_gate *gate);

/* False: the gate is closed; do not leave. */
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

/* From here on enter() says no. A second time is fine. */
void tether__call_gate_close(struct tether__call_gate *gate);

/* Returns when nobody is inside; after close(). Several threads may wait. No deadline: it is for
 * the owner of the gate to make those inside return. */
void tether__call_gate_wait(struct tether__call_gate *gate);

static inline bool tether__call_gate_is_closed(const struct tether__call_gate *gate)
{
    return atomic_load(&gate->word) & TETHER__GATE_CLOSED;
}

#endif
