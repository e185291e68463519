/* The handshake as a pure function of what both ends have sent. See handshake.h. */
#include "rpc/handshake/handshake.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <string.h>

#include "rpc/wire/packed.h"

/* Casts a constant for protobuf-c, whose fields are char * although it does not write to them. */
static char *text(const char *constant)
{
    return (char *)(uintptr_t)constant;
}

void tether__handshake_init(struct tether__handshake *handshake,
                            const struct tether__self *self,
                            bool dials,
                            const char *peer_name,
                            const uint8_t *nonce)
{
    *handshake = (struct tether__handshake){.self = self, .dials = dials};
    snprintf(handshake->peer_name, sizeof handshake->peer_name, "%s", peer_name);
    if (nonce)
        memcpy(handshake->nonce, nonce, sizeof handshake->nonce);
}

/* ---- The proof ---- */

/* The MAC's input. Each part has its length in front, so that different lists of parts never give
 * the same bytes. */
struct transcript {
    uint8_t bytes[1024];
    size_t len;
};

static void add_part(struct transcript *transcript, const void *data, size_t len)
{
    transcript->bytes[transcript->len++] = (uint8_t)(len >> 8);
    transcript->bytes[transcript->len++] = (uint8_t)len;
    if (len)
        memcpy(transcript->bytes + transcript->len, data, len);
    transcript->len += len;
}

static void add_text(struct transcript *transcript, const char *part)
{
    /* one byte for the length is enough: names have up to 127 bytes, a run has 32 */
    add_part(transcript, part, strlen(part));
}

static void add_number(struct transcript *transcript, uint64_t number)
{
    uint8_t bytes[8];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(number >> (8 * (7 - i)));
    add_part(transcript, bytes, sizeof bytes);
}

/* Computes the MAC of the dialler or of the listener; both ends compute both. False: OpenSSL has
 * failed. */
static bool compute_mac(const struct tether__handshake *handshake,
                        bool of_dialler,
                        uint8_t ret_mac[TETHER__MAC_SIZE])
{
    const struct tether__self *self = handshake->self;
    bool dials = handshake->dials;
    struct transcript transcript = {.len = 0};
    unsigned len = 0;
    add_text(&transcript, "tether handshake 2");
    add_text(&transcript, of_dialler ? "dialler" : "listener");
    add_text(&transcript, dials ? self->name : handshake->peer_name);
    add_text(&transcript, dials ? handshake->peer_name : self->name);
    add_number(&transcript, dials ? self->incarnation : handshake->peer_incarnation);
    add_number(&transcript, dials ? handshake->peer_incarnation : self->incarnation);
    add_text(&transcript, self->run);
    add_part(&transcript, dials ? handshake->nonce : handshake->peer_nonce, TETHER__NONCE_SIZE);
    add_part(&transcript, dials ? handshake->peer_nonce : handshake->nonce, TETHER__NONCE_SIZE);
    return HMAC(EVP_sha256(), self->token, (int)strlen(self->token), transcript.bytes,
                transcript.len, ret_mac, &len) &&
           len == TETHER__MAC_SIZE;
}

/* Compares in constant time: a wrong MAC takes as long as the right one. */
static bool is_mac_of(const struct tether__handshake *handshake,
                      bool of_dialler,
                      ProtobufCBinaryData mac)
{
    uint8_t right[TETHER__MAC_SIZE];
    return mac.len == sizeof right && compute_mac(handshake, of_dialler, right) &&
           CRYPTO_memcmp(mac.data, right, sizeof right) == 0;
}

static ProtobufCBinaryData bytes_if_token(const struct tether__handshake *handshake,
                                          const uint8_t *bytes,
                                          size_t len)
{
    bool has_token = handshake->self->token;
    return (ProtobufCBinaryData){has_token ? len : 0,
                                 has_token ? (uint8_t *)(uintptr_t)bytes : NULL};
}

static tether_status wrong_token(const struct tether__handshake *handshake, tether_error *reterr)
{
    return tether_error_set(reterr, TETHER_EAUTH,
                            "worker '%s' has another token than '%s': give all workers of the "
                            "group the same token",
                            handshake->peer_name, handshake->self->name);
}

/* Takes the other end's nonce. Fails unless both ends have a token, or neither has. */
static tether_status take_nonce(struct tether__handshake *handshake,
                                ProtobufCBinaryData nonce,
                                tether_error *reterr)
{
    bool has_token = handshake->self->token;
    if (has_token != (nonce.len > 0))
        return tether_error_set(reterr, TETHER_EAUTH,
                                "worker '%s' has %s token, '%s' has %s: give all workers of the "
                                "group the same token, or none",
                                handshake->peer_name, has_token ? "no" : "a", handshake->self->name,
                                has_token ? "one" : "none");
    if (nonce.len != 0 && nonce.len != TETHER__NONCE_SIZE)
        return tether_error_set(reterr, TETHER_ECORRUPT, "worker '%s' sent a malformed handshake",
                                handshake->peer_name);
    if (nonce.len)
        memcpy(handshake->peer_nonce, nonce.data, nonce.len);
    return TETHER_OK;
}

