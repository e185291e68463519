/* Requests that wait for an object of another creator: what happens when the creator is met,
 * restarted or lost. */
#include "rpc/peer/dialer.h"
#include "rref/context.h"

#define SLICE TETHER__WAITING_SLICE

bool tether__waiting_in_vain(const struct tether__waiting *waiting)
{
    if (!waiting->creator)
        return false;
    uint64_t start = atomic_load(&waiting->creator->incarnation); /* before its fences */
    return start > waiting->object.incarnation ||
           (start == waiting->object.incarnation && waiting->made_in &&
            1 + atomic_load(&waiting->creator->fences) > waiting->made_in);
}

/* A new session with the creator, or a new start of it: all requests have to be looked at again. */
static void note_session_locked(struct tether__ref_peer *creator)
{
    uint64_t start = atomic_load(&creator->peer->incarnation); /* before its fences */
    uint64_t fences = atomic_load(&creator->peer->fences);
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

/* Looks at a slice of the requests whose creators were met anew. When to go on. */
int64_t tether__waiting_look_at_creators(struct tether__refs *refs, int64_t now)
{
    struct tether__list unmade = TETHER__LIST_INIT(unmade);
    size_t done = 0;
    pthread_mutex_lock(&refs->mu);
    TETHER__LIST_FOR_EACH(node, &refs->creators) {
        struct tether__ref_peer *creator =
            tether__list_entry(node, struct tether__ref_peer, creators);
        if (tether__list_empty(&creator->awaited))
            tether__list_remove(&creator->creators);
        else
            done += end_vain_locked(refs, creator, SLICE - done, &unmade);
    }
    pthread_mutex_unlock(&refs->mu);
    tether__waiting_answer_decided(&unmade);
    return done == SLICE ? now + TETHER__PAUSE_NS : TETHER__NEVER;
}

void tether__creator_watch(struct tether__peer *creator, uint64_t start)
{
    tether__peer_lock(creator);
    if (!creator->pairing.watching)
        tether__peer_connect_locked(creator);
    else if (creator->pairing.peer_incarnation && creator->pairing.peer_incarnation < start)
        tether__peer_look_up_locked(creator);
    tether__peer_unlock(creator);
}

/* Whether the object cannot come any more, now that the session with its creator has ended;
 * `made_in` would be the next one with its start `start`. A creator that is not in the directory
 * has left, for it was there when it passed the object on. But a look that says so may be older
 * than that: the second one since the request came is not. */
static bool will_not_come_locked(struct tether__waiting *waiting,
                                 uint64_t start,
                                 uint64_t made_in,
                                 bool not_there)
{
    waiting->n_not_there += not_there;
    return waiting->object.incarnation < start || waiting->n_not_there > 1 ||
           (waiting->made_in < made_in && (!not_there || waiting->object.incarnation == start));
}

/* Looks at some of the requests in `left`; those that go on waiting go back to the creator's list.
 */
static void look_again_locked(struct tether__refs *refs,
                              struct tether__ref_peer *creator,
                              struct tether__list *left,
                              uint64_t start,
                              uint64_t made_in,
                              bool not_there,
                              struct tether__list *unmade,
                              uint64_t *later_start)
{
    struct tether__list *node;
    for (size_t n = 0; n < SLICE && (node = tether__list_pop_front(left)); n++) {
        struct tether__waiting *waiting =
            tether__list_entry(node, struct tether__waiting, by_creator);
        if (!waiting->held && will_not_come_locked(waiting, start, made_in, not_there)) {
            tether__waiting_decide_locked(refs, waiting, unmade, TETHER_EGONE,
                                          "who was to make the object is gone");
            continue;
        }
        tether__list_push_front(&creator->awaited, node);
        waiting->look = 0; /* what else end_vain() has to look at is in front, too */
        if (waiting->object.incarnation > *later_start)
            *later_start =
                waiting->object.incarnation; /* in a session that we do not know of yet */
    }
}

void tether__waiting_creator_lost(struct tether__refs *refs,
                                  struct tether__peer *peer,
                                  bool not_there)
{
    struct tether__list left = TETHER__LIST_INIT(left);
    uint64_t later_start = 0; /* of the peer, which may make what some still wait for */
    tether__peer_lock(peer);
    uint64_t start = peer->pairing.peer_incarnation;
    uint64_t made_in = 1 + tether__pairing_fences(&peer->pairing);
    tether__peer_unlock(peer);
    pthread_mutex_lock(&refs->mu);
    struct tether__ref_peer *creator = peer->ext_peer;
    if (creator)
        tether__list_splice(&left, &creator->awaited);
    while (!tether__list_empty(&left)) {
        struct tether__list unmade = TETHER__LIST_INIT(unmade);
        look_again_locked(refs, creator, &left, start, made_in, not_there, &unmade, &later_start);
        pthread_mutex_unlock(&refs->mu);
        tether__waiting_answer_decided(&unmade);
        pthread_mutex_lock(&refs->mu);
    }
    pthread_mutex_unlock(&refs->mu);
    if (later_start)
        tether__creator_watch(peer, later_start);
}
