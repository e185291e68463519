/* Requests about objects that are not announced yet, or not made yet. A request is kept until the
 * object comes, its creator's counter shows that the object is gone already, its deadline passes,
 * or the worker that asked or the creator is fenced or has left.
 *
 * Each of these finds the requests that it answers through a list, a map or a heap of their own,
 * and takes a slice of them at most (refs->waiting_slice) for each time that it holds the lock. The
 * thread answers these; the timer goes on with the rest, so that the thread is not taken for long.
 */
#include "base/alloc.h"
#include "rpc/peer/limits.h"
#include "rpc/refs.h"
#include "rpc/serve/serve.h"
#include "rref/context.h"
#include "rref/hooks.h"

#define SLICES_AT_ONCE 4 /* how many slices each tick handles */

/* ---- In and out of the lists ---- */

/* Returns the entry for an object that requests wait for, and makes it if there is none. NULL: no
 * memory. */
static struct tether__awaited *awaited_locked(struct tether__refs *refs,
                                              tether_rref_id id,
                                              bool is_there)
{
    tether_rref_id *found = tether__map_get(&refs->awaited, &id);
    if (found)
        return tether__container_of(found, struct tether__awaited, id);
    struct tether__awaited *awaited = tether__malloc(sizeof *awaited);
    struct tether__watermark *mark = NULL;
    if (!awaited || (!is_there && !(mark = tether__watermark_locked(refs, id)))) {
        tether__free(awaited);
        return NULL;
    }
    awaited->id = id;
    awaited->mark = mark;
    tether__list_init(&awaited->forks);
    tether__list_init(&awaited->uses);
    tether__list_init(&awaited->answering);
    if (tether__map_put(&refs->awaited, &awaited->id) != TETHER_OK) {
        if (mark)
            tether__watermark_forget_locked(refs, mark);
        tether__free(awaited);
        return NULL;
    }
    if (mark)
        tether__heap_insert(&mark->awaited, &awaited->by_counter);
    return awaited;
}

/* Removes the object from its watermark's heap: the object has come, or no request waits for it
 * any more. */
static void leave_mark_locked(struct tether__refs *refs, struct tether__awaited *awaited)
{
    struct tether__watermark *mark = awaited->mark;
    if (!mark)
        return;
    tether__heap_remove(&mark->awaited, &awaited->by_counter);
    awaited->mark = NULL;
    tether__watermark_forget_locked(refs, mark);
}

static void forget_awaited_locked(struct tether__refs *refs, struct tether__awaited *awaited)
{
    if (!tether__list_empty(&awaited->forks) || !tether__list_empty(&awaited->uses))
        return;
    leave_mark_locked(refs, awaited);
    tether__list_remove(&awaited->answering);
    tether__map_del(&refs->awaited, &awaited->id);
    tether__free(awaited);
}

bool tether__may_wait_locked(struct tether__refs *refs, struct tether__peer *peer)
{
    struct tether__ref_peer *asker = tether__ref_peer_locked(peer);
    return !asker || asker->n_asked < tether__max_held_calls(refs->agent);
}

static void request_free(struct tether__waiting *it)
{
    tether__peer_release(it->from.peer);
    tether__peer_release(it->creator);
    tether__free(it);
}

bool tether__waiting_add_locked(struct tether__refs *refs,
                                const struct tether__waiting *request,
                                tether_rref *there)
{
    bool is_fork = request->what == TETHER__WAITING_FORK;
    struct tether__ref_peer *asker = tether__ref_peer_locked(request->from.peer);
    struct tether__ref_peer *creator =
        request->creator ? tether__ref_peer_locked(request->creator) : NULL;
    if (!asker || (request->creator && !creator))
        return false;
    struct tether__waiting *waiting = tether__malloc(sizeof *waiting);
    struct tether__awaited *awaited =
        waiting ? awaited_locked(refs, request->object, there != NULL) : NULL;
    if (!awaited) {
        tether__free(waiting);
        return false;
    }
    *waiting = *request;
    waiting->since = tether__refs_now(refs);
    tether__peer_retain(request->from.peer);
    tether__peer_retain(request->creator);
    waiting->awaited = awaited;
    waiting->fork.from = request->from.peer;
    tether_status st = is_fork ? tether__map_put(&refs->waiting_forks, &waiting->fork) : TETHER_OK;
    if (st == TETHER_ENOMEM) {
        forget_awaited_locked(refs, awaited);
        request_free(waiting);
        return false;
    }
    /* false when the map has an equal request: the worker has asked twice */
    waiting->in_waiting_forks = is_fork && st == TETHER_OK;
    waiting->held = tether_rref_retain(there);
    tether__list_push_back(is_fork ? &awaited->forks : &awaited->uses, &waiting->node);
    tether__list_push_back(&asker->live.asked, &waiting->by_asker);
    asker->n_asked++;
    tether__list_init(&waiting->by_creator);
    if (creator) {
        tether__list_push_front(&creator->awaited,
                                &waiting->by_creator); /* so that the next tick checks it first */
        waiting->look = 0;
        if (tether__list_empty(&creator->creators))
            tether__list_push_back(&refs->creators, &creator->creators);
    }
    if (waiting->deadline != TETHER__NEVER) {
        tether__heap_insert(&refs->deadlines, &waiting->by_deadline);
        tether__agent_kick(refs->agent, waiting->deadline);
    }
    refs->n_waiting++;
    return true;
}

