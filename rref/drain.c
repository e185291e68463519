/* Shutting down: giving back what is held, waiting for the others to do the same, and naming what
 * leaks.
 *
 * Once no call is under way anywhere (rpc/shutdown.c): wait until every reference is confirmed and
 * every one passed on is accepted; give back all that is still held here, and note it; let go of
 * objects that nobody else ever referred to; wait until the others have given back theirs. Peers
 * that are fenced have nothing any more, so nobody waits for the dead. One deadline spans all of
 * it.
 */
#include <stdio.h>

#include "base/log.h"
#include "rref/context.h"

/* What the present phase waits for. */
static bool is_calm_locked(struct tether__refs *refs)
{
    if (!refs->draining)
        return refs->n_pending == 0 && tether__map_count(&refs->children) == 0;
    return refs->n_forks == 0;
}

void tether__refs_check_calm_locked(struct tether__refs *refs, tether_future **ret_calm)
{
    if (!refs->calm || !is_calm_locked(refs))
        return;
    *ret_calm = refs->calm;
    refs->calm = NULL;
}

static bool wait_for_calm(struct tether__refs *refs, int64_t deadline)
{
    tether_future *calm = NULL;
    pthread_mutex_lock(&refs->mu);
    bool done = is_calm_locked(refs);
    if (!done && (calm = tether_future_new())) {
        tether__future_set_progress(calm, refs->agent->timers);
        refs->calm = tether_future_retain(calm);
    }
    pthread_mutex_unlock(&refs->mu);
    if (calm)
        tether__future_await(calm, deadline);
    pthread_mutex_lock(&refs->mu);
    done = is_calm_locked(refs);
    tether_future *left = refs->calm;
    refs->calm = NULL;
    pthread_mutex_unlock(&refs->mu);
    tether_future_release(left);
    tether_future_release(calm);
    return done;
}

#define SLICE 256 /* references for which the lock is held once */

/* Some of the references that this program still holds. */
struct held {
    size_t n;
    tether_rref *rrefs[2 * SLICE]; /* retained, and marked as given back */
};

static void take_held_locked(void *key, void *userdata)
{
    tether_rref *rref = tether__container_of((tether_rref_id *)key, struct tether_rref, user.fork);
    struct held *held = userdata;
    if (rref->state != TETHER_RREF_CONFIRMED || held->n == TETHER__ARRAY_LEN(held->rrefs))
        return;
    tether__user_set_state_locked(rref, TETHER_RREF_RELEASED);
    held->rrefs[held->n++] = tether_rref_retain(rref);
}

static void report(tether_rref *rref, size_t *n, tether_buf *text)
{
    if ((*n)++ < 16)
        tether_buf_printf(text, "%s(%u,%u,%llu) of '%s' made at %s", *n > 1 ? "; " : "",
                          rref->id.creator, rref->id.incarnation,
                          (unsigned long long)rref->id.counter, tether_rref_owner_name(rref),
                          rref->site ? rref->site : "another worker");
}

/* The program still has the handle; its owner is told by a stand-in. Without memory for one, our
 * goodbye tells it. */
static void tell_owner(tether_rref *rref)
{
    tether_rref *stand_in = tether__rref_alloc(rref->context, false, rref->id);
    if (!stand_in)
        return;
    pthread_mutex_lock(&rref->context->mu);
    stand_in->user = rref->user;
    rref->user.known_to_owner = false;
    pthread_mutex_unlock(&rref->context->mu);
    tether__refs_queue_delete(stand_in);
}

/* Gives back every reference that is still held, as if it had been released. False: it took longer
 * than `deadline`. */
static bool give_back(struct tether__refs *refs, int64_t deadline, size_t *n, tether_buf *text)
{
    unsigned long cursor = 0;
    for (bool more = true; more;) {
        struct held held = {.n = 0};
        if (tether__clock_now_ns(refs->agent->clock) >= deadline)
            return false;
        pthread_mutex_lock(&refs->mu);
        more = tether__map_scan(&refs->users, &cursor, SLICE, take_held_locked, &held);
        pthread_mutex_unlock(&refs->mu);
        for (size_t i = 0; i < held.n; i++) {
            report(held.rrefs[i], n, text);
            tell_owner(held.rrefs[i]);
            tether_rref_release(held.rrefs[i]);
        }
    }
    return true;
}

static void name_holder_locked(const struct tether__fork *fork, size_t n, tether_buf *text)
{
    const tether_rref *rref = fork->key.object;
    tether_buf_printf(text, "%s(%u,%u,%llu) made at %s, held by '%s'", n ? "; " : "",
                      rref->id.creator, rref->id.incarnation, (unsigned long long)rref->id.counter,
                      rref->site ? rref->site : "?", fork->holder.peer->name);
}

static void name_holders(struct tether__refs *refs, tether_buf *text)
{
    size_t n = 0;
    struct tether__peer *peer;
    for (size_t i = 0; n < 16 && (peer = tether__agent_peer_at(refs->agent, i)); i++) {
        pthread_mutex_lock(&refs->mu);
        struct tether__ref_peer *ref_peer = peer->ext_peer;
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
    if (!wait_for_calm(refs, deadline))
        st = tether_error_set(reterr, TETHER_ETIMEOUT,
                              "%zu references were not confirmed and %zu not accepted in time",
                              refs->n_pending, tether__map_count(&refs->children));
    size_t leaked = 0;
    if (!give_back(refs, deadline, &leaked, &text) && st == TETHER_OK)
        st = tether_error_set(reterr, TETHER_ETIMEOUT,
                              "giving back references took longer than shutdown_timeout_ms; raise "
                              "it, or release references before tether_agent_shutdown()");
    pthread_mutex_lock(&refs->mu);
    refs->draining = true;
    pthread_mutex_unlock(&refs->mu);
    /* In a dynamic group the others stay, and may keep what they hold: it breaks when we go. */
    bool all_leave = refs->agent->world_size > 0;
    if (st == TETHER_OK && all_leave && !wait_for_calm(refs, deadline)) {
        tether_buf holders = TETHER_BUF_INIT;
        name_holders(refs, &holders);
        st = tether_error_set(reterr, TETHER_ETIMEOUT,
                              "others still held objects of this worker: %s",
                              holders.data ? holders.data : "?");
        tether_buf_fini(&holders);
    }
    if (leaked)
        tether__log(TETHER_LOG_WARN, "rref", "%s: %zu references were never released: %s",
                    refs->agent->name, leaked, text.data ? text.data : "?");
    if (st == TETHER_OK && leaked && refs->agent->opts.fail_on_leaks)
        st = tether_error_set(reterr, TETHER_ELEAK,
                              "%zu references were never released, call tether_rref_release(): %s",
                              leaked, text.data ? text.data : "?");
    tether_buf_fini(&text);
    return st;
}
