/* The functions that the workers of a crowd call on each other, and the things themselves. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/sim/crowd.h"

/* The functions of the type get no userdata, so only one crowd runs at a time. */
static struct crowd *the_crowd;

/* ---- Things ---- */

static void thing_destroy(void *ptr)
{
    struct object *object = ptr;
    struct slot *inside = object->inside;
    if (!object->is_copy) {
        object->thing->state = DESTROYED;
        judge_destruction(object->thing);
    }
    free(object);
    if (inside)
        slot_drop(inside);
}

static tether_status thing_serialise(const void *ptr, tether_buf *ret_bytes, tether_error *reterr)
{
    (void)reterr;
    return tether_buf_printf(ret_bytes, "%d", ((const struct object *)ptr)->thing->number);
}

static struct object *object_new(struct thing *thing, bool is_copy)
{
    struct object *object = calloc(1, sizeof *object);
    if (!object)
        abort();
    object->thing = thing;
    object->is_copy = is_copy;
    return object;
}

static tether_status thing_deserialise(tether_bytes bytes, void **ret_object, tether_error *reterr)
{
    char text[16];
    snprintf(text, sizeof text, "%.*s", (int)bytes.len, (const char *)bytes.data);
    int number = atoi(text);
    if (number < 0 || number >= the_crowd->n_things)
        return tether_error_set(reterr, TETHER_ECORRUPT, "no thing has the number %d", number);
    if (thing_is_unreadable(&the_crowd->things[number]))
        return tether_error_set(reterr, thing_failure(&the_crowd->things[number]),
                                "nobody can read thing %d", number);
    *ret_object = object_new(&the_crowd->things[number], true);
    return TETHER_OK;
}

const tether_type thing_type = {"thing", thing_destroy, thing_serialise, thing_deserialise};

tether_status thing_make(struct start *owner, struct thing *thing, tether_value **ret_value)
{
    if (thing->state != UNMADE)
        blame(owner->crowd, "thing %d is made twice: a call was run twice", thing->number);
    thing->state = ALIVE;
    thing->made_at = tether_sim_now(owner->crowd->sim);
    thing->owner = owner;
    owner->crowd->seen.made++;
    tether_sim_note(owner->crowd->sim, "%s: thing %d is made", owner->name, thing->number);
    return tether_value_new_object(&thing_type, object_new(thing, false), ret_value, NULL);
}

/* ---- Making ---- */

static tether_status make(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    struct start *start = userdata;
    struct message message = message_read(start->crowd, arg);
    if (message.things[0]->fails)
        return tether_error_set(reterr, thing_failure(message.things[0]), "this one is not to be");
    return thing_make(start, message.things[0], ret_value);
}

/* A creation that takes its time. Lives as long as the crowd. */
struct late {
    struct tether__list node;
    struct start *start;
    struct thing *thing;
    tether_reply *reply; /* NULL: answered */
};

static void answer(struct late *late)
{
    tether_value *value = NULL;
    tether_reply *reply = late->reply;
    late->reply = NULL;
    if (late->thing->fails || thing_make(late->start, late->thing, &value) != TETHER_OK)
        tether_reply_error(reply, thing_failure(late->thing), "this one is not to be");
    else
        tether_reply_ok(reply, value);
    tether_value_release(value);
}

static void answer_in_time(void *userdata)
{
    struct late *late = userdata;
    struct crowd *crowd = late->start->crowd;
    if (!late->reply || crowd->over || late->start->dead || late->start->left)
        return; /* the remaining replies are answered at the end */
    if (late->start->paused)
        tether_sim_after(crowd->sim, 50 * TETHER__NS_PER_MS, answer_in_time, late);
    else
        answer(late);
}

static void make_late(void *userdata, const tether_value *arg, tether_reply *reply)
{
    struct start *start = userdata;
    struct crowd *crowd = start->crowd;
    struct late *late = calloc(1, sizeof *late);
    if (!late)
        abort();
    late->start = start;
    late->thing = message_read(crowd, arg).things[0];
    late->reply = reply;
    tether__list_push_back(&crowd->late, &late->node);
    tether_sim_after(crowd->sim, between(crowd, 1, 400) * TETHER__NS_PER_MS, answer_in_time, late);
}

void answer_late(struct crowd *crowd)
{
    TETHER__LIST_FOR_EACH(node, &crowd->late) {
        struct late *late = tether__list_entry(node, struct late, node);
        if (late->reply)
            answer(late);
    }
}

void late_free(struct crowd *crowd)
{
    for (struct tether__list *node; (node = tether__list_pop_front(&crowd->late));)
        free(tether__list_entry(node, struct late, node));
}

/* ---- Methods ---- */

static void check_target(struct start *start, const struct object *object, const tether_value *arg)
{
    struct message message = message_read(start->crowd, arg);
    struct op *op = op_find(start->crowd, message.op);
    if (op)
        op->in_flight = false; /* it has come to the object */
    if (message.things[0] != object->thing)
        blame(start->crowd, "S3: a call about thing %d came to thing %d", message.things[0]->number,
              object->thing->number);
    if (object->thing->state != ALIVE || object->is_copy)
        blame(start->crowd, "a method runs on thing %d, which is not alive", object->thing->number);
}

