/* The ops that workers begin: drawn from the seed, one after another. chaos.c chooses the worker.
 */
#include <stdlib.h>

#include "tests/sim/crowd.h"

struct start *any_worker(struct crowd *crowd)
{
    return crowd->latest[between(crowd, 0, crowd->n_workers - 1)];
}

struct start *other_worker(struct crowd *crowd, const struct start *but)
{
    struct start *start = any_worker(crowd);
    return start->worker == but->worker ? crowd->latest[(start->worker + 1) % crowd->n_workers]
                                        : start;
}

static int draw_timeout(struct crowd *crowd)
{
    return chance(crowd, 5) ? between(crowd, 1, 60) : between(crowd, 200, 3000);
}

/* Notes the state of the reference when the op begins: a use of a broken reference fails with the
 * cause of the break. */
static void note_state(struct op *op, const struct slot *slot)
{
    if (op->broken == TETHER_OK && slot_state(slot) >= TETHER_RREF_BROKEN)
        op->broken =
            slot_state(slot) == TETHER_RREF_BROKEN ? slot->rref->cause_code : TETHER_ESHUTDOWN;
}

static void create(struct start *by)
{
    struct crowd *crowd = by->crowd;
    struct start *to = any_worker(crowd);
    struct thing *thing = thing_new(crowd, to->worker);
    if (!thing)
        return;
    static const char *const makers[] = {"make", "make_pooled", "make_late"};
    thing->fails = chance(crowd, 12);
    int timeout_ms = draw_timeout(crowd);
    struct op *op = op_new(by, OP_MAKE, timeout_ms);
    op_add_thing(op, thing);
    concern_set(op);
    thing_ask(thing, by, op);
    tether_value *arg = message_new(crowd, op->number, &thing, 1);
    const char *creator = makers[between(crowd, 0, 2)];
    tether_sim_note(crowd->sim, "%s: op %d: %s thing %d on %s, %d ms", by->name, op->number,
                    creator, thing->number, to->name, timeout_ms);
    tether_rref *rref = tether_remote(by->agent, to->name, creator, arg, timeout_ms);
    thing_asked(thing, rref);
    tether_value_release(arg);
    if (!chance(crowd, 10)) /* else it releases it at once */
        slot_new(by, rref, thing);
    op_run(op, tether_rref_confirmed(rref));
    tether_rref_release(rref);
}

static void wrap(struct start *by)
{
    struct thing *thing = thing_new(by->crowd, by->worker);
    tether_value *value = NULL;
    tether_rref *rref = NULL;
    if (!thing)
        return;
    if (thing_make(by, thing, &value) != TETHER_OK ||
        tether_rref_new(by->agent, value, &rref, NULL) != TETHER_OK)
        blame(by->crowd, "an object could not be wrapped");
    tether_value_release(value);
    slot_new(by, rref, thing);
    tether_rref_release(rref);
}

void pass_on(struct start *from, struct start *to, struct slot *const *slots, int n)
{
    static const char *const takers[] = {"keep", "keep_pooled", "look"};
    struct crowd *crowd = from->crowd;
    int timeout_ms = draw_timeout(crowd);
    struct op *op = op_new(from, OP_PASS, timeout_ms);
    for (int i = 0; i < n; i++) {
        op_add_thing(op, slots[i]->thing);
        note_state(op, slots[i]);
    }
    tether_value *arg = message_new(crowd, op->number, op->things, n);
    for (int i = 0; i < n; i++)
        tether_value_attach(arg, slots[i]->rref, NULL);
    op->to = to;
    concern_set(op);
    op->in_flight = op->broken == TETHER_OK;
    const char *taker = takers[between(crowd, 0, 2)];
    tether_sim_note(crowd->sim, "%s: op %d: passes thing %d and %d more to %s, %s, %d ms",
                    from->name, op->number, op->things[0]->number, n - 1, to->name, taker,
                    timeout_ms);
    op_run(op, tether_rpc_async(from->agent, to->name, taker, arg, timeout_ms));
    tether_value_release(arg);
}

static void pass(struct start *by)
{
    struct crowd *crowd = by->crowd;
    struct slot *slots[MAX_THINGS_IN_MESSAGE];
    int n = 0;
    for (int i = chance(crowd, 3) ? between(crowd, 1, MAX_THINGS_IN_MESSAGE) : 1; i > 0; i--) {
        struct slot *slot = slot_pick(by);
        bool again = false;
        for (int j = 0; j < n; j++)
            again |= slots[j] == slot;
        if (slot && !again)
            slots[n++] = slot;
    }
    if (!n)
        return;
    pass_on(by, other_worker(crowd, by), slots, n);
    for (int i = 0; i < n; i++)
        if (chance(crowd, 3))
            slot_drop(slots[i]);
}

static void ask(struct start *by)
{
    struct crowd *crowd = by->crowd;
    struct start *to = other_worker(crowd, by);
    int timeout_ms = draw_timeout(crowd);
    struct op *op = op_new(by, OP_ASK, timeout_ms);
    op->to = to;
    concern_set(op);
    tether_value *arg = message_new(crowd, op->number, NULL, 0);
    tether_sim_note(crowd->sim, "%s: op %d: asks %s for something, %d ms", by->name, op->number,
                    to->name, timeout_ms);
    op_run(op, tether_rpc_async(by->agent, to->name, "give", arg, timeout_ms));
    tether_value_release(arg);
}

