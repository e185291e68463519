/* Calls that this worker makes: how they begin, and how their replies end them.
 *
 * - call.c: calls of functions and methods, and the public functions for them
 * - request.c: requests of the reference layer
 * - complete.c: replies
 */
#ifndef TETHER_RPC_CALL_CALL_H
#define TETHER_RPC_CALL_CALL_H

#include "protos/rpc.pb-c.h"
#include "rpc/agent.h"
#include "rpc/lane/lane.h"
#include "rpc/wire/outcome.h"

struct tether__call;
struct tether__peer;
struct tether__attached_ref;

/* ---- call.c ---- */

/* The object that a call is about or makes; not used by other calls. */
struct tether__call_target {
    Tether__RefId *target; /* a method call */
    bool makes;            /* remote(): */
    uint64_t result[3], result_fork[3];
    uint64_t owner_incarnation;
    const char *site, *arg_type;
    tether_value *local_object; /* a method call on this worker itself */
    void *result_here;          /* remote() on this worker itself: remote_done() TAKES it */
    void *result_there; /* remote() on another: result_type() gets it, before the future is done */
    struct tether__attached_ref
        *about;     /* the reference to the object; held if its release could overtake the call */
    bool in_pieces; /* set before prepare_locked(): later messages may overtake the call */
    bool announced; /* set by it */
    /* Runs before the header is packed, in the order in which calls are queued. May be NULL. */
    tether_status (*prepare_locked)(void *userdata,
                                    struct tether__peer *peer,
                                    struct tether__call_target *target);
    void *prepare_userdata;
};

tether_status tether__call_check(tether_agent *agent,
                                 const char *fn,
                                 int timeout_ms,
                                 tether_error *reterr);
int64_t tether__call_deadline(tether_agent *agent, int timeout_ms);
tether_status tether__agent_resolve(tether_agent *agent,
                                    const char *to,
                                    struct tether__peer **ret_peer,
                                    tether_error *reterr);

/* Queues the call. On success its future will be finished, and is yours to release. */
tether_status tether__call_start(tether_agent *agent,
                                 struct tether__peer *peer,
                                 const char *fn,
                                 const struct tether__call_target *target,
                                 const tether_value *arg,
                                 int64_t deadline,
                                 struct tether__call **ret_call,
                                 tether_error *reterr);

/* Waits until the call ends, by its deadline at the latest; then the error says how far it came.
 * Blocks. */
tether_status tether__call_wait(struct tether__call *call,
                                tether_value **ret_value,
                                tether_error *reterr);

/* Sends a request of another kind, whose body `pack` writes once its number is known, and returns
 * the future of its reply. `must_arrive`: a failed attempt is repeated (retry.h), and `userdata`
 * must live until the future is done. */
struct tether__packed;
/* DONE, NO_MEMORY, or REFUSED: the session that the request belongs to is over, do not send it. */
typedef enum tether__outcome tether__call_pack(void *userdata,
                                               uint64_t id,
                                               uint32_t timeout_ms,
                                               struct tether__packed *ret_packed);
tether_status tether__call_request(struct tether__peer *peer,
                                   uint32_t kind,
                                   const char *label,
                                   bool must_arrive,
                                   int64_t deadline,
                                   tether__call_pack *pack,
                                   void *userdata,
                                   tether_future **ret_future,
                                   tether_error *reterr);

/* ---- call/complete.c ---- */
/* Takes a reply that has plain bytes or nothing: its call is finished by tether__peer_unlock().
 * False: the reply has more to it, use tether__call_on_reply_unlock(). */
bool tether__call_take_reply_locked(struct tether__peer *peer,
                                    const struct tether__inbound *message);

/* Takes the call of a reply out of its slot, unlocks the peer, and finishes the call: the peer is
 * locked once for both. DONE, MALFORMED or NO_MEMORY. */
enum tether__outcome tether__call_on_reply_unlock(struct tether__peer *peer,
                                                  const struct tether__inbound *message);

#endif
