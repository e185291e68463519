/* Credentials, and the names in certificates.
 *
 * Without TLS both ends are plain text. With it, a listener needs a certificate and its key, a
 * dialler the CA that signed them; when the dialler has a certificate of its own it shows it. The
 * listener checks a client's certificate against the CA, and with require_client_cert takes no
 * client without one.
 */
#include <grpc/grpc_security_constants.h>
#include <string.h>

#include "base/alloc.h"
#include "rpc/transport/grpc/grpc.h"

/* Checks a PEM text early: gRPC finds a wrong one only at the first handshake, and reports no
 * details then. */
static tether_status check_pem(const char *pem, const char *kind, const char *what, tether_error *e)
{
    const char *begin = pem ? strstr(pem, "-----BEGIN ") : NULL;
    if (!pem || (begin && strstr(begin, kind)))
        return TETHER_OK;
    return tether_error_set(e, TETHER_EINVAL,
                            "the TLS %s is not PEM text with a \"-----BEGIN ... %s-----\" in it; "
                            "give the content of the file, not its path",
                            what, kind);
}

static tether_status check(const struct tether__grpc *transport,
                           const struct tether__tls *tls,
                           tether_error *reterr)
{
    tether_status st = check_pem(tls->ca_pem, "CERTIFICATE", "CA", reterr);
    if (st == TETHER_OK)
        st = check_pem(tls->cert_pem, "CERTIFICATE", "certificate", reterr);
    if (st == TETHER_OK)
        st = check_pem(tls->key_pem, "PRIVATE KEY", "key", reterr);
    if (st != TETHER_OK)
        return st;
    if (!tls->cert_pem != !tls->key_pem)
        return tether_error_set(
            reterr, TETHER_EINVAL, "TLS has a %s without its %s; give both or neither",
            tls->cert_pem ? "certificate" : "key", tls->cert_pem ? "key" : "certificate");
    if (transport->listen && !tls->cert_pem)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "a worker that listens with TLS needs a certificate and its key");
    if (tls->require_client_cert && !tls->ca_pem)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "client certificates are required but no CA is given to check "
                                "them against");
    return TETHER_OK;
}

static grpc_ssl_client_certificate_request_type client_cert_policy(const struct tether__tls *tls)
{
    if (tls->one_way)
        return GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE;
    if (tls->require_client_cert)
        return GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY;
    return tls->ca_pem ? GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY
                       : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE;
}

tether_status tether__grpc_credentials(struct tether__grpc *transport,
                                       const struct tether__tls *tls,
                                       tether_error *reterr)
{
    if (!tls) {
        transport->dial_credentials = grpc_insecure_credentials_create();
        transport->listen_credentials = grpc_insecure_server_credentials_create();
        return TETHER_OK;
    }
    tether_status st = check(transport, tls, reterr);
    if (st != TETHER_OK)
        return st;
    if (tls->server_name) {
        transport->server_name = tether__strdup(tls->server_name);
        if (!transport->server_name)
            return tether_error_set(reterr, TETHER_ENOMEM, "out of memory");
    }
    grpc_ssl_pem_key_cert_pair own = {tls->key_pem, tls->cert_pem};
    transport->has_tls = true;
    transport->requires_cert = tls->require_client_cert && !tls->one_way;
    transport->has_own_cert = tls->cert_pem;
    transport->own_cert_is_foreign = tls->own_is_foreign;
    transport->own_cert_ends_at = tls->own_ends_at;
    transport->dial_credentials =
        grpc_ssl_credentials_create_ex(tls->ca_pem, tls->cert_pem ? &own : NULL, NULL, NULL);
    if (tls->cert_pem)
        transport->listen_credentials = grpc_ssl_server_credentials_create_ex(
            tls->ca_pem, &own, 1, client_cert_policy(tls), NULL);
    if (!transport->dial_credentials || (tls->cert_pem && !transport->listen_credentials))
        return tether_error_set(reterr, TETHER_EINVAL, "gRPC does not accept the TLS settings");
    return TETHER_OK;
}

/* Writes the DNS entries of subjectAltName to `ret_names` unless it is NULL; returns their number.
 */
static size_t list_names(const grpc_auth_context *context, const char **ret_names)
{
    grpc_auth_property_iterator it =
        grpc_auth_context_find_properties_by_name(context, GRPC_PEER_DNS_PROPERTY_NAME);
    const grpc_auth_property *p;
    size_t n = 0;
    while ((p = grpc_auth_property_iterator_next(&it)))
        if (strlen(p->value) == p->value_length) { /* skip a name with a NUL inside: it is an
                                                      attempt to impersonate another name */
            if (ret_names)
                ret_names[n] = p->value;
            n++;
        }
    return n;
}

/* Without memory the names are missing, so the client is refused. */
const char *const *tether__grpc_names_init(struct tether__grpc_names *names, grpc_call *call)
{
    static const char *const none[] = {NULL};
    *names = (struct tether__grpc_names){.context = grpc_call_auth_context(call)};
    if (!names->context || !grpc_auth_context_peer_is_authenticated(names->context))
        return NULL;
    size_t n = list_names(names->context, NULL);
    names->names = tether__calloc(n + 1, sizeof *names->names);
    if (!names->names)
        return none;
    list_names(names->context, names->names);
    return names->names;
}

void tether__grpc_names_fini(struct tether__grpc_names *names)
{
    tether__free(names->names);
    if (names->context)
        grpc_auth_context_release(names->context);
}
