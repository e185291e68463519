/* Workers and their starts, slots and ops. See crowd.h. */
#include "tests/sim/crowd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

/* Outlives its slot, for a notice cannot be taken back. */
struct watch {
    struct watch *next;
    struct slot *slot;
};

static void *zeroed(size_t size)
{
    void *ptr = calloc(1, size);
    if (!ptr)
        abort();
    return ptr;
}

bool chance(struct crowd *crowd, int one_in)
{
    return tether_sim_random(crowd->sim, (uint64_t)one_in) == 0;
}

int between(struct crowd *crowd, int low, int high)
{
    return low + (int)tether_sim_random(crowd->sim, (uint64_t)(high - low + 1));
}

/* ---- Starts ---- */

struct start *crowd_start_of(struct crowd *crowd, const char *caller_name)
{
    return crowd->latest[atoi(caller_name + 1)];
}

static void must(struct crowd *crowd, tether_status st, const tether_error *error)
{
    if (st != TETHER_OK)
        blame(crowd, "a worker did not start: %s", error->message);
}

static unsigned long hash_fork(const void *key, unsigned long seed)
{
    return tether__hash(key, sizeof(tether_rref_id), seed);
}

static bool equal_forks(const void *a, const void *b)
{
    return tether__id_equal(*(const tether_rref_id *)a, *(const tether_rref_id *)b);
}

static void name_of(const struct crowd *crowd, int worker, char ret_name[8])
{
    snprintf(ret_name, 8, "%c%d", crowd->has_other_name[worker] ? 'v' : 'w', worker);
}

void crowd_rename(struct crowd *crowd, int worker)
{
    char from[8], to[8];
    name_of(crowd, worker, from);
    crowd->has_other_name[worker] = !crowd->has_other_name[worker];
    name_of(crowd, worker, to);
    crowd_store_pass_id(crowd, from, to);
    crowd->seen.renamed++;
}

/* Without a draw, so that seeds mean the same worlds as before. The seeds of a short range differ.
 */
static size_t slice_of(uint64_t seed)
{
    uint64_t mixed = seed * 0x9e3779b97f4a7c15U >> 32;
    return mixed % SLICED_ONE_IN ? 0 : 1 + mixed / SLICED_ONE_IN % 2;
}

struct start *crowd_start(struct crowd *crowd, int worker)
{
    static const struct tether__map_type by_fork = {hash_fork, equal_forks};
    if (crowd->n_starts == MAX_STARTS)
        return crowd->latest[worker];
    tether_error error = {0};
    struct start *start = zeroed(sizeof *start);
    start->crowd = crowd;
    start->worker = worker;
    start->version = 1;
    name_of(crowd, worker, start->name);
    tether__list_init(&start->slots);
    tether__list_init(&start->inside);
    tether__map_init(&start->forks, &by_fork);
    must(crowd,
         tether_agent_new(
             TETHER_AGENT_OPTS(.name = start->name, .store = crowd->store, .lease_ms = LEASE_MS,
                               .timeout_ms = TIMEOUT_MS, .shutdown_timeout_ms = SHUTDOWN_MS,
                               .hooks = tether_sim_hooks(crowd->sim)),
             &start->agent, &error),
         &error);
    if (crowd->bulky) {
        start->agent->lane_limits.inline_bytes = 100;
        start->agent->lane_limits.fragment_bytes = 300;
    }
    if (crowd->waiting_slice)
        tether__refs_of(start->agent)->waiting_slice = crowd->waiting_slice;
    serve(start);
    must(crowd, tether_agent_start(start->agent, &error), &error);
    tether_sim_note(crowd->sim, "%s starts, incarnation %llu", start->name,
                    (unsigned long long)start->agent->self.incarnation);
    crowd->disturbed_at = tether_sim_now(crowd->sim);
    if (crowd->latest[worker]) {
        crowd->latest[worker]->replaced = true;
        crowd->seen.restarted++;
    }
    crowd->starts[crowd->n_starts++] = start;
    crowd->latest[worker] = start;
    leftovers_meet(crowd, start);
    return start;
}

static void log_line(void *userdata, tether_log_level level, const char *area, const char *message)
{
    (void)level;
    tether_sim_note(userdata, "[%s] %s", area, message);
}

