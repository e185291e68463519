/* The promises, checked from outside: the oracle sees all workers at once. Each promise is named
 * where it is judged, and in what is printed when it is broken.
 *
 *   S1  A thing is destroyed only when no worker that lives, and whose session with the owner is
 *       not fenced, holds a confirmed reference.
 *   S2  A reference on its way keeps the thing alive, unless its sender died or a session among
 *       sender, receiver and owner was fenced; it is then refused before user code runs.
 *   S3  A message about a thing never affects another (serve.c, crowd.c: numbers are compared).
 *   S4  A fork is unknown, then live, then dead, and never comes back.
 *   L1  An object without references is destroyed within a lease and a second.
 *   L2  Every operation ends by its deadline and 100 ms.
 *   P   No request waits for an object that exists or has been destroyed.
 *   R   A session lasts while only connections break and the store is lost.
 *   T   Workers of two runs of a group never serve each other (leftover.c).
 *
 * This file judges what happens: a thing goes, a reference arrives, an operation ends, and the end
 * of it all. steps.c looks for all of it after every event.
 */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rpc/peer/session.h"
#include "rpc/peer/table.h"
#include "tests/sim/crowd.h"

bool excuse(struct crowd *crowd, enum excuse rule)
{
    crowd->excuses[rule]++;
    return true;
}

bool excuse_once(struct crowd *crowd, unsigned *rules, enum excuse rule)
{
    static_assert(N_EXCUSES <= 32, "a set of rules has a bit for each");
    if (!(*rules & 1U << rule))
        excuse(crowd, rule);
    *rules |= 1U << rule;
    return true;
}

void blame(struct crowd *crowd, const char *format, ...)
{
    if (crowd->violation[0])
        return; /* the first one counts */
    va_list args;
    va_start(args, format);
    vsnprintf(crowd->violation, sizeof crowd->violation, format, args);
    va_end(args);
    tether_sim_note(crowd->sim, "VIOLATION %s", crowd->violation);
}

/* ---- Sessions, as both ends see them ---- */

static struct tether__peer *peer_of(const struct start *a, const struct start *b)
{
    struct tether__peer *peer;
    for (uint64_t at = 0; (peer = tether__agent_next_peer_locked(a->agent, &at));) {
        const char *name = peer->name;
        if (name[1] == b->name[1] && strcmp(name, b->name) == 0) /* most differ in the digit */
            return peer;
    }
    return NULL;
}

uint64_t session_number_of(const struct start *a, const struct start *b)
{
    struct tether__peer *peer = peer_of(a, b);
    return peer ? atomic_load(&peer->session_number) : 0;
}

uint64_t session_met(const struct start *a, const struct start *b)
{
    struct tether__peer *peer = peer_of(a, b);
    return peer && (peer->session->out.up || peer->session->in.up)
               ? atomic_load(&peer->session_number) + 1
               : 0;
}

bool knows_start(const struct start *a, const struct start *b)
{
    const struct tether__peer *peer = peer_of(a, b);
    return a->worker == b->worker || (peer && peer->pairing.peer_incarnation);
}

/* Whether one of them has given the other up, or met a later start of it. */
bool fenced_between(const struct start *a, const struct start *b)
{
    static const struct tether__pairing nothing;
    if (a == b)
        return false;
    struct tether__peer *pa = peer_of(a, b), *pb = peer_of(b, a);
    const struct tether__pairing *sa = pa ? &pa->pairing : &nothing;
    const struct tether__pairing *sb = pb ? &pb->pairing : &nothing;
    bool other_start =
        (sa->peer_incarnation && sa->peer_incarnation != b->agent->self.incarnation) ||
        (sb->peer_incarnation && sb->peer_incarnation != a->agent->self.incarnation);
    return other_start || sa->my_fence != sb->peer_fence || sa->peer_fence != sb->my_fence;
}

static void add_concerned(struct concern *concern, struct start *start)
{
    for (int i = 0; i < concern->n; i++)
        if (concern->starts[i] == start)
            return;
    if (start)
        concern->starts[concern->n++] = start;
}

/* The start that has the thing, or is to have it: the present one of the worker that was asked. */
static struct start *owner_of(const struct crowd *crowd, const struct thing *thing)
{
    struct start *latest = crowd->latest[thing->worker];
    if (thing->owner)
        return thing->owner;
    return thing->asked && strcmp(thing->asked->name, latest->name) != 0 ? thing->asked : latest;
}

