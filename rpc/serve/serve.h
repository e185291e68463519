/* Serves calls of other workers, of plain gRPC clients and of this worker to itself.
 *
 * - receive.c receives calls, run.c runs them, reply.c replies to them
 * - registry.c finds functions by their names
 */
#ifndef TETHER_RPC_SERVE_SERVE_H
#define TETHER_RPC_SERVE_SERVE_H

#include "rpc/agent.h"
#include "rpc/lane/lane.h"
#include "rpc/peer/calls/progress.h"
#include "rpc/transport/transport.h"
#include "rpc/wire/outcome.h"

struct tether__call;
struct tether__call_target;
struct tether__peer;
struct tether__session;

/* ---- receive.c ---- */
struct tether__incoming;
/* Handles a call, or a cancel, that was received in `session`, which may have ended since. Returns
 * DONE, MALFORMED or NO_MEMORY. */
enum tether__outcome tether__dispatch_call(struct tether__session *session,
                                           const struct tether__inbound *message,
                                           size_t unread);
enum tether__outcome tether__dispatch_cancel(struct tether__session *session,
                                             const struct tether__inbound *message);
/* admit() decides whether a plain gRPC client may call; unary() handles its call. See transport.h.
 */
tether_status tether__dispatch_admit(tether_agent *agent,
                                     tether_bytes token,
                                     const char *const *cert_names,
                                     bool *ret_proved,
                                     tether_error *reterr);
void tether__dispatch_unary(tether_agent *agent, struct tether__unary *unary);
/* Handles a call of this worker to itself. TAKES the caller's count of `session`. */
void tether__dispatch_local(struct tether__session *session,
                            struct tether__call *call,
                            const struct tether__call_target *target,
                            const tether_value *arg);

/* ---- run.c, reply.c ---- */
/* Marks the call with this number as cancelled, which its running function can see. */
void tether__incoming_cancel_locked(struct tether__session *session, uint64_t id);
/* Returns how far a call that was received in this session has come. */
enum tether__call_state tether__incoming_state_locked(const struct tether__session *session,
                                                      uint64_t id);
const char *tether__incoming_caller(const struct tether__incoming *incoming);
int64_t tether__incoming_deadline(const struct tether__incoming *incoming);
bool tether__incoming_cancelled(const struct tether__incoming *incoming);

/* Replies to a request of the reference layer, if the session with this number has not ended. No
 * lock held. */
void tether__reply_to(struct tether__peer *peer,
                      uint64_t session_number,
                      uint64_t id,
                      tether_status status,
                      const char *error,
                      tether_value *value);

#endif
