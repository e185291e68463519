/* The bytes of the lane: protobuf reads what we write, we read what protobuf writes, and what is
 * not right changes nothing. */
#include <string.h>

#include "protos/rpc.pb-c.h"
#include "tests/lib/cmocka.h"
#include "tests/rpc/lane/fixture.h"

#define CALL TETHER__FRAME_CALL

/* ---- protobuf-c understands us, and we it ---- */

/* The bytes that docs/wire.md takes apart. */
static void frames_have_the_documented_bytes(void **state)
{
    (void)state;
    static const uint8_t expected[] = {
        0x08, 0x03,                                        /* ack 3 */
        0x12, 0x0f,                                        /* a frame of 15 bytes */
        0x08, 0x01,                                        /* seq 1 */
        0x2a, 0x07, 0x08, 0x01, 0x12, 0x03, 'a', 'd', 'd', /* call {id 1, function "add"} */
        0x7a, 0x02, 'h',  'i',                             /* payload */
    };
    struct test_end a, b;
    test_pair_init(&a, &b, &test_small_limits);
    a.lane.received = 3; /* as if */
    static const uint8_t payload[] = {'h', 'i'};
    Tether__Call call = TETHER__CALL__INIT;
    call.id = 1;
    call.function = (char *)"add";
    uint8_t body[16];
    assert_int_equal(
        tether__lane_send(&a.lane, CALL, tether_bytes_of(body, tether__call__pack(&call, body)),
                          (struct tether__slice){payload, sizeof payload, NULL}, 0),
        TETHER_OK);
    struct test_buffer *bytes = test_pull(&a, false);
    assert_int_equal(bytes->len, sizeof expected);
    assert_memory_equal(bytes->data, expected, sizeof expected);
    test_buffer_release(bytes);
    test_pair_fini(&a, &b);
}

static void protobuf_reads_our_frames(void **state)
{
    (void)state;
    struct test_end a, b;
    test_pair_init(&a, &b, &test_small_limits);
    Tether__Call call = TETHER__CALL__INIT;
    call.id = 7;
    call.function = (char *)"add";
    uint8_t body[64];
    size_t body_len = tether__call__pack(&call, body);
    struct test_buffer *payload = test_buffer_new(90);
    memset(payload->data, 'p', 90);
    a.lane.received = 300; /* as if: so that an ack rides along */
    tether__lane_send(&a.lane, CALL, tether_bytes_of(body, body_len), TETHER__SLICE_EMPTY, 0);
    tether__lane_send(&a.lane, CALL, tether_bytes_of(body, body_len), test_buffer_slice(payload),
                      0);
    struct test_buffer *bytes = test_pull(&a, false);
    Tether__Batch *batch = tether__batch__unpack(NULL, bytes->len, bytes->data);
    assert_non_null(batch);
    assert_int_equal(batch->ack, 300);
    assert_int_equal(batch->n_frame, 2);
    assert_int_equal(batch->frame[0]->seq, 1);
    assert_int_equal(batch->frame[0]->body_case, TETHER__FRAME__BODY_CALL);
    assert_int_equal(batch->frame[0]->call->id, 7);
    assert_string_equal(batch->frame[0]->call->function, "add");
    assert_int_equal(batch->frame[0]->payload.len, 0);
    assert_int_equal(batch->frame[1]->seq, 2);
    assert_int_equal(batch->frame[1]->payload.len, 90);
    assert_memory_equal(batch->frame[1]->payload.data, payload->data, 90);
    tether__batch__free_unpacked(batch, NULL);
    test_buffer_release(bytes);

    /* Pieces and the message behind them. */
    test_send(&a, CALL, "\x08\x05", 150, 0);
    static const size_t piece_len[] = {100, 50};
    for (int i = 0; i < 2; i++) {
        bytes = test_pull(&a, false);
        batch = tether__batch__unpack(NULL, bytes->len, bytes->data);
        assert_int_equal(batch->frame[0]->body_case, TETHER__FRAME__BODY_BLOB);
        assert_int_equal(batch->frame[0]->blob->number, 1);
        assert_int_equal(batch->frame[0]->blob->total, i == 0 ? 150 : 0);
        assert_int_equal(batch->frame[0]->payload.len, piece_len[i]);
        tether__batch__free_unpacked(batch, NULL);
        test_buffer_release(bytes);
    }
    bytes = test_pull(&a, false);
    batch = tether__batch__unpack(NULL, bytes->len, bytes->data);
    assert_int_equal(batch->frame[0]->seq, 5);
    assert_int_equal(batch->frame[0]->call->id, 5);
    assert_int_equal(batch->frame[0]->payload_blob, 1);
    tether__batch__free_unpacked(batch, NULL);
    test_buffer_release(bytes);
    test_buffer_release(payload);
    test_pair_fini(&a, &b);
}

