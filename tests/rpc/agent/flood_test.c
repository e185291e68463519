/* Floods by one process without the token:
 * - 5,000 connections over TCP and 5,000 unix sockets that say hello under 10,000 names, announce
 *   large messages and send three of 1,000 MiB;
 * - in a group that has no token, 10,000 connections over TCP that say all of a handshake, each
 * under another name;
 * - 1,500 connections with TLS that end their part of the handshake at different points;
 * - connections with more calls than they may have.
 * The worker keeps to the amounts of docs/security.md, and the calls of the group go on. */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/threads/thread.h"
#include "rpc/agent.h"
#include "rpc/agent/internal.h"
#include "rpc/agent/routes.h"
#include "rpc/group/directory.h"
#include "rpc/handshake/handshake.h"
#include "rpc/handshake/pairing.h"
#include "rpc/transport/grpc/grpc.h"
#include "rpc/transport/socket/socket.h"
#include "rpc/wire/packed.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/proc.h"
#include "tests/rpc/lib/certs.h"
#include "tests/rpc/lib/echo.h"
#include "tests/rpc/lib/plain_client.h"

#define LIMIT TETHER_TEST_LIMIT_MS
#define TIMEOUT_MS (4 * LIMIT)
#define MIB ((size_t)1024 * 1024)
#define N_CONNECTIONS 5000
#define N_TLS 1500
#define N_STREAMS 1000 /* tried on every other connection */
#define N_STREAMS_ALLOWED 100
#define N_WITH_STREAMS 32
#define HUGE_BYTES (1000 * MIB)

/* docs/security.md, "What an unauthenticated client can cost". */
#define MAX_GROWTH_KB (400 * 1024L)
#define MAX_DESCRIPTORS 720
#define MAX_CONFIRMING 4          /* look-ups for peers without proof */
#define MAX_SERVING 8             /* threads that may serve at once */
#define MAX_CPU_US 5000           /* for each connection, on average */
#define MAX_STREAMS_CPU_US 100000 /* for each with as many calls */

enum { SERVING, CALLING, FLOODED, CHECKED };
enum { WORKER, FRIEND, INTRUDER, N_RANKS };
enum flood { ANY, TLS, STREAMS, NO_TOKEN };

/* The worker fills it for the others. */
struct notice {
    char folder[64], address[256], unix_address[256], run[TETHER__RUN_SIZE];
};

static struct notice *notice_of(struct tether_test_world *world)
{
    _Static_assert(sizeof(struct notice) <= sizeof world->page, "the page is too small");
    return (struct notice *)world->page;
}

/* A flood takes minutes on a busy machine: only the time limit of all ranks ends this. */
static void await_for_long(struct tether_test_world *world, int mark)
{
    while (atomic_load(&world->marks[mark]) == 0)
        tether_test_nap(0);
}

/* With TLS, clients need no certificate, so every client gets through the TLS handshake. */
static tether_agent *start(const char *folder, const char *name, bool local, enum flood flood)
{
    tether_store *store = NULL;
    tether_agent *agent = NULL;
    tether_error err = {0};
    char path[96];
    snprintf(path, sizeof path, "%s/store", folder);
    struct tether_agent_opts opts =
        *TETHER_AGENT_OPTS(.name = name, .token = flood == NO_TOKEN ? NULL : "sesame",
                           .no_unix_socket = !local);
    if (flood == TLS) {
        opts.tls_one_way = true;
        opts.tls_ca_pem = cert_right_ca;
        opts.tls_cert_pem = cert_alpha;
        opts.tls_key_pem = key_alpha;
    }
    if (tether_store_file_new(path, -1, &store, &err))
        fail_msg("%s", err.message);
    opts.store = store;
    if (tether_agent_new(&opts, &agent, &err) ||
        tether_agent_register_inline(agent, "echo", tether_test_echo, NULL, &err) ||
        tether_agent_start(agent, &err))
        fail_msg("%s", err.message);
    tether_store_release(store);
    return agent;
}

/* ---- The worker ---- */

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

static int count_descriptors(void)
{
    int n = 0;
    DIR *folder = opendir("/proc/self/fd");
    if (!folder)
        return 0; /* there is none left for this, either */
    while (readdir(folder))
        n++;
    closedir(folder);
    return n - 3; /* ".", ".." and the folder itself */
}

