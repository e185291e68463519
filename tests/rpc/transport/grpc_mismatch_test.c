/* Clients that speak plain text to a listener with TLS, or TLS to one without: the answer, byte by
 * byte, and clients that do not take it. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/log_limit.h"
#include "base/macros.h"
#include "rpc/transport/grpc/accept.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/proc.h"
#include "tests/rpc/lib/certs.h"
#include "tests/rpc/lib/transport_node.h"

#define SETTINGS "\0\0\x06\4\0\0\0\0\0\0\3\0\0\0\x64"
#define WINDOW_UPDATE "\0\0\4\x08\0\0\0\0\0\0\0\1\0"
#define HEADERS_OF_STREAM_5 "\0\0\1\1\5\0\0\0\5\x88"
#define ALERT "\x15\3\3\0\2\2\x46"

static const char plain_client[] =
    TETHER__GRPC_PREFACE SETTINGS WINDOW_UPDATE HEADERS_OF_STREAM_5 HEADERS_OF_STREAM_5;

static void protocol_is_recognised_by_the_first_bytes(void **state)
{
    (void)state;
    const size_t len = sizeof TETHER__GRPC_PREFACE - 1;
    for (size_t n = 1; n < len; n++)
        assert_int_equal(tether__grpc_speech_of(plain_client, n), TETHER__GRPC_BEGINS_PLAIN);
    assert_int_equal(tether__grpc_speech_of(plain_client, len), TETHER__GRPC_SPEAKS_PLAIN);
    assert_int_equal(tether__grpc_speech_of(plain_client, len + 9), TETHER__GRPC_SPEAKS_PLAIN);
    assert_int_equal(tether__grpc_speech_of("\x16\3\1", 1), TETHER__GRPC_BEGINS_TLS);
    assert_int_equal(tether__grpc_speech_of("\x16\3\1", 2), TETHER__GRPC_SPEAKS_TLS);
    assert_int_equal(tether__grpc_speech_of("\x16\2\1", 3), TETHER__GRPC_SPEAKS_OTHER);
    assert_int_equal(tether__grpc_speech_of("PRI * HTTP/1", 12), TETHER__GRPC_SPEAKS_OTHER);
    assert_int_equal(tether__grpc_speech_of("GET / HTTP/1.1\r\n", 16), TETHER__GRPC_SPEAKS_OTHER);
}

/* ---- The answer ---- */

/* Feeds pieces of `step` bytes; returns the length of what was answered. */
static size_t feed(const char *bytes, size_t n, size_t step, uint8_t *answer)
{
    struct tether__grpc_mismatch mismatch;
    uint8_t out[TETHER__GRPC_MISMATCH_BYTES];
    size_t len = tether__grpc_mismatch_begin(&mismatch, false, out);
    assert_int_equal(len, 9);
    assert_memory_equal(out, "\0\0\0\4\0\0\0\0\0", 9);
    len = 0;
    for (size_t i = 0; i < n; i += step) {
        size_t part = n - i < step ? n - i : step;
        size_t written =
            tether__grpc_mismatch_feed(&mismatch, (const uint8_t *)bytes + i, part, out);
        assert_true(written <= sizeof out);
        assert_true(written == 0 || len == 0); /* only one answer, for any further input */
        if (written)
            memcpy(answer, out, written);
        len += written;
    }
    return len;
}

static void first_call_is_answered_however_its_bytes_are_split(void **state)
{
    (void)state;
    uint8_t first[TETHER__GRPC_MISMATCH_BYTES], answer[TETHER__GRPC_MISMATCH_BYTES];
    size_t len = feed(plain_client, sizeof plain_client - 1, sizeof plain_client, first);
    assert_true(len > 9 + 17);
    assert_memory_equal(first + 3, "\1\5\0\0\0\5", 6); /* HEADERS that end stream 5 */
    assert_non_null(memmem(first, len, TETHER__GRPC_NEEDS_TLS, strlen(TETHER__GRPC_NEEDS_TLS)));
    size_t headers = (size_t)first[1] << 8 | first[2];
    assert_int_equal(len, 9 + headers + 17);
    assert_memory_equal(first + 9 + headers, "\0\0\x08\7\0\0\0\0\0\0\0\0\5\0\0\0\0",
                        17); /* GOAWAY */
    for (size_t step = 1; step < sizeof plain_client; step++) {
        assert_int_equal(feed(plain_client, sizeof plain_client - 1, step, answer), len);
        assert_memory_equal(answer, first, len);
    }
}

static void no_call_is_answered_behind_a_frame_that_is_too_long(void **state)
{
    (void)state;
    static const char client[] = TETHER__GRPC_PREFACE "\0\x40\1\4\0\0\0\0\0" HEADERS_OF_STREAM_5;
    uint8_t answer[TETHER__GRPC_MISMATCH_BYTES];
    assert_int_equal(feed(client, sizeof client - 1, sizeof client, answer), 0);
}

static void mismatch_reader_survives_random_bytes(void **state)
{
    (void)state;
    unsigned seed = 1;
    for (int round = 0; round < 2000; round++) {
        char bytes[600];
        uint8_t answer[TETHER__GRPC_MISMATCH_BYTES];
        for (size_t i = 0; i < sizeof bytes; i++)
            bytes[i] = (char)(rand_r(&seed) % (round % 2 ? 256 : 8));
        feed(bytes, sizeof bytes, 1 + (size_t)(rand_r(&seed) % 100), answer);
    }
}