static void lane_reads_frames_of_protobuf(void **state)
{
    (void)state;
    Tether__Fetch fetch = TETHER__FETCH__INIT;
    fetch.id = 99;
    Tether__Blob piece = TETHER__BLOB__INIT;
    piece.number = 3, piece.total = 4;
    Tether__Frame frames[3] = {TETHER__FRAME__INIT, TETHER__FRAME__INIT, TETHER__FRAME__INIT};
    frames[0].seq = 1; /* protobuf-c puts the payload (15) before this body (19) */
    frames[0].body_case = TETHER__FRAME__BODY_FETCH, frames[0].fetch = &fetch;
    frames[0].payload = (ProtobufCBinaryData){4, (uint8_t *)"data"};
    frames[1].seq = 2;
    frames[1].body_case = TETHER__FRAME__BODY_BLOB, frames[1].blob = &piece;
    frames[1].payload = (ProtobufCBinaryData){4, (uint8_t *)"blob"};
    frames[2].seq = 3;
    frames[2].body_case = TETHER__FRAME__BODY_FETCH, frames[2].fetch = &fetch;
    frames[2].payload_blob = 3;
    Tether__Frame *list[] = {&frames[0], &frames[1], &frames[2]};
    Tether__Batch batch = TETHER__BATCH__INIT;
    batch.n_frame = 3, batch.frame = list;
    struct test_buffer *bytes = test_buffer_new(tether__batch__get_packed_size(&batch));
    tether__batch__pack(&batch, bytes->data);

    struct test_end a, b;
    test_pair_init(&a, &b, &test_small_limits);
    test_receive(&b, bytes, TETHER_OK);
    assert_int_equal(b.n_got, 2);
    assert_int_equal(b.got[0].kind, TETHER__FRAME_FETCH);
    assert_string_equal(b.got[0].payload, "data");
    assert_string_equal(b.got[1].payload, "blob");
    Tether__Fetch *read = tether__fetch__unpack(NULL, b.got[1].header_len, b.got[1].header);
    assert_int_equal(read->id, 99);
    tether__fetch__free_unpacked(read, NULL);
    test_buffer_release(bytes);
    test_pair_fini(&a, &b);
}

/* ---- Bad input ---- */

