/* Measures two stores in turns, in the same processes. */
#ifndef TETHER_BENCH_STORE_MEASURE_H
#define TETHER_BENCH_STORE_MEASURE_H

#include "bench/store/peers.h"

enum store_kind {
    STORE_RATE,    /* operations per second of some client processes; `arg` is the operation */
    STORE_WAKE,    /* microseconds from a wake-up to the return of the waiting call */
    STORE_BARRIER, /* microseconds of a barrier of `arg` members */
    STORE_IDLE,    /* per cent of a client's rate that are left beside many idle clients */
    STORE_MEMORY,  /* bytes per key, without the key and its value */
};

enum store_op { OP_SET, OP_GET, OP_ADD, OP_BATCH };

#define STORE_IDLE_CLIENTS 5000

/* Puts clients on CPU 0, and servers on CPU 0 or, with `split`, on CPU 1. */
void store_place(int split);

void store_measure(enum store_kind kind,
                   int arg,
                   int procs,
                   const struct store_peer *const peers[2],
                   double ret_values[2]);

#endif
