/* Requests about objects that are not there yet, or not made yet: kept until the object comes, or
 * its maker's counter shows that it has been and gone, or their time is up, or who asked or who was
 * to make it is fenced or has left.
 *
 * Each of these finds the requests that it answers through a list, a map or a heap of their own,
 * and takes SLICE of them at most for each time that it holds the lock.
 */
#include "base/alloc.h"
#include "rref/context.h"

#define SLICE 64
#define PAUSE_NS (TETHER__NS_PER_MS / 10) /* in which the timer's thread does something else */

/* ---- In and out of the lists ---- */

/* The entry of an object that somebody waits for, made if there is none. NULL: no memory. */
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

/* The object has come, or nobody waits for it any more. */
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
    tether__map_del(&refs->awaited, &awaited->id);
    tether__free(awaited);
}

bool tether__may_park_locked(struct tether__refs *refs, struct tether__peer *peer)
{
    struct tether__ref_peer *asker = tether__ref_peer_locked(peer);
    return !asker || asker->n_asked < tether__most_kept_calls(refs->agent);
}

bool tether__park_locked(struct tether__refs *refs,
                         const struct tether__parked *request,
                         tether_rref *there)
{
    bool is_fork = request->what == TETHER__PARKED_FORK;
    struct tether__ref_peer *asker = tether__ref_peer_locked(request->from.peer);
    struct tether__ref_peer *maker =
        request->maker ? tether__ref_peer_locked(request->maker) : NULL;
    if (!asker || (request->maker && !maker))
        return false;
    struct tether__parked *parked = tether__malloc(sizeof *parked);
    struct tether__awaited *awaited =
        parked ? awaited_locked(refs, request->object, there != NULL) : NULL;
    if (!awaited) {
        tether__free(parked);
        return false;
    }
    *parked = *request;
    parked->awaited = awaited;
    parked->fork.from = request->from.peer;
    tether_status st = is_fork ? tether__map_put(&refs->waiting_forks, &parked->fork) : TETHER_OK;
    if (st == TETHER_ENOMEM) {
        forget_awaited_locked(refs, awaited);
        tether__free(parked);
        return false;
    }
    parked->in_waiting_forks = is_fork && st == TETHER_OK; /* else it has asked twice */
    parked->held = tether_rref_retain(there);
    tether__list_push_back(is_fork ? &awaited->forks : &awaited->uses, &parked->node);
    tether__list_push_back(&asker->live.asked, &parked->by_asker);
    asker->n_asked++;
    tether__list_init(&parked->by_maker);
    if (maker) {
        tether__list_push_back(&maker->awaited, &parked->by_maker);
        maker->looked_at_start = UINT64_MAX; /* the next tick looks */
        if (tether__list_empty(&maker->makers))
            tether__list_push_back(&refs->makers, &maker->makers);
    }
    if (parked->deadline != TETHER__NEVER) {
        tether__heap_insert(&refs->deadlines, &parked->by_deadline);
        tether__agent_kick(refs->agent, parked->deadline);
    }
    refs->n_parked++;
    return true;
}

static void unlink_locked(struct tether__refs *refs, struct tether__parked *parked)
{
    tether__list_remove(&parked->node);
    tether__list_remove(&parked->by_asker);
    tether__ref_peer_locked(parked->from.peer)->n_asked--; /* it is there since park() */
    tether__list_remove(&parked->by_maker);
    if (parked->deadline != TETHER__NEVER)
        tether__heap_remove(&refs->deadlines, &parked->by_deadline);
    if (parked->in_waiting_forks)
        tether__map_del(&refs->waiting_forks, &parked->fork);
    forget_awaited_locked(refs, parked->awaited);
    parked->awaited = NULL;
    refs->n_parked--;
}

void tether__unpark_one_locked(struct tether__refs *refs,
                               struct tether__parked *parked,
                               struct tether__list *decided,
                               tether_status status,
                               const char *why)
{
    unlink_locked(refs, parked);
    parked->status = status;
    parked->why = why;
    tether__list_push_back(decided, &parked->node);
}

