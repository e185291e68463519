/* Local peers that violate the framing: the transport closes such a conn, and its other conns are
 * not affected. */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/macros.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/heap.h"
#include "tests/lib/wait.h"
#include "tests/rpc/lib/raw_socket.h"
#include "tests/rpc/lib/transport_node.h"

#define END "\xff\xff\xff\xff"
#define BYTES(text) text, sizeof(text) - 1

static void echo_once(struct wire *wire)
{
    size_t n = wire->n_messages;
    wire_send(wire, "still here?", 11);
    wire_await_messages(wire, n + 1);
}

static int connect_raw(struct pair *pair)
{
    return raw_connect(pair->server.transport->address);
}

/* "hello", an empty message, 5000 bytes, and the end. */
static size_t talk(char bytes[6000])
{
    memcpy(bytes, "\5\0\0\0hello\0\0\0\0\x88\x13\0\0", 17);
    memset(bytes + 17, 'z', 5000);
    memcpy(bytes + 5017, END, 4);
    return 5021;
}

static const size_t cuts[] = {0,  1,  2,  3,  4,  5,    8,    9,    10,   11,   12,  13,
                              14, 15, 16, 17, 18, 2000, 5016, 5017, 5018, 5019, 5020};

static void messages_arrive_when_bytes_are_split_anywhere(void **state)
{
    struct pair *pair = *state;
    struct wire *wire = pair_dial(pair);
    echo_once(wire); /* the first that is accepted */
    char bytes[6000], answer[6000];
    size_t len = talk(bytes);
    for (size_t i = 0; i < TETHER__ARRAY_LEN(cuts); i++) {
        int fd = connect_raw(pair);
        raw_write(fd, bytes, cuts[i]);
        echo_once(wire); /* the server has looked around meanwhile */
        raw_write(fd, bytes + cuts[i], len - cuts[i]);
        raw_read(fd, answer, len); /* all of it comes back, the end too */
        assert_memory_equal(answer, bytes, len);
        raw_await_hangup(fd, "after the end");
        close(fd);
        struct wire *accepted = node_accepted(&pair->server, (int)i + 2);
        assert_int_equal(wire_await_closed(accepted), TETHER_OK);
        assert_int_equal(accepted->n_messages, 3);
    }
}

static void conn_ends_when_peer_hangs_up_anywhere(void **state)
{
    struct pair *pair = *state;
    char bytes[6000];
    talk(bytes);
    pair->server.mute = true;
    for (size_t i = 0; i < TETHER__ARRAY_LEN(cuts); i++) {
        int fd = connect_raw(pair);
        raw_write(fd, bytes, cuts[i]);
        close(fd);
        struct wire *accepted = node_accepted(&pair->server, (int)i + 1);
        assert_int_equal(wire_await_closed(accepted), TETHER_EUNAVAILABLE);
        assert_non_null(strstr(accepted->why, "broke off"));
        size_t whole = (cuts[i] >= 9) + (cuts[i] >= 13) + (cuts[i] >= 5017);
        assert_int_equal(accepted->n_messages, whole);
    }
}

/* ---- Lengths ---- */

static void conn_is_closed_when_peer_announces_huge_message(void **state)
{
    static const struct {
        const char *bytes;
        const char *says;
    } rows[] = {
        {"\xfe\xff\xff\xff", "4294967294"},
        {"\0\0\0\x80", "2147483648"},
        {"\1\0\x10\0", "1048577"}, /* the limit and one */
    };
    struct pair *pair = *state;
    struct wire *wire = pair_dial(pair);
    echo_once(wire);
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        int fd = connect_raw(pair);
        node_accepted(&pair->server, (int)i + 2);
        long before = tether_test_heap_bytes();
        raw_write(fd, rows[i].bytes, 4);
        raw_await_hangup(fd, rows[i].says);
        close(fd);
        struct wire *accepted = node_accepted(&pair->server, (int)i + 2);
        assert_int_equal(wire_await_closed(accepted), TETHER_ETOOBIG);
        assert_non_null(strstr(accepted->why, rows[i].says));
        assert_true(tether_test_heap_bytes() <= before + 100000); /* a scratch block at the most */
        echo_once(wire);
    }
}

/* Announces the longest there may be and says no more: costs that much memory, and no more. */
static void memory_is_bounded_when_peer_stops_within_a_message(void **state)
{
    enum { N = 20 };
    struct pair *pair = *state;
    struct wire *wire = pair_dial(pair);
    int fds[N];
    for (int i = 0; i < N; i++) {
        fds[i] = connect_raw(pair);
        raw_write(fds[i], BYTES("\0\0\x10\0some"));
        echo_once(wire);
    }
    for (int i = 0; i < N; i++)
        close(fds[i]);
    echo_once(wire);
}

static void other_unix_conns_are_not_affected_by_random_bytes(void **state)
{
    struct pair *pair = *state;
    struct wire *wire = pair_dial(pair);
    unsigned seed = 1;
    for (int i = 0; i < 100; i++) {
        char bytes[2000];
        int fd = connect_raw(pair);
        for (size_t j = 0; j < sizeof bytes; j++)
            bytes[j] = (char)(rand_r(&seed) >> (j % 4 > 1 && i % 2 ? 20 : 3));
        raw_write(fd, bytes, sizeof bytes);
        close(fd);
    }
    echo_once(wire);
}