/* ---- Start numbers ---- */

/* Whether `start` can be the incarnation of `name`. The store gives workers theirs, which fit into
 * the 32 bits that ids of references have for them. Observers use their clock. */
static bool is_start_of(const char *name, uint64_t start)
{
    return start != 0 && (start <= UINT32_MAX || tether__name_is_observer(name));
}

/* Checks a peer that claims this worker's own start. The store never gives a number twice, so one
 * of the two workers is wrong about its number. */
static tether_status own_start(const struct tether__handshake *handshake, tether_error *reterr)
{
    return tether_error_set(reterr, TETHER_EINVAL,
                            "worker '%s' says that it is start %llu, which is that of '%s'",
                            handshake->peer_name, (unsigned long long)handshake->self->incarnation,
                            handshake->self->name);
}

/* ---- The dialler ---- */

Tether__Hello1 tether__handshake_begin(struct tether__handshake *handshake)
{
    const struct tether__self *self = handshake->self;
    Tether__Hello1 hello = TETHER__HELLO1__INIT;
    hello.version = TETHER__WIRE_VERSION;
    hello.group = text(self->group);
    hello.run = text(self->run);
    hello.from_name = text(self->name);
    hello.from_incarnation = self->incarnation;
    hello.to_name = handshake->peer_name;
    hello.nonce = bytes_if_token(handshake, handshake->nonce, sizeof handshake->nonce);
    handshake->phase = TETHER__HANDSHAKE_ASKED;
    return hello;
}

static tether_status out_of_turn(tether_error *reterr)
{
    return tether_error_set(reterr, TETHER_ECORRUPT,
                            "a message of the handshake came out of its turn");
}

/* A refusal is checked last, because it matters whether an authenticated worker sent it. */
tether_status tether__handshake_on_hello2(struct tether__handshake *handshake,
                                          const Tether__Hello2 *hello,
                                          tether_error *reterr)
{
    if (!handshake->dials || handshake->phase != TETHER__HANDSHAKE_ASKED)
        return out_of_turn(reterr);
    handshake->phase = TETHER__HANDSHAKE_DONE;
    handshake->peer_incarnation = hello->from_incarnation;
    tether_error mismatch = {0};
    tether_status st = take_nonce(handshake, hello->nonce, &mismatch);
    if (st == TETHER_OK && handshake->self->token) {
        handshake->proved = is_mac_of(handshake, false, hello->mac);
        st = handshake->proved ? TETHER_OK : wrong_token(handshake, &mismatch);
    }
    if (hello->refused) {
        char reason[TETHER__REASON_SIZE];
        tether__pairing_reason(hello->reason, reason);
        return tether_error_set(reterr,
                                hello->refused == TETHER_EAUTH ? TETHER_EAUTH : TETHER_EPERM,
                                "it refuses this worker: %s", reason);
    }
    if (hello->version != TETHER__WIRE_VERSION ||
        !is_start_of(handshake->peer_name, hello->from_incarnation))
        return tether_error_set(reterr, TETHER_ECORRUPT, "worker '%s' sent a malformed handshake",
                                handshake->peer_name);
    if (strcmp(hello->from_name, handshake->peer_name) != 0)
        return tether_error_set(reterr, TETHER_EINVAL, "another worker answers instead of '%s'",
                                handshake->peer_name);
    if (st == TETHER_OK && hello->from_incarnation == handshake->self->incarnation)
        return own_start(handshake, reterr);
    if (st != TETHER_OK && reterr)
        *reterr = mismatch;
    return st;
}

Tether__Hello3 tether__handshake_finish(struct tether__handshake *handshake, Tether__State *state)
{
    Tether__Hello3 hello = TETHER__HELLO3__INIT;
    bool has_mac = handshake->self->token && compute_mac(handshake, true, handshake->mac);
    if (has_mac) /* without a MAC the listener refuses the dialler anyway */
        hello.mac = (ProtobufCBinaryData){sizeof handshake->mac, handshake->mac};
    hello.state = state;
    return hello;
}

/* ---- The listener ---- */

