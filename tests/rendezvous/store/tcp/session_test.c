/* The store server's parser, fed with bytes in pieces, without sockets and without a clock. */
#include "rendezvous/store/tcp/server/session.h"

#include <string.h>

#include "tests/lib/cmocka.h"
#include "tests/rendezvous/store/tcp/raw.h"

struct client {
    struct tether__store_session session;
    tether_buf in;
};

static struct tether__store_hub hub;
static struct client client;

static int start(void **state)
{
    (void)state;
    struct tether_store_limits limits =
        tether__store_wire_limits((struct tether_store_limits){.max_key = 0});
    client = (struct client){.in = TETHER_BUF_INIT};
    if (tether__store_hub_init(&hub, &limits, false) != TETHER_OK)
        return -1;
    tether__store_session_init(&client.session, &hub);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    tether__store_session_fini(&client.session);
    tether_buf_fini(&client.in);
    tether__store_hub_fini(&hub);
    return 0;
}

static void feed(const char *bytes, size_t len)
{
    size_t need;
    assert_int_equal(tether_buf_append(&client.in, tether_bytes_of(bytes, len)), TETHER_OK);
    size_t taken =
        tether__store_session_feed(&client.session, client.in.data, client.in.len, &need);
    memmove(client.in.data, client.in.data + taken, client.in.len - taken);
    client.in.len -= taken;
    assert_null(client.session.why);
}

#define FEED(bytes) feed(bytes, sizeof(bytes) - 1)

static void expect(const char *reply, size_t len)
{
    assert_int_equal(client.session.out.len, len);
    if (len)
        assert_memory_equal(client.session.out.data, reply, len);
    client.session.out.len = 0;
}

#define EXPECT_REPLY(bytes) expect(bytes, sizeof(bytes) - 1)

/* Opcode 8 is DELETE in L0 and APPEND in L1; a 2.1 client speaks L1. */
static void append_is_not_read_as_delete_when_value_comes_later(void **state)
{
    (void)state;
    FEED("\x00" U64_2 "/a" U64_2 "po");
    FEED("\x08" U64_2 "/");
    assert_false(client.session.is_unsure);
    FEED("a"); /* a whole DELETE, or the beginning of an APPEND */
    assert_true(client.session.is_unsure);
    EXPECT_REPLY("");
    FEED(U64_1); /* the length of a value */
    assert_false(client.session.is_unsure);
    FEED("y\x02" U64_2 "/a");
    EXPECT_REPLY(U64_3 "poy");
    FEED("\x08" U64_2 "/a"); /* the connection speaks L1 from then on */
    assert_false(client.session.is_unsure);
    FEED(U64_1 "x\x07" U64_2 "/a");
    EXPECT_REPLY(U64_1);
}

static void ambiguous_delete_is_executed_when_no_bytes_follow(void **state)
{
    (void)state;
    FEED("\x00" U64_2 "/a" U64_2 "po");
    FEED("\x08" U64_2 "/a");
    assert_true(client.session.is_unsure);
    EXPECT_REPLY("");
    tether__store_session_settle(&client.session);
    feed("", 0);
    EXPECT_REPLY(U64_1);
    FEED("\x08" U64_2 "/a\x06"); /* the connection speaks L0 from then on */
    EXPECT_REPLY(U64_0 U64_0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(append_is_not_read_as_delete_when_value_comes_later),
        TEST(ambiguous_delete_is_executed_when_no_bytes_follow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
