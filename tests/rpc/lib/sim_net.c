/* The simulated network: its events, its clock, its faults. See sim_net.h. */
#include "tests/rpc/lib/sim_net.h"

#include <stdlib.h>

#include "rpc/peer/stream.h"
#include "tests/rpc/lib/sim_internal.h"

void *tether_sim_must(void *ptr)
{
    if (!ptr)
        abort();
    return ptr;
}

int64_t tether_sim_clock_ns(const struct tether_sim *sim)
{
    return tether__clock_now_ns(&sim->clock.base);
}

int64_t tether_sim_now(const struct tether_sim *sim)
{
    const struct tether_test_clock start = TETHER_TEST_CLOCK_INIT;
    return tether_sim_clock_ns(sim) - atomic_load(&start.ns);
}

uint64_t tether_sim_random(struct tether_sim *sim, uint64_t n)
{
    sim->random ^= sim->random << 13; /* xorshift64 */
    sim->random ^= sim->random >> 7;
    sim->random ^= sim->random << 17;
    return n ? sim->random % n : 0;
}

/* ---- Events ---- */

struct tether_sim_event *tether_sim_schedule(struct tether_sim *sim,
                                             int64_t at,
                                             enum tether_sim_what what,
                                             struct tether_sim_worker *worker,
                                             struct tether_sim_conn *conn)
{
    struct tether_sim_event *event = tether_sim_must(calloc(1, sizeof *event));
    event->at = at;
    event->what = what;
    event->worker = worker;
    event->conn = conn;
    if (conn)
        conn->refs++;
    struct tether__list *after = sim->events.prev; /* behind all that are not later */
    while (after != &sim->events &&
           tether__list_entry(after, struct tether_sim_event, node)->at > at)
        after = after->prev;
    tether__list_push_front(after, &event->node);
    return event;
}

static void free_event(struct tether_sim_event *event)
{
    tether_sim_buffer_release(event->buffer);
    if (event->conn)
        tether_sim_conn_unref(event->conn);
    free(event);
}

/* A conn that broke before it was accepted never gets an owner, so drop it here. */
static void accept_conn(struct tether_sim_worker *worker, struct tether_sim_conn *conn)
{
    if (conn->closing) {
        conn->closed = true;
        tether_sim_conn_unref(conn);
    } else {
        worker->opts.events->accepted(worker->opts.userdata, &conn->base, NULL);
    }
}

/* Unless the stream is over, or has begun again. */
static bool may_come_again(const struct tether_sim_event *event)
{
    const struct tether_sim_conn *from = event->conn->other;
    return from && !event->conn->closing && from->hellos == event->hellos;
}

static void run_event(struct tether_sim_event *event)
{
    struct tether_sim_conn *conn = event->conn;
    bool live = conn && !conn->closed, open = live && !conn->closing;
    switch (event->what) {
        case SIM_ACCEPT:
            if (live)
                accept_conn(event->worker, conn);
            break;
        case SIM_OPENED:
            if (open)
                conn->base.events->opened(&conn->base, NULL);
            break;
        case SIM_MESSAGE:
            if (event->is_copy && !may_come_again(event))
                break;
            tether_sim_count_arrival(conn, open);
            conn->worker->sim->faults.duplicated += event->is_copy;
            if (open) {
                tether_sim_trace_message(conn, event->buffer);
                conn->base.events->message(
                    &conn->base, (struct tether__slice){event->buffer->data, event->buffer->len,
                                                        &event->buffer->owner});
            }
            break;
        case SIM_SENT:
            if (open && conn->base.events->sent)
                conn->base.events->sent(&conn->base);
            break;
        case SIM_CLOSED:
            if (live && conn->base.events) {
                conn->closing = conn->closed = true;
                conn->base.events->closed(&conn->base, event->status, "the simulation closed it");
            }
            break;
        case SIM_TASK:
            event->task->run(event->task);
            break;
        case SIM_FN:
            event->fn(event->userdata);
            break;
    }
    free_event(event);
}

/* ---- Running ---- */

static bool has_timers(const struct tether_sim_worker *worker)
{
    return worker->started && !worker->stopped && !worker->paused &&
           worker->agent->network.poller_runs;
}

static int64_t timers_due(struct tether_sim *sim, struct tether_sim_worker **ret_worker)
{
    int64_t due = TETHER__NEVER;
    for (int i = 0; i < sim->n_workers; i++) {
        struct tether_sim_worker *worker = sim->workers[i];
        if (!has_timers(worker))
            continue;
        int64_t next = atomic_load(&worker->agent->network.poller.next_due);
        if (worker->timers_first && next <= tether_sim_clock_ns(sim))
            next = INT64_MIN;
        if (next < due) {
            due = next;
            *ret_worker = worker;
        }
    }
    return due;
}