static int64_t cpu_us(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * INT64_C(1000000) +
           used.ru_utime.tv_usec + used.ru_stime.tv_usec;
}

struct sampler {
    tether_agent *agent;
    atomic_bool stop;
    int descriptors, confirming; /* the most of each: look-ups for peers without proof */
};

static void note_most(int *most, int n)
{
    if (n > *most)
        *most = n;
}

static void *sample(void *arg)
{
    struct sampler *sampler = arg;
    while (!atomic_load(&sampler->stop)) {
        note_most(&sampler->descriptors, count_descriptors());
        note_most(&sampler->confirming, (int)atomic_load(&sampler->agent->confirming));
        tether_test_nap(0);
    }
    return NULL;
}

static int n_connections(enum flood flood)
{
    return flood == TLS ? N_TLS : flood == STREAMS ? N_WITH_STREAMS : 2 * N_CONNECTIONS;
}

static size_t n_peers(tether_agent *agent)
{
    pthread_mutex_lock(&agent->mu);
    size_t n = agent->n_peers;
    pthread_mutex_unlock(&agent->mu);
    return n;
}

static void run_worker(struct tether_test_world *world, enum flood flood)
{
    struct notice *notice = notice_of(world);
    struct sampler sampler = {.agent = NULL};
    struct rlimit limit;
    pthread_t thread;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = 1024; /* the usual one */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    snprintf(notice->folder, sizeof notice->folder, "/tmp/tether-flood-XXXXXX");
    assert_non_null(mkdtemp(notice->folder));
    tether_agent *agent = start(notice->folder, "w", true, flood);
    snprintf(notice->address, sizeof notice->address, "%s", tether_agent_address(agent));
    if (agent->local.transport)
        snprintf(notice->unix_address, sizeof notice->unix_address, "%s",
                 agent->local.transport->address);
    memcpy(notice->run, agent->directory.run, sizeof notice->run);
    sampler.agent = agent;
    tether_test_mark(world, SERVING);
    tether_test_await_mark(world, CALLING, 1);

    long kb_before = peak_kb();
    int descriptors_before = count_descriptors();
    int64_t cpu_before = cpu_us();
    size_t peers_before = n_peers(agent);
    pthread_create(&thread, NULL, sample, &sampler);
    await_for_long(world, FLOODED);
    atomic_store(&sampler.stop, true);
    pthread_join(thread, NULL);
    long grown = peak_kb() - kb_before;
    int opened = sampler.descriptors - descriptors_before;
    int64_t cpu = (cpu_us() - cpu_before) / n_connections(flood);
    print_message(
        "the worker grew by %ld kB, had %d descriptors more, and took %lld us for each "
        "connection\n",
        grown, opened, (long long)cpu);
    assert_true(grown <= MAX_GROWTH_KB);
    assert_true(opened <= MAX_DESCRIPTORS);
    assert_true(cpu <= (flood == STREAMS ? MAX_STREAMS_CPU_US : MAX_CPU_US));
    assert_in_range(n_peers(agent), peers_before, peers_before + 1); /* "late" may be there */
    if (flood == NO_TOKEN) /* a thread that finds too many counts itself for a moment */
        assert_in_range(sampler.confirming, 1, MAX_CONFIRMING + MAX_SERVING);
    await_for_long(world, CHECKED);
    tether_agent_release(agent);
}

/* ---- The rest of the group ---- */

static void call_worker(tether_agent *from)
{
    tether_error err = {0};
    tether_value *arg = NULL, *value = NULL;
    assert_int_equal(tether_value_printf(&arg, NULL, "%s", tether_agent_name(from)), TETHER_OK);
    if (tether_rpc_sync(from, "w", "echo", arg, LIMIT, &value, &err) != TETHER_OK)
        fail_msg("%s: %s", tether_agent_name(from), err.message);
    tether_value_release(value);
    tether_value_release(arg);
}

struct blocker {
    const char *path;
    atomic_bool stop;
};

