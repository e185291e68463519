/* A member of the group that sends what no worker would: bodies that cannot be read, frames out of
 * turn, messages about objects that are not there. It is a process of its own with a plain socket
 * (member.h). The worker hangs up on it or ignores the message, and goes on. */
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log_limit.h"
#include "rpc/lane/lane.h"
#include "rpc/wire/wire.h"
#include "tests/lib/cmocka.h"
#include "tests/rref/hostile/attack.h"

/* ---- Messages that no worker sends ---- */

/* A frame as bytes: protobuf-c would not write most of these. */
struct raw {
    uint8_t bytes[2048];
    size_t len;
};

static void put_varint(struct raw *raw, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        raw->bytes[raw->len++] = (uint8_t)(value | 0x80);
    raw->bytes[raw->len++] = (uint8_t)value;
}

static void put_number(struct raw *raw, uint32_t field, uint64_t value)
{
    put_varint(raw, field << 3);
    put_varint(raw, value);
}

static void put_bytes(struct raw *raw, uint32_t field, const void *bytes, size_t len)
{
    put_varint(raw, field << 3 | 2);
    put_varint(raw, len);
    memcpy(raw->bytes + raw->len, bytes, len);
    raw->len += len;
}

/* One frame: its number (0: none), its kind and the bytes of its body. */
static void send_frame(struct member *member,
                       uint64_t seq,
                       uint32_t kind,
                       const void *body,
                       size_t len)
{
    struct raw frame = {.len = 0}, batch = {.len = 0};
    if (seq)
        put_number(&frame, 1, seq);
    put_bytes(&frame, kind, body, len);
    put_bytes(&batch, 2, frame.bytes, frame.len);
    member_send_bytes(member, batch.bytes, batch.len);
}

/* A piece of a blob: its number, its total (0: not named) and one byte. */
static void send_piece(struct member *member, uint64_t seq, uint64_t number, uint64_t total)
{
    struct raw blob = {.len = 0}, frame = {.len = 0}, batch = {.len = 0};
    put_number(&blob, 1, number);
    if (total)
        put_number(&blob, 2, total);
    put_number(&frame, 1, seq);
    put_bytes(&frame, TETHER__FRAME_BLOB, blob.bytes, blob.len);
    put_bytes(&frame, 15, "x", 1);
    put_bytes(&batch, 2, frame.bytes, frame.len);
    member_send_bytes(member, batch.bytes, batch.len);
}

/* Ends too soon: its first field is said to be longer than all of it. */
static const uint8_t cut_off[] = {0x0a, 0xff, 0xff, 0xff, 0x07, 'x'};
static const uint8_t call_echo[] = {0x08, 0x01, 0x12, 0x04, 'e', 'c', 'h', 'o'};
/* A list of one object and no fork; a column that is longer than the others. */
static const uint8_t one_object[] = {0x0a, 0x09, 0x0a, 0x01, 1, 0x12, 0x01, 1, 0x1a, 0x01, 1};

static void send_bad_body(struct member *member, uint32_t kind)
{
    send_frame(member, 1, kind, cut_off, sizeof cut_off);
}

static void send_gap(struct member *member, uint32_t kind)
{
    (void)kind;
    send_frame(member, 5, TETHER__FRAME_CALL, call_echo, sizeof call_echo);
}

static void send_unnumbered(struct member *member, uint32_t kind)
{
    send_frame(member, 0, kind, call_echo, sizeof call_echo);
}

static void send_huge_blob(struct member *member, uint32_t kind)
{
    (void)kind;
    send_piece(member, 1, 1, UINT64_C(1) << 60);
}

static void send_blob_without_total(struct member *member, uint32_t kind)
{
    (void)kind;
    send_piece(member, 1, 1, 0);
}

static void send_many_blobs(struct member *member, uint32_t kind)
{
    (void)kind;
    for (uint64_t i = 1; i <= 100; i++)
        send_piece(member, i, i, 2);
}