static void lane_is_unchanged_when_input_is_malformed(void **state)
{
    (void)state;
#define BAD(name, status, bytes)              \
    {                                         \
        name, status, bytes, sizeof bytes - 1 \
    }
    static const struct {
        const char *name;
        tether_status status;
        const char *bytes;
        size_t len;
    } rows[] = {
        /* frame: tag 0x12, length; seq: 0x08; call: 0x2a; blob: 0x22; payload_blob: 0x70;
         * payload: 0x7a */
        BAD("a tag alone", TETHER_ECORRUPT, "\x12"),
        BAD("a frame longer than the batch", TETHER_ECORRUPT, "\x12\x05\x08\x01"),
        BAD("a length that wraps", TETHER_ECORRUPT,
            "\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x08"),
        BAD("a varint of more than 64 bits", TETHER_ECORRUPT,
            "\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"),
        BAD("a varint without end", TETHER_ECORRUPT, "\x08\x80\x80"),
        BAD("field number 0", TETHER_ECORRUPT, "\x02\x00"),
        BAD("a group", TETHER_ECORRUPT, "\x0b\x0c"),
        BAD("wire type 6", TETHER_ECORRUPT, "\x26"),
        BAD("an ack that is no number", TETHER_ECORRUPT, "\x0a\x00"),
        BAD("a frame that is a number", TETHER_ECORRUPT, "\x10\x01"),
        BAD("an ack of what was never sent", TETHER_ECORRUPT, "\x08\x01"),
        BAD("an empty frame", TETHER_ECORRUPT, "\x12\x00"),
        BAD("a frame without a body", TETHER_ECORRUPT, "\x12\x02\x08\x01"),
        BAD("two bodies", TETHER_ECORRUPT, "\x12\x06\x08\x01\x2a\x00\x32\x00"),
        BAD("two payloads", TETHER_ECORRUPT, "\x12\x08\x08\x01\x2a\x00\x7a\x00\x7a\x00"),
        BAD("a payload that is a number", TETHER_ECORRUPT, "\x12\x06\x08\x01\x2a\x00\x78\x01"),
        BAD("a number that is bytes", TETHER_ECORRUPT, "\x12\x05\x0a\x01x\x2a\x00"),
        BAD("a body longer than its frame", TETHER_ECORRUPT, "\x12\x04\x08\x01\x2a\x01x"),
        BAD("a gap", TETHER_ECORRUPT, "\x12\x04\x08\x02\x2a\x00"),
        BAD("payload and blob", TETHER_ECORRUPT, "\x12\x09\x08\x01\x2a\x00\x70\x01\x7a\x01x"),
        BAD("an unknown blob", TETHER_ECORRUPT, "\x12\x06\x08\x01\x2a\x00\x70\x01"),
        BAD("an unnumbered piece", TETHER_ECORRUPT, "\x12\x09\x22\x04\x08\x01\x10\x01\x7a\x01x"),
        BAD("an unnumbered message of a blob", TETHER_ECORRUPT, "\x12\x04\x2a\x00\x70\x01"),
        BAD("a piece without a blob number", TETHER_ECORRUPT,
            "\x12\x09\x08\x01\x22\x02\x10\x01\x7a\x01x"),
        BAD("a later piece of no blob", TETHER_ECORRUPT,
            "\x12\x09\x08\x01\x22\x02\x08\x01\x7a\x01x"),
        BAD("a piece longer than its blob", TETHER_ECORRUPT,
            "\x12\x0c\x08\x01\x22\x04\x08\x01\x10\x01\x7a\x02xx"),
        BAD("an empty piece", TETHER_ECORRUPT, "\x12\x08\x08\x01\x22\x04\x08\x01\x10\x01"),
        BAD("a malformed piece header", TETHER_ECORRUPT,
            "\x12\x09\x08\x01\x22\x02\x08\x80\x7a\x01x"),
        BAD("a piece that names a blob", TETHER_ECORRUPT,
            "\x12\x0a\x08\x01\x22\x04\x08\x01\x10\x01\x70\x05"),
        BAD("abandons what is not open", TETHER_ECORRUPT,
            "\x12\x08\x08\x01\x22\x04\x08\x01\x18\x01"),
        BAD("a blob beyond the limit", TETHER_ETOOBIG,
            "\x12\x0c\x08\x01\x22\x05\x08\x01\x10\xe9\x07\x7a\x01x"),
        BAD("a blob of 2^63 bytes", TETHER_ETOOBIG,
            "\x12\x14\x08\x01\x22\x0d\x08\x01\x10\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01\x7a\x01"
            "x"),
    };
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        struct test_end a, b;
        test_pair_init(&a, &b, &test_small_limits);
        struct tether__lane before = b.lane;
        struct test_buffer *bytes = test_buffer_new(rows[i].len);
        memcpy(bytes->data, rows[i].bytes, rows[i].len);
        tether_error err = {0};
        tether_status st = test_read(&b.lane, test_buffer_slice(bytes), test_note, &b, &err);
        if (st != rows[i].status)
            fail_msg("%s: %s", rows[i].name, tether_status_name(st));
        assert_int_equal(err.code, st);
        assert_memory_equal(&b.lane, &before, sizeof before);
        assert_int_equal(b.n_got, 0);
        test_buffer_release(bytes);
        test_pair_fini(&a, &b);
    }
}

/* Feeds the frames of `bytes` one after the other; the last must give `status`. */
static void feed(const char *bytes, size_t len, tether_status status, size_t n_got)
{
    struct test_end a, b;
    test_pair_init(&a, &b, &test_small_limits);
    struct test_buffer *batch = test_buffer_new(len);
    memcpy(batch->data, bytes, len);
    test_receive(&b, batch, status);
    assert_int_equal(b.n_got, n_got);
    test_buffer_release(batch);
    test_pair_fini(&a, &b);
}

