/* How a worker joins its group and leaves it. */
#ifndef TETHER_RPC_GROUP_GROUP_H
#define TETHER_RPC_GROUP_GROUP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "rpc/agent.h"

/* Draws the incarnation of this start and sets its id. Blocks on the store. */
tether_status tether__agent_count_start(tether_agent *agent,
                                        int64_t deadline,
                                        tether_error *reterr);

/* Enters this worker into the directory; in a static group also waits for every rank. Blocks on the
 * store. */
tether_status tether__agent_join(tether_agent *agent, int64_t deadline, tether_error *reterr);

/* Removes this worker from the directory; a second call has no effect. If not `for_good` (the start
 * has failed), the name of its rank stays, so that workers that still wait for the ranks see why.
 */
void tether__agent_leave(tether_agent *agent, bool for_good, int timeout_ms);

/* Checks once per lease whether the store still has the run. If the store was restarted empty, puts
 * the run and this worker's record back. Returns when it must be called again. */
int64_t tether__agent_store_tick(tether_agent *agent, int64_t now);

void tether__agent_store_check_at(tether_agent *agent, int64_t due);

/* Does the graceful part of shutdown(): returns once no call is in flight anywhere in the group, or
 * with an error that names the remaining work. */
tether_status tether__agent_drain(tether_agent *agent, int64_t deadline, tether_error *reterr);

/* Sends a goodbye to every peer, waits shortly for the acknowledgements, and ends all sessions. */
void tether__agent_say_goodbye(tether_agent *agent);

#endif