static struct tether_sim_event *next_event(struct tether_sim *sim)
{
    TETHER__LIST_FOR_EACH(node, &sim->events) {
        struct tether_sim_event *event = tether__list_entry(node, struct tether_sim_event, node);
        if (!event->worker || !event->worker->paused)
            return event;
    }
    return NULL;
}

/* An agent's threads flush before they poll; these have no threads. */
static void flush_all(struct tether_sim *sim)
{
    for (int i = 0; i < sim->n_workers; i++)
        if (has_timers(sim->workers[i]))
            tether__agent_flush(sim->workers[i]->agent);
}

bool tether_sim_step(struct tether_sim *sim, int64_t deadline)
{
    struct tether_sim_worker *worker = NULL;
    flush_all(sim);
    struct tether_sim_event *event = next_event(sim);
    int64_t timers = timers_due(sim, &worker);
    int64_t at = event && event->at <= timers ? event->at : timers;
    if (at > deadline || at == TETHER__NEVER) {
        if (deadline != TETHER__NEVER && deadline > tether_sim_clock_ns(sim))
            atomic_store(&sim->clock.ns, deadline);
        return false;
    }
    if (at > tether_sim_clock_ns(sim))
        atomic_store(&sim->clock.ns, at);
    if (event && at == event->at) {
        worker = event->worker;
        tether__list_remove(&event->node);
        run_event(event);
    } else {
        worker->timers_first = false;
        tether__poller_run_due(&worker->agent->network.poller, tether_sim_clock_ns(sim));
    }
    if (sim->on_step)
        sim->on_step(sim->on_step_userdata, worker ? worker->agent : NULL);
    return true;
}

bool tether_sim_run_own(struct tether_sim_worker *worker)
{
    TETHER__LIST_FOR_EACH(node, &worker->sim->events) {
        struct tether_sim_event *event = tether__list_entry(node, struct tether_sim_event, node);
        if (event->worker != worker)
            continue;
        tether__list_remove(node);
        run_event(event);
        return true;
    }
    return false;
}

bool tether_sim_run(struct tether_sim *sim,
                    bool (*done)(void *userdata),
                    void *userdata,
                    int64_t ms)
{
    int64_t deadline = tether_sim_clock_ns(sim) + ms * TETHER__NS_PER_MS;
    while (!(done && done(userdata)))
        if (!tether_sim_step(sim, deadline))
            return done && done(userdata);
    return true;
}

void tether_sim_after(struct tether_sim *sim,
                      int64_t ns,
                      void (*fn)(void *userdata),
                      void *userdata)
{
    struct tether_sim_event *event =
        tether_sim_schedule(sim, tether_sim_clock_ns(sim) + ns, SIM_FN, NULL, NULL);
    event->fn = fn;
    event->userdata = userdata;
}

void tether_sim_on_step(struct tether_sim *sim,
                        void (*fn)(void *userdata, tether_agent *agent),
                        void *userdata)
{
    sim->on_step = fn;
    sim->on_step_userdata = userdata;
}

/* ---- Life ---- */

static struct tether_sim_worker *find_worker(struct tether_sim *sim, const tether_agent *agent)
{
    for (int i = 0; i < sim->n_workers; i++)
        if (sim->workers[i]->agent == agent)
            return sim->workers[i];
    abort();
}

static void submit(void *userdata, tether_agent *agent, struct tether__task *task)
{
    struct tether_sim *sim = userdata;
    tether_sim_schedule(sim, tether_sim_clock_ns(sim), SIM_TASK, find_worker(sim, agent), NULL)
        ->task = task;
}

/* Grows faster than workers start, also those that start before the clock first moves. */
static int64_t wall_clock(void *sim)
{
    return 1000 + tether_sim_now(sim) / TETHER__NS_PER_MS;
}

struct tether_sim *tether_sim_new(uint64_t seed)
{
    struct tether_sim *sim = tether_sim_must(calloc(1, sizeof *sim));
    sim->clock = TETHER_TEST_CLOCK_INIT;
    sim->random = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    sim->latency_min = 50000;
    sim->latency_max = 150000;
    tether__list_init(&sim->events);
    sim->hooks = (struct tether__agent_hooks){
        .make_transport = tether_sim_make_transport,
        .clock = &sim->clock.base,
        .submit = submit,
        .wall_clock = wall_clock,
        .userdata = sim,
    };
    return sim;
}

