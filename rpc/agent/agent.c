/* The agent's life: new, start, shutdown, release.
 *
 * start(): meet at the rendezvous → listen → draw the number of this start → start the threads →
 * publish the address of this worker → (static group) wait for every rank (join.c). Each step
 * undoes itself on error, in stop(), which works on an agent in any state.
 */
#include "rpc/agent.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/log.h"
#include "base/map.h"
#include "base/threads/call_gate.h"
#include "base/threads/life.h"
#include "base/threads/reaper.h"
#include "base/threads/state.h"
#include "base/threads/thread.h"
#include "rendezvous/url/internal.h"
#include "rpc/agent/internal.h"
#include "rpc/agent/metrics.h"
#include "rpc/agent/options.h"
#include "rpc/agent/routes.h"
#include "rpc/call/retry.h"
#include "rpc/future/thread_context.h"
#include "rpc/group/group.h"
#include "rpc/group/probe.h"
#include "rpc/lane/lane.h"
#include "rpc/peer/admission/accept.h"
#include "rpc/peer/admission/starts.h"
#include "rpc/peer/after.h"
#include "rpc/peer/fence.h"
#include "rpc/peer/peer.h"
#include "rpc/peer/table.h"
#include "rpc/refs.h"
#include "rpc/serve/registry.h"
#include "rpc/transport/transport.h"

#define WITHDRAW_MS 500

const struct tether__ext_ops *tether__ext_ops;

/* Frees the agent after its last user has released it. Any thread; no code of the agent runs any
 * more. */
static void destroy(struct tether__life *life)
{
    tether_agent *agent = tether__container_of(life, struct tether_agent, life);
    tether__routes_fini(agent);
    tether__peers_fini(agent);
    tether__registry_fini(&agent->registry);
    tether__options_fini(&agent->opts);
    tether__reaper_fini(&agent->reaper);
    tether__condition_fini(&agent->idle);
    pthread_cond_destroy(&agent->stop_over);
    pthread_mutex_destroy(&agent->mu);
    tether__call_gate_fini(&agent->visits);
    tether__call_gate_fini(&agent->calls);
    tether__free(agent);
}

tether_status tether_agent_new(const struct tether_agent_opts *opts,
                               tether_agent **ret_agent,
                               tether_error *reterr)
{
    tether_agent *agent = tether__calloc(1, sizeof *agent);
    if (!agent)
        return tether_error_set(reterr, TETHER_ENOMEM, "no memory for an agent");
    tether_status st = tether__options_init(&agent->opts, opts, reterr);
    if (st != TETHER_OK)
        goto undo_agent;
    st = tether__registry_init(&agent->registry);
    if (st == TETHER_OK)
        st = tether__map_init(&agent->peers_by_name, &tether__map_bytes);
    if (st != TETHER_OK) {
        tether_error_set(reterr, st, "no memory for an agent");
        goto undo_options;
    }
    tether__life_init(&agent->life, destroy);
    atomic_init(&agent->handles, 1);
    tether__call_gate_init(&agent->calls);
    tether__call_gate_init(&agent->visits);
    pthread_cond_init(&agent->stop_over, NULL);
    tether__condition_init(&agent->idle);
    const struct tether__agent_hooks *hooks = agent->opts.hooks;
    agent->clock = hooks && hooks->clock ? hooks->clock : &tether__clock_system;
    agent->lane_limits = tether__lane_default_limits;
    /* The lane itself has no limit here. Calls, and with them their replies, are limited before
     * they reach the lane. Other messages must not wait for room: a control message may be the one
     * that makes room. */
    agent->lane_limits.max_unacked_bytes = SIZE_MAX / 2;
    agent->lane_limits.max_message_bytes = agent->opts.max_message_bytes;
    agent->rank = -1;
    agent->timers = &agent->network.poller;
    tether__routes_init(agent);
    tether__list_init(&agent->pending_conns);
    tether__heap_init(&agent->retries, tether__retry_is_due_first);
    pthread_mutex_init(&agent->mu, NULL);
    pthread_mutex_init(&agent->due_mu, NULL);
    tether__starts_init(&agent->starts);
    tether__heap_init(&agent->dues, tether__peer_is_due_first);
    tether__reaper_init(&agent->reaper);
    if (tether__ext_ops && !(agent->ext = tether__ext_ops->attach(agent, reterr))) {
        tether_agent_release(agent);
        return TETHER_ENOMEM;
    }
    *ret_agent = agent;
    return TETHER_OK;

undo_options:
    tether__registry_fini(&agent->registry);
    tether__options_fini(&agent->opts);
undo_agent:
    tether__free(agent);
    return st;
}

/* ---- Start ---- */

