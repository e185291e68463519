/* See counts.h. */
#include "bench/lib/counts.h"

#include <fcntl.h>
#include <sched.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/lib/slow_clock.h"

#define REAL_TIME_PRIORITY 10

extern char **environ;

bool bench_count_in_order(void)
{
    struct sched_param param = {.sched_priority = REAL_TIME_PRIORITY};
    return sched_setscheduler(0, SCHED_RR, &param) == 0;
}

/* Returns what the program writes to `fd`, standard output or error, and drops the other. NULL when
 * the program fails. */
static char *run_for_text(const char *const *argv, int fd)
{
    int ends[2];
    pid_t pid;
    posix_spawn_file_actions_t actions;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return NULL;
    int other = fd == STDOUT_FILENO ? STDERR_FILENO : STDOUT_FILENO;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], fd);
    posix_spawn_file_actions_addopen(&actions, other, "/dev/null", O_WRONLY, 0);
    int failed = posix_spawnp(&pid, argv[0], &actions, NULL, (char **)(void *)argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    FILE *in = fdopen(ends[0], "r");
    char *text = NULL;
    size_t len = 0;
    if (!failed && in && getdelim(&text, &len, '\0', in) < 0) {
        free(text);
        text = NULL;
    }
    if (in)
        fclose(in);
    int status = 0;
    if (failed || waitpid(pid, &status, 0) != pid || status != 0) {
        free(text);
        return NULL;
    }
    return text;
}

/* Runs a program; returns the number after the last `mark` in its output. */
static double number_behind(const char *const *argv, int fd, const char *mark)
{
    char *text = run_for_text(argv, fd);
    const char *found = NULL;
    for (const char *at = text; at && (at = strstr(at, mark)); at++)
        found = at;
    double number = found ? strtod(found + strlen(mark), NULL) : -1;
    free(text);
    return number;
}

/* callgrind recognises it by its name. */
__attribute__((noinline)) void bench_count_begin(void)
{
    __asm__ volatile("");
}

/* About how much slower instructions are under callgrind. A generous factor, because a busy machine
 * is slower still. */
#define SLOWER "100"

static double count_instructions(const char *program, const char *row, const char *rounds)
{
    const char *const argv[] = {
        "env",
        BENCH_SLOW_CLOCK "=" SLOWER,
        "valgrind",
        "--tool=callgrind",
        "--callgrind-out-file=/dev/null",
        "--zero-before=bench_count_begin",
        "--fair-sched=yes", /* threads take turns: counts repeat within 2 % */
        program,
        row,
        rounds,
        NULL};
    return number_behind(argv, STDERR_FILENO, "Collected : ");
}

/* strace's table of calls ends with their sum. Leaves out futex: a traced thread holds its locks
 * for longer, so that others have to wait for them. */
static double count_system_calls(const char *program, const char *row, const char *rounds)
{
    const char *const argv[] = {"strace", "-f", "--seccomp-bpf", "-e", "trace=!futex",
                                "-c",     "-U", "calls",         "-o", "/dev/stderr",
                                program,  row,  rounds,          NULL};
    return number_behind(argv, STDERR_FILENO, "-\n");
}

double bench_number_from(const char *program, const char *row, long rounds)
{
    char number[32];
    snprintf(number, sizeof number, "%ld", rounds);
    const char *const argv[] = {program, row, number, NULL};
    char *text = run_for_text(argv, STDOUT_FILENO);
    double value = text ? strtod(text, NULL) : -1;
    free(text);
    return value;
}

typedef double counter(const char *program, const char *row, const char *rounds);

static double per_round(counter *count, const char *program, const char *row, long rounds)
{
    char number[32];
    snprintf(number, sizeof number, "%ld", rounds);
    double once = count(program, row, number);
    snprintf(number, sizeof number, "%ld", 2 * rounds);
    double twice = once < 0 ? -1 : count(program, row, number);
    if (twice < 0)
        return -1;
    return twice > once ? (twice - once) / (double)rounds : 0;
}

double bench_instructions(const char *program, const char *row, long rounds)
{
    return per_round(count_instructions, program, row, rounds);
}

double bench_system_calls(const char *program, const char *row, long rounds)
{
    return per_round(count_system_calls, program, row, rounds);
}
