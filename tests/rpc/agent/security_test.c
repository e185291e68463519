/* Authentication of workers, observers and plain gRPC clients: TLS, tokens and allow-lists.
 * Unauthenticated clients that must not affect the group. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "protos/rpc.pb-c.h"
#include "rendezvous/store.h"
#include "rpc/agent.h"
#include "rpc/agent/internal.h"
#include "rpc/agent/routes.h"
#include "rpc/future.h"
#include "rpc/value.h"
#include "tests/lib/cmocka.h"
#include "tests/rpc/lib/certs.h"
#include "tests/rpc/lib/plain_client.h"
#include "tests/rpc/lib/transport_node.h"

#define LIMIT TETHER_TEST_LIMIT_MS

#define OPTS(...)                                             \
    (struct tether_agent_opts)                                \
    {                                                         \
        .size = sizeof(struct tether_agent_opts), __VA_ARGS__ \
    }
#define TLS(ca, name) \
    .tls_ca_pem = cert_##ca, .tls_cert_pem = cert_##name, .tls_key_pem = key_##name

static const char *const only_alpha[] = {"alpha"}, *const only_delta[] = {"delta", "someone"};

/* ---- Two workers ---- */

static tether_status name(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    (void)arg;
    return tether_value_printf(ret_value, reterr, "%s", tether_agent_name(userdata));
}

static tether_agent *start(tether_store *store,
                           const char *worker,
                           const struct tether_agent_opts *opts)
{
    struct tether_agent_opts own = *opts;
    tether_agent *agent = NULL;
    tether_error err = {0};
    own.store = store;
    own.name = worker;
    own.threads = 2;
    own.lease_ms = 20000; /* a refused worker gets its error long before that */
    if (tether_agent_new(&own, &agent, &err) != TETHER_OK ||
        tether_agent_register_inline(agent, "name", name, agent, &err) != TETHER_OK ||
        tether_agent_start(agent, &err) != TETHER_OK)
        fail_msg("%s", err.message);
    if (own.tls_cert_pem && agent->local.transport)
        fail_msg("%s has TLS and a unix socket as well", worker);
    return agent;
}

static tether_store *make_store(void)
{
    tether_store *store = NULL;
    assert_int_equal(tether_store_hash_new(&store, NULL), TETHER_OK);
    return store;
}

struct row {
    const char *what;
    const char *caller_name, *callee_name;
    struct tether_agent_opts caller, callee;
    tether_status status;
    const char *words;
};

