/* Raw blocking sockets as a contestant: `program raw tcp|unix CLIENT_CPU SERVER_CPU`. No call
 * without spinning can be faster, so the others are compared with it. */
#ifndef TETHER_BENCH_LIB_RAW_H
#define TETHER_BENCH_LIB_RAW_H

/* Runs the contestant or the server if the arguments say so; otherwise returns. */
void bench_raw_main(int argc, char **argv);

#endif