static void unlink_locked(struct tether__refs *refs, struct tether__waiting *waiting)
{
    tether__list_remove(&waiting->node);
    tether__list_remove(&waiting->by_asker);
    /* the lists exist since the request was added */
    tether__ref_peer_locked(waiting->from.peer)->n_asked--;
    tether__list_remove(&waiting->by_creator);
    if (waiting->deadline != TETHER__NEVER)
        tether__heap_remove(&refs->deadlines, &waiting->by_deadline);
    if (waiting->in_waiting_forks)
        tether__map_del(&refs->waiting_forks, &waiting->fork);
    forget_awaited_locked(refs, waiting->awaited);
    waiting->awaited = NULL;
    refs->n_waiting--;
}

void tether__waiting_decide_locked(struct tether__refs *refs,
                                   struct tether__waiting *waiting,
                                   struct tether__list *decided,
                                   tether_status status,
                                   const char *why)
{
    unlink_locked(refs, waiting);
    waiting->status = status;
    waiting->why = why;
    tether__list_push_back(decided, &waiting->node);
}

/* ---- Answering ---- */

const char *tether__object_waits_for_locked(const tether_rref *rref)
{
    return !rref                  ? "its creation has not arrived"
           : rref->owner.expected ? "its call has not arrived in whole"
                                  : "its function has not returned";
}

tether_status tether__object_is_late(tether_error *reterr,
                                     const char *owner,
                                     int64_t waited_ns,
                                     const char *waits_for)
{
    return tether_error_set(reterr, TETHER_ETIMEOUT,
                            "waiting for an object of worker '%s' timed out after %lld ms (%s): "
                            "look with tether-inspect whether it is being made, or raise "
                            "timeout_ms",
                            owner, (long long)(waited_ns / TETHER__NS_PER_MS), waits_for);
}

/* Sends the answer to the worker that asked, or continues the method call. */
static void answer(struct tether__work *work)
{
    struct tether__waiting *waiting = tether__container_of(work, struct tether__waiting, work);
    tether_agent *agent = tether__peer_agent(waiting->from.peer);
    tether_value *value = NULL;
    tether_error error = {0};
    tether_status status = waiting->status;
    if (status == TETHER_OK && waiting->what != TETHER__WAITING_FORK) {
        value = tether_value_retain(waiting->held->owner.value);
    } else if (waiting->is_late) {
        tether__object_is_late(&error, tether_agent_name(agent),
                               tether__clock_now_ns(tether__agent_clock(agent)) - waiting->since,
                               waiting->why);
    } else if (status != TETHER_OK && waiting->why) {
        tether_error_set(&error, status, "%s", waiting->why);
    } else if (status != TETHER_OK) {
        struct tether__refs *refs = waiting->held->context;
        pthread_mutex_lock(&refs->mu);
        tether__rref_usable_locked(waiting->held, &error);
        pthread_mutex_unlock(&refs->mu);
    }
    switch (waiting->what) {
        case TETHER__WAITING_FORK:
        case TETHER__WAITING_FETCH:
            tether__reply_to(waiting->from.peer, waiting->from.number, waiting->request, status,
                             error.message, value);
            break;
        case TETHER__WAITING_TARGET:
            waiting->resume->run(waiting->resume, status, &error);
            break;
        case TETHER__WAITING_HERE:
            tether_future_finish(waiting->future, status, &error, value);
            tether_future_release(waiting->future);
            break;
    }
    tether_value_release(value);
    tether_rref_release(waiting->held);
    request_free(waiting);
}

/* Uses the work list, because a method that runs now may make an object that other requests wait
 * for, and so on. */