void concern_set(struct op *op)
{
    struct concern *concern = &op->concern;
    concern->n = 0;
    add_concerned(concern, op->by);
    add_concerned(concern, op->to);
    for (int i = 0; i < op->n_things; i++)
        add_concerned(concern, owner_of(op->by->crowd, op->things[i]));
    concern->fenced = false;
    for (int i = 0; i < concern->n; i++)
        for (int j = 0; j < concern->n; j++) {
            concern->session_numbers[i][j] =
                session_number_of(concern->starts[i], concern->starts[j]);
            concern->fenced |= fenced_between(concern->starts[i], concern->starts[j]);
        }
}

/* An event that excuses an op: it hit a worker or a session that the op concerns. */
enum mishap { NO_MISHAP, WORKER_GONE, SESSION_ENDED, ENDS_DISAGREED };

static enum mishap mishap_of(const struct op *op)
{
    const struct concern *concern = &op->concern;
    for (int i = 0; i < concern->n; i++)
        if (!start_lives(concern->starts[i]))
            return WORKER_GONE;
    for (int i = 0; i < concern->n; i++)
        for (int j = 0; j < concern->n; j++)
            if (concern->session_numbers[i][j] !=
                    session_number_of(concern->starts[i], concern->starts[j]) ||
                fenced_between(concern->starts[i], concern->starts[j]))
                return SESSION_ENDED;
    return concern->fenced ? ENDS_DISAGREED : NO_MISHAP;
}

/* ---- S1 and S2: when a thing goes ---- */

static void judge_slot(const struct slot *slot, const struct thing *thing)
{
    struct crowd *crowd = slot->start->crowd;
    if (slot->thing != thing || slot_state(slot) != TETHER_RREF_CONFIRMED)
        return;
    if (fenced_between(slot->start, thing->owner))
        excuse(crowd, EXCUSE_HOLDER_FENCED);
    else
        blame(crowd, "S1: thing %d of %s is destroyed while %s holds it", thing->number,
              thing->owner->name, slot->start->name);
}

/* Whether the thing was not made, and its creator, or the session between the creator and the
 * worker that it asked, is lost. */
static bool lost_its_creator(const struct thing *thing)
{
    return thing->creator && thing->state == UNMADE &&
           (!start_lives(thing->creator) || !start_lives(thing->asked) || thing->broken ||
            thing->session_numbers[0] != session_number_of(thing->creator, thing->asked) ||
            thing->session_numbers[1] != session_number_of(thing->asked, thing->creator) ||
            fenced_between(thing->creator, thing->asked));
}

/* Whether its owner knows that the thing will not be made. */
static bool is_refused_by_owner(const struct thing *thing, struct start *owner)
{
    if (thing->state != UNMADE || !tether__id_is_set(thing->id) || !start_lives(owner))
        return false;
    struct tether__refs *refs = tether__refs_of(owner->agent);
    const tether_rref *rref = tether__owner_find_locked(refs, thing->id);
    return rref ? rref->state == TETHER_RREF_BROKEN
                : !tether__may_come_locked(refs, thing->id) || lost_its_creator(thing);
}

/* Whether `op` carries the creator's own reference, and the creation on the creator itself has
 * timed out before the object was made. The reference is broken from then on, so the object is
 * destroyed as soon as its function makes it (seed 900111865). */
static bool carries_late_creation(const struct op *op, const struct thing *thing)
{
    return op->by == thing->creator && op->by == thing->asked && thing->state != UNMADE &&
           thing->made_at >= thing->due;
}

/* A message that uses a thing which will not be made is refused at its owner. The owner releases
 * the other references of the message before the sender learns of the refusal. */
static bool is_refused(struct op *op)
{
    struct crowd *crowd = op->by->crowd;
    for (int i = 0; i < op->n_things; i++) {
        if (is_refused_by_owner(op->things[i], owner_of(crowd, op->things[i])))
            return excuse_once(crowd, &op->excuses, EXCUSE_MESSAGE_REFUSED);
        if (carries_late_creation(op, op->things[i]))
            return excuse_once(crowd, &op->excuses, EXCUSE_MESSAGE_TOO_LATE);
    }
    return false;
}

/* Whether the references of the message are in flight and must arrive. After its deadline they need
 * not: the receiver may have released them while the sender was paused and does not know yet. */
bool op_carries(struct op *op, const struct thing *thing)
{
    struct crowd *crowd = op->by->crowd;
    bool carries = false;
    for (int i = 0; i < op->n_things; i++)
        carries |= op->things[i] == thing;
    if (!carries || !op->in_flight)
        return false;
    if (tether_sim_now(crowd->sim) >= op->deadline)
        return !excuse_once(crowd, &op->excuses, EXCUSE_MESSAGE_LATE);
    enum mishap mishap = mishap_of(op);
    if (mishap != NO_MISHAP)
        return !excuse_once(crowd, &op->excuses, EXCUSE_MESSAGE_GONE + mishap - WORKER_GONE);
    return !is_refused(op);
}

