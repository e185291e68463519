/* A certificate that expires while its worker runs: that worker is told so, also where the other
 * end only hangs up. The test issues its certificates itself, since some last for seconds. */
#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "rendezvous/store.h"
#include "rpc/agent.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"
#include "tests/rpc/lib/echo.h"

#define LIMIT TETHER_TEST_LIMIT_MS

enum { LONG_S = 24 * 3600, PEM_SIZE = 4096 };

struct identity {
    X509 *cert;
    EVP_PKEY *key;
    int64_t ends_at; /* seconds since 1970 */
    char cert_pem[PEM_SIZE], key_pem[PEM_SIZE];
};

static void take_pem(BIO *bio, char pem[PEM_SIZE])
{
    int n = BIO_read(bio, pem, PEM_SIZE - 1);
    assert_in_range(n, 1, PEM_SIZE - 2);
    pem[n] = '\0';
    BIO_free(bio);
}

static void add_extension(X509 *cert, int nid, const char *value)
{
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, NULL, nid, value);
    assert_non_null(extension);
    assert_int_equal(X509_add_ext(cert, extension, -1), 1);
    X509_EXTENSION_free(extension);
}

/* Valid since an hour, for `seconds` from now. `ca` NULL: a CA of its own. */
static void issue(struct identity *id, const struct identity *ca, const char *name, int seconds)
{
    static long serial;
    char names[128];
    id->cert = X509_new();
    id->key = EVP_EC_gen("P-256");
    assert_non_null(id->cert);
    assert_non_null(id->key);
    X509_set_version(id->cert, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(id->cert), ++serial);
    id->ends_at = time(NULL) + seconds;
    ASN1_TIME_set(X509_getm_notBefore(id->cert), time(NULL) - 3600);
    ASN1_TIME_set(X509_getm_notAfter(id->cert), (time_t)id->ends_at);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(id->cert), "CN", MBSTRING_ASC,
                               (const unsigned char *)name, -1, -1, 0);
    X509_set_issuer_name(id->cert, X509_get_subject_name(ca ? ca->cert : id->cert));
    X509_set_pubkey(id->cert, id->key);
    snprintf(names, sizeof names, "DNS:%s,IP:127.0.0.1", name);
    if (ca)
        add_extension(id->cert, NID_subject_alt_name, names);
    else
        add_extension(id->cert, NID_basic_constraints, "critical,CA:TRUE");
    assert_true(X509_sign(id->cert, ca ? ca->key : id->key, EVP_sha256()) > 0);
    BIO *bio = BIO_new(BIO_s_mem());
    assert_int_equal(PEM_write_bio_X509(bio, id->cert), 1);
    take_pem(bio, id->cert_pem);
    bio = BIO_new(BIO_s_mem());
    assert_int_equal(PEM_write_bio_PrivateKey(bio, id->key, NULL, NULL, 0, NULL, NULL), 1);
    take_pem(bio, id->key_pem);
}

static void fini(struct identity *id)
{
    X509_free(id->cert);
    EVP_PKEY_free(id->key);
}

static tether_status make(tether_store *store,
                          const char *name,
                          const struct identity *id,
                          const struct identity *ca,
                          tether_agent **ret_agent,
                          tether_error *reterr)
{
    return tether_agent_new(
        TETHER_AGENT_OPTS(.name = name, .store = store, .tls_ca_pem = ca->cert_pem,
                          .tls_cert_pem = id->cert_pem, .tls_key_pem = id->key_pem, .threads = 2,
                          .lease_ms = 1000),
        ret_agent, reterr);
}

static void start(tether_agent *agent)
{
    tether_error err = {0};
    if (tether_agent_register_inline(agent, "echo", tether_test_echo, NULL, &err) ||
        tether_agent_start(agent, &err))
        fail_msg("%s", err.message);
}

static void caller_is_told_when_its_certificate_expires_while_it_runs(void **state)
{
    (void)state;
    struct identity ca, server, lasting, brief;
    tether_agent *callee = NULL, *sound = NULL, *caller = NULL;
    tether_store *store = NULL;
    tether_error err = {0};
    assert_int_equal(tether_store_hash_new(&store, NULL), TETHER_OK);
    issue(&ca, NULL, "authority", LONG_S);
    issue(&server, &ca, "callee", LONG_S);
    issue(&lasting, &ca, "sound", LONG_S);
    assert_int_equal(make(store, "callee", &server, &ca, &callee, &err), TETHER_OK);
    assert_int_equal(make(store, "sound", &lasting, &ca, &sound, &err), TETHER_OK);
    start(callee);
    start(sound);
    if (tether_rpc_sync(sound, "callee", "echo", NULL, LIMIT, NULL, &err) != TETHER_OK)
        fail_msg("%s", err.message);

    /* On a busy machine it may have expired before the options are checked. */
    for (int seconds = 2; !caller; seconds *= 2) {
        issue(&brief, &ca, "caller", seconds);
        tether_status st = make(store, "caller", &brief, &ca, &caller, &err);
        if (st != TETHER_OK && (st != TETHER_EINVAL || seconds > 60))
            fail_msg("%s", err.message);
        if (st != TETHER_OK)
            fini(&brief);
    }
    start(caller);
    while (time(NULL) < brief.ends_at)
        tether__sleep_ns(50 * TETHER__NS_PER_MS);
    tether_status st = tether_rpc_sync(caller, "callee", "echo", NULL, LIMIT, NULL, &err);
    if (st != TETHER_EPERM || !strstr(err.message, "certificate of this worker has expired") ||
        !strstr(err.message, "renew it") || !strstr(err.message, "'callee'"))
        fail_msg("%s: %s", tether_status_name(st), err.message);

    tether_agent_release(caller);
    tether_agent_release(sound);
    tether_agent_release(callee);
    tether_store_release(store);
    fini(&brief);
    fini(&lasting);
    fini(&server);
    fini(&ca);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(caller_is_told_when_its_certificate_expires_while_it_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
