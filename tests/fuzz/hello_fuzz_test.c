/* Both ends of a handshake, and a pairing, that hear anything. The first byte says which of them
 * hears the rest, and what it knows. */
#include <stdlib.h>
#include <string.h>

#include "rpc/handshake/handshake.h"
#include "tests/fuzz/fuzz.h"

static struct tether__self self = {
    .group = "g",
    .run = "0123456789abcdef0123456789abcdef",
    .name = "a",
    .address = "",
    .id = 1,
    .incarnation = 3,
    .lease_ms = 1000,
};

/* A peer without the token must never count as proved. */
static void fuzz_handshake(uint8_t how, const Tether__Frame *frame)
{
    struct tether__handshake handshake;
    uint8_t nonce[TETHER__NONCE_SIZE] = {1};
    Tether__Hello2 answer;
    tether_error err = {0};
    tether_status st = TETHER_ECORRUPT;
    bool dials = how & 1;
    self.token = how & 2 ? "a token that the fuzzer does not know" : NULL;
    tether__handshake_init(&handshake, &self, dials, dials ? "b" : "", self.token ? nonce : NULL);
    if (dials)
        tether__handshake_begin(&handshake);
    if (frame->body_case == TETHER__FRAME__BODY_HELLO1)
        st = tether__handshake_on_hello1(&handshake, frame->hello1, &answer, &err);
    if (frame->body_case == TETHER__FRAME__BODY_HELLO2)
        st = tether__handshake_on_hello2(&handshake, frame->hello2, &err);
    if (frame->body_case == TETHER__FRAME__BODY_HELLO3) {
        if (how & 4) { /* a Hello1 has come before */
            Tether__Hello1 hello1 = TETHER__HELLO1__INIT;
            hello1.version = TETHER__WIRE_VERSION;
            hello1.group = (char *)"g";
            hello1.run = (char *)(uintptr_t)self.run;
            hello1.from_name = (char *)"b";
            hello1.from_incarnation = 5;
            hello1.to_name = (char *)"a";
            if (self.token)
                hello1.nonce = (ProtobufCBinaryData){sizeof nonce, nonce};
            tether__handshake_on_hello1(&handshake, &hello1, &answer, NULL);
        }
        st = tether__handshake_on_hello3(&handshake, frame->hello3, &err);
    }
    fuzz_check(!handshake.proved);
    bool first = frame->body_case == TETHER__FRAME__BODY_HELLO1;
    if (st == TETHER_OK) {
        fuzz_check(first || !self.token);
        fuzz_check(tether__name_valid(handshake.peer_name) && handshake.peer_incarnation > 0);
    }
    fuzz_check(!handshake.peer_name[0] || tether__name_valid(handshake.peer_name));
}

static void fuzz_session(uint8_t how, const Tether__State *state)
{
    struct tether__pairing pairing;
    tether__pairing_init(&pairing, &self, "b", 2, how % 4);
    pairing.my_fence = how / 4 % 4;
    pairing.peer_fence = how / 16 % 4;
    pairing.met = how / 64 % 2;
    struct tether__pairing before = pairing;
    bool fine = tether__pairing_check(&pairing, state, NULL) == TETHER_OK;
    fuzz_check(memcmp(&pairing, &before, sizeof pairing) == 0);
    tether_error err = {0};
    struct tether__state_result result = tether__pairing_on_state(&pairing, state, &err);
    fuzz_check(fine == (result.verdict != TETHER__STATE_REJECT));
    if (result.verdict == TETHER__STATE_REJECT) {
        fuzz_check(err.code != TETHER_OK && err.message[0]);
        fuzz_check(!result.up && memcmp(&pairing, &before, sizeof pairing) == 0);
        return;
    }
    fuzz_check(pairing.peer_incarnation >= before.peer_incarnation);
    bool changed = pairing.peer_incarnation != before.peer_incarnation ||
                   pairing.my_fence != before.my_fence || pairing.peer_fence != before.peer_fence;
    fuzz_check(changed == (pairing.version != before.version));
    fuzz_check(!tether__state_fences(result.verdict) || changed);
    fuzz_check(result.up || result.verdict != TETHER__STATE_ACCEPT);
    fuzz_check(pairing.met == (result.up || (before.met && !changed)));
    /* Said again, it says nothing new. */
    struct tether__state_result again = tether__pairing_on_state(&pairing, state, &err);
    fuzz_check(again.up == result.up && !tether__state_fences(again.verdict));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    size_t len = size - 1;
    uint8_t *exact = malloc(len ? len : 1);
    if (!exact)
        return 0;
    memcpy(exact, data + 1, len);
    const Tether__Frame *frame = NULL;
    tether_error err = {0};
    TETHER__ARENA(arena, 1024);
    struct tether__slice message = {exact, len, NULL};
    if (tether__handshake_read(message, &arena, &frame, &err) != TETHER_OK)
        fuzz_check(err.code != TETHER_OK && err.message[0]);
    else if (frame->body_case == TETHER__FRAME__BODY_STATE)
        fuzz_session(data[0], frame->state);
    else
        fuzz_handshake(data[0], frame);
    tether__arena_fini(&arena);
    free(exact);
    return 0;
}
