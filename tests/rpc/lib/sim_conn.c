/* The transport of simulated agents: connections that take virtual time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rpc/call/call.h"
#include "tests/rpc/lib/sim_internal.h"

/* So many dials reach the right worker after one that reached the wrong worker. A start that the
 * transport does not authenticate needs two. */
#define SURE_DIALS 3

static int64_t arrival(const struct tether_sim_worker *from, const struct tether_sim_worker *to)
{
    struct tether_sim *sim = from->sim;
    int64_t spread = sim->latency_max - sim->latency_min + 1;
    return tether_sim_clock_ns(sim) + sim->latency_min + from->slow[to->index] +
           (int64_t)tether_sim_random(sim, (uint64_t)spread);
}

/* As above, but not before what `conn` has sent already: it is a stream. */
static int64_t arrival_in_order(struct tether_sim_conn *conn)
{
    int64_t when = arrival(conn->worker, conn->other->worker);
    if (when > conn->last_arrival)
        conn->last_arrival = when;
    return conn->last_arrival;
}

/* ---- Conns ---- */

static struct tether_sim_conn *conn_new(struct tether_sim_worker *worker,
                                        struct tether_sim_worker *with)
{
    struct tether_sim_conn *conn = tether_sim_must(calloc(1, sizeof *conn));
    conn->base.transport = &worker->base;
    conn->base.peer = "simulated";
    conn->worker = worker;
    conn->with = with;
    conn->refs = 1; /* the owner's, until conn_release() */
    tether__list_push_back(&worker->conns, &conn->node);
    return conn;
}

void tether_sim_conn_unref(struct tether_sim_conn *conn)
{
    if (--conn->refs == 0) {
        tether__list_remove(&conn->node);
        free(conn);
    }
}

/* Both ends learn that it is over: this one soon, the other when the news has travelled, behind
 * what was sent before unless that is lost. */
void tether_sim_break(struct tether_sim_conn *conn,
                      tether_status here,
                      tether_status there,
                      bool lose)
{
    struct tether_sim *sim = conn->worker->sim;
    struct tether_sim_conn *other = conn->other;
    if (!conn->closing)
        tether_sim_schedule(sim, tether_sim_clock_ns(sim), SIM_CLOSED, conn->worker, conn)->status =
            here;
    conn->closing = true;
    if (!other)
        return;
    int64_t at = arrival_in_order(conn);
    conn->other = other->other = NULL;
    if (!other->closing)
        tether_sim_schedule(sim, at, SIM_CLOSED, other->worker, other)->status = there;
    other->closing |= lose;
}

void tether_sim_break_all(struct tether_sim_worker *worker)
{
    TETHER__LIST_FOR_EACH(node, &worker->conns)
        tether_sim_break(tether__list_entry(node, struct tether_sim_conn, node), TETHER_ECANCELED,
                         TETHER_EUNAVAILABLE, tether_sim_random(worker->sim, 2));
}

static struct tether_sim_worker *find_address(struct tether_sim *sim, const char *address)
{
    for (int i = 0; i < sim->n_workers; i++)
        if (strcmp(sim->workers[i]->base.address, address) == 0)
            return sim->workers[i];
    return NULL;
}

static bool reachable(const struct tether_sim_worker *a, const struct tether_sim_worker *b)
{
    return b->started && !b->stopped && !b->dead && !a->dead && !a->parted[b->index];
}

/* Returns the worker that answers a dial that is meant for `target`. */
static struct tether_sim_worker *who_answers(struct tether_sim_worker *worker,
                                             struct tether_sim_worker *target)
{
    struct tether_sim_worker *other = target->shares;
    int *sure = &target->sure[worker->index];
    if (!other || other == worker || (*sure)-- > 0)
        return target;
    *sure = 0;
    if (!reachable(worker, other) || tether_sim_random(worker->sim, 2))
        return target;
    *sure = SURE_DIALS;
    worker->sim->faults.strayed++;
    return other;
}

