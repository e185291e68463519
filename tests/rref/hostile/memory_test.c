/* A member of the group whose calls would pin more memory than they are charged for: each argument
 * is just too long to be copied, and comes in a buffer that is far larger. The member is a process
 * of its own with a plain socket (member.h). The worker's memory grows by about the arguments. */
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "base/map.h"
#include "rpc/peer/peer.h"
#include "rpc/peer/session.h"
#include "tests/lib/cmocka.h"
#include "tests/rref/hostile/member.h"

enum { SERVING, ATTACKED, CHECKED };
enum { WORKER, MEMBER, N_RANKS };

#define N_CALLS (2 * MEMBER_MAX_CALLS - 10)    /* the worker keeps 2 * MEMBER_MAX_CALLS */
#define ARGUMENT_BYTES ((size_t)4097)          /* received bytes of up to 4,096 are always copied */
#define MOST_FILLING ((size_t)500 * 1024)      /* a batch may have 512 KiB */
#define FILLING_OF_SCRATCH ((size_t)60 * 1024) /* a unix socket lends out up to 72 KiB */

struct attack {
    void (*fill)(Tether__Batch *batch, size_t len); /* adds bytes that have no effect */
    size_t len;
    long max_grown_kb;
};

/* The most memory that this process has had, in KiB. */
static long peak_kb(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_maxrss;
}

static void send_call(struct member *member, uint64_t id, const struct attack *attack)
{
    static uint8_t argument[ARGUMENT_BYTES];
    Tether__Frame call_frame = TETHER__FRAME__INIT, *frames[2] = {&call_frame};
    Tether__Call call = TETHER__CALL__INIT;
    Tether__Batch batch = TETHER__BATCH__INIT;
    call_frame.seq = ++member->seq;
    call_frame.body_case = TETHER__FRAME__BODY_CALL;
    call_frame.call = &call;
    call_frame.payload = (ProtobufCBinaryData){sizeof argument, argument};
    call.id = id;
    call.function = (char *)"hold";
    batch.frame = frames;
    batch.n_frame = 1;
    attack->fill(&batch, attack->len);
    member_send_whole(member, &batch);
}

/* Keeps the only thread busy, and many calls behind it. Each call comes alone: the worker has read
 * it, and answered the next one, before another is sent. */
static void hold_many(const struct member_notice *notice, const struct attack *attack)
{
    struct member member;
    assert_true(member_join(&member, notice, "eve", MEMBER_START));
    for (uint64_t i = 1; i <= N_CALLS; i++) {
        send_call(&member, 2 * i, attack);
        member_call(&member, 2 * i + 1, "drop", NULL, 0);
        assert_int_equal(member_await_reply(&member, 2 * i + 1), TETHER_OK);
    }
}

static void expect_little_memory(const struct member_group *group,
                                 const struct attack *attack,
                                 long kb_before)
{
    struct tether__peer *eve = tether__agent_find_peer(group->worker, "eve");
    assert_non_null(eve);
    tether__peer_lock(eve);
    size_t n_calls = tether__map_count(&eve->session->incoming), bytes = eve->session->held_bytes;
    tether__peer_unlock(eve);
    tether__peer_release(eve);
    long grown = peak_kb() - kb_before;
    print_message("%zu calls are kept, of %zu bytes; the worker grew by %ld kB\n", n_calls, bytes,
                  grown);
    assert_int_equal(n_calls, N_CALLS);
    assert_int_equal(bytes, N_CALLS * ARGUMENT_BYTES);
    /* Sanitizers keep memory that was freed. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_in_range(grown, 0, attack->max_grown_kb);
#else
    (void)attack;
#endif
}

static void run_attack(struct tether_test_rank *self, int rank, const struct attack *attack)
{
    struct member_notice *notice = member_notice(self->world);
    if (rank == WORKER) {
        struct member_group group;
        member_group_start(&group, notice);
        long kb_before = peak_kb();
        tether_test_mark(self->world, SERVING);
        tether_test_await_mark(self->world, ATTACKED, 1);
        expect_little_memory(&group, attack, kb_before);
        tether_test_mark(self->world, CHECKED);
        member_group_end(&group);
    } else {
        tether_test_await_mark(self->world, SERVING, 1);
        hold_many(notice, attack);
        tether_test_mark(self->world, ATTACKED);
        tether_test_await_mark(self->world, CHECKED, 1);
    }
}

static uint8_t filling[MOST_FILLING + 3];

/* A field that no version knows is skipped. */
static void add_unknown_field(Tether__Batch *batch, size_t len)
{
    static ProtobufCMessageUnknownField field = {
        .tag = 99, .wire_type = PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED, .data = filling};
    filling[0] = (uint8_t)(len | 128); /* the length, as a varint of 3 bytes */
    filling[1] = (uint8_t)(len >> 7 | 128);
    filling[2] = (uint8_t)(len >> 14);
    field.len = 3 + len;
    batch->base.n_unknown_fields = 1;
    batch->base.unknown_fields = &field;
}

/* A frame that the worker has seen before is not applied. */
static void add_seen_frame(Tether__Batch *batch, size_t len)
{
    static Tether__Cancel cancel = TETHER__CANCEL__INIT;
    static Tether__Frame frame = TETHER__FRAME__INIT;
    frame.seq = 1;
    frame.body_case = TETHER__FRAME__BODY_CANCEL;
    frame.cancel = &cancel;
    frame.payload = (ProtobufCBinaryData){len, filling};
    batch->frame[batch->n_frame++] = &frame;
}

#define ATTACK(name, ...)                           \
    TETHER_PROC_TEST(name, .ranks = N_RANKS)        \
    {                                               \
        const struct attack attack = {__VA_ARGS__}; \
        run_attack(self, rank, &attack);            \
    }

ATTACK(queued_calls_pin_no_batch_when_member_adds_unknown_fields,
       add_unknown_field,
       MOST_FILLING,
       19 * 1024L)
ATTACK(queued_calls_hold_no_batch_memory_when_member_adds_duplicate_frames,
       add_seen_frame,
       MOST_FILLING,
       19 * 1024L)
ATTACK(queued_calls_pin_no_receive_buffer_when_member_fills_it,
       add_unknown_field,
       FILLING_OF_SCRATCH,
       9 * 1024L)

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(queued_calls_pin_no_batch_when_member_adds_unknown_fields),
        cmocka_unit_test(queued_calls_hold_no_batch_memory_when_member_adds_duplicate_frames),
        cmocka_unit_test(queued_calls_pin_no_receive_buffer_when_member_fills_it),
    };
    return cmocka_run_group_tests_name("hostile memory", tests, NULL, NULL);
}
