/* What must hold after every event, whatever it was: S1 to S4, P, L1 and L2 of oracle.c, one
 * function each. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/crowd.h"

#define GRACE_MS 1000

/* ---- S1: who holds a confirmed reference is known to the owner ---- */

static bool owner_knows(const struct slot *slot, const struct start *owner)
{
    struct tether__refs *refs = tether__refs_of(owner->agent);
    tether_rref *rref = tether__owner_find_locked(refs, slot->rref->id);
    for (struct tether__fork *fork = NULL; rref && (fork = tether__fork_next_locked(rref, fork));)
        if (tether__id_equal(fork->key.id, slot->rref->user.fork) &&
            strcmp(fork->holder.peer->name, slot->start->name) == 0)
            return true;
    return false;
}

static void judge_s1(const struct slot *slot)
{
    struct start *owner = slot->thing->owner;
    if (!slot->rref->is_owner && slot_state(slot) == TETHER_RREF_CONFIRMED && start_lives(owner) &&
        !fenced_between(slot->start, owner) && !owner_knows(slot, owner))
        blame(slot->start->crowd, "S1: %s does not know that %s holds its thing %d", owner->name,
              slot->start->name, slot->thing->number);
}

/* ---- S2: what is on its way is alive ---- */

static void judge_s2(struct op *op)
{
    for (int i = 0; op->in_flight && i < op->n_things; i++) {
        const struct thing *thing = op->things[i];
        if (thing->state == DESTROYED && op_carries(op, thing))
            blame(op->by->crowd, "S2: op %d carries thing %d of %s, which is destroyed", op->number,
                  thing->number, thing->owner->name);
    }
}

/* ---- S3: a thing has one id for ever, and lives where it was made ---- */

static void judge_s3(struct start *owner)
{
    struct tether__refs *refs = tether__refs_of(owner->agent);
    struct tether__map_iter it = TETHER__MAP_ITER;
    for (tether_rref_id *key; (key = tether__map_next(&refs->owners, &it));) {
        tether_rref *rref = tether__container_of(key, struct tether_rref, id);
        struct object *object = tether_value_object(rref->owner.value, &thing_type);
        if (!object)
            continue;
        if (object->thing->owner != owner)
            blame(owner->crowd, "S3: %s has thing %d of %s", owner->name, object->thing->number,
                  object->thing->owner->name);
        if (!tether__id_is_set(object->thing->id))
            object->thing->id = rref->id;
        else if (!tether__id_equal(object->thing->id, rref->id))
            blame(owner->crowd, "S3: thing %d has two ids", object->thing->number);
    }
}

/* ---- P: nobody waits for what has been and gone ---- */

static void judge_p(struct start *owner)
{
    struct tether__refs *refs = tether__refs_of(owner->agent);
    struct tether__map_iter it = TETHER__MAP_ITER;
    for (tether_rref_id *id; (id = tether__map_next(&refs->awaited, &it));) {
        bool is_there = tether__owner_find_locked(refs, *id) != NULL;
        for (int i = 0; !is_there && i < owner->crowd->n_things; i++) {
            const struct thing *thing = &owner->crowd->things[i];
            if (thing->state == DESTROYED && tether__id_equal(thing->id, *id))
                blame(owner->crowd, "P: %s has somebody wait for thing %d, which is gone",
                      owner->name, thing->number);
        }
    }
}

/* ---- S4: forks do not come back ---- */

/* Every fork that an owner has had. */
struct fork_seen {
    tether_rref_id id; /* the key */
    bool dead;
    unsigned seen_at;
};

static void see_fork(struct start *owner, tether_rref_id id, unsigned now)
{
    tether_rref_id *found = tether__map_get(&owner->forks, &id);
    struct fork_seen *fork = found ? tether__container_of(found, struct fork_seen, id) : NULL;
    if (!fork) {
        fork = calloc(1, sizeof *fork);
        if (!fork)
            abort();
        fork->id = id;
        tether__map_put(&owner->forks, &fork->id);
    }
    if (fork->dead)
        blame(owner->crowd, "S4: fork %u.%u.%llu of %s lives again", id.creator, id.incarnation,
              (unsigned long long)id.counter, owner->name);
    fork->seen_at = now;
}

