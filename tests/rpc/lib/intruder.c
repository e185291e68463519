/* A handshake with a guessed token and any claims. */
#include "tests/rpc/lib/intruder.h"

#include "rpc/handshake/handshake.h"
#include "rpc/wire/packed.h"
#include "tests/lib/cmocka.h"

void intruder_send(struct wire *wire, Tether__Frame *frame)
{
    struct tether__packed packed;
    assert_int_equal(tether__handshake_pack(frame, &packed), TETHER_OK);
    wire_send(wire, packed.bytes.data, packed.bytes.len);
    tether__packed_fini(&packed);
}

/* Takes what is needed for the last message from the answer, if that is a Hello2. */
static void take_answer(struct tether__handshake *handshake, const struct wire *wire)
{
    const Tether__Frame *answer = NULL;
    TETHER__ARENA(arena, 1024);
    struct tether__slice message = {(uint8_t *)wire->last, wire->last_len, NULL};
    assert_int_equal(tether__handshake_read(message, &arena, &answer, NULL), TETHER_OK);
    if (answer->body_case == TETHER__FRAME__BODY_HELLO2)
        tether__handshake_on_hello2(handshake, answer->hello2, NULL);
    tether__arena_fini(&arena);
}

struct wire *intruder_dial(struct node *node,
                           const char *address,
                           const char *to,
                           const struct tether__self *who,
                           Tether__State *state)
{
    struct tether__handshake handshake;
    uint8_t nonce[TETHER__NONCE_SIZE] = {9};
    Tether__Frame frame = TETHER__FRAME__INIT;
    tether__handshake_init(&handshake, who, true, to, who->token ? nonce : NULL);
    Tether__Hello1 hello1 = tether__handshake_begin(&handshake);
    struct wire *wire = node_dial(node, address);
    frame.body_case = TETHER__FRAME__BODY_HELLO1;
    frame.hello1 = &hello1;
    intruder_send(wire, &frame);
    if (wire_await_either(wire, 1) == TETHER_OK) {
        take_answer(&handshake, wire);
        Tether__Hello3 hello3 = tether__handshake_finish(&handshake, state);
        frame.body_case = TETHER__FRAME__BODY_HELLO3;
        frame.hello3 = &hello3;
        intruder_send(wire, &frame);
    }
    return wire;
}