static struct tether__conn *sim_dial(struct tether__transport *transport,
                                     const char *address,
                                     const struct tether__conn_events *events,
                                     void *userdata)
{
    struct tether_sim_worker *worker = (struct tether_sim_worker *)transport;
    struct tether_sim *sim = worker->sim;
    struct tether_sim_worker *target = find_address(sim, address);
    if (worker->stopped)
        return NULL;
    if (target)
        target = who_answers(worker, target);
    struct tether_sim_conn *conn = conn_new(worker, target);
    conn->base.events = events;
    conn->base.userdata = userdata;
    if (!target || !reachable(worker, target)) {
        tether_sim_break(conn, TETHER_EUNAVAILABLE, TETHER_OK, true);
        return &conn->base;
    }
    struct tether_sim_conn *theirs = conn_new(target, worker);
    conn->dialled = true;
    conn->dial = theirs->dial = ++sim->n_dials;
    conn->other = theirs;
    theirs->other = conn;
    conn->last_arrival = arrival(worker, target);
    theirs->last_arrival = conn->last_arrival + arrival(target, worker) - tether_sim_clock_ns(sim);
    tether_sim_schedule(sim, conn->last_arrival, SIM_ACCEPT, target, theirs);
    tether_sim_schedule(sim, theirs->last_arrival, SIM_OPENED, worker, conn);
    return &conn->base;
}

static void buffer_retain(struct tether__slice_owner *owner)
{
    tether__container_of(owner, struct tether_sim_buffer, owner)->refs++;
}

static void buffer_release(struct tether__slice_owner *owner)
{
    tether_sim_buffer_release(tether__container_of(owner, struct tether_sim_buffer, owner));
}

void tether_sim_buffer_release(struct tether_sim_buffer *buffer)
{
    if (buffer && --buffer->refs == 0)
        free(buffer);
}

/* A batch of one frame (field 2) without a number, whose body is a state (field 2) or part of the
 * handshake (fields 9 to 11). */
static bool is_hello(const struct tether_sim_buffer *buffer)
{
    size_t at = 1;
    while (at < buffer->len && buffer->data[at] & 0x80) /* the frame's length */
        at++;
    if (at + 1 >= buffer->len || buffer->data[0] != 0x12)
        return false;
    uint8_t tag = buffer->data[at + 1];
    return tag == 0x12 || tag == 0x4a || tag == 0x52 || tag == 0x5a;
}

/* As the seed has it, the message comes once more, later. */
static void perhaps_again(struct tether_sim_conn *conn, struct tether_sim_buffer *buffer)
{
    struct tether_sim *sim = conn->worker->sim;
    if (!sim->duplicate_one_in || tether_sim_random(sim, (uint64_t)sim->duplicate_one_in) != 0)
        return;
    int64_t late = 1 + (int64_t)tether_sim_random(sim, (uint64_t)sim->duplicate_late);
    struct tether_sim_event *event = tether_sim_schedule(
        sim, conn->last_arrival + late, SIM_MESSAGE, conn->other->worker, conn->other);
    buffer->refs++;
    event->buffer = buffer;
    event->is_copy = true;
    event->hellos = conn->hellos;
}

void tether_sim_count_arrival(struct tether_sim_conn *conn, bool is_heard)
{
    struct tether_sim_faults *faults = &conn->worker->sim->faults;
    faults->lost += !is_heard;
    TETHER__LIST_FOR_EACH(node, &conn->worker->conns) {
        struct tether_sim_conn *later = tether__list_entry(node, struct tether_sim_conn, node);
        if (later->with == conn->with && later->dialled == conn->dialled &&
            later->dial > conn->dial && later->has_heard) {
            faults->reordered++;
            break;
        }
    }
    conn->has_heard = true;
}

/* Whether a message of `len` bytes is sent at once: small ones are, at one end of a connection. The
 * end alternates from connection to connection. */
static bool sends_at_once(const struct tether_sim_conn *conn, size_t len)
{
    return len < 64 << 10 && (conn->dial % 2 == 0) == conn->dialled;
}