static void judge_s4(struct start *owner)
{
    static unsigned now;
    struct tether__refs *refs = tether__refs_of(owner->agent);
    struct tether__map_iter it = TETHER__MAP_ITER;
    now++;
    for (tether_rref_id *key; (key = tether__map_next(&refs->owners, &it));) {
        tether_rref *rref = tether__container_of(key, struct tether_rref, id);
        for (struct tether__fork *fork = NULL; (fork = tether__fork_next_locked(rref, fork));)
            see_fork(owner, fork->key.id, now);
    }
    it = (struct tether__map_iter)TETHER__MAP_ITER;
    for (tether_rref_id *key; (key = tether__map_next(&owner->forks, &it));) {
        struct fork_seen *fork = tether__container_of(key, struct fork_seen, id);
        fork->dead |= fork->seen_at != now;
    }
}

void oracle_free(struct start *start)
{
    struct tether__map_iter it = TETHER__MAP_ITER;
    for (tether_rref_id *key; (key = tether__map_next(&start->forks, &it));)
        free(tether__container_of(key, struct fork_seen, id));
    tether__map_fini(&start->forks);
}

/* ---- L1: what nobody wants goes ---- */

static void want(struct tether__list *slots, int64_t now)
{
    TETHER__LIST_FOR_EACH(node, slots)
        tether__list_entry(node, struct slot, node)->thing->wanted_at = now;
}

/* Since when nobody has wanted it, and nothing has happened that may hold up the news. */
static int64_t idle_since(const struct thing *thing)
{
    int64_t since = thing->wanted_at;
    if (since < thing->owner->crowd->disturbed_at)
        since = thing->owner->crowd->disturbed_at;
    return since < thing->owner->resumed_at ? thing->owner->resumed_at : since;
}

static void judge_l1(struct crowd *crowd, int64_t now)
{
    for (int i = 0; i < crowd->n_starts; i++)
        if (!crowd->starts[i]->dead && !crowd->starts[i]->left) {
            want(&crowd->starts[i]->slots, now);
            want(&crowd->starts[i]->inside, now);
        }
    TETHER__LIST_FOR_EACH(node, &crowd->ops) {
        struct op *op = tether__list_entry(node, struct op, node);
        for (int i = 0; !op->by->dead && !op->by->left && i < op->n_things; i++)
            op->things[i]->wanted_at = now;
    }
    for (int i = 0; i < crowd->n_things; i++) {
        struct thing *thing = &crowd->things[i];
        if (thing->state == ALIVE && start_works(thing->owner) &&
            now - idle_since(thing) > (LEASE_MS + GRACE_MS) * TETHER__NS_PER_MS)
            blame(crowd, "L1: thing %d of %s is alive, and nobody has wanted it for %lld ms",
                  thing->number, thing->owner->name,
                  (long long)((now - idle_since(thing)) / TETHER__NS_PER_MS));
    }
}

/* ---- L2: nothing is late ---- */

static void judge_l2(const struct op *op, int64_t now)
{
    if (start_works(op->by) && now > op_limit(op))
        blame(op->by->crowd, "L2: op %d of %s has not ended, and is %lld ms late", op->number,
              op->by->name, (long long)((now - op->deadline) / TETHER__NS_PER_MS));
}

void judge_step(void *userdata, tether_agent *agent)
{
    struct crowd *crowd = userdata;
    if (!agent || crowd->over || crowd->violation[0])
        return;
    int64_t now = tether_sim_now(crowd->sim);
    for (int i = 0; i < crowd->n_starts; i++) {
        struct start *start = crowd->starts[i];
        if (!start_lives(start))
            continue;
        if (start->agent == agent) {
            judge_s3(start);
            judge_s4(start);
            judge_p(start);
        }
        TETHER__LIST_FOR_EACH(node, &start->slots)
            judge_s1(tether__list_entry(node, struct slot, node));
        TETHER__LIST_FOR_EACH(node, &start->inside)
            judge_s1(tether__list_entry(node, struct slot, node));
    }
    TETHER__LIST_FOR_EACH(node, &crowd->ops) {
        judge_s2(tether__list_entry(node, struct op, node));
        judge_l2(tether__list_entry(node, struct op, node), now);
    }
    judge_l1(crowd, now);
}
