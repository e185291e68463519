/* The end of a session with a peer. The lock of the peer is held unless a comment says otherwise.
 */
#ifndef TETHER_RPC_PEER_FENCE_H
#define TETHER_RPC_PEER_FENCE_H

#include <stdint.h>

#include "rpc/agent.h"

struct tether__peer;
struct tether__session;

/* Ends the session. Its calls fail once the lock is released: with `error`, or with `status` and,
 * as the cause, the last connection error of the peer or, without one, `why`. */
void tether__peer_end_session_locked(struct tether__peer *peer,
                                     tether_status status,
                                     const char *why);

void tether__peer_end_session_with_locked(struct tether__peer *peer, const tether_error *error);

/* Fences the peer by decision of this worker. The peer is not dialled again until a call needs it.
 */
void tether__peer_give_up_locked(struct tether__peer *peer, tether_status status, const char *why);

void tether__peer_give_up_with_locked(struct tether__peer *peer,
                                      const tether_error *error,
                                      const char *why);

/* the cause is always `why`, not the last connection error */
void tether__peer_fence_locked(struct tether__peer *peer, const char *why);

/* Fences the peer as above if `session` is still its present session. A bad message of an ended
 * session is no reason to fence the next one. */
void tether__session_fence(struct tether__session *session, const char *why);

/* Ends the sessions with all peers. Takes the locks of the table and of the peers. */
void tether__agent_end_sessions(tether_agent *agent, const char *why);

#endif
