/* Objects of this worker: those that other workers have made here, and those that it made itself.
 */
#include <string.h>

#include "base/alloc.h"
#include "rpc/peer/calls/slots.h"
#include "rpc/peer/limits.h"
#include "rref/context.h"
#include "rref/hooks.h"

tether_rref *tether__owner_find_locked(struct tether__refs *refs, tether_rref_id id)
{
    tether_rref_id *found = tether__map_get(&refs->owners, &id);
    return found ? tether__container_of(found, struct tether_rref, id) : NULL;
}

bool tether__may_expect_locked(struct tether__refs *refs, struct tether__peer *creator)
{
    const struct tether__ref_peer *ref_peer = tether__ref_peer_find_locked(creator);
    return !ref_peer || ref_peer->n_expected < tether__max_held_calls(refs->agent);
}

void tether__expected_remove_locked(tether_rref *rref)
{
    if (!rref->owner.expected)
        return;
    rref->owner.expected = false;
    /* once the agent has been released, the peer of the creator may be freed */
    if (!atomic_load(&rref->context->detached))
        tether__ref_peer_find_locked(rref->owner.creator.peer)->n_expected--;
}

tether_rref *tether__owner_expect_locked(struct tether__refs *refs,
                                         tether_rref_id id,
                                         struct tether__ref_session creator)
{
    struct tether__ref_peer *ref_peer = tether__ref_peer_locked(creator.peer);
    tether_rref *rref = ref_peer ? tether__rref_alloc(refs, true, id) : NULL;
    if (!rref)
        return NULL;
    rref->owner.making = rref->owner.expected = true;
    rref->owner.creator = creator;
    if (tether__owner_add_locked(rref) == TETHER_OK) {
        tether__list_push_back(&ref_peer->live.expected, &rref->node);
        ref_peer->n_expected++;
        return rref;
    }
    tether__rref_free(rref);
    return NULL;
}

tether_status tether__owner_add_locked(tether_rref *rref)
{
    if (rref->in_table)
        return TETHER_OK;
    tether_status st = tether__map_put(&rref->context->owners, &rref->id);
    rref->in_table = st == TETHER_OK;
    return st;
}

/* ---- Creations by other workers ---- */

/* Stores the site; without memory the site stays unknown. */
static void set_site_locked(tether_rref *rref, const char *site)
{
    tether_bytes cut = tether_bytes_of(site, strnlen(site, TETHER__MAX_SITE));
    rref->site = tether__name_get_bytes_locked(rref->context, cut);
    rref->site_is_name = rref->site != NULL;
}

bool tether__is_of_creator(struct tether__peer *creator, tether_rref_id id)
{
    return tether__peer_has_start(creator, id.incarnation);
}

/* Returns the entry of an object that is to be made, with its creator's fork; the caller gets one
 * count. The entry may exist already, because the object was announced, or a reference to it
 * arrived first. `*ret_awaited`: requests may wait for this object, or for objects that cannot
 * come any more: see answer_awaited().
 */
static tether_status enter_object(struct tether__refs *refs,
                                  struct tether__ref_session creator,
                                  tether_rref_id id,
                                  tether_rref_id fork,
                                  const char *site,
                                  tether_rref **ret_rref,
                                  bool *ret_awaited,
                                  tether_error *reterr)
{
    if (!tether__id_is_set(id) || !tether__id_is_set(fork))
        return tether_error_set(reterr, TETHER_ECORRUPT, "a remote call without an id");
    if (!tether__is_of_creator(creator.peer, id) || !tether__is_of_creator(creator.peer, fork))
        return tether_error_set(reterr, TETHER_ECORRUPT,
                                "worker '%s' wants an object made under an id that another worker, "
                                "or another start of it, has given",
                                tether__peer_name(creator.peer));
    struct tether__collected collected = {NULL};
    pthread_mutex_lock(&refs->mu);
    tether_status st = TETHER_OK;
    tether_rref *rref = tether__owner_find_locked(refs, id);
    if (rref && (!rref->owner.expected || rref->owner.creator.peer != creator.peer))
        st = TETHER_EEXIST;
    else if (rref)
        tether_rref_retain(rref);
    else if (!tether__may_expect_locked(refs, creator.peer))
        st = TETHER_EBUSY;
    else if (!(rref = tether__owner_expect_locked(refs, id, creator)))
        st = TETHER_ENOMEM;
    if (st == TETHER_OK) {
        if (site[0] && !rref->site)
            set_site_locked(rref, site);
        st = tether__fork_add_locked(rref, fork, creator);
        if (st == TETHER_OK)
            st = tether__watermark_raise_locked(refs, creator.peer, id);
        if (st != TETHER_OK) {
            tether__fork_remove_locked(rref, fork, creator.peer, &collected);
            tether__rref_drop_locked(rref, &collected);
        }
    }
    *ret_awaited = tether__map_count(&refs->awaited) > 0;
    pthread_mutex_unlock(&refs->mu);
    tether__refs_run_collected(refs, &collected);
    if (st != TETHER_OK)
        return tether_error_set(reterr, st, "keeping the object: %s", tether_status_text(st));
    *ret_rref = rref;
    return TETHER_OK;
}