void tether_sim_free(struct tether_sim *sim)
{
    for (struct tether__list *node; (node = tether__list_pop_front(&sim->events));)
        free_event(tether__list_entry(node, struct tether_sim_event, node));
    for (int i = 0; i < sim->n_workers; i++)
        free(sim->workers[i]);
    free(sim);
}

struct tether__agent_hooks *tether_sim_hooks(struct tether_sim *sim)
{
    return &sim->hooks;
}

struct tether_test_clock *tether_sim_clock(struct tether_sim *sim)
{
    return &sim->clock;
}

/* ---- Faults ---- */

void tether_sim_set_latency(struct tether_sim *sim, int64_t min_ns, int64_t max_ns)
{
    sim->latency_min = min_ns;
    sim->latency_max = max_ns;
}

void tether_sim_slow(struct tether_sim *sim, tether_agent *from, tether_agent *to, int64_t ns)
{
    tether_sim_note(sim, "%s to %s: %lld ms slower", from->name, to->name,
                    (long long)(ns / TETHER__NS_PER_MS));
    find_worker(sim, from)->slow[find_worker(sim, to)->index] = ns;
    sim->faults.slowed += ns > 0;
}

void tether_sim_duplicate(struct tether_sim *sim, int one_in, int64_t late_ns)
{
    tether_sim_note(sim, "one message in %d comes twice", one_in);
    sim->duplicate_one_in = one_in;
    sim->duplicate_late = late_ns;
}

const struct tether_sim_faults *tether_sim_faults(const struct tether_sim *sim)
{
    return &sim->faults;
}

static void cut(struct tether_sim_worker *x, struct tether_sim_worker *y, bool lose)
{
    TETHER__LIST_FOR_EACH(node, &x->conns) {
        struct tether_sim_conn *conn = tether__list_entry(node, struct tether_sim_conn, node);
        if (conn->other && conn->other->worker == y)
            tether_sim_break(conn, TETHER_EUNAVAILABLE, TETHER_EUNAVAILABLE, lose);
    }
}

void tether_sim_cut(struct tether_sim *sim, tether_agent *a, tether_agent *b, bool lose)
{
    tether_sim_note(sim, "%s and %s are cut%s", a->name, b->name, lose ? "" : ", nothing is lost");
    cut(find_worker(sim, a), find_worker(sim, b), lose);
    sim->faults.cut++;
}

void tether_sim_part(struct tether_sim *sim, tether_agent *a, tether_agent *b, bool parted)
{
    struct tether_sim_worker *x = find_worker(sim, a), *y = find_worker(sim, b);
    tether_sim_note(sim, "%s and %s are %s", a->name, b->name, parted ? "parted" : "joined again");
    x->parted[y->index] = y->parted[x->index] = parted;
    if (parted)
        cut(x, y, true);
    sim->faults.parted += parted;
}

void tether_sim_pause(struct tether_sim *sim, tether_agent *agent, bool paused)
{
    struct tether_sim_worker *worker = find_worker(sim, agent);
    tether_sim_note(sim, "%s %s", agent->name, paused ? "pauses" : "goes on");
    worker->timers_first = worker->paused && !paused && tether_sim_random(sim, 2);
    sim->faults.paused += paused && !worker->paused;
    worker->paused = paused;
}

void tether_sim_share_address(struct tether_sim *sim, tether_agent *a, tether_agent *b)
{
    struct tether_sim_worker *x = find_worker(sim, a), *y = find_worker(sim, b);
    tether_sim_note(sim, "%s and its namesake share an address", a->name);
    x->shares = y;
    y->shares = x;
}

void tether_sim_trust_nobody(struct tether_sim *sim)
{
    sim->trusts_nobody = true;
}

void tether_sim_kill(struct tether_sim *sim, tether_agent *agent)
{
    struct tether_sim_worker *worker = find_worker(sim, agent);
    tether_sim_note(sim, "%s dies", agent->name);
    tether_sim_break_all(worker);
    worker->dead = worker->paused = true;
    sim->faults.killed++;
}

void tether_sim_heal(struct tether_sim *sim)
{
    tether_sim_note(sim, "the network heals");
    sim->duplicate_one_in = 0;
    for (int i = 0; i < sim->n_workers; i++)
        for (int j = 0; j < sim->n_workers; j++) {
            sim->workers[i]->parted[j] = false;
            sim->workers[i]->slow[j] = 0;
        }
}
