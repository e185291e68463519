/* The simulated network. See sim_net.h. */
#include "tests/rpc/sim_net.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/list.h"

#define MAX_WORKERS 64

struct sim_worker {
    struct tether__transport base;
    struct tether_sim *sim;
    struct tether__transport_opts opts;
    tether_agent *agent;
    int index;
    bool started, stopped, paused, dead, parted[MAX_WORKERS];
    struct tether__list conns;
};

struct sim_conn {
    struct tether__conn base;
    struct sim_worker *worker;
    struct sim_conn *other; /* NULL once either end is closed */
    bool closing, closed, released;
    int64_t last_arrival;
    int refs;
    struct tether__list node;
};

enum what { ACCEPT, OPENED, MESSAGE, SENT, CLOSED, TASK };

struct event {
    struct tether__list node;
    int64_t at;
    enum what what;
    struct sim_worker *worker; /* where it happens */
    struct sim_conn *conn;
    struct tether__task *task;
    tether_status status;
    struct buffer *buffer;
};

/* A message on its way; the receiver may keep it. */
struct buffer {
    struct tether__slice_owner owner;
    int refs;
    size_t len;
    uint8_t data[];
};

struct tether_sim {
    struct tether_test_clock clock;
    struct tether__agent_hooks hooks;
    uint64_t random;
    int64_t latency_min, latency_max;
    struct tether__list events; /* earliest first */
    struct sim_worker *workers[MAX_WORKERS];
    int n_workers;
};

static const struct tether__transport_ops sim_ops;

static int64_t now_ns(const struct tether_sim *sim)
{
    return tether__clock_now_ns(&sim->clock.base);
}

uint64_t tether_sim_random(struct tether_sim *sim, uint64_t n)
{
    sim->random ^= sim->random << 13; /* xorshift64 */
    sim->random ^= sim->random >> 7;
    sim->random ^= sim->random << 17;
    return n ? sim->random % n : 0;
}

static void *must(void *ptr)
{
    if (!ptr)
        abort(); /* the test's own memory, not what is tested */
    return ptr;
}

static struct event *schedule(struct tether_sim *sim,
                              int64_t at,
                              enum what what,
                              struct sim_worker *worker,
                              struct sim_conn *conn)
{
    struct event *event = must(calloc(1, sizeof *event));
    event->at = at;
    event->what = what;
    event->worker = worker;
    event->conn = conn;
    if (conn)
        conn->refs++;
    struct tether__list *after = sim->events.prev; /* behind all that are not later */
    while (after != &sim->events && tether__list_entry(after, struct event, node)->at > at)
        after = after->prev;
    tether__list_push_front(after, &event->node);
    return event;
}

static int64_t arrival(struct tether_sim *sim)
{
    int64_t spread = sim->latency_max - sim->latency_min + 1;
    return now_ns(sim) + sim->latency_min + (int64_t)tether_sim_random(sim, (uint64_t)spread);
}

/* ---- Conns ---- */

static struct sim_conn *conn_new(struct sim_worker *worker)
{
    struct sim_conn *conn = must(calloc(1, sizeof *conn));
    conn->base.transport = &worker->base;
    conn->base.peer = "simulated";
    conn->worker = worker;
    conn->refs = 1; /* the owner's, until conn_release() */
    tether__list_push_back(&worker->conns, &conn->node);
    return conn;
}

static void conn_unref(struct sim_conn *conn)
{
    if (--conn->refs == 0) {
        tether__list_remove(&conn->node);
        free(conn);
    }
}

/* Both ends learn that it is over: this one soon, the other when the news has travelled. */
static void conn_break(struct sim_conn *conn, tether_status here, tether_status there)
{
    struct tether_sim *sim = conn->worker->sim;
    struct sim_conn *other = conn->other;
    if (!conn->closing)
        schedule(sim, now_ns(sim), CLOSED, conn->worker, conn)->status = here;
    conn->closing = true;
    if (other) {
        conn->other = other->other = NULL;
        if (!other->closing)
            schedule(sim, arrival(sim), CLOSED, other->worker, other)->status = there;
        other->closing = true;
    }
}