struct crowd *crowd_new(uint64_t seed, bool trace)
{
    struct crowd *crowd = zeroed(sizeof *crowd);
    tether_error error = {0};
    tether__map_set_seed(seed);
    crowd->seed = seed;
    crowd->sim = tether_sim_new(seed);
    tether_sim_trace(crowd->sim, trace);
    tether_set_log(trace ? TETHER_LOG_DEBUG : TETHER_LOG_NONE, log_line, crowd->sim);
    tether__list_init(&crowd->ops);
    tether__list_init(&crowd->late);
    must(crowd, crowd_store_new(crowd, &error), &error);
    crowd->bulky = chance(crowd, 2);
    crowd->n_workers = between(crowd, 3, MAX_WORKERS);
    crowd->two_runs = seed / WEATHERS % TWO_RUNS_ONE_IN == 0;
    crowd->waiting_slice = slice_of(seed);
    if (crowd->two_runs)
        leftovers_start(crowd);
    for (int i = 0; i < crowd->n_workers; i++)
        crowd_start(crowd, i);
    tether_sim_on_step(crowd->sim, judge_step, crowd);
    return crowd;
}

void crowd_free(struct crowd *crowd)
{
    crowd->over = true;
    answer_late(crowd);
    for (int i = 0; i < crowd->n_starts; i++) {
        struct start *start = crowd->starts[i];
        TETHER__LIST_FOR_EACH(node, &start->slots)
            slot_drop(tether__list_entry(node, struct slot, node));
    }
    for (int i = 0; i < crowd->n_starts; i++)
        tether_agent_release(crowd->starts[i]->agent);
    leftovers_release(crowd);
    answer_late(crowd);
    for (int i = 0; i < crowd->n_starts; i++) {
        oracle_free(crowd->starts[i]);
        free(crowd->starts[i]);
    }
    for (struct watch *watch = crowd->watches, *next; watch; watch = next) {
        next = watch->next;
        free(watch);
    }
    crowd_store_free(crowd);
    tether_sim_free(crowd->sim);
    leftovers_free(crowd);
    spells_free(crowd);
    late_free(crowd);
    free(crowd);
}

/* ---- Slots ---- */

static void on_lost(tether_rref *rref, void *userdata)
{
    struct watch *watch = userdata;
    (void)rref;
    if (watch->slot)
        watch->slot->n_lost++;
}

struct slot *slot_new(struct start *start, tether_rref *rref, struct thing *thing)
{
    struct slot *slot = zeroed(sizeof *slot);
    slot->start = start;
    slot->rref = tether_rref_retain(rref);
    slot->thing = thing;
    tether__list_push_back(&start->slots, &slot->node);
    if (!tether_rref_is_owner(rref)) {
        slot->watch = zeroed(sizeof *slot->watch);
        *slot->watch = (struct watch){start->crowd->watches, slot};
        start->crowd->watches = slot->watch;
        tether_rref_on_owner_lost(rref, on_lost, slot->watch, NULL);
    }
    return slot;
}

void slot_drop(struct slot *slot)
{
    tether_rref *rref = slot->rref;
    thing_want(slot->thing, slot->start->crowd);
    tether__list_remove(&slot->node);
    if (slot->watch)
        slot->watch->slot = NULL;
    free(slot);
    tether_rref_release(rref); /* may destroy things, which looks at slots */
}

tether_rref_state slot_state(const struct slot *slot)
{
    return (tether_rref_state)slot->rref->state;
}

struct slot *slot_pick(struct start *start)
{
    int n = 0;
    TETHER__LIST_FOR_EACH(node, &start->slots)
        n++;
    if (!n)
        return NULL;
    int left = between(start->crowd, 0, n - 1);
    TETHER__LIST_FOR_EACH(node, &start->slots)
        if (left-- == 0)
            return tether__list_entry(node, struct slot, node);
    return NULL;
}

struct thing *thing_new(struct crowd *crowd, int worker)
{
    if (crowd->n_things == MAX_THINGS)
        return NULL;
    struct thing *thing = &crowd->things[crowd->n_things];
    thing->number = crowd->n_things++;
    thing->worker = worker;
    thing_want(thing, crowd);
    return thing;
}

void thing_want(struct thing *thing, struct crowd *crowd)
{
    thing->wanted_at = tether_sim_now(crowd->sim);
}

void thing_ask(struct thing *thing, struct start *by, const struct op *op)
{
    const struct thing *parent = thing->parent;
    struct start *latest = by->crowd->latest[thing->worker];
    struct start *host = !parent ? latest : parent->owner ? parent->owner : parent->asked;
    thing->creator = by;
    thing->asked = host && strcmp(host->name, latest->name) != 0 ? host : latest;
    thing->due = op->deadline;
    thing->start_unknown = !knows_start(by, thing->asked);
    thing->session_numbers[0] = session_number_of(by, thing->asked);
    thing->session_numbers[1] = session_number_of(thing->asked, by);
}