static const struct row rows[] = {
    {"both show what they should", "delta", "alpha", OPTS(TLS(right_ca, delta)),
     OPTS(TLS(right_ca, alpha)), TETHER_OK, ""},
    {"the other way round", "alpha", "delta", OPTS(TLS(right_ca, alpha)),
     OPTS(TLS(right_ca, delta)), TETHER_OK, ""},
    {"TLS, a token and a list", "delta", "alpha",
     OPTS(TLS(right_ca, delta),
          .token = "sesame",
          .allowed_peers = only_alpha,
          .n_allowed_peers = 1),
     OPTS(TLS(right_ca, alpha),
          .token = "sesame",
          .allowed_peers = only_delta,
          .n_allowed_peers = 2),
     TETHER_OK, ""},
    {"no TLS against TLS", "delta", "alpha", OPTS(.token = NULL), OPTS(TLS(right_ca, alpha)),
     TETHER_EPERM, "has TLS, but this worker has none"},
    {"TLS against none", "delta", "alpha", OPTS(TLS(right_ca, delta)), OPTS(.token = NULL),
     TETHER_EPERM, "speaks plain text"},
    {"the caller's certificate is of another CA", "gamma", "alpha",
     OPTS(.tls_ca_pem = cert_right_ca, .tls_cert_pem = cert_gamma, .tls_key_pem = key_gamma),
     OPTS(TLS(right_ca, alpha)), TETHER_EPERM, "'alpha'"},
    {"the callee's certificate is of another CA", "delta", "gamma", OPTS(TLS(right_ca, delta)),
     OPTS(TLS(wrong_ca, gamma)), TETHER_EPERM, "'gamma'"},
    {"the callee's certificate is not for this host", "delta", "beta", OPTS(TLS(right_ca, delta)),
     OPTS(TLS(right_ca, beta)), TETHER_EPERM, "'beta'"},
    {"the caller has another's certificate", "eve", "alpha", OPTS(TLS(right_ca, delta)),
     OPTS(TLS(right_ca, alpha)), TETHER_EPERM, "certificate of another name"},
    {"the callee has another's certificate", "delta", "eve", OPTS(TLS(right_ca, delta)),
     OPTS(TLS(right_ca, alpha)), TETHER_EPERM, "certificate of another name"},
    {"the caller's name is not in a DNS entry", "zeta", "alpha", OPTS(TLS(right_ca, zeta)),
     OPTS(TLS(right_ca, alpha)), TETHER_EPERM, "certificate of another name"},
    {"the caller's name is the last of many", "omega", "alpha", OPTS(TLS(right_ca, many)),
     OPTS(TLS(right_ca, alpha)), TETHER_OK, ""},
    {"the callee's name is the last of many", "alpha", "omega", OPTS(TLS(right_ca, alpha)),
     OPTS(TLS(right_ca, many)), TETHER_OK, ""},
    {"one-way TLS with the right token", "delta", "alpha",
     OPTS(TLS(right_ca, delta), .tls_one_way = true, .token = "sesame"),
     OPTS(TLS(right_ca, alpha), .tls_one_way = true, .token = "sesame"), TETHER_OK, ""},
    {"one-way TLS with a wrong token", "delta", "alpha",
     OPTS(TLS(right_ca, delta), .tls_one_way = true, .token = "guess"),
     OPTS(TLS(right_ca, alpha), .tls_one_way = true, .token = "sesame"), TETHER_EAUTH, "token"},
    {"the caller is not on the list", "beta", "alpha", OPTS(TLS(right_ca, beta)),
     OPTS(TLS(right_ca, alpha), .allowed_peers = only_delta, .n_allowed_peers = 2), TETHER_EPERM,
     "allowed_peers"},
    {"nor is it without TLS", "eve", "alpha", OPTS(.token = NULL),
     OPTS(.allowed_peers = only_delta, .n_allowed_peers = 2), TETHER_EPERM, "allowed_peers"},
    {"the token is right", "delta", "alpha", OPTS(.token = "sesame"), OPTS(.token = "sesame"),
     TETHER_OK, ""},
    {"the token is wrong", "delta", "alpha", OPTS(.token = "sesamE"), OPTS(.token = "sesame"),
     TETHER_EAUTH, "token"},
    {"the token is too long", "delta", "alpha", OPTS(.token = "sesamesesame"),
     OPTS(.token = "sesame"), TETHER_EAUTH, "token"},
    {"the token is missing", "delta", "alpha", OPTS(.token = NULL), OPTS(.token = "sesame"),
     TETHER_EAUTH, "token"},
    {"a token for who wants none", "delta", "alpha", OPTS(.token = "sesame"), OPTS(.token = NULL),
     TETHER_EAUTH, "token"},
};

static void worker_admits_others_by_token_and_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        const struct row *row = &rows[i];
        tether_store *store = make_store();
        tether_agent *callee = start(store, row->callee_name, &row->callee);
        tether_agent *caller = start(store, row->caller_name, &row->caller);
        tether_error err = {0};
        tether_value *value = NULL;
        tether_status st =
            tether_rpc_sync(caller, row->callee_name, "name", NULL, LIMIT, &value, &err);
        if (st != row->status || (st != TETHER_OK && !strstr(err.message, row->words)))
            fail_msg("%s: %s: %s", row->what, tether_status_name(st), err.message);
        if (st == TETHER_OK)
            assert_string_equal(tether_value_str(value), row->callee_name);
        tether_value_release(value);
        tether_agent_release(caller);
        tether_agent_release(callee);
        tether_store_release(store);
    }
}

/* A worker that was refused is accepted as soon as it presents the right token. The other workers
 * are not affected. */
