/* The operations whose costs counts_bench counts. A process of its own runs each: `counts_bench
 * NAME ROUNDS`. Operations between workers are counted twice: local (over a unix socket, as within
 * a host) and network (gRPC over TCP, as between hosts). */
#ifndef TETHER_BENCH_COUNTS_OPS_H
#define TETHER_BENCH_COUNTS_OPS_H

#include <stddef.h>

enum counts_way {
    COUNTS_LOCAL,
    COUNTS_NETWORK,
    COUNTS_HERE
}; /* HERE: the owner uses its own object */

struct counts_op {
    const char *name, *words;
    enum counts_way way;
    long rounds;      /* enough for a reproducible count */
    double per_round; /* operations in a round */
    void (*run)(void);
};

extern const struct counts_op counts_ops[];
extern const size_t counts_n_ops;

/* Runs the operation and prints the context switches per round. */
int counts_op_main(const char *name, long rounds);

#endif
