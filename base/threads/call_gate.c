/* The slow path of the gate, for a gate that is closed. See call_gate.h. */
#include "base/threads/call_gate.h"

void tether__call_gate_init(struct tether__call_gate *gate)
{
    atomic_init(&gate->word, 0);
    pthread_mutex_init(&gate->mu, NULL);
    pthread_cond_init(&gate->empty, NULL);
}

void tether__call_gate_fini(struct tether__call_gate *gate)
{
    pthread_cond_destroy(&gate->empty);
    pthread_mutex_destroy(&gate->mu);
}

/* Decrements the count under the lock, so that a waiting thread cannot free the gate before this
 * thread has unlocked it. */
void tether__call_gate_leave_closed(struct tether__call_gate *gate)
{
    pthread_mutex_lock(&gate->mu);
    if (atomic_fetch_sub(&gate->word, 1) == (TETHER__GATE_CLOSED | 1))
        pthread_cond_broadcast(&gate->empty);
    pthread_mutex_unlock(&gate->mu);
}

void tether__call_gate_close(struct tether__call_gate *gate)
{
    atomic_fetch_or(&gate->word, TETHER__GATE_CLOSED);
}

void tether__call_gate_wait(struct tether__call_gate *gate)
{
    pthread_mutex_lock(&gate->mu);
    while (atomic_load(&gate->word) != TETHER__GATE_CLOSED)
        pthread_cond_wait(&gate->empty, &gate->mu);
    pthread_mutex_unlock(&gate->mu);
}
