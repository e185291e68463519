/* The addresses on which an agent listens and that it advertises, and those that it refuses. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rendezvous/store.h"
#include "rpc/agent.h"
#include "tests/lib/cmocka.h"
#include "tests/rpc/lib/certs.h"

#define OPTS(...)                                             \
    (struct tether_agent_opts)                                \
    {                                                         \
        .size = sizeof(struct tether_agent_opts), __VA_ARGS__ \
    }
#define TLS(ca, name) \
    .tls_ca_pem = cert_##ca, .tls_cert_pem = cert_##name, .tls_key_pem = key_##name

static tether_store *make_store(void)
{
    tether_store *store = NULL;
    assert_int_equal(tether_store_hash_new(&store, NULL), TETHER_OK);
    return store;
}

#define EIGHT_LABELS "aaaaaaaa.aaaaaaaa.aaaaaaaa.aaaaaaaa.aaaaaaaa.aaaaaaaa.aaaaaaaa.aaaaaaaa."
#define LONG_NAME EIGHT_LABELS EIGHT_LABELS EIGHT_LABELS EIGHT_LABELS "a"

static void agent_refuses_unsafe_listen_addresses(void **state)
{
    (void)state;
    static const struct {
        struct tether_agent_opts opts;
        tether_status status;
        const char *words;
    } places[] = {
        {OPTS(.listen = "127.0.0.1:0"), TETHER_OK, ""},
        {OPTS(.listen = "127.1.2.3:0"), TETHER_OK, ""},
        {OPTS(.listen = "localhost:0"), TETHER_OK, ""},
        {OPTS(.listen = "[::1]:0"), TETHER_OK, ""},
        {OPTS(.listen = "unix:/tmp/x"), TETHER_OK, ""},
        {OPTS(.listen = "0.0.0.0:0"), TETHER_EPERM, "refusing to listen on '0.0.0.0:0'"},
        {OPTS(.listen = "[::]:0"), TETHER_EPERM, "plain text"},
        {OPTS(.listen = "128.0.0.1:0"), TETHER_EPERM, "`insecure`"},
        {OPTS(.listen = "127.example.com:0"), TETHER_EPERM, "refusing"},
        {OPTS(.listen = "127.0.0.1.example.com:0"), TETHER_EPERM, "refusing"},
        {OPTS(.listen = "localhost.example.com:0"), TETHER_EPERM, "refusing"},
        {OPTS(.listen = "somewhere:0"), TETHER_EPERM, "refusing"},
        {OPTS(.listen = "0.0.0.0:0", .token = "sesame"), TETHER_EPERM, "TLS certificate"},
        {OPTS(.listen = "0.0.0.0:0", .advertise = "h:0", .insecure = true), TETHER_OK, ""},
        {OPTS(.listen = "0.0.0.0:0", .advertise = "h:0", TLS(right_ca, alpha)), TETHER_OK, ""},
        {OPTS(.listen = "0.0.0.0:0", .insecure = true), TETHER_EINVAL, "`advertise`"},
        {OPTS(.listen = "[::]:0", .insecure = true), TETHER_EINVAL, "`advertise`"},
        {OPTS(.listen = "128.0.0.1:0", .insecure = true), TETHER_OK, ""},
        {OPTS(.advertise = "::::"), TETHER_EINVAL, "advertise is '::::', which is no address"},
        {OPTS(.advertise = "h"), TETHER_EINVAL, "HOST:PORT"},
        {OPTS(.advertise = LONG_NAME ":1"), TETHER_EINVAL, "at most 255"},
        {OPTS(.world_size = -2), TETHER_EINVAL, "world_size is -2"},
        {OPTS(.listen = "foo"), TETHER_EINVAL, "listen is 'foo', which is no address"},
        {OPTS(.listen = "127.0.0.1"), TETHER_EINVAL, "HOST:PORT"},
        {OPTS(.listen = "127.0.0.1:"), TETHER_EINVAL, "HOST:PORT"},
        {OPTS(.listen = "127.0.0.1:http"), TETHER_EINVAL, "HOST:PORT"},
        {OPTS(.listen = "127.0.0.1:65536"), TETHER_EINVAL, "65535"},
        {OPTS(.listen = "127.0.0.1:65535"), TETHER_OK, ""},
        {OPTS(.listen = ":0"), TETHER_EINVAL, "HOST:PORT"},
        {OPTS(.listen = "::1"), TETHER_EINVAL, "in brackets"},
        {OPTS(.listen = "foo", .insecure = true), TETHER_EINVAL, "HOST:PORT"},
        {OPTS(.listen = "unix:"), TETHER_EINVAL, "listen is 'unix:', which is no address"},
        {OPTS(.metrics_listen = "foo"), TETHER_EINVAL, "metrics_listen is 'foo'"},
        {OPTS(.metrics_listen = "unix:/m"), TETHER_EINVAL, "metrics_listen is 'unix:/m'"},
        {OPTS(.metrics_listen = "127.0.0.1:0"), TETHER_OK, ""},
        {OPTS(.metrics_listen = "0.0.0.0:0", TLS(right_ca, alpha)), TETHER_EPERM, "metrics"},
        {OPTS(.token = ""), TETHER_EINVAL, "the token is empty"},
        {OPTS(.tls_cert_pem = cert_alpha, .tls_key_pem = key_alpha), TETHER_EINVAL, "without a CA"},
        {OPTS(.tls_cert_pem = cert_alpha, .tls_key_pem = key_alpha, .token = "x"), TETHER_EINVAL,
         "without a CA"},
        {OPTS(.tls_cert_pem = cert_alpha, .tls_key_pem = key_alpha, .tls_one_way = true),
         TETHER_EINVAL, "token"},
        {OPTS(.tls_one_way = true, .token = "x"), TETHER_EINVAL, "TLS certificate"},
        {OPTS(.tls_cert_pem = cert_alpha, .tls_key_pem = key_alpha, .tls_one_way = true,
              .token = "x"),
         TETHER_OK, ""},
    };
    tether_store *store = make_store();
    for (size_t i = 0; i < TETHER__ARRAY_LEN(places); i++) {
        struct tether_agent_opts opts = places[i].opts;
        tether_agent *agent = NULL;
        tether_error err = {0};
        opts.store = store;
        opts.name = "alpha";
        tether_status st = tether_agent_new(&opts, &agent, &err);
        if (st != places[i].status || (st != TETHER_OK && !strstr(err.message, places[i].words)))
            fail_msg("place %zu: %s: %s", i, tether_status_name(st), err.message);
        tether_agent_release(agent);
    }
    tether_store_release(store);
}

static void throw_at(const char *address, const void *bytes, size_t len)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    at.sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    (void)!send(fd, bytes, len, MSG_NOSIGNAL);
    close(fd);
}

/* Listening everywhere, dialled at one address, with the port that the kernel chose. */
static void advertised_address_gets_the_bound_port(void **state)
{
    (void)state;
    tether_store *store = make_store();
    tether_agent *agent = NULL;
    tether_error err = {0};
    int port = 0;
    if (tether_agent_new(TETHER_AGENT_OPTS(.name = "alpha", .store = store, .listen = "0.0.0.0:0",
                                           .advertise = "127.0.0.1:0", .insecure = true),
                         &agent, &err) ||
        tether_agent_start(agent, &err))
        fail_msg("%s", err.message);
    assert_int_equal(sscanf(tether_agent_address(agent), "127.0.0.1:%d", &port), 1);
    assert_in_range(port, 1, 65535);
    throw_at(tether_agent_address(agent), "x", 1); /* fails if the agent does not listen there */
    tether_agent_release(agent);
    tether_store_release(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agent_refuses_unsafe_listen_addresses),
        cmocka_unit_test(advertised_address_gets_the_bound_port),
    };
    return cmocka_run_group_tests_name("listen addresses", tests, NULL, NULL);
}
