/* Checks after every event: S1 to S4, P, L1 and L2 of oracle.c, one function each.
 *
 * Nothing is judged that cannot have changed since it was judged last: an event changes the worker
 * that it happens to (the test's own events may change all of them), a worker with deferred
 * streams changes when the next event begins, and L1 and L2 need a look only from the moment at
 * which the first object or operation can be late. */
#include <stdlib.h>
#include <string.h>

#include "rpc/peer/session.h"
#include "rpc/peer/stream.h"
#include "rpc/peer/table.h"
#include "tests/sim/crowd.h"

#define STUCK_LOOK_NS \
    (100 * TETHER__NS_PER_MS) /* how often L1 is judged after a loss of the store */

/* ---- S1: the owner knows every holder of a confirmed reference ---- */

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

static void judge_s1(struct slot *slot, const struct start *owner)
{
    if (slot->rref->is_owner || slot_state(slot) != TETHER_RREF_CONFIRMED || !start_lives(owner))
        return;
    if (owner_knows(slot, owner))
        slot->known_in = owner->version;
    else if (fenced_between(slot->start, owner))
        excuse_once(owner->crowd, &slot->excuses, EXCUSE_UNKNOWN_FENCED);
    else
        blame(slot->start->crowd, "S1: %s does not know that %s holds its thing %d", owner->name,
              slot->start->name, slot->thing->number);
}

static void judge_slots(const struct start *holder, const struct tether__list *slots)
{
    TETHER__LIST_FOR_EACH(node, slots) {
        struct slot *slot = tether__list_entry(node, struct slot, node);
        const struct start *owner = slot->thing->owner;
        if (owner && (holder->touched || owner->touched) && slot->known_in != owner->version)
            judge_s1(slot, owner);
    }
}

/* ---- S2: things whose references are in flight are alive ---- */

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

/* ---- P: no request waits for a thing that exists or has been destroyed ---- */

/* A reference that its creator passed on before it had met a start of the owner means any start:
 * another one than that which made the object cannot know that the object has gone. */
static bool means_any_start(struct thing *thing, const struct start *owner)
{
    return thing->owner != owner && thing->start_unknown &&
           excuse_once(owner->crowd, &thing->excuses, EXCUSE_OTHER_START);
}

/* Requests for an object that is there are answered by the event that has brought it. An expected
 * object may be known only by a reference that has overtaken its creation: earlier requests wait
 * on.
 */
static void judge_answered(const struct start *owner,
                           const tether_rref *rref,
                           const struct tether__awaited *awaited)
{
    bool fork_waits = !tether__list_empty(&awaited->forks) && !rref->owner.expected;
    bool use_waits = !tether__list_empty(&awaited->uses) && !rref->owner.making;
    if (fork_waits || use_waits)
        blame(owner->crowd, "P: %s has somebody wait for %s of %u.%u.%llu, which is there",
              owner->name, fork_waits ? "a fork" : "a use", awaited->id.creator,
              awaited->id.incarnation, (unsigned long long)awaited->id.counter);
}

/* Whether a slice has left requests to the timer, which goes on soon. */
static bool has_rest(struct start *owner)
{
    const struct tether__refs *refs = tether__refs_of(owner->agent);
    int64_t now = tether_sim_now(owner->crowd->sim);
    if (!owner->crowd->waiting_slice ||
        (tether__list_empty(&refs->answering) && tether__list_empty(&refs->passed))) {
        owner->rest_since = 0;
        return false;
    }
    if (!owner->rest_since || owner->rest_since < owner->resumed_at)
        owner->rest_since = now;
    if (now - owner->rest_since > REST_NS)
        blame(owner->crowd, "P: %s has left requests to its timer for %lld ms", owner->name,
              (long long)((now - owner->rest_since) / TETHER__NS_PER_MS));
    return true;
}