void judge_destruction(struct thing *thing)
{
    struct crowd *crowd = thing->owner->crowd;
    crowd->seen.destroyed++;
    if (crowd->over || !start_lives(thing->owner))
        return;
    tether_sim_note(crowd->sim, "%s: thing %d is destroyed", thing->owner->name, thing->number);
    for (int i = 0; i < crowd->n_starts; i++) {
        if (crowd->starts[i]->dead || crowd->starts[i]->left)
            continue;
        TETHER__LIST_FOR_EACH(node, &crowd->starts[i]->slots)
            judge_slot(tether__list_entry(node, struct slot, node), thing);
        TETHER__LIST_FOR_EACH(node, &crowd->starts[i]->inside)
            judge_slot(tether__list_entry(node, struct slot, node), thing);
    }
    TETHER__LIST_FOR_EACH(node, &crowd->ops) {
        struct op *op = tether__list_entry(node, struct op, node);
        if (op_carries(op, thing))
            blame(crowd, "S2: thing %d of %s is destroyed while op %d carries it", thing->number,
                  thing->owner->name, op->number);
    }
}

/* A reference comes to a function, or in a reply. */
void judge_arrival(struct start *start, tether_rref *rref, struct thing *thing)
{
    struct crowd *crowd = start->crowd;
    crowd->seen.arrived++;
    tether_rref_state state = (tether_rref_state)rref->state;
    bool local = strcmp(tether_caller_name() ? tether_caller_name() : "", start->name) == 0;
    bool fine = rref->is_owner || state == TETHER_RREF_CONFIRMED ||
                (local && state == TETHER_RREF_PENDING); /* then it is its own */
    if (!fine)
        blame(crowd, "S2: %s runs a function with a reference to thing %d that is %s", start->name,
              thing->number, tether_rref_state_name(state));
    struct start *owner = thing->owner;
    if (thing->state == DESTROYED && state == TETHER_RREF_CONFIRMED && start_lives(owner) &&
        !(fenced_between(start, owner) && excuse(crowd, EXCUSE_GIVEN_FENCED)))
        blame(crowd, "S2: %s is given thing %d, which is destroyed", start->name, thing->number);
    if (tether_rref_is_owner(rref) && owner && owner != start)
        blame(crowd, "S3: %s owns thing %d, which is of %s", start->name, thing->number,
              owner->name);
}

/* ---- L2, and how an operation may end ---- */

/* Whether a worker of an earlier run has answered in the place of the one that was called. A call
 * whose time is up meanwhile says so; one that finds no connection by then fails sooner. */
static bool is_other_run(const struct crowd *crowd, tether_status status)
{
    return crowd->two_runs && status == TETHER_EPERM;
}

/* Whether the thing was not made, so that what uses it fails in this way: its function fails, or
 * its creator's time was up before it ran, or its creator was lost. */
static bool was_not_made(const struct thing *thing, tether_status status, int64_t now)
{
    struct crowd *crowd = thing->creator ? thing->creator->crowd : NULL;
    /* its owner wrapped it, so it exists from the start */
    if (!crowd)
        return false;
    if (thing->fails && status == thing_failure(thing))
        return excuse(crowd, EXCUSE_FUNCTION_FAILED);
    if (thing->parent && was_not_made(thing->parent, status, now))
        return excuse(crowd, EXCUSE_PARENT_NOT_MADE);
    if ((status == TETHER_ECANCELED || status == TETHER_EGONE) && lost_its_creator(thing))
        return excuse(crowd, EXCUSE_CREATOR_LOST);
    if (now >= thing->due && is_other_run(crowd, status))
        return excuse(crowd, EXCUSE_OTHER_RUN);
    return now >= thing->due && (status == TETHER_ETIMEOUT || status == TETHER_ECANCELED) &&
           excuse(crowd, EXCUSE_CREATION_TIMED_OUT);
}