static void answer_awaited(struct tether__refs *refs, tether_rref_id id)
{
    tether__waiting_answer(refs, id);
    tether__waiting_answer_passed(refs);
}

enum tether__outcome tether__owner_called(struct tether__refs *refs,
                                          struct tether__ref_session creator,
                                          const Tether__Call *call,
                                          void **ret_result,
                                          tether_error *reterr)
{
    tether_rref_id id = tether__id_from_numbers(call->result, call->n_result);
    tether_rref *rref = NULL;
    bool awaited = false;
    if (!call->announced) {
        tether_status st = enter_object(
            refs, creator, id, tether__id_from_numbers(call->result_fork, call->n_result_fork),
            call->site, &rref, &awaited, reterr);
        if (st != TETHER_OK)
            return tether__outcome_of(st);
    }
    pthread_mutex_lock(&refs->mu);
    /* NULL if the creator has released the announced object meanwhile: then the result is not
     * kept */
    if (call->announced) {
        rref = tether__owner_find_locked(refs, id);
        bool expected = rref && rref->owner.expected && rref->owner.creator.peer == creator.peer;
        rref = expected ? tether_rref_retain(rref) : NULL;
    }
    if (rref) { /* from here on our count of the entry belongs to the creation (`making`) */
        tether__expected_remove_locked(rref);
        tether__list_remove(&rref->node);
    }
    pthread_mutex_unlock(&refs->mu);
    *ret_result = rref;
    if (awaited)
        answer_awaited(refs, id);
    return TETHER__DONE;
}

enum tether__outcome tether__refs_on_announce(struct tether__refs *refs,
                                              struct tether__ref_session creator,
                                              const Tether__Announce *message)
{
    tether_rref_id id = tether__id_from_wire(message->result);
    tether_rref *rref;
    bool awaited;
    tether_status st = enter_object(refs, creator, id, tether__id_from_wire(message->result_fork),
                                    message->site, &rref, &awaited, NULL);
    if (st != TETHER_OK)
        return tether__outcome_of(st);
    tether_rref_release(rref); /* until the call comes the creator's fork keeps the entry */
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
    tether_future *ready;
    tether_rref_id id = rref->id;
    pthread_mutex_lock(&refs->mu);
    bool awaited = tether__map_count(&refs->awaited) > 0;
    rref->owner.making = false;
    if (status == TETHER_OK && rref->state == TETHER_RREF_BROKEN) {
        /* the creator has released the object, and no other worker can get it any more */
        ready = NULL;
    } else if (status == TETHER_OK) {
        rref->owner.value = tether_value_retain(value);
        const tether_type *type = tether_value_type(value);
        rref->type = type ? tether__name_get_locked(refs, type->name) : NULL;
        ready = tether_future_retain(rref->ready);
    } else {
        ready = tether__rref_break_locked(rref, status, error);
    }
    pthread_mutex_unlock(&refs->mu);
    tether_error cause = {0};
    if (status != TETHER_OK)
        tether_error_set(&cause, status, "%s", error);
    tether__future_finish_and_release(ready, status, &cause);
    if (awaited)
        tether__waiting_answer(refs, id);
    pthread_mutex_lock(&refs->mu);
    tether__rref_drop_locked(rref, &collected); /* the creation is over, so drop its count */
    pthread_mutex_unlock(&refs->mu);
    tether__refs_run_collected(refs, &collected);
}

/* Ends our own call that was to make an object here and never ran its function: it timed out, or
 * the agent stops. Breaks the reference unless it was passed on: then other workers may hold it,
 * and its function may still make the object. */
void tether__owner_give_up(tether_rref *rref, tether_status status, const tether_error *error)
{
    struct tether__refs *refs = rref->context;
    tether_future *ready = NULL;
    tether_rref_id id = rref->id;
    pthread_mutex_lock(&refs->mu);
    bool gives_up = rref->owner.making && (!rref->owner.passed_on || status == TETHER_ESHUTDOWN);
    if (gives_up) {
        rref->owner.making = false;
        ready = tether__rref_break_locked(rref, status, error->message);
    }
    pthread_mutex_unlock(&refs->mu);
    tether__future_finish_and_release(ready, status, error);
    if (gives_up)
        tether__waiting_answer(refs, id);
}

void tether__refs_result_type(void *result, const char *type)
{
    tether_rref *rref = result;
    if (strlen(type) > TETHER_MAX_TYPE_NAME)
        return;
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