static void worker_is_accepted_when_it_retries_with_the_right_token(void **state)
{
    (void)state;
    tether_error err = {0};
    tether_store *store = make_store();
    const struct tether_agent_opts right = OPTS(.token = "sesame"), wrong = OPTS(.token = "guess");
    tether_agent *alpha = start(store, "alpha", &right), *delta = start(store, "delta", &right);
    tether_agent *late = start(store, "late", &wrong);
    assert_int_equal(tether_rpc_sync(late, "alpha", "name", NULL, LIMIT, NULL, &err), TETHER_EAUTH);
    assert_int_equal(tether_rpc_sync(delta, "alpha", "name", NULL, LIMIT, NULL, &err), TETHER_OK);
    tether_agent_release(late);
    late = start(store, "late", &right);
    assert_int_equal(tether_rpc_sync(late, "alpha", "name", NULL, LIMIT, NULL, &err), TETHER_OK);
    assert_int_equal(tether_rpc_sync(alpha, "late", "name", NULL, LIMIT, NULL, &err), TETHER_OK);
    tether_agent_release(late);
    tether_agent_release(delta);
    tether_agent_release(alpha);
    tether_store_release(store);
}

/* ---- Plain clients ---- */

struct plain_row {
    const char *what;
    struct tether_agent_opts callee;
    const char *cert, *key; /* NULL: plain text */
    const char *authorization;
    const char *status; /* the number of a tether_status; "": none came */
    bool gets_in;
};

static const struct plain_row plain_rows[] = {
    {"no token wanted", OPTS(.token = NULL), NULL, NULL, NULL, "", true},
    {"token as metadata", OPTS(.token = "sesame"), NULL, NULL, "Bearer sesame", "", true},
    {"token missing", OPTS(.token = "sesame"), NULL, NULL, NULL, "17", false},
    {"token wrong", OPTS(.token = "sesame"), NULL, NULL, "Bearer sesame ", "17", false},
    {"token cut short", OPTS(.token = "sesame"), NULL, NULL, "Bearer sesam", "17", false},
    {"token of another scheme", OPTS(.token = "sesame"), NULL, NULL, "Basic sesame", "17", false},
    {"token wrong as metadata", OPTS(.token = "sesame"), NULL, NULL, "Bearer x", "17", false},
    {"no name, and a list", OPTS(.allowed_peers = only_delta, .n_allowed_peers = 2), NULL, NULL,
     NULL, "16", false},
    {"certificate, and no list", OPTS(TLS(right_ca, alpha)), cert_beta, key_beta, NULL, "", true},
    {"certificate on the list",
     OPTS(TLS(right_ca, alpha), .allowed_peers = only_delta, .n_allowed_peers = 2), cert_delta,
     key_delta, NULL, "", true},
    {"certificate not on the list",
     OPTS(TLS(right_ca, alpha), .allowed_peers = only_delta, .n_allowed_peers = 2), cert_beta,
     key_beta, NULL, "16", false},
    {"certificate of another CA", OPTS(TLS(right_ca, alpha)), cert_gamma, key_gamma, NULL, "",
     false},
    {"plain text against TLS", OPTS(TLS(right_ca, alpha)), NULL, NULL, NULL, "16", false},
};

static void plain_client_is_admitted_by_token_and_certificate(void **state)
{
    (void)state;
    for (size_t i = 0; i < TETHER__ARRAY_LEN(plain_rows); i++) {
        const struct plain_row *row = &plain_rows[i];
        tether_store *store = make_store();
        tether_agent *agent = start(store, "alpha", &row->callee);
        struct plain_client client;
        struct plain_call call;
        if (row->cert)
            plain_client_init_tls(&client, tether_agent_address(agent), cert_right_ca, row->cert,
                                  row->key);
        else
            plain_client_init(&client, tether_agent_address(agent));
        Tether__UnaryCall message = TETHER__UNARY_CALL__INIT;
        uint8_t body[128];
        message.function = "name";
        plain_start(&client,
                    &(struct plain_request){.method = "/tether.Worker/Call",
                                            .body = body,
                                            .len = tether__unary_call__pack(&message, body),
                                            .authorization = row->authorization},
                    &call);
        plain_finish(&call);
        if ((call.code == GRPC_STATUS_OK) != row->gets_in ||
            strcmp(call.tether_status, row->status) != 0)
            fail_msg("%s: gRPC status %d, ours '%s': %s", row->what, call.code, call.tether_status,
                     call.details);
        plain_free(&call);
        plain_client_fini(&client);
        tether_agent_release(agent);
        tether_store_release(store);
    }
}

