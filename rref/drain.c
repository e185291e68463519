/* Shutting down: giving back what is held, waiting for the others to do the same, and naming what
 * leaks.
 *
 * Once no call is under way anywhere (rpc/group/leave.c), and no release of a reference either:
 * wait until every reference is confirmed and every one passed on is accepted; give back all that
 * is still held here, and note it; release objects that no other worker ever referred to; wait
 * until the others have given back theirs. Peers that are fenced have nothing any more, so there
 * is no wait for dead workers. One deadline spans all of it.
 *
 * A leak is a reference that has not been released by then: one to another worker's object, in any
 * state (confirmed, pending or broken), or one to an object of this worker that no other worker
 * refers to. A reference that only an object holds is none while other workers may yet release that
 * object: in a static group no such release is under way any more; a worker that leaves a dynamic
 * group waits until none has come for QUIET_MS. References that are left then are held by the
 * program, or by objects that refer to each other in a circle.
 */
#include <stdio.h>

#include "base/log.h"
#include "rpc/future/internal.h"
#include "rpc/peer/table.h"
#include "rref/context.h"
#include "rref/hooks.h"

/* Returns whether nothing is left to wait for: before the give-back (`draining` unset) pending
 * references and children, after it forks. */
static bool is_drained_locked(struct tether__refs *refs)
{
    if (!refs->draining)
        return refs->n_pending == 0 && tether__map_count(&refs->children) == 0;
    return refs->n_forks == 0;
}

void tether__refs_check_drained_locked(struct tether__refs *refs, tether_future **ret_drained)
{
    if (!refs->drained || !is_drained_locked(refs))
        return;
    *ret_drained = refs->drained;
    refs->drained = NULL;
}

/* Waits until is_drained_locked() holds. Returns true if it held at some moment before the
 * deadline, even if new references have come since. */
static bool wait_until_drained(struct tether__refs *refs, int64_t deadline)
{
    tether_future *drained = NULL;
    pthread_mutex_lock(&refs->mu);
    bool done = is_drained_locked(refs);
    if (!done && (drained = tether_future_new())) {
        tether__future_set_poller(drained, tether__agent_timers(refs->agent));
        refs->drained = tether_future_retain(drained);
    }
    pthread_mutex_unlock(&refs->mu);
    if (!drained)
        return done;
    done = tether__future_await(drained, deadline);
    pthread_mutex_lock(&refs->mu);
    tether_future *left = refs->drained;
    refs->drained = NULL;
    pthread_mutex_unlock(&refs->mu);
    tether_future_release(left);
    tether_future_release(drained);
    return done;
}

#define QUIET_MS 200
#define LOOK_MS 5

/* Returns whether references of this worker may be held by objects that other workers have not
 * released yet. */
static bool may_be_released(struct tether__refs *refs, size_t *ret_forks)
{
    pthread_mutex_lock(&refs->mu);
    *ret_forks = refs->n_forks;
    bool held = refs->n_forks > 0 && tether__map_count(&refs->users) > 0;
    pthread_mutex_unlock(&refs->mu);
    return held;
}

/* Waits until no release has arrived for QUIET_MS: in a dynamic group this worker cannot know what
 * others are about to release. */
static void wait_until_quiet(struct tether__refs *refs, int64_t deadline)
{
    const struct tether__clock *clock = refs->clock;
    size_t before = SIZE_MAX, forks = 0;
    int64_t quiet = 0;
    tether_future *never = may_be_released(refs, &forks) ? tether_future_new() : NULL;
    if (!never)
        return;
    tether__future_set_poller(never, tether__agent_timers(refs->agent));
    while (may_be_released(refs, &forks)) {
        if (forks != before)
            quiet = tether__deadline_in(clock, QUIET_MS);
        before = forks;
        int64_t now = tether__clock_now_ns(clock);
        if (now >= quiet || now >= deadline)
            break;
        tether__future_await(never, tether__deadline_in(clock, LOOK_MS));
    }
    tether_future_release(never);
}

