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
 *     tether_sim_cut(sim, a, b, true);   -- breaks their connections; new ones come up again
 */
#ifndef TETHER_TESTS_RPC_SIM_NET_H
#define TETHER_TESTS_RPC_SIM_NET_H

#include <stdbool.h>
#include <stdint.h>

#include "rpc/agent.h"
#include "tests/lib/fake_clock.h"

struct tether__agent_hooks;

struct tether_sim;

struct tether_sim *tether_sim_new(uint64_t seed);
void tether_sim_free(struct tether_sim *sim); /* after the agents are gone */

struct tether__agent_hooks *tether_sim_hooks(struct tether_sim *sim);
struct tether_test_clock *tether_sim_clock(struct tether_sim *sim);
int64_t tether_sim_now(const struct tether_sim *sim); /* ns since the simulation began */

/* A number below `n`, from the seed. */
uint64_t tether_sim_random(struct tether_sim *sim, uint64_t n);

/* ---- Running ---- */

/* Runs until `done` says so (may be NULL) or `ms` of virtual time have passed; what `done` says. */
bool tether_sim_run(struct tether_sim *sim,
                    bool (*done)(void *userdata),
                    void *userdata,
                    int64_t ms);

/* Has `fn` called `ns` from now, as an event like any other. */
void tether_sim_after(struct tether_sim *sim,
                      int64_t ns,
                      void (*fn)(void *userdata),
                      void *userdata);

/* Calls `fn` behind every event, with the agent that it happened to (NULL: to none). */
void tether_sim_on_step(struct tether_sim *sim,
                        void (*fn)(void *userdata, tether_agent *agent),
                        void *userdata);

/* Writes every message that arrives, and every fault, to standard error. */
void tether_sim_trace(struct tether_sim *sim, bool on);
void tether_sim_note(struct tether_sim *sim, const char *format, ...) TETHER_PRINTF(2, 3);

/* ---- Faults ---- */

/* How long a message takes, drawn anew for each. At first 50 to 150 µs. */
void tether_sim_set_latency(struct tether_sim *sim, int64_t min_ns, int64_t max_ns);

/* Messages from `from` to `to` take this much longer. */
void tether_sim_slow(struct tether_sim *sim, tether_agent *from, tether_agent *to, int64_t ns);

/* Breaks every connection between the two workers. Messages in flight are lost if `lose`; otherwise
 * they still arrive on the old connections while new ones come up. */
void tether_sim_cut(struct tether_sim *sim, tether_agent *a, tether_agent *b, bool lose);

/* From now on one message in so many (0: none) comes a second time, up to `late_ns` later, behind
 * others of its stream. Hellos do not, and nothing comes again behind a later hello: no stream does
 * that. */
void tether_sim_duplicate(struct tether_sim *sim, int one_in, int64_t late_ns);

/* Whether the two can reach each other from now on. Parted: connections break, dials are refused.
 */
void tether_sim_part(struct tether_sim *sim, tether_agent *a, tether_agent *b, bool parted);

/* A worker that is paused runs nothing: no events, no timers. Messages for it arrive when it
 * resumes. The seed decides whether its timers run before these messages are handled. */
void tether_sim_pause(struct tether_sim *sim, tether_agent *agent, bool paused);

/* Takes a worker off the network at once, as kill -9 does: its connections break, nothing of it
 * runs any more. Its agent can only be released. */
void tether_sim_kill(struct tether_sim *sim, tether_agent *agent);

/* From now on a dial to the address of one of the two workers may reach the other one, as the seed
 * has it: a process of an earlier run still listens on a fixed port. After that, the next few dials
 * reach the right one. */
void tether_sim_share_address(struct tether_sim *sim, tether_agent *a, tether_agent *b);

/* Has no transport vouch for the name and the start of the other end from now on: as TCP without a
 * token. Before the workers are started. */
void tether_sim_trust_nobody(struct tether_sim *sim);

/* Ends everything that slow(), part() and duplicate() have begun. */
void tether_sim_heal(struct tether_sim *sim);

/* How often each fault has happened. */
struct tether_sim_faults {
    int cut, parted, slowed, paused, killed;
    int lost;       /* messages that never came */
    int duplicated; /* that came twice */
    int reordered;  /* that came behind those of a later connection */
    int strayed;    /* dials that reached another worker at the same address */
};
const struct tether_sim_faults *tether_sim_faults(const struct tether_sim *sim);

#endif