/* ---- Real listeners ---- */

static const struct tether__tls tls = {.cert_pem = cert_alpha, .key_pem = key_alpha};

static int connect_to(const struct node *server)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct timeval limit = {.tv_sec = TETHER_TEST_LIMIT_MS / 1000};
    at.sin_port = htons((uint16_t)atoi(strrchr(server->transport->address, ':') + 1));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
    return fd;
}

static void expect_bytes(int fd, const char *bytes, size_t n)
{
    char got[64];
    assert_int_equal(recv(fd, got, n, MSG_WAITALL), n);
    assert_memory_equal(got, bytes, n);
}

static void tls_client_gets_an_alert_when_listener_has_no_tls(void **state)
{
    (void)state;
    struct node server;
    node_start(&server, &(struct tether__transport_opts){.listen = "127.0.0.1:0"});
    int fd = connect_to(&server);
    assert_int_equal(send(fd, "\x16\3\1", 3, MSG_NOSIGNAL), 3);
    assert_int_equal(send(fd, "\0\x40hello", 7, MSG_NOSIGNAL), 7);
    expect_bytes(fd, ALERT, sizeof ALERT - 1);
    close(fd);
    node_stop(&server);
}

/* Neither who sends without end, nor those who say nothing more, keep others out. */
static void listener_serves_others_when_clients_do_not_take_the_answer(void **state)
{
    (void)state;
    enum { MANY = 600, CHUNK = 16 * 1024 };
    static const char zeros[CHUNK];
    static int fds[MANY];
    struct node server, client;
    node_start(&server, &(struct tether__transport_opts){.listen = "127.0.0.1:0", .tls = &tls});
    for (int i = 0; i < MANY; i++) {
        fds[i] = connect_to(&server);
        (void)!send(fds[i], plain_client, sizeof TETHER__GRPC_PREFACE - 1 + 15, MSG_NOSIGNAL);
    }
    int endless = connect_to(&server), sent = 0;
    assert_true(send(endless, plain_client, sizeof plain_client - 1, MSG_NOSIGNAL) > 0);
    while (send(endless, zeros, CHUNK, MSG_NOSIGNAL) > 0)
        assert_true(++sent < 16384); /* 256 MiB: the server never closed the connection */
    node_start(&client, &(struct tether__transport_opts){
                            .tls = &(struct tether__tls){.ca_pem = cert_right_ca}});
    struct wire *wire = node_dial(&client, server.transport->address);
    wire_send(wire, "hello", 5);
    wire_await_messages(wire, 1);
    pthread_mutex_lock(&server.mu);
    assert_int_equal(server.n_accepted, 1); /* gRPC has seen none of the others */
    pthread_mutex_unlock(&server.mu);
    for (int i = 0; i < MANY; i++)
        close(fds[i]);
    close(endless);
    node_stop(&client);
    node_stop(&server);
}

static void count_lines(void *userdata,
                        tether_log_level level,
                        const char *area,
                        const char *message)
{
    atomic_int *n = userdata;
    (void)level, (void)area;
    if (strstr(message, "speaks plain text, and this worker has TLS"))
        atomic_fetch_add(n, 1);
}

enum { LISTENS };

/* The hostile process: it connects without TLS again and again. */
TETHER_PROC_ROLE(without_tls)
{
    enum { MANY = 50 };
    struct node client;
    node_start(&client, &(struct tether__transport_opts){0});
    tether_test_await_mark(self->world, LISTENS, 1);
    for (int i = 0; i < MANY; i++)
        assert_int_equal(wire_await_closed(node_dial(&client, self->world->page)), TETHER_EPERM);
    node_stop(&client);
}

static void log_has_one_line_when_many_clients_lack_tls(void **state)
{
    (void)state;
    static atomic_int n_lines;
    struct node server;
    struct tether_test_procs *procs = tether_test_procs_start(without_tls, .ranks = 1);
    tether_set_log(TETHER_LOG_WARN, count_lines, &n_lines);
    node_start(&server, &(struct tether__transport_opts){.listen = "127.0.0.1:0", .tls = &tls});
    int64_t start = tether__clock_now_ns(&tether__clock_system);
    snprintf(procs->world->page, sizeof procs->world->page, "%s", server.transport->address);
    tether_test_mark(procs->world, LISTENS);
    tether_test_procs_end(procs);
    int64_t minutes = (tether__clock_now_ns(&tether__clock_system) - start) / TETHER__LOG_PAUSE_NS;
    assert_in_range(atomic_load(&n_lines), 1, 1 + minutes);
    node_stop(&server);
    tether_set_log(TETHER_LOG_NONE, NULL, NULL);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(protocol_is_recognised_by_the_first_bytes),
        cmocka_unit_test(first_call_is_answered_however_its_bytes_are_split),
        cmocka_unit_test(no_call_is_answered_behind_a_frame_that_is_too_long),
        cmocka_unit_test(mismatch_reader_survives_random_bytes),
        cmocka_unit_test(tls_client_gets_an_alert_when_listener_has_no_tls),
        cmocka_unit_test(listener_serves_others_when_clients_do_not_take_the_answer),
        cmocka_unit_test(log_has_one_line_when_many_clients_lack_tls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