#define SLICE 256 /* how many references are given back while the lock is held once */
/* how many own objects are checked while the lock is held once; a check takes less time than a
 * release */
#define OWN_SLICE 4096

/* A slice of the references that this program still holds. */
struct held {
    size_t n;
    struct {
        tether_rref *rref; /* retained */
        /* the reference was confirmed, so its owner is told; its state is RELEASED now */
        bool give_back;
    } items[2 * SLICE];
};

static void take_held_locked(void *key, void *userdata)
{
    tether_rref *rref = tether__container_of((tether_rref_id *)key, struct tether_rref, user.fork);
    struct held *held = userdata;
    if (rref->state == TETHER_RREF_RELEASED || held->n == TETHER__ARRAY_LEN(held->items))
        return;
    bool give_back = tether__rref_state_locked(rref) == TETHER_RREF_CONFIRMED;
    if (give_back)
        tether__user_set_state_locked(rref, TETHER_RREF_RELEASED);
    held->items[held->n].rref = tether_rref_retain(rref);
    held->items[held->n++].give_back = give_back;
}

static void report(tether_rref *rref, size_t *n, tether_buf *text)
{
    if ((*n)++ < 16)
        tether_buf_printf(text, "%s(%u,%u,%llu) of '%s' made at %s", *n > 1 ? "; " : "",
                          rref->id.creator, rref->id.incarnation,
                          (unsigned long long)rref->id.counter, tether_rref_owner_name(rref),
                          rref->site ? rref->site : "another worker");
}

/* Tells the owner that the reference is released. The program still has the handle, so a copy
 * of it carries the message. Without memory for a copy, the goodbye of this worker tells the
 * owner. */
static void tell_owner(tether_rref *rref)
{
    tether_rref *stand_in = tether__rref_alloc(rref->context, false, rref->id);
    if (!stand_in)
        return;
    pthread_mutex_lock(&rref->context->mu);
    stand_in->user = rref->user;
    tether__peer_retain(stand_in->user.owner.peer);
    rref->known_to_owner = false;
    pthread_mutex_unlock(&rref->context->mu);
    tether__refs_queue_delete(stand_in);
}

/* Gives back the references that are still held, as if the program had released them. Gives back
 * at least one slice, so that a shutdown past its deadline reports some leaks. Returns false if
 * `deadline` has passed.
 */
static bool give_back(struct tether__refs *refs, int64_t deadline, size_t *n, tether_buf *text)
{
    unsigned long cursor = 0;
    for (bool more = true; more;) {
        struct held held = {.n = 0};
        pthread_mutex_lock(&refs->mu);
        more = tether__map_scan(&refs->users, &cursor, SLICE, take_held_locked, &held);
        pthread_mutex_unlock(&refs->mu);
        for (size_t i = 0; i < held.n; i++) {
            report(held.items[i].rref, n, text);
            if (held.items[i].give_back)
                tell_owner(held.items[i].rref);
            tether_rref_release(held.items[i].rref);
        }
        if (more && tether__clock_now_ns(refs->clock) >= deadline)
            return false;
    }
    return true;
}

/* Reports the objects made by this worker that no other worker holds: this program still has a
 * reference to them. Leaves out objects that are made meanwhile. */
static void report_own(struct tether__refs *refs, size_t *n, tether_buf *text)
{
    struct tether__list left;
    tether__list_init(&left);
    pthread_mutex_lock(&refs->mu);
    tether__list_splice(&left, &refs->own);
    while (!tether__list_empty(&left)) {
        struct tether__list *node;
        for (size_t i = 0; i < OWN_SLICE && (node = tether__list_pop_front(&left)); i++) {
            tether_rref *rref = tether__list_entry(node, struct tether_rref, node);
            tether__list_push_back(&refs->own, node);
            if (rref->owner.n_forks == 0 && !rref->owner.making)
                report(rref, n, text);
        }
        if (tether__list_empty(&left))
            break;
        /* while the lock is free, other threads may remove nodes from `left` */
        pthread_mutex_unlock(&refs->mu);
        tether__sleep_ns(1); /* without this pause the thread would mostly get the lock again before
                                threads that wait for it */
        pthread_mutex_lock(&refs->mu);
    }
    pthread_mutex_unlock(&refs->mu);
}

