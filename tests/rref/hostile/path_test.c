/* An attacker on the path between two workers, without the token: it repeats, reflects and changes
 * the messages of a handshake, or sends them out of turn. It is a process of its own with a plain
 * socket, in which an honest dialler (member.h) plays the one whose messages it sees. The worker
 * accepts only the honest dialler, and its group goes on calling. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/cmocka.h"
#include "tests/rpc/lib/raw_socket.h"
#include "tests/rref/hostile/member.h"

enum { SERVING, ATTACKED };
enum { WORKER, MEMBER, N_RANKS };

static void run_attack(struct tether_test_rank *self,
                       int rank,
                       void (*run)(const struct member_notice *notice))
{
    struct member_notice *notice = member_notice(self->world);
    if (rank == WORKER) {
        struct member_group group;
        member_group_start(&group, notice);
        tether_test_mark(self->world, SERVING);
        tether_test_await_mark(self->world, ATTACKED, 1);
        member_group_end(&group);
    } else {
        tether_test_await_mark(self->world, SERVING, 1);
        run(notice);
        tether_test_mark(self->world, ATTACKED);
    }
}

#define ATTACK(name, run)                    \
    TETHER_PROC_TEST(name, .ranks = N_RANKS) \
    {                                        \
        run_attack(self, rank, run);         \
    }

/* One message of a handshake, as it is on the wire. */
struct message {
    uint8_t bytes[TETHER__MAX_HELLO_BYTES];
    size_t len;
};

static struct message pack(Tether__Frame *frame)
{
    struct message message;
    Tether__Batch batch = TETHER__BATCH__INIT;
    batch.frame = &frame;
    batch.n_frame = 1;
    assert_true(tether__batch__get_packed_size(&batch) <= sizeof message.bytes);
    message.len = tether__batch__pack(&batch, message.bytes);
    return message;
}

static struct message pack_hello1(Tether__Hello1 *hello)
{
    Tether__Frame frame = TETHER__FRAME__INIT;
    frame.body_case = TETHER__FRAME__BODY_HELLO1;
    frame.hello1 = hello;
    return pack(&frame);
}

static struct message pack_hello3(Tether__Hello3 *hello)
{
    Tether__Frame frame = TETHER__FRAME__INIT;
    frame.body_case = TETHER__FRAME__BODY_HELLO3;
    frame.hello3 = hello;
    return pack(&frame);
}

static void dial(struct member *member, const struct member_notice *notice, const char *name)
{
    static uint8_t n_dials;
    const uint8_t nonce[TETHER__NONCE_SIZE] = {++n_dials};
    *member = (struct member){.fd = raw_connect(notice->unix_address), .dial = 1};
    snprintf(member->name, sizeof member->name, "%s", name);
    member->self = (struct tether__self){.group = "tether",
                                         .run = notice->run,
                                         .name = member->name,
                                         .token = MEMBER_TOKEN,
                                         .incarnation = MEMBER_START};
    tether__handshake_init(&member->handshake, &member->self, true, "w", nonce);
}

static void send_message(struct member *member, const struct message *message)
{
    member_send_bytes(member, message->bytes, message->len);
}

/* The worker's Hello2; free it with tether__batch__free_unpacked(). */
static Tether__Batch *read_hello2(struct member *member)
{
    Tether__Batch *batch = member_read(member);
    assert_non_null(batch);
    assert_int_equal(batch->n_frame, 1);
    assert_int_equal(batch->frame[0]->body_case, TETHER__FRAME__BODY_HELLO2);
    assert_int_equal(batch->frame[0]->hello2->refused, 0);
    return batch;
}

static Tether__State state_of(const struct member_notice *notice)
{
    Tether__State state = TETHER__STATE__INIT;
    state.from_incarnation = MEMBER_START;
    state.to_incarnation = notice->incarnation;
    state.lease_ms = 30000;
    state.dial = 1;
    return state;
}

/* Whether the worker answers with its state; it closes the connection of any other client. */
static bool is_let_in(struct member *member)
{
    bool let_in = false;
    Tether__Batch *batch = member_read(member);
    if (batch) {
        const Tether__Frame *frame = batch->n_frame ? batch->frame[0] : NULL;
        let_in = frame && frame->body_case == TETHER__FRAME__BODY_STATE && !frame->state->refused;
        tether__batch__free_unpacked(batch, NULL);
    }
    if (!let_in)
        member_await_hangup(member);
    return let_in;
}

