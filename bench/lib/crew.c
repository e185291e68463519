/* See crew.h. Members use a file store in a folder that the client makes and removes. A member is
 * started as `program crew FOLDER KIND NAME CPU` and prints "up" when it has joined. */
#include "bench/lib/crew.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "bench/lib/measure.h"
#include "rendezvous/store.h"

void bench_check(tether_status status, const tether_error *error)
{
    if (status != TETHER_OK)
        bench_die(tether_status_name(status), error->message);
}

static tether_status echo(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    (void)userdata, (void)reterr;
    *ret_value = tether_value_retain((tether_value *)arg);
    return TETHER_OK;
}

static tether_status nothing(void *userdata,
                             const tether_value *arg,
                             tether_value **ret_value,
                             tether_error *reterr)
{
    (void)userdata, (void)arg, (void)ret_value, (void)reterr;
    return TETHER_OK;
}

void bench_crew_serve_calls(tether_agent *agent)
{
    tether_error err = {0};
    bench_check(tether_agent_register_inline(agent, "echo", echo, NULL, &err), &err);
    bench_check(tether_agent_register_inline(agent, "nothing", nothing, NULL, &err), &err);
    bench_check(tether_agent_register(agent, "pooled", echo, NULL, &err), &err);
}

static tether_agent *join(const char *folder,
                          const char *kind,
                          const char *name,
                          bench_crew_serve *serve)
{
    tether_store *store = NULL;
    tether_agent *agent = NULL;
    tether_error err = {0};
    char path[128];
    bool network = strcmp(kind, "network") == 0;
    snprintf(path, sizeof path, "%s/store", folder);
    bench_check(tether_store_file_new(path, -1, &store, &err), &err);
    bench_check(
        tether_agent_new(TETHER_AGENT_OPTS(.name = name, .store = store, .threads = 2,
                                           .no_unix_socket = network, .spin_us = network ? -1 : 0),
                         &agent, &err),
        &err);
    serve(agent);
    bench_check(tether_agent_start(agent, &err), &err);
    tether_store_release(store);
    return agent;
}

void bench_crew_member(int argc, char **argv, bench_crew_serve *serve)
{
    if (argc != 6 || strcmp(argv[1], "crew") != 0)
        return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    bench_pin(atoi(argv[5]));
    join(argv[2], argv[3], argv[4], serve);
    puts("up");
    fclose(stdout);
    for (;;)
        pause();
}

static pid_t start_member(const char *folder, const char *kind, const char *name, int cpu)
{
    char number[16], line[16];
    int out[2];
    snprintf(number, sizeof number, "%d", cpu);
    char *argv[] = {
        program_invocation_name, "crew", (char *)folder, (char *)kind, (char *)name, number, NULL};
    if (pipe2(out, O_CLOEXEC) != 0)
        bench_die("a pipe", strerror(errno));
    pid_t pid = bench_spawn_self(argv, -1, out[1]);
    close(out[1]);
    FILE *lines = fdopen(out[0], "r");
    if (!lines || !fgets(line, sizeof line, lines))
        bench_die("a worker did not start", name);
    fclose(lines);
    return pid;
}

struct bench_crew bench_crew_start(const char *kind,
                                   const char *const *names,
                                   int client_cpu,
                                   int server_cpu,
                                   bench_crew_serve *serve)
{
    struct bench_crew crew = {.folder = "/tmp/tether-bench.XXXXXX"};
    if (!mkdtemp(crew.folder))
        bench_die("making a folder", strerror(errno));
    for (size_t i = 0; names[i]; i++)
        crew.members[i] = start_member(crew.folder, kind, names[i], server_cpu);
    bench_pin(client_cpu);
    crew.agent = join(crew.folder, kind, "client", serve);
    return crew;
}

void bench_crew_stop(struct bench_crew *crew)
{
    tether_agent_release(crew->agent);
    for (size_t i = 0; i < BENCH_CREW_MAX && crew->members[i]; i++)
        bench_end(crew->members[i]);
    char path[128];
    snprintf(path, sizeof path, "%s/store", crew->folder);
    unlink(path);
    rmdir(crew->folder);
}