static tether_status touch(void *userdata,
                           void *object,
                           const tether_value *arg,
                           tether_value **ret_value,
                           tether_error *reterr)
{
    check_target(userdata, object, arg);
    return tether_value_printf(ret_value, reterr, "%d", ((struct object *)object)->thing->number);
}

/* Makes another thing, which the message names second. */
static tether_status spawn(void *userdata,
                           void *object,
                           const tether_value *arg,
                           tether_value **ret_value,
                           tether_error *reterr)
{
    struct start *start = userdata;
    (void)reterr;
    check_target(start, object, arg);
    return thing_make(start, message_read(start->crowd, arg).things[1], ret_value);
}

/* The thing itself holds the reference that comes along, in the place of one that it has. */
static tether_status hold(void *userdata,
                          void *ptr,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    struct start *start = userdata;
    struct object *object = ptr;
    struct message message = message_read(start->crowd, arg);
    tether_rref *rref = tether_value_rref(arg, 0);
    check_target(start, object, arg);
    judge_arrival(start, rref, message.things[1]);
    struct slot *before = object->inside;
    object->inside = start->crowd->closing ? NULL : slot_new(start, rref, message.things[1]);
    if (object->inside) { /* so that no other op picks it */
        tether__list_remove(&object->inside->node);
        tether__list_push_back(&start->inside, &object->inside->node);
    }
    if (before)
        slot_drop(before);
    return tether_value_printf(ret_value, reterr, "%d", object->thing->number);
}

/* ---- Passing on ---- */

static void take(struct start *start, const tether_value *arg, bool keep)
{
    struct crowd *crowd = start->crowd;
    struct message message = message_read(crowd, arg);
    struct op *op = op_find(crowd, message.op);
    if ((size_t)message.n != tether_value_n_rrefs(arg))
        blame(crowd, "op %d: %d things came with %zu references", message.op, message.n,
              tether_value_n_rrefs(arg));
    if (op)
        op->in_flight = false; /* from here on the receiver holds them */
    for (int i = 0; i < message.n; i++) {
        tether_rref *rref = tether_value_rref(arg, (size_t)i);
        judge_arrival(start, rref, message.things[i]);
        if (!keep || crowd->closing)
            continue;
        struct slot *slot = slot_new(start, rref, message.things[i]);
        struct start *next = crowd->latest[between(crowd, 0, crowd->n_workers - 1)];
        if (chance(crowd, 6) && next != start)
            pass_on(start, next, &slot, 1); /* a hot potato */
        if (chance(crowd, 6))
            slot_drop(slot);
    }
}

static tether_status keep(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    (void)ret_value, (void)reterr;
    take(userdata, arg, true);
    return TETHER_OK;
}

static tether_status look(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    (void)ret_value, (void)reterr;
    take(userdata, arg, false);
    return TETHER_OK;
}

/* Gives references in the reply, and may release its own at once. */
static tether_status give(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    struct start *start = userdata;
    struct crowd *crowd = start->crowd;
    struct op *op = op_find(crowd, message_read(crowd, arg).op);
    struct slot *slots[MAX_THINGS_IN_MESSAGE];
    struct thing *things[MAX_THINGS_IN_MESSAGE];
    int n = 0;
    for (int i = between(crowd, 1, 2); i > 0; i--) {
        struct slot *slot = slot_pick(start);
        if (!slot || slot_state(slot) >= TETHER_RREF_BROKEN || (n && slots[0] == slot))
            continue;
        slots[n] = slot;
        things[n++] = slot->thing;
    }
    *ret_value = message_new(crowd, op ? op->number : -1, things, n);
    for (int i = 0; i < n; i++) {
        if (op)
            op_add_thing(op, things[i]);
        if (tether_value_attach(*ret_value, slots[i]->rref, reterr) != TETHER_OK)
            return TETHER_ENOMEM;
    }
    if (op) {
        op->in_flight = true;
        concern_set(op);
    }
    for (int i = 0; i < n; i++)
        if (chance(crowd, 2))
            slot_drop(slots[i]);
    return TETHER_OK;
}

void serve(struct start *start)
{
    static const struct {
        const char *name;
        tether_fn *fn;
        bool pooled;
    } functions[] = {
        {"make", make, false}, {"make_pooled", make, true}, {"keep", keep, false},
        {"look", look, false}, {"keep_pooled", keep, true}, {"give", give, false},
    };
    static const struct {
        const char *name;
        tether_method *method;
        bool run_inline;
    } methods[] = {
        {"touch", touch, true},
        {"touch_pooled", touch, false},
        {"spawn", spawn, true},
        {"hold", hold, true},
    };
    tether_agent *agent = start->agent;
    tether_error error = {0};
    the_crowd = start->crowd;
    for (size_t i = 0; i < TETHER__ARRAY_LEN(functions); i++)
        (functions[i].pooled ? tether_agent_register : tether_agent_register_inline)(
            agent, functions[i].name, functions[i].fn, start, &error);
    for (size_t i = 0; i < TETHER__ARRAY_LEN(methods); i++)
        tether_agent_register_method(agent, &thing_type, methods[i].name, methods[i].method,
                                     methods[i].run_inline, start, &error);
    tether_agent_register_inline(agent, "visit", serve_visit, start, &error);
    tether_agent_register_async(agent, "make_late", make_late, true, start, &error);
    if (error.code != TETHER_OK)
        blame(start->crowd, "registering: %s", error.message);
}
