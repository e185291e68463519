/* Tether's references as a contestant: `rref_bench contestant KIND CLIENT_CPU SERVER_CPU`. */
#ifndef TETHER_BENCH_RREF_TETHER_H
#define TETHER_BENCH_RREF_TETHER_H

/* Answers questions, or serves as one of the workers behind; returns if the arguments ask for
 * neither. */
void rref_tether_main(int argc, char **argv);

#endif
