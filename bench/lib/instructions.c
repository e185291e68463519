/* Runs callgrind and reads the sum that it prints; see instructions.h. */
#include "bench/lib/instructions.h"

#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* Everything that the program writes to its standard error; NULL when it does not end well. */
static char *run_for_stderr(const char *const *argv)
{
    int ends[2];
    pid_t pid;
    posix_spawn_file_actions_t actions;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return NULL;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
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

static double count(const char *program, const char *row, long rounds)
{
    char number[32];
    snprintf(number, sizeof number, "%ld", rounds);
    const char *const argv[] = {
        "valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", program, row, number,
        NULL};
    char *text = run_for_stderr(argv);
    const char *found = text ? strstr(text, "Collected : ") : NULL;
    double instructions = found ? strtod(found + strlen("Collected : "), NULL) : -1;
    free(text);
    return instructions;
}

double bench_instructions(const char *program, const char *row, long rounds)
{
    double once = count(program, row, rounds), twice = count(program, row, 2 * rounds);
    return once < 0 || twice < 0 ? -1 : (twice - once) / (double)rounds;
}
