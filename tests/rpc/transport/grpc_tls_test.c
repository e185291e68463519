/* TLS and mutual TLS: which certificates are accepted, which are refused, and the error for each
 * refusal. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/macros.h"
#include "rpc/transport/grpc/accept.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"
#include "tests/rpc/lib/certs.h"
#include "tests/rpc/lib/transport_node.h"

static const struct tether__tls server_tls = {.ca_pem = cert_right_ca,
                                              .cert_pem = cert_alpha,
                                              .key_pem = key_alpha};
static const struct tether__tls mutual_tls = {.ca_pem = cert_right_ca,
                                              .cert_pem = cert_alpha,
                                              .key_pem = key_alpha,
                                              .require_client_cert = true};

struct dial_case {
    const char *what;
    const struct tether__tls *server; /* NULL: plain text */
    const struct tether__tls *client;
    bool opens;
    tether_status status; /* else */
    const char *says;
    const char *names[4];  /* that the server sees */
    bool is_guess_by_grpc; /* where gRPC listens by itself, the client can only guess */
};

static const struct dial_case cases[] = {
    {"the server's certificate is checked", &server_tls,
     &(struct tether__tls){.ca_pem = cert_right_ca}, .opens = true},
    {"its name may be another than the host's", &server_tls,
     &(struct tether__tls){.ca_pem = cert_right_ca, .server_name = "alpha"}, .opens = true},
    {"a wrong CA", &server_tls, &(struct tether__tls){.ca_pem = cert_wrong_ca}, .opens = false,
     TETHER_EPERM, "cannot be verified: is it signed by a CA in tls_ca_file"},
    {"an expired certificate",
     &(struct tether__tls){.ca_pem = cert_right_ca,
                           .cert_pem = cert_expired,
                           .key_pem = key_expired},
     &(struct tether__tls){.ca_pem = cert_right_ca}, .opens = false, TETHER_EPERM,
     "has it not expired"},
    {"a wrong name", &server_tls,
     &(struct tether__tls){.ca_pem = cert_right_ca, .server_name = "omega"}, .opens = false,
     TETHER_EPERM, "omega"},
    {"a client that speaks plain text", &server_tls, NULL, .opens = false, TETHER_EPERM,
     "has TLS, but this worker has none", .is_guess_by_grpc = true},
    {"a server that speaks plain text", NULL, &(struct tether__tls){.ca_pem = cert_right_ca},
     .opens = false, TETHER_EPERM, "speaks plain text, but this worker has TLS"},
    {"a client certificate that nobody asked for",
     &(struct tether__tls){.cert_pem = cert_alpha, .key_pem = key_alpha},
     &(struct tether__tls){.ca_pem = cert_right_ca, .cert_pem = cert_beta, .key_pem = key_beta},
     .opens = true},
    {"mutual TLS",
     &mutual_tls,
     &(struct tether__tls){.ca_pem = cert_right_ca, .cert_pem = cert_beta, .key_pem = key_beta},
     .opens = true,
     TETHER_OK,
     NULL,
     {"beta", "beta.example"}},
    {"an optional client certificate",
     &server_tls,
     &(struct tether__tls){.ca_pem = cert_right_ca, .cert_pem = cert_beta, .key_pem = key_beta},
     .opens = true,
     TETHER_OK,
     NULL,
     {"beta", "beta.example"}},
    {"no client certificate where one is required", &mutual_tls,
     &(struct tether__tls){.ca_pem = cert_right_ca}, .opens = false, TETHER_EUNAVAILABLE,
     "want a client certificate"},
    {"a client certificate of another CA", &mutual_tls,
     &(struct tether__tls){.ca_pem = cert_right_ca, .cert_pem = cert_gamma, .key_pem = key_gamma},
     .opens = false, TETHER_EUNAVAILABLE, "trust the CA"},
};

static void check_names(const struct dial_case *c, const struct wire *accepted)
{
    int n = 0;
    while (c->names[n])
        n++;
    assert_int_equal(accepted->n_names, n ? n : -1);
    for (int i = 0; i < n; i++)
        assert_string_equal(accepted->names[i], c->names[i]);
}