static tether_status meet(tether_agent *agent, int64_t deadline, tether_error *reterr)
{
    struct tether_agent_opts *opts = &agent->opts;
    struct tether_world world = {
        .store = tether_store_retain(opts->store),
        .rank = opts->rank,
        .size = opts->world_size,
    };
    tether_status st = TETHER_OK;
    if (!world.store)
        st = tether__rendezvous_alone(
            opts->rendezvous, tether__deadline_left_ms(agent->clock, deadline), &world, reterr);
    if (st != TETHER_OK)
        return tether_error_wrap(reterr, st, "meeting the other workers");
    agent->world_size = world.size > 0 && !opts->observe ? world.size : 0;
    agent->rank = agent->world_size ? world.rank : -1;
    if (opts->observe)
        tether__observer_name(opts->name ? opts->name : "anonymous", agent->name);
    else if (opts->name)
        snprintf(agent->name, sizeof agent->name, "%s", opts->name);
    else
        snprintf(agent->name, sizeof agent->name, "worker%d", world.rank);
    tether__log(TETHER_LOG_INFO, "rpc", "%s: meets the others at %s, %d in all (0: any number)",
                agent->name, tether_store_describe(world.store), agent->world_size);
    st = tether__directory_init(&agent->directory, world.store, opts->group, reterr);
    agent->store = world.store; /* lent to the program until the agent is released */
    return st;
}

int64_t tether__agent_tick(void *userdata, int64_t now)
{
    tether_agent *agent = userdata;
    int64_t next = tether__peers_tick(agent, now);
    int64_t due = agent->ext ? tether__ext_ops->tick(agent->ext, now) : TETHER__NEVER;
    if (due < next)
        next = due;
    due = tether__pending_conns_tick(agent, now);
    if (due < next)
        next = due;
    due = tether__retries_tick(agent, now);
    if (due < next)
        next = due;
    due = tether__agent_store_tick(agent, now);
    return due < next ? due : next;
}

tether_status tether__agent_submit(tether_agent *agent,
                                   struct tether__pool *pool,
                                   struct tether__task *task)
{
    const struct tether__agent_hooks *hooks = agent->opts.hooks;
    if (!hooks || !hooks->submit)
        return tether__pool_submit(pool, task);
    hooks->submit(hooks->userdata, agent, task);
    return TETHER_OK;
}

static tether_status start_threads(tether_agent *agent, tether_error *reterr)
{
    bool threaded = !(agent->opts.hooks && agent->opts.hooks->submit);
    tether_status st = TETHER_OK;
    if (threaded)
        st = tether__pool_start(&agent->pool, "tether-run", (size_t)agent->opts.threads,
                                (size_t)agent->opts.max_queued, reterr);
    if (st != TETHER_OK)
        return st;
    agent->pool_runs = threaded;
    if (threaded)
        tether__reaper_open(&agent->reaper);
    return tether__routes_run(agent, threaded, reterr);
}

static void stop(tether_agent *agent, bool goodbye);
static void stop_is_over(tether_agent *agent, tether_status status, const tether_error *error);
static bool let_go(tether_agent *agent);

/* Chooses the address that other workers dial. Port 0 in `advertise` stands for the port that this
 * worker listens on. The address outlives the transport. */
static tether_status choose_address(tether_agent *agent, tether_error *reterr)
{
    const char *given = agent->opts.advertise, *bound = agent->network.transport->address;
    size_t len = given ? strlen(given) : 0;
    bool has_no_port =
        len >= 2 && strcmp(given + len - 2, ":0") == 0 && strncmp(bound, "unix:", 5) != 0;
    agent->self.address = given;
    agent->address_is_own =
        /* false for a unix socket: its path may mean another file in another container */
        !given && strncmp(bound, "unix:", 5) != 0;
    if (given && !has_no_port)
        return TETHER_OK;
    char *address = given ? tether__asprintf("%.*s%s", (int)len - 2, given, strrchr(bound, ':'))
                          : tether__strdup(bound);
    if (!address)
        return tether_error_set(reterr, TETHER_ENOMEM, "no memory for the agent's address");
    tether__free((void *)given);
    agent->self.address = agent->opts.advertise = address;
    return TETHER_OK;
}

/* Does the work of tether_agent_start(). An attempt that failed before a later one succeeded may
 * leave text in `reterr`. */