static struct sim_worker *find_address(struct tether_sim *sim, const char *address)
{
    for (int i = 0; i < sim->n_workers; i++)
        if (strcmp(sim->workers[i]->base.address, address) == 0)
            return sim->workers[i];
    return NULL;
}

static bool reachable(const struct sim_worker *a, const struct sim_worker *b)
{
    return b->started && !b->stopped && !b->dead && !a->dead && !a->parted[b->index];
}

static struct tether__conn *sim_dial(struct tether__transport *transport,
                                     const char *address,
                                     const struct tether__conn_events *events,
                                     void *userdata)
{
    struct sim_worker *worker = (struct sim_worker *)transport;
    struct tether_sim *sim = worker->sim;
    struct sim_worker *target = find_address(sim, address);
    if (worker->stopped || worker->dead)
        return NULL;
    struct sim_conn *conn = conn_new(worker);
    conn->base.events = events;
    conn->base.userdata = userdata;
    if (!target || !reachable(worker, target)) {
        conn_break(conn, TETHER_EUNAVAILABLE, TETHER_OK);
        return &conn->base;
    }
    struct sim_conn *theirs = conn_new(target);
    conn->other = theirs;
    theirs->other = conn;
    int64_t there = arrival(sim);
    schedule(sim, there, ACCEPT, target, theirs);
    schedule(sim, there + sim->latency_max, OPENED, worker, conn);
    return &conn->base;
}

static void buffer_retain(struct tether__slice_owner *owner)
{
    tether__container_of(owner, struct buffer, owner)->refs++;
}

static void buffer_release(struct tether__slice_owner *owner)
{
    struct buffer *buffer = tether__container_of(owner, struct buffer, owner);
    if (--buffer->refs == 0)
        free(buffer);
}

static void sim_send(struct tether__conn *base, const struct tether__slice *pieces, size_t n)
{
    struct sim_conn *conn = (struct sim_conn *)base;
    struct tether_sim *sim = conn->worker->sim;
    size_t len = 0, at = 0;
    for (size_t i = 0; i < n; i++)
        len += pieces[i].len;
    struct buffer *buffer = must(malloc(sizeof *buffer + len));
    *buffer = (struct buffer){{buffer_retain, buffer_release}, 1, len};
    for (size_t i = 0; i < n; i++) {
        if (pieces[i].len)
            memcpy(buffer->data + at, pieces[i].data, pieces[i].len);
        at += pieces[i].len;
        tether__slice_release(pieces[i]);
    }
    if (conn->other) {
        int64_t when = arrival(sim); /* in order, as a stream is */
        if (when < conn->last_arrival)
            when = conn->last_arrival;
        conn->last_arrival = when;
        schedule(sim, when, MESSAGE, conn->other->worker, conn->other)->buffer = buffer;
    } else {
        buffer_release(&buffer->owner);
    }
    schedule(sim, now_ns(sim), SENT, conn->worker, conn);
}

static void sim_close(struct tether__conn *base, bool polite)
{
    struct sim_conn *conn = (struct sim_conn *)base;
    conn_break(conn, polite ? TETHER_OK : TETHER_ECANCELED, TETHER_OK);
}

static void sim_conn_release(struct tether__conn *base)
{
    conn_unref((struct sim_conn *)base);
}

/* ---- Running ---- */

static void run_event(struct event *event)
{
    struct sim_conn *conn = event->conn;
    bool live = conn && !conn->closed;
    switch (event->what) {
        case ACCEPT:
            if (live && !conn->closing)
                event->worker->opts.events->accepted(event->worker->opts.userdata, &conn->base,
                                                     NULL);
            else if (conn && !conn->closed) { /* nobody will ever own it */
                conn->closed = true;
                conn_unref(conn);
            }
            break;
        case OPENED:
            if (live && !conn->closing)
                conn->base.events->opened(&conn->base);
            break;
        case MESSAGE:
            if (live && !conn->closing)
                conn->base.events->message(
                    &conn->base, (struct tether__slice){event->buffer->data, event->buffer->len,
                                                        &event->buffer->owner});
            break;
        case SENT:
            if (live && !conn->closing)
                conn->base.events->sent(&conn->base);
            break;
        case CLOSED:
            if (live && conn->base.events) {
                conn->closed = true;
                conn->base.events->closed(&conn->base, event->status, "the simulation closed it");
            }
            break;
        case TASK:
            event->task->run(event->task);
            break;
    }
    if (event->buffer)
        buffer_release(&event->buffer->owner);
    if (conn)
        conn_unref(conn);
    free(event);
}

