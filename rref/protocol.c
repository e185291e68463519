/* Messages of other workers about references and objects.
 *
 * Messages that arrive twice, late, or for objects that are gone have no effect.
 */
#include <string.h>

#include "rpc/serve/serve.h"
#include "rpc/wire/wire.h"
#include "rref/context.h"
#include "rref/hooks.h"

static int64_t deadline_of(const struct tether__refs *refs, uint32_t timeout_ms)
{
    return timeout_ms ? tether__deadline_in(refs->clock, (int)timeout_ms) : TETHER__NEVER;
}

/* Watches the worker that passed on an object before it was made, and so is about to create it. We
 * may never have met that worker: the session with it, or its end, tells whether the object may
 * still come. Returns a retained peer, or
 * NULL. */
static struct tether__peer *watch_creator(struct tether__refs *refs,
                                          struct tether__peer *from,
                                          const char *name,
                                          uint64_t start)
{
    struct tether__peer *peer;
    if (!tether__name_valid(name) || strcmp(name, tether_agent_name(refs->agent)) == 0 ||
        tether__agent_peer_named_by(refs->agent, from, name, &peer, NULL) != TETHER_OK)
        return NULL;
    tether__peer_watch(peer, start);
    return peer;
}

static bool must_wait(struct tether__refs *refs, uint64_t owner_incarnation, tether_rref_id object)
{
    pthread_mutex_lock(&refs->mu);
    bool wait = tether__refs_is_me(refs, owner_incarnation) &&
                !tether__owner_find_locked(refs, object) && tether__may_come_locked(refs, object);
    pthread_mutex_unlock(&refs->mu);
    return wait;
}

static void on_fork_request(struct tether__refs *refs,
                            struct tether__ref_session from,
                            const Tether__ForkRequest *message)
{
    tether_rref_id object = tether__id_from_wire(message->object);
    tether_rref_id fork = tether__id_from_wire(message->fork);
    struct tether__peer *creator =
        must_wait(refs, message->owner_incarnation, object)
            ? watch_creator(refs, from.peer, message->parent, object.incarnation)
            : NULL;
    tether_status st = TETHER_EGONE;
    bool waits = false;
    pthread_mutex_lock(&refs->mu);
    if (tether__refs_is_me(refs, message->owner_incarnation)) {
        tether_rref *rref = tether__owner_find_locked(refs, object);
        if (rref) {
            st = tether__fork_add_locked(rref, fork, from);
        } else if (tether__may_come_locked(refs, object)) {
            struct tether__waiting waiting = {
                .what = TETHER__WAITING_FORK,
                .from = from,
                .request = message->id,
                .object = object,
                .fork.id = fork,
                .creator = creator,
                .made_in = message->made_in,
                .deadline = deadline_of(refs, message->timeout_ms),
            };
            if (!tether__may_wait_locked(refs, from.peer)) {
                st = TETHER_EBUSY;
            } else if (!tether__waiting_in_vain(&waiting)) {
                waits = tether__waiting_add_locked(refs, &waiting, NULL);
                st = TETHER_ENOMEM;
            }
        }
    }
    pthread_mutex_unlock(&refs->mu);
    tether__peer_release(creator);
    if (!waits)
        tether__reply_to(from.peer, from.number, message->id, st,
                         st == TETHER_EGONE ? "the object is gone" : tether_status_text(st), NULL);
}

static void on_fetch(struct tether__refs *refs,
                     struct tether__ref_session from,
                     const Tether__Fetch *message,
                     size_t unread)
{
    tether_rref_id object = tether__id_from_wire(message->object);
    tether_status st = TETHER_EGONE;
    bool waits = false;
    tether_error error;
    tether_value *value = NULL;
    error.message[0] = '\0';
    pthread_mutex_lock(&refs->mu);
    if (unread > refs->opts->max_bytes_per_peer) {
        st = tether_error_set(&error, TETHER_EBUSY,
                              "%zu bytes of replies are still on their way to this caller: wait "
                              "for some, or raise max_bytes_per_peer there",
                              unread);
    } else if (tether__refs_is_me(refs, message->owner_incarnation)) {
        tether_rref *rref = tether__owner_find_locked(refs, object);
        if ((rref && rref->owner.making) || (!rref && tether__may_come_locked(refs, object))) {
            struct tether__waiting waiting = {
                .what = TETHER__WAITING_FETCH,
                .from = from,
                .request = message->id,
                .object = object,
                .deadline = deadline_of(refs, message->timeout_ms),
            };
            bool may_wait = tether__may_wait_locked(refs, from.peer);
            waits = may_wait && tether__waiting_add_locked(refs, &waiting, rref);
            st = may_wait
                     ? tether_error_set(&error, TETHER_ENOMEM, "no memory to wait for the object")
                     : tether_error_set(&error, TETHER_EBUSY,
                                        "too many requests of this worker wait there for "
                                        "objects: wait for some to be answered");
        } else if (rref) {
            st = tether__rref_usable_locked(rref, &error);
            value = tether_value_retain(rref->owner.value);
        }
    }
    pthread_mutex_unlock(&refs->mu);
    if (!waits)
        tether__reply_to(from.peer, from.number, message->id, st,
                         error.message[0] || st == TETHER_OK ? error.message : "the object is gone",
                         value);
    tether_value_release(value);
}

