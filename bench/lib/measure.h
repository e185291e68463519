/* Helpers of every benchmark: a clock, CPUs, medians, the memory of a process.
 *
 * A failure ends the process with a message.
 */
#ifndef TETHER_BENCH_LIB_MEASURE_H
#define TETHER_BENCH_LIB_MEASURE_H

#include <stddef.h>
#include <sys/types.h>

/* Ends the process with the message "program: what: why"; `why` may be NULL. */
_Noreturn void bench_die(const char *what, const char *why);

double bench_now_s(void); /* seconds on a monotonic clock, the same in all processes */

/* Pins this thread and those that it starts to `cpu` (modulo the number of CPUs; below 0: to
 * all). */
void bench_pin(int cpu);

/* Returns the quantile `share` of the values: 0.5 is the median. Sorts them. */
double bench_quantile(double *values, size_t n, double share);

double bench_resident_bytes(pid_t pid); /* resident memory of a process */
double bench_switches(pid_t pid);       /* context switches of all its threads so far */

/* ---- Times of an operation that is repeated for so many seconds ---- */

#define BENCH_MAX_SAMPLES 200000

struct bench_samples {
    size_t n;
    double begin, until, last;
    double s[BENCH_MAX_SAMPLES];
};

void bench_samples_begin(struct bench_samples *samples, double seconds);
/* Records the time since the last call or the beginning. Returns 0 when the time is over. */
int bench_samples_note(struct bench_samples *samples);
double bench_samples_median_us(struct bench_samples *samples);
double bench_samples_rate(const struct bench_samples *samples); /* operations per second */

/* ---- Another process of this program ---- */

/* Runs this program again with `argv` (argv[0] is its name); it dies with this process. Standard
 * input is `in_fd`, output is `out_fd`; -1: those of this process. */
pid_t bench_spawn_self(char *const argv[], int in_fd, int out_fd);
/* The same for any program, found in PATH. */
pid_t bench_spawn(const char *file, char *const argv[], int in_fd, int out_fd);
void bench_end(pid_t pid); /* kills the process and collects it */
/* Waits up to `seconds` until the process ends, then kills it. */
void bench_await_end(pid_t pid, double seconds);

#endif
