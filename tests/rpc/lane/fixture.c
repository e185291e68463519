/* The two ends; see lane_fixture.h. */
#include "tests/rpc/lane/fixture.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/cmocka.h"
#include "tests/lib/heap.h"

const struct tether__lane_limits test_small_limits = {
    .segment_bytes = 256,
    .inline_bytes = 32,
    .fragment_bytes = 100,
    .max_message_bytes = 1000,
    .max_unacked_bytes = 2000,
    .max_blobs = 2,
};

static _Atomic int buffers_live;

int test_start(void **state)
{
    (void)state;
    tether_test_heap_fail_never();
    test_buffers_forget();
    return 0;
}

int test_leaves_nothing(void **state)
{
    (void)state;
    assert_int_equal(tether_test_heap_live(), 0);
    assert_int_equal(test_buffers_live(), 0);
    return 0;
}

static void buffer_retain(struct tether__slice_owner *owner)
{
    atomic_fetch_add(&tether__container_of(owner, struct test_buffer, owner)->refs, 1);
}

static void buffer_release(struct tether__slice_owner *owner)
{
    struct test_buffer *buffer = tether__container_of(owner, struct test_buffer, owner);
    if (atomic_fetch_sub(&buffer->refs, 1) != 1)
        return;
    atomic_fetch_sub(&buffers_live, 1);
    free(buffer);
}

struct test_buffer *test_buffer_new(size_t len)
{
    struct test_buffer *buffer = malloc(sizeof *buffer + len);
    assert_non_null(buffer);
    buffer->owner = (struct tether__slice_owner){buffer_retain, buffer_release, len};
    buffer->refs = 1;
    buffer->len = len;
    atomic_fetch_add(&buffers_live, 1);
    return buffer;
}

struct tether__slice test_buffer_slice(struct test_buffer *buffer)
{
    return (struct tether__slice){buffer->data, buffer->len, &buffer->owner};
}

void test_buffer_release(struct test_buffer *buffer)
{
    buffer_release(&buffer->owner);
}

int test_buffers_live(void)
{
    return atomic_load(&buffers_live);
}

void test_buffers_forget(void)
{
    atomic_store(&buffers_live, 0);
}

static uint8_t *copy(const void *data, size_t len)
{
    uint8_t *bytes = malloc(len + 1);
    assert_non_null(bytes);
    if (len)
        memcpy(bytes, data, len);
    bytes[len] = '\0';
    return bytes;
}

void test_end_init(struct test_end *end, const struct tether__lane_limits *limits)
{
    *end = (struct test_end){0};
    tether__lane_init(&end->lane, limits);
}

void test_end_forget(struct test_end *end)
{
    for (size_t i = 0; i < end->n_got; i++) {
        free(end->got[i].header);
        free(end->got[i].payload);
    }
    free(end->got);
    end->got = NULL;
    end->n_got = 0;
}

void test_end_fini(struct test_end *end)
{
    tether__lane_fini(&end->lane);
    test_end_forget(end);
}

void test_pair_init(struct test_end *a,
                    struct test_end *b,
                    const struct tether__lane_limits *limits)
{
    test_end_init(a, limits);
    test_end_init(b, limits);
    assert_int_equal(tether__lane_connected(&a->lane, 0), TETHER_OK);
    assert_int_equal(tether__lane_connected(&b->lane, 0), TETHER_OK);
}

void test_pair_fini(struct test_end *a, struct test_end *b)
{
    test_end_fini(a);
    test_end_fini(b);
}

struct test_buffer *test_pull(struct test_end *from, bool ack_now)
{
    struct tether__lane_out out;
    if (!tether__lane_pull(&from->lane, ack_now, &out))
        return NULL;
    size_t len = 0;
    for (size_t i = 0; i < out.n_pieces; i++)
        len += out.pieces[i].len;
    struct test_buffer *flat = test_buffer_new(len);
    uint8_t *at = flat->data;
    for (size_t i = 0; i < out.n_pieces; i++) {
        memcpy(at, out.pieces[i].data, out.pieces[i].len);
        at += out.pieces[i].len;
        tether__slice_release(out.pieces[i]);
    }
    return flat;
}

tether_status test_note(void *userdata, const struct tether__inbound *message)
{
    struct test_end *end = userdata;
    end->got = realloc(end->got, (end->n_got + 1) * sizeof *end->got);
    assert_non_null(end->got);
    end->got[end->n_got++] = (struct test_message){
        .kind = message->kind,
        .numbered = message->numbered,
        .header_len = message->header.len,
        .payload_len = message->payload.len,
        .header = copy(message->header.data, message->header.len),
        .payload = copy(message->payload.data, message->payload.len),
    };
    return end->hook ? end->hook(end, message) : TETHER_OK;
}

tether_status test_read(struct tether__lane *lane,
                        struct tether__slice batch,
                        tether_status (*take)(void *userdata,
                                              const struct tether__inbound *message),
                        void *userdata,
                        tether_error *reterr)
{
    struct tether__lane_cursor cursor = tether__lane_begin(lane, batch, reterr);
    struct tether__inbound message;
    while (tether__lane_next(lane, &cursor, &message)) {
        tether_status st = take(userdata, &message);
        if (st == TETHER_ENOMEM)
            tether__lane_reject(lane, &cursor);
        else
            tether__lane_accept(lane, &cursor);
        if (st != TETHER_OK)
            return st;
    }
    return cursor.status;
}

void test_receive(struct test_end *to, struct test_buffer *batch, tether_status status)
{
    tether_error err = {0};
    tether_status st = test_read(&to->lane, test_buffer_slice(batch), test_note, to, &err);
    if (st != status)
        fail_msg("%s: %s", tether_status_name(st), err.message);
}

static size_t carry_one_way(struct test_end *from, struct test_end *to, bool ack_now)
{
    size_t n = 0;
    for (struct test_buffer *batch; (batch = test_pull(from, ack_now)); n++) {
        test_receive(to, batch, TETHER_OK);
        test_buffer_release(batch);
    }
    return n;
}

size_t test_carry(struct test_end *a, struct test_end *b)
{
    size_t all = 0, n;
    do {
        n = carry_one_way(a, b, false) + carry_one_way(b, a, false);
        if (n == 0)
            n = carry_one_way(a, b, true) + carry_one_way(b, a, true);
        all += n;
    } while (n);
    return all;
}

static void fill(uint8_t *data, size_t len, char first)
{
    for (size_t i = 0; i < len; i++)
        data[i] = (uint8_t)(first + i % 251);
}

tether_status test_send(struct test_end *from,
                        uint32_t kind,
                        const char *header,
                        size_t payload_len,
                        uint64_t tag)
{
    struct test_buffer *payload = test_buffer_new(payload_len);
    fill(payload->data, payload_len, header[0]);
    tether_status st = tether__lane_send(&from->lane, kind, tether_bytes_str(header),
                                         test_buffer_slice(payload), tag);
    test_buffer_release(payload);
    return st;
}

void test_assert_got(struct test_end *end,
                     size_t index,
                     uint32_t kind,
                     const char *header,
                     size_t payload_len)
{
    assert_true(index < end->n_got);
    const struct test_message *message = &end->got[index];
    assert_int_equal(message->kind, kind);
    assert_string_equal(message->header, header);
    assert_int_equal(message->payload_len, payload_len);
    uint8_t *expected = malloc(payload_len + 1);
    assert_non_null(expected);
    fill(expected, payload_len, header[0]);
    assert_memory_equal(message->payload, expected, payload_len);
    free(expected);
}
