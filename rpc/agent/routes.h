/* The transports of an agent, and the threads that poll them. */
#ifndef TETHER_RPC_AGENT_ROUTES_H
#define TETHER_RPC_AGENT_ROUTES_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/log_limit.h"
#include "base/status.h"
#include "base/threads/loop.h"
#include "base/threads/pool.h"
#include "rpc/agent.h"
#include "rpc/future/poller.h"

/* One way to other workers, and the threads that poll it. Immutable once it runs. */
struct tether__route {
    struct tether__transport *transport; /* NULL: this worker does not have the route */
    struct tether__poller poller;
    pthread_t server_thread;
    bool poller_runs, server_thread_runs;
};

/* The start of the network route, which takes place when it is first needed if there is a local
 * route. */
struct tether__network_start {
    _Atomic bool runs; /* the network route is running */
    _Atomic bool wanted;
    struct tether__task task; /* owned by the thread that set `wanted` */
    struct tether__pool pool; /* has one thread, which runs `task` */
    bool pool_runs;
    struct tether__log_limit failures; /* clients and dials cause them at will */
    /* under mu */
    bool stopping;
    /* held during the whole start, so no other lock may be held when it is taken */
    pthread_mutex_t mu;
};

/* Initialises the routes when the agent is created; routes_fini() pairs with it. */
void tether__routes_init(tether_agent *agent);

/* Makes the transports and listens. */
tether_status tether__routes_listen(tether_agent *agent, tether_error *reterr);

/* Starts the threads that poll the transports, except for a network route that starts late. If not
 * `threaded`, no threads are started: the simulation polls. */
tether_status tether__routes_run(tether_agent *agent, bool threaded, tether_error *reterr);

/* Whether the network route may be dialled and polled. Any thread. */
bool tether__network_runs(const tether_agent *agent);

/* Starts the network route if it does not run: gRPC, and the threads that poll it. It may take some
 * milliseconds. After an error the next call tries again; threads that were started keep running.
 * TETHER_ESHUTDOWN: the agent stops. Any thread that may block, with no lock held. */
tether_status tether__network_start(tether_agent *agent, tether_error *reterr);

/* Makes another thread start the network route. False: there is no such thread. Any thread; any
 * lock may be held. */
bool tether__network_want(tether_agent *agent);

/* stop() ends all conns and joins the threads; destroy() then frees the transports. Until fini(),
 * threads of the program may still use the pollers, which then do nothing. All three may be called
 * in any state. */
void tether__routes_stop(tether_agent *agent);

void tether__routes_destroy(tether_agent *agent);

void tether__routes_fini(tether_agent *agent);

#endif
