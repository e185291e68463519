/* Checks waiting requests again when the creator of their object is met, restarted or lost. */
#include "rref/context.h"

bool tether__waiting_in_vain(const struct tether__waiting *waiting)
{
    if (!waiting->creator)
        return false;
    /* read the start before the number of fences, so that a change in between is noticed */
    uint64_t start = tether__peer_start(waiting->creator);
    return start > waiting->object.incarnation ||
           (start == waiting->object.incarnation && waiting->made_in &&
            1 + tether__peer_fences(waiting->creator) > waiting->made_in);
}

/* Records that there is a new session with the creator, or a new start of it: all requests for its
 * objects must be checked again. */
static void note_session_locked(struct tether__ref_peer *creator)
{
    /* read the start before the number of fences, so that a change in between is noticed */
    uint64_t start = tether__peer_start(creator->peer);
    uint64_t fences = tether__peer_fences(creator->peer);
    if (creator->looked_at_start == start && creator->looked_at_fences == fences)
        return;
    creator->looked_at_start = start;
    creator->looked_at_fences = fences;
    creator->n_looks++;
}

/* Returns the next request for an object of `creator` that was not checked in this round; NULL:
 * all were. Checked requests move to the end of the list. */
static struct tether__waiting *next_unlooked_locked(struct tether__ref_peer *creator)
{
    if (tether__list_empty(&creator->awaited))
        return NULL;
    struct tether__waiting *waiting =
        tether__list_entry(creator->awaited.next, struct tether__waiting, by_creator);
    return waiting->look == creator->n_looks ? NULL : waiting;
}

/* Checks up to `n` requests for objects of this creator and decides those whose object cannot come
 * any more. Returns how many it checked. */
static size_t end_vain_locked(struct tether__refs *refs,
                              struct tether__ref_peer *creator,
                              size_t n,
                              struct tether__list *unmade)
{
    size_t done = 0;
    struct tether__waiting *waiting;
    note_session_locked(creator);
    for (; done < n && (waiting = next_unlooked_locked(creator)); done++) {
        if (tether__waiting_in_vain(waiting)) {
            tether__waiting_decide_locked(refs, waiting, unmade, TETHER_EGONE,
                                          "who was to make the object is gone");
        } else {
            waiting->look = creator->n_looks;
            tether__list_remove(&waiting->by_creator);
            tether__list_push_back(&creator->awaited, &waiting->by_creator);
        }
    }
    return done;
}

/* Checks a slice of the requests whose creators have a new session or start. Returns when to call
 * it again; the next slice begins with the creators that this one did not reach. */
int64_t tether__waiting_look_at_creators(struct tether__refs *refs, int64_t now)
{
    struct tether__list unmade = TETHER__LIST_INIT(unmade), seen = TETHER__LIST_INIT(seen);
    struct tether__list *node;
    size_t done = 0;
    pthread_mutex_lock(&refs->mu);
    size_t slice = refs->waiting_slice;
    while (done < slice && (node = tether__list_pop_front(&refs->creators))) {
        struct tether__ref_peer *creator =
            tether__list_entry(node, struct tether__ref_peer, creators);
        done += end_vain_locked(refs, creator, slice - done, &unmade);
        if (!tether__list_empty(&creator->awaited))
            tether__list_push_back(&seen, node);
    }
    tether__list_splice(&refs->creators, &seen);
    pthread_mutex_unlock(&refs->mu);
    tether__waiting_answer_decided(&unmade);
    return done == slice ? now + TETHER__PAUSE_NS : TETHER__NEVER;
}

/* Returns whether the object cannot come any more, now that the session with its creator has
 * ended. The creator was in the directory when it passed the object on, so one that is missing
 * there has left. But the first look-up may be older than the request; the second one is not. */
static bool will_not_come(struct tether__waiting *waiting, const struct tether__loss *loss)
{
    uint64_t start = waiting->object.incarnation;
    waiting->n_not_there += loss->not_there;
    return start < loss->start || waiting->n_not_there > 1 ||
           (waiting->made_in < loss->made_in && (!loss->not_there || start == loss->start));
}

