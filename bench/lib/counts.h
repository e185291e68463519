/* Counts instructions (by valgrind) and system calls (by strace). On a busy machine these are the
 * only figures that show a small regression.
 *
 * The benchmark runs itself under these tools, twice, with different numbers of rounds. The
 * difference is the cost of the additional rounds, without start-up and warm-up. A benchmark may
 * call bench_count_begin() after its warm-up: then callgrind leaves out the instructions before,
 * which differ from run to run.
 *
 *     int main(int argc, char **argv)
 *     {
 *         if (argc == 3)
 *             return run(argv[1], strtol(argv[2], NULL, 10)); // a row of the table, and rounds
 *         printf("%.0f\n", bench_instructions(argv[0], "small", 1000));
 */
#ifndef TETHER_BENCH_LIB_COUNTS_H
#define TETHER_BENCH_LIB_COUNTS_H

#include <stdbool.h>

/* Puts this process, and all that it starts, before other programs, by a real-time priority. A
 * thread that runs is then only followed by another when it blocks, so the threads of a program
 * that is pinned to one CPU run in the same order each time. False: that takes a right
 * (CAP_SYS_NICE), and the order depends on the load and on the CPU that strace gets. */
bool bench_count_in_order(void);

/* Return the instructions, or the system calls without futex, per round of `program row <rounds>`,
 * of all threads, from runs of `rounds` and twice as many. Negative when valgrind or strace is
 * missing or fails. */
double bench_instructions(const char *program, const char *row, long rounds);
double bench_system_calls(const char *program, const char *row, long rounds);

/* Call it in the counted program, when the first round begins. */
void bench_count_begin(void);

/* Returns the number that one run of `program row <rounds>` writes to standard output; negative
 * when the run fails. */
double bench_number_from(const char *program, const char *row, long rounds);

#endif
