/* The operations whose costs counts_bench counts, each done so many times by a process that does
 * nothing else: `counts_bench NAME ROUNDS`. Operations between workers are counted twice: near (a
 * unix socket, as within a host) and far (gRPC over TCP, as between hosts). */
#ifndef TETHER_BENCH_COUNTS_OPS_H
#define TETHER_BENCH_COUNTS_OPS_H

#include <stddef.h>

enum counts_way { COUNTS_NEAR, COUNTS_FAR, COUNTS_HERE }; /* here: on the owner itself */

struct counts_op {
    const char *name, *words;
    enum counts_way way;
    long rounds;      /* enough for a good count */
    double per_round; /* operations in a round */
    void (*run)(void);
};

extern const struct counts_op counts_ops[];
extern const size_t counts_n_ops;

/* Does it, and prints how many context switches a round took. */
int counts_op_main(const char *name, long rounds);

#endif
