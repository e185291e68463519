/* The two ways to other workers: *network*, over gRPC, to any worker and for any gRPC client; and
 * *local*, over a plain unix socket, to workers of this host, where gRPC's own work would be most
 * of a small call.
 *
 * Each route has its own threads that poll it, so that neither waits for the other. The record of a
 * peer in the directory decides which route its calls take. On both routes a stream carries the
 * same frames and survives its conn.
 *
 * gRPC has seven threads of its own, so a worker that has the local route starts the network route
 * late: with the first peer that is dialled there, or the first connection to its address. Until
 * then it only listens, and the poller of the local route's client side accepts connections, as it
 * does later. The start runs on a look-up thread, on the thread of a probe, or on the thread of
 * network_start.pool; network_start.mu allows one start at a time. peer->route is set to the
 * network route after that, so no thread polls that route earlier.
 *
 * Failure modes: gRPC or a thread does not start, for example for lack of descriptors: the dial or
 * connection fails, and the next one tries again. A worker that cannot make a unix socket has no
 * local route. If a local conn does not come up, the next dial uses the network route
 * (peer/connect/dialer.c).
 */
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/threads/state.h"
#include "base/threads/thread.h"
#include "rpc/agent.h"
#include "rpc/agent/certificate.h"
#include "rpc/agent/internal.h"
#include "rpc/agent/routes.h"
#include "rpc/future/poller.h"
#include "rpc/handshake/handshake.h"
#include "rpc/lane/lane.h"
#include "rpc/peer/admission/accept.h"
#include "rpc/peer/stream.h"
#include "rpc/transport/transport.h"

/* ---- Listening ---- */

/* Options that both transports share. */
static struct tether__transport_opts common_opts(tether_agent *agent)
{
    return (struct tether__transport_opts){
        .max_message_bytes = agent->lane_limits.segment_bytes + agent->lane_limits.fragment_bytes +
                             TETHER__BATCH_OVERHEAD,
        .max_first_bytes = TETHER__MAX_HELLO_BYTES,
        .expected_peers = agent->world_size,
        .spin_us = agent->opts.spin_us,
        .events = &tether__agent_transport_events,
        .userdata = agent,
    };
}

/* Limits the calls of all plain gRPC clients together, so that the queue of the pool has room for
 * calls of peers. */
static size_t most_plain_calls(const tether_agent *agent)
{
    const size_t quarter = (size_t)agent->opts.max_queued / 4, least = 16;
    return quarter > least ? quarter : least;
}

/* Limits the bytes in the requests of all plain gRPC clients, and likewise in their results. The
 * largest request has `max_bytes_per_peer`. */
static size_t most_plain_bytes(const tether_agent *agent)
{
    return 2 * agent->opts.max_bytes_per_peer;
}

static tether_status listen_network(tether_agent *agent, tether_error *reterr)
{
    const struct tether_agent_opts *opts = &agent->opts;
    const struct tether__agent_hooks *hooks = opts->hooks;
    struct tether__tls tls = {
        .ca_pem = opts->tls_ca_pem,
        .cert_pem = opts->tls_cert_pem,
        .key_pem = opts->tls_key_pem,
        .require_client_cert = !opts->tls_one_way,
        .one_way = opts->tls_one_way,
        .own_is_foreign = opts->tls_cert_pem && opts->tls_ca_pem && !opts->tls_one_way &&
                          !tether__certificate_is_signed_by(opts->tls_cert_pem, opts->tls_ca_pem),
        .own_ends_at = opts->tls_cert_pem && !opts->tls_one_way
                           ? tether__certificate_ends_at(opts->tls_cert_pem)
                           : 0,
    };
    struct tether__transport_opts network = common_opts(agent);
    network.listen = opts->observe ? NULL : opts->listen;
    network.tls = opts->tls_cert_pem ? &tls : NULL;
    network.max_unary_bytes = opts->max_message_bytes < opts->max_bytes_per_peer
                                  ? opts->max_message_bytes
                                  : opts->max_bytes_per_peer;
    network.max_plain_calls = most_plain_calls(agent);
    network.max_plain_bytes = most_plain_bytes(agent);
    network.late = agent->local.transport != NULL;
    struct tether__transport **transport = &agent->network.transport;
    tether_status st = hooks && hooks->make_transport
                           ? hooks->make_transport(hooks->userdata, &network, transport, reterr)
                           : tether__transport_grpc_new(&network, transport, reterr);
    if (st == TETHER_OK)
        st = (*transport)->ops->start(*transport, reterr);
    return st == TETHER_OK && network.late
               ? tether__transport_unix_accept_for(agent->local.transport, *transport, reterr)
               : st;
}

