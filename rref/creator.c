/* Requests that wait for an object of another creator: their way when the creator is met, restarted
 * or lost. */
#include "rref/context.h"

bool tether__waiting_in_vain(const struct tether__waiting *waiting)
{
    if (!waiting->creator)
        return false;
    uint64_t start = tether__peer_start(waiting->creator); /* before its fences */
    return start > waiting->object.incarnation ||
           (start == waiting->object.incarnation && waiting->made_in &&
            1 + tether__peer_fences(waiting->creator) > waiting->made_in);
}

/* A new session with the creator, or a new start of it: all requests have to be looked at again. */
static void note_session_locked(struct tether__ref_peer *creator)
{
    uint64_t start = tether__peer_start(creator->peer); /* before its fences */
    uint64_t fences = tether__peer_fences(creator->peer);
    if (creator->looked_at_start == start && creator->looked_at_fences == fences)
        return;
    creator->looked_at_start = start;
    creator->looked_at_fences = fences;
    creator->n_looks++;
}

/* The next request of the creator's that has not been looked at since; NULL: there is none. Those
 * that have been are behind the others. */
static struct tether__waiting *next_unlooked_locked(struct tether__ref_peer *creator)
{
    if (tether__list_empty(&creator->awaited))
        return NULL;
    struct tether__waiting *waiting =
        tether__list_entry(creator->awaited.next, struct tether__waiting, by_creator);
    return waiting->look == creator->n_looks ? NULL : waiting;
}

/* Looks at up to `n` requests for objects of this creator's; how many. */
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

/* Looks at a slice of the requests whose creators were met anew. When to go on: then it begins with
 * the creators that this slice has not come to. */
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

/* Whether the object cannot come any more, now that the session with its creator has ended. A
 * creator that is not in the directory has left, for it was there when it passed the object on. But
 * a look that says so may be older than that: the second one since the request came is not. */
static bool will_not_come(struct tether__waiting *waiting, const struct tether__loss *loss)
{
    uint64_t start = waiting->object.incarnation;
    waiting->n_not_there += loss->not_there;
    return start < loss->start || waiting->n_not_there > 1 ||
           (waiting->made_in < loss->made_in && (!loss->not_there || start == loss->start));
}

/* Looks at a slice of the requests that the creator's loss has left; those that go on waiting go
 * back to the creator's list. */
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
        waiting->look = 0; /* requests that end_vain() has to check are at the front of the list */
        if (tether__list_empty(&creator->creators)) /* a tick may have found no request there */
            tether__list_push_back(&refs->creators, &creator->creators);
        if (waiting->object.incarnation > loss->later_start) /* of a session not known yet */
            loss->later_start = waiting->object.incarnation;
    }
    tether__list_remove(&creator->losses);
    if (!tether__list_empty(&creator->lost)) /* behind others, so that each has its turn */
        tether__list_push_back(&refs->losses, &creator->losses);
}

/* False: nothing is left. */
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

/* Takes all requests for objects of the peer's aside. False: those of a loss before are left. */
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
    while (!begin_loss(refs, peer, &loss)) /* the one before was a moment ago */
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
