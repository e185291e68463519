/* See measure.h. */
#include "bench/lib/measure.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

void bench_die(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s%s%s\n", program_invocation_short_name, what, why ? ": " : "",
            why ? why : "");
    _exit(1); /* not exit(): a child may share open files with its parent */
}

double bench_now_s(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

void bench_pin(int cpu)
{
    cpu_set_t set;
    int n = (int)sysconf(_SC_NPROCESSORS_ONLN);
    CPU_ZERO(&set);
    for (int i = 0; i < n; i++)
        if (cpu < 0 || i == cpu % n)
            CPU_SET((size_t)i, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0)
        bench_die("pinning to a CPU", strerror(errno));
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_quantile(double *values, size_t n, double share)
{
    if (n == 0)
        return 0;
    qsort(values, n, sizeof *values, compare);
    return values[(size_t)(share * (double)(n - 1) + 0.5)];
}

double bench_resident_bytes(pid_t pid)
{
    char path[64];
    long pages = 0;
    snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
    FILE *file = fopen(path, "r");
    if (!file || fscanf(file, "%*d %ld", &pages) != 1)
        bench_die("reading the memory of a process", path);
    fclose(file);
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

static double switches_of_thread(const char *folder, const char *thread)
{
    char path[512], line[128];
    double total = 0, n;
    snprintf(path, sizeof path, "%s/%s/status", folder, thread);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "voluntary_ctxt_switches: %lf", &n) == 1 ||
            sscanf(line, "nonvoluntary_ctxt_switches: %lf", &n) == 1)
            total += n;
    if (file)
        fclose(file);
    return total;
}

double bench_switches(pid_t pid)
{
    char folder[64];
    double total = 0;
    snprintf(folder, sizeof folder, "/proc/%d/task", (int)pid);
    DIR *threads = opendir(folder);
    for (struct dirent *thread; threads && (thread = readdir(threads));)
        if (thread->d_name[0] != '.')
            total += switches_of_thread(folder, thread->d_name);
    if (threads)
        closedir(threads);
    return total;
}

/* ---- Samples ---- */

void bench_samples_begin(struct bench_samples *samples, double seconds)
{
    samples->n = 0;
    samples->begin = samples->last = bench_now_s();
    samples->until = samples->begin + seconds;
}

int bench_samples_note(struct bench_samples *samples)
{
    double now = bench_now_s();
    samples->s[samples->n++] = now - samples->last;
    samples->last = now;
    return now < samples->until && samples->n < BENCH_MAX_SAMPLES;
}

double bench_samples_median_us(struct bench_samples *samples)
{
    return bench_quantile(samples->s, samples->n, 0.5) * 1e6;
}

double bench_samples_rate(const struct bench_samples *samples)
{
    return (double)samples->n / (samples->last - samples->begin);
}

/* ---- Processes ---- */

pid_t bench_spawn(const char *file, char *const argv[], int in_fd, int out_fd)
{
    posix_spawn_file_actions_t actions;
    pid_t pid;
    posix_spawn_file_actions_init(&actions);
    if (in_fd >= 0)
        posix_spawn_file_actions_adddup2(&actions, in_fd, STDIN_FILENO);
    if (out_fd >= 0)
        posix_spawn_file_actions_adddup2(&actions, out_fd, STDOUT_FILENO);
    int failed = posix_spawnp(&pid, file, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed)
        bench_die(argv[0], strerror(failed));
    return pid;
}

pid_t bench_spawn_self(char *const argv[], int in_fd, int out_fd)
{
    char path[PATH_MAX] = ""; /* resolve the link: under valgrind it would name valgrind */
    if (readlink("/proc/self/exe", path, sizeof path - 1) < 0)
        bench_die("finding this program", strerror(errno));
    return bench_spawn(path, argv, in_fd, out_fd);
}

void bench_end(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

void bench_await_end(pid_t pid, double seconds)
{
    struct pollfd ended = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};
    if (ended.fd >= 0) {
        poll(&ended, 1, (int)(seconds * 1000));
        close(ended.fd);
    }
    bench_end(pid);
}
