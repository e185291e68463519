/* How the counters of an agent (counters.h) are shown. */
#ifndef TETHER_RPC_AGENT_METRICS_H
#define TETHER_RPC_AGENT_METRICS_H

#include "base/status.h"

struct tether_agent;
struct tether__metrics_server;

/* An unreachable peer is shown for so long after its last message; then its counters are added to
 * those of peer="(gone)", which is no valid name of a worker. */
#define TETHER__METRICS_KEEP_MS (5 * 60 * 1000)

struct tether__peer;

/* Adds the counters of a peer to those of all forgotten peers. agent->mu and peer->mu are held.
 */
void tether__metrics_bury_locked(struct tether_agent *agent, struct tether__peer *peer);

/* Serves the text over HTTP at `listen` ("host:port") on a thread of its own. */
tether_status tether__metrics_serve(struct tether_agent *agent,
                                    const char *listen,
                                    struct tether__metrics_server **ret_server,
                                    tether_error *reterr);
const char *tether__metrics_address(const struct tether__metrics_server *server); /* LENDS */
void tether__metrics_stop(struct tether__metrics_server *server);                 /* NULL is fine */

#endif