/* Whether to have a local route. Not with TLS: a unix socket shows which user connects, but not the
 * name of the worker. */
static bool wants_local(const tether_agent *agent)
{
    const struct tether_agent_opts *opts = &agent->opts;
    bool simulated = opts->hooks && opts->hooks->make_transport;
    return !simulated && !opts->no_unix_socket && !opts->tls_cert_pem &&
           strncmp(opts->listen, "unix:", 5) != 0;
}

static void listen_local(tether_agent *agent)
{
    struct tether__transport_opts local = common_opts(agent);
    local.listen = agent->opts.observe ? NULL : "unix-abstract:"; /* the kernel chooses the name */
    struct tether__transport **transport = &agent->local.transport;
    tether_error why = {0};
    tether_status st = tether__transport_unix_new(&local, transport, &why);
    if (st == TETHER_OK)
        st = (*transport)->ops->start(*transport, &why);
    if (st == TETHER_OK)
        return;
    if (*transport)
        (*transport)->ops->destroy(*transport);
    *transport = NULL;
    tether__log(TETHER_LOG_WARN, "rpc",
                "%s: workers of this host must use gRPC, which is slower: %s", agent->name,
                why.message);
}

tether_status tether__routes_listen(tether_agent *agent, tether_error *reterr)
{
    tether__alloc_keep_freed();
    if (wants_local(agent))
        listen_local(agent);
    tether_status st = listen_network(agent, reterr);
    /* The local poller is cheaper to wake. */
    agent->timers = agent->local.transport ? &agent->local.poller : &agent->network.poller;
    return st;
}

/* ---- Threads ---- */

static struct tether__reaper *reaper_of(void *agent)
{
    return &((tether_agent *)agent)->reaper;
}

static void *server_main(void *arg)
{
    struct tether__route *route = arg;
    struct tether__transport *transport = route->transport;
    tether__thread_state.reaper = reaper_of(route->poller.userdata);
    while (transport->ops->poll(transport, TETHER__SERVER, TETHER__NEVER))
        ;
    return NULL;
}

static int64_t no_tick(void *userdata, int64_t now)
{
    (void)userdata, (void)now;
    return TETHER__NEVER;
}

static const struct tether__poller_ops with_timers = {
    .tick = tether__agent_tick,
    .flush = tether__agent_flush,
    .deferred = tether__agent_has_deferred,
    .reaper = reaper_of,
};

static const struct tether__poller_ops without_timers = {
    .tick = no_tick,
    .flush = tether__agent_flush,
    .deferred = tether__agent_has_deferred,
    .reaper = reaper_of,
};

/* Starts the threads of a route, except those that an earlier, failed try has started. */
static tether_status run(tether_agent *agent,
                         struct tether__route *route,
                         bool threaded,
                         tether_error *reterr)
{
    bool ticks = agent->timers == &route->poller;
    tether_status st = TETHER_OK;
    if (!route->poller_runs) /* an earlier try may have started it */
        st = tether__poller_start(&route->poller, route->transport, agent->clock,
                                  ticks ? &with_timers : &without_timers, agent, threaded, reterr);
    if (st != TETHER_OK)
        return st;
    route->poller.life = &agent->life;
    route->poller_runs = true;
    if (!threaded)
        return TETHER_OK;
    int rc = tether__thread_start(&route->server_thread, "tether-serve", server_main, route);
    if (rc != 0)
        return tether_error_set(reterr, TETHER_EIO, "starting the server thread: %s", strerror(rc));
    route->server_thread_runs = true;
    return TETHER_OK;
}

tether_status tether__routes_run(tether_agent *agent, bool threaded, tether_error *reterr)
{
    struct tether__network_start *start = &agent->network_start;
    bool late = agent->local.transport != NULL;
    tether_status st = TETHER_OK;
    if (late)
        st = tether__pool_start(&start->pool, "tether-grpc", 1, 1, reterr);
    start->pool_runs = late && st == TETHER_OK;
    if (st == TETHER_OK)
        st = run(agent, late ? &agent->local : &agent->network, threaded, reterr);
    if (st == TETHER_OK && !late)
        atomic_store(&start->runs, true);
    return st;
}

/* ---- The late start of the network route ---- */

