/* The process of flood_test.c that floods the worker: connections with and without TLS, handshakes
 * under many names, huge messages, and too many calls on a connection. */
#include <arpa/inet.h>
#include <errno.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rpc/handshake/handshake.h"
#include "rpc/handshake/pairing.h"
#include "rpc/transport/socket/socket.h"
#include "rpc/wire/packed.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/proc.h"
#include "tests/rpc/agent/flood.h"
#include "tests/rpc/lib/certs.h"
#include "tests/rpc/lib/plain_client.h"

#define PREFACE "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
#define SETTINGS "\0\0\0\4\0\0\0\0\0"
#define BEFORE_PATH "\x83\x86\x44" /* ":method: POST", ":scheme: http", ":path" */
#define BEHIND_PATH    \
    "\x41\1x"          \
    "\x5f\x10"         \
    "application/grpc" \
    "\x40\2te\x08trailers"

struct buffer {
    uint8_t bytes[1024];
    size_t len;
};

static void put(struct buffer *buffer, const void *bytes, size_t len)
{
    assert_true(buffer->len + len <= sizeof buffer->bytes);
    memcpy(buffer->bytes + buffer->len, bytes, len);
    buffer->len += len;
}

static void put_call(struct buffer *buffer, const char *path, uint32_t stream)
{
    size_t path_len = strlen(path), len = path_len + sizeof BEFORE_PATH BEHIND_PATH;
    const uint8_t head[] = {0, 0, (uint8_t)len, 1, 4}, length = (uint8_t)path_len;
    uint32_t id = htonl(stream);
    put(buffer, head, sizeof head);
    put(buffer, &id, sizeof id);
    put(buffer, BEFORE_PATH, sizeof BEFORE_PATH - 1);
    put(buffer, &length, sizeof length);
    put(buffer, path, path_len);
    put(buffer, BEHIND_PATH, sizeof BEHIND_PATH - 1);
}

static void put_frame(struct buffer *buffer, Tether__Frame *frame, bool over_tcp)
{
    struct tether__packed packed;
    assert_int_equal(tether__handshake_pack(frame, &packed), TETHER_OK);
    size_t len = packed.bytes.len;
    if (over_tcp) {
        uint32_t grpc = htonl((uint32_t)len);
        uint8_t data[] = {0, (uint8_t)((len + 5) >> 8), (uint8_t)(len + 5), 0, 0, 0, 0, 0, 1, 0};
        put(buffer, data, sizeof data);
        put(buffer, &grpc, sizeof grpc);
    } else {
        uint32_t prefix = htole32((uint32_t)len);
        put(buffer, &prefix, sizeof prefix);
    }
    put(buffer, packed.bytes.data, len);
    tether__packed_fini(&packed);
}

/* The first message of a handshake, under an unused name. Without a token the last message follows
 * at once, because it does not depend on the answer. */
static void put_hello(struct buffer *buffer,
                      const struct notice *notice,
                      int i,
                      bool over_tcp,
                      enum flood flood)
{
    uint8_t nonce[TETHER__NONCE_SIZE] = {1};
    char name[32];
    const char *token = flood == NO_TOKEN ? NULL : "a guess";
    struct tether__handshake handshake;
    Tether__Frame frame = TETHER__FRAME__INIT;
    struct tether__self self = {.group = "tether",
                                .run = notice->run,
                                .name = name,
                                .token = token,
                                .incarnation = 1000 + (uint64_t)i};
    snprintf(name, sizeof name, "intruder%d", i);
    tether__handshake_init(&handshake, &self, true, "w", token ? nonce : NULL);
    Tether__Hello1 hello = tether__handshake_begin(&handshake);
    frame.body_case = TETHER__FRAME__BODY_HELLO1;
    frame.hello1 = &hello;
    put_frame(buffer, &frame, over_tcp);
    if (flood != NO_TOKEN)
        return;
    Tether__State state = TETHER__STATE__INIT;
    state.from_incarnation = self.incarnation;
    state.dial = 1;
    Tether__Hello3 last = tether__handshake_finish(&handshake, &state);
    frame.body_case = TETHER__FRAME__BODY_HELLO3;
    frame.hello3 = &last;
    put_frame(buffer, &frame, over_tcp);
}