/* Keeps the store busy for most of the time, so that look-ups gather at the worker. */
static void *block_store(void *arg)
{
    struct blocker *blocker = arg;
    int fd = open(blocker->path, O_RDWR | O_CLOEXEC);
    while (!atomic_load(&blocker->stop)) {
        (void)!flock(fd, LOCK_EX);
        for (int i = 0; i < 100; i++)
            tether_test_nap(0);
        (void)!flock(fd, LOCK_UN);
        for (int i = 0; i < 20; i++)
            tether_test_nap(0);
    }
    close(fd);
    return NULL;
}

static void run_friend(struct tether_test_world *world, enum flood flood)
{
    const struct notice *notice = notice_of(world);
    char path[96];
    int calls = 0;
    struct blocker blocker = {.path = path};
    pthread_t thread;
    tether_test_await_mark(world, SERVING, 1);
    snprintf(path, sizeof path, "%s/store", notice->folder);
    tether_agent *local = start(notice->folder, "local", true, flood);
    tether_agent *network = start(notice->folder, "network", false, flood);
    if (flood == NO_TOKEN)
        pthread_create(&thread, NULL, block_store, &blocker);
    do {
        call_worker(local);
        call_worker(network);
        if (++calls == 1)
            tether_test_mark(world, CALLING);
        tether_test_nap(0); /* so that the flood is what the worker spends its time on */
    } while (atomic_load(&world->marks[FLOODED]) == 0);
    atomic_store(&blocker.stop, true);
    if (flood == NO_TOKEN)
        pthread_join(thread, NULL);
    /* The flood is still connected: a worker that comes now gets in, too. */
    tether_agent *late = start(notice->folder, "late", false, flood);
    call_worker(late);
    print_message("%d calls over each transport while the flood went on\n", calls);
    tether_test_mark(world, CHECKED);
    tether_agent_release(late);
    tether_agent_release(network);
    tether_agent_release(local);
    unlink(path);
    rmdir(notice->folder);
}

/* ---- The flood ---- */

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
    if (SSL_connect(ssl) != 1 || i % 4 == 1)
        return fd; /* a worker that has hung up is no error here */
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

static void run_intruder(struct tether_test_world *world, enum flood flood)
{
    const struct notice *notice = notice_of(world);
    static int fds[2 * N_CONNECTIONS];
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_alpn_protos(context, (const uint8_t *)"\2h2", 3);
    tether_test_await_mark(world, CALLING, 1);
    int n = n_connections(flood), n_open = open_at_once(n);
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
    await_for_long(world, CHECKED);
    for (int i = 0; i < n_open; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

static void run(struct tether_test_world *world, int rank, enum flood flood)
{
    if (rank == WORKER)
        run_worker(world, flood);
    else if (rank == FRIEND)
        run_friend(world, flood);
    else
        run_intruder(world, flood);
}

TETHER_PROC_TEST(worker_keeps_to_documented_amounts_when_flooded,
                 .ranks = N_RANKS,
                 .timeout_ms = TIMEOUT_MS)
{
    run(self->world, rank, ANY);
}

TETHER_PROC_TEST(worker_keeps_to_documented_amounts_when_flooded_without_token,
                 .ranks = N_RANKS,
                 .timeout_ms = TIMEOUT_MS)
{
    run(self->world, rank, NO_TOKEN);
}

TETHER_PROC_TEST(worker_keeps_to_documented_amounts_when_flooded_with_tls,
                 .ranks = N_RANKS,
                 .timeout_ms = TIMEOUT_MS)
{
    run(self->world, rank, TLS);
}

TETHER_PROC_TEST(worker_keeps_to_documented_amounts_when_flooded_with_streams,
                 .ranks = N_RANKS,
                 .timeout_ms = TIMEOUT_MS)
{
    run(self->world, rank, STREAMS);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(worker_keeps_to_documented_amounts_when_flooded),
        cmocka_unit_test(worker_keeps_to_documented_amounts_when_flooded_without_token),
        cmocka_unit_test(worker_keeps_to_documented_amounts_when_flooded_with_tls),
        cmocka_unit_test(worker_keeps_to_documented_amounts_when_flooded_with_streams),
    };
    return cmocka_run_group_tests_name("flood", tests, NULL, NULL);
}
