/* A session has ended: references of the peer to our objects are released, ours to its objects
 * break, and references on their way to it have no pin any more. Items of a later session stay.
 *
 * There may be millions of these. So the fence itself only takes the peer's lists aside; from that
 * moment on the references count as broken (tether__rref_state_locked()). Then it goes through the
 * lists in slices, without the lock in between: the first ones at once, the rest from the timer, so
 * that neither the lock nor the thread is taken for long. It needs no memory.
 */
#include <sched.h>

#include "base/alloc.h"
#include "base/threads/state.h"
#include "rref/context.h"
#include "rref/hooks.h"

#define SLICE 64          /* how many items are handled while the lock is held once */
#define SLICES_AT_ONCE 16 /* how many slices a fence handles at once, and each later tick */

/* ---- Peers ---- */

static void lists_init(struct tether__ref_lists *lists)
{
    tether__list_init(&lists->forks);
    tether__list_init(&lists->users);
    tether__list_init(&lists->children);
    tether__list_init(&lists->expected);
    tether__list_init(&lists->asked);
}

struct tether__ref_peer *tether__ref_peer_locked(struct tether__peer *peer)
{
    struct tether__ref_peer *ref_peer = tether__ref_peer_find_locked(peer);
    if (ref_peer)
        return ref_peer;
    ref_peer = tether__calloc(1, sizeof *ref_peer);
    if (!ref_peer)
        return NULL;
    ref_peer->peer = peer;
    ref_peer->first_session = tether__peer_session(peer);
    ref_peer->why_code = TETHER_EOWNERDIED; /* used until a fence sets the real cause */
    ref_peer->n_looks = 1;
    lists_init(&ref_peer->live);
    lists_init(&ref_peer->ended);
    tether__list_init(&ref_peer->fencing);
    tether__list_init(&ref_peer->awaited);
    tether__list_init(&ref_peer->lost);
    tether__list_init(&ref_peer->losses);
    tether__list_init(&ref_peer->creators);
    tether__outbox_items_init(&ref_peer->untold);
    tether__peer_set_refs(peer, ref_peer);
    return ref_peer;
}

static void empty(struct tether__list *list)
{
    while (tether__list_pop_front(list))
        ;
}

/* The agent is being released, so no other worker can hold its objects any more. */
void tether__ref_peer_drop_forks_locked(const struct tether__peer *peer,
                                        struct tether__collected *collected)
{
    struct tether__ref_peer *ref_peer = tether__ref_peer_find_locked(peer);
    if (!ref_peer)
        return;
    tether__list_splice(&ref_peer->live.forks, &ref_peer->ended.forks);
    for (struct tether__list *node; (node = tether__list_pop_front(&ref_peer->live.forks));)
        tether__fork_drop_locked(tether__list_entry(node, struct tether__fork, by_holder),
                                 collected);
}

/* Takes the references out of the peer's lists: references may outlive the agent, peers do not. */
void tether__ref_peer_forget_locked(struct tether__peer *peer)
{
    struct tether__ref_peer *ref_peer = tether__ref_peer_find_locked(peer);
    if (!ref_peer)
        return;
    struct tether__ref_lists *const both[] = {&ref_peer->live, &ref_peer->ended};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(both); i++) {
        empty(&both[i]->forks);
        empty(&both[i]->users);
        empty(&both[i]->children);
        empty(&both[i]->expected);
        empty(&both[i]->asked);
    }
    empty(&ref_peer->awaited);
    empty(&ref_peer->lost);
    tether__list_remove(&ref_peer->losses);
    tether__list_remove(&ref_peer->creators);
    tether__list_remove(&ref_peer->fencing);
    if (ref_peer->mark)
        tether__watermark_retire_locked(tether__agent_refs(tether__peer_agent(peer)),
                                        ref_peer->mark);
    tether__cause_release(ref_peer->why);
    tether__free(ref_peer);
    tether__peer_set_refs(peer, NULL);
}

static bool lists_are_empty(const struct tether__ref_lists *lists)
{
    return tether__list_empty(&lists->forks) && tether__list_empty(&lists->users) &&
           tether__list_empty(&lists->children) && tether__list_empty(&lists->expected) &&
           tether__list_empty(&lists->asked);
}

