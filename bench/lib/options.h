/* The command line that all benchmarks share. */
#ifndef TETHER_BENCH_LIB_OPTIONS_H
#define TETHER_BENCH_LIB_OPTIONS_H

struct bench_options {
    const char *tsv;   /* file to which results are appended; NULL: none */
    const char *peers; /* folder of the peers' programs; NULL: none */
    const char *only;  /* only figures whose names contain this; "": all */
    int rounds;
    double seconds; /* of one turn */
};

#define BENCH_MAX_ROUNDS 31

/* Reads the command line into `options`, which has the defaults. Ends the program on invalid
 * options. */
void bench_options_read(int argc, char **argv, struct bench_options *options);

#endif
