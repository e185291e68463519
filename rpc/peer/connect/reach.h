/* Reaches a peer: finds its address, dials it, and dials it again for as long as its lease runs.
 *
 * Happy path: the first call adds the peer to the table and looks its address up in the directory.
 * Then the peer is dialled. Frames that were queued meanwhile are sent when the stream is up
 * (stream.c).
 *
 * Failure modes: a conn that breaks is dialled again at once at the address that is known, then
 * after growing pauses, for as long as the lease runs; from the first dial that fails on, the
 * directory is asked beside that whether the peer has moved. A store that does not answer, or does
 * not have the peer, ends no session that the lease keeps. When the lease runs out, the session is
 * fenced: calls in flight fail, and nothing is dialled until a call wants the peer again. From then
 * on, or when its process has ended, the peer has an *outage* (outage.h). Calls to a dead peer fail
 * at once, except that now and then one begins an attempt to reach it.
 *
 * Lock rule: peer->mu is held in all functions that end in `_locked`.
 */
#ifndef TETHER_RPC_PEER_REACH_H
#define TETHER_RPC_PEER_REACH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct tether__peer;
struct tether__worker_record;

/* Starts to connect to the peer, unless a dial or look-up is under way or there is a connection. */
void tether__peer_connect_locked(struct tether__peer *peer);

/* Whether the peer may be called now. TETHER_EUNAVAILABLE: the peer is known to be dead, and the
 * next attempt to reach it is not due yet. */
tether_status tether__peer_admit_locked(const struct tether__peer *peer, tether_error *reterr);

/* Whether the peer's own process listens at record.address, and does so on this host: then a
 * refused connection shows that the process has ended. */
bool tether__peer_is_at_own_address_locked(const struct tether__peer *peer);

/* Notes that the start that was dialled last is dead, since no process listens at its address any
 * more. May be called only when the kernel of this host has refused a connection to a socket that
 * the start itself had bound, never for the address of a proxy. */
void tether__peer_refused_locked(struct tether__peer *peer, const char *how);

/* Asks the directory for the present start of the peer, also while a session with an earlier start
 * stands: a later start in the directory ends that session. */
void tether__peer_look_up_locked(struct tether__peer *peer);

/* Whether the session can go on with a later start of the peer: no stream was up in the session,
 * and no message queued in it is about a reference or an object. */
bool tether__peer_is_unbound_locked(const struct tether__peer *peer);

/* Takes over a record of the peer from the directory, of the start that is known or a later one. */
void tether__peer_learn_record_locked(struct tether__peer *peer,
                                      const struct tether__worker_record *record);

/* Handles the directory's answer to a look-up: `record`, or NULL and an error. Look-up thread. */
void tether__peer_found(struct tether__peer *peer,
                        const struct tether__worker_record *record,
                        tether_status status,
                        const tether_error *error);

/* Dials the peer or looks it up, because peer->dialer.due has come. */
void tether__peer_dial_due_locked(struct tether__peer *peer);

/* Ends a failed attempt to reach a dead peer: calls that waited for it fail, and new calls fail at
 * once until the next attempt. */
void tether__peer_attempt_failed_locked(struct tether__peer *peer);

/* Ends the session because the lease is over; its calls fail with the error of the outage. */
void tether__peer_lost_locked(struct tether__peer *peer, int64_t now);

#endif