static void send_unknown_blob(struct member *member, uint32_t kind)
{
    struct raw frame = {.len = 0}, batch = {.len = 0};
    put_number(&frame, 1, 1);
    put_bytes(&frame, kind, call_echo, sizeof call_echo);
    put_number(&frame, 14, 77);
    put_bytes(&batch, 2, frame.bytes, frame.len);
    member_send_bytes(member, batch.bytes, batch.len);
}

static void send_delete_without_fork(struct member *member, uint32_t kind)
{
    send_frame(member, 1, kind, one_object, sizeof one_object);
}

static void send_too_many_ids(struct member *member, uint32_t kind)
{
    uint8_t column[257]; /* an honest worker sends 256 */
    struct raw ids = {.len = 0}, body = {.len = 0};
    memset(column, 1, sizeof column);
    for (uint32_t i = 1; i <= 3; i++)
        put_bytes(&ids, i, column, sizeof column);
    put_bytes(&body, 1, ids.bytes, ids.len);
    if (kind == TETHER__FRAME_USER_DELETE)
        put_bytes(&body, 2, ids.bytes, ids.len);
    send_frame(member, 1, kind, body.bytes, body.len);
}

static void send_two_bodies(struct member *member, uint32_t kind)
{
    struct raw frame = {.len = 0}, batch = {.len = 0};
    put_number(&frame, 1, 1);
    put_bytes(&frame, kind, call_echo, sizeof call_echo);
    put_bytes(&frame, TETHER__FRAME_CANCEL, "\x08\x01", 2);
    put_bytes(&batch, 2, frame.bytes, frame.len);
    member_send_bytes(member, batch.bytes, batch.len);
}

static void acknowledge_too_much(struct member *member, uint32_t kind)
{
    (void)kind;
    member_acknowledge(member, UINT64_C(1) << 40);
}

static void announce_huge_batch(struct member *member, uint32_t kind)
{
    static const uint8_t length[] = {0xf0, 0xff, 0xff, 0x7f};
    (void)kind;
    (void)!write(member->fd, length, sizeof length);
}

static const struct {
    const char *what;
    void (*send)(struct member *member, uint32_t kind);
    uint32_t kind;
} bad_messages[] = {
    {"call that ends too soon", send_bad_body, TETHER__FRAME_CALL},
    {"reply that ends too soon", send_bad_body, TETHER__FRAME_REPLY},
    {"cancel that ends too soon", send_bad_body, TETHER__FRAME_CANCEL},
    {"fork request that ends too soon", send_bad_body, TETHER__FRAME_FORK_REQUEST},
    {"accept that ends too soon", send_bad_body, TETHER__FRAME_CHILD_ACCEPT},
    {"delete that ends too soon", send_bad_body, TETHER__FRAME_USER_DELETE},
    {"fetch that ends too soon", send_bad_body, TETHER__FRAME_FETCH},
    {"announce that ends too soon", send_bad_body, TETHER__FRAME_ANNOUNCE},
    {"delete of an object without a fork", send_delete_without_fork, TETHER__FRAME_USER_DELETE},
    {"delete of too many forks", send_too_many_ids, TETHER__FRAME_USER_DELETE},
    {"accept of too many forks", send_too_many_ids, TETHER__FRAME_CHILD_ACCEPT},
    {"gap in the numbers", send_gap, 0},
    {"call without a number", send_unnumbered, TETHER__FRAME_CALL},
    {"hello in a session", send_unnumbered, TETHER__FRAME_HELLO1},
    {"frame with two bodies", send_two_bodies, TETHER__FRAME_CALL},
    {"blob of 2^60 bytes", send_huge_blob, 0},
    {"blob without a total", send_blob_without_total, 0},
    {"100 blobs at once", send_many_blobs, 0},
    {"call with a blob that was not sent", send_unknown_blob, TETHER__FRAME_CALL},
    {"acknowledgement of what was never sent", acknowledge_too_much, 0},
    {"batch of 2 GiB", announce_huge_batch, 0},
};

