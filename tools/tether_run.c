/* tether-run: starts a group of workers and supervises it. See `tether-run --help`, and
 * tools/run/agent.h for how it works. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/run/agent.h"
#include "tools/run/options/options.h"
#include "tools/run/workers/watcher.h"
#include "tools/run/workers/worker.h"

/* Opens descriptors 0 to 2 if they are closed; otherwise a pipe of the launcher would get these
 * numbers. */
static void fill_standard_fds(void)
{
    int fd;
    do
        fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}

static int count_cpus(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

/* Checks whether execvp() would find `program`. Returns 0 or an errno. */
static int find_program(const char *program)
{
    if (strchr(program, '/'))
        return access(program, X_OK) == 0 ? 0 : errno;
    const char *path = getenv("PATH");
    int result = ENOENT;
    for (const char *dir = path ? path : "/bin:/usr/bin"; dir;) {
        char file[4096];
        int len = (int)strcspn(dir, ":");
        snprintf(file, sizeof file, "%.*s/%s", len ? len : 1, len ? dir : ".", program);
        if (access(file, X_OK) == 0)
            return 0;
        if (errno == EACCES)
            result = EACCES;
        dir = dir[len] == ':' ? dir + len + 1 : NULL;
    }
    return result;
}

int main(int argc, char **argv)
{
    fill_standard_fds();
    if (argc > 1 && strcmp(argv[1], RUN_EXEC_WORKER) == 0)
        run_worker_exec(argc, argv);
    if (argc == 2 && strcmp(argv[1], RUN_WATCH_WORKERS) == 0)
        run_watcher_run();
    struct run_options options;
    tether_error err = {0};
    if (run_options_parse(argc, argv, &options, &err) != TETHER_OK) {
        fprintf(stderr, "tether-run: %s\n", err.message);
        return RUN_EXIT_USAGE;
    }
    if (options.help || options.version) {
        if (options.version)
            puts("tether-run " TETHER_VERSION);
        else
            run_options_help(stdout);
        return RUN_EXIT_OK;
    }
    if (options.nproc == 0)
        options.nproc = count_cpus();
    int error = find_program(options.command[0]);
    if (error != 0) {
        fprintf(stderr, "tether-run: cannot run '%s': %s\n", options.command[0], strerror(error));
        return error == ENOENT ? 127 : 126;
    }
    return run_agent(&options);
}