bool tether__refs_forget(void *ext, struct tether__peer *peer)
{
    struct tether__refs *refs = ext;
    pthread_mutex_lock(&refs->mu);
    const struct tether__ref_peer *ref_peer = tether__ref_peer_find_locked(peer);
    bool is_unused =
        !ref_peer ||
        (lists_are_empty(&ref_peer->live) && lists_are_empty(&ref_peer->ended) &&
         tether__list_empty(&ref_peer->awaited) && tether__list_empty(&ref_peer->lost) &&
         tether__list_empty(&ref_peer->fencing) && !ref_peer->untold.first);
    if (is_unused)
        tether__ref_peer_forget_locked(peer);
    pthread_mutex_unlock(&refs->mu);
    return is_unused;
}

/* ---- Fences ---- */

void tether__rref_give_notice(tether_rref *rref)
{
    struct tether__refs *refs = rref->context;
    for (;;) {
        pthread_mutex_lock(&refs->mu);
        struct tether__notice *notice = tether__notice_take_locked(rref);
        pthread_mutex_unlock(&refs->mu);
        if (!notice)
            return;
        struct tether__call_context own = tether__context_leave();
        tether__thread_state.must_not_block++;
        notice->fn(rref, notice->userdata);
        tether__thread_state.must_not_block--;
        tether__context_return(own);
        tether__free(notice);
    }
}

/* Finishes the future of a broken reference and runs its loss callbacks. TAKES a count of both. */
static void finish_broken(tether_rref *rref, tether_future *ready)
{
    tether_error error = {0};
    pthread_mutex_lock(&rref->context->mu);
    tether_status st = tether__rref_usable_locked(rref, &error);
    pthread_mutex_unlock(&rref->context->mu);
    tether__future_finish_and_release(ready, st, &error);
    if (rref->is_owner)
        tether__waiting_answer(rref->context, rref->id);
    else
        tether__rref_give_notice(rref);
    tether_rref_release(rref);
}

/* The work that one slice leaves to be done after the lock is released. */
struct slice {
    size_t left; /* how many more items this slice may take */
    struct tether__collected collected;
    struct {
        tether_rref *rref; /* retained */
        tether_future *ready;
    } broken[SLICE];
    size_t n_broken;
    struct tether__list asked;          /* decided requests, whose answers are to be sent */
    struct tether__outbox_items untold; /* messages for the peer that are to be freed */
};

/* Takes the next item of an ended list; NULL: the list is empty, or the slice is full. */
static struct tether__list *next_item(struct slice *slice, struct tether__list *list)
{
    struct tether__list *node = slice->left ? tether__list_pop_front(list) : NULL;
    slice->left -= node != NULL;
    return node;
}

tether_status tether__fence_code(const struct tether__ref_peer *ref_peer, const tether_rref *rref)
{
    /* ENOTFOUND means that no such worker ever joined. But an owner that confirmed a reference did
     * exist, so it is lost. */
    bool known = ref_peer->why_code == TETHER_ENOTFOUND && rref->state == TETHER_RREF_CONFIRMED;
    return known ? TETHER_EOWNERDIED : ref_peer->why_code;
}

static void break_user_locked(struct tether__ref_peer *ref_peer,
                              tether_rref *rref,
                              struct slice *slice)
{
    /* an ended session means that the owner has no fork of ours any more */
    rref->known_to_owner = false;
    if (rref->lost || rref->state == TETHER_RREF_RELEASED)
        return;
    rref->lost = true;
    tether_future *ready =
        tether__rref_break_with_locked(rref, tether__fence_code(ref_peer, rref), ref_peer->why);
    slice->broken[slice->n_broken].rref = tether_rref_retain(rref);
    slice->broken[slice->n_broken++].ready = ready;
}

/* Gives up an object that the peer was about to have made here. */
static void unexpect_locked(tether_rref *rref, struct slice *slice)
{
    tether__expected_remove_locked(rref);
    rref->owner.making = false;
    tether_future *ready = tether__rref_break_locked(
        rref, TETHER_EGONE, "its creator was lost before it could be made");
    slice->broken[slice->n_broken].rref = tether_rref_retain(rref);
    slice->broken[slice->n_broken++].ready = ready;
}

