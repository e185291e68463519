/* The hooks by which the reference layer takes part in the work of an agent.
 *
 * The agent itself knows only that values may carry references, that calls may be about an object,
 * and that some frames are not its own; it hands all of that to the extension. Functions that end
 * in _locked run with peer->mu held and must not send; the others run without a lock.
 */
#ifndef TETHER_RPC_REFS_H
#define TETHER_RPC_REFS_H

#include "base/status.h"
#include "protos/rpc.pb-c.h"
#include "rpc/lane/lane.h"
#include "rpc/wire/outcome.h"
#include "rpc/wire/value_internal.h"

struct tether_agent;
struct tether__peer;
struct tether__outbox_items;
struct tether__arrival; /* references that have come in a message */

/* The references attached to one message, packed. */
struct tether__ref_pack {
    size_t n;
    Tether__Ref **refs;
    void *memory; /* the allocation of all of it; NULL when n is 0 */
};

/* Goes on with a message once its references are confirmed. Once, on any thread. */
struct tether__resume {
    void (*run)(struct tether__resume *resume, tether_status status, const tether_error *error);
};

struct tether__ext_ops {
    void *(*attach)(struct tether_agent *agent, tether_error *reterr); /* NULL: failed */
    void (*detach)(void *ext);                                         /* the agent is released */

    /* Sending. `may_be_overtaken`: later control messages may come before this one. pack registers
     * what is sent; undo takes that back when the message was not queued after all; both free or
     * fill `pack`. */
    tether_status (*pack_locked)(void *ext,
                                 struct tether__peer *peer,
                                 const tether_value *value,
                                 bool may_be_overtaken,
                                 struct tether__ref_pack *ret_pack,
                                 tether_error *reterr);
    void (*undo_locked)(void *ext, struct tether__peer *peer, struct tether__ref_pack *pack);
    void (*pack_fini)(struct tether__ref_pack *pack);

    /* Whether all references on `value` can be used. TETHER_OK, or why the first one cannot: its
     * cause when it is broken. `sending`: as pack_locked() would judge, which also looks at objects
     * of our own, whose creation may have failed, and refuses references of another agent. */
    tether_status (*check)(void *ext,
                           const tether_value *value,
                           bool sending,
                           tether_error *reterr);

    /* Receiving, in the session `session_number` of the peer. take() attaches the references to
     * `value`, all of them (DONE) or none (NO_MEMORY), and no owner has been asked yet: untake()
     * makes it undone. confirm() then asks their owners. DONE: they are confirmed. WAITS: `resume`
     * will be run. REFUSED: the message must be refused with `*reterr`. `value` must live until
     * then. Both TAKE the arrival. */
    enum tether__outcome (*take)(void *ext,
                                 struct tether__peer *peer,
                                 uint64_t session_number,
                                 Tether__Ref **refs,
                                 size_t n,
                                 tether_value *value,
                                 struct tether__arrival **ret_arrival);
    void (*untake)(struct tether__arrival *arrival);
    enum tether__outcome (*confirm)(struct tether__arrival *arrival,
                                    struct tether__resume *resume,
                                    tether_error *reterr);

    /* A remote() has arrived: its result will be kept as an object. `*ret_result` stands for it in
     * remote_done(), which comes once; NULL: its creator has released it, remote_done() does not
     * come. DONE, REFUSED or NO_MEMORY. */
    enum tether__outcome (*remote_arrived)(void *ext,
                                           struct tether__peer *peer,
                                           uint64_t session_number,
                                           const Tether__Call *call,
                                           void **ret_result,
                                           tether_error *reterr);
    /* Its function has returned, or could not be run. `value` is borrowed. */
    void (*remote_done)(void *result, tether_status status, const char *error, tether_value *value);

    /* Another worker has made what our remote() asked for, and says of which type it is. */
    void (*result_type)(void *result, const char *type);

    /* Keeps the object that a method call is about, from the moment the call arrives, if it is
     * there. Returns the retained object; NULL: it is not there. */
    struct tether__attached_ref *(*hold_target)(void *ext,
                                                const Tether__RefId *target,
                                                uint64_t owner_incarnation);
    /* The object itself: `*ret_object` is retained. As confirm(): WAITS when it is still being
     * made. */
    enum tether__outcome (*find_target)(void *ext,
                                        struct tether__peer *peer,
                                        uint64_t session_number,
                                        const Tether__RefId *target,
                                        uint64_t owner_incarnation,
                                        int64_t deadline,
                                        struct tether__resume *resume,
                                        tether_value **ret_object,
                                        tether_error *reterr);

    /* A frame of the extension's own. DONE, MALFORMED or NO_MEMORY; any other outcome counts as
     * DONE. `unread`: bytes of replies that the peer has not acknowledged. */
    enum tether__outcome (*frame)(void *ext,
                                  struct tether__peer *peer,
                                  uint64_t session_number,
                                  const struct tether__inbound *message,
                                  size_t unread);

    /* The session `session_number` with the peer has ended, and all before it. TAKES the items of
     * their outboxes: frees each with its kind's done(). */
    void (*session_ended)(void *ext,
                          struct tether__peer *peer,
                          uint64_t session_number,
                          struct tether__outbox_items *untold,
                          const tether_error *why);

    /* Graceful shutdown: releases all references and waits for the others, until `deadline`. */
    tether_status (*drain)(void *ext, int64_t deadline, tether_error *reterr);

    int64_t (*tick)(void *ext, int64_t now);

    /* Only the caller holds a count of the peer: frees what the extension has allocated for it.
     * False: its lists are not empty, the peer must stay. agent->mu and peer->mu are held. */
    bool (*forget)(void *ext, struct tether__peer *peer);
};

/* Set once, by the extension's constructor, before main(). NULL: there is none in this program. */
extern const struct tether__ext_ops *tether__ext_ops;

#endif
