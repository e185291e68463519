/* How a worker joins its group and leaves it. */
#ifndef TETHER_RPC_GROUP_GROUP_H
#define TETHER_RPC_GROUP_GROUP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "rpc/agent.h"

/* Gives this start its incarnation and its id. Blocks on the store. */
tether_status tether__agent_count_start(tether_agent *agent,
                                        int64_t deadline,
                                        tether_error *reterr);

/* Makes this worker known; in a static group also waits for every rank. Blocks on the store. */
tether_status tether__agent_join(tether_agent *agent, int64_t deadline, tether_error *reterr);

/* Takes this worker out of the directory, once. Not `for_good`, its rank keeps its name, so that a
 * worker that still looks for the ranks sees why the start failed. */
void tether__agent_leave(tether_agent *agent, bool for_good, int timeout_ms);

/* Looks now and then whether the store still has the run, which a store that was started again has
 * lost: then puts the run and this worker's record back. Says when to look again. */
int64_t tether__agent_store_tick(tether_agent *agent, int64_t now);

void tether__agent_store_check_at(tether_agent *agent, int64_t due);

/* Graceful: returns once no call is in flight anywhere in the group, or with an error that names
 * the remaining work. */
tether_status tether__agent_drain(tether_agent *agent, int64_t deadline, tether_error *reterr);

/* Tells every peer that we leave, waits a moment until they know, and ends all sessions. */
void tether__agent_say_goodbye(tether_agent *agent);

#endif