static void check(const struct dial_case *c)
{
    struct node server, client;
    node_start(&server,
               &(struct tether__transport_opts){.listen = "127.0.0.1:0", .tls = c->server});
    node_start(&client, &(struct tether__transport_opts){.tls = c->client});
    struct wire *wire = node_dial(&client, server.transport->address);
    wire_send(wire, "secret", 6);
    tether_status st = wire_await_either(wire, 1);
    bool guesses = c->is_guess_by_grpc && !tether__grpc_external_works();
    bool as_expected = c->opens
                           ? st == TETHER_OK
                           : st == (guesses ? TETHER_EUNAVAILABLE : c->status) && !wire->opened &&
                                 strstr(wire->why, guesses ? "does it want TLS?" : c->says);
    if (!as_expected)
        fail_msg("%s: %s", c->what, st == TETHER_OK ? "was let through" : wire->why);
    if (c->opens) {
        check_names(c, node_accepted(&server, 1));
        wire_await_opened(wire);
        assert_string_equal(wire->names[0], "alpha"); /* the name that the server proved */
    } else
        assert_int_equal(server.n_accepted, 0);
    node_stop(&client);
    node_stop(&server);
}

static void tls_connects_only_with_right_certificates(void **state)
{
    (void)state;
    for (size_t i = 0; i < TETHER__ARRAY_LEN(cases); i++)
        check(&cases[i]);
}

/* A worker whose own name is the last of them must get in. */
static void every_name_is_seen_when_certificate_has_many(void **state)
{
    (void)state;
    struct node server, client;
    node_start(&server,
               &(struct tether__transport_opts){.listen = "127.0.0.1:0", .tls = &mutual_tls});
    const struct tether__tls tls = {
        .ca_pem = cert_right_ca, .cert_pem = cert_many, .key_pem = key_many};
    node_start(&client, &(struct tether__transport_opts){.tls = &tls});
    struct wire *wire = node_dial(&client, server.transport->address);
    wire_await_opened(wire);
    const struct wire *accepted = node_accepted(&server, 1);
    char name[64];
    assert_int_equal(accepted->n_names, 42);
    assert_string_equal(accepted->names[0], "localhost");
    for (int i = 1; i <= 40; i++) {
        snprintf(name, sizeof name, "one-of-many-names-number-%d.example", i);
        assert_string_equal(accepted->names[i], name);
    }
    assert_string_equal(accepted->names[41], "omega");
    node_stop(&client);
    node_stop(&server);
}

/* ---- Clients that have not shown who they are ---- */

static size_t unproved_of(struct tether__grpc *grpc)
{
    pthread_mutex_lock(&grpc->unproved.mu);
    size_t n = grpc->unproved.n;
    pthread_mutex_unlock(&grpc->unproved.mu);
    return n;
}

static int connect_to_path(const char *address)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "%s", address + strlen("unix:"));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    return fd;
}

static int connect_to_port(const char *address)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    at.sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    return fd;
}

/* How many clients that begin with TLS and say no more are counted, once the listener has taken in
 * one that came after them. */
static size_t n_unproved(const char *listen, int (*connect_one)(const char *address), int n)
{
    static const char hello[64] = "\x16\3\1\2"; /* the begin of a record of 512 bytes */
    struct node server, client;
    int fds[8];
    assert_in_range(n, 1, TETHER__ARRAY_LEN(fds));
    node_start(&server, &(struct tether__transport_opts){.listen = listen, .tls = &mutual_tls});
    node_start(&client, &(struct tether__transport_opts){
                            .tls = &(struct tether__tls){.ca_pem = cert_right_ca,
                                                         .cert_pem = cert_beta,
                                                         .key_pem = key_beta,
                                                         .server_name = "alpha"}});
    for (int i = 0; i < n; i++) {
        fds[i] = connect_one(server.transport->address);
        assert_int_equal(send(fds[i], hello, sizeof hello, MSG_NOSIGNAL), sizeof hello);
    }
    struct tether__grpc *grpc = (struct tether__grpc *)(void *)server.transport;
    for (int round = 0; round < 3; round++)
        wire_await_opened(node_dial(&client, server.transport->address));
    if (connect_one == connect_to_port) /* another thread accepts the connection */
        assert_eventually(unproved_of(grpc) >= (size_t)n);
    size_t counted = unproved_of(grpc);
    for (int i = 0; i < n; i++)
        close(fds[i]);
    node_stop(&client);
    node_stop(&server);
    return counted;
}

static void clients_with_tls_on_a_unix_path_do_not_count_as_unproved(void **state)
{
    (void)state;
    char listen[64];
    snprintf(listen, sizeof listen, "unix:unproved.%d", (int)getpid());
    assert_true(n_unproved("127.0.0.1:0", connect_to_port, 8) >= 8);
    assert_int_equal(n_unproved(listen, connect_to_path, 8), 0);
}

/* ---- Where gRPC listens by itself ---- */

