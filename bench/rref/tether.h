/* Tether's references as a contestant: `rref_bench contestant KIND CLIENT_CPU SERVER_CPU`. */
#ifndef TETHER_BENCH_RREF_TETHER_H
#define TETHER_BENCH_RREF_TETHER_H

/* Runs the contestant or one of the other workers if the arguments say so; otherwise returns. */
void rref_tether_main(int argc, char **argv);

#endif