void thing_asked(struct thing *thing, const tether_rref *rref)
{
    if (!tether__id_is_set(thing->id))
        thing->id = tether_rref_get_id(rref);
}

/* ---- Messages ---- */

tether_value *message_new(struct crowd *crowd, int op, struct thing *const *things, int n)
{
    char text[1200];
    int at = snprintf(text, sizeof text, "%d", op);
    for (int i = 0; i < n; i++)
        at += snprintf(text + at, sizeof text - (size_t)at, " %d", things[i]->number);
    if (crowd->bulky && chance(crowd, 3)) { /* goes in pieces */
        int len = between(crowd, 301, 1100);
        memset(text + at, ' ', (size_t)(len - at));
        at = len;
    }
    tether_value *value = NULL;
    if (tether_value_new(tether_bytes_of(text, (size_t)at), &value, NULL) != TETHER_OK)
        abort();
    return value;
}

struct message message_read(struct crowd *crowd, const tether_value *value)
{
    struct message message = {0};
    char *at = (char *)(uintptr_t)tether_value_str(value);
    message.op = (int)strtol(at, &at, 10);
    while (message.n < MAX_THINGS_IN_MESSAGE) {
        char *end;
        long number = strtol(at, &end, 10);
        if (end == at)
            break;
        if (number < 0 || number >= crowd->n_things) {
            blame(crowd, "a message about thing %ld, which is none", number);
            break;
        }
        message.things[message.n++] = &crowd->things[number];
        at = end;
    }
    return message;
}

/* ---- Ops ---- */

struct op *op_new(struct start *by, enum op_kind kind, int timeout_ms)
{
    struct crowd *crowd = by->crowd;
    struct op *op = zeroed(sizeof *op);
    op->number = crowd->n_ops++;
    op->kind = kind;
    op->by = by;
    op->deadline = tether_sim_now(crowd->sim) + timeout_ms * TETHER__NS_PER_MS;
    tether__list_push_back(&crowd->ops, &op->node);
    return op;
}

void op_add_thing(struct op *op, struct thing *thing)
{
    op->things[op->n_things++] = thing;
}

struct op *op_find(struct crowd *crowd, int number)
{
    TETHER__LIST_FOR_EACH(node, &crowd->ops) {
        struct op *op = tether__list_entry(node, struct op, node);
        if (op->number == number)
            return op;
    }
    return NULL;
}

/* References that came in a reply are held now. */
static void take_reply(struct op *op, tether_value *value)
{
    struct start *start = op->by;
    struct message message = message_read(start->crowd, value);
    if ((size_t)message.n != tether_value_n_rrefs(value))
        blame(start->crowd, "op %d: %d things came with %zu references", op->number, message.n,
              tether_value_n_rrefs(value));
    for (int i = 0; i < message.n && !start->crowd->closing; i++) {
        tether_rref *rref = tether_value_rref(value, (size_t)i);
        judge_arrival(start, rref, message.things[i]);
        slot_new(start, rref, message.things[i]);
    }
}

static void check_number(struct op *op, const tether_value *value)
{
    struct object *object = tether_value_object(value, &thing_type);
    int number = object ? object->thing->number : atoi(tether_value_str(value));
    if (number != op->things[0]->number)
        blame(op->by->crowd, "S3: op %d asked thing %d and thing %d answered", op->number,
              op->things[0]->number, number);
}

static void on_done(tether_future *future, void *userdata)
{
    struct op *op = userdata;
    struct crowd *crowd = op->by->crowd;
    tether_error error = {0};
    tether_status st = tether_future_status(future, &error);
    tether_sim_note(crowd->sim, "%s: op %d ends: %s %s", op->by->name, op->number,
                    tether_status_name(st), st == TETHER_OK ? "" : error.message);
    for (int i = 0; i < op->n_things; i++)
        thing_want(op->things[i], crowd);
    if (!crowd->over && start_lives(op->by)) {
        op->in_flight = false;
        judge_end(op, st, &error);
        if (st == TETHER_OK && op->kind == OP_ASK)
            take_reply(op, tether_future_value(future));
        if (st == TETHER_OK && (op->kind == OP_FETCH || op->kind == OP_TOUCH))
            check_number(op, tether_future_value(future));
        if (st != TETHER_OK && op->kind == OP_MAKE)
            op->things[0]->broken = st;
    }
    tether__list_remove(&op->node);
    free(op);
}

void op_run(struct op *op, tether_future *future)
{
    tether_future_then(future, on_done, op);
    tether_future_release(future);
}
