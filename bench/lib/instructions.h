/* How many instructions something takes, counted by valgrind: on a noisy machine the only figure
 * in which a small regression shows.
 *
 * The benchmark calls itself under callgrind, twice, with different numbers of rounds; what is
 * left of the difference is the price of a round, without start-up and warm-up.
 *
 *     int main(int argc, char **argv)
 *     {
 *         if (argc == 3)
 *             return run(argv[1], strtol(argv[2], NULL, 10)); // a row of the table, and rounds
 *         printf("%.0f\n", bench_instructions(argv[0], "small", 1000));
 */
#ifndef TETHER_BENCH_LIB_INSTRUCTIONS_H
#define TETHER_BENCH_LIB_INSTRUCTIONS_H

/* Instructions per round of `program row <rounds>`, from runs of `rounds` and twice as many.
 * Negative when valgrind is not there or does not work. */
double bench_instructions(const char *program, const char *row, long rounds);

#endif
