/* The store server with raw bytes: large requests, clients that read no replies, and limits of its
 * memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rendezvous/store_tcp.h"
#include "tests/rendezvous/store/suite_internal.h"
#include "tests/rendezvous/store/tcp/raw.h"
#include "tests/rendezvous/store/tcp/raw_server.h"

/* ---- Invalid requests ----------------------------------------------------------------------- */

/* The server must not allocate memory for an announced length. */
static void memory_grows_with_received_bytes_when_length_is_large(void **state)
{
    (void)state;
    int fds[50];
    for (int i = 0; i < 50; i++) {
        fds[i] = raw_server_dial_v();
        RAW_SEND(fds[i], "\x01" U64_2
                         "/k"
                         "\0\0\0\x04\0\0\0\0"
                         "the first bytes of 64 MiB");
    }
    assert_eventually(raw_server_stats().bytes_in >= 50 * 40);
    assert_in_range(raw_server_stats().buffered_bytes, 50 * 25, 50 << 17);
    for (int i = 0; i < 50; i++)
        close(fds[i]);
}

/* ---- Sizes ---------------------------------------------------------------------------------- */

static void server_accepts_values_of_64_mib(void **state)
{
    (void)state;
    size_t size = (size_t)64 << 20; /* the default limit */
    char *value = malloc(size);
    for (size_t i = 0; i < size; i++)
        value[i] = (char)(i >> 12);
    int fd = raw_server_dial_v();
    RAW_SEND(fd, "\x01" U64_2
                 "/k"
                 "\0\0\0\x04\0\0\0\0");
    raw_send(fd, value, size);
    RAW_SEND(fd, "\x03" U64_2 "/k");
    RAW_EXPECT(fd, "\0\0\0\x04\0\0\0\0");
    raw_expect(fd, value, size, __FILE__, __LINE__);
    RAW_SEND(fd, "\x07");
    RAW_EXPECT(fd, U64_1);
    assert_eventually(raw_server_stats().buffered_bytes < 1 << 20); /* given back */
    close(fd);
    free(value);
}

static void server_accepts_requests_of_many_keys(void **state)
{
    (void)state;
    enum { N = 20000 };
    tether_buf request = TETHER_BUF_INIT;
    char item[64];
    uint64_t n = N, len;
    tether_buf_append(&request, tether_bytes_of("\x0b", 1));
    tether_buf_append(&request, tether_bytes_of(&n, sizeof n));
    for (int i = 0; i < N; i++) {
        len = (uint64_t)snprintf(item, sizeof item, "/key%d", i);
        tether_buf_append(&request, tether_bytes_of(&len, sizeof len));
        tether_buf_append(&request, tether_bytes_of(item, len));
        tether_buf_append(&request, tether_bytes_of(U64_2 "ab", 10));
    }
    int fd = raw_server_dial_v();
    raw_send(fd, request.data, request.len);
    RAW_SEND(fd, "\x07");
    RAW_EXPECT(fd, "\x20\x4e\0\0\0\0\0\0");
    tether_buf_fini(&request);
    close(fd);
}

/* ---- Clients that do not read --------------------------------------------------------------- */

/* A client requests megabytes again and again and reads none. The bytes that the server keeps for
 * it are bounded, and in the end it is dropped. Others are served all the time. */
static void client_is_dropped_when_it_reads_no_replies(void **state)
{
    (void)state;
    size_t size = (size_t)1 << 20;
    char *value = calloc(1, size);
    int fd = raw_server_dial_v(), other = raw_server_dial_v();
    RAW_SEND(fd, "\x01" U64_2
                 "/k"
                 "\0\0\x10\0\0\0\0\0");
    raw_send(fd, value, size);
    free(value);
    uint64_t most = 0;
    for (int i = 0; i < 1000; i++) {
        ssize_t sent = send(fd, "\x03" U64_2 "/k", 11, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0)
            break; /* dropped, or no longer read from */
        RAW_SEND(other, "\x0d\0\0\0\0");
        RAW_EXPECT(other, "\0\0\0\0");
        uint64_t held = raw_server_stats().buffered_bytes;
        most = held > most ? held : most;
    }
    assert_in_range(most, size, 8 * size);
    assert_eventually(raw_server_stats().stalled == 1);
    assert_eventually(raw_server_stats().clients == 1);
    assert_in_range(raw_server_stats().buffered_bytes, 0, 1 << 16);
    close(fd), close(other);
}

/* A slow client that reads gets all bytes. */
static void slow_client_gets_all_replies(void **state)
{
    (void)state;
    size_t size = (size_t)1 << 20;
    enum { N = 20 };
    char *value = malloc(size);
    memset(value, 'v', size);
    int fd = raw_server_dial_v();
    RAW_SEND(fd, "\x01" U64_2
                 "/k"
                 "\0\0\x10\0\0\0\0\0");
    raw_send(fd, value, size);
    for (int i = 0; i < N; i++)
        RAW_SEND(fd, "\x03" U64_2 "/k");
    for (int i = 0; i < N; i++) {
        RAW_EXPECT(fd, "\0\0\x10\0\0\0\0\0");
        raw_expect(fd, value, size, __FILE__, __LINE__);
    }
    assert_int_equal(raw_server_stats().stalled, 0);
    free(value);
    close(fd);
}

