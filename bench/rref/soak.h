/* Shared by the two halves of rref_soak: soak.c starts and compares the workers,
 * soak_worker.c is one of them. They talk in lines: the first process sends commands to the
 * standard input of a worker and reads the replies from its standard output.
 *
 *     run ROUNDS   ->   "at N" now and then, and "ran" at the end
 *     usage        ->   "has OWN ALLOCATED RESIDENT FILES", see struct soak_usage
 *     forget       ->   "forgot", once all references are released
 */
#ifndef TETHER_BENCH_RREF_SOAK_H
#define TETHER_BENCH_RREF_SOAK_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SOAK_MEASURES_MEMORY false /* the allocators of sanitizers keep freed memory */
enum { SOAK_KEPT = 2000, SOAK_MIN_WARM_UP = 9000 };
#else
#define SOAK_MEASURES_MEMORY true
enum {
    SOAK_KEPT = 14000, /* references that each worker keeps: no table grows near this size */
    SOAK_MIN_WARM_UP = 150000, /* rounds: enough to fill the array of each worker several times */
};
#endif

enum {
    SOAK_WORKERS = 3,
    SOAK_TIMEOUT_MS = 120000, /* for any single step */
};

/* Memory and files of a worker. */
struct soak_usage {
    size_t own;       /* bytes that Tether has allocated */
    size_t allocated; /* all of malloc(): also gRPC and the C library */
    size_t resident;  /* not backed by a file, after malloc_trim() */
    int files;
};

/* Ends the process with a message: "rref_soak: what: why". */
_Noreturn void soak_die(const char *what, const char *why);

/* Ends the process with the message of `err` unless `st` is TETHER_OK. */
void soak_check(tether_status st, const char *what, const tether_error *err);

/* Runs worker `rank`: carries out commands until standard input ends. Returns the exit code.
 */
int soak_worker_main(int rank);

#endif
