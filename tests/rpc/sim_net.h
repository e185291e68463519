/* A network in one thread with a clock of its own, for agents without threads.
 *
 * Everything that happens is an event at a moment of virtual time; running the simulation takes the
 * earliest, moves the clock there, and runs it. Events of the same moment run in the order in which
 * they were made. The only randomness is the seed's, so a seed replays.
 *
 *     struct tether_sim *sim = tether_sim_new(7);
 *     tether_agent_new(TETHER_AGENT_OPTS(.name = "a", .store = store,
 *                                        .hooks = tether_sim_hooks(sim)), &a, &err);
 *     tether_agent_start(a, &err);
 *     tether_rpc_sync(a, "b", ...);      -- runs the simulation until the answer is there
 *     tether_sim_cut(sim, "a", "b");     -- breaks their connections; new ones come up again
 */
#ifndef TETHER_TESTS_RPC_SIM_NET_H
#define TETHER_TESTS_RPC_SIM_NET_H

#include <stdbool.h>
#include <stdint.h>

#include "rpc/agent_internal.h"
#include "tests/lib/fake_clock.h"

struct tether_sim;

struct tether_sim *tether_sim_new(uint64_t seed);
void tether_sim_free(struct tether_sim *sim); /* after the agents are gone */

const struct tether__agent_hooks *tether_sim_hooks(struct tether_sim *sim);
struct tether_test_clock *tether_sim_clock(struct tether_sim *sim);

/* A number below `n`, from the seed. */
uint64_t tether_sim_random(struct tether_sim *sim, uint64_t n);

/* How long a message takes, drawn anew for each. At first 50 to 150 µs. */
void tether_sim_set_latency(struct tether_sim *sim, int64_t min_ns, int64_t max_ns);

/* Breaks every connection between the two workers: what is under way is lost. */
void tether_sim_cut(struct tether_sim *sim, const char *a, const char *b);

/* Whether the two can reach each other from now on. Parted: connections break, dials are refused.
 */
void tether_sim_part(struct tether_sim *sim, const char *a, const char *b, bool parted);

/* A worker that is paused runs nothing: no events, no timers. What was meant for it comes when it
 * goes on. */
void tether_sim_pause(struct tether_sim *sim, const char *name, bool paused);

/* Takes a worker off the network at once, as kill -9 does: its connections break, nothing of it
 * runs any more. Its agent can only be released. */
void tether_sim_kill(struct tether_sim *sim, const char *name);

/* Runs until `done` says so (may be NULL) or `ms` of virtual time have passed; what `done` says. */
bool tether_sim_run(struct tether_sim *sim,
                    bool (*done)(void *userdata),
                    void *userdata,
                    int64_t ms);

#endif
