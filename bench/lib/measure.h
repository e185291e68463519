/* Helpers of every benchmark: a clock, CPUs, medians, the memory of a process.
 *
 * A failure ends the process with a message.
 */
#ifndef TETHER_BENCH_LIB_MEASURE_H
#define TETHER_BENCH_LIB_MEASURE_H

#include <stddef.h>
#include <sys/types.h>

/* "program: what: why"; `why` may be NULL. */
_Noreturn void bench_die(const char *what, const char *why);

double bench_now_s(void); /* monotonic, the same clock in all processes */

/* This thread, and those that it starts, run on `cpu` (modulo the CPUs that there are; below 0:
 * anywhere). */
void bench_pin(int cpu);

/* The value that `share` of them are below: 0.5 is the median. Sorts them. */
double bench_quantile(double *values, size_t n, double share);

double bench_resident_bytes(pid_t pid); /* memory that a process has in use */
double bench_switches(pid_t pid);       /* context switches of its threads so far */

/* ---- Times of one thing done again and again, for so many seconds ---- */

#define BENCH_MAX_SAMPLES 200000

struct bench_samples {
    size_t n;
    double begin, until, last;
    double s[BENCH_MAX_SAMPLES];
};

void bench_samples_begin(struct bench_samples *samples, double seconds);
/* One more is done, since the one before or the beginning. 0: enough. */
int bench_samples_note(struct bench_samples *samples);
double bench_samples_median_us(struct bench_samples *samples);
double bench_samples_rate(const struct bench_samples *samples); /* a second; the mean, in effect */

/* ---- Another process of this program ---- */

/* Runs this program again with `argv` (argv[0] is the name it goes by); it dies with us. Standard
 * output goes to `out_fd`, input comes from `in_fd`; -1: ours. */
pid_t bench_spawn_self(char *const argv[], int in_fd, int out_fd);
/* The same for any program, found as a shell would. */
pid_t bench_spawn(const char *file, char *const argv[], int in_fd, int out_fd);
void bench_end(pid_t pid); /* kills it, and waits */
/* Waits so long for its own end, then kills it. */
void bench_await_end(pid_t pid, double seconds);

#endif
