/* The handshake: both ends of a stream prove who they are before anything else is said on it. No
 * I/O, clock, thread, lock or random numbers of its own.
 *
 * Happy path: the dialler sends Hello1, the listener answers with Hello2, the dialler with Hello3,
 * which also carries its State (session.h). With a token each end sends 32 random bytes, and
 *
 *   mac = HMAC-SHA256(token, label ‖ role ‖ both names ‖ both incarnations ‖ run ‖ both nonces)
 *
 * proves that it has the token, knows what the other has just sent, and means this pair of starts.
 * The token itself never travels. Without a token the MACs are empty. Then only the transport may
 * know the identity of the other end (by kernel credentials or certificates); see
 * tether__handshake_belief().
 *
 * Failure modes: every error ends the stream and has no other effect; the handshake then holds
 * nothing of the other but its name, if that is a valid one. A listener may tell the dialler why.
 *
 *     dialler                                      listener
 *     init(h, self, true, "bob", nonce)            init(h, self, false, "", nonce)
 *     begin(h)                  → Hello1           on_hello1(h, …)
 *     on_hello2(h, …)           ← Hello2
 *     finish(h, state)          → Hello3           on_hello3(h, …): h->peer_name is who it says
 */
#ifndef TETHER_RPC_HANDSHAKE_HANDSHAKE_H
#define TETHER_RPC_HANDSHAKE_HANDSHAKE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/status.h"
#include "protos/rpc.pb-c.h"
#include "rpc/handshake/pairing.h"
#include "rpc/wire/slice.h"
#include "rpc/wire/wire.h"

#define TETHER__WIRE_VERSION 2
#define TETHER__NONCE_SIZE 32
#define TETHER__MAC_SIZE 32

/* The limit of the length of each handshake message. */
#define TETHER__MAX_HELLO_BYTES 4096

struct tether__handshake {
    const struct tether__self *self; /* LENDS */
    bool dials;
    enum { TETHER__HANDSHAKE_NEW, TETHER__HANDSHAKE_ASKED, TETHER__HANDSHAKE_DONE } phase;
    bool proved; /* the other end has proved that it has our token */
    char peer_name[TETHER__MAX_NAME + 1];
    uint64_t peer_incarnation;
    uint8_t nonce[TETHER__NONCE_SIZE], peer_nonce[TETHER__NONCE_SIZE];
    uint8_t mac[TETHER__MAC_SIZE]; /* ours */
};

/* `nonce` is TETHER__NONCE_SIZE random bytes that were never used before; NULL: there is no token.
 * `peer_name`: the worker that the dialler wants to reach; "" for a listener. */
void tether__handshake_init(struct tether__handshake *handshake,
                            const struct tether__self *self,
                            bool dials,
                            const char *peer_name,
                            const uint8_t *nonce);

/* Returns the Hello1 to send (and finish() the Hello3); strings and bytes belong to the handshake.
 */
Tether__Hello1 tether__handshake_begin(struct tether__handshake *handshake);
Tether__Hello3 tether__handshake_finish(struct tether__handshake *handshake, Tether__State *state);

/* The listener judges a Hello1 and fills its answer, which it sends also on error: then the answer
 * says why, and the stream ends. */
tether_status tether__handshake_on_hello1(struct tether__handshake *handshake,
                                          const Tether__Hello1 *hello,
                                          Tether__Hello2 *ret_answer,
                                          tether_error *reterr);

/* The dialler judges a Hello2. An error from a `proved` sender really comes from that worker.
 */
tether_status tether__handshake_on_hello2(struct tether__handshake *handshake,
                                          const Tether__Hello2 *hello,
                                          tether_error *reterr);

/* The listener judges a Hello3. OK: the dialler is the worker that it claims to be, provided that
 * the token or the transport proves it. */
tether_status tether__handshake_on_hello3(struct tether__handshake *handshake,
                                          const Tether__Hello3 *hello,
                                          tether_error *reterr);

/* The verdict on a worker that claims to be start `claimed` of its name, where `known` is the
 * latest start that is known to exist (0: none). */
enum tether__belief {
    TETHER__BELIEVED,
    TETHER__UNCONFIRMED, /* only the peer claims it: the directory must confirm it */
    TETHER__STALE,       /* a later start has replaced it */
};
enum tether__belief tether__handshake_belief(bool is_proved, uint64_t claimed, uint64_t known);

/* Reads a message of the handshake, which is one frame, or a State. The result lives as long as
 * `arena`. TETHER_ECORRUPT: another kind of message, or too long; TETHER_ENOMEM. */
tether_status tether__handshake_read(struct tether__slice message,
                                     struct tether__arena *arena,
                                     const Tether__Frame **ret_frame,
                                     tether_error *reterr);

/* Packs one frame as a message of its own. TETHER_ENOMEM. */
struct tether__packed;
tether_status tether__handshake_pack(Tether__Frame *frame, struct tether__packed *ret_packed);

#endif