static bool sim_send(struct tether__conn *base, const struct tether__slice *pieces, size_t n)
{
    struct tether_sim_conn *conn = (struct tether_sim_conn *)base;
    struct tether_sim *sim = conn->worker->sim;
    size_t len = 0, at = 0;
    for (size_t i = 0; i < n; i++)
        len += pieces[i].len;
    struct tether_sim_buffer *buffer = tether_sim_must(malloc(sizeof *buffer + len));
    *buffer = (struct tether_sim_buffer){{buffer_retain, buffer_release, len}, 1, len};
    for (size_t i = 0; i < n; i++) {
        if (pieces[i].len)
            memcpy(buffer->data + at, pieces[i].data, pieces[i].len);
        at += pieces[i].len;
        tether__slice_release(pieces[i]);
    }
    if (!conn->other) {
        sim->faults.lost++;
        tether_sim_buffer_release(buffer);
    } else {
        tether_sim_schedule(sim, arrival_in_order(conn), SIM_MESSAGE, conn->other->worker,
                            conn->other)
            ->buffer = buffer;
        if (is_hello(buffer))
            conn->hellos++;
        else
            perhaps_again(conn, buffer);
    }
    if (sends_at_once(conn, len))
        return true;
    tether_sim_schedule(sim, tether_sim_clock_ns(sim), SIM_SENT, conn->worker, conn);
    return false;
}

static void sim_close(struct tether__conn *base, bool polite)
{
    struct tether_sim_conn *conn = (struct tether_sim_conn *)base;
    bool lose = tether_sim_random(conn->worker->sim, 2);
    /* A polite close brings what was sent before it. */
    tether_sim_break(conn, polite ? TETHER_OK : TETHER_ECANCELED, TETHER_OK, lose && !polite);
}

static void sim_conn_release(struct tether__conn *base)
{
    tether_sim_conn_unref((struct tether_sim_conn *)base);
}

/* ---- Workers ---- */

/* A thread of this worker waits: the world goes on meanwhile. */
static bool sim_poll(struct tether__transport *transport, enum tether__side side, int64_t deadline)
{
    struct tether_sim_worker *worker = (struct tether_sim_worker *)transport;
    (void)side;
    if (worker->stopped) {
        while (tether_sim_run_own(worker))
            ;
        return false;
    }
    tether_sim_step(worker->sim, deadline);
    while (worker->paused && !worker->dead && tether_sim_step(worker->sim, TETHER__NEVER))
        ;
    return true;
}

/* Always false: messages that have arrived are delivered by the next step of the simulation. */
static bool sim_poll_ready(struct tether__transport *transport, enum tether__side side)
{
    (void)transport, (void)side;
    return false;
}

static tether_status sim_start(struct tether__transport *transport, tether_error *reterr)
{
    (void)reterr;
    ((struct tether_sim_worker *)transport)->started = true;
    return TETHER_OK;
}

static void sim_wake(struct tether__transport *transport, enum tether__side side)
{
    (void)transport, (void)side;
}

static void sim_stop(struct tether__transport *transport)
{
    struct tether_sim_worker *worker = (struct tether_sim_worker *)transport;
    tether_sim_break_all(worker);
    worker->stopped = true;
    worker->paused = worker->dead = false;
}

static void sim_destroy(struct tether__transport *transport)
{
    struct tether_sim_worker *worker = (struct tether_sim_worker *)transport;
    worker->base.address[0] = '\0'; /* its memory stays until the simulation ends */
    worker->agent = NULL;
    worker->stopped = true;
}

static const struct tether__transport_ops sim_ops = {
    .start = sim_start,
    .dial = sim_dial,
    .send = sim_send,
    .close = sim_close,
    .conn_release = sim_conn_release,
    .poll = sim_poll,
    .poll_ready = sim_poll_ready,
    .wake = sim_wake,
    .stop = sim_stop,
    .destroy = sim_destroy,
};

tether_status tether_sim_make_transport(void *userdata,
                                        const struct tether__transport_opts *opts,
                                        struct tether__transport **ret_transport,
                                        tether_error *reterr)
{
    struct tether_sim *sim = userdata;
    (void)reterr;
    if (sim->n_workers == TETHER_SIM_MAX_STARTS)
        abort();
    struct tether_sim_worker *worker = tether_sim_must(calloc(1, sizeof *worker));
    worker->base.ops = &sim_ops;
    worker->base.vouches = !sim->trusts_nobody; /* unless the test trusts no peer, its workers never
                                                   impersonate another */
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
