/* remote(): making an object on another worker, from both ends.
 *
 * Here: the reference is pending from the moment the call is queued; its ids are drawn then, so
 * that they reach the owner in order. There: the object's entry and our fork exist from the moment
 * the call arrives, before its function runs; so a delete of ours, however early, finds what it
 * deletes. Where the call itself can be overtaken, since its argument goes in pieces, an announce
 * goes ahead of it, in order.
 *
 * A creation that fails, times out or is fenced breaks the reference with its cause. If the owner
 * may know of it, it is still told when we let go.
 */
#include <string.h>

#include "base/alloc.h"
#include "rpc/packed.h"
#include "rref/context.h"

/* ---- At the owner -------------------------------------------------------------------------------
 */

/* Without memory for it the site is not known. */
static void set_site_locked(tether_rref *rref, const char *site)
{
    tether_bytes cut = tether_bytes_of(site, strnlen(site, TETHER__MAX_SITE));
    rref->site = tether__name_get_bytes_locked(rref->context, cut);
    rref->site_is_name = rref->site != NULL;
}

/* Who has an object made names it: else one worker could take, or spoil, the ids of another. */
static bool is_of_maker(struct tether__peer *maker, tether_rref_id id)
{
    return id.incarnation == (uint32_t)atomic_load(&maker->incarnation);
}

/* The entry of an object that is to be made, with its maker's fork. It may be there already: then
 * it has been announced, or a reference to it has overtaken it. The caller gets one count.
 * `*ret_awaited`: somebody may wait for it, or for what cannot come any more: see
 * answer_awaited().
 */
static tether_status enter_object(struct tether__refs *refs,
                                  struct tether__party maker,
                                  tether_rref_id id,
                                  tether_rref_id fork,
                                  const char *site,
                                  tether_rref **ret_rref,
                                  bool *ret_awaited,
                                  tether_error *reterr)
{
    if (!tether__id_is_set(id) || !tether__id_is_set(fork))
        return tether_error_set(reterr, TETHER_ECORRUPT, "a remote call without an id");
    if (!is_of_maker(maker.peer, id) || !is_of_maker(maker.peer, fork))
        return tether_error_set(reterr, TETHER_ECORRUPT,
                                "worker '%s' wants an object made under an id that another worker, "
                                "or another start of it, has given",
                                maker.peer->name);
    struct tether__collected collected = {NULL};
    pthread_mutex_lock(&refs->mu);
    tether_status st = TETHER_OK;
    tether_rref *rref = tether__owner_find_locked(refs, id);
    if (rref && (!rref->owner.expected || rref->owner.maker.peer != maker.peer))
        st = TETHER_EEXIST;
    else if (rref)
        tether_rref_retain(rref);
    else if (!(rref = tether__owner_expect_locked(refs, id, maker)))
        st = TETHER_ENOMEM;
    if (st == TETHER_OK) {
        if (site[0] && !rref->site)
            set_site_locked(rref, site);
        st = tether__fork_add_locked(rref, fork, maker);
        if (st == TETHER_OK)
            st = tether__watermark_raise_locked(refs, id);
        if (st != TETHER_OK) {
            tether__fork_remove_locked(rref, fork, maker.peer, &collected);
            tether__rref_drop_locked(rref, &collected);
        }
    }
    *ret_awaited = tether__map_count(&refs->awaited) > 0;
    pthread_mutex_unlock(&refs->mu);
    tether__refs_settle(refs, &collected);
    if (st != TETHER_OK)
        return tether_error_set(reterr, st, "keeping the object: %s", tether_status_text(st));
    *ret_rref = rref;
    return TETHER_OK;
}

static void answer_awaited(struct tether__refs *refs, tether_rref_id id)
{
    tether__unpark(refs, id);
    tether__unpark_passed(refs);
}

