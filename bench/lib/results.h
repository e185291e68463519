/* Output of results: a table for people on standard output and, with --tsv=FILE, lines for
 * programs, appended to FILE. Progress is on standard error.
 *
 * Lines, tab-separated; the first word is their kind, the second the benchmark:
 *
 *     result  rpc  figure placement who unit less|more median lowest highest
 *     goal    rpc  text placement figure who base unit value lowest highest <=|>= limit at yes|NO
 *     note    rpc  text
 *     took    rpc  seconds
 *
 * "less" and "more": which is better. In a goal `base` is the contestant that it is a ratio to, and
 * `unit` is then "x"; `at` is the limit as a value of the figure. A field that does not apply is
 * "-". bench/report.py makes a page of them.
 */
#ifndef TETHER_BENCH_LIB_RESULTS_H
#define TETHER_BENCH_LIB_RESULTS_H

#include <stdbool.h>
#include <stddef.h>

/* The median, the lowest and the highest value of some rounds. */
struct bench_spread {
    double median, lowest, highest;
};
struct bench_spread bench_spread_of(double *values, size_t n); /* sorts them */

/* Returns the spread of a single value: median, lowest and highest are `value`. */
struct bench_spread bench_single(double value);

struct bench_result {
    const char *figure, *placement, *who, *unit;
    bool more_is_better;
    struct bench_spread value;
    struct bench_spread ratio; /* to the baseline, for the table only; median 0: there is none */
};

struct bench_verdict {
    /* `base` is NULL if the goal is no ratio. */
    const char *text, *placement, *figure, *who, *base, *unit;
    struct bench_spread value;
    bool at_least;
    double limit;
    double at; /* the limit as a value of the figure, for the plot */
};

/* `tsv` may be NULL. */
void bench_results_open(const char *bench, const char *tsv);
void bench_result(const struct bench_result *result);
bool bench_goal(const struct bench_verdict *verdict); /* returns whether the goal is met */
void bench_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
void bench_results_close(void); /* prints how many goals were met */

/* Shows that `done` of `all` steps are done and `what` is next: on a terminal in one line that
 * changes, otherwise in a line now and then. BENCH_STEP ("2/7") comes first, BENCH_LATER_S (the
 * seconds of later benchmarks) is added to the time left. */
void bench_progress(size_t done, size_t all, const char *what);

#endif
