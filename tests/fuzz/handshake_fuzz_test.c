/* Two workers that shake hands over a network that belongs to the fuzzer: it delivers, repeats,
 * reorders, reflects, changes and invents messages on many streams, but does not know the token.
 * In all cases a worker counts the other end of a stream as proved only if the other worker
 * is there, on that very stream. */
#include <stdlib.h>
#include <string.h>

#include "rpc/handshake/handshake.h"
#include "rpc/wire/packed.h"
#include "tests/fuzz/fuzz.h"

#define MAX_ENDS 32
#define MAX_SENT 48

static struct tether__self workers[2] = {
    {.group = "g", .run = "0123456789abcdef0123456789abcdef", .name = "a", .incarnation = 3},
    {.group = "g", .run = "0123456789abcdef0123456789abcdef", .name = "b", .incarnation = 5},
};

/* One end of a stream, dialled or accepted. */
struct end {
    int worker;
    struct tether__handshake handshake;
};

struct network {
    const uint8_t *at, *stop; /* the unread rest of the fuzzer's input */
    struct end ends[MAX_ENDS];
    size_t n_ends;
    struct {
        uint8_t bytes[512];
        size_t len;
    } sent[MAX_SENT]; /* messages of honest ends, which the fuzzer may replay */
    size_t n_sent;
};

static uint8_t draw(struct network *network)
{
    return network->at < network->stop ? *network->at++ : 0;
}

static void send_frame(struct network *network, Tether__Frame *frame)
{
    struct tether__packed packed;
    if (network->n_sent == MAX_SENT || tether__handshake_pack(frame, &packed) != TETHER_OK)
        return;
    fuzz_check(packed.bytes.len <= TETHER__MAX_HELLO_BYTES);
    if (workers[0].token)
        fuzz_check(!memmem(packed.bytes.data, packed.bytes.len, workers[0].token,
                           strlen(workers[0].token)));
    if (packed.bytes.len <= sizeof network->sent[0].bytes) {
        memcpy(network->sent[network->n_sent].bytes, packed.bytes.data, packed.bytes.len);
        network->sent[network->n_sent++].len = packed.bytes.len;
    }
    tether__packed_fini(&packed);
}

static void add_end(struct network *network, uint8_t how)
{
    uint8_t nonce[TETHER__NONCE_SIZE] = {0};
    if (network->n_ends == MAX_ENDS)
        return;
    struct end *end = &network->ends[network->n_ends++];
    bool dials = how & 1;
    end->worker = how >> 1 & 1;
    nonce[0] = (uint8_t)network->n_ends; /* never used twice */
    const struct tether__self *self = &workers[end->worker];
    tether__handshake_init(&end->handshake, self, dials, dials ? workers[!end->worker].name : "",
                           self->token ? nonce : NULL);
    if (dials) {
        Tether__Hello1 hello = tether__handshake_begin(&end->handshake);
        Tether__Frame frame = TETHER__FRAME__INIT;
        frame.body_case = TETHER__FRAME__BODY_HELLO1;
        frame.hello1 = &hello;
        send_frame(network, &frame);
    }
}

/* The other worker has an end of this stream: it has sent what this end has heard, and heard what
 * this end has sent. */
static bool has_counterpart(const struct network *network, const struct end *end)
{
    for (size_t i = 0; i < network->n_ends; i++) {
        const struct end *other = &network->ends[i];
        if (other->worker != end->worker && other->handshake.dials != end->handshake.dials &&
            memcmp(other->handshake.nonce, end->handshake.peer_nonce, TETHER__NONCE_SIZE) == 0 &&
            memcmp(other->handshake.peer_nonce, end->handshake.nonce, TETHER__NONCE_SIZE) == 0)
            return true;
    }
    return false;
}

static void check(const struct network *network, const struct end *end)
{
    const struct tether__self *other = &workers[!end->worker];
    if (!end->handshake.proved)
        return;
    fuzz_check(workers[0].token);
    fuzz_check(strcmp(end->handshake.peer_name, other->name) == 0);
    fuzz_check(end->handshake.peer_incarnation == other->incarnation);
    fuzz_check(has_counterpart(network, end));
}

static void receive_frame(struct network *network, struct end *end, const Tether__Frame *frame)
{
    Tether__Frame answer = TETHER__FRAME__INIT;
    Tether__Hello2 hello2;
    Tether__State state = TETHER__STATE__INIT;
    state.from_incarnation = workers[end->worker].incarnation;
    tether_status st = TETHER_ECORRUPT;
    if (frame->body_case == TETHER__FRAME__BODY_HELLO1) {
        st = tether__handshake_on_hello1(&end->handshake, frame->hello1, &hello2, NULL);
        answer.body_case = TETHER__FRAME__BODY_HELLO2;
        answer.hello2 = &hello2;
        if (st == TETHER_OK)
            send_frame(network, &answer);
    } else if (frame->body_case == TETHER__FRAME__BODY_HELLO2) {
        st = tether__handshake_on_hello2(&end->handshake, frame->hello2, NULL);
        fuzz_check(st != TETHER_OK || end->handshake.proved == (workers[0].token != NULL));
        if (st == TETHER_OK) {
            Tether__Hello3 hello3 = tether__handshake_finish(&end->handshake, &state);
            answer.body_case = TETHER__FRAME__BODY_HELLO3;
            answer.hello3 = &hello3;
            send_frame(network, &answer);
        }
    } else if (frame->body_case == TETHER__FRAME__BODY_HELLO3) {
        st = tether__handshake_on_hello3(&end->handshake, frame->hello3, NULL);
        fuzz_check(st != TETHER_OK || end->handshake.proved == (workers[0].token != NULL));
    }
    check(network, end);
}

