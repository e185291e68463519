/* Tether's calls as a contestant: `rpc_bench contestant KIND CLIENT_CPU SERVER_CPU`, where KIND is
 * one of those in lib/crew.h. */
#ifndef TETHER_BENCH_RPC_TETHER_H
#define TETHER_BENCH_RPC_TETHER_H

/* Runs the contestant or the server if the arguments say so; otherwise returns. */
void rpc_tether_main(int argc, char **argv);

#endif
