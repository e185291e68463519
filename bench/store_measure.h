/* How stores are measured beside each other: two at a time, by turns, in the same processes. */
#ifndef TETHER_BENCH_STORE_MEASURE_H
#define TETHER_BENCH_STORE_MEASURE_H

#include "bench/store_peers.h"

enum store_kind {
    STORE_RATE,    /* operations a second of so many processes; `arg` is the operation */
    STORE_WAKE,    /* microseconds from a wake-up to the return of who waits for it */
    STORE_BARRIER, /* microseconds of a barrier of `arg` */
    STORE_IDLE,    /* per cent of a client's rate that are left among many idle ones */
    STORE_MEMORY,  /* bytes a key, beside the key and its value */
};

enum store_op { OP_SET, OP_GET, OP_ADD, OP_BATCH };

#define STORE_IDLE_CLIENTS 5000

/* Clients are on CPU 0; so are servers, or on CPU 1 with `split`. */
void store_place(int split);

void store_measure(enum store_kind kind,
                   int arg,
                   int procs,
                   const struct store_peer *const peers[2],
                   double ret_values[2]);

#endif