static bool may_fail_so(const struct op *op, tether_status status, int64_t now)
{
    struct crowd *crowd = op->by->crowd;
    for (int i = 0; i < op->n_things; i++)
        if (was_not_made(op->things[i], status, now))
            return true;
    for (int i = 0; i < op->n_things; i++)
        if (thing_is_unreadable(op->things[i]) && status == thing_failure(op->things[i]))
            return excuse(crowd, EXCUSE_UNREADABLE);
    if (op->broken != TETHER_OK)
        return status == op->broken && excuse(crowd, EXCUSE_BROKEN_BEFORE);
    bool is_late = now + 5 * TETHER__NS_PER_MS >= op->deadline;
    if (status == TETHER_ETIMEOUT && is_late)
        return excuse(crowd, EXCUSE_TIME_WAS_UP);
    enum mishap mishap = mishap_of(op);
    if (is_other_run(crowd, status) && (is_late || mishap != NO_MISHAP))
        return excuse(crowd, EXCUSE_OTHER_RUN);
    /* Only a reference to an object of the session that had ended fails when the ends agree. */
    if (mishap == NO_MISHAP || (mishap == ENDS_DISAGREED && status != TETHER_EGONE))
        return false;
    switch (status) {
        case TETHER_EGONE:
        case TETHER_EOWNERDIED:
        case TETHER_EUNAVAILABLE:
        case TETHER_EFENCED:
        case TETHER_ENOTFOUND:
        case TETHER_ESHUTDOWN:
            return excuse(crowd, EXCUSE_WORKER_GONE + mishap - WORKER_GONE);
        default:
            return false;
    }
}

bool op_is_late(struct op *op, int64_t now, int64_t *ret_limit)
{
    *ret_limit = op->deadline + L2_GRACE_NS;
    if (now <= *ret_limit)
        return false;
    *ret_limit = op->by->resumed_at + L2_GRACE_NS;
    return now > *ret_limit || !excuse_once(op->by->crowd, &op->excuses, EXCUSE_LATE_PAUSED);
}

void judge_end(struct op *op, tether_status status, const tether_error *error)
{
    struct crowd *crowd = op->by->crowd;
    int64_t now = tether_sim_now(crowd->sim), limit;
    if (status == TETHER_OK)
        crowd->seen.used++;
    else
        crowd->seen.refused++;
    if (op_is_late(op, now, &limit))
        blame(crowd, "L2: op %d of %s ended %lld ms late, with %s", op->number, op->by->name,
              (long long)((now - op->deadline) / TETHER__NS_PER_MS), tether_status_name(status));
    if (status != TETHER_OK && !may_fail_so(op, status, now))
        blame(crowd, "op %d of %s failed for no good reason: %s: %s", op->number, op->by->name,
              tether_status_name(status), error->message);
}

/* ---- In the end ---- */

/* A lease after its owner died, a reference is broken, says so, and its holder has been told once.
 */
void judge_lost_owners(struct crowd *crowd)
{
    for (int i = 0; i < crowd->n_starts; i++) {
        if (!start_lives(crowd->starts[i]))
            continue;
        TETHER__LIST_FOR_EACH(node, &crowd->starts[i]->slots) {
            struct slot *slot = tether__list_entry(node, struct slot, node);
            struct start *owner = slot->thing->owner;
            if (!owner || (!owner->dead && !owner->left) || slot->rref->is_owner)
                continue;
            if (slot_state(slot) != TETHER_RREF_BROKEN)
                blame(crowd, "%s still trusts its reference to thing %d of %s, which is gone",
                      slot->start->name, slot->thing->number, owner->name);
            else if (slot->rref->cause_code != TETHER_EOWNERDIED &&
                     !(slot->thing->broken && excuse(crowd, EXCUSE_LOST_BROKEN)))
                blame(crowd, "%s lost thing %d with its owner %s, but is told %s",
                      slot->start->name, slot->thing->number, owner->name,
                      tether_status_name(slot->rref->cause_code));
            else if (slot->n_lost != 1)
                blame(crowd, "%s lost thing %d with its owner %s, and was told %d times",
                      slot->start->name, slot->thing->number, owner->name, slot->n_lost);
        }
    }
}

void judge_all_is_gone(struct crowd *crowd)
{
    for (int i = 0; i < crowd->n_starts; i++) {
        struct start *start = crowd->starts[i];
        if (!start_lives(start))
            continue;
        struct tether_rref_counts n = tether_rref_counts(start->agent);
        if (n.owners || n.forks || n.pending_owners || n.pending_users || n.confirmed_users ||
            n.pending_children || n.broken_users) {
            tether_buf text = TETHER_BUF_INIT;
            tether_rref_dump(start->agent, false, &text);
            tether_sim_note(crowd->sim, "%s", text.data);
            tether_buf_fini(&text);
            blame(crowd,
                  "L1: %s is left with %zu owners, %zu forks, %zu waiting requests, %zu pending, "
                  "%zu confirmed and %zu broken references, %zu pending children",
                  start->name, n.owners, n.forks, n.pending_owners, n.pending_users,
                  n.confirmed_users, n.broken_users, n.pending_children);
        }
    }
    for (int i = 0; i < crowd->n_things; i++)
        if (crowd->things[i].state == ALIVE && start_lives(crowd->things[i].owner))
            blame(crowd, "L1: thing %d of %s is alive, and nobody holds it", i,
                  crowd->things[i].owner->name);
}