/* ---- Answering ---- */

/* Sends the answer, or goes on with the method call. */
static void answer(struct tether__work *work)
{
    struct tether__parked *parked = tether__container_of(work, struct tether__parked, work);
    tether_value *value = NULL;
    tether_error error = {0};
    tether_status status = parked->status;
    if (status == TETHER_OK && parked->what != TETHER__PARKED_FORK) {
        value = tether_value_retain(parked->held->owner.value);
    } else if (status != TETHER_OK && parked->why) {
        tether_error_set(&error, status, "%s", parked->why);
    } else if (status != TETHER_OK) {
        struct tether__refs *refs = parked->held->context;
        pthread_mutex_lock(&refs->mu);
        tether__rref_usable_locked(parked->held, &error);
        pthread_mutex_unlock(&refs->mu);
    }
    switch (parked->what) {
        case TETHER__PARKED_FORK:
        case TETHER__PARKED_FETCH:
            tether__reply_to(parked->from.peer, parked->from.epoch, parked->request, status,
                             error.message, value);
            break;
        case TETHER__PARKED_TARGET:
            parked->resume->run(parked->resume, status, &error);
            break;
        case TETHER__PARKED_HERE:
            tether_future_finish(parked->future, status, &error, value);
            tether_future_release(parked->future);
            break;
    }
    tether_value_release(value);
    tether_rref_release(parked->held);
    tether__free(parked);
}

/* By the work list: a method that runs now may make an object that other requests wait for, and so
 * on. */
void tether__answer_decided(struct tether__list *decided)
{
    for (struct tether__list *node; (node = tether__list_pop_front(decided));) {
        struct tether__parked *parked = tether__list_entry(node, struct tether__parked, node);
        parked->work.run = answer;
        tether__work_run(&parked->work);
    }
}

static struct tether__parked *first_of(struct tether__list *list)
{
    return tether__list_empty(list) ? NULL
                                    : tether__list_entry(list->next, struct tether__parked, node);
}

/* ---- The object comes, or has gone ---- */

/* Decides one request for an object that is there. False: none can be answered yet. */
static bool decide_one_locked(struct tether__refs *refs,
                              struct tether__awaited *awaited,
                              tether_rref *rref,
                              struct tether__list *decided)
{
    struct tether__parked *parked = first_of(&awaited->forks);
    if (parked) {
        tether_status st = tether__fork_add_locked(rref, parked->fork.id, parked->from);
        tether__unpark_one_locked(refs, parked, decided, st, tether_status_text(st));
        return true;
    }
    if (rref->owner.making || !(parked = first_of(&awaited->uses)))
        return false;
    if (!parked->held)
        parked->held = tether_rref_retain(rref);
    tether__unpark_one_locked(refs, parked, decided, tether__rref_usable_locked(rref, NULL), NULL);
    return true;
}

static bool give_up_one_locked(struct tether__refs *refs,
                               struct tether__awaited *awaited,
                               struct tether__list *decided)
{
    struct tether__parked *parked = first_of(&awaited->forks);
    if (!parked && !(parked = first_of(&awaited->uses)))
        return false;
    tether__unpark_one_locked(refs, parked, decided, TETHER_EGONE, "the object is gone");
    return true;
}

