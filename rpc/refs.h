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
struct tether__arrival; /* the references of a received message */

/* The references of a message that is sent, packed. */
struct tether__ref_pack {
    size_t n;
    Tether__Ref **refs;
    void *memory; /* one allocation that holds `refs` and all it points to; NULL when n is 0 */
};

/* A received message that has references or is a call that makes an object. */
struct tether__ref_message {
    struct tether__peer *peer; /* the sender, and the number of the session: */
    uint64_t session_number;
    Tether__Ref **refs;
    size_t n_refs;
    tether_value *value;      /* value to which the references are attached */
    const Tether__Call *call; /* NULL: the message is a reply */
    /* set by the hook arrived(): */
    struct tether__arrival *arrival; /* passed to confirm(); NULL: the message has no references */
    /* the object that the call makes, to be passed to remote_done() once; NULL: the creator has
     * released the object already, so remote_done() is not called */
    void *result;
    /* The object that the call is about, retained if it exists and the call has references: the
     * caller may release the object before the references are confirmed. NULL: none. */
    struct tether__attached_ref *held;
};

/* Continues with a message once its references are confirmed. `run` is called once, on any thread.
 */
struct tether__resume {
    void (*run)(struct tether__resume *resume, tether_status status, const tether_error *error);
};

struct tether__ext_ops {
    void *(*attach)(struct tether_agent *agent, tether_error *reterr); /* NULL: failed */
    void (*detach)(void *ext);                                         /* the agent is released */

    /* Hooks for a message that is sent. encode_locked() registers the attached references and fills
     * `ret_pack`; `may_be_overtaken`: control messages that are sent later may arrive before this
     * message. encode_end_locked() frees the pack, and undoes the registration if the message was
     * not `queued`. */
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
     * cause when it is broken. `sending`: checks what encode_locked() requires, too: that the
     * creation of objects of this worker has not failed, and that no reference belongs to another
     * agent. */
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
     * the outcome is known. TAKES the arrival. */
    enum tether__outcome (*confirm)(struct tether__arrival *arrival,
                                    struct tether__resume *resume,
                                    tether_error *reterr);

    /* Notes the outcome of a call that makes an object: its function has returned `value`
     * (borrowed) or an error, or could not be run. */
    void (*remote_done)(void *result, tether_status status, const char *error, tether_value *value);

    /* Notes the type of an object that another worker has made for a remote() of this worker. */
    void (*result_type)(void *result, const char *type);

    /* Finds the object that a method call is about; `*ret_object` is retained. WAITS: the object is
     * still being made, and `resume` will be run. REFUSED: with `*reterr`. */
    enum tether__outcome (*find_target)(void *ext,
                                        struct tether__peer *peer,
                                        uint64_t session_number,
                                        const Tether__RefId *target,
                                        uint64_t owner_incarnation,
                                        int64_t deadline,
                                        struct tether__resume *resume,
                                        tether_value **ret_object,
                                        tether_error *reterr);

    /* Handles a frame of a kind that belongs to the extension. Returns DONE, MALFORMED or
     * NO_MEMORY; any other outcome counts as DONE. `unread`: bytes of replies that the peer has not
     * acknowledged. */
    enum tether__outcome (*frame)(void *ext,
                                  struct tether__peer *peer,
                                  uint64_t session_number,
                                  const struct tether__inbound *message,
                                  size_t unread);

    /* Notes that session `session_number` with the peer, and all before it, have ended. TAKES the
     * items that were left in their outboxes, and frees each with its kind's done(). */
    void (*session_ended)(void *ext,
                          struct tether__peer *peer,
                          uint64_t session_number,
                          struct tether__outbox_items *untold,
                          const tether_error *why);

    /* Graceful shutdown: releases all references and waits for the others, until `deadline`. */
    tether_status (*drain)(void *ext, int64_t deadline, tether_error *reterr);

    int64_t (*tick)(void *ext, int64_t now);

    /* Frees the data that the extension has allocated for a peer that is about to be dropped.
     * False: the extension's lists of that peer are not empty, so the peer must stay. agent->mu and
     * peer->mu are held. */
    bool (*forget)(void *ext, struct tether__peer *peer);
};

/* Set once, before main(), by a constructor of the reference layer. NULL: that layer is not linked
 * into this program. */
extern const struct tether__ext_ops *tether__ext_ops;

#endif