/* ---- Unauthenticated clients ---- */

static void throw_at(const char *address, const void *bytes, size_t len)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    at.sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    (void)!send(fd, bytes, len, MSG_NOSIGNAL);
    close(fd);
}

/* A first message for a lane. */
static size_t pack_frame(Tether__Frame *frame, uint8_t *ret_bytes)
{
    Tether__Frame *frames[] = {frame};
    Tether__Batch batch = TETHER__BATCH__INIT;
    batch.frame = frames;
    batch.n_frame = 1;
    return tether__batch__pack(&batch, ret_bytes);
}

static size_t pack_hello(Tether__Hello1 *hello, uint8_t *ret_bytes)
{
    Tether__Frame frame = TETHER__FRAME__INIT;
    frame.body_case = TETHER__FRAME__BODY_HELLO1;
    frame.hello1 = hello;
    return pack_frame(&frame, ret_bytes);
}

static Tether__Hello1 right_hello(void)
{
    static uint8_t nonce[32];
    Tether__Hello1 hello = TETHER__HELLO1__INIT;
    hello.version = 2;
    hello.group = "tether";
    hello.from_name = "intruder";
    hello.from_incarnation = 1;
    hello.to_name = "alpha";
    hello.nonce = (ProtobufCBinaryData){sizeof nonce, nonce};
    return hello;
}

static void group_is_not_affected_when_unauthenticated_clients_connect(void **state)
{
    (void)state;
    const struct tether_agent_opts opts = OPTS(.token = "sesame", .no_unix_socket = true);
    tether_store *store = make_store();
    tether_agent *alpha = start(store, "alpha", &opts), *delta = start(store, "delta", &opts);
    tether_error err = {0};
    const char *address = tether_agent_address(alpha);
    struct node intruder;
    node_start(&intruder, &(struct tether__transport_opts){0});
    tether_future *pending = NULL;
    unsigned seed = 3;
    for (int i = 0; i < 40; i++) {
        uint8_t bytes[600];
        size_t len = sizeof bytes;
        Tether__Hello1 hello = right_hello();
        Tether__State refusal = TETHER__STATE__INIT;
        Tether__Frame frame = TETHER__FRAME__INIT;
        switch (i % 8) {
            case 0: /* nothing at all */
                len = 0;
                break;
            case 1: /* noise */
            case 2:
                for (size_t k = 0; k < len; k++)
                    bytes[k] = (uint8_t)rand_r(&seed);
                break;
            case 3: /* a worker of another version */
                hello.version = 99;
                len = pack_hello(&hello, bytes);
                break;
            case 4: /* a refusal before any other message, which claims that alpha has been replaced
                     */
                refusal.refused = TETHER_EFENCED;
                refusal.reason = "replaced";
                frame.body_case = TETHER__FRAME__BODY_STATE;
                frame.state = &refusal;
                len = pack_frame(&frame, bytes);
                break;
            case 5: /* a worker without a token */
                hello.nonce.len = 0;
                len = pack_hello(&hello, bytes);
                break;
            case 6: /* a client that claims to be delta, of a later start and another run */
                hello.from_name = "delta";
                hello.from_incarnation = 1000000;
                len = pack_hello(&hello, bytes);
                break;
            case 7: /* an invalid name */
                hello.from_name = "../../etc/passwd\n";
                len = pack_hello(&hello, bytes);
                break;
        }
        throw_at(address, bytes, len);
        struct wire *wire = node_dial(&intruder, address);
        wire_send(wire, bytes, len);
        wire_await_closed(wire); /* the worker closes the connection */
        pending = tether_rpc_async(delta, "alpha", "name", NULL, LIMIT);
        if (tether_future_wait(pending, LIMIT, NULL, &err) != TETHER_OK)
            fail_msg("after attack %d: %s", i, err.message);
        tether_future_release(pending);
    }
    if (tether_rpc_sync(alpha, "delta", "name", NULL, LIMIT, NULL, &err) != TETHER_OK)
        fail_msg("%s", err.message);
    tether_worker *workers = NULL;
    size_t n = 0;
    assert_int_equal(tether_agent_workers(alpha, &workers, &n, &err), TETHER_OK);
    assert_int_equal(n, 2);
    tether_workers_free(workers);
    node_stop(&intruder);
    tether_agent_release(delta);
    tether_agent_release(alpha);
    tether_store_release(store);
}

