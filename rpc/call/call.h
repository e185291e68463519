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

/* The object that a call is about or creates; NULL is passed for other calls. */
struct tether__call_target {
    Tether__RefId *target; /* set for a method call: the object */
    bool makes;            /* a remote() call; the ids for the new object follow */
    uint64_t result[3], result_fork[3];
    uint64_t owner_incarnation;
    const char *site, *arg_type;
    tether_value *local_object; /* the object of a method call on this worker itself */
    /* the new object of a remote() on this worker itself; remote_done() TAKES it */
    void *result_here;
    /* the new object of a remote() on another worker, passed to result_type() before the future is
     * done */
    void *result_there;
    /* the reference of a method call; retained if its release could overtake the call */
    struct tether__attached_ref *about;
    bool in_pieces; /* set before prepare_locked(): later messages may overtake the call */
    bool announced; /* set by prepare_locked() */
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

/* Queues the call. On success its future will be finished, and the caller releases it. */
tether_status tether__call_start(tether_agent *agent,
                                 struct tether__peer *peer,
                                 const char *fn,
                                 const struct tether__call_target *target,
                                 const tether_value *arg,
                                 int64_t deadline,
                                 struct tether__call **ret_call,
                                 tether_error *reterr);

/* Waits until the call ends, at the latest by its deadline. The error of a timeout says how far the
 * call has come. Blocks. */
tether_status tether__call_wait(struct tether__call *call,
                                tether_value **ret_value,
                                tether_error *reterr);

/* tether__call_request() sends a request of the reference layer. `pack` writes its body once its
 * number is known. `*ret_future` is the future of the reply. `must_arrive`: a failed attempt is
 * repeated (retry.h), and `userdata` must live until the future is done. */
struct tether__packed;
/* Packs the body of a request. Returns DONE, NO_MEMORY or, if the session that the request belongs
 * to has ended, REFUSED: then the request is not sent. */
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
/* Handles a reply whose value is plain bytes or none: tether__peer_unlock() then finishes its call.
 * False: the reply has an error, an object or references, or memory ran out; pass it to
 * tether__call_on_reply_unlock(). */
bool tether__call_take_reply_locked(struct tether__peer *peer,
                                    const struct tether__inbound *message);

/* Takes the call of a reply out of its slot, unlocks the peer, and finishes the call. It unlocks
 * the peer itself so that the caller's lock is taken only once. Returns DONE, MALFORMED or
 * NO_MEMORY. */
enum tether__outcome tether__call_on_reply_unlock(struct tether__peer *peer,
                                                  const struct tether__inbound *message);

#endif
