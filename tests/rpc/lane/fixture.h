/* Two ends of a lane and what a transport would do between them, for tests.
 *
 * Memory of the fixture comes from the C library, so that tether_test_heap_live() counts the lane's
 * alone.
 */
#ifndef TETHER_TESTS_RPC_LANE_FIXTURE_H
#define TETHER_TESTS_RPC_LANE_FIXTURE_H

#include "rpc/lane/lane.h"

/* Small enough that every path is short. */
extern const struct tether__lane_limits test_small_limits;

/* Setup and teardown of a test: nothing is left of the lane's memory, nor of test_buffers. */
int test_start(void **state);
int test_leaves_nothing(void **state);

/* A counted buffer, as a value or a transport would have it. */
struct test_buffer {
    struct tether__slice_owner owner;
    _Atomic int refs;
    size_t len;
    uint8_t data[];
};

/* One reference for the caller. */
struct test_buffer *test_buffer_new(size_t len);
struct tether__slice test_buffer_slice(struct test_buffer *buffer); /* LENDS */
void test_buffer_release(struct test_buffer *buffer);

/* How many test_buffers there are, since the count was last started anew. */
int test_buffers_live(void);
void test_buffers_forget(void);

/* A message that was delivered, copied. */
struct test_message {
    uint32_t kind;
    bool numbered;
    size_t header_len, payload_len;
    uint8_t *header, *payload;
};

struct test_end {
    struct tether__lane lane;
    struct test_message *got;
    size_t n_got;
    /* Called after a message is noted, when not NULL. */
    tether_status (*hook)(struct test_end *end, const struct tether__inbound *message);
    void *hook_data;
};

void test_end_init(struct test_end *end, const struct tether__lane_limits *limits);
void test_end_fini(struct test_end *end);
void test_end_forget(struct test_end *end); /* drops the record of delivered messages */

/* Both ends in a fresh session, up. */
void test_pair_init(struct test_end *a,
                    struct test_end *b,
                    const struct tether__lane_limits *limits);
void test_pair_fini(struct test_end *a, struct test_end *b);

/* Takes one message out of the lane, made flat; NULL when there is none. */
struct test_buffer *test_pull(struct test_end *from, bool ack_now);

/* Reads one batch, as the owner of a lane does. `take` handles each message; a status other than OK
 * ends the reading and is returned, and TETHER_ENOMEM rejects the message. */
tether_status test_read(struct tether__lane *lane,
                        struct tether__slice batch,
                        tether_status (*take)(void *userdata,
                                              const struct tether__inbound *message),
                        void *userdata,
                        tether_error *reterr);

/* For test_read(): notes the message; `userdata` is the test_end. */
tether_status test_note(void *userdata, const struct tether__inbound *message);

/* Feeds one flat message to the lane; asserts that `status` comes of it. */
void test_receive(struct test_end *to, struct test_buffer *batch, tether_status status);

/* Carries everything over, both ways, until both are quiet; returns the number of batches. */
size_t test_carry(struct test_end *a, struct test_end *b);

/* Sends a text header with a payload of `payload_len` bytes that count up from its first letter. */
tether_status test_send(struct test_end *from,
                        uint32_t kind,
                        const char *header,
                        size_t payload_len,
                        uint64_t tag);
void test_assert_got(struct test_end *end,
                     size_t index,
                     uint32_t kind,
                     const char *header,
                     size_t payload_len);

#endif