static tether_status start(tether_agent *agent, tether_error *reterr)
{
    int64_t deadline = tether__deadline_in(agent->clock, agent->opts.start_timeout_ms);
    tether_status st = meet(agent, deadline, reterr);
    if (st == TETHER_OK)
        st = tether__routes_listen(agent, reterr);
    if (st == TETHER_OK) {
        agent->self.group = agent->opts.group;
        agent->self.name = agent->name;
        agent->self.run = agent->directory.run;
        agent->self.token = agent->opts.token;
        agent->self.lease_ms = (uint32_t)agent->opts.lease_ms;
        agent->self.max_message_bytes = agent->opts.max_message_bytes;
        st = choose_address(agent, reterr);
    }
    if (st == TETHER_OK)
        st = tether__agent_count_start(agent, deadline, reterr);
    if (st == TETHER_OK)
        st = start_threads(agent, reterr);
    if (st == TETHER_OK) {
        atomic_store(&agent->state, TETHER__AGENT_JOINING);
        st = tether__agent_join(agent, deadline, reterr);
    }
    if (st == TETHER_OK && agent->opts.metrics_listen)
        st = tether__metrics_serve(agent, agent->opts.metrics_listen, &agent->metrics_server,
                                   reterr);
    if (st == TETHER_OK && agent->metrics_server)
        snprintf(agent->metrics_address, sizeof agent->metrics_address, "%s",
                 tether__metrics_address(agent->metrics_server));
    if (st == TETHER_OK) {
        atomic_store(&agent->state, TETHER__AGENT_RUNNING);
        tether__agent_store_check_at(agent,
                                     tether__deadline_in(agent->clock, agent->opts.lease_ms));
        tether__log(TETHER_LOG_INFO, "rpc", "%s: started, listens on %s", agent->name,
                    agent->network.transport->address);
        return TETHER_OK;
    }
    stop(agent, false);
    stop_is_over(agent, TETHER_OK, NULL);
    const char *name = agent->name[0] ? agent->name : agent->opts.name;
    return name ? tether_error_wrap(reterr, st, "starting worker '%s'", name)
                : tether_error_wrap(reterr, st, "starting this worker");
}

tether_status tether_agent_start(tether_agent *agent, tether_error *reterr)
{
    if (tether__thread_state.must_not_block)
        return tether_error_set(reterr, TETHER_EDEADLK,
                                "starting a worker here would block the thread that receives "
                                "messages: do it from another thread");
    tether_error why = {0};
    int state = TETHER__AGENT_NEW;
    if (!atomic_compare_exchange_strong(&agent->state, &state, TETHER__AGENT_STARTING)) {
        /* without the option `name` the worker is named only during start() */
        char which[TETHER_MAX_WORKER_NAME + 16] = "this worker";
        if (agent->opts.name)
            snprintf(which, sizeof which, "worker '%s'", agent->opts.name);
        return tether_error_set(reterr, TETHER_EINVAL,
                                "%s has been started before: an agent starts once, make another "
                                "with tether_agent_new()",
                                which);
    }
    tether_agent_retain(agent); /* another thread may release it meanwhile */
    tether_status st = start(agent, &why);
    if (let_go(agent))
        st = tether_error_set(&why, TETHER_ESHUTDOWN,
                              "the agent was released while tether_agent_start() ran");
    if (st != TETHER_OK && reterr)
        *reterr = why;
    return st;
}

/* ---- Stop ---- */

/* Stops all threads, transports and sessions. Afterwards only the memory is left. */
static void stop(tether_agent *agent, bool goodbye)
{
    tether__metrics_stop(agent->metrics_server);
    agent->metrics_server = NULL;
    tether__call_gate_close(&agent->calls);
    atomic_store(&agent->leaving, true);
    atomic_store(&agent->state, TETHER__AGENT_PARTING);
    if (goodbye)
        tether__agent_say_goodbye(agent);
    atomic_store(&agent->state, TETHER__AGENT_STOPPED);
    tether__agent_end_sessions(agent, "this worker has shut down");
    /* returns soon: the calls that these threads wait for have just failed */
    tether__call_gate_wait(&agent->calls);
    if (agent->pool_runs)
        tether__pool_stop(&agent->pool);
    agent->pool_runs = false;
    tether__agent_leave(agent, goodbye, WITHDRAW_MS);
    tether__directory_fini(&agent->directory);
    tether__routes_stop(agent);
    tether__reaper_close(&agent->reaper); /* from here on this thread runs destructors itself */
    /* the background and server threads, which add retries, have ended */
    tether__retries_fini(agent);
    tether__routes_destroy(agent);
}

/* Wakes the threads that wait for the end of the first shutdown(). */
static void stop_is_over(tether_agent *agent, tether_status status, const tether_error *error)
{
    pthread_mutex_lock(&agent->mu);
    agent->stop_is_over = true;
    agent->stop_status = status;
    if (error)
        agent->stop_error = *error;
    pthread_cond_broadcast(&agent->stop_over);
    pthread_mutex_unlock(&agent->mu);
}

/* Makes a graceful shutdown() stop waiting for other workers. */
static void cut_short(tether_agent *agent)
{
    atomic_store(&agent->cut_short, true);
    tether__condition_notify(&agent->idle);
}

