/* Tether's calls as a contestant: `rpc_bench contestant KIND CLIENT_CPU SERVER_CPU`, where KIND is
 * one of those in lib/crew.h. */
#ifndef TETHER_BENCH_RPC_TETHER_H
#define TETHER_BENCH_RPC_TETHER_H

/* Answers questions, or is the server; returns if the arguments ask for neither. */
void rpc_tether_main(int argc, char **argv);

#endif
