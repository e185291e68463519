/* Waves: the workers of a static group come together in the store, each under its rank and its
 * present start, and say a number.
 *
 *     tether__wave_meet(agent, "shutdown/0", started, &sum, &err);
 *
 * There is no limit on the time that workers who are alive take to come: one may be busy for days.
 * Each step of this worker's own (one request to the store) lasts shutdown_timeout_ms at most.
 *
 * Failure modes: a worker that is dead does not come. A waiting worker sees which ones are missing,
 * asks them for a sign of life, and goes on without those whose lease has run out. The store fails:
 * so does the wave.
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

#define TETHER__WAVE_KEY 96 /* bytes, with the NUL */

/* Everybody but us and the dead. */
struct tether__roll {
    uint64_t *came; /* by rank: the start that was seen to have come to the present wave; 0: none */
    struct tether__roll_entry {
        int rank;
        uint64_t incarnation;
        char key[TETHER__WAVE_KEY]; /* of the wave that was asked about last */
    } * workers;
    const char **keys; /* point to those */
    size_t n;
};

tether_status tether__roll_init(struct tether__roll *roll, const tether_agent *agent);
void tether__roll_fini(struct tether__roll *roll);
void tether__roll_call(struct tether__roll *roll, tether_agent *agent); /* as we know them now */

/* The start of the peer that we know of. */
uint64_t tether__peer_start_locked(const struct tether__peer *peer);

/* Says `number`, without waiting for anybody. */
tether_status tether__wave_come(tether_agent *agent,
                                const char *wave,
                                int64_t number,
                                tether_error *reterr);

/* Waits until all others who are alive have said theirs; the sum is in `*ret_sum` (may be NULL).
 * `deadline` may be TETHER__NEVER; when it passes, TETHER_ETIMEOUT names one who has not come.
 * meet() comes first, adds its own number, and has no deadline. */
tether_status tether__wave_await(tether_agent *agent,
                                 const char *wave,
                                 int64_t deadline,
                                 int64_t *ret_sum,
                                 tether_error *reterr);
tether_status tether__wave_meet(tether_agent *agent,
                                const char *wave,
                                int64_t number,
                                int64_t *ret_sum,
                                tether_error *reterr);

/* Whether all on the roll have come, also who has died since. */
bool tether__wave_has_all(tether_agent *agent,
                          const char *wave,
                          struct tether__roll *roll,
                          int64_t deadline);

/* Takes a wave out of the store: what those on the roll have said, and we; or any key. */
tether_status tether__wave_forget(tether_agent *agent,
                                  const char *wave,
                                  struct tether__roll *roll,
                                  int64_t deadline);
tether_status tether__wave_forget_key(tether_agent *agent, const char *key, int64_t deadline);

#endif