void tether__waiting_answer_decided(struct tether__list *decided)
{
    for (struct tether__list *node; (node = tether__list_pop_front(decided));) {
        struct tether__waiting *waiting = tether__list_entry(node, struct tether__waiting, node);
        waiting->work.run = answer;
        tether__work_run(&waiting->work);
    }
}

static struct tether__waiting *first_of(struct tether__list *list)
{
    return tether__list_empty(list) ? NULL
                                    : tether__list_entry(list->next, struct tether__waiting, node);
}

/* ---- The object comes, or has gone ---- */

/* Decides one request for an object that has come. False: no request can be decided yet. */
static bool decide_one_locked(struct tether__refs *refs,
                              struct tether__awaited *awaited,
                              tether_rref *rref,
                              struct tether__list *decided)
{
    struct tether__waiting *waiting = first_of(&awaited->forks);
    if (waiting) {
        tether_status st = tether__fork_add_locked(rref, waiting->fork.id, waiting->from);
        tether__waiting_decide_locked(refs, waiting, decided, st, tether_status_text(st));
        return true;
    }
    if (rref->owner.making || !(waiting = first_of(&awaited->uses)))
        return false;
    if (!waiting->held)
        waiting->held = tether_rref_retain(rref);
    tether__waiting_decide_locked(refs, waiting, decided, tether__rref_usable_locked(rref, NULL),
                                  NULL);
    return true;
}

static bool give_up_one_locked(struct tether__refs *refs,
                               struct tether__awaited *awaited,
                               struct tether__list *decided)
{
    struct tether__waiting *waiting = first_of(&awaited->forks);
    if (!waiting && !(waiting = first_of(&awaited->uses)))
        return false;
    tether__waiting_decide_locked(refs, waiting, decided, TETHER_EGONE, "the object is gone");
    return true;
}

/* Decides up to `n` requests about the object. Returns how many it decided. */
static size_t decide_some_locked(struct tether__refs *refs,
                                 tether_rref_id id,
                                 size_t n,
                                 struct tether__list *decided)
{
    size_t done = 0;
    for (bool more = true; more && done < n; done += more) {
        tether_rref_id *found =
            tether__map_get(&refs->awaited, &id); /* freed with its last request */
        struct tether__awaited *awaited =
            found ? tether__container_of(found, struct tether__awaited, id) : NULL;
        tether_rref *rref = awaited ? tether__owner_find_locked(refs, id) : NULL;
        if (rref)
            more = decide_one_locked(refs, awaited, rref, decided);
        else
            more = awaited && !tether__may_come_locked(refs, id) &&
                   give_up_one_locked(refs, awaited, decided);
    }
    return done;
}

/* Decides a slice of the requests about the object. If more may be left, the timer continues with
 * them. */
static void decide_slice_locked(struct tether__refs *refs,
                                tether_rref_id id,
                                struct tether__list *decided)
{
    bool may_be_more =
        decide_some_locked(refs, id, refs->waiting_slice, decided) == refs->waiting_slice;
    tether_rref_id *found = tether__map_get(&refs->awaited, &id);
    struct tether__awaited *awaited =
        found ? tether__container_of(found, struct tether__awaited, id) : NULL;
    if (!awaited)
        return;
    tether__list_remove(&awaited->answering);
    if (may_be_more) /* append it, so that each object has its turn */
        tether__list_push_back(&refs->answering, &awaited->answering);
}

bool tether__waiting_leave_to_timer(struct tether__refs *refs)
{
    if (tether__agent_is_parting(refs->agent))
        return false;
    tether__agent_kick(refs->agent, tether__refs_now(refs) + TETHER__PAUSE_NS);
    return true;
}

static struct tether__awaited *first_answering_locked(struct tether__refs *refs)
{
    return tether__list_empty(&refs->answering)
               ? NULL
               : tether__list_entry(refs->answering.next, struct tether__awaited, answering);
}

/* Answers a slice of the requests about `object`; NULL: about the first object in refs->answering.
 * False: no object has requests left. */
static bool answer_some(struct tether__refs *refs, const tether_rref_id *object)
{
    struct tether__list decided = TETHER__LIST_INIT(decided);
    pthread_mutex_lock(&refs->mu);
    struct tether__awaited *first = first_answering_locked(refs);
    if (object)
        decide_slice_locked(refs, *object, &decided);
    else if (first)
        decide_slice_locked(refs, first->id, &decided);
    bool more = first_answering_locked(refs) != NULL;
    pthread_mutex_unlock(&refs->mu);
    tether__waiting_answer_decided(&decided);
    return more;
}

