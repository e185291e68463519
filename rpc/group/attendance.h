/* Barriers: the workers of a static group wait for each other. Each sets a key in the store, named
 * by its rank and its present start, to a number of its own.
 *
 *     tether__barrier_pass(agent, "shutdown/0", started, &sum, &err);
 *
 * There is no limit on the time until live workers arrive: one may be busy for days. Each step of
 * this worker's own (one request to the store) lasts shutdown_timeout_ms at most.
 *
 * Failure modes: a dead worker does not arrive. A waiting worker sees which ones are missing,
 * connects to them, and goes on without those whose lease runs out. If the store fails, the barrier
 * fails.
 *
 * A later start of the group is not affected by keys that an earlier one has left, since its keys
 * have other names.
 *
 * All functions but those of the attendance block on the store. Locks: they take agent->mu and
 * peer->mu, and hold neither while they block.
 */
#ifndef TETHER_RPC_GROUP_ATTENDANCE_H
#define TETHER_RPC_GROUP_ATTENDANCE_H

#include "base/status.h"
#include "rpc/agent.h"

struct tether__peer;

#define TETHER__BARRIER_KEY 96 /* bytes, with the NUL */

/* The list of the group's workers, without this one and those known to be dead. */
struct tether__attendance {
    uint64_t *arrived; /* for each rank the start that was seen at the present barrier; 0: none */
    struct tether__attendance_entry {
        int rank;
        uint64_t incarnation;
        char key[TETHER__BARRIER_KEY]; /* the worker's key at the last barrier */
    } * workers;
    const char **keys; /* point to the keys in `workers` */
    size_t n;
};

tether_status tether__attendance_init(struct tether__attendance *attendance,
                                      const tether_agent *agent);
void tether__attendance_fini(struct tether__attendance *attendance);
/* Fills the list with the workers that are known now. */
void tether__attendance_update(struct tether__attendance *attendance, tether_agent *agent);

/* Returns the latest known start of the peer. */
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

/* Returns whether all workers in the list have arrived; those that died after that count as
 * arrived. */
bool tether__barrier_has_all(tether_agent *agent,
                             const char *barrier,
                             struct tether__attendance *attendance,
                             int64_t deadline);

/* forget() removes a barrier from the store: the keys of all workers in the list and of this
 * worker. forget_key() removes one key. */
tether_status tether__barrier_forget(tether_agent *agent,
                                     const char *barrier,
                                     struct tether__attendance *attendance,
                                     int64_t deadline);
tether_status tether__barrier_forget_key(tether_agent *agent, const char *key, int64_t deadline);

#endif
