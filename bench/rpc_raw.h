/* Raw blocking TCP as a contestant: `rpc_bench raw CLIENT_CPU SERVER_CPU`. The limit of what any
 * call over TCP can do, and what the others are measured against. */
#ifndef TETHER_BENCH_RPC_RAW_H
#define TETHER_BENCH_RPC_RAW_H

/* Answers questions, or is the server; returns if the arguments ask for neither. */
void rpc_raw_main(int argc, char **argv);

#endif