static void slice_locked(struct tether__refs *refs,
                         struct tether__ref_peer *ref_peer,
                         struct slice *slice)
{
    struct tether__ref_lists *ended = &ref_peer->ended, *live = &ref_peer->live;
    struct tether__list *node;
    while ((node = next_item(slice, &ended->asked))) {
        struct tether__waiting *waiting =
            tether__list_entry(node, struct tether__waiting, by_asker);
        if (tether__ref_session_is_over_locked(waiting->from))
            /* The caller of the request gets no answer, but other holders of the object that a
             * method was to make are told. */
            tether__waiting_decide_locked(refs, waiting, &slice->asked, TETHER_ECANCELED,
                                          "its caller was lost before it could run");
        else
            tether__list_push_back(&live->asked, node);
    }
    while ((node = next_item(slice, &ended->forks))) {
        struct tether__fork *fork = tether__list_entry(node, struct tether__fork, by_holder);
        if (tether__ref_session_is_over_locked(fork->holder))
            tether__fork_drop_locked(fork, &slice->collected);
        else
            tether__list_push_back(&live->forks, node);
    }
    while ((node = next_item(slice, &ended->children))) {
        struct tether__pending_child *child =
            tether__list_entry(node, struct tether__pending_child, node);
        if (tether__ref_session_is_over_locked(child->child))
            tether__child_drop_locked(refs, child, &slice->collected);
        else
            tether__list_push_back(&live->children, node);
    }
    while ((node = next_item(slice, &ended->users))) {
        tether_rref *rref = tether__list_entry(node, struct tether_rref, node);
        if (tether__ref_session_is_over_locked(rref->user.owner))
            break_user_locked(ref_peer, rref, slice);
        else
            tether__list_push_back(&live->users, node);
    }
    while ((node = next_item(slice, &ended->expected))) {
        tether_rref *rref = tether__list_entry(node, struct tether_rref, node);
        if (rref->owner.expected && tether__ref_session_is_over_locked(rref->owner.creator))
            unexpect_locked(rref, slice);
        else if (rref->owner.expected)
            tether__list_push_back(&live->expected, node);
    }
}

/* Takes the messages that had gathered for the peer: after the fence it does not need them. */
static void take_untold_locked(struct tether__ref_peer *ref_peer, struct slice *slice)
{
    for (struct tether__outbox_item *item;
         slice->left && (item = tether__outbox_items_pop(&ref_peer->untold)); slice->left--)
        tether__outbox_items_push(&slice->untold, item);
}

static void free_untold(struct tether__outbox_items *untold)
{
    for (struct tether__outbox_item *item; (item = tether__outbox_items_pop(untold));)
        item->kind->done(item);
}

static bool is_through(const struct tether__ref_peer *ref_peer)
{
    const struct tether__ref_lists *ended = &ref_peer->ended;
    return tether__list_empty(&ended->asked) && tether__list_empty(&ended->forks) &&
           tether__list_empty(&ended->children) && tether__list_empty(&ended->users) &&
           tether__list_empty(&ended->expected) && !ref_peer->untold.first;
}

/* Handles one slice of the ended lists. Returns false when nothing is left. */
static bool run_slice(struct tether__refs *refs, struct tether__ref_peer *ref_peer)
{
    struct slice slice = {.left = SLICE};
    tether__list_init(&slice.asked);
    tether__outbox_items_init(&slice.untold);
    pthread_mutex_lock(&refs->mu);
    slice_locked(refs, ref_peer, &slice);
    take_untold_locked(ref_peer, &slice);
    bool more = !is_through(ref_peer);
    tether__list_remove(&ref_peer->fencing);
    if (more) /* append it, so that each peer has its turn */
        tether__list_push_back(&refs->fencing, &ref_peer->fencing);
    pthread_mutex_unlock(&refs->mu);
    tether__waiting_answer_decided(&slice.asked);
    for (size_t i = 0; i < slice.n_broken; i++)
        finish_broken(slice.broken[i].rref, slice.broken[i].ready);
    free_untold(&slice.untold);
    tether__refs_run_collected(refs, &slice.collected);
    sched_yield(); /* mutexes are not fair: gives threads that wait for it a chance */
    return more;
}

