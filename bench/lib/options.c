/* See options.h. */
#include "bench/lib/options.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

static void usage(FILE *to, int status)
{
    fprintf(to,
            "usage: %s [options]\n"
            "  --tsv=FILE      add the results to FILE, for programs to read\n"
            "  --rounds=N      how often everything is measured (1 to %d)\n"
            "  --seconds=S     how long a turn takes\n"
            "  --only=TEXT     only figures with TEXT in their names\n"
            "  --peers=FOLDER  where the peers' programs are (bench/peers/build makes them)\n",
            program_invocation_short_name, BENCH_MAX_ROUNDS);
    exit(status);
}

void bench_options_read(int argc, char **argv, struct bench_options *options)
{
    static const struct option known[] = {
        {"tsv", required_argument, NULL, 't'},
        {"peers", required_argument, NULL, 'p'},
        {"only", required_argument, NULL, 'o'},
        {"rounds", required_argument, NULL, 'r'},
        {"seconds", required_argument, NULL, 's'},
        {"help", no_argument, NULL, 'h'},
        {0},
    };
    for (int c; (c = getopt_long(argc, argv, "", known, NULL)) >= 0;) {
        if (c == 'h')
            usage(stdout, 0);
        else if (c == 't')
            options->tsv = optarg;
        else if (c == 'p')
            options->peers = optarg;
        else if (c == 'o')
            options->only = optarg;
        else if (c == 'r')
            options->rounds = atoi(optarg);
        else if (c == 's')
            options->seconds = atof(optarg);
        else
            usage(stderr, 2);
    }
    if (optind < argc || options->rounds < 1 || options->rounds > BENCH_MAX_ROUNDS ||
        options->seconds <= 0)
        usage(stderr, 2);
}