enum tether__outcome tether__refs_remote_arrived(void *ext,
                                                 struct tether__peer *peer,
                                                 uint64_t epoch,
                                                 const Tether__Call *call,
                                                 void **ret_result,
                                                 tether_error *reterr)
{
    struct tether__refs *refs = ext;
    tether_rref_id id = tether__id_from_numbers(call->result, call->n_result);
    tether_rref *rref = NULL;
    bool awaited = false;
    if (!call->announced) {
        tether_status st =
            enter_object(refs, (struct tether__party){peer, epoch}, id,
                         tether__id_from_numbers(call->result_fork, call->n_result_fork),
                         call->site, &rref, &awaited, reterr);
        if (st != TETHER_OK)
            return tether__outcome_of(st);
    }
    pthread_mutex_lock(&refs->mu);
    if (call->announced) { /* unless its maker has let go of it since: then nobody wants it */
        rref = tether__owner_find_locked(refs, id);
        bool expected = rref && rref->owner.expected && rref->owner.maker.peer == peer;
        rref = expected ? tether_rref_retain(rref) : NULL;
    }
    if (rref) { /* from here on the count that we have is `making`'s */
        rref->owner.expected = false;
        tether__list_remove(&rref->node);
    }
    pthread_mutex_unlock(&refs->mu);
    *ret_result = rref;
    if (awaited)
        answer_awaited(refs, id);
    return TETHER__DONE;
}

enum tether__outcome tether__refs_on_announce(struct tether__refs *refs,
                                              struct tether__party maker,
                                              const Tether__Announce *message)
{
    tether_rref_id id = tether__id_from_wire(message->result);
    tether_rref *rref;
    bool awaited;
    tether_status st = enter_object(refs, maker, id, tether__id_from_wire(message->result_fork),
                                    message->site, &rref, &awaited, NULL);
    if (st != TETHER_OK)
        return tether__outcome_of(st);
    tether_rref_release(rref); /* until its call comes the fork keeps it */
    if (awaited)
        answer_awaited(refs, id);
    return TETHER__DONE;
}

void tether__owner_made(tether_rref *rref,
                        tether_status status,
                        const char *error,
                        tether_value *value)
{
    struct tether__refs *refs = rref->context;
    struct tether__collected collected = {NULL};
    tether_future *settled;
    tether_rref_id id = rref->id;
    pthread_mutex_lock(&refs->mu);
    bool awaited = tether__map_count(&refs->awaited) > 0;
    rref->owner.making = false;
    if (status == TETHER_OK && rref->state == TETHER_RREF_BROKEN) {
        settled = NULL; /* its creator has given up, and nobody else can get it any more */
    } else if (status == TETHER_OK) {
        rref->owner.value = tether_value_retain(value);
        const tether_type *type = tether_value_type(value);
        rref->type = type ? tether__name_get_locked(refs, type->name) : NULL;
        settled = tether_future_retain(rref->settled);
    } else {
        settled = tether__rref_break_locked(rref, status, error);
    }
    pthread_mutex_unlock(&refs->mu);
    tether_error cause = {0};
    if (status != TETHER_OK)
        tether_error_set(&cause, status, "%s", error);
    tether__future_settle(settled, status, &cause);
    if (awaited)
        tether__unpark(refs, id);
    pthread_mutex_lock(&refs->mu);
    tether__rref_drop_locked(rref, &collected); /* it is made: that count goes */
    pthread_mutex_unlock(&refs->mu);
    tether__refs_settle(refs, &collected);
}

/* Our own call that was to make an object here has ended without its function: its time is up, or
 * the agent stops. The reference breaks, unless it was passed on: others may hold it then, or give
 * it back, and its function may still make the object. */
static void owner_give_up(tether_rref *rref, tether_status status, const tether_error *error)
{
    struct tether__refs *refs = rref->context;
    tether_future *settled = NULL;
    tether_rref_id id = rref->id;
    pthread_mutex_lock(&refs->mu);
    bool gives_up = rref->owner.making && (!rref->owner.passed_on || status == TETHER_ESHUTDOWN);
    if (gives_up) {
        rref->owner.making = false;
        settled = tether__rref_break_locked(rref, status, error->message);
    }
    pthread_mutex_unlock(&refs->mu);
    tether__future_settle(settled, status, error);
    if (gives_up)
        tether__unpark(refs, id);
}

void tether__refs_result_type(void *result, const char *type)
{
    tether_rref *rref = result;
    pthread_mutex_lock(&rref->context->mu);
    tether__name_put_locked(rref->context, rref->type);
    rref->type = tether__name_get_locked(rref->context, type);
    pthread_mutex_unlock(&rref->context->mu);
}

void tether__refs_remote_done(void *result,
                              tether_status status,
                              const char *error,
                              tether_value *value)
{
    tether__owner_made(result, status, error, value);
}

static bool is_mine(const struct tether__refs *refs, uint64_t owner_incarnation)
{
    return !owner_incarnation || owner_incarnation == refs->agent->self.incarnation;
}

