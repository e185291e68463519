/* Tether as a contestant: the client of a group of agents, and the other processes of that group.
 *
 *     struct bench_crew crew = bench_crew_start("near", (const char *[]){"owner", NULL}, 0, 1);
 *     tether_rpc_sync(crew.agent, "owner", ...);
 *     bench_crew_stop(&crew);
 *
 * The others are this program again, told by their arguments who they are: main() begins with
 * bench_crew_member(). They die with the client.
 *
 * Kinds: "near", what workers of one host do by default: unix sockets without gRPC, and a bounded
 * spin; "far", what workers of two hosts do, gRPC over TCP, here without spin.
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

/* Registers what a member serves; called in each process before its agent starts. */
typedef void bench_crew_serve(tether_agent *agent);

/* Serves the functions of all measurements: "echo" (inline) and "pooled" return their argument,
 * "nothing" (inline) returns nothing. */
bench_crew_serve bench_crew_serve_calls;

/* In the process of a member: serves, and never returns. In any other: returns. */
void bench_crew_member(int argc, char **argv, bench_crew_serve *serve);

struct bench_crew bench_crew_start(const char *kind,
                                   const char *const *names,
                                   int client_cpu,
                                   int server_cpu,
                                   bench_crew_serve *serve);
void bench_crew_stop(struct bench_crew *crew);

void bench_check(tether_status status, const tether_error *error); /* dies of an error */

#endif
