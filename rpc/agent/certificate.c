/* The certificate of this worker. See certificate.h. */
#include "rpc/agent/certificate.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <time.h>

/* Returns the certificates of a PEM text, in order; NULL: there are none, or no memory. */
static STACK_OF(X509) * read_all(const char *pem)
{
    BIO *bio = BIO_new_mem_buf(pem, -1);
    STACK_OF(X509) *all = sk_X509_new_null();
    for (X509 *one; bio && all && (one = PEM_read_bio_X509(bio, NULL, NULL, NULL));)
        if (!sk_X509_push(all, one))
            X509_free(one);
    ERR_clear_error(); /* OpenSSL reports the end of the text as an error */
    BIO_free(bio);
    if (sk_X509_num(all) > 0)
        return all;
    sk_X509_free(all);
    return NULL;
}

tether_status tether__certificate_check(const char *cert_pem,
                                        const char *worker,
                                        tether_error *reterr)
{
    STACK_OF(X509) *certs = read_all(cert_pem);
    tether_status st = TETHER_OK;
    struct tm end;
    char text[32] = "";
    if (!certs)
        return TETHER_OK;
    const ASN1_TIME *not_after = X509_get0_notAfter(sk_X509_value(certs, 0));
    if (X509_cmp_current_time(not_after) < 0 && ASN1_TIME_to_tm(not_after, &end)) {
        strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &end);
        st =
            tether_error_set(reterr, TETHER_EINVAL,
                             "the TLS certificate of worker '%s' has expired (%s), and others will "
                             "refuse it: renew it",
                             worker ? worker : "", text);
    }
    sk_X509_pop_free(certs, X509_free);
    return st;
}

int64_t tether__certificate_ends_at(const char *cert_pem)
{
    STACK_OF(X509) *certs = read_all(cert_pem);
    struct tm end;
    int64_t ends_at = 0;
    if (certs && ASN1_TIME_to_tm(X509_get0_notAfter(sk_X509_value(certs, 0)), &end))
        ends_at = timegm(&end);
    sk_X509_pop_free(certs, X509_free);
    return ends_at;
}

bool tether__certificate_is_signed_by(const char *cert_pem, const char *ca_pem)
{
    STACK_OF(X509) *certs = read_all(cert_pem), *cas = read_all(ca_pem);
    X509_STORE *store = X509_STORE_new();
    X509_STORE_CTX *context = X509_STORE_CTX_new();
    bool is_signed = false;
    if (certs && cas && store && context &&
        X509_STORE_CTX_init(context, store, sk_X509_value(certs, 0), certs)) {
        X509_STORE_CTX_set0_trusted_stack(context, cas);
        is_signed = X509_verify_cert(context) == 1;
    }
    ERR_clear_error();
    X509_STORE_CTX_free(context);
    X509_STORE_free(store);
    sk_X509_pop_free(cas, X509_free);
    sk_X509_pop_free(certs, X509_free);
    return is_signed;
}
