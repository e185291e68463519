/* How many instructions or system calls something takes: on a noisy machine the only figures in
 * which a small regression shows. Counted by valgrind and strace.
 *
 * The benchmark calls itself under them, twice, with different numbers of rounds; what is left of
 * the difference is the price of a round, without start-up and warm-up. It may say by
 * bench_count_begin() that these are over: then their instructions, which differ from run to run,
 * are not in either of the counts.
 *
 *     int main(int argc, char **argv)
 *     {
 *         if (argc == 3)
 *             return run(argv[1], strtol(argv[2], NULL, 10)); // a row of the table, and rounds
 *         printf("%.0f\n", bench_instructions(argv[0], "small", 1000));
 */
#ifndef TETHER_BENCH_LIB_COUNTS_H
#define TETHER_BENCH_LIB_COUNTS_H

/* Instructions, or system calls (but for futex), per round of `program row <rounds>`, all threads
 * together, from runs of `rounds` and twice as many. Negative when valgrind or strace is not there
 * or does not work. */
double bench_instructions(const char *program, const char *row, long rounds);
double bench_system_calls(const char *program, const char *row, long rounds);

/* In the program that is counted: the first round begins. */
void bench_count_begin(void);

/* Returns the number that one run of `program row <rounds>` writes to standard output; negative
 * when the run fails. */
double bench_number_from(const char *program, const char *row, long rounds);

#endif