/* Sends what fits. A worker that has hung up is no error here. */
static void send_some(int fd, const void *bytes, size_t len)
{
    (void)!send(fd, bytes, len, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Waits for the listener's queue, but not for an answer. */
static int open_connection(const struct sockaddr *at, socklen_t len)
{
    int fd = socket(at->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, at, len) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

static int connect_tcp(const struct notice *notice)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    at.sin_port = htons((uint16_t)atoi(strrchr(notice->address, ':') + 1));
    return open_connection((struct sockaddr *)&at, sizeof at);
}

static void put_lane(struct buffer *buffer, const struct notice *notice, int i, enum flood flood)
{
    put(buffer, PREFACE SETTINGS, sizeof(PREFACE SETTINGS) - 1);
    put_call(buffer, "/tether.Worker/Lane", 1);
    put_hello(buffer, notice, i, true, flood);
}

static int flood_tcp(const struct notice *notice, int i, enum flood flood)
{
    struct buffer buffer = {.len = 0};
    int fd = connect_tcp(notice);
    put_lane(&buffer, notice, i, flood);
    send_some(fd, buffer.bytes, buffer.len);
    return fd;
}

/* Every other one goes on with a message that is as large as any may be. */
static int flood_unix(const struct notice *notice, int i)
{
    static const uint8_t announced[] = {0, 0, 8, 0}; /* 512 KiB */
    static uint8_t body[160 * 1024];
    struct tether__unix_sockaddr at;
    struct buffer buffer = {.len = 0};
    assert_true(tether__unix_sockaddr(notice->unix_address, &at));
    int fd = open_connection((struct sockaddr *)&at.at, at.len);
    put_hello(&buffer, notice, i, false, ANY);
    if (i % 2)
        put(&buffer, announced, sizeof announced);
    send_some(fd, buffer.bytes, buffer.len);
    if (i % 2)
        send_some(fd, body, sizeof body);
    return fd;
}

/* One stops in the middle of the handshake, one behind it, one behind the preface, and one goes on
 * to the handshake of workers. The memory of OpenSSL is left to the end of this process. */
static int flood_tls(const struct notice *notice, SSL_CTX *context, int i)
{
    static const uint8_t half[] = {22, 3, 1, 2, 0, 1, 0};
    const struct timeval limit = {.tv_sec = 5};
    struct buffer buffer = {.len = 0};
    int fd = connect_tcp(notice);
    if (fd < 0 || i % 4 == 0) {
        send_some(fd, half, sizeof half);
        return fd;
    }
    SSL *ssl = SSL_new(context);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    SSL_set_fd(ssl, fd);
    /* a worker that has hung up is no error here */
    if (SSL_connect(ssl) != 1 || i % 4 == 1)
        return fd;
    if (i % 4 == 2)
        put(&buffer, PREFACE SETTINGS, sizeof(PREFACE SETTINGS) - 1);
    else
        put_lane(&buffer, notice, i, TLS);
    SSL_write(ssl, buffer.bytes, (int)buffer.len);
    return fd;
}

/* Calls whose messages never come: as many as are allowed, or too many. Nothing is read, so the
 * worker's limit on streams is not acknowledged. */
static int flood_streams(const struct notice *notice, int i)
{
    static const char *const paths[] = {"/grpc.health.v1.Health/Check", "/tether.Worker/Call",
                                        "/tether.Worker/Lane", "/other.Service/Method"};
    struct buffer buffer = {.len = 0};
    int fd = connect_tcp(notice);
    put(&buffer, PREFACE SETTINGS, sizeof(PREFACE SETTINGS) - 1);
    for (uint32_t stream = 0; stream < (i % 2 ? N_STREAMS : N_STREAMS_ALLOWED); stream++) {
        put_call(&buffer, paths[i / 2 % 4 ? 0 : 1 + i / 8 % 3], 2 * stream + 1);
        if (send(fd, buffer.bytes, buffer.len, MSG_NOSIGNAL) < 0)
            break;
        buffer.len = 0;
    }
    return fd;
}

/* Waits until the worker has shut the connection down. */
static void await_end(int fd)
{
    const struct timeval limit = {.tv_sec = LIMIT / 1000};
    char bytes[4096];
    ssize_t n;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    while ((n = recv(fd, bytes, sizeof bytes, 0)) > 0) {
    }
    assert_true(n == 0 || errno == ECONNRESET);
}

static void send_huge(const struct notice *notice, const char *method, enum flood flood)
{
    struct plain_client client;
    struct plain_call call;
    /* Never written to: the pages cost this process nothing. */
    void *zeros = mmap(NULL, HUGE_BYTES, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(zeros, MAP_FAILED);
    if (flood == TLS)
        plain_client_init_tls(&client, notice->address, cert_right_ca, cert_beta, key_beta);
    else
        plain_client_init(&client, notice->address);
    plain_start(&client,
                &(struct plain_request){
                    .method = method, .body = zeros, .len = HUGE_BYTES, .body_is_static = true},
                &call);
    plain_finish(&call);
    assert_int_not_equal(call.code, GRPC_STATUS_OK);
    plain_free(&call);
    plain_client_fini(&client);
    munmap(zeros, HUGE_BYTES);
}

/* Where the limit of descriptors is low, the oldest connections make room for the others. */
static int open_at_once(int wanted)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    return limit.rlim_cur < (rlim_t)wanted + 100 ? (int)limit.rlim_cur - 100 : wanted;
}

void flood_intrude(struct tether_test_world *world, enum flood flood)
{
    const struct notice *notice = flood_notice_of(world);
    static int fds[2 * N_CONNECTIONS];
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_alpn_protos(context, (const uint8_t *)"\2h2", 3);
    tether_test_await_mark(world, CALLING, 1);
    int n = flood_n_connections(flood), n_open = open_at_once(n);
    for (int i = 0; i < n; i++) {
        int *fd = &fds[i % n_open];
        if (i >= n_open && *fd >= 0)
            close(*fd);
        *fd = flood == TLS       ? flood_tls(notice, context, i)
              : flood == STREAMS ? flood_streams(notice, i)
              : flood == NO_TOKEN || i < N_CONNECTIONS
                  ? flood_tcp(notice, i, flood)
                  : flood_unix(notice, i); /* without a token the kernel would vouch for it */
    }
    if (flood == ANY) {
        send_huge(notice, "/tether.Worker/Call", flood);
        send_huge(notice, "/grpc.health.v1.Health/Check", flood);
    }
    if (flood == ANY || flood == TLS)
        send_huge(notice, "/tether.Worker/Lane", flood);
    for (int i = 0; flood == STREAMS && i < n; i++)
        if (i % 2 && i / 2 % 4) /* its calls wait at the worker, and are too many */
            await_end(fds[i]);
    tether_test_mark(world, FLOODED);
    flood_await(world, CHECKED);
    for (int i = 0; i < n_open; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}
