/* The command line that all benchmarks share. */
#ifndef TETHER_BENCH_LIB_OPTIONS_H
#define TETHER_BENCH_LIB_OPTIONS_H

struct bench_options {
    const char *tsv;   /* file that results are added to; NULL: none */
    const char *peers; /* folder with the peers' programs; NULL: there are none */
    const char *only;  /* figures with this in their names; "": all */
    int rounds;
    double seconds; /* of one turn */
};

#define BENCH_MAX_ROUNDS 31

/* Reads the command line into what are the defaults; ends the program when it makes no sense. */
void bench_options_read(int argc, char **argv, struct bench_options *options);

#endif
