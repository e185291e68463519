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

/* A message on its way in that has references, or a call that makes an object. */
struct tether__ref_message {
    struct tether__peer *peer; /* which has sent it, in this session: */
    uint64_t session_number;
    Tether__Ref **refs;
    size_t n_refs;
    tether_value *value;      /* the references are attached to it */
    const Tether__Call *call; /* NULL: the message is a reply */
    /* set by arrived(): */
    struct tether__arrival *arrival; /* for confirm(); NULL: there are no references */
    void *result; /* stands for the object in remote_done(), which comes once; NULL: the creator has
                   * released the object already, remote_done() does not come */
    /* The object that the call is about, retained, if it is there and the call has references: its
     * caller may release it before they are confirmed. NULL: none */
    struct tether__attached_ref *held;
};

/* Goes on with a message once its references are confirmed. Once, on any thread. */
struct tether__resume {
    void (*run)(struct tether__resume *resume, tether_status status, const tether_error *error);
};

struct tether__ext_ops {
    void *(*attach)(struct tether_agent *agent, tether_error *reterr); /* NULL: failed */
    void (*detach)(void *ext);                                         /* the agent is released */

    /* Sending. `may_be_overtaken`: later control messages may come before this one. encode
     * registers what is sent and fills `ret_pack`. encode_end frees it, and takes back what was
     * registered if the message was not `queued`. */
    tether_status (*encode_locked)(void *ext,
                                   struct tether__peer *peer,
                                   const tether_value *value,
                                   bool may_be_overtaken,
                                   struct tether__ref_pack *ret_pack,
                                   tether_error *reterr);
    void (*encode_end_locked)(void *ext,
                              struct tether__peer *peer,
                              struct tether__ref_pack *pack,
                              bool queued);

    /* Whether all references on `value` can be used. TETHER_OK, or why the first one cannot: its
     * cause when it is broken. `sending`: as encode_locked() would judge, which also looks at
     * objects of our own, whose creation may have failed, and refuses references of another agent.
     */
    tether_status (*check)(void *ext,
                           const tether_value *value,
                           bool sending,
                           tether_error *reterr);

    /* A message with references, or a call that makes an object, has arrived. The references are
     * attached to its value, and no owner has been asked yet. REFUSED: the object cannot be made,
     * because of `*reterr`; the references are attached all the same. NO_MEMORY: nothing was done.
     */
    enum tether__outcome (*arrived)(void *ext,
                                    struct tether__ref_message *message,
                                    tether_error *reterr);
    /* Asks the owners of the references. DONE: they are confirmed. WAITS: `resume` will be run.
     * REFUSED: the message must be refused with `*reterr`. The value of the message must live until
     * then. TAKES the arrival. */
    enum tether__outcome (*confirm)(struct tether__arrival *arrival,
                                    struct tether__resume *resume,
                                    tether_error *reterr);

    /* The function that makes an object has returned, or could not be run. `value` is borrowed. */
    void (*remote_done)(void *result, tether_status status, const char *error, tether_value *value);

    /* Another worker has made what our remote() asked for, and says of which type it is. */
    void (*result_type)(void *result, const char *type);

    /* The object that a method call is about: `*ret_object` is retained. As confirm(): WAITS when
     * it is still being made. */
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