static void other_unix_conns_are_not_affected_by_many_silent_clients(void **state)
{
    enum { N = 200 };
    struct pair *pair = *state;
    struct wire *wire = pair_dial(pair);
    int fds[N];
    for (int i = 0; i < N; i++)
        fds[i] = connect_raw(pair);
    echo_once(wire);
    echo_once(pair_dial(pair));
    for (int i = 0; i < N; i++)
        close(fds[i]);
}

/* ---- The end ---- */

static void conn_ignores_bytes_after_end_mark(void **state)
{
    struct pair *pair = *state;
    int fd = connect_raw(pair);
    raw_write(fd, BYTES(END "\1\0\0\0xnonsense"));
    raw_await_hangup(fd, "after the end");
    close(fd);
    struct wire *accepted = node_accepted(&pair->server, 1);
    assert_int_equal(wire_await_closed(accepted), TETHER_OK);
    assert_int_equal(accepted->n_messages, 0);
}

/* Sends and sends, and reads nothing of what comes back: only its own conn stands still. */
static void only_its_own_conn_stalls_when_peer_does_not_read(void **state)
{
    struct pair *pair = *state;
    struct wire *wire = pair_dial(pair);
    echo_once(wire);
    int fd = connect_raw(pair);
    static char bytes[100000];
    memcpy(bytes, "\x9c\x86\1\0", 4); /* 99,996 more */
    for (int i = 0; i < 20; i++)
        raw_write(fd, bytes, sizeof bytes);
    wire_await_messages(node_accepted(&pair->server, 2), 20);
    echo_once(wire);
    close(fd);
    assert_int_equal(wire_await_closed(node_accepted(&pair->server, 2)), TETHER_EUNAVAILABLE);
    echo_once(wire);
}

/* Says that it is done while much is on its way to it, and hangs up before that is out. */
static void conn_ends_when_peer_hangs_up_before_reading_all(void **state)
{
    struct pair *pair = *state;
    pair->server.mute = true;
    int fd = connect_raw(pair);
    struct wire *accepted = node_accepted(&pair->server, 1);
    char *data = node_pattern(PAIR_LIMIT);
    wire_send(accepted, data, PAIR_LIMIT);
    raw_write(fd, BYTES(END));
    char some[100];
    raw_read(fd, some, sizeof some);
    close(fd);
    tether_status st = wire_await_closed(accepted);
    assert_true(st == TETHER_OK || st == TETHER_EUNAVAILABLE);
    free(data);
}

/* Takes the connection and never answers: neither reads, nor says that it is done. */
static void dial_and_close_end_when_peer_never_answers(void **state)
{
    (void)state;
    char address[64];
    strcpy(address, node_listen());
    int fd = raw_listen(address);
    struct node client;
    node_start(&client, &(struct tether__transport_opts){.connect_timeout_ms = 100});
    struct wire *polite = node_dial(&client, address), *full = node_dial(&client, address),
                *abrupt = node_dial(&client, address);
    char *data = node_pattern(3u << 20);
    wire_await_opened(full);
    wire_send(full, data, 3u << 20);
    wire_close(polite, true);
    wire_close(full, true); /* with a message that does not go out */
    assert_int_equal(wire_await_closed(polite), TETHER_EUNAVAILABLE);
    assert_non_null(strstr(polite->why, "did not close"));
    assert_int_equal(wire_await_closed(full), TETHER_EUNAVAILABLE);
    wire_send(abrupt, data, 3u << 20);
    wire_close(abrupt, true);
    wire_close(abrupt, false); /* need not wait any more */
    assert_int_equal(wire_await_closed(abrupt), TETHER_ECANCELED);
    node_dial(&client, address); /* open when it stops */
    node_stop(&client);
    free(data);
    close(fd);
    unlink(address + strlen("unix:"));
    assert_int_equal(wire_live_blocks(), 0);
}

#define IN_PAIR(test) cmocka_unit_test_setup_teardown(test, pair_set_up, pair_tear_down)

static const struct CMUnitTest tests[] = {
    IN_PAIR(messages_arrive_when_bytes_are_split_anywhere),
    IN_PAIR(conn_ends_when_peer_hangs_up_anywhere),
    IN_PAIR(conn_is_closed_when_peer_announces_huge_message),
    IN_PAIR(memory_is_bounded_when_peer_stops_within_a_message),
    IN_PAIR(other_unix_conns_are_not_affected_by_random_bytes),
    IN_PAIR(other_unix_conns_are_not_affected_by_many_silent_clients),
    IN_PAIR(conn_ignores_bytes_after_end_mark),
    IN_PAIR(only_its_own_conn_stalls_when_peer_does_not_read),
    IN_PAIR(conn_ends_when_peer_hangs_up_before_reading_all),
    cmocka_unit_test(dial_and_close_end_when_peer_never_answers),
};

int main(void)
{
    node_kind = &node_unix;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