/* Decides up to `n` requests about the object; how many. */
static size_t decide_some_locked(struct tether__refs *refs,
                                 tether_rref_id id,
                                 size_t n,
                                 struct tether__list *decided)
{
    size_t done = 0;
    for (bool more = true; more && done < n; done += more) {
        tether_rref_id *found =
            tether__map_get(&refs->awaited, &id); /* it goes with the last one */
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

void tether__unpark(struct tether__refs *refs, tether_rref_id object)
{
    for (size_t n = SLICE; n == SLICE;) {
        struct tether__list decided = TETHER__LIST_INIT(decided);
        pthread_mutex_lock(&refs->mu);
        n = decide_some_locked(refs, object, SLICE, &decided);
        pthread_mutex_unlock(&refs->mu);
        tether__answer_decided(&decided);
    }
}

/* The first object that a watermark has passed, and that somebody waits for. NULL: none. */
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

/* False: nothing is left. */
static bool unpark_some_passed(struct tether__refs *refs)
{
    struct tether__list decided = TETHER__LIST_INIT(decided);
    struct tether__awaited *awaited;
    pthread_mutex_lock(&refs->mu);
    for (size_t n = 0; n < SLICE && (awaited = first_passed_locked(refs));) {
        tether_rref_id id = awaited->id;
        if (tether__owner_find_locked(refs, id)) {
            leave_mark_locked(refs, awaited); /* it has come */
            n++;
        } else {
            n += decide_some_locked(refs, id, SLICE - n, &decided);
        }
    }
    bool more = first_passed_locked(refs) != NULL;
    pthread_mutex_unlock(&refs->mu);
    tether__answer_decided(&decided);
    return more;
}

void tether__unpark_passed(struct tether__refs *refs)
{
    while (unpark_some_passed(refs))
        ;
}

void tether__unpark_fork_locked(struct tether__refs *refs,
                                tether_rref_id fork,
                                struct tether__peer *peer)
{
    struct tether__parked_fork key = {fork, peer};
    struct tether__parked_fork *found = tether__map_get(&refs->waiting_forks, &key);
    if (!found)
        return;
    struct tether__parked *parked = tether__container_of(found, struct tether__parked, fork);
    unlink_locked(refs, parked);
    tether__free(parked); /* it holds nothing, since the object is not there */
}

/* ---- Time passes ---- */

static int64_t end_late(struct tether__refs *refs, int64_t now)
{
    struct tether__list late = TETHER__LIST_INIT(late);
    int64_t next = TETHER__NEVER;
    struct tether__heap_node *top;
    pthread_mutex_lock(&refs->mu);
    for (size_t n = 0; (top = tether__heap_top(&refs->deadlines)); n++) {
        struct tether__parked *parked =
            tether__container_of(top, struct tether__parked, by_deadline);
        next = parked->deadline <= now ? now + PAUSE_NS : parked->deadline;
        if (parked->deadline > now || n == SLICE)
            break;
        tether__unpark_one_locked(refs, parked, &late, TETHER_ETIMEOUT,
                                  "the object was not made in time");
        next = TETHER__NEVER;
    }
    pthread_mutex_unlock(&refs->mu);
    tether__answer_decided(&late);
    return next;
}

/* ---- The maker is met, restarted, or lost ---- */

bool tether__parked_in_vain(const struct tether__parked *parked)
{
    if (!parked->maker)
        return false;
    uint64_t start = atomic_load(&parked->maker->incarnation); /* before its fences */
    return start > parked->object.incarnation ||
           (start == parked->object.incarnation && parked->made_in &&
            1 + atomic_load(&parked->maker->fences) > parked->made_in);
}

/* Looks at requests for objects of this maker's, if it was met anew since the last look. */
static void end_vain_locked(struct tether__refs *refs,
                            struct tether__ref_peer *maker,
                            struct tether__list *unmade)
{
    uint64_t start = atomic_load(&maker->peer->incarnation); /* before its fences */
    uint64_t fences = atomic_load(&maker->peer->fences);
    if (maker->looked_at_start == start && maker->looked_at_fences == fences)
        return;
    maker->looked_at_start = start;
    maker->looked_at_fences = fences;
    TETHER__LIST_FOR_EACH(node, &maker->awaited) {
        struct tether__parked *parked = tether__list_entry(node, struct tether__parked, by_maker);
        if (tether__parked_in_vain(parked))
            tether__unpark_one_locked(refs, parked, unmade, TETHER_EGONE,
                                      "who was to make the object is gone");
    }
}

static void end_vain(struct tether__refs *refs)
{
    struct tether__list unmade = TETHER__LIST_INIT(unmade);
    pthread_mutex_lock(&refs->mu);
    TETHER__LIST_FOR_EACH(node, &refs->makers) {
        struct tether__ref_peer *maker = tether__list_entry(node, struct tether__ref_peer, makers);
        if (tether__list_empty(&maker->awaited))
            tether__list_remove(&maker->makers);
        else
            end_vain_locked(refs, maker, &unmade);
    }
    pthread_mutex_unlock(&refs->mu);
    tether__answer_decided(&unmade);
}

int64_t tether__refs_tick(void *ext, int64_t now)
{
    struct tether__refs *refs = ext;
    int64_t next = tether__fence_go_on(refs, now);
    end_vain(refs);
    int64_t due = end_late(refs, now);
    return due < next ? due : next;
}

void tether__maker_watch(struct tether__peer *maker, uint64_t start)
{
    pthread_mutex_lock(&maker->mu);
    if (!maker->session.watching)
        tether__peer_connect_locked(maker);
    else if (maker->session.peer_incarnation && maker->session.peer_incarnation < start)
        tether__peer_look_up_locked(maker);
    int64_t due = maker->next_dial;
    pthread_mutex_unlock(&maker->mu);
    tether__agent_kick(maker->agent, due);
}

/* Whether the object cannot come any more, now that the session with its maker has ended; `made_in`
 * would be the next one with its start `start`. A maker that is not in the directory has left, for
 * it was there when it passed the object on. But a look that says so may be older than that: the
 * second one since the request came is not. */
static bool will_not_come_locked(struct tether__parked *parked,
                                 uint64_t start,
                                 uint64_t made_in,
                                 bool not_there)
{
    parked->n_not_there += not_there;
    return parked->object.incarnation < start || parked->n_not_there > 1 ||
           (parked->made_in < made_in && (!not_there || parked->object.incarnation == start));
}

/* Looks at some of the requests in `left`; those that go on waiting go back to the maker's list. */
static void look_again_locked(struct tether__refs *refs,
                              struct tether__ref_peer *maker,
                              struct tether__list *left,
                              uint64_t start,
                              uint64_t made_in,
                              bool not_there,
                              struct tether__list *unmade,
                              uint64_t *later_start)
{
    struct tether__list *node;
    for (size_t n = 0; n < SLICE && (node = tether__list_pop_front(left)); n++) {
        struct tether__parked *parked = tether__list_entry(node, struct tether__parked, by_maker);
        if (!parked->held && will_not_come_locked(parked, start, made_in, not_there)) {
            tether__unpark_one_locked(refs, parked, unmade, TETHER_EGONE,
                                      "who was to make the object is gone");
            continue;
        }
        tether__list_push_back(&maker->awaited, node);
        if (parked->object.incarnation > *later_start)
            *later_start = parked->object.incarnation; /* in a session that we do not know of yet */
    }
}

void tether__unpark_made_by(struct tether__refs *refs, struct tether__peer *peer, bool not_there)
{
    struct tether__list left = TETHER__LIST_INIT(left);
    uint64_t later_start = 0; /* of the peer, which may make what some still wait for */
    pthread_mutex_lock(&peer->mu);
    uint64_t start = peer->session.peer_incarnation;
    uint64_t made_in = 1 + tether__session_fences(&peer->session);
    pthread_mutex_unlock(&peer->mu);
    pthread_mutex_lock(&refs->mu);
    struct tether__ref_peer *maker = peer->ext_peer;
    if (maker)
        tether__list_splice(&left, &maker->awaited);
    while (!tether__list_empty(&left)) {
        struct tether__list unmade = TETHER__LIST_INIT(unmade);
        look_again_locked(refs, maker, &left, start, made_in, not_there, &unmade, &later_start);
        pthread_mutex_unlock(&refs->mu);
        tether__answer_decided(&unmade);
        pthread_mutex_lock(&refs->mu);
    }
    pthread_mutex_unlock(&refs->mu);
    if (later_start)
        tether__maker_watch(peer, later_start);
}