static void send_bad_messages(const struct member_notice *notice)
{
    struct member member;
    uint64_t start = MEMBER_START;
    for (size_t i = 0; i < TETHER__ARRAY_LEN(bad_messages); i++) {
        print_message("%s\n", bad_messages[i].what);
        assert_true(member_join(&member, notice, "eve", ++start));
        bad_messages[i].send(&member, bad_messages[i].kind);
        member_await_hangup(&member);
        close(member.fd);
    }
    /* A later start of the member is accepted again. */
    assert_true(member_join(&member, notice, "eve", ++start));
    member_call(&member, 1, "echo", NULL, 0);
    assert_int_equal(member_await_reply(&member, 1), TETHER_OK);
}

static void expect_no_growth(struct member_group *group)
{
    (void)group;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_in_range(attack_grown_kb(), 0, 32 * 1024);
#endif
}

static void expect_no_growth_and_one_line(struct member_group *group)
{
    expect_no_growth(group);
    int64_t now = tether__clock_now_ns(&tether__clock_system);
    assert_in_range(atomic_load(&attack_n_closings_logged), 1,
                    1 + (now - attack_started_at) / TETHER__LOG_PAUSE_NS);
}

ATTACK(worker_hangs_up_when_member_sends_what_no_worker_would,
       .run = send_bad_messages,
       .check = expect_no_growth_and_one_line)

/* ---- Messages about what is not there ---- */

static void send_messages_about_nothing(const struct member_notice *notice)
{
    enum { N_IDS = 256 };
    static uint32_t creators[N_IDS];
    static uint64_t starts[N_IDS], counters[N_IDS];
    struct member member;
    Tether__RefIds ids = TETHER__REF_IDS__INIT;
    assert_true(member_join(&member, notice, "eve", MEMBER_START));
    for (int i = 0; i < N_IDS; i++) {
        creators[i] = 1;
        starts[i] = 2;
        counters[i] = (uint64_t)i;
    }
    ids.creator = creators;
    ids.incarnation = starts;
    ids.counter = counters;
    ids.n_creator = ids.n_incarnation = ids.n_counter = N_IDS;
    for (uint64_t i = 1; i <= 200; i++) {
        Tether__Frame frame = TETHER__FRAME__INIT;
        Tether__Reply reply = TETHER__REPLY__INIT;
        Tether__Cancel cancel = TETHER__CANCEL__INIT;
        Tether__ChildAccept accept = TETHER__CHILD_ACCEPT__INIT;
        Tether__UserDelete user_delete = TETHER__USER_DELETE__INIT;
        reply.id = cancel.id = i << 40 | i;
        frame.body_case = TETHER__FRAME__BODY_REPLY;
        frame.reply = &reply;
        member_send(&member, &frame);
        frame.body_case = TETHER__FRAME__BODY_CANCEL;
        frame.cancel = &cancel;
        member_send(&member, &frame);
        accept.fork = user_delete.object = user_delete.fork = &ids;
        frame.body_case = TETHER__FRAME__BODY_CHILD_ACCEPT;
        frame.child_accept = &accept;
        member_send(&member, &frame);
        frame.body_case = TETHER__FRAME__BODY_USER_DELETE;
        frame.user_delete = &user_delete;
        member_send(&member, &frame);
    }
    member_call(&member, 1, "echo", NULL, 0);
    assert_int_equal(member_await_reply(&member, 1), TETHER_OK);
}

ATTACK(messages_about_unknown_objects_have_no_effect,
       .run = send_messages_about_nothing,
       .check = expect_no_growth)

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(worker_hangs_up_when_member_sends_what_no_worker_would),
        cmocka_unit_test(messages_about_unknown_objects_have_no_effect),
    };
    return cmocka_run_group_tests_name("hostile_malformed", tests, NULL, NULL);
}
