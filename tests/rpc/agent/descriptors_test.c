/* A worker whose process has no file descriptor left for a while: it can be reached again, and
 * clients that say nothing, or show nothing, do not keep others out. On TCP and on a unix path,
 * with TLS and without.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "rpc/agent.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"
#include "tests/rpc/lib/certs.h"
#include "tests/rpc/lib/plain_client.h"

enum { MORE = 24, ALL = 200, MANY = 600 };

struct kind {
    bool tls, unix_path;
};

struct scene {
    struct kind kind;
    tether_store *store;
    tether_agent *agent;
    union {
        struct sockaddr any;
        struct sockaddr_in tcp;
        struct sockaddr_un path;
    } at;
    socklen_t at_len;
};

static void scene_start(struct scene *scene, const struct kind *kind)
{
    tether_error err = {0};
    char listen[64] = "127.0.0.1:0";
    *scene = (struct scene){.kind = *kind};
    if (kind->unix_path)
        snprintf(listen, sizeof listen, "unix:descriptors.%d", (int)getpid());
    struct tether_agent_opts opts = *TETHER_AGENT_OPTS(.name = "alpha", .listen = listen);
    if (kind->tls) {
        opts.tls_ca_pem = cert_right_ca;
        opts.tls_cert_pem = cert_alpha;
        opts.tls_key_pem = key_alpha;
    }
    assert_int_equal(tether_store_hash_new(&scene->store, &err), TETHER_OK);
    opts.store = scene->store;
    if (tether_agent_new(&opts, &scene->agent, &err) != TETHER_OK ||
        tether_agent_start(scene->agent, &err) != TETHER_OK)
        fail_msg("%s", err.message);
    const char *address = tether_agent_address(scene->agent);
    if (kind->unix_path) {
        scene->at.path = (struct sockaddr_un){.sun_family = AF_UNIX};
        strcpy(scene->at.path.sun_path, address + strlen("unix:"));
        scene->at_len = sizeof scene->at.path;
    } else {
        scene->at.tcp = (struct sockaddr_in){.sin_family = AF_INET};
        scene->at.tcp.sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1));
        scene->at.tcp.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        scene->at_len = sizeof scene->at.tcp;
    }
}

static void scene_end(struct scene *scene)
{
    tether_agent_release(scene->agent);
    tether_store_release(scene->store);
}

/* A connection that says nothing; -1: there is no descriptor for it. */
static int connect_silently(struct scene *scene)
{
    int fd = socket(scene->at.any.sa_family, SOCK_STREAM, 0);
    if (fd >= 0 && connect(fd, &scene->at.any, scene->at_len) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* The worker answers a client that comes now. */
static void assert_reachable(struct scene *scene)
{
    struct plain_client client;
    struct plain_call done;
    const char *address = tether_agent_address(scene->agent);
    if (scene->kind.tls)
        plain_client_init_tls(&client, address, cert_right_ca, cert_beta, key_beta);
    else
        plain_client_init(&client, address);
    plain_start(&client,
                &(struct plain_request){.method = "/grpc.health.v1.Health/Check", .body = ""},
                &done);
    plain_finish(&done);
    if (done.code != GRPC_STATUS_OK)
        fail_msg("%d: %s", done.code, done.details);
    plain_free(&done);
    plain_client_fini(&client);
}

static bool one_has_ended(const int *fds, int n)
{
    char byte;
    for (int i = 0; i < n; i++)
        if (recv(fds[i], &byte, 1, MSG_DONTWAIT) == 0)
            return true;
    return false;
}

static int highest_descriptor(void)
{
    int fd = dup(0);
    close(fd);
    return fd;
}

static void worker_is_reachable_again_after_descriptors_ran_out(void **state)
{
    struct scene scene;
    struct rlimit before, low;
    int fds[ALL], n = 0;
    scene_start(&scene, *state);
    assert_reachable(&scene);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    low = before;
    low.rlim_cur = (rlim_t)highest_descriptor() + MORE;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    while (n < ALL && (fds[n] = connect_silently(&scene)) >= 0)
        n++;
    assert_true(n > 0 && n < ALL);            /* client and worker have used up what there was */
    assert_eventually(one_has_ended(fds, n)); /* the worker has noticed */
    while (n > 0)
        close(fds[--n]);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_reachable(&scene);
    scene_end(&scene);
}

/* They would take up a descriptor of the worker each. */
static void silent_connections_are_dropped_when_there_are_too_many(void **state)
{
    struct scene scene;
    static int fds[MANY];
    scene_start(&scene, *state);
    for (int i = 0; i < MANY; i++)
        assert_true((fds[i] = connect_silently(&scene)) >= 0);
    char byte;
    assert_true(recv(fds[0], &byte, 1, 0) <= 0); /* the oldest goes */
    assert_reachable(&scene);
    for (int i = 0; i < MANY; i++)
        close(fds[i]);
    scene_end(&scene);
}

/* This worker asks for no token: a call shows nothing about who makes it. */
static void connections_are_bounded_when_clients_call_without_proof(void **state)
{
    static const char call[] =
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        "\0\0\0\4\0\0\0\0\0"                   /* SETTINGS */
        "\0\0\x39\1\5\0\0\0\1\x83\x86\x44\x13" /* HEADERS: POST, http, a path of 19 bytes */
        "/tether.Worker/Call"
        "\x41\1x\x5f\x10"
        "application/grpc"
        "\x40\2te\x08trailers";
    const struct timeval limit = {.tv_sec = TETHER_TEST_LIMIT_MS / 1000};
    struct scene scene;
    static int fds[MANY];
    char bytes[4096];
    ssize_t n;
    scene_start(&scene, *state);
    for (int i = 0; i < MANY; i++) {
        assert_true((fds[i] = connect_silently(&scene)) >= 0);
        assert_int_equal(setsockopt(fds[i], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
        (void)!send(fds[i], call, sizeof call - 1, MSG_NOSIGNAL);
        assert_true(recv(fds[i], bytes, sizeof bytes, 0) > 0); /* the worker's SETTINGS */
    }
    while ((n = recv(fds[0], bytes, sizeof bytes, 0)) > 0) {
    }
    assert_true(n == 0 || errno == ECONNRESET); /* the oldest goes */
    assert_true(recv(fds[MANY - 1], bytes, sizeof bytes, MSG_DONTWAIT) != 0);
    assert_reachable(&scene);
    for (int i = 0; i < MANY; i++)
        close(fds[i]);
    scene_end(&scene);
}

/* The first test: gRPC keeps what it has once opened. */
static void start_fails_when_descriptors_are_scarce(void **state)
{
    (void)state;
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    int next = dup(STDERR_FILENO); /* descriptors are given out from below */
    close(next);
    int n_failed = 0;
    for (int spare = 0; spare < MORE; spare++) {
        tether_store *store = NULL;
        tether_agent *agent = NULL;
        tether_error err = {0};
        assert_int_equal(tether_store_hash_new(&store, &err), TETHER_OK);
        assert_int_equal(
            tether_agent_new(TETHER_AGENT_OPTS(.name = "alpha", .store = store), &agent, &err),
            TETHER_OK);
        struct rlimit scarce = {(rlim_t)(next + spare), before.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &scarce), 0);
        tether_status st = tether_agent_start(agent, &err);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        if (st != TETHER_OK && st != TETHER_EIO)
            fail_msg("%s: %s", tether_status_name(st), err.message);
        n_failed += st != TETHER_OK;
        tether_agent_release(agent);
        tether_store_release(store);
    }
    assert_true(n_failed > 0);
}

#define ROW(test, kind_name, ...)                                  \
    {                                                              \
#test "_with_" kind_name, test, NULL, NULL, &(struct kind) \
        {                                                          \
            __VA_ARGS__                                            \
        }                                                          \
    }
#define ROWS(test)                                                         \
    ROW(test, "tcp", false, false), ROW(test, "tcp_and_tls", true, false), \
        ROW(test, "a_unix_path", false, true), ROW(test, "a_unix_path_and_tls", true, true)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(start_fails_when_descriptors_are_scarce),
        ROWS(worker_is_reachable_again_after_descriptors_ran_out),
        ROWS(silent_connections_are_dropped_when_there_are_too_many),
        ROW(connections_are_bounded_when_clients_call_without_proof, "tcp", false, false),
        ROW(connections_are_bounded_when_clients_call_without_proof, "a_unix_path", false, true),
    };
    return cmocka_run_group_tests_name("descriptors", tests, NULL, NULL);
}
