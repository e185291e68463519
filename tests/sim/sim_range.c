/* The program behind `./dev sim FIRST COUNT [JOBS]`: runs a range of seeds in several processes,
 * goes on after a failure, and lists the seeds that failed.
 *
 * The parent forks one worker process for each job and runs no simulation itself. A worker takes
 * the next chunk of seeds from a counter in shared memory. It exits at the first seed that fails,
 * since that seed leaves memory behind; the parent reports the seed and forks a new worker, which
 * goes on behind it. A seed that crashes, or uses more than MAX_SECONDS of CPU time, ends its
 * worker by a signal and is reported in the same way.
 *
 * Exit status: 0 when all seeds are clean, 1 when some failed, 2 for a wrong argument.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/sim/seed.h"

#define MAX_JOBS 256
#define CHUNK 16
#define MAX_SECONDS 60 /* of CPU time for one seed; the slowest takes less than one */
#define PROGRESS_SECONDS 10
#define MAX_LISTED 1000

/* One worker process writes it; the parent reads it after that process has ended. */
struct slot {
    pid_t pid;          /* the parent's: 0 when nothing is left to run */
    uint64_t seed;      /* the seed that it runs, or that failed */
    uint64_t next, end; /* the rest of its chunk */
    bool failed;        /* `why` is set */
    char why[512];
    struct seed_total total;
};

struct shared {
    _Atomic uint64_t n_begun, n_done;
    struct slot slots[MAX_JOBS];
};

static uint64_t first, count;
static bool trace;
static struct shared *shared;
static uint64_t failures[MAX_LISTED];
static size_t n_failures;

/* ---- In a worker ---- */

static void limit_cpu_time(void)
{
    const struct itimerval limit = {.it_value = {.tv_sec = MAX_SECONDS}};
    if (!trace)
        setitimer(ITIMER_VIRTUAL, &limit, NULL); /* SIGVTALRM ends the process */
}

/* The next seed of this slot. False: there is none left. */
static bool take_seed(struct slot *slot)
{
    if (slot->next == slot->end) {
        uint64_t begun = atomic_fetch_add(&shared->n_begun, CHUNK);
        if (begun >= count)
            return false;
        slot->next = first + begun;
        slot->end = first + (count - begun < CHUNK ? count : begun + CHUNK);
    }
    slot->seed = slot->next++;
    return true;
}

static int work(struct slot *slot)
{
    while (take_seed(slot)) {
        limit_cpu_time();
        slot->failed = !seed_run(slot->seed, trace, &slot->total, slot->why, sizeof slot->why);
        if (slot->failed)
            return 1;
        atomic_fetch_add(&shared->n_done, 1);
    }
    return 0;
}

/* ---- In the parent ---- */

static int fork_worker(struct slot *slot)
{
    fflush(stdout);
    slot->failed = false;
    pid_t pid = fork();
    if (pid == 0)
        _exit(work(slot));
    slot->pid = pid < 0 ? 0 : pid;
    return pid < 0 ? -1 : 0;
}

static void report(const struct slot *slot, int status)
{
    char text[64];
    const char *why = slot->failed ? slot->why : text;
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGVTALRM)
        snprintf(text, sizeof text, "it ran for more than %d s of CPU time", MAX_SECONDS);
    else if (WIFSIGNALED(status))
        snprintf(text, sizeof text, "it crashed: %s", strsignal(WTERMSIG(status)));
    else
        snprintf(text, sizeof text, "it ended its process with status %d", WEXITSTATUS(status));
    printf("seed %" PRIu64 ": %s\n", slot->seed, why);
    fflush(stdout);
    if (n_failures < MAX_LISTED)
        failures[n_failures] = slot->seed;
    n_failures++;
    atomic_fetch_add(&shared->n_done, 1);
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void show_progress(double since)
{
    uint64_t done = atomic_load(&shared->n_done);
    double rate = (double)done / (seconds() - since);
    fprintf(stderr, "%" PRIu64 " of %" PRIu64 " seeds, %zu failed, %.0f a second\n", done, count,
            n_failures, rate);
}

/* A worker that has ended: reports what it failed at, and has another one go on. */
static int reap(struct slot *slot, int status)
{
    slot->pid = 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    report(slot, status);
    return fork_worker(slot);
}

static int run(int jobs)
{
    double began = seconds(), shown = began;
    for (int i = 0; i < jobs; i++)
        if (fork_worker(&shared->slots[i]))
            return -1;
    for (int left = jobs; left;) {
        int status;
        pid_t pid = waitpid(-1, &status, WNOHANG);
        if (pid < 0)
            return -1;
        if (pid == 0) {
            nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL);
            if (seconds() - shown > PROGRESS_SECONDS) {
                shown = seconds();
                show_progress(began);
            }
            continue;
        }
        for (int i = 0; i < jobs; i++)
            if (shared->slots[i].pid == pid) {
                if (reap(&shared->slots[i], status))
                    return -1;
                left -= !shared->slots[i].pid;
            }
    }
    printf("seeds %" PRIu64 " to %" PRIu64 ": %" PRIu64 " clean, %zu failed, %.0f s\n", first,
           first + count - 1, count - n_failures, n_failures, seconds() - began);
    return 0;
}

static void show_excuses(int jobs)
{
    struct seed_total total = {0};
    for (int i = 0; i < jobs; i++)
        seed_total_add(&total, &shared->slots[i].total);
    printf("%d objects, %d references arrived, %d operations, %d refused\n", total.made,
           total.arrived, total.used, total.refused);
    puts("the oracle excused:");
    for (size_t i = 0; seed_excuse(i); i++)
        printf("%10ld %s\n", total.excuses[i], seed_excuse(i));
}

static void list_failures(void)
{
    size_t n = n_failures < MAX_LISTED ? n_failures : MAX_LISTED;
    for (size_t i = 0; i < n; i++)
        printf("to see it again: TETHER_TRACE=1 ./dev sim %" PRIu64 " 1\n", failures[i]);
    if (n < n_failures)
        printf("and %zu more\n", n_failures - n);
}

static bool number(const char *text, uint64_t *ret_number)
{
    char *end;
    errno = 0;
    *ret_number = strtoull(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end && !errno;
}

int main(int argc, char **argv)
{
    uint64_t jobs = (uint64_t)sysconf(_SC_NPROCESSORS_ONLN);
    if (argc < 3 || argc > 4 || !number(argv[1], &first) || !number(argv[2], &count) || !count ||
        first + count < first || (argc == 4 && !number(argv[3], &jobs)) || !jobs ||
        jobs > MAX_JOBS) {
        fprintf(stderr, "usage: sim_range FIRST COUNT [JOBS]\n");
        return 2;
    }
    trace = seed_number_from("TETHER_TRACE", 0);
    if (jobs > (count + CHUNK - 1) / CHUNK)
        jobs = (count + CHUNK - 1) / CHUNK;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || run((int)jobs)) {
        perror("sim_range");
        return 1;
    }
    show_excuses((int)jobs);
    list_failures();
    return n_failures ? 1 : 0;
}
