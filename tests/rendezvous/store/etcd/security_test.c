/* The etcd store with TLS, with user and password, and with invalid options. */
#include <stdio.h>
#include <stdlib.h>

#include "rendezvous/rendezvous.h"
#include "tests/rendezvous/store/etcd/fixture.h"

#define LIMIT TETHER_TEST_LIMIT_MS
#define SHORT 400 /* the timeout of calls that fail until they time out */

static struct tether_test_etcd *tls_etcd;

static tether_status open_with(const struct tether_store_etcd_opts *opts, tether_error *error)
{
    tether_store *store = NULL;
    tether_status st = tether_store_etcd_new(opts, &store, error);
    tether_store_release(store);
    return st;
}

/* ---- Options -------------------------------------------------------------------------------- */

static void new_refuses_invalid_options(void **state)
{
    (void)state;
    static const struct {
        struct tether_store_etcd_opts opts;
        tether_status status;
        const char *says;
    } rows[] = {
        {{.endpoints = NULL}, TETHER_EINVAL, "no etcd endpoint"},
        {{.endpoints = ""}, TETHER_EINVAL, "no etcd endpoint"},
        {{.endpoints = "127.0.0.1:1,"}, TETHER_EINVAL, "''"},
        {{.endpoints = ":2379"}, TETHER_EINVAL, "':2379'"},
        {{.endpoints = "host:0"}, TETHER_EINVAL, "'host:0'"},
        {{.endpoints = "host:"}, TETHER_EINVAL, "'host:'"},
        {{.endpoints = "host:65536"}, TETHER_EINVAL, "'host:65536'"},
        {{.endpoints = "host:99999999999999999999"}, TETHER_EINVAL, "host:999"},
        {{.endpoints = "host:23x"}, TETHER_EINVAL, "'host:23x'"},
        {{.endpoints = "::1:2379"}, TETHER_EINVAL, "[IPv6]"},
        {{.endpoints = "[::1]2379"}, TETHER_EINVAL, "[IPv6]"},
        {{.endpoints = "two words:1"}, TETHER_EINVAL, "two words"},
        {{.endpoints = "http://host:1/path"}, TETHER_EINVAL, "path"},
        {{.endpoints = "127.0.0.1:1", .timeout_ms = -2}, TETHER_EINVAL, "-2 ms"},
        {{.endpoints = "127.0.0.1:1", .cert_path = "x"}, TETHER_EINVAL, "key_path"},
        {{.endpoints = "127.0.0.1:1", .key_path = "x"}, TETHER_EINVAL, "cert_path"},
        {{.endpoints = "127.0.0.1:1", .user = "x"}, TETHER_EINVAL, "password"},
        {{.endpoints = "127.0.0.1:1", .password = "x"}, TETHER_EINVAL, "user"},
        {{.endpoints = "127.0.0.1:1", .ca_path = "/no/such/file"}, TETHER_EIO, "/no/such/file"},
        {{.endpoints = "127.0.0.1:1", .ca_path = "/dev/null"}, TETHER_EINVAL, "/dev/null"},
        {{.endpoints = "127.0.0.1:1", .ca_path = "/dev/zero"}, TETHER_ETOOBIG, "/dev/zero"},
        {{.endpoints = "127.0.0.1:1,198.51.100.1", .user = "u", .password = "p"},
         TETHER_EPERM,
         "198.51.100.1:2379 in the clear"},
        {{.endpoints = "127.0.0.1.example:1", .user = "u", .password = "p"},
         TETHER_EPERM,
         "in the clear"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct tether_store_etcd_opts opts = rows[i].opts;
        opts.size = sizeof opts;
        tether_error error = {0};
        assert_status(open_with(&opts, &error), rows[i].status);
        if (!strstr(error.message, rows[i].says))
            fail_msg("'%s' does not say '%s'", error.message, rows[i].says);
    }
    assert_status(open_with(NULL, NULL), TETHER_EINVAL);

    char many[65 * 12 + 1] = "";
    for (int i = 0; i < 65; i++)
        snprintf(many + strlen(many), sizeof many - strlen(many), "%s127.0.0.1:1", i ? "," : "");
    assert_status(open_with(TETHER_STORE_ETCD_OPTS(.endpoints = many), NULL), TETHER_ETOOBIG);
}

/* ---- TLS ------------------------------------------------------------------------------------ */

static void store_works_over_tls(void **state)
{
    (void)state;
    const char *endpoint = tether_test_etcd_endpoint(tls_etcd);
    const char *ca = tether_test_etcd_file(tls_etcd, "ca.crt");
    const char *cert = tether_test_etcd_file(tls_etcd, "client.crt");
    const char *key = tether_test_etcd_file(tls_etcd, "client.key");
    tether_store *store = NULL;
    /* With a user, although authentication is off in this etcd: the client continues without a
     * token. */
    assert_ok(tether_store_etcd_new(
        TETHER_STORE_ETCD_OPTS(.endpoints = endpoint, .ca_path = ca, .cert_path = cert,
                               .key_path = key, .user = "somebody", .password = "secret"),
        &store, err));
    SET("key", "value");
    EXPECT("key", "value");
    ADD("sum", 1, 1);
    tether_test_etcd_restart(tls_etcd);
    ADD("sum", 1, 2);
    tether_store_release(store);

    char url[64];
    snprintf(url, sizeof url, "https://%s/", endpoint);
    assert_ok(open_with(
        TETHER_STORE_ETCD_OPTS(.endpoints = url, .ca_path = ca, .cert_path = cert, .key_path = key),
        err));
}

static void new_fails_when_certificates_do_not_match(void **state)
{
    (void)state;
    const char *endpoint = tether_test_etcd_endpoint(tls_etcd);
    char url[64];
    snprintf(url, sizeof url, "https://%s", endpoint);
    /* The proxy's address is not in the certificate. */
    struct tether_test_proxy *proxy = tether_test_proxy_start(endpoint);
    const char *elsewhere = tether_test_proxy_endpoint(proxy);
    const char *ca = tether_test_etcd_file(tls_etcd, "ca.crt");
    const char *other = tether_test_etcd_file(tls_etcd, "other-ca.crt");
    const char *cert = tether_test_etcd_file(tls_etcd, "client.crt");
    const char *key = tether_test_etcd_file(tls_etcd, "client.key");
    const struct tether_store_etcd_opts rows[] = {
        {.endpoints = endpoint},                                /* in the clear */
        {.endpoints = url, .cert_path = cert, .key_path = key}, /* signed by an unknown authority */
        {.endpoints = url, .ca_path = other, .cert_path = cert, .key_path = key},
        {.endpoints = url, .ca_path = ca}, /* no client certificate */
        {.endpoints = elsewhere, .ca_path = ca, .cert_path = cert, .key_path = key},
    };
    assert_status(open_with(TETHER_STORE_ETCD_OPTS(.endpoints = url, .ca_path = ca,
                                                   .cert_path = key, .key_path = cert),
                            NULL),
                  TETHER_EINVAL); /* certificate and key are exchanged */
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct tether_store_etcd_opts opts = rows[i];
        opts.size = sizeof opts;
        opts.timeout_ms = SHORT;
        tether_error error = {0};
        assert_true(etcd_is_out_of_reach(open_with(&opts, &error)));
        assert_non_null(strstr(error.message, opts.endpoints == elsewhere ? elsewhere : endpoint));
    }
    tether_test_proxy_free(proxy);
}

