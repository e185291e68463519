/* A contest: measures programs with the same functions in turns. Other load on the machine then
 * affects all of them alike, and ratios are reliable where absolute figures are not.
 *
 * Every contestant runs all the time, in processes of its own (see contestant.h), and does nothing
 * when it is not its turn. A round asks each of them for each figure once. Ratios are taken within
 * a round, and medians of the rounds are reported.
 *
 * Placements: "same", client and servers on one CPU, and "split", the servers on another. Some
 * figures are taken while other threads load every CPU (load.h).
 *
 * A contestant whose program is missing is left out, with a note that says what to install. One
 * that fails or does not answer in time is left out from then on, also with a note.
 */
#ifndef TETHER_BENCH_LIB_CONTEST_H
#define TETHER_BENCH_LIB_CONTEST_H

#include <stdbool.h>
#include <stddef.h>

#include "bench/lib/options.h"

#define BENCH_MAX_CONTESTANTS 12
#define BENCH_MAX_FIGURES 16

struct bench_contestant {
    const char *name;
    /* Program and arguments, to which the two CPUs are added. The program "self" is this one; an
     * argument that begins with '@' is a path below the folder of the peers. */
    const char *argv[8];
    const char *needs; /* a file below the folder of the peers; NULL: nothing */
    const char *install;
    const char *setup; /* asked before the first round; NULL: nothing */
};

struct bench_figure {
    const char *name, *question, *unit;
    bool more_is_better;
    double seconds; /* 0: the time in the options */
    /* A variant of the figure, shown after the name of the contestant. NULL: none. */
    const char *variant;
    bool busy; /* with other load on every CPU (load.h) */
};

/* A value of a contestant, alone or against another's in the same round. */
enum bench_measure { BENCH_VALUE, BENCH_RATIO, BENCH_DIFFERENCE };
enum bench_placements { BENCH_SAME = 1, BENCH_SPLIT = 2, BENCH_BOTH = 3 };

struct bench_goal {
    const char *text;
    enum bench_placements placements;
    int figure, who;
    enum bench_measure measure;
    int base_figure, base_who;
    bool at_least;
    double limit;
};

struct bench_contest {
    const struct bench_contestant *contestants;
    const struct bench_figure *figures;
    const struct bench_goal *goals;
    size_t n_contestants, n_figures, n_goals;
    int baseline; /* the contestant to which the table shows ratios; -1: none */
    enum bench_placements placements;
};

void bench_contest_run(const struct bench_contest *contest, const struct bench_options *options);

#endif
