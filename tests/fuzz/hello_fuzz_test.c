/* A session that hears anything as a hello. The first byte says what is known of the peer. */
#include <stdlib.h>
#include <string.h>

#include "rpc/session.h"
#include "tests/fuzz/fuzz.h"

static const struct tether__self self = {
    .group = "g",
    .name = "a",
    .address = "",
    .id = 1,
    .incarnation = 3,
    .lease_ms = 1000,
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    struct tether__session session;
    tether__session_init(&session, &self, "b", 2, data[0] % 4);
    session.my_fence = data[0] / 4 % 4;
    session.peer_fence = data[0] / 16 % 4;
    session.met = data[0] / 64 % 2;
    struct tether__session before = session;

    size_t len = size - 1;
    uint8_t *exact = malloc(len ? len : 1);
    if (!exact)
        return 0;
    memcpy(exact, data + 1, len);
    tether_bytes body = tether_bytes_of(exact, len);
    struct tether__hello_peek peek;
    bool known = tether__hello_peek(&self, body, &peek, NULL) == TETHER_OK;
    if (known)
        fuzz_check(tether__name_valid(peek.from_name) && peek.from_incarnation > 0);

    tether_error err = {0};
    struct tether__hello_result result = tether__session_on_hello(&session, body, &err);
    if (result.verdict == TETHER__HELLO_REJECT) {
        fuzz_check(err.code != TETHER_OK && err.message[0]);
        fuzz_check(!result.up && memcmp(&session, &before, sizeof session) == 0);
    } else {
        fuzz_check(known && strcmp(peek.from_name, "b") == 0);
        fuzz_check(session.peer_incarnation >= before.peer_incarnation);
        bool changed = session.peer_incarnation != before.peer_incarnation ||
                       session.my_fence != before.my_fence ||
                       session.peer_fence != before.peer_fence;
        fuzz_check(changed == (session.epoch != before.epoch));
        fuzz_check(!tether__hello_fences(result.verdict) || changed);
        fuzz_check(result.up || result.verdict != TETHER__HELLO_ACCEPT);
        fuzz_check(session.met == (result.up || (before.met && !changed)));
        /* Said again, it says nothing new. */
        struct tether__hello_result again = tether__session_on_hello(&session, body, &err);
        fuzz_check(again.up == result.up && !tether__hello_fences(again.verdict));
    }
    free(exact);
    return 0;
}