bool tether__network_runs(const tether_agent *agent)
{
    return atomic_load(&agent->network_start.runs);
}

static tether_status start_locked(tether_agent *agent, tether_error *reterr)
{
    struct tether__transport *transport = agent->network.transport;
    if (agent->network_start.stopping)
        return tether_error_set(reterr, TETHER_ESHUTDOWN, "this worker is shutting down");
    tether_status st = transport->ops->begin(transport, reterr);
    if (st == TETHER_OK)
        st = run(agent, &agent->network, true, reterr);
    if (st == TETHER_OK)
        atomic_store(&agent->network_start.runs, true);
    transport->ops->begun(transport, st == TETHER_OK);
    return st;
}

static void log_failure(tether_agent *agent, const tether_error *why)
{
    unsigned left_out;
    int64_t now = tether__clock_now_ns(agent->clock);
    if (tether__log_limit_passes(&agent->network_start.failures, now, &left_out))
        tether__log(TETHER_LOG_WARN, "rpc",
                    "%s: gRPC cannot start, which other hosts need: %s (and %u more since this was "
                    "last logged)",
                    agent->name, why->message, left_out);
}

tether_status tether__network_start(tether_agent *agent, tether_error *reterr)
{
    tether_status st = TETHER_OK;
    if (tether__network_runs(agent))
        return TETHER_OK;
    tether_error why = {0};
    pthread_mutex_lock(&agent->network_start.mu);
    if (!tether__network_runs(agent))
        st = start_locked(agent, &why);
    pthread_mutex_unlock(&agent->network_start.mu);
    if (st == TETHER_OK)
        return TETHER_OK;
    if (st != TETHER_ESHUTDOWN)
        log_failure(agent, &why);
    if (reterr)
        *reterr = why;
    return st;
}

static void run_start(struct tether__task *task)
{
    struct tether__network_start *start =
        tether__container_of(task, struct tether__network_start, task);
    tether_agent *agent = tether__container_of(start, struct tether_agent, network_start);
    /* clear it before the start: a client that the start fails to serve may ask for another */
    atomic_store(&start->wanted, false);
    tether__network_start(agent, NULL);
}

bool tether__network_want(tether_agent *agent)
{
    struct tether__network_start *start = &agent->network_start;
    if (atomic_exchange(&start->wanted, true))
        return true;
    start->task.run = run_start;
    if (tether__pool_submit(&start->pool, &start->task) == TETHER_OK)
        return true;
    atomic_store(&start->wanted, false);
    return false;
}

/* Makes sure that no start is under way and that none begins any more. */
static void stop_starting(tether_agent *agent)
{
    struct tether__network_start *start = &agent->network_start;
    pthread_mutex_lock(&start->mu);
    start->stopping = true;
    pthread_mutex_unlock(&start->mu);
    if (start->pool_runs)
        tether__pool_stop(&start->pool);
}

/* ---- The end ---- */

static void stop_polling(struct tether__route *route)
{
    if (route->poller_runs)
        tether__poller_stop(&route->poller);
}

/* Stops a route. Afterwards all its conns have had their last event. */
static void stop(struct tether__route *route)
{
    struct tether__transport *transport = route->transport;
    if (!transport)
        return;
    transport->ops->stop(transport);
    if (route->poller_runs)
        while (transport->ops->poll(transport, TETHER__CLIENT, TETHER__NEVER))
            ;
    if (route->server_thread_runs)
        pthread_join(route->server_thread, NULL);
    route->server_thread_runs = false;
}

void tether__routes_stop(tether_agent *agent)
{
    stop_starting(agent);
    stop_polling(&agent->local);
    stop_polling(&agent->network);
    stop(&agent->local);
    stop(&agent->network);
}

static void destroy(struct tether__route *route)
{
    if (route->transport)
        route->transport->ops->destroy(route->transport);
    route->transport = NULL;
}

void tether__routes_destroy(tether_agent *agent)
{
    destroy(&agent->local);
    destroy(&agent->network);
}

static void fini(struct tether__route *route)
{
    if (route->poller_runs)
        tether__poller_fini(&route->poller);
    route->poller_runs = false;
}

void tether__routes_init(tether_agent *agent)
{
    pthread_mutex_init(&agent->network_start.mu, NULL);
}

void tether__routes_fini(tether_agent *agent)
{
    pthread_mutex_destroy(&agent->network_start.mu);
    fini(&agent->local);
    fini(&agent->network);
}
