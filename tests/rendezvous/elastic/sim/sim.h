/* Many nodes in virtual time: each is a fiber that runs the real code; waiting costs nothing.
 *
 * A fiber runs until it waits (for time to pass or for the store to answer); then the fiber with
 * the earliest event continues. Random numbers come from a seed, so a run can be repeated exactly.
 * One thread.
 *
 *     struct sim *sim = sim_new(seed);
 *     for (...) sim_start(sim, node_main, &nodes[i]);
 *     sim_run(sim, 60 * S);                        // until then, or until no fiber has anything to
 * do sim_free(sim);
 *
 * The store (sim_store.c) is a hash store whose every request takes a while, so that requests of
 * different nodes fall between each other, and is counted, with the bytes that it would be on the
 * TCP store's wire.
 */
#ifndef TETHER_TESTS_RENDEZVOUS_ELASTIC_SIM_SIM_H
#define TETHER_TESTS_RENDEZVOUS_ELASTIC_SIM_SIM_H

#include <stdbool.h>
#include <stdint.h>

#include "rendezvous/elastic/sync/env.h"
#include "rendezvous/store.h"

struct sim;
struct sim_fiber;

struct sim *sim_new(uint64_t seed);
void sim_free(struct sim *sim); /* frees fibers that have not ended without running them */

/* Starts a fiber at the present time. */
struct sim_fiber *sim_start(struct sim *sim, void (*main)(void *userdata), void *userdata);

/* Runs until `until` (virtual ns since the start) or until every fiber waits without a limit. */
void sim_run(struct sim *sim, int64_t until);

int64_t sim_now(const struct sim *sim);
uint64_t sim_random(struct sim *sim);

/* The environment of the code under test: the clock and delays of `sim`. */
const struct tether__rdzv_env *sim_env(struct sim *sim);

/* In a fiber: waits. */
void sim_sleep(struct sim *sim, int64_t ns);

/* In a fiber: waits until wake() or for `ns`; false when `ns` have passed. */
bool sim_wait_for_wake(struct sim *sim, int64_t ns);
void sim_wake(struct sim *sim, struct sim_fiber *fiber);
struct sim_fiber *sim_self(struct sim *sim);

/* kill() has the effect of kill -9: the fiber has no effect on others any more. It still runs, so
 * that it can free its memory, but its waits end at once, the store refuses its requests, and it
 * checks dead() and ends. freeze(): the fiber does not run before `until`, as after SIGSTOP. Not
 * for the running fiber. */
void sim_kill(struct sim *sim, struct sim_fiber *fiber);
void sim_freeze(struct sim *sim, struct sim_fiber *fiber, int64_t until);
bool sim_dead(const struct sim_fiber *fiber);
bool sim_ended(const struct sim_fiber *fiber);

/* ---- The store ------------------------------------------------------------------------------ */

struct sim_traffic {
    uint64_t requests; /* calls */
    uint64_t keys;     /* keys in these requests */
    uint64_t bytes;    /* both ways */
    uint64_t largest;  /* bytes of the largest request or answer */
};

struct sim_store;

/* Each request and each reply takes 0.5 to 1.5 times `latency_ns`. */
struct sim_store *sim_store_new(struct sim *sim, int64_t latency_ns);
void sim_store_free(struct sim_store *store);
tether_store *sim_store_of(struct sim_store *store); /* LENDS */
struct sim_traffic sim_store_traffic(const struct sim_store *store);

/* Gives all keys without a request to the store. Not in a fiber. */
tether_status sim_store_keys(const struct sim_store *store, tether_store_keys *ret_keys);

/* Delays all answers of the store until `until`. */
void sim_store_freeze(struct sim_store *store, int64_t until);

#endif