struct tether__rider *tether__refs_hold_target(void *ext,
                                               const Tether__RefId *target,
                                               uint64_t owner_incarnation)
{
    struct tether__refs *refs = ext;
    tether_rref *rref = NULL;
    pthread_mutex_lock(&refs->mu);
    if (is_mine(refs, owner_incarnation))
        rref = tether_rref_retain(tether__owner_find_locked(refs, tether__id_from_wire(target)));
    pthread_mutex_unlock(&refs->mu);
    return rref ? &rref->rider : NULL;
}

enum tether__outcome tether__refs_find_target(void *ext,
                                              struct tether__peer *peer,
                                              uint64_t epoch,
                                              const Tether__RefId *target,
                                              uint64_t owner_incarnation,
                                              int64_t deadline,
                                              struct tether__resume *resume,
                                              tether_value **ret_object,
                                              tether_error *reterr)
{
    struct tether__refs *refs = ext;
    tether_rref_id id = tether__id_from_wire(target);
    enum tether__outcome outcome = TETHER__REFUSED;
    pthread_mutex_lock(&refs->mu);
    tether_rref *rref = NULL;
    bool mine = is_mine(refs, owner_incarnation);
    if (mine)
        rref = tether__owner_find_locked(refs, id);
    if (mine && ((rref && rref->owner.making) || (!rref && tether__may_come_locked(refs, id)))) {
        struct tether__parked parked = {
            .what = TETHER__PARKED_TARGET,
            .from = {peer, epoch},
            .object = id,
            .deadline = deadline,
            .resume = resume,
        };
        if (tether__park_locked(refs, &parked, rref))
            outcome = TETHER__WAITS;
        else
            tether_error_set(reterr, TETHER_ENOMEM, "no memory to wait for the object");
    } else if (!rref) {
        tether_error_set(reterr, TETHER_EGONE, "the object is gone");
    } else if (tether__rref_usable_locked(rref, reterr) == TETHER_OK) {
        if (rref->owner.value) {
            *ret_object = tether_value_retain(rref->owner.value);
            outcome = TETHER__DONE;
        } else {
            tether_error_set(reterr, TETHER_ETYPE, "there is no object, nothing was returned");
        }
    }
    pthread_mutex_unlock(&refs->mu);
    return outcome;
}

/* ---- At the user --------------------------------------------------------------------------------
 */

struct making {
    tether_rref *rref;
    bool announced;
};

static tether_status announce_locked(struct tether__peer *peer,
                                     struct making *making,
                                     const char *site)
{
    Tether__Announce message = TETHER__ANNOUNCE__INIT;
    Tether__RefId result = tether__wire_id(making->rref->id);
    Tether__RefId fork = tether__wire_id(making->rref->user.fork);
    struct tether__packed packed;
    message.result = &result;
    message.result_fork = &fork;
    message.site = (char *)(site ? site : "");
    tether_status st = tether__pack(&packed, &message.base);
    if (st != TETHER_OK)
        return st;
    st = tether__lane_send(&peer->out.lane, TETHER__FRAME_ANNOUNCE, packed.bytes,
                           TETHER__SLICE_EMPTY, NULL);
    tether__packed_fini(&packed);
    making->announced = st == TETHER_OK;
    return st;
}

/* In the order in which calls are queued: the owner sees our counters rise. */
static tether_status prepare_locked(void *userdata,
                                    struct tether__peer *peer,
                                    struct tether__call_target *target)
{
    struct making *making = userdata;
    tether_rref *rref = making->rref;
    struct tether__refs *refs = rref->context;
    rref->id = tether__refs_new_id(refs);
    rref->user.fork = tether__refs_new_id(refs);
    rref->user.owner = (struct tether__party){peer, peer->session_epoch};
    target->makes = true;
    tether__id_to_numbers(rref->id, target->result);
    tether__id_to_numbers(rref->user.fork, target->result_fork);
    pthread_mutex_lock(&refs->mu);
    tether_status st = tether__user_add_locked(rref);
    rref->known_to_owner = st == TETHER_OK; /* from here on, as far as we can tell */
    pthread_mutex_unlock(&refs->mu);
    if (st == TETHER_OK && target->in_pieces)
        st = announce_locked(peer, making, target->site);
    target->announced = making->announced;
    return st;
}