static int64_t timers_due(struct tether_sim *sim, struct sim_worker **ret_worker)
{
    int64_t due = TETHER__NEVER;
    for (int i = 0; i < sim->n_workers; i++) {
        struct sim_worker *worker = sim->workers[i];
        if (!worker->started || worker->stopped || worker->paused || worker->dead ||
            !worker->agent->progress_runs)
            continue;
        int64_t next = atomic_load(&worker->agent->progress.next_due);
        if (next < due) {
            due = next;
            *ret_worker = worker;
        }
    }
    return due;
}

static struct event *next_event(struct tether_sim *sim)
{
    TETHER__LIST_FOR_EACH(node, &sim->events) {
        struct event *event = tether__list_entry(node, struct event, node);
        if (!event->worker || !event->worker->paused)
            return event;
    }
    return NULL;
}

/* Runs the earliest thing that is due by `deadline`; else moves the clock there. */
static bool step(struct tether_sim *sim, int64_t deadline)
{
    struct sim_worker *worker = NULL;
    struct event *event = next_event(sim);
    int64_t timers = timers_due(sim, &worker);
    int64_t at = event && event->at <= timers ? event->at : timers;
    if (at > deadline) {
        if (deadline != TETHER__NEVER && deadline > now_ns(sim))
            atomic_store(&sim->clock.ns, deadline);
        return false;
    }
    if (at > now_ns(sim))
        atomic_store(&sim->clock.ns, at);
    if (event && at == event->at) {
        tether__list_remove(&event->node);
        run_event(event);
    } else {
        tether__progress_run_due(&worker->agent->progress, now_ns(sim));
    }
    return true;
}

static bool sim_poll(struct tether__transport *transport, enum tether__side side, int64_t deadline)
{
    struct sim_worker *worker = (struct sim_worker *)transport;
    (void)side;
    if (worker->stopped) {
        while (!tether__list_empty(&worker->conns))
            if (!step(worker->sim, TETHER__NEVER))
                break;
        return false;
    }
    step(worker->sim, deadline);
    return true;
}

bool tether_sim_run(struct tether_sim *sim,
                    bool (*done)(void *userdata),
                    void *userdata,
                    int64_t ms)
{
    int64_t deadline = now_ns(sim) + ms * TETHER__NS_PER_MS;
    while (!(done && done(userdata)))
        if (!step(sim, deadline))
            return done && done(userdata);
    return true;
}

static void sim_submit(void *userdata, struct tether__task *task)
{
    struct tether_sim *sim = userdata;
    schedule(sim, now_ns(sim), TASK, NULL, NULL)->task = task;
}

/* ---- Workers ---- */

static tether_status sim_start(struct tether__transport *transport, tether_error *reterr)
{
    (void)reterr;
    ((struct sim_worker *)transport)->started = true;
    return TETHER_OK;
}

static void sim_wake(struct tether__transport *transport, enum tether__side side)
{
    (void)transport, (void)side;
}

static void break_all(struct sim_worker *worker)
{
    TETHER__LIST_FOR_EACH(node, &worker->conns)
        conn_break(tether__list_entry(node, struct sim_conn, node), TETHER_ECANCELED,
                   TETHER_EUNAVAILABLE);
}

static void sim_stop(struct tether__transport *transport)
{
    struct sim_worker *worker = (struct sim_worker *)transport;
    break_all(worker);
    worker->stopped = true;
    worker->paused = worker->dead = false;
}

static void sim_destroy(struct tether__transport *transport)
{
    struct sim_worker *worker = (struct sim_worker *)transport;
    worker->base.address[0] = '\0'; /* freed with the simulation: events may still name it */
    worker->stopped = true;
}

