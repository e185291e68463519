/* A contestant, the measured side of a contest: a process with one or two servers of its own, which
 * answers questions on standard input until the end of input.
 *
 *     <- ready                    connected and warm
 *     -> sync_64 0.2              measure "sync_64" for 0.2 s
 *     <- 38.25                    in the unit of the figure (microseconds, operations a second,
 * bytes)
 *     -> fly 0.2
 *     <- -                        it does not have this function
 *
 * Peers in other languages use the same protocol (bench/peers). Between two questions a contestant
 * does nothing, because it is the turn of the others.
 */
#ifndef TETHER_BENCH_LIB_CONTESTANT_H
#define TETHER_BENCH_LIB_CONTESTANT_H

#include <stddef.h>

struct bench_skill {
    const char *figure;
    double (*measure)(void *self, double seconds); /* negative: it can't be measured */
};

/* Prints "ready" and answers questions; the last entry of `skills` has no name. Returns at the end
 * of input. */
void bench_answer(const struct bench_skill *skills, void *self);

#endif