static enum tether__outcome on_user_delete(struct tether__refs *refs,
                                           struct tether__peer *peer,
                                           const Tether__UserDelete *message)
{
    struct tether__collected collected = {NULL};
    size_t n = tether__ids_count(message->object);
    if (tether__ids_count(message->fork) != n || n > TETHER__MAX_IDS)
        return TETHER__MALFORMED;
    pthread_mutex_lock(&refs->mu);
    for (size_t i = 0; i < n; i++) {
        tether_rref_id fork = tether__ids_at(message->fork, i);
        tether_rref *rref = tether__owner_find_locked(refs, tether__ids_at(message->object, i));
        if (!rref || !tether__fork_remove_locked(rref, fork, peer, &collected))
            tether__waiting_drop_fork_locked(refs, fork, peer);
    }
    pthread_mutex_unlock(&refs->mu);
    tether__refs_run_collected(refs, &collected);
    return TETHER__DONE;
}

static enum tether__outcome on_child_accept(struct tether__refs *refs,
                                            struct tether__peer *peer,
                                            const Tether__ChildAccept *message)
{
    struct tether__collected collected = {NULL};
    size_t n = tether__ids_count(message->fork);
    if (n > TETHER__MAX_IDS)
        return TETHER__MALFORMED;
    pthread_mutex_lock(&refs->mu);
    for (size_t i = 0; i < n; i++)
        tether__child_remove_locked(refs, tether__ids_at(message->fork, i), peer, &collected);
    pthread_mutex_unlock(&refs->mu);
    tether__refs_run_collected(refs, &collected);
    return TETHER__DONE;
}

enum tether__outcome tether__refs_frame(void *ext,
                                        struct tether__peer *peer,
                                        uint64_t session_number,
                                        const struct tether__inbound *message,
                                        size_t unread)
{
    static const ProtobufCMessageDescriptor *const descriptors[] = {
        [TETHER__FRAME_FORK_REQUEST] = &tether__fork_request__descriptor,
        [TETHER__FRAME_CHILD_ACCEPT] = &tether__child_accept__descriptor,
        [TETHER__FRAME_USER_DELETE] = &tether__user_delete__descriptor,
        [TETHER__FRAME_FETCH] = &tether__fetch__descriptor,
        [TETHER__FRAME_ANNOUNCE] = &tether__announce__descriptor,
    };
    struct tether__refs *refs = ext;
    struct tether__ref_session from = {peer, session_number};
    if (message->kind >= TETHER__ARRAY_LEN(descriptors) || !descriptors[message->kind])
        return TETHER__DONE; /* ignore the message: the peer may run a newer version that has more
                                kinds */
    TETHER__ARENA(arena, 2048);
    const void *body;
    enum tether__outcome outcome = tether__outcome_of_unpacking(
        tether__wire_unpack(descriptors[message->kind], message->header, &arena, &body));
    if (outcome == TETHER__DONE) {
        switch (message->kind) {
            case TETHER__FRAME_FORK_REQUEST:
                on_fork_request(refs, from, body);
                break;
            case TETHER__FRAME_CHILD_ACCEPT:
                outcome = on_child_accept(refs, peer, body);
                break;
            case TETHER__FRAME_USER_DELETE:
                outcome = on_user_delete(refs, peer, body);
                break;
            case TETHER__FRAME_FETCH:
                on_fetch(refs, from, body, unread);
                break;
            case TETHER__FRAME_ANNOUNCE:
                outcome = tether__refs_on_announce(refs, from, body);
                break;
        }
    }
    tether__arena_fini(&arena);
    return outcome;
}

/* ---- Targets of method calls ---- */

enum tether__outcome tether__refs_find_target(void *ext,
                                              struct tether__peer *peer,
                                              uint64_t session_number,
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
    bool mine = tether__refs_is_me(refs, owner_incarnation);
    if (mine)
        rref = tether__owner_find_locked(refs, id);
    if (mine && ((rref && rref->owner.making) || (!rref && tether__may_come_locked(refs, id)))) {
        struct tether__waiting waiting = {
            .what = TETHER__WAITING_TARGET,
            .from = {peer, session_number},
            .object = id,
            .deadline = deadline,
            .resume = resume,
        };
        if (tether__waiting_add_locked(refs, &waiting, rref))
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
