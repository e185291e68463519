/* Prints and serves the counters of an agent (counters.h). */
#ifndef TETHER_RPC_AGENT_METRICS_H
#define TETHER_RPC_AGENT_METRICS_H

#include "base/status.h"

struct tether_agent;
struct tether__metrics_server;

/* How long an unreachable peer is shown after its last message. Then its counters are added to
 * those of peer="(gone)", which no worker can be named. */
#define TETHER__METRICS_KEEP_MS (5 * 60 * 1000)

struct tether__peer;

/* Adds the counters of a peer to the sums for peer="(gone)" and clears them. agent->mu and peer->mu
 * are held. */
void tether__metrics_bury_locked(struct tether_agent *agent, struct tether__peer *peer);

/* Serves the text of tether_agent_metrics() over HTTP at `listen` ("host:port"), on a thread of its
 * own. */
tether_status tether__metrics_serve(struct tether_agent *agent,
                                    const char *listen,
                                    struct tether__metrics_server **ret_server,
                                    tether_error *reterr);
const char *tether__metrics_address(const struct tether__metrics_server *server); /* LENDS */
void tether__metrics_stop(struct tether__metrics_server *server);                 /* NULL is fine */

#endif
