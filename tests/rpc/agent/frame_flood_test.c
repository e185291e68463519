/* Floods of HTTP/2 frames that no library would send, by a process without the token: streams that
 * are reset at once, header blocks that do not end, and pings whose answers are not read. gRPC
 * keeps something for each before the worker has looked at it. The worker keeps to the amount of
 * docs/security.md, except for streams that are reset, and its group goes on calling. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rendezvous/store_tcp.h"
#include "rpc/agent.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/proc.h"
#include "tests/rpc/lib/echo.h"

#define LIMIT TETHER_TEST_LIMIT_MS
#define MIB ((size_t)1024 * 1024)
#define N_CONNECTIONS 8
#define ROUND_MS 10 /* the pause when no connection takes bytes */

/* docs/security.md, "What an unauthenticated client can cost". */
#define MAX_GROWTH_KB (700 * 1024L)

enum { SERVING, CALLING, FLOODED, CHECKED };
enum { WORKER, FRIEND, INTRUDER, N_RANKS };
enum flood { RESETS, HEADER_BLOCKS, PINGS };

/* The worker fills it for the others. */
struct notice {
    int store_port, port;
};

static struct notice *notice_of(struct tether_test_world *world)
{
    return (struct notice *)world->page;
}

static tether_agent *start(const char *name, int port, bool is_host, int *ret_port)
{
    tether_store *store = NULL;
    tether_agent *agent = NULL;
    tether_error err = {0};
    if (tether_store_tcp_new(
            TETHER_STORE_TCP_OPTS(.port = port, .is_host = is_host, .timeout_ms = LIMIT), &store,
            &err) ||
        tether_agent_new(TETHER_AGENT_OPTS(.name = name, .store = store, .token = "sesame",
                                           .no_unix_socket = true),
                         &agent, &err) ||
        tether_agent_register_inline(agent, "echo", tether_test_echo, NULL, &err) ||
        tether_agent_start(agent, &err))
        fail_msg("%s: %s", name, err.message);
    *ret_port = tether_store_tcp_port(store);
    tether_store_release(store);
    return agent;
}

static long peak_kb(void)
{
    char line[128];
    long kb = -1;
    FILE *file = fopen("/proc/self/status", "re");
    assert_non_null(file);
    while (kb < 0 && fgets(line, sizeof line, file))
        if (sscanf(line, "VmHWM: %ld", &kb) != 1)
            kb = -1;
    fclose(file);
    assert_true(kb > 0);
    return kb;
}

/* A flood takes long on a busy machine: only the time limit of all ranks ends this. */
static void await_for_long(struct tether_test_world *world, int mark)
{
    while (atomic_load(&world->marks[mark]) == 0)
        tether_test_nap(0);
}

static void run_worker(struct tether_test_world *world, enum flood flood)
{
    struct notice *notice = notice_of(world);
    tether_agent *agent = start("w", 0, true, &notice->store_port);
    notice->port = atoi(strrchr(tether_agent_address(agent), ':') + 1);
    tether_test_mark(world, SERVING);
    tether_test_await_mark(world, CALLING, 1);
    long kb_before = peak_kb();
    await_for_long(world, CHECKED);
    long grown = peak_kb() - kb_before;
    print_message("the worker grew by %ld kB\n", grown);
    if (flood != RESETS) /* docs/security.md says why these are not bounded */
        assert_true(grown <= MAX_GROWTH_KB);
    tether_agent_release(agent);
}

static void run_friend(struct tether_test_world *world)
{
    int calls = 0, port;
    tether_error err = {0};
    tether_test_await_mark(world, SERVING, 1);
    tether_agent *agent = start("friend", notice_of(world)->store_port, false, &port);
    bool is_over;
    do {
        is_over = atomic_load(&world->marks[FLOODED]);
        if (tether_rpc_sync(agent, "w", "echo", NULL, LIMIT, NULL, &err) != TETHER_OK)
            fail_msg("after %d calls: %s", calls, err.message);
        if (++calls == 1)
            tether_test_mark(world, CALLING);
        tether_test_nap(0); /* so that the flood is what the worker spends its time on */
    } while (!is_over);
    print_message("%d calls while the flood went on\n", calls);
    tether_test_mark(world, CHECKED);
    tether_agent_release(agent);
}

/* ---- The flood ---- */

struct buffer {
    uint8_t bytes[64 * 1024];
    size_t len;
};

static void put(struct buffer *buffer, const void *bytes, size_t len)
{
    assert_true(buffer->len + len <= sizeof buffer->bytes);
    memcpy(buffer->bytes + buffer->len, bytes, len);
    buffer->len += len;
}

static void put_frame(struct buffer *buffer,
                      uint8_t type,
                      uint8_t flags,
                      uint32_t stream,
                      const void *bytes,
                      size_t len)
{
    const uint8_t head[] = {(uint8_t)(len >> 16), (uint8_t)(len >> 8), (uint8_t)len, type, flags};
    uint32_t id = htonl(stream);
    put(buffer, head, sizeof head);
    put(buffer, &id, sizeof id);
    put(buffer, bytes, len);
}

enum { HEADERS = 1, RST_STREAM = 3, SETTINGS = 4, PING = 6, CONTINUATION = 9, END_HEADERS = 4 };