static void sim_unary_reply(struct tether__unary *unary,
                            tether_status status,
                            const char *error,
                            struct tether__slice payload)
{
    (void)unary, (void)status, (void)error;
    tether__slice_release(payload);
}

static const struct tether__transport_ops sim_ops = {
    .start = sim_start,
    .dial = sim_dial,
    .send = sim_send,
    .close = sim_close,
    .conn_release = sim_conn_release,
    .unary_reply = sim_unary_reply,
    .poll = sim_poll,
    .wake = sim_wake,
    .stop = sim_stop,
    .destroy = sim_destroy,
};

static tether_status make_transport(void *userdata,
                                    const struct tether__transport_opts *opts,
                                    struct tether__transport **ret_transport,
                                    tether_error *reterr)
{
    struct tether_sim *sim = userdata;
    (void)reterr;
    if (sim->n_workers == MAX_WORKERS)
        abort();
    struct sim_worker *worker = must(calloc(1, sizeof *worker));
    worker->base.ops = &sim_ops;
    worker->sim = sim;
    worker->opts = *opts;
    worker->agent = opts->userdata;
    worker->index = sim->n_workers;
    snprintf(worker->base.address, sizeof worker->base.address, "sim:%d", worker->index);
    tether__list_init(&worker->conns);
    sim->workers[sim->n_workers++] = worker;
    *ret_transport = &worker->base;
    return TETHER_OK;
}

struct tether_sim *tether_sim_new(uint64_t seed)
{
    struct tether_sim *sim = must(calloc(1, sizeof *sim));
    sim->clock = TETHER_TEST_CLOCK_INIT;
    sim->random = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    sim->latency_min = 50000;
    sim->latency_max = 150000;
    tether__list_init(&sim->events);
    sim->hooks = (struct tether__agent_hooks){make_transport, &sim->clock.base, sim_submit, sim};
    return sim;
}

void tether_sim_free(struct tether_sim *sim)
{
    for (struct tether__list *node; (node = tether__list_pop_front(&sim->events));)
        run_event(tether__list_entry(node, struct event, node));
    for (int i = 0; i < sim->n_workers; i++)
        free(sim->workers[i]);
    free(sim);
}

const struct tether__agent_hooks *tether_sim_hooks(struct tether_sim *sim)
{
    return &sim->hooks;
}

struct tether_test_clock *tether_sim_clock(struct tether_sim *sim)
{
    return &sim->clock;
}

void tether_sim_set_latency(struct tether_sim *sim, int64_t min_ns, int64_t max_ns)
{
    sim->latency_min = min_ns;
    sim->latency_max = max_ns;
}

/* The latest start of that name. */
static struct sim_worker *find_worker(struct tether_sim *sim, const char *name)
{
    for (int i = sim->n_workers - 1; i >= 0; i--)
        if (sim->workers[i]->base.address[0] && strcmp(sim->workers[i]->agent->name, name) == 0)
            return sim->workers[i];
    abort();
}

void tether_sim_cut(struct tether_sim *sim, const char *a, const char *b)
{
    struct sim_worker *x = find_worker(sim, a), *y = find_worker(sim, b);
    TETHER__LIST_FOR_EACH(node, &x->conns) {
        struct sim_conn *conn = tether__list_entry(node, struct sim_conn, node);
        if (conn->other && conn->other->worker == y)
            conn_break(conn, TETHER_EUNAVAILABLE, TETHER_EUNAVAILABLE);
    }
}

void tether_sim_part(struct tether_sim *sim, const char *a, const char *b, bool parted)
{
    struct sim_worker *x = find_worker(sim, a), *y = find_worker(sim, b);
    x->parted[y->index] = y->parted[x->index] = parted;
    if (parted)
        tether_sim_cut(sim, a, b);
}

void tether_sim_pause(struct tether_sim *sim, const char *name, bool paused)
{
    find_worker(sim, name)->paused = paused;
}

void tether_sim_kill(struct tether_sim *sim, const char *name)
{
    struct sim_worker *worker = find_worker(sim, name);
    break_all(worker);
    worker->dead = worker->paused = true;
}
