/* Requests about objects that are not there yet, or not made yet: kept until the object comes, or
 * its maker's counter shows that it has been and gone, or their time is up, or who asked or who was
 * to make it is fenced or has left. */
#include "base/alloc.h"
#include "rref/context.h"

bool tether__park_locked(struct tether__refs *refs,
                         const struct tether__parked *request,
                         tether_rref *there)
{
    struct tether__parked *parked = tether__malloc(sizeof *parked);
    if (!parked)
        return false;
    *parked = *request;
    parked->held = tether_rref_retain(there);
    tether__list_push_back(&refs->parked, &parked->node);
    tether__agent_kick(refs->agent, parked->deadline);
    return true;
}

/* Decides the answer by what is now known. False: the request must go on waiting. */
static bool decide_locked(struct tether__refs *refs, struct tether__parked *parked)
{
    tether_rref *rref = tether__owner_find_locked(refs, parked->object);
    if (!rref && tether__may_come_locked(refs, parked->object))
        return false;
    if (!rref) {
        parked->status = TETHER_EGONE;
        parked->why = "the object is gone";
        return true;
    }
    if (parked->what == TETHER__PARKED_FORK) {
        parked->status = tether__fork_add_locked(rref, parked->fork, parked->from);
        parked->why = tether_status_text(parked->status);
        return true;
    }
    if (rref->owner.making)
        return false;
    if (!parked->held)
        parked->held = tether_rref_retain(rref);
    parked->status = tether__rref_usable_locked(rref, NULL);
    parked->why = NULL;
    return true;
}

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

/* Answers requests whose answers are decided. By the work list: a method that runs now may make an
 * object that other requests wait for, and so on. */
static void answer_decided(struct tether__list *list)
{
    for (struct tether__list *node; (node = tether__list_pop_front(list));) {
        struct tether__parked *parked = tether__list_entry(node, struct tether__parked, node);
        parked->work.run = answer;
        tether__work_run(&parked->work);
    }
}

void tether__unpark(struct tether__refs *refs, tether_rref_id object)
{
    struct tether__list decided = TETHER__LIST_INIT(decided);
    pthread_mutex_lock(&refs->mu);
    TETHER__LIST_FOR_EACH(node, &refs->parked) {
        struct tether__parked *parked = tether__list_entry(node, struct tether__parked, node);
        if (!tether__id_equal(parked->object, object) || !decide_locked(refs, parked))
            continue;
        tether__list_remove(node);
        tether__list_push_back(&decided, node);
    }
    pthread_mutex_unlock(&refs->mu);
    answer_decided(&decided);
}

void tether__unpark_fork_locked(struct tether__refs *refs,
                                tether_rref_id fork,
                                struct tether__peer *peer)
{
    TETHER__LIST_FOR_EACH(node, &refs->parked) {
        struct tether__parked *parked = tether__list_entry(node, struct tether__parked, node);
        if (parked->what == TETHER__PARKED_FORK && parked->from.peer == peer &&
            tether__id_equal(parked->fork, fork)) {
            tether__list_remove(node);
            tether__free(parked); /* it holds nothing, since the object is not there */
            return;
        }
    }
}

static void answer_all(struct tether__list *list, tether_status status, const char *why)
{
    TETHER__LIST_FOR_EACH(node, list) {
        struct tether__parked *parked = tether__list_entry(node, struct tether__parked, node);
        parked->status = status;
        parked->why = why;
    }
    answer_decided(list);
}

bool tether__parked_in_vain(const struct tether__parked *parked)
{
    if (!parked->maker)
        return false;
    uint64_t start = atomic_load(&parked->maker->incarnation); /* before its fences */
    return start > parked->object.incarnation ||
           (start == parked->object.incarnation && parked->made_in &&
            1 + atomic_load(&parked->maker->fences) > parked->made_in);
}

int64_t tether__refs_tick(void *ext, int64_t now)
{
    struct tether__refs *refs = ext;
    struct tether__list late = TETHER__LIST_INIT(late), unmade = TETHER__LIST_INIT(unmade);
    int64_t next = tether__fence_go_on(refs, now);
    pthread_mutex_lock(&refs->mu);
    TETHER__LIST_FOR_EACH(node, &refs->parked) {
        struct tether__parked *parked = tether__list_entry(node, struct tether__parked, node);
        bool gone = tether__parked_in_vain(parked);
        if (gone || parked->deadline <= now) {
            tether__list_remove(node);
            tether__list_push_back(gone ? &unmade : &late, node);
        } else if (parked->deadline < next) {
            next = parked->deadline;
        }
    }
    pthread_mutex_unlock(&refs->mu);
    answer_all(&late, TETHER_ETIMEOUT, "the object was not made in time");
    answer_all(&unmade, TETHER_EGONE, "who was to make the object is gone");
    return next;
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

void tether__unpark_peer(struct tether__refs *refs,
                         struct tether__peer *peer,
                         uint64_t epoch,
                         bool not_there)
{
    struct tether__list asked = TETHER__LIST_INIT(asked), unmade = TETHER__LIST_INIT(unmade);
    uint64_t later_start = 0; /* of the peer, which may make what some still wait for */
    pthread_mutex_lock(&peer->mu);
    uint64_t start = peer->session.peer_incarnation;
    uint64_t made_in = 1 + tether__session_fences(&peer->session);
    pthread_mutex_unlock(&peer->mu);
    pthread_mutex_lock(&refs->mu);
    TETHER__LIST_FOR_EACH(node, &refs->parked) {
        struct tether__parked *parked = tether__list_entry(node, struct tether__parked, node);
        struct tether__list *list = NULL;
        if (parked->from.peer == peer && parked->from.epoch <= epoch)
            list = &asked;
        else if (parked->maker == peer && !parked->held &&
                 will_not_come_locked(parked, start, made_in, not_there))
            list = &unmade;
        else if (parked->maker == peer && parked->object.incarnation > later_start)
            later_start = parked->object.incarnation; /* in a session that we do not know of yet */
        if (list) {
            tether__list_remove(node);
            tether__list_push_back(list, node);
        }
    }
    pthread_mutex_unlock(&refs->mu);
    /* The caller hears nothing, but other holders of what a method was to make do. */
    answer_all(&asked, TETHER_ECANCELED, "its caller was lost before it could run");
    answer_all(&unmade, TETHER_EGONE, "who was to make the object is gone");
    if (later_start)
        tether__maker_watch(peer, later_start);
}