struct connection {
    int fd; /* -1: none */
    uint32_t stream;
    struct buffer out;
    size_t sent; /* of `out` */
};

static void begin(struct connection *connection, enum flood flood)
{
    /* The first call puts its headers into the table, so each other one has six bytes of them. */
    static const char first[] =
        "\x83\x86\x44\x1c/grpc.health.v1.Health/Check\x41\1x\x5f\x10"
        "application/grpc\x40\2te\x08trailers";
    struct buffer *out = &connection->out;
    connection->stream = 1;
    put(out, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24);
    put_frame(out, SETTINGS, 0, 0, "", 0);
    if (flood != PINGS)
        put_frame(out, HEADERS, flood == RESETS ? END_HEADERS : 0, 1, first, sizeof first - 1);
}

static void refill(struct connection *connection, enum flood flood)
{
    static const uint8_t indexed[] = {0x83, 0x86, 0x80 | 65, 0x80 | 64, 0x80 | 63, 0x80 | 62};
    static const uint8_t cancel[] = {0, 0, 0, 8};
    static uint8_t header[8 * 1024] = {0, 1, 'x', 0x7e};
    struct buffer *out = &connection->out;
    out->len = connection->sent = 0;
    while (out->len + sizeof header + 100 < sizeof out->bytes) {
        if (flood == PINGS) {
            put_frame(out, PING, 0, 0, "12345678", 8);
        } else if (flood == HEADER_BLOCKS) {
            put_frame(out, CONTINUATION, 0, 1, header, 4 + 126);
        } else {
            connection->stream += 2;
            put_frame(out, HEADERS, END_HEADERS, connection->stream, indexed, sizeof indexed);
            put_frame(out, RST_STREAM, 0, connection->stream, cancel, sizeof cancel);
        }
    }
}

static void open_connection(struct connection *connection, int port, enum flood flood)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                             .sin_port = htons((uint16_t)port)};
    connection->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(connection->fd >= 0);
    assert_int_equal(connect(connection->fd, (struct sockaddr *)&at, sizeof at), 0);
    connection->out.len = connection->sent = 0;
    begin(connection, flood);
}

/* A send alone may not tell for long: the window is closed. */
static bool has_hung_up(int fd)
{
    struct pollfd poller = {.fd = fd, .events = POLLRDHUP};
    return poll(&poller, 1, 0) == 1;
}

/* Sends what fits, and nothing is ever read. Returns how much was sent. */
static size_t send_some(struct connection *connection, int port, enum flood flood)
{
    if (connection->fd < 0)
        open_connection(connection, port, flood);
    if (connection->sent == connection->out.len)
        refill(connection, flood);
    ssize_t n = send(connection->fd, connection->out.bytes + connection->sent,
                     connection->out.len - connection->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && ((errno != EAGAIN && errno != EINTR) || has_hung_up(connection->fd))) {
        close(connection->fd);
        connection->fd = -1;
    }
    connection->sent += n > 0 ? (size_t)n : 0;
    return n > 0 ? (size_t)n : 0;
}

static void run_intruder(struct tether_test_world *world, enum flood flood, size_t total)
{
    static struct connection connections[N_CONNECTIONS];
    tether_test_await_mark(world, CALLING, 1);
    for (int i = 0; i < N_CONNECTIONS; i++)
        connections[i].fd = -1;
    for (size_t all = 0; all < total;) {
        size_t n = 0;
        for (int i = 0; i < N_CONNECTIONS; i++)
            n += send_some(&connections[i], notice_of(world)->port, flood);
        all += n;
        if (n == 0)
            usleep(ROUND_MS * 1000);
    }
    tether_test_mark(world, FLOODED);
    await_for_long(world, CHECKED);
    for (int i = 0; i < N_CONNECTIONS; i++)
        if (connections[i].fd >= 0)
            close(connections[i].fd);
}

static void run(struct tether_test_world *world, int rank, enum flood flood, size_t total)
{
    if (rank == WORKER)
        run_worker(world, flood);
    else if (rank == FRIEND)
        run_friend(world);
    else
        run_intruder(world, flood, total);
}

TETHER_PROC_TEST(worker_serves_its_group_when_streams_are_reset_at_once,
                 .ranks = N_RANKS,
                 .timeout_ms = 4 * LIMIT)
{
    run(self->world, rank, RESETS, 8 * MIB);
}

TETHER_PROC_TEST(worker_keeps_to_documented_memory_when_header_blocks_do_not_end,
                 .ranks = N_RANKS,
                 .timeout_ms = 4 * LIMIT)
{
    run(self->world, rank, HEADER_BLOCKS, 512 * MIB);
}

TETHER_PROC_TEST(worker_keeps_to_documented_memory_when_answers_to_pings_are_not_read,
                 .ranks = N_RANKS,
                 .timeout_ms = 4 * LIMIT)
{
    run(self->world, rank, PINGS, 24 * MIB);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(worker_serves_its_group_when_streams_are_reset_at_once),
        cmocka_unit_test(worker_keeps_to_documented_memory_when_header_blocks_do_not_end),
        cmocka_unit_test(worker_keeps_to_documented_memory_when_answers_to_pings_are_not_read),
    };
    return cmocka_run_group_tests_name("frame flood", tests, NULL, NULL);
}