/* Checks a slice of the requests that waited for the lost creator. Requests that go on waiting
 * return to the `awaited` list of the creator. */
static void look_again_locked(struct tether__refs *refs,
                              struct tether__ref_peer *creator,
                              struct tether__list *unmade)
{
    struct tether__loss *loss = &creator->loss;
    struct tether__list *node;
    for (size_t n = 0; n < refs->waiting_slice && (node = tether__list_pop_front(&creator->lost));
         n++) {
        struct tether__waiting *waiting =
            tether__list_entry(node, struct tether__waiting, by_creator);
        if (!waiting->held && will_not_come(waiting, loss)) {
            tether__waiting_decide_locked(refs, waiting, unmade, TETHER_EGONE,
                                          "who was to make the object is gone");
            continue;
        }
        tether__list_push_front(&creator->awaited, node);
        /* makes end_vain_locked() check the request again; unchecked requests are at the front
         * of the list */
        waiting->look = 0;
        /* a tick may have removed the creator from refs->creators when `awaited` was empty */
        if (tether__list_empty(&creator->creators))
            tether__list_push_back(&refs->creators, &creator->creators);
        /* the object is of a start of the creator that this worker has not met yet */
        if (waiting->object.incarnation > loss->later_start)
            loss->later_start = waiting->object.incarnation;
    }
    tether__list_remove(&creator->losses);
    if (!tether__list_empty(&creator->lost)) /* append the creator, so that each one has its turn */
        tether__list_push_back(&refs->losses, &creator->losses);
}

/* Checks one slice of the requests of a lost creator. Returns false when none is left. */
static bool look_again(struct tether__refs *refs, struct tether__peer *peer)
{
    struct tether__list unmade = TETHER__LIST_INIT(unmade);
    uint64_t later_start = 0;
    bool more = false;
    pthread_mutex_lock(&refs->mu);
    struct tether__ref_peer *creator = tether__ref_peer_find_locked(peer);
    if (creator) {
        look_again_locked(refs, creator, &unmade);
        more = !tether__list_empty(&creator->lost);
        later_start = more ? 0 : creator->loss.later_start;
    }
    pthread_mutex_unlock(&refs->mu);
    tether__waiting_answer_decided(&unmade);
    if (later_start)
        tether__peer_watch(peer, later_start);
    return more;
}

/* Moves all requests for objects of the peer to its `lost` list. Returns false while requests of
 * an earlier loss are still in that list. */
static bool begin_loss(struct tether__refs *refs,
                       struct tether__peer *peer,
                       const struct tether__loss *loss)
{
    pthread_mutex_lock(&refs->mu);
    struct tether__ref_peer *creator = tether__ref_peer_find_locked(peer);
    bool begins = !creator || tether__list_empty(&creator->lost);
    if (creator && begins) {
        tether__list_splice(&creator->lost, &creator->awaited);
        creator->loss = *loss;
    }
    pthread_mutex_unlock(&refs->mu);
    return begins;
}

void tether__waiting_creator_lost(struct tether__refs *refs,
                                  struct tether__peer *peer,
                                  bool not_there)
{
    struct tether__loss loss = {.not_there = not_there};
    tether__peer_next_session(peer, &loss.start, &loss.made_in);
    /* check the requests of the earlier loss first; it was a moment ago */
    while (!begin_loss(refs, peer, &loss))
        look_again(refs, peer);
    while (look_again(refs, peer) && !tether__waiting_leave_to_timer(refs))
        ;
}

int64_t tether__waiting_go_on_with_losses(struct tether__refs *refs, int64_t now)
{
    pthread_mutex_lock(&refs->mu);
    struct tether__list *first = refs->losses.next;
    struct tether__peer *peer =
        first == &refs->losses ? NULL
                               : tether__list_entry(first, struct tether__ref_peer, losses)->peer;
    tether__peer_retain(peer);
    pthread_mutex_unlock(&refs->mu);
    if (!peer)
        return TETHER__NEVER;
    look_again(refs, peer);
    tether__peer_release(peer);
    return now + TETHER__PAUSE_NS;
}