static void drop_count(tether_rref *rref)
{
    struct tether__refs *refs = tether__refs_retain(rref->context);
    struct tether__collected collected = {NULL};
    pthread_mutex_lock(&refs->mu);
    tether__rref_drop_locked(rref, &collected);
    pthread_mutex_unlock(&refs->mu);
    tether__refs_settle(refs, &collected);
    tether__refs_release(refs);
}

/* The creation has failed: fails the calls that wait for the object, and gives notice of the loss.
 * By the work list: such a call may be the creation of an object that others wait for, and so on.
 */
static void tell_of_failure(struct tether__work *work)
{
    tether_rref *rref = tether__container_of(work, struct tether_rref, work);
    tether_error error = {0};
    pthread_mutex_lock(&rref->context->mu);
    tether_status status = tether__rref_usable_locked(rref, &error);
    bool lost = rref->lost;
    pthread_mutex_unlock(&rref->context->mu);
    if (status != TETHER_OK && tether__id_is_set(rref->user.fork))
        tether__calls_end_use(rref->user.owner.peer, tether__rref_use_of(rref), status, &error);
    if (lost)
        tether__rref_give_notice(rref);
    drop_count(rref);
}

/* The creation is over, one way or the other: the count that it had goes. `lost`: it failed because
 * the session with the owner has ended. */
static void made(tether_rref *rref, tether_status status, const tether_error *error, bool lost)
{
    if (lost)
        status = TETHER_EOWNERDIED;
    struct tether__refs *refs = rref->context;
    tether_future *settled = NULL;
    pthread_mutex_lock(&refs->mu);
    if (status == TETHER_OK && rref->state == TETHER_RREF_PENDING) {
        tether__user_set_state_locked(rref, TETHER_RREF_CONFIRMED);
        if (rref->user.owner.peer)
            rref->user.owner_incarnation =
                (uint32_t)atomic_load(&rref->user.owner.peer->incarnation);
        rref->user.owner_id = tether__rref_owner_id(rref);
        settled = tether_future_retain(rref->settled);
    } else if (status != TETHER_OK) {
        settled = tether__rref_break_locked(rref, status, error->message);
        rref->lost |= lost;
    }
    pthread_mutex_unlock(&refs->mu);
    tether__future_settle(settled, status, error);
    if (status == TETHER_OK) {
        drop_count(rref);
        return;
    }
    rref->work.run = tell_of_failure;
    tether__work_run(&rref->work);
}

static void on_reply(tether_future *future, void *userdata)
{
    tether_error error = {0};
    tether_status st = tether_future_status(future, &error);
    made(userdata, st, &error, tether__future_is_loss(future));
}

static void on_own_reply(tether_future *future, void *userdata)
{
    tether_error error = {0};
    tether_status st = tether_future_status(future, &error);
    if (st != TETHER_OK)
        owner_give_up(userdata, st, &error);
    tether_rref_release(userdata);
}

static tether_rref *no_memory(void)
{
    static struct tether_rref none = {
        .refs = UINT32_MAX / 2,
        .state = TETHER_RREF_BROKEN,
        .cause_code = TETHER_ENOMEM,
    };
    return &none;
}

bool tether__rref_is_no_memory(const tether_rref *rref)
{
    return rref == no_memory();
}

/* Calls `fn` on `peer`, with `object` when it is a method, and keeps the result as `rref`. */
static tether_rref *make(struct tether__refs *refs,
                         struct tether__peer *peer,
                         const char *fn,
                         const struct tether__call_target *about,
                         const tether_value *arg,
                         int timeout_ms,
                         const char *site,
                         tether_status st,
                         tether_error *error)
{
    tether_agent *agent = refs->agent;
    bool own = peer && peer->is_self;
    tether_rref *rref =
        tether__rref_alloc(refs, own, own ? tether__refs_new_id(refs) : (tether_rref_id){0, 0, 0});
    if (!rref)
        return no_memory();
    rref->site = site;
    tether_rref_retain(rref); /* one for the caller, one while it is being made */
    if (own) {
        rref->owner.making = true;
        pthread_mutex_lock(&refs->mu);
        tether__list_push_back(&refs->own, &rref->node);
        pthread_mutex_unlock(&refs->mu);
    } else if (peer)
        rref->user.owner.peer = peer;
    if (!own)
        rref->user.owner_id = UINT32_MAX; /* until we have met it */
    struct making making = {.rref = rref};
    struct tether__call_target target = about ? *about : (struct tether__call_target){0};
    struct tether__call *call = NULL;
    target.site = site;
    target.prepare_locked = own ? NULL : prepare_locked;
    target.prepare_userdata = &making;
    target.result_here = own ? rref : NULL;
    target.result_there = own ? NULL : rref;
    if (st == TETHER_OK) {
        int64_t deadline = tether__call_deadline(agent, timeout_ms);
        if (own) /* for on_own_reply(): the call may end before the function, or after it */
            tether_rref_retain(rref);
        st = tether__call_start(agent, peer, fn, &target, arg, deadline, &call, error);
        if (st == TETHER_OK)
            tether__agent_kick(agent, deadline);
        else if (own)
            tether_rref_release(rref);
    }
    if (st != TETHER_OK && own) {
        tether__owner_made(rref, st, error->message, NULL);
    } else if (st != TETHER_OK) {
        pthread_mutex_lock(&refs->mu); /* it may be in the table: a fence looks at it */
        rref->known_to_owner = making.announced;
        pthread_mutex_unlock(&refs->mu);
        made(rref, st, error, false);
    } else {
        if (target.about)
            tether__rref_tie(tether__container_of(target.about, struct tether_rref, rider), call);
        tether_future_then(&call->future, own ? on_own_reply : on_reply, rref);
        tether_future_release(&call->future);
    }
    return rref;
}