static struct tether__ref_peer *first_fencing(struct tether__refs *refs)
{
    pthread_mutex_lock(&refs->mu);
    struct tether__list *first = refs->fencing.next;
    pthread_mutex_unlock(&refs->mu);
    return first == &refs->fencing ? NULL
                                   : tether__list_entry(first, struct tether__ref_peer, fencing);
}

int64_t tether__fence_go_on(struct tether__refs *refs, int64_t now)
{
    struct tether__ref_peer *ref_peer;
    for (int i = 0; i < SLICES_AT_ONCE; i++) {
        if (!(ref_peer = first_fencing(refs)))
            return TETHER__NEVER;
        run_slice(refs, ref_peer);
    }
    return first_fencing(refs) ? now + TETHER__PAUSE_NS : TETHER__NEVER;
}

void tether__fence_finish(struct tether__refs *refs)
{
    for (struct tether__ref_peer *ref_peer; (ref_peer = first_fencing(refs));)
        run_slice(refs, ref_peer);
}

/* Ends the session: from here on its references count as broken. Takes the items in `untold` for
 * the slices. NULL: the session has no items, and nothing was taken. */
static struct tether__ref_peer *end_session_locked(struct tether__refs *refs,
                                                   struct tether__peer *peer,
                                                   uint64_t session_number,
                                                   struct tether__outbox_items *untold,
                                                   tether_status code,
                                                   struct tether__cause *why)
{
    struct tether__ref_peer *ref_peer = tether__ref_peer_find_locked(peer);
    if (!ref_peer)
        return NULL;
    /* from here on no new item can be added for the ended session */
    if (ref_peer->first_session <= session_number)
        ref_peer->first_session = session_number + 1;
    tether__list_splice(&ref_peer->ended.asked, &ref_peer->live.asked);
    tether__list_splice(&ref_peer->ended.forks, &ref_peer->live.forks);
    tether__list_splice(&ref_peer->ended.users, &ref_peer->live.users);
    tether__list_splice(&ref_peer->ended.children, &ref_peer->live.children);
    tether__list_splice(&ref_peer->ended.expected, &ref_peer->live.expected);
    tether__cause_release(ref_peer->why);
    ref_peer->why = tether__cause_retain(why);
    ref_peer->why_code = code;
    tether__outbox_items_append(&ref_peer->untold, untold);
    tether__list_remove(&ref_peer->fencing);
    tether__list_push_back(&refs->fencing, &ref_peer->fencing);
    return ref_peer;
}

void tether__refs_session_ended(void *ext,
                                struct tether__peer *peer,
                                uint64_t session_number,
                                struct tether__outbox_items *untold,
                                const tether_error *why)
{
    struct tether__refs *refs = ext;
    tether_error error;
    bool lost = why->code != TETHER_ENOTFOUND && why->code != TETHER_ESHUTDOWN;
    tether_error_set(&error, lost ? TETHER_EOWNERDIED : why->code, "%s%s",
                     lost ? "the owner of the object is lost (make it anew elsewhere): " : "",
                     why->message);
    struct tether__cause *cause = tether__cause_new(&error);
    pthread_mutex_lock(&refs->mu);
    struct tether__ref_peer *ref_peer =
        end_session_locked(refs, peer, session_number, untold, error.code, cause);
    pthread_mutex_unlock(&refs->mu);
    tether__cause_release(cause);
    tether__waiting_creator_lost(refs, peer, why->code == TETHER_ENOTFOUND);
    free_untold(untold);
    /* while the agent stops, no timer runs to continue */
    bool more = ref_peer != NULL, stopping = why->code == TETHER_ESHUTDOWN;
    for (int i = 0; more && (stopping || i < SLICES_AT_ONCE); i++)
        more = run_slice(refs, ref_peer);
    if (more)
        tether__agent_kick(refs->agent, tether__refs_now(refs) + TETHER__PAUSE_NS);
}