static void name_holder_locked(const struct tether__fork *fork, size_t n, tether_buf *text)
{
    const tether_rref *rref = fork->key.object;
    tether_buf_printf(text, "%s(%u,%u,%llu) made at %s, held by '%s'", n ? "; " : "",
                      rref->id.creator, rref->id.incarnation, (unsigned long long)rref->id.counter,
                      rref->site ? rref->site : "?", tether__peer_name(fork->holder.peer));
}

static void name_holders(struct tether__refs *refs, tether_buf *text)
{
    size_t n = 0;
    struct tether__peer *peer;
    for (uint64_t at = 0; n < 16 && (peer = tether__agent_next_peer(refs->agent, &at));) {
        pthread_mutex_lock(&refs->mu);
        struct tether__ref_peer *ref_peer = tether__ref_peer_find_locked(peer);
        for (struct tether__list *node = ref_peer ? ref_peer->live.forks.next : NULL;
             node && node != &ref_peer->live.forks && n < 16; node = node->next)
            name_holder_locked(tether__list_entry(node, struct tether__fork, by_holder), n++, text);
        pthread_mutex_unlock(&refs->mu);
        tether__peer_release(peer);
    }
}

tether_status tether__refs_drain(void *ext, int64_t deadline, tether_error *reterr)
{
    struct tether__refs *refs = ext;
    tether_buf text = TETHER_BUF_INIT;
    tether_status st = TETHER_OK;
    bool all_leave = tether_agent_world_size(refs->agent) > 0;
    if (!wait_until_drained(refs, deadline)) {
        pthread_mutex_lock(&refs->mu);
        size_t n_pending = refs->n_pending, n_children = tether__map_count(&refs->children);
        pthread_mutex_unlock(&refs->mu);
        st = tether_error_set(reterr, TETHER_ETIMEOUT,
                              "%zu references were not confirmed and %zu not accepted in time",
                              n_pending, n_children);
    }
    if (!all_leave)
        wait_until_quiet(refs, deadline);
    size_t leaked = 0;
    if (!give_back(refs, deadline, &leaked, &text) && st == TETHER_OK)
        st = tether_error_set(reterr, TETHER_ETIMEOUT,
                              "giving back references took longer than shutdown_timeout_ms; raise "
                              "it, or release references before tether_agent_shutdown()");
    pthread_mutex_lock(&refs->mu);
    refs->draining = true;
    pthread_mutex_unlock(&refs->mu);
    /* In a dynamic group the other workers stay and may keep their references, which break when
     * this worker leaves. */
    if (st == TETHER_OK && all_leave && !wait_until_drained(refs, deadline)) {
        tether_buf holders = TETHER_BUF_INIT;
        name_holders(refs, &holders);
        st = tether_error_set(reterr, TETHER_ETIMEOUT,
                              "others still held objects of this worker: %s",
                              holders.data ? holders.data : "?");
        tether_buf_fini(&holders);
    }
    report_own(refs, &leaked, &text);
    if (leaked)
        tether__log(TETHER_LOG_WARN, "rref", "%s: %zu references were never released: %s",
                    tether_agent_name(refs->agent), leaked, text.data ? text.data : "?");
    if (st == TETHER_OK && leaked && refs->opts->fail_on_leaks)
        st = tether_error_set(reterr, TETHER_ELEAK,
                              "%zu references were never released, call tether_rref_release(), or "
                              "tether_value_release() for a value that carries one: %s",
                              leaked, text.data ? text.data : "?");
    tether_buf_fini(&text);
    return st;
}
