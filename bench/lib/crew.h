/* Tether as a contestant: the client of a group of agents, and the other processes of that group.
 *
 *     struct bench_crew crew = bench_crew_start("local", (const char *[]){"owner", NULL}, 0, 1);
 *     tether_rpc_sync(crew.agent, "owner", ...);
 *     bench_crew_stop(&crew);
 *
 * The other processes run this program with other arguments: main() begins with
 * bench_crew_member(). They die with the client.
 *
 * Kinds: "local", the default between workers of one host: unix sockets without gRPC, and a bounded
 * spin; "network", as between hosts: gRPC over TCP, but without spin.
 */
#ifndef TETHER_BENCH_LIB_CREW_H
#define TETHER_BENCH_LIB_CREW_H

#include <sys/types.h>

#include "rpc/agent.h"

#define BENCH_CREW_MAX 4

struct bench_crew {
    tether_agent *agent;
    pid_t members[BENCH_CREW_MAX];
    char folder[64];
};

/* Registers the functions of a member; called in each process before its agent starts. */
typedef void bench_crew_serve(tether_agent *agent);

/* Serves the functions of all measurements: "echo" (inline) and "pooled" return their argument,
 * "nothing" (inline) returns nothing. */
bench_crew_serve bench_crew_serve_calls;

/* In the process of a member: serves and never returns. Otherwise returns at once. */
void bench_crew_member(int argc, char **argv, bench_crew_serve *serve);

struct bench_crew bench_crew_start(const char *kind,
                                   const char *const *names,
                                   int client_cpu,
                                   int server_cpu,
                                   bench_crew_serve *serve);
void bench_crew_stop(struct bench_crew *crew);

void bench_check(tether_status status, const tether_error *error); /* ends the process on error */

#endif