/* ---- User and password ---------------------------------------------------------------------- */

static const struct tether_store_etcd_opts *as(const char *user,
                                               const char *password,
                                               const char *prefix)
{
    static struct tether_store_etcd_opts opts;
    opts = (struct tether_store_etcd_opts){.size = sizeof opts,
                                           .endpoints = tether_test_etcd_endpoint(etcd),
                                           .prefix = prefix,
                                           .user = user,
                                           .password = password,
                                           .timeout_ms = LIMIT};
    return &opts;
}

static void add_user(struct tether__etcd *client, char *name, char *password, char *role)
{
    TetherTestEtcd__AuthUserAddRequest user = TETHER_TEST_ETCD__AUTH_USER_ADD_REQUEST__INIT;
    user.name = name;
    user.password = password;
    etcd_admin(client, "Auth/UserAdd", &user.base);
    TetherTestEtcd__AuthUserGrantRoleRequest grant =
        TETHER_TEST_ETCD__AUTH_USER_GRANT_ROLE_REQUEST__INIT;
    grant.user = name;
    grant.role = role;
    etcd_admin(client, "Auth/UserGrantRole", &grant.base);
}

/* root has all permissions, worker has those of "allowed/"; a client without a login has none. */
static int turn_on_authentication(void **state)
{
    (void)state;
    struct tether__etcd *client = etcd_client(tether_test_etcd_endpoint(etcd), NULL);
    TetherTestEtcd__AuthUserAddRequest role = TETHER_TEST_ETCD__AUTH_USER_ADD_REQUEST__INIT;
    role.name = "root";
    etcd_admin(client, "Auth/RoleAdd", &role.base);
    role.name = "limited";
    etcd_admin(client, "Auth/RoleAdd", &role.base);
    TetherTestEtcd__Permission permission = TETHER_TEST_ETCD__PERMISSION__INIT;
    permission.permtype = TETHER_TEST_ETCD__PERMISSION__TYPE__READWRITE;
    permission.key = (ProtobufCBinaryData){8, (uint8_t *)"allowed/"};
    permission.range_end = (ProtobufCBinaryData){8, (uint8_t *)"allowed0"};
    TetherTestEtcd__AuthRoleGrantPermissionRequest grant =
        TETHER_TEST_ETCD__AUTH_ROLE_GRANT_PERMISSION_REQUEST__INIT;
    grant.name = "limited";
    grant.perm = &permission;
    etcd_admin(client, "Auth/RoleGrantPermission", &grant.base);
    add_user(client, "root", "root's secret", "root");
    add_user(client, "worker", "worker's secret", "limited");
    TetherTestEtcd__Nothing enable = TETHER_TEST_ETCD__NOTHING__INIT;
    etcd_admin(client, "Auth/AuthEnable", &enable.base);
    tether__etcd_free(client);
    return 0;
}

