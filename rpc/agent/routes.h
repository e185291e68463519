/* The transports of an agent, and the threads that poll them. */
#ifndef TETHER_RPC_AGENT_ROUTES_H
#define TETHER_RPC_AGENT_ROUTES_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/status.h"
#include "base/threads/loop.h"
#include "base/threads/pool.h"
#include "rpc/agent.h"
#include "rpc/future/poller.h"

/* One way to other workers, and the threads that poll it. Immutable once it runs. */
struct tether__route {
    struct tether__transport *transport; /* NULL: this worker does not have it */
    struct tether__poller poller;
    pthread_t server_thread;
    bool poller_runs, server_thread_runs;
};

/* The start of the network route, which takes place when it is first needed if there is a local
 * route. */
struct tether__network_start {
    _Atomic bool runs; /* the route does */
    _Atomic bool wanted;
    struct tether__task task; /* of the code that set `wanted` */
    struct tether__pool pool; /* of one thread, which runs the task */
    bool pool_runs;
    /* under mu */
    bool stopping;
    pthread_mutex_t mu; /* held for as long as the start takes: take no other lock around it */
};

/* When the agent is made; fini() pairs with it. */
void tether__routes_init(tether_agent *agent);

/* Makes the transports and listens. */
tether_status tether__routes_listen(tether_agent *agent, tether_error *reterr);

/* Starts the threads that poll them, but for those of a network route that starts late; if not
 * `threaded`, the simulation polls. */
tether_status tether__routes_run(tether_agent *agent, bool threaded, tether_error *reterr);

/* Whether the network route may be dialled and polled. Any thread. */
bool tether__network_runs(const tether_agent *agent);

/* Starts the network route if it does not run: gRPC, and the threads that poll it. It may take some
 * milliseconds. An error leaves all as it was, but for threads that run; the next call is another
 * try. TETHER_ESHUTDOWN: the agent stops. Any thread that may block, with no lock held. */
tether_status tether__network_start(tether_agent *agent, tether_error *reterr);

/* Has another thread do that. False: there is none. Any thread, any lock. */
bool tether__network_want(tether_agent *agent);

/* stop() ends all conns and joins the threads; destroy() then gives the transports back. Threads of
 * the program may kick and wait until fini(), in vain. All in any state. */
void tether__routes_stop(tether_agent *agent);

void tether__routes_destroy(tether_agent *agent);

void tether__routes_fini(tether_agent *agent);

#endif