/* Waits for the shutdown of another thread and returns its result. */
static tether_status await_first_shutdown(tether_agent *agent, tether_error *reterr)
{
    pthread_mutex_lock(&agent->mu);
    while (!agent->stop_is_over) /* no limit of its own: the first shutdown() has one */
        pthread_cond_wait(&agent->stop_over, &agent->mu);
    tether_status st = agent->stop_status;
    if (st != TETHER_OK && reterr)
        *reterr = agent->stop_error;
    pthread_mutex_unlock(&agent->mu);
    return st;
}

static tether_status shut_down(tether_agent *agent, bool graceful, tether_error *reterr)
{
    int state = TETHER__AGENT_RUNNING;
    if (!atomic_compare_exchange_strong(&agent->state, &state, TETHER__AGENT_STOPPING)) {
        if (state == TETHER__AGENT_NEW)
            return tether_error_set(reterr, TETHER_EINVAL,
                                    "shutting down an agent that was never started: call "
                                    "tether_agent_start() first, or release it");
        if (state < TETHER__AGENT_RUNNING)
            return tether_error_set(reterr, TETHER_EINVAL,
                                    "shutting down an agent that is still starting: wait until "
                                    "tether_agent_start() has returned, or release it");
        if (!graceful)
            cut_short(agent);
        return await_first_shutdown(agent, reterr);
    }
    tether_status st = TETHER_OK;
    tether_error why = {0};
    int64_t deadline = tether__deadline_in(agent->clock, agent->opts.shutdown_timeout_ms);
    if (graceful)
        st = tether__agent_drain(agent, deadline, &why);
    stop(agent, true);
    stop_is_over(agent, st, &why);
    if (st != TETHER_OK && reterr)
        *reterr = why;
    return st;
}

/* Whether this thread is inside code that stop() waits for. */
static bool must_not_stop(void)
{
    return tether__thread_state.must_not_block || tether__thread_state.incoming ||
           tether__current.inside || tether__thread_state.destroying;
}

tether_status tether_agent_shutdown(tether_agent *agent, bool graceful, tether_error *reterr)
{
    if (must_not_stop())
        return tether_error_set(reterr, TETHER_EDEADLK,
                                "shutting down from within a function, callback or destructor "
                                "would wait for itself: do it from another thread");
    tether_agent_retain(agent); /* another thread may release it meanwhile */
    tether_status st = shut_down(agent, graceful, reterr);
    let_go(agent);
    return st;
}

tether_status tether__agent_has_stopped(const char *what, tether_error *reterr)
{
    return tether_error_set(reterr, TETHER_ESHUTDOWN,
                            "calling '%.60s': this worker has shut down: make calls before "
                            "tether_agent_shutdown()",
                            what ? what : "");
}

/* ---- Handles ---- */

tether_agent *tether_agent_retain(tether_agent *agent)
{
    if (agent)
        atomic_fetch_add_explicit(&agent->handles, 1, memory_order_relaxed);
    return agent;
}

/* Ends an agent whose last handle was released: stops it if it runs, and gives its resources back.
 */
static void *end(void *arg)
{
    tether_agent *agent = arg;
    if (atomic_load(&agent->state) == TETHER__AGENT_RUNNING)
        shut_down(agent, false, NULL);
    tether__call_gate_close(&agent->calls);
    tether__call_gate_wait(&agent->calls);
    tether__call_gate_close(&agent->visits);
    tether__call_gate_wait(&agent->visits);
    tether__retries_fini(agent); /* retries that threads of the program have added since stop() */
    if (agent->ext)
        tether__ext_ops->detach(agent->ext);
    tether_store_release(agent->store);
    tether_store_release(agent->opts.store);
    agent->store = agent->opts.store = NULL;
    tether__life_release(&agent->life);
    return NULL;
}

/* Releases a handle; returns whether it was the last one. The last release ends the agent: on this
 * thread or, if this thread must not wait for the agent, on a new one. */
static bool let_go(tether_agent *agent)
{
    tether__life_retain(&agent->life);
    uint32_t before = atomic_fetch_sub_explicit(&agent->handles, 1, memory_order_acq_rel);
    if (before == 2 && atomic_load(&agent->state) == TETHER__AGENT_STOPPING)
        /* only the running shutdown() has a handle left: it need not be graceful */
        cut_short(agent);
    tether__life_release(&agent->life);
    if (before != 1)
        return false;
    pthread_t thread;
    if (!must_not_stop())
        end(agent);
    else if (tether__thread_start(&thread, "tether-end", end, agent) == 0)
        pthread_detach(thread);
    else
        tether__log(TETHER_LOG_WARN, "rpc",
                    "%s: released inside one of its own functions, and there is no thread to stop "
                    "it: it goes on",
                    agent->name);
    return true;
}

tether_agent *tether_agent_release(tether_agent *agent)
{
    if (agent)
        let_go(agent);
    return NULL;
}
