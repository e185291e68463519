/* World sizes that differ between the workers of a static group.
 *
 * Every worker waits for its own number of ranks, so a group with different numbers would wait
 * until start_timeout_ms. Happy path: the earlier of two starts reads the record of the later one,
 * sees another world_size, and writes both into the key `world_sizes`; the other workers that wait
 * read that key from time to time. All of them fail with the same two numbers.
 *
 * Only the earlier start can be sure: an earlier record may be left over from another attempt. For
 * the same reason the key counts only for starts that are not later than those that it names. The
 * worker that writes it may host the store, so it waits until the later start has read the key.
 *
 * All functions but tether__sizes_differ() block on the store.
 */
#ifndef TETHER_RPC_GROUP_SIZES_H
#define TETHER_RPC_GROUP_SIZES_H

#include "base/status.h"
#include "rpc/agent.h"

struct tether__worker_record;

/* Fills the error for `other`, which has another world_size. Returns TETHER_EINVAL. */
tether_status tether__sizes_differ(const tether_agent *agent,
                                   const struct tether__worker_record *other,
                                   tether_error *reterr);

/* Tells the group that `other`, a later start than this one, has another world_size. Returns
 * TETHER_EINVAL. */
tether_status tether__sizes_clash(tether_agent *agent,
                                  const struct tether__worker_record *other,
                                  tether_error *reterr);

/* Checks whether another worker has reported different world sizes. Returns TETHER_EINVAL if so,
 * else TETHER_OK. */
tether_status tether__sizes_check(tether_agent *agent, tether_error *reterr);

#endif
