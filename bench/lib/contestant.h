/* The side of a contest that is measured: a process that has a server (or two) of its own and
 * answers questions on standard input until that ends.
 *
 *     <- ready                    connected and warm
 *     -> sync_64 0.2              measure "sync_64" for 0.2 s
 *     <- 38.25                    microseconds, operations a second, bytes: what the figure is in
 *     -> fly 0.2
 *     <- -                        it can't do that
 *
 * Peers in other languages speak the same (bench/peers). Between two questions a contestant does
 * nothing: that is the turn of the others.
 */
#ifndef TETHER_BENCH_LIB_CONTESTANT_H
#define TETHER_BENCH_LIB_CONTESTANT_H

#include <stddef.h>

struct bench_skill {
    const char *figure;
    double (*measure)(void *self, double seconds); /* negative: it can't tell */
};

/* Says "ready" and answers; `skills` ends with one without a name. Returns at the end of input. */
void bench_answer(const struct bench_skill *skills, void *self);

#endif
