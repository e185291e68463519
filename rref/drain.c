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
        calm->progress = refs->agent->timers;
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

/* One reference that this program still holds, retained and marked as given back; NULL: none left.
 */
static tether_rref *take_held_user(struct tether__refs *refs)
{
    tether_rref *held = NULL;
    pthread_mutex_lock(&refs->mu);
    struct tether__map_iter it = TETHER__MAP_ITER;
    for (tether_rref_id *key; !held && (key = tether__map_next(&refs->users, &it));) {
        tether_rref *rref = tether__container_of(key, struct tether_rref, user.fork);
        if (rref->state == TETHER_RREF_CONFIRMED) {
            tether__user_set_state_locked(rref, TETHER_RREF_RELEASED);
            held = tether_rref_retain(rref);
        }
    }
    pthread_mutex_unlock(&refs->mu);
    return held;
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

/* Gives back every reference that is still held, as if it had been released. */
static size_t give_back(struct tether__refs *refs, tether_buf *text)
{
    size_t n = 0;
    for (tether_rref *rref; (rref = take_held_user(refs));) {
        report(rref, &n, text);
        tell_owner(rref);
        tether_rref_release(rref);
    }
    return n;
}

static void name_holders(struct tether__refs *refs, tether_buf *text)
{
    size_t n = 0;
    pthread_mutex_lock(&refs->mu);
    struct tether__map_iter it = TETHER__MAP_ITER;
    for (tether_rref_id *key; n < 16 && (key = tether__map_next(&refs->owners, &it));) {
        tether_rref *rref = tether__container_of(key, struct tether_rref, id);
        for (uint32_t i = 0; i < rref->owner.n_forks && n < 16; i++, n++)
            tether_buf_printf(text, "%s(%u,%u,%llu) made at %s, held by '%s'", n ? "; " : "",
                              rref->id.creator, rref->id.incarnation,
                              (unsigned long long)rref->id.counter, rref->site ? rref->site : "?",
                              rref->owner.forks[i].holder.peer->name);
    }
    pthread_mutex_unlock(&refs->mu);
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
    size_t leaked = give_back(refs, &text);
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
