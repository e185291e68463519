/* The transports of an agent, and the threads that poll them. */
#ifndef TETHER_RPC_AGENT_ROUTES_H
#define TETHER_RPC_AGENT_ROUTES_H

#include <pthread.h>

#include "base/status.h"
#include "rpc/agent.h"
#include "rpc/future/poller.h"

/* One way to other workers, and the threads that poll it. Immutable after start(). */
struct tether__route {
    struct tether__transport *transport; /* NULL: this worker does not have it */
    struct tether__poller poller;
    pthread_t server_thread;
    bool poller_runs, server_thread_runs;
};

/* Makes the transports and listens. */
tether_status tether__routes_listen(tether_agent *agent, tether_error *reterr);

/* Starts the threads that poll them; if not `threaded`, the simulation polls. */
tether_status tether__routes_run(tether_agent *agent, bool threaded, tether_error *reterr);

/* stop() ends all conns and joins the threads; destroy() then gives the transports back. Threads of
 * the program may kick and wait until fini(), in vain. All in any state. */
void tether__routes_stop(tether_agent *agent);

void tether__routes_destroy(tether_agent *agent);

void tether__routes_fini(tether_agent *agent);

#endif
