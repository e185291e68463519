/* Barriers: the workers of a static group come together in the store, each under its rank and its
 * present start, and each with a number.
 *
 *     tether__barrier_pass(agent, "shutdown/0", started, &sum, &err);
 *
 * There is no limit on the time until live workers arrive: one may be busy for days. Each step of
 * this worker's own (one request to the store) lasts shutdown_timeout_ms at most.
 *
 * Failure modes: a worker that is dead does not come. A waiting worker sees which ones are missing,
 * asks them for a sign of life, and goes on without those whose lease has run out. The store fails:
 * so does the barrier.
 *
 * A start of the group that comes later meets nothing of the time before, for no key is the same.
 *
 * All of it blocks on the store. Locks: takes agent->mu and peer->mu, holds neither meanwhile.
 */
#ifndef TETHER_RPC_GROUP_ATTENDANCE_H
#define TETHER_RPC_GROUP_ATTENDANCE_H

#include "base/status.h"
#include "rpc/agent.h"

struct tether__peer;

#define TETHER__BARRIER_KEY 96 /* bytes, with the NUL */

/* The workers of the group, without this one and those known to be dead. */
struct tether__attendance {
    uint64_t *arrived; /* by rank: the start that was seen at the present barrier; 0: none */
    struct tether__attendance_entry {
        int rank;
        uint64_t incarnation;
        char key[TETHER__BARRIER_KEY]; /* the key of the barrier that was looked up last */
    } * workers;
    const char **keys; /* point to those */
    size_t n;
};

tether_status tether__attendance_init(struct tether__attendance *attendance,
                                      const tether_agent *agent);
void tether__attendance_fini(struct tether__attendance *attendance);
/* Lists the workers that this one knows now. */
void tether__attendance_update(struct tether__attendance *attendance, tether_agent *agent);

/* The start of the peer that this worker knows. */
uint64_t tether__peer_start_locked(const struct tether__peer *peer);

/* Puts this worker's `number` into the store, without waiting for others. */
tether_status tether__barrier_arrive(tether_agent *agent,
                                     const char *barrier,
                                     int64_t number,
                                     tether_error *reterr);

/* Waits until all other workers that are alive have arrived; the sum of their numbers is in
 * `*ret_sum` (may be NULL). `deadline` may be TETHER__NEVER; when it passes, TETHER_ETIMEOUT names
 * a worker that has not arrived. pass() arrives first, adds its own number, and has no deadline. */
tether_status tether__barrier_await(tether_agent *agent,
                                    const char *barrier,
                                    int64_t deadline,
                                    int64_t *ret_sum,
                                    tether_error *reterr);
tether_status tether__barrier_pass(tether_agent *agent,
                                   const char *barrier,
                                   int64_t number,
                                   int64_t *ret_sum,
                                   tether_error *reterr);

/* Whether all workers of the attendance have arrived, also those that have died since. */
bool tether__barrier_has_all(tether_agent *agent,
                             const char *barrier,
                             struct tether__attendance *attendance,
                             int64_t deadline);

/* Takes a barrier out of the store: the keys of the attendance and our own. forget_key() takes any
 * key out. */
tether_status tether__barrier_forget(tether_agent *agent,
                                     const char *barrier,
                                     struct tether__attendance *attendance,
                                     int64_t deadline);
tether_status tether__barrier_forget_key(tether_agent *agent, const char *key, int64_t deadline);

#endif