static tether_status judge_hello1(struct tether__handshake *handshake,
                                  const Tether__Hello1 *hello,
                                  tether_error *reterr)
{
    const struct tether__self *self = handshake->self;
    if (handshake->dials || handshake->phase != TETHER__HANDSHAKE_NEW)
        return out_of_turn(reterr);
    handshake->phase = TETHER__HANDSHAKE_DONE;
    if (hello->version != TETHER__WIRE_VERSION)
        return tether_error_set(reterr, TETHER_ENOTSUP,
                                "a handshake of wire version %u, but this worker speaks version "
                                "%d: run the same release everywhere",
                                hello->version, TETHER__WIRE_VERSION);
    if (!tether__name_valid(hello->from_name))
        return tether_error_set(reterr, TETHER_EINVAL,
                                "a handshake whose sender's name is not 1 to %d of "
                                "[A-Za-z0-9_:.-]",
                                TETHER__MAX_NAME);
    snprintf(handshake->peer_name, sizeof handshake->peer_name, "%s", hello->from_name);
    if (!is_start_of(hello->from_name, hello->from_incarnation))
        return tether_error_set(reterr, TETHER_ECORRUPT, "worker '%s' sent a malformed handshake",
                                hello->from_name);
    handshake->peer_incarnation = hello->from_incarnation;
    if (strcmp(hello->group, self->group) != 0)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "worker '%s' belongs to another group than '%s'", hello->from_name,
                                self->group);
    if (strcmp(hello->run, self->run) != 0)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "worker '%s' belongs to another run of group '%s' than '%s': end "
                                "the workers of the earlier run",
                                hello->from_name, self->group, self->name);
    if (strcmp(hello->to_name, self->name) != 0)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "worker '%s' looks for another worker than '%s', which is here",
                                hello->from_name, self->name);
    if (strcmp(hello->from_name, self->name) == 0)
        return tether_error_set(reterr, TETHER_EINVAL, "worker '%s' has dialled itself",
                                self->name);
    if (hello->from_incarnation == self->incarnation)
        return own_start(handshake, reterr);
    return take_nonce(handshake, hello->nonce, reterr);
}

tether_status tether__handshake_on_hello1(struct tether__handshake *handshake,
                                          const Tether__Hello1 *hello,
                                          Tether__Hello2 *ret_answer,
                                          tether_error *reterr)
{
    const struct tether__self *self = handshake->self;
    tether_error why = {0};
    tether__hello2__init(ret_answer);
    ret_answer->version = TETHER__WIRE_VERSION;
    tether_status st = judge_hello1(handshake, hello, &why);
    if (st == TETHER_OK && self->token && !compute_mac(handshake, false, handshake->mac))
        st = tether_error_set(&why, TETHER_ENOMEM, "no memory for a handshake");
    if (st == TETHER_OK) {
        handshake->phase = TETHER__HANDSHAKE_ASKED;
        ret_answer->from_name = text(self->name);
        ret_answer->from_incarnation = self->incarnation;
        ret_answer->nonce = bytes_if_token(handshake, handshake->nonce, sizeof handshake->nonce);
        ret_answer->mac = bytes_if_token(handshake, handshake->mac, sizeof handshake->mac);
    }
    if (st != TETHER_OK && reterr)
        *reterr = why;
    return st;
}

tether_status tether__handshake_on_hello3(struct tether__handshake *handshake,
                                          const Tether__Hello3 *hello,
                                          tether_error *reterr)
{
    if (handshake->dials || handshake->phase != TETHER__HANDSHAKE_ASKED)
        return out_of_turn(reterr);
    handshake->phase = TETHER__HANDSHAKE_DONE;
    if (handshake->self->token) {
        handshake->proved = is_mac_of(handshake, true, hello->mac);
        if (!handshake->proved)
            return wrong_token(handshake, reterr);
    }
    if (!hello->state || hello->state->from_incarnation != handshake->peer_incarnation)
        return tether_error_set(reterr, TETHER_ECORRUPT, "worker '%s' sent a malformed handshake",
                                handshake->peer_name);
    return TETHER_OK;
}

enum tether__belief tether__handshake_belief(bool is_proved, uint64_t claimed, uint64_t known)
{
    if (claimed < known)
        return TETHER__STALE;
    return claimed == known || is_proved ? TETHER__BELIEVED : TETHER__UNCONFIRMED;
}

/* ---- Messages ---- */

tether_status tether__handshake_read(struct tether__slice message,
                                     struct tether__arena *arena,
                                     const Tether__Frame **ret_frame,
                                     tether_error *reterr)
{
    const void *read = NULL;
    tether_status st = TETHER_ECORRUPT;
    if (message.len <= TETHER__MAX_HELLO_BYTES)
        st = tether__wire_unpack(&tether__batch__descriptor,
                                 tether_bytes_of(message.data, message.len), arena, &read);
    if (st == TETHER_ENOMEM)
        return tether_error_set(reterr, st, "no memory for a handshake");
    const Tether__Batch *batch = read;
    if (st != TETHER_OK || batch->n_frame != 1 || batch->frame[0]->seq != 0)
        return tether_error_set(reterr, TETHER_ECORRUPT,
                                "a message of %zu bytes came in place of the handshake",
                                message.len);
    *ret_frame = batch->frame[0];
    return TETHER_OK;
}

tether_status tether__handshake_pack(Tether__Frame *frame, struct tether__packed *ret_packed)
{
    Tether__Batch batch = TETHER__BATCH__INIT;
    Tether__Frame *frames[] = {frame};
    batch.frame = frames;
    batch.n_frame = 1;
    return tether__pack(ret_packed, &batch.base);
}