/* ---- Observers ---- */

static const struct {
    const char *what;
    struct tether_agent_opts observer, worker;
    tether_status status;
} observer_rows[] = {
    {"kernel credentials", OPTS(.observe = true), OPTS(.token = NULL), TETHER_OK},
    {"open group over TCP", OPTS(.observe = true, .no_unix_socket = true),
     OPTS(.no_unix_socket = true), TETHER_OK},
    {"token over TCP", OPTS(.observe = true, .token = "sesame", .no_unix_socket = true),
     OPTS(.token = "sesame", .no_unix_socket = true), TETHER_OK},
    {"wrong token", OPTS(.observe = true, .token = "guess"), OPTS(.token = "sesame"), TETHER_EAUTH},
    {"certificate of who looks", OPTS(.observe = true, TLS(right_ca, delta)),
     OPTS(TLS(right_ca, alpha), .allowed_peers = only_delta, .n_allowed_peers = 2), TETHER_OK},
    {"not on the list", OPTS(.observe = true),
     OPTS(.allowed_peers = only_alpha, .n_allowed_peers = 1), TETHER_EPERM},
};

static void observer_is_admitted_by_token_and_certificate(void **state)
{
    (void)state;
    for (size_t i = 0; i < TETHER__ARRAY_LEN(observer_rows); i++) {
        tether_store *store = make_store();
        tether_agent *alpha = start(store, "alpha", &observer_rows[i].worker);
        int64_t n_before, n_after;
        assert_int_equal(tether_store_num_keys(store, 1000, &n_before, NULL), TETHER_OK);
        tether_agent *delta = start(store, "delta", &observer_rows[i].observer);
        tether_error err = {0};
        tether_status st =
            tether_rpc_sync(delta, "alpha", "name", NULL, TETHER_TEST_LIMIT_MS, NULL, &err);
        if (st != observer_rows[i].status)
            fail_msg("%s: %s: %s", observer_rows[i].what, tether_status_name(st), err.message);
        st = tether_rpc_sync(alpha, "delta", "name", NULL, TETHER_TEST_LIMIT_MS, NULL, &err);
        assert_int_equal(st, TETHER_ENOTFOUND); /* an observer cannot be called */
        st = tether_rpc_sync(alpha, tether_agent_name(delta), "name", NULL, 1000, NULL, &err);
        assert_int_equal(st, TETHER_ENOTFOUND);
        tether_agent_release(delta);
        assert_int_equal(tether_store_num_keys(store, 1000, &n_after, NULL), TETHER_OK);
        assert_int_equal(n_after, n_before);
        tether_agent_release(alpha);
        tether_store_release(store);
    }
}

static void observer_start_fails_when_no_worker_has_joined(void **state)
{
    (void)state;
    tether_store *store = make_store();
    tether_agent *agent = NULL;
    tether_error err = {0};
    int64_t n_keys;
    assert_int_equal(
        tether_agent_new(TETHER_AGENT_OPTS(.store = store, .observe = true), &agent, &err),
        TETHER_OK);
    assert_int_equal(tether_agent_start(agent, &err), TETHER_ENOTFOUND);
    assert_non_null(strstr(err.message, "no worker of this group has joined"));
    tether_agent_release(agent);
    assert_int_equal(tether_store_num_keys(store, 1000, &n_keys, NULL), TETHER_OK);
    assert_int_equal(n_keys, 0);
    assert_int_equal(
        tether_agent_new(TETHER_AGENT_OPTS(.store = store, .name = "observer:x"), &agent, &err),
        TETHER_EINVAL);
    tether_store_release(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(worker_admits_others_by_token_and_name),
        cmocka_unit_test(worker_is_accepted_when_it_retries_with_the_right_token),
        cmocka_unit_test(plain_client_is_admitted_by_token_and_certificate),
        cmocka_unit_test(group_is_not_affected_when_unauthenticated_clients_connect),
        cmocka_unit_test(observer_is_admitted_by_token_and_certificate),
        cmocka_unit_test(observer_start_fails_when_no_worker_has_joined),
    };
    return cmocka_run_group_tests_name("security", tests, NULL, NULL);
}