/* The honest dialler's two messages for the stream that it has dialled. */
static void converse(struct member *member,
                     const struct member_notice *notice,
                     struct message *ret_hello1,
                     struct message *ret_hello3)
{
    Tether__Hello1 hello1 = tether__handshake_begin(&member->handshake);
    *ret_hello1 = pack_hello1(&hello1);
    send_message(member, ret_hello1);
    Tether__Batch *batch = read_hello2(member);
    assert_int_equal(tether__handshake_on_hello2(&member->handshake, batch->frame[0]->hello2, NULL),
                     TETHER_OK);
    tether__batch__free_unpacked(batch, NULL);
    Tether__State state = state_of(notice);
    Tether__Hello3 hello3 = tether__handshake_finish(&member->handshake, &state);
    *ret_hello3 = pack_hello3(&hello3);
}

/* ---- Repeating ---- */

/* The last message of the honest dialler never arrives: the worker has not seen it, and only the
 * nonce of the other stream can tell that it is old. */
static void repeat(const struct member_notice *notice)
{
    struct member honest, intruder;
    struct message hello1, hello3, again1, again3;
    dial(&honest, notice, "eve");
    converse(&honest, notice, &hello1, &hello3);
    close(honest.fd);
    dial(&intruder, notice, "eve");
    send_message(&intruder, &hello1);
    tether__batch__free_unpacked(read_hello2(&intruder), NULL);
    send_message(&intruder, &hello3);
    assert_false(is_let_in(&intruder));
    close(intruder.fd);
    /* On its own stream it would have been let in. */
    dial(&honest, notice, "eve");
    converse(&honest, notice, &again1, &again3);
    send_message(&honest, &again3);
    assert_true(is_let_in(&honest));
    close(honest.fd);
}

ATTACK(worker_hangs_up_when_handshake_of_another_stream_is_repeated, repeat)

/* ---- Reflecting ---- */

/* Gives the worker's own proof back to it, from this stream and from another one. */
static void reflect(const struct member_notice *notice)
{
    for (int from_another = 0; from_another < 2; from_another++) {
        struct member intruder, other;
        Tether__State state = state_of(notice);
        Tether__Hello3 hello3 = TETHER__HELLO3__INIT;
        dial(&intruder, notice, "eve");
        Tether__Hello1 hello1 = tether__handshake_begin(&intruder.handshake);
        struct message first = pack_hello1(&hello1);
        send_message(&intruder, &first);
        Tether__Batch *batch = read_hello2(&intruder), *answer = NULL;
        Tether__Hello2 *proof = batch->frame[0]->hello2;
        if (from_another) { /* asks for a proof of the nonce that it was given */
            dial(&other, notice, "eve");
            hello1.nonce = proof->nonce;
            struct message asks = pack_hello1(&hello1);
            send_message(&other, &asks);
            answer = read_hello2(&other);
            proof = answer->frame[0]->hello2;
        }
        hello3.mac = proof->mac;
        hello3.state = &state;
        struct message third = pack_hello3(&hello3);
        send_message(&intruder, &third);
        assert_false(is_let_in(&intruder));
        close(intruder.fd);
        if (answer) {
            close(other.fd);
            tether__batch__free_unpacked(answer, NULL);
        }
        tether__batch__free_unpacked(batch, NULL);
    }
}

ATTACK(worker_hangs_up_when_its_proof_is_reflected, reflect)

/* ---- Changing ---- */

#define OTHER_RUN "fedcba9876543210fedcba9876543210"

enum change {
    NAME,
    START,
    NONCE,
    RUN,     /* the dialler's is another one: the worker is of the next run */
    TO_NAME, /* the dialler has dialled a third worker, 'x' */
    ANSWERED_NONCE,
    ANSWERED_START,
    ANSWERED_MAC,
    N_CHANGES
};

static void dial_to_be_changed(struct member *member,
                               const struct member_notice *notice,
                               enum change change)
{
    dial(member, notice, "eve");
    if (change == RUN)
        member->self.run = OTHER_RUN;
    if (change == TO_NAME)
        snprintf(member->handshake.peer_name, sizeof member->handshake.peer_name, "x");
}

static void change_hello1(Tether__Hello1 *hello,
                          enum change change,
                          const struct member_notice *notice,
                          uint8_t *nonce)
{
    memcpy(nonce, hello->nonce.data, TETHER__NONCE_SIZE);
    nonce[0] ^= 1;
    if (change == NAME)
        hello->from_name = (char *)"bob";
    else if (change == START)
        hello->from_incarnation++;
    else if (change == NONCE)
        hello->nonce.data = nonce;
    else if (change == RUN)
        hello->run = (char *)(uintptr_t)notice->run;
    else if (change == TO_NAME)
        hello->to_name = (char *)"w";
}