void tether__waiting_answer(struct tether__refs *refs, tether_rref_id object)
{
    bool more = answer_some(refs, &object);
    while (more && !tether__waiting_leave_to_timer(refs))
        more = answer_some(refs, NULL);
}

/* Returns the first awaited object that a watermark has passed. NULL: none. */
static struct tether__awaited *first_passed_locked(struct tether__refs *refs)
{
    while (!tether__list_empty(&refs->passed)) {
        struct tether__watermark *mark =
            tether__list_entry(refs->passed.next, struct tether__watermark, passed);
        struct tether__heap_node *top = tether__heap_top(&mark->awaited);
        struct tether__awaited *awaited =
            top ? tether__container_of(top, struct tether__awaited, by_counter) : NULL;
        if (awaited && awaited->id.counter <= mark->counter)
            return awaited;
        tether__list_remove(&mark->passed);
    }
    return NULL;
}

/* Answers a slice of the requests for objects that a watermark has passed. Returns false when none
 * is left. */
static bool answer_some_passed(struct tether__refs *refs)
{
    struct tether__list decided = TETHER__LIST_INIT(decided);
    struct tether__awaited *awaited;
    pthread_mutex_lock(&refs->mu);
    for (size_t n = 0; n < refs->waiting_slice && (awaited = first_passed_locked(refs));) {
        tether_rref_id id = awaited->id;
        if (tether__owner_find_locked(refs, id)) {
            leave_mark_locked(refs, awaited); /* the object has come */
            n++;
        } else {
            n += decide_some_locked(refs, id, refs->waiting_slice - n, &decided);
        }
    }
    bool more = first_passed_locked(refs) != NULL;
    pthread_mutex_unlock(&refs->mu);
    tether__waiting_answer_decided(&decided);
    return more;
}

void tether__waiting_answer_passed(struct tether__refs *refs)
{
    while (answer_some_passed(refs) && !tether__waiting_leave_to_timer(refs))
        ;
}

/* Continues with the requests that answer() and answer_passed() have left. Returns when to call it
 * again. */
static int64_t answer_rest(struct tether__refs *refs, int64_t now)
{
    bool more = true;
    for (int i = 0; more && i < SLICES_AT_ONCE; i++) {
        more = answer_some_passed(refs);
        more |= answer_some(refs, NULL);
    }
    return more ? now + TETHER__PAUSE_NS : TETHER__NEVER;
}

void tether__waiting_drop_fork_locked(struct tether__refs *refs,
                                      tether_rref_id fork,
                                      struct tether__peer *peer)
{
    struct tether__waiting_fork key = {fork, peer};
    struct tether__waiting_fork *found = tether__map_get(&refs->waiting_forks, &key);
    if (!found)
        return;
    struct tether__waiting *waiting = tether__container_of(found, struct tether__waiting, fork);
    unlink_locked(refs, waiting);
    request_free(waiting); /* no object to release, since the object is not there */
}

/* ---- Time passes ---- */

static int64_t end_late(struct tether__refs *refs, int64_t now)
{
    struct tether__list late = TETHER__LIST_INIT(late);
    int64_t next = TETHER__NEVER;
    struct tether__heap_node *top;
    pthread_mutex_lock(&refs->mu);
    for (size_t n = 0; (top = tether__heap_top(&refs->deadlines)); n++) {
        struct tether__waiting *waiting =
            tether__container_of(top, struct tether__waiting, by_deadline);
        next = waiting->deadline <= now ? now + TETHER__PAUSE_NS : waiting->deadline;
        if (waiting->deadline > now || n == refs->waiting_slice)
            break;
        waiting->is_late = true;
        tether__waiting_decide_locked(refs, waiting, &late, TETHER_ETIMEOUT,
                                      tether__object_waits_for_locked(waiting->held));
        next = TETHER__NEVER;
    }
    pthread_mutex_unlock(&refs->mu);
    tether__waiting_answer_decided(&late);
    return next;
}

int64_t tether__refs_tick(void *ext, int64_t now)
{
    struct tether__refs *refs = ext;
    int64_t next = tether__fence_go_on(refs, now);
    /* call this before end_late(), because the objects of these requests are there */
    int64_t due = answer_rest(refs, now);
    next = due < next ? due : next;
    due = tether__waiting_go_on_with_losses(refs, now);
    next = due < next ? due : next;
    due = tether__waiting_look_at_creators(refs, now);
    next = due < next ? due : next;
    due = end_late(refs, now);
    return due < next ? due : next;
}