static void judge_p(struct start *owner)
{
    struct tether__refs *refs = tether__refs_of(owner->agent);
    struct tether__map_iter it = TETHER__MAP_ITER;
    if (has_rest(owner))
        return;
    for (tether_rref_id *id; (id = tether__map_next(&refs->awaited, &it));) {
        const tether_rref *rref = tether__owner_find_locked(refs, *id);
        bool is_there = rref != NULL;
        if (is_there)
            judge_answered(owner, rref, tether__container_of(id, struct tether__awaited, id));
        if (!is_there && !tether__may_come_locked(refs, *id))
            blame(owner->crowd,
                  "P: %s has somebody wait for %u.%u.%llu, which cannot come any more", owner->name,
                  id->creator, id->incarnation, (unsigned long long)id->counter);
        for (int i = 0; !is_there && i < owner->crowd->n_things; i++) {
            struct thing *thing = &owner->crowd->things[i];
            if (thing->state == DESTROYED && tether__id_equal(thing->id, *id) &&
                !means_any_start(thing, owner))
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

/* ---- Whether there is anything new for S3 and S4 ---- */

/* An object, or the fork of one. */
struct entry {
    const void *at;
    const tether_value *value;
    tether_rref_id id;
};

/* Whether this is what was there before, in the same place; else it is from now on. */
static bool is_known(struct start *owner, size_t i, struct entry entry)
{
    const struct entry *old = i < owner->n_entries ? &owner->entries[i] : NULL;
    if (old && old->at == entry.at && old->value == entry.value &&
        tether__id_equal(old->id, entry.id))
        return true;
    if (i == owner->max_entries) {
        owner->max_entries = i ? 2 * i : 64;
        owner->entries = realloc(owner->entries, owner->max_entries * sizeof *owner->entries);
        if (!owner->entries)
            abort();
    }
    owner->entries[i] = entry;
    return false;
}

static bool has_changed(struct start *owner)
{
    struct tether__refs *refs = tether__refs_of(owner->agent);
    struct tether__map_iter it = TETHER__MAP_ITER;
    size_t n = 0;
    bool known = true;
    for (tether_rref_id *key; (key = tether__map_next(&refs->owners, &it));) {
        tether_rref *rref = tether__container_of(key, struct tether_rref, id);
        known &= is_known(owner, n++, (struct entry){rref, rref->owner.value, rref->id});
        for (struct tether__fork *fork = NULL; (fork = tether__fork_next_locked(rref, fork));)
            known &= is_known(owner, n++, (struct entry){fork, NULL, fork->key.id});
    }
    known &= n == owner->n_entries;
    owner->n_entries = n;
    owner->version += !known;
    return !known;
}

void oracle_free(struct start *start)
{
    free(start->entries);
    struct tether__map_iter it = TETHER__MAP_ITER;
    for (tether_rref_id *key; (key = tether__map_next(&start->forks, &it));)
        free(tether__container_of(key, struct fork_seen, id));
    tether__map_fini(&start->forks);
}

/* ---- L1: things without references are destroyed ---- */

/* Whether the owner of the thing has met a later start of this worker. A later start may leave
 * before it meets any worker. Then the replaced one goes on, and the owner keeps the things that it
 * holds. */
static bool owner_met_later(const struct thing *thing, const struct start *start)
{
    if (!thing->owner || thing->owner->dead || thing->owner->left)
        return true;
    struct tether__peer *peer = tether__agent_find_peer(thing->owner->agent, start->name);
    bool met = peer && peer->pairing.peer_incarnation > start->agent->self.incarnation;
    tether__peer_release(peer);
    return met;
}

/* The end of a slot or of an operation notes the time itself (crowd.c). So this looks only at what
 * exists now. A broken reference holds nothing, from the second look that finds it broken. The
 * exception is the handle of a creation that has failed: the owner hears of it when the handle is
 * released (docs/rref-protocol.md). */
static void want(struct start *start, struct tether__list *slots, int64_t now)
{
    TETHER__LIST_FOR_EACH(node, slots) {
        struct slot *slot = tether__list_entry(node, struct slot, node);
        struct thing *thing = slot->thing;
        if (start->leaving)
            thing->left_at = now;
        else if (!start->replaced && !slot->was_broken)
            thing->wanted_at = now;
        else if (thing->creator == start && thing->broken)
            thing->failed_at = now;
        else if (start->replaced && !slot->was_broken && !owner_met_later(thing, start))
            thing->unaware_at = now;
        slot->was_broken = slot_state(slot) == TETHER_RREF_BROKEN;
    }
}

static int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Whether it has met a worker to which none of its requests can go at this moment. */
static bool has_undialled_peer(const struct start *start)
{
    struct tether__peer *peer;
    for (uint64_t at = 0; (peer = tether__agent_next_peer_locked(start->agent, &at));)
        if (peer->pairing.peer_incarnation && !peer->session->out.up)
            return true;
    return false;
}

/* Whether a reference has arrived somewhere and its owner has not answered yet, or cannot be told
 * that the reference was released. */
static bool is_stuck_anywhere(const struct crowd *crowd)
{
    for (int i = 0; i < crowd->n_starts; i++) {
        if (crowd->starts[i]->dead || crowd->starts[i]->left)
            continue;
        struct tether_rref_counts n = tether_rref_counts(crowd->starts[i]->agent);
        if (n.pending_owners || n.pending_users || n.pending_children ||
            has_undialled_peer(crowd->starts[i]))
            return true;
    }
    return false;
}

/* While the store is lost, a worker cannot dial one that has only dialled it. So a reference that
 * has arrived there stays pending, and its sender's pin keeps the object; or its release waits to
 * be sent. The reference may also arrive after the creation of its object was given up before it
 * was sent. The owner then lets its receiver wait for the default timeout. */
static void note_stuck(struct crowd *crowd, int64_t now)
{
    int64_t until = crowd->store_is_lost || store_is_founders(crowd) ? now
                    : crowd->store_back_at ? crowd->store_back_at + TIMEOUT_MS * TETHER__NS_PER_MS
                                           : -IDLE_NS;
    if (now > until + IDLE_NS)
        return;
    if (is_stuck_anywhere(crowd))
        crowd->stuck_at = now;
    if (crowd->l1_at > now + STUCK_LOOK_NS)
        crowd->l1_at = now + STUCK_LOOK_NS;
}

int64_t idle_limit(const struct crowd *crowd)
{
    int64_t since = later(crowd->disturbed_at, crowd->stuck_at);
    if (crowd->store_back_at)
        since = later(since, crowd->store_back_at + TIMEOUT_MS * TETHER__NS_PER_MS);
    for (int i = 0; i < crowd->n_things; i++) {
        const struct thing *thing = &crowd->things[i];
        since = later(since, later(thing->wanted_at, later(thing->failed_at, thing->left_at)));
        since = later(since, thing->unaware_at);
    }
    return since + IDLE_NS;
}

/* Until when the thing may be kept: the first rule that allows it is counted. */
static int64_t keep_until(struct thing *thing, int64_t now)
{
    struct crowd *crowd = thing->owner->crowd;
    const struct {
        int64_t since;
        enum excuse rule;
    } rules[] = {
        {crowd->disturbed_at, EXCUSE_KEPT_FOR_FAULT}, {thing->left_at, EXCUSE_KEPT_FOR_LEAVING},
        {thing->failed_at, EXCUSE_KEPT_FOR_FAILED},   {thing->unaware_at, EXCUSE_KEPT_UNAWARE},
        {crowd->stuck_at, EXCUSE_KEPT_STORE_LOST},
    };
    int64_t limit = thing->wanted_at + IDLE_NS;
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rules) && now > limit; i++)
        if (rules[i].since && now <= rules[i].since + IDLE_NS) {
            excuse_once(crowd, &thing->excuses, rules[i].rule);
            limit = rules[i].since + IDLE_NS;
        }
    return limit;
}

static void judge_l1(struct crowd *crowd, int64_t now)
{
    for (int i = 0; i < crowd->n_starts; i++)
        if (!crowd->starts[i]->dead && !crowd->starts[i]->left) {
            want(crowd->starts[i], &crowd->starts[i]->slots, now);
            want(crowd->starts[i], &crowd->starts[i]->inside, now);
        }
    TETHER__LIST_FOR_EACH(node, &crowd->ops) {
        struct op *op = tether__list_entry(node, struct op, node);
        for (int i = 0; !op->by->dead && !op->by->left && i < op->n_things; i++)
            op->things[i]->wanted_at = now;
    }
    crowd->l1_at = now + IDLE_NS; /* for those that are made later */
    note_stuck(crowd, now);
    for (int i = 0; i < crowd->n_things; i++) {
        struct thing *thing = &crowd->things[i];
        if (thing->state != ALIVE || !start_works(thing->owner))
            continue;
        int64_t limit = keep_until(thing, now);
        if (limit < crowd->l1_at)
            crowd->l1_at = limit;
        if (now > limit)
            blame(crowd, "L1: thing %d of %s is alive, and nobody has wanted it for %lld ms",
                  thing->number, thing->owner->name,
                  (long long)((now - thing->wanted_at) / TETHER__NS_PER_MS));
    }
}

/* ---- L2: nothing is late ---- */

static void judge_l2(struct crowd *crowd, int64_t now)
{
    crowd->l2_at = now + L2_GRACE_NS; /* for those that begin, or whose worker goes on, later */
    TETHER__LIST_FOR_EACH(node, &crowd->ops) {
        struct op *op = tether__list_entry(node, struct op, node);
        int64_t limit;
        if (!start_works(op->by))
            continue;
        bool is_late = op_is_late(op, now, &limit);
        if (limit < crowd->l2_at)
            crowd->l2_at = limit;
        if (is_late)
            blame(crowd, "L2: op %d of %s has not ended, and is %lld ms late", op->number,
                  op->by->name, (long long)((now - op->deadline) / TETHER__NS_PER_MS));
    }
}

/* ---- R: a session outlasts cuts, and the loss of the store ---- */

/* An end that has not met the other believes the directory. */
static void judge_r_unmet(struct start *a, const struct start *b, int j)
{
    uint64_t now = a == b || a->met_in[j] ? 0 : session_number_of(a, b);
    if (now && a->seen_in[j] && a->seen_in[j] != now)
        excuse(a->crowd, EXCUSE_NOT_MET);
    a->seen_in[j] = now;
}

static void judge_r(struct crowd *crowd)
{
    for (int i = 0; i < crowd->n_starts; i++)
        for (int j = 0; j < crowd->n_starts; j++) {
            struct start *a = crowd->starts[i], *b = crowd->starts[j];
            uint64_t now = a == b ? 0 : session_met(a, b);
            if (!now || !session_met(b, a)) {
                judge_r_unmet(a, b, j);
                continue;
            }
            if (a->met_in[j] && a->met_in[j] != now)
                blame(crowd, "R: the session of %s with %s has ended, and only connections broke",
                      a->name, b->name);
            a->met_in[j] = now;
        }
}

/* ---- All of it ---- */

void touch_all(struct crowd *crowd)
{
    for (int i = 0; i < crowd->n_starts; i++)
        crowd->starts[i]->touched = true;
}

static void judge_tables(struct start *start)
{
    if (start->touched && start_lives(start) && has_changed(start)) {
        judge_s3(start);
        judge_s4(start);
    }
}

void judge_step(void *userdata, tether_agent *agent)
{
    struct crowd *crowd = userdata;
    if (!agent)
        touch_all(crowd);
    if (!agent || crowd->over || crowd->violation[0])
        return;
    int64_t now = tether_sim_now(crowd->sim);
    for (int i = 0; i < crowd->n_starts; i++) {
        crowd->starts[i]->touched |= crowd->starts[i]->agent == agent;
        judge_tables(crowd->starts[i]);
    }
    for (int i = 0; i < crowd->n_starts; i++) {
        struct start *start = crowd->starts[i];
        if (!start_lives(start))
            continue;
        if (start->agent == agent)
            judge_p(start);
        judge_slots(start, &start->slots);
        judge_slots(start, &start->inside);
    }
    if (crowd->sessions_last)
        judge_r(crowd);
    if (crowd->two_runs || crowd->n_founders)
        judge_runs(crowd);
    TETHER__LIST_FOR_EACH(node, &crowd->ops)
        judge_s2(tether__list_entry(node, struct op, node));
    if (now > crowd->l2_at)
        judge_l2(crowd, now);
    if (now > crowd->l1_at)
        judge_l1(crowd, now);
    for (int i = 0; i < crowd->n_starts; i++)
        crowd->starts[i]->touched =
            start_lives(crowd->starts[i]) && tether__agent_has_deferred(crowd->starts[i]->agent);
}