static void change_hello2(Tether__Hello2 *hello, enum change change)
{
    if (change == ANSWERED_NONCE)
        hello->nonce.data[0] ^= 1;
    else if (change == ANSWERED_START)
        hello->from_incarnation++;
    else if (change == ANSWERED_MAC)
        hello->mac.data[0] ^= 1;
}

/* Passes a handshake on, and changes one thing: neither end takes the other for who it is. */
static void change_one_thing(const struct member_notice *notice)
{
    for (enum change change = NAME; change < N_CHANGES; change++) {
        struct member honest;
        uint8_t nonce[TETHER__NONCE_SIZE];
        dial_to_be_changed(&honest, notice, change);
        Tether__Hello1 hello1 = tether__handshake_begin(&honest.handshake);
        change_hello1(&hello1, change, notice, nonce);
        struct message first = pack_hello1(&hello1);
        send_message(&honest, &first);
        Tether__Batch *batch = read_hello2(&honest);
        if (change == TO_NAME)
            batch->frame[0]->hello2->from_name[0] = 'x';
        change_hello2(batch->frame[0]->hello2, change);
        tether_status st =
            tether__handshake_on_hello2(&honest.handshake, batch->frame[0]->hello2, NULL);
        tether__batch__free_unpacked(batch, NULL);
        if (st == TETHER_OK)
            fail_msg("the dialler did not notice change %d", (int)change);
        /* It would send nothing more. Its proof, if it sent one, would not do either; only a proof
         * of unchanged messages has to be guessed. */
        Tether__State state = state_of(notice);
        Tether__Hello3 hello3 = tether__handshake_finish(&honest.handshake, &state);
        state.from_incarnation = hello1.from_incarnation;
        if (change == ANSWERED_MAC)
            hello3.mac = (ProtobufCBinaryData){TETHER__MAC_SIZE, nonce};
        struct message third = pack_hello3(&hello3);
        send_message(&honest, &third);
        assert_false(is_let_in(&honest));
        close(honest.fd);
    }
}

ATTACK(both_ends_refuse_when_handshake_is_changed_on_its_way, change_one_thing)

/* ---- Out of turn ---- */

static void speak_out_of_turn(const struct member_notice *notice)
{
    struct member intruder;
    struct message hello1, hello3;
    Tether__State state = state_of(notice);
    Tether__Frame frame = TETHER__FRAME__INIT;
    Tether__Call call = TETHER__CALL__INIT;
    /* The last message first. */
    dial(&intruder, notice, "eve");
    converse(&intruder, notice, &hello1, &hello3);
    close(intruder.fd);
    dial(&intruder, notice, "eve");
    send_message(&intruder, &hello3);
    assert_false(is_let_in(&intruder));
    close(intruder.fd);
    /* The first message twice. */
    dial(&intruder, notice, "eve");
    send_message(&intruder, &hello1);
    tether__batch__free_unpacked(read_hello2(&intruder), NULL);
    send_message(&intruder, &hello1);
    assert_false(is_let_in(&intruder));
    close(intruder.fd);
    /* A state, or a call, in place of the last message. */
    for (int i = 0; i < 2; i++) {
        call.function = (char *)"echo";
        frame.seq = i == 0 ? 0 : 1;
        frame.body_case = i == 0 ? TETHER__FRAME__BODY_STATE : TETHER__FRAME__BODY_CALL;
        if (i == 0)
            frame.state = &state;
        else
            frame.call = &call;
        struct message other = pack(&frame);
        dial(&intruder, notice, "eve");
        send_message(&intruder, &hello1);
        tether__batch__free_unpacked(read_hello2(&intruder), NULL);
        send_message(&intruder, &other);
        assert_false(is_let_in(&intruder));
        close(intruder.fd);
    }
}

ATTACK(worker_hangs_up_when_handshake_is_out_of_turn, speak_out_of_turn)

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(worker_hangs_up_when_handshake_of_another_stream_is_repeated),
        cmocka_unit_test(worker_hangs_up_when_its_proof_is_reflected),
        cmocka_unit_test(both_ends_refuse_when_handshake_is_changed_on_its_way),
        cmocka_unit_test(worker_hangs_up_when_handshake_is_out_of_turn),
    };
    return cmocka_run_group_tests_name("hostile_path", tests, NULL, NULL);
}