static void fetch(struct start *by)
{
    struct slot *slot = slot_pick(by);
    if (!slot)
        return;
    int timeout_ms = draw_timeout(by->crowd);
    struct op *op = op_new(by, OP_FETCH, timeout_ms);
    op_add_thing(op, slot->thing);
    note_state(op, slot);
    concern_set(op);
    tether_sim_note(by->crowd->sim, "%s: op %d: fetches thing %d, %d ms", by->name, op->number,
                    slot->thing->number, timeout_ms);
    tether_future *future = tether_rref_to_here_async(slot->rref, timeout_ms);
    if (chance(by->crowd, 4))
        slot_drop(slot);
    op_run(op, future);
}

static void use(struct start *by)
{
    struct slot *slot = slot_pick(by);
    struct crowd *crowd = by->crowd;
    if (!slot)
        return;
    int timeout_ms = draw_timeout(crowd);
    struct op *op = op_new(by, OP_TOUCH, timeout_ms);
    op_add_thing(op, slot->thing);
    note_state(op, slot);
    concern_set(op);
    op->in_flight = op->broken == TETHER_OK;
    tether_value *arg = message_new(crowd, op->number, op->things, 1);
    tether_sim_note(crowd->sim, "%s: op %d: touches thing %d, %d ms", by->name, op->number,
                    slot->thing->number, timeout_ms);
    tether_future *future =
        tether_rref_async(slot->rref, chance(crowd, 2) ? "touch" : "touch_pooled", arg, timeout_ms);
    tether_value_release(arg);
    if (chance(crowd, 4))
        slot_drop(slot);
    op_run(op, future);
}

/* A thing makes another on its worker. */
static void spawn(struct start *by)
{
    struct slot *slot = slot_pick(by);
    struct crowd *crowd = by->crowd;
    struct thing *thing = slot ? thing_new(crowd, slot->thing->worker) : NULL;
    if (!thing)
        return;
    int timeout_ms = draw_timeout(crowd);
    struct op *op = op_new(by, OP_MAKE, timeout_ms);
    op_add_thing(op, thing);
    thing->parent = slot->thing;
    thing_ask(thing, by, op);
    op_add_thing(op, slot->thing);
    note_state(op, slot);
    concern_set(op);
    struct thing *const both[] = {slot->thing, thing};
    tether_value *arg = message_new(crowd, op->number, both, 2);
    tether_sim_note(crowd->sim, "%s: op %d: thing %d is to make thing %d, %d ms", by->name,
                    op->number, slot->thing->number, thing->number, timeout_ms);
    tether_rref *rref = tether_rref_remote(slot->rref, "spawn", arg, timeout_ms);
    thing_asked(thing, rref);
    tether_value_release(arg);
    if (chance(crowd, 4))
        slot_drop(slot);
    slot_new(by, rref, thing);
    op_run(op, tether_rref_confirmed(rref));
    tether_rref_release(rref);
}

/* A thing is given a reference to an older one, to hold. Older only: a circle would keep itself. */
static void entrust(struct start *by)
{
    struct slot *holder = slot_pick(by), *held = slot_pick(by);
    struct crowd *crowd = by->crowd;
    if (!holder || !held || held->thing->number >= holder->thing->number)
        return;
    int timeout_ms = draw_timeout(crowd);
    struct op *op = op_new(by, OP_PASS, timeout_ms);
    op_add_thing(op, holder->thing);
    op_add_thing(op, held->thing);
    note_state(op, holder);
    note_state(op, held);
    concern_set(op);
    op->in_flight = op->broken == TETHER_OK;
    tether_value *arg = message_new(crowd, op->number, op->things, 2);
    tether_value_attach(arg, held->rref, NULL);
    tether_sim_note(crowd->sim, "%s: op %d: gives thing %d to thing %d, %d ms", by->name,
                    op->number, held->thing->number, holder->thing->number, timeout_ms);
    tether_future *future = tether_rref_async(holder->rref, "hold", arg, timeout_ms);
    tether_value_release(arg);
    if (chance(crowd, 3))
        slot_drop(held);
    if (chance(crowd, 3))
        slot_drop(holder);
    op_run(op, future);
}

static void drop(struct start *by)
{
    struct slot *slot = slot_pick(by);
    if (!slot)
        return;
    tether_sim_note(by->crowd->sim, "%s: drops thing %d", by->name, slot->thing->number);
    slot_drop(slot);
}

void op_begin(struct start *by)
{
    static const struct {
        int weight;
        void (*fn)(struct start *by);
    } jobs[] = {
        {20, create}, {6, wrap},  {30, pass},   {16, ask},  {8, fetch},
        {10, use},    {4, spawn}, {4, entrust}, {16, drop},
    };
    int sum = 0, at;
    for (size_t i = 0; i < TETHER__ARRAY_LEN(jobs); i++)
        sum += jobs[i].weight;
    at = between(by->crowd, 0, sum - 1);
    for (size_t i = 0; i < TETHER__ARRAY_LEN(jobs); i++)
        if ((at -= jobs[i].weight) < 0) {
            jobs[i].fn(by);
            return;
        }
}