#define FEED(bytes, status, n_got) feed(bytes, sizeof bytes - 1, status, n_got)
#define PIECE_1_OF_BLOB_1 "\x12\x0b\x08\x01\x22\x04\x08\x01\x10\x02\x7a\x01x"
#define PIECE_2_OF_BLOB_1 "\x12\x09\x08\x02\x22\x02\x08\x01\x7a\x01y"
#define CALL_3_WITH_BLOB_1 "\x12\x06\x08\x03\x2a\x00\x70\x01"

static void blob_is_refused_when_its_pieces_are_inconsistent(void **state)
{
    (void)state;
    FEED(PIECE_1_OF_BLOB_1 PIECE_2_OF_BLOB_1 CALL_3_WITH_BLOB_1, TETHER_OK, 1);
    FEED(PIECE_1_OF_BLOB_1 PIECE_2_OF_BLOB_1 PIECE_2_OF_BLOB_1 CALL_3_WITH_BLOB_1, TETHER_OK, 1);
    /* not complete; one byte too many; its size told twice; taken twice */
    FEED(PIECE_1_OF_BLOB_1 "\x12\x06\x08\x02\x2a\x00\x70\x01", TETHER_ECORRUPT, 0);
    FEED(PIECE_1_OF_BLOB_1 "\x12\x0a\x08\x02\x22\x02\x08\x01\x7a\x02yy", TETHER_ECORRUPT, 0);
    FEED(PIECE_1_OF_BLOB_1 "\x12\x0b\x08\x02\x22\x04\x08\x01\x10\x02\x7a\x01y", TETHER_ECORRUPT, 0);
    FEED(PIECE_1_OF_BLOB_1 PIECE_2_OF_BLOB_1 CALL_3_WITH_BLOB_1 "\x12\x06\x08\x04\x2a\x00\x70\x01",
         TETHER_ECORRUPT, 1);
    /* a field of its header without a value */
    FEED(PIECE_1_OF_BLOB_1 "\x12\x0a\x08\x02\x22\x03\x08\x01\x18\x7a\x01y", TETHER_ECORRUPT, 0);
    /* abandoned: then the number is free again */
    FEED(PIECE_1_OF_BLOB_1
         "\x12\x08\x08\x02\x22\x04\x08\x01\x18\x01"
         "\x12\x0b\x08\x03\x22\x04\x08\x01\x10\x01\x7a\x01x"
         "\x12\x06\x08\x04\x2a\x00\x70\x01",
         TETHER_OK, 1);
    /* three at once, where two may be; more than max_message_bytes in all */
    FEED(PIECE_1_OF_BLOB_1
         "\x12\x0b\x08\x02\x22\x04\x08\x02\x10\x02\x7a\x01x"
         "\x12\x0b\x08\x03\x22\x04\x08\x03\x10\x02\x7a\x01x",
         TETHER_ETOOBIG, 0);
    FEED(PIECE_1_OF_BLOB_1 "\x12\x0c\x08\x02\x22\x05\x08\x02\x10\xe7\x07\x7a\x01x", TETHER_ETOOBIG,
         0);
    FEED(PIECE_1_OF_BLOB_1 "\x12\x0c\x08\x02\x22\x05\x08\x02\x10\xe6\x07\x7a\x01x", TETHER_OK, 0);
}

static void unknown_fields_are_ignored(void **state)
{
    (void)state;
    /* a batch field 9; a frame field 13 that is a number; a body of kind 1000 */
    FEED("\x48\x05\x12\x06\x08\x01\x2a\x00\x68\x07", TETHER_OK, 1);
    FEED("\x12\x05\x08\x01\xc2\x3e\x00", TETHER_OK, 1);
    FEED("\x4d\x01\x02\x03\x04\x49\x01\x02\x03\x04\x05\x06\x07\x08", TETHER_OK, 0);
    FEED("", TETHER_OK, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, test_start, test_leaves_nothing)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(frames_have_the_documented_bytes),
        TEST(protobuf_reads_our_frames),
        TEST(lane_reads_frames_of_protobuf),
        TEST(lane_is_unchanged_when_input_is_malformed),
        TEST(blob_is_refused_when_its_pieces_are_inconsistent),
        TEST(unknown_fields_are_ignored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