static void new_fails_when_user_or_password_is_wrong(void **state)
{
    (void)state;
    tether_error error = {0};
    assert_status(open_with(as("root", "wrong", NULL), &error), TETHER_EAUTH);
    assert_null(strstr(error.message, "wrong"));
    assert_status(open_with(as("nobody", "root's secret", NULL), NULL), TETHER_EAUTH);
    assert_ok(open_with(as("root", "root's secret", NULL), err));

    tether_store *store = NULL;
    tether_status st = tether_store_etcd_new(as(NULL, NULL, "allowed/"), &store, NULL);
    if (st == TETHER_OK) /* without a login only a lease can be taken */
        st = tether_store_set(store, "key", tether_bytes_str("x"), LIMIT, NULL);
    assert_status(st, TETHER_EAUTH);
    tether_store_release(store);
}

static void password_of_a_url_comes_from_the_environment(void **state)
{
    (void)state;
    static const struct {
        const char *password;
        tether_status expected;
    } tries[] = {{"worker's secret", TETHER_OK}, {"wrong", TETHER_EAUTH}, {NULL, TETHER_EINVAL}};
    char url[256];
    snprintf(url, sizeof url, "etcd://%s/allowed/url?rank=0&world_size=1&user=worker",
             tether_test_etcd_endpoint(etcd));
    for (size_t i = 0; i < sizeof tries / sizeof tries[0]; i++) {
        struct tether_world world = {0};
        tether_error error = {0};
        tries[i].password ? setenv("TETHER_ETCD_PASSWORD", tries[i].password, 1)
                          : unsetenv("TETHER_ETCD_PASSWORD");
        tether_status st = tether_rendezvous(url, -1, -1, LIMIT, &world, &error);
        unsetenv("TETHER_ETCD_PASSWORD");
        if (st != tries[i].expected)
            fail_msg("password %zu: %s: %s", i, tether_status_name(st), error.message);
        tether_world_fini(&world);
    }
}

static void calls_fail_when_user_lacks_permission(void **state)
{
    (void)state;
    tether_store *store = NULL;
    assert_ok(tether_store_etcd_new(as("worker", "worker's secret", "allowed/"), &store, err));
    const char *keys[] = {"key", "queue"};
    int64_t count;
    SET("key", "value");
    ADD("sum", 1, 1);
    assert_ok(tether_store_queue_push(store, "queue", tether_bytes_str("x"), LIMIT, err));
    assert_ok(tether_store_wait(store, keys, 2, LIMIT, err));
    assert_ok(tether_store_barrier(store, "barrier", 1, LIMIT, err));
    assert_ok(tether_store_num_keys(store, LIMIT, &count, err));
    assert_int_equal(count, 2);
    store = tether_store_release(store);

    assert_ok(tether_store_etcd_new(as("worker", "worker's secret", "other/"), &store, err));
    assert_status(tether_store_set(store, "key", tether_bytes_str("x"), LIMIT, NULL), TETHER_EPERM);
    assert_status(tether_store_wait(store, keys, 1, LIMIT, NULL), TETHER_EPERM);
    tether_store_release(store);
}

static void call_get(struct run *run)
{
    run->status = tether_store_get(run->store, "late", LIMIT, &run->value, &run->error);
}

static void call_add(struct run *run)
{
    run->status = tether_store_add(run->store, "restarts", 1, LIMIT, &run->number, &run->error);
}

/* A restarted etcd does not accept the tokens that it has given before. */
static void token_is_renewed_when_etcd_has_restarted(void **state)
{
    (void)state;
    tether_store *store = NULL;
    assert_ok(tether_store_etcd_new(as("worker", "worker's secret", "allowed/"), &store, err));
    struct run waiter = {.store = store, .call = call_get};
    run_start(&waiter);
    ADD("restarts", 1, 1);
    tether_test_etcd_restart(etcd);
    struct run adders[4];
    for (int i = 0; i < 4; i++) {
        adders[i] = (struct run){.store = store, .call = call_add};
        run_start(&adders[i]);
    }
    for (int i = 0; i < 4; i++)
        run_join(&adders[i]);
    ADD("restarts", 0, 5);
    SET("late", "value");
    run_join(&waiter);
    tether_buf_fini(&waiter.value);
    tether_store_release(store);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    etcd = tether_test_etcd_start(NULL);
    tls_etcd = tether_test_etcd_start(&(struct tether_test_etcd_opts){.tls = true});
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(new_refuses_invalid_options),
        cmocka_unit_test(store_works_over_tls),
        cmocka_unit_test(new_fails_when_certificates_do_not_match),
        cmocka_unit_test(new_fails_when_user_or_password_is_wrong),
        cmocka_unit_test(password_of_a_url_comes_from_the_environment),
        cmocka_unit_test(calls_fail_when_user_lacks_permission),
        cmocka_unit_test(token_is_renewed_when_etcd_has_restarted),
    };
    int failed =
        cmocka_run_group_tests_name("etcd store, security", tests, turn_on_authentication, NULL);
    tether_test_etcd_free(tls_etcd);
    tether_test_etcd_free(etcd);
    return failed;
}