/* Takes a message that was sent, or the fuzzer's own, changes it, and delivers it. */
static void deliver(struct network *network, bool own)
{
    uint8_t bytes[600];
    size_t len = 0;
    if (!network->n_ends)
        return;
    struct end *end = &network->ends[draw(network) % network->n_ends];
    if (own) {
        len = draw(network);
        if (len > (size_t)(network->stop - network->at))
            len = (size_t)(network->stop - network->at);
        memcpy(bytes, network->at, len);
        network->at += len;
    } else if (network->n_sent) {
        size_t i = draw(network) % network->n_sent;
        len = network->sent[i].len;
        memcpy(bytes, network->sent[i].bytes, len);
        for (uint8_t changes = draw(network) % 4; changes > 0 && len; changes--) {
            size_t at = ((size_t)draw(network) << 8 | draw(network)) % len;
            bytes[at] ^= draw(network);
        }
        if (draw(network) == 1)
            len -= len ? 1 : 0;
    }
    const Tether__Frame *frame = NULL;
    TETHER__ARENA(arena, 1024);
    uint8_t *exact = malloc(len ? len : 1); /* so that a read beyond the end is noticed */
    if (exact) {
        memcpy(exact, bytes, len);
        if (tether__handshake_read((struct tether__slice){exact, len, NULL}, &arena, &frame,
                                   NULL) == TETHER_OK)
            receive_frame(network, end, frame);
    }
    tether__arena_fini(&arena);
    free(exact);
}

static const Tether__Frame *read_sent(struct network *network, struct tether__arena *arena)
{
    const Tether__Frame *frame = NULL;
    if (!network->n_sent)
        return NULL;
    size_t i = draw(network) % network->n_sent;
    struct tether__slice message = {network->sent[i].bytes, network->sent[i].len, NULL};
    tether__handshake_read(message, arena, &frame, NULL);
    return frame;
}

static ProtobufCBinaryData mac_of(const Tether__Frame *frame)
{
    return frame->body_case == TETHER__FRAME__BODY_HELLO2 ? frame->hello2->mac : frame->hello3->mac;
}

/* Builds a message out of parts of two others: a proof goes to another stream, to the other role,
 * under another name or another start. */
static void forge(struct network *network)
{
    TETHER__ARENA(arena, 4096);
    const Tether__Frame *part = read_sent(network, &arena), *from = read_sent(network, &arena);
    Tether__Frame forged = TETHER__FRAME__INIT;
    Tether__Hello1 hello1;
    Tether__Hello2 hello2;
    Tether__Hello3 hello3 = TETHER__HELLO3__INIT;
    Tether__State state = TETHER__STATE__INIT;
    struct end *end = network->n_ends ? &network->ends[draw(network) % network->n_ends] : NULL;
    uint8_t how = draw(network);
    const struct tether__self *as = &workers[how & 1];
    uint64_t start = as->incarnation + (how >> 1 & 1);
    if (part && from && end) {
        if (part->body_case == TETHER__FRAME__BODY_HELLO1) {
            hello1 = *part->hello1;
            hello1.from_name = (char *)(uintptr_t)(how & 8 ? "c" : as->name);
            hello1.to_name = (char *)(uintptr_t)workers[how >> 2 & 1].name;
            hello1.from_incarnation = start;
            forged.body_case = TETHER__FRAME__BODY_HELLO1;
            forged.hello1 = &hello1;
        } else if (part->body_case == TETHER__FRAME__BODY_HELLO2 && how & 4) {
            hello2 = *part->hello2;
            hello2.from_name = (char *)(uintptr_t)as->name;
            hello2.from_incarnation = start;
            if (from->body_case != TETHER__FRAME__BODY_HELLO1)
                hello2.mac = mac_of(from);
            forged.body_case = TETHER__FRAME__BODY_HELLO2;
            forged.hello2 = &hello2;
        } else {
            if (from->body_case != TETHER__FRAME__BODY_HELLO1)
                hello3.mac = mac_of(from);
            state.from_incarnation = start;
            hello3.state = &state;
            forged.body_case = TETHER__FRAME__BODY_HELLO3;
            forged.hello3 = &hello3;
        }
        receive_frame(network, end, &forged);
    }
    tether__arena_fini(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct network network;
    memset(&network, 0, sizeof network);
    network.at = data;
    network.stop = data + size;
    workers[0].token = workers[1].token = draw(&network) & 1 ? "a token nobody knows" : NULL;
    while (network.at < network.stop) {
        uint8_t what = draw(&network);
        if (what < 64)
            add_end(&network, what);
        else if (what < 128)
            forge(&network);
        else
            deliver(&network, what >= 240);
    }
    return 0;
}