tether_rref *tether_remote_at(tether_agent *agent,
                              const char *to,
                              const char *fn,
                              const tether_value *arg,
                              int timeout_ms,
                              const char *site)
{
    tether_error error = {0};
    struct tether__peer *peer = NULL;
    bool entered = tether__agent_enter(agent);
    tether_status st = entered ? tether__call_check(agent, fn, timeout_ms, &error)
                               : tether__agent_has_stopped(fn, &error);
    if (st == TETHER_OK && agent->opts.observe)
        st = tether_error_set(&error, TETHER_EPERM,
                              "an observer neither makes nor holds references: join the group");
    if (st == TETHER_OK)
        st = tether__agent_resolve(agent, to, &peer, &error);
    tether_rref *rref =
        make(tether__refs_of(agent), peer, fn, NULL, arg, timeout_ms, site, st, &error);
    if (peer)
        tether__peer_release(peer);
    if (entered)
        tether__agent_exit(agent);
    return rref;
}

tether_rref *tether_rref_remote_at(tether_rref *rref,
                                   const char *method,
                                   const tether_value *arg,
                                   int timeout_ms,
                                   const char *site)
{
    if (tether__rref_is_no_memory(rref))
        return no_memory();
    tether_error error = {0};
    struct tether__rref_use use = {0};
    tether_agent *agent = rref->context->agent;
    bool entered = tether__agent_enter(agent);
    tether_status st = tether__rref_begin_use(rref, method, &use, &error);
    if (st == TETHER_OK)
        st = tether__timeout_check(timeout_ms, &error);
    if (st == TETHER_OK && !entered)
        st = tether__agent_has_stopped(method, &error);
    tether_rref *result =
        make(rref->context, use.peer, method, &use.target, arg, timeout_ms, site, st, &error);
    tether__rref_end_use(&use);
    if (entered)
        tether__agent_exit(agent);
    return result;
}

tether_status tether_rref_new_at(tether_agent *agent,
                                 tether_value *value,
                                 const char *site,
                                 tether_rref **ret_rref,
                                 tether_error *reterr)
{
    struct tether__refs *refs = tether__refs_of(agent);
    int state = atomic_load(&agent->state);
    /* Functions run for others before start() has returned here and while shutdown() waits: they
     * may make what they give back. */
    if (state != TETHER__AGENT_RUNNING && state != TETHER__AGENT_JOINING &&
        state != TETHER__AGENT_STOPPING)
        return tether_error_set(reterr, TETHER_ESHUTDOWN, "the agent is not running");
    tether_rref *rref = tether__rref_alloc(refs, true, tether__refs_new_id(refs));
    if (!rref)
        return tether_error_set(reterr, TETHER_ENOMEM, "no memory for a reference");
    const tether_type *type = tether_value_type(value);
    pthread_mutex_lock(&refs->mu);
    rref->type = type ? tether__name_get_locked(refs, type->name) : NULL;
    tether__list_push_back(&refs->own, &rref->node);
    pthread_mutex_unlock(&refs->mu);
    rref->site = site;
    rref->owner.value = tether_value_retain(value);
    *ret_rref = rref;
    return TETHER_OK;
}
