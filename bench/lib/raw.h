/* Raw blocking sockets as a contestant: `program raw tcp|unix CLIENT_CPU SERVER_CPU`. The limit of
 * what any call can do without spinning, and what the others are measured against. */
#ifndef TETHER_BENCH_LIB_RAW_H
#define TETHER_BENCH_LIB_RAW_H

/* Answers questions, or is the server; returns if the arguments ask for neither. */
void bench_raw_main(int argc, char **argv);

#endif