static void watcher_is_dropped_when_it_reads_no_events(void **state)
{
    (void)state;
    size_t size = (size_t)1 << 20;
    int watcher = raw_server_dial(), user = raw_server_dial();
    char *value = calloc(1, size);
    RAW_SEND(watcher, "\x07" U64_2 "/w");
    RAW_EXPECT(watcher, "\3");
    for (int i = 0; i < 20; i++) {
        RAW_SEND(user, "\x00" U64_2
                       "/w"
                       "\0\0\x10\0\0\0\0\0");
        raw_send(user, value, size);
    }
    free(value);
    RAW_SEND(user, "\x06");
    RAW_EXPECT(user, U64_1);
    assert_eventually(raw_server_stats().clients == 1);
    assert_int_equal(raw_server_stats().stalled, 1);
    close(watcher), close(user);
}

static int start_small(void **state)
{
    (void)state;
    raw_server = NULL;
    return tether_store_server_new(TETHER_STORE_SERVER_OPTS(.limits = {.max_key = 10,
                                                                       .max_value = 100,
                                                                       .max_keys = 3,
                                                                       .max_message = 200,
                                                                       .max_buffered = 100 << 10}),
                                   &raw_server, NULL) != TETHER_OK;
}

static void client_is_dropped_when_it_exceeds_configured_limits(void **state)
{
    (void)state;
    static const struct step table[] = {
        STEP("\x00"
             "\x0c\0\0\0\0\0\0\0",
             ""), /* key of 12 with its "/" */
        STEP("\x00" U64_1 "k"
             "\x65\0\0\0\0\0\0\0",
             ""),               /* value of 101 */
        STEP("\x05" U64_4, ""), /* four keys */
        STEP(VALIDATE "\x02" U64_1 "k"
                      "\x60\0\0\0\0\0\0\0" /* 96 */
                      "0123456789abcdef0123456789abcdef0123456789abcdef"
                      "0123456789abcdef0123456789abcdef0123456789abcdef"
                      "\x64\0\0\0\0\0\0\0",
             ""), /* and 100: over 200 */
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        int fd = raw_server_dial();
        raw_send(fd, table[i].request, table[i].request_len);
        raw_expect_closed(fd, __FILE__, (int)i);
    }
}

/* The bytes held for all clients together stay below the limit of the server. */
static void buffers_of_all_clients_are_bounded(void **state)
{
    (void)state;
    int fds[200];
    for (int i = 0; i < 200; i++) {
        fds[i] = raw_server_dial_v();
        char half[1 + 9 + 8 + 99] = "\x01" U64_1
                                    "k"
                                    "\x64\0\0\0\0\0\0\0";
        send(fds[i], half, sizeof half, MSG_NOSIGNAL);
        assert_in_range(raw_server_stats().buffered_bytes, 0, 200 << 10);
    }
    int fd = raw_server_dial_v(); /* whole requests need no buffer */
    RAW_SEND(fd, "\x07");
    RAW_EXPECT(fd, U64_0);
    close(fd);
    for (int i = 0; i < 200; i++)
        close(fds[i]);
    assert_eventually(raw_server_stats().clients == 0);
    assert_int_equal(raw_server_stats().buffered_bytes, 0);
}

/* The memory of waits and watches counts, too. */
static void waits_of_all_clients_are_bounded(void **state)
{
    (void)state;
    enum { N = 400 };
    int fds[N];
    for (int i = 0; i < N; i++) {
        fds[i] = i % 2 ? raw_server_dial() : raw_server_dial_v();
        if (i % 2) /* three keys each, again and again: the watches add up */
            for (int k = 0; k < 3; k++)
                send(fds[i], "\x07" U64_1 "w", 10, MSG_NOSIGNAL);
        else
            send(fds[i], "\x06" U64_3 U64_1 "x" U64_1 "y" U64_1 "z", 36, MSG_NOSIGNAL);
        assert_in_range(raw_server_stats().buffered_bytes, 0, 110 << 10);
    }
    struct tether_store_server_stats now = raw_server_stats();
    assert_in_range(now.waiting, 1, N / 2 - 1);
    assert_in_range(now.clients, 2, N - 1); /* some clients were dropped */
    for (int i = 0; i < N; i++)
        close(fds[i]);
    assert_eventually(raw_server_stats().clients == 0);
    assert_int_equal(raw_server_stats().buffered_bytes, 0);
    assert_int_equal(raw_server_stats().waiting, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH(memory_grows_with_received_bytes_when_length_is_large, raw_server_start),
        WITH(server_accepts_values_of_64_mib, raw_server_start),
        WITH(server_accepts_requests_of_many_keys, raw_server_start),
        WITH(client_is_dropped_when_it_reads_no_replies, raw_server_start_impatient),
        WITH(slow_client_gets_all_replies, raw_server_start),
        WITH(watcher_is_dropped_when_it_reads_no_events, raw_server_start),
        WITH(client_is_dropped_when_it_exceeds_configured_limits, start_small),
        WITH(buffers_of_all_clients_are_bounded, start_small),
        WITH(waits_of_all_clients_are_bounded, start_small),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