/* As with a version of gRPC whose port for accepted connections is not known (external.c). */
static void tls_accepts_the_same_clients_when_grpc_listens_by_itself(void **state)
{
    atomic_store(&tether__grpc_external_is_off, true);
    assert_false(tether__grpc_external_works());
    tls_connects_only_with_right_certificates(state);
    atomic_store(&tether__grpc_external_is_off, false);
    /* otherwise the other tests would test only the fallback */
    assert_true(tether__grpc_external_works());
}

/* The file has had its mode since it was made: before, others could have connected. */
static void assert_no_mode_changed(int watcher, const char *name)
{
    _Alignas(struct inotify_event) char events[4096];
    ssize_t len = read(watcher, events, sizeof events);
    for (ssize_t at = 0; at < len;) {
        const struct inotify_event *event = (const struct inotify_event *)(events + at);
        if (event->len && strcmp(event->name, name) == 0)
            fail_msg("the mode of %s was changed when it was there already", name);
        at += (ssize_t)(sizeof *event + event->len);
    }
}

static void unix_path_is_private_and_removed_when_grpc_listens_by_itself(void **state)
{
    (void)state;
    struct node server, client;
    struct stat file;
    char listen[64];
    const struct tether__transport_opts opts = {.listen = listen, .tls = &mutual_tls};
    snprintf(listen, sizeof listen, "unix:tls.%d", (int)getpid());
    atomic_store(&tether__grpc_external_is_off, true);
    int watcher = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    assert_true(inotify_add_watch(watcher, ".", IN_ATTRIB) >= 0);
    node_start(&server, &opts);
    assert_no_mode_changed(watcher, listen + strlen("unix:"));
    close(watcher);
    node_start(&client, &(struct tether__transport_opts){
                            .tls = &(struct tether__tls){.ca_pem = cert_right_ca,
                                                         .cert_pem = cert_beta,
                                                         .key_pem = key_beta,
                                                         .server_name = "alpha"}});
    struct wire *wire = node_dial(&client, server.transport->address);
    wire_send(wire, "secret", 6);
    wire_await_messages(wire, 1);
    assert_int_equal(stat(listen + strlen("unix:"), &file), 0);
    assert_int_equal(file.st_mode & 0777, 0600);
    node_stop(&client);
    node_stop(&server);
    atomic_store(&tether__grpc_external_is_off, false);
    assert_int_equal(stat(listen + strlen("unix:"), &file), -1);
}

/* ---- Settings that cannot work ---- */

struct settings_case {
    struct tether__tls tls;
    const char *listen, *says;
};

static void tls_settings_that_contradict_are_refused(void **state)
{
    static const struct settings_case bad[] = {
        {{.ca_pem = "/etc/ssl/ca.pem"}, NULL, "the content of the file, not its path"},
        {{.cert_pem = "junk", .key_pem = key_alpha}, NULL, "certificate"},
        {{.cert_pem = cert_alpha, .key_pem = cert_alpha}, NULL, "PRIVATE KEY"},
        {{.cert_pem = cert_alpha}, NULL, "without its key"},
        {{.key_pem = key_alpha}, NULL, "without its certificate"},
        {{.ca_pem = cert_right_ca}, "127.0.0.1:0", "needs a certificate"},
        {{.cert_pem = cert_alpha, .key_pem = key_alpha, .require_client_cert = true},
         "127.0.0.1:0",
         "no CA"},
        {{.cert_pem = cert_alpha, .key_pem = key_beta}, "127.0.0.1:0", "belong to the certificate"},
    };
    (void)state;
    for (size_t i = 0; i < TETHER__ARRAY_LEN(bad); i++) {
        struct node node;
        tether_error error = {0};
        const struct tether__transport_opts opts = {.listen = bad[i].listen, .tls = &bad[i].tls};
        assert_int_equal(node_try_start(&node, &opts, &error), TETHER_EINVAL);
        if (!strstr(error.message, bad[i].says))
            fail_msg("case %zu: want \"%s\" in: %s", i, bad[i].says, error.message);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(tls_connects_only_with_right_certificates),
    cmocka_unit_test(every_name_is_seen_when_certificate_has_many),
    cmocka_unit_test(clients_with_tls_on_a_unix_path_do_not_count_as_unproved),
    cmocka_unit_test(tls_accepts_the_same_clients_when_grpc_listens_by_itself),
    cmocka_unit_test(unix_path_is_private_and_removed_when_grpc_listens_by_itself),
    cmocka_unit_test(tls_settings_that_contradict_are_refused),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL);
}
