/* Mistakes with certificates, tokens and lists. */
#include <stdio.h>

#include "tests/errors/mistakes.h"
#include "tests/errors/pair.h"
#include "tests/rpc/lib/certs.h"

#define TLS(ca, name) \
    .tls_ca_pem = cert_##ca, .tls_cert_pem = cert_##name, .tls_key_pem = key_##name

/* `a` calls "echo" on `b`. */
static tether_status call(struct tether_agent_opts a, struct tether_agent_opts b, tether_error *err)
{
    return pair_call(a, b, "b", "echo", "", PATIENCE_MS, err);
}

MISTAKE(plain_text_beyond_this_host)
{
    return make_agent_alone(OPTS(.listen = "0.0.0.0:0"), err);
}
MISTAKE(metrics_beyond_this_host)
{
    return make_agent_alone(OPTS(.metrics_listen = "0.0.0.0:0"), err);
}
MISTAKE(certificate_without_key)
{
    return make_agent_alone(OPTS(.tls_cert_pem = cert_alpha), err);
}
MISTAKE(key_without_certificate)
{
    return make_agent_alone(OPTS(.tls_key_pem = key_alpha), err);
}
MISTAKE(certificate_that_is_not_there)
{
    return make_agent_alone(OPTS(.tls_ca_pem = cert_right_ca, .tls_cert_file = "/nowhere/alpha.pem",
                                 .tls_key_file = "/nowhere/alpha.key"),
                            err);
}
MISTAKE(certificate_file_that_is_empty)
{
    return make_agent_alone(OPTS(.tls_ca_pem = cert_right_ca, .tls_cert_file = "/dev/null",
                                 .tls_key_file = "/dev/null"),
                            err);
}
MISTAKE(certificate_that_is_none)
{
    return make_agent_alone(
        OPTS(.tls_ca_pem = cert_right_ca, .tls_cert_pem = "hello", .tls_key_pem = key_alpha), err);
}
MISTAKE(token_that_is_empty)
{
    return make_agent_alone(OPTS(.token = ""), err);
}
MISTAKE(token_missing)
{
    return call(OPTS(0), OPTS(.token = "sesame"), err);
}

MISTAKE(name_not_allowed)
{
    static const char *const only[] = {"c"};
    return call(OPTS(0), OPTS(.allowed_peers = only, .n_allowed_peers = 1), err);
}

MISTAKE(certificate_of_another_ca)
{
    return call(OPTS(TLS(wrong_ca, gamma)), OPTS(TLS(right_ca, alpha)), err);
}
MISTAKE(certificate_of_another_worker)
{
    return call(OPTS(TLS(right_ca, alpha)), OPTS(TLS(right_ca, alpha)), err);
}
MISTAKE(certificate_that_the_other_does_not_trust)
{
    return call(
        OPTS(.tls_ca_pem = cert_right_ca, .tls_cert_pem = cert_gamma, .tls_key_pem = key_gamma),
        OPTS(TLS(right_ca, alpha)), err);
}
MISTAKE(certificate_of_a_ca_that_the_other_does_not_know)
{
    static char both_cas[8192];
    snprintf(both_cas, sizeof both_cas, "%s%s", cert_right_ca, cert_wrong_ca);
    return call(OPTS(.tls_ca_pem = both_cas, .tls_cert_pem = cert_gamma, .tls_key_pem = key_gamma),
                OPTS(TLS(right_ca, alpha)), err);
}
MISTAKE(certificate_for_another_address)
{
    return call(OPTS(TLS(right_ca, alpha)), OPTS(TLS(right_ca, beta)), err);
}
MISTAKE(certificate_that_has_expired)
{
    return make_agent_alone(OPTS(TLS(right_ca, expired)), err);
}
MISTAKE(tls_at_the_other_end_only)
{
    return call(OPTS(0), OPTS(TLS(right_ca, alpha)), err);
}
MISTAKE(tls_at_this_end_only)
{
    return call(OPTS(TLS(right_ca, alpha)), OPTS(0), err);
}
MISTAKE(one_way_tls_at_this_end_only)
{
    struct tether_agent_opts with_tls =
        OPTS(TLS(right_ca, alpha), .tls_one_way = true, .token = "sesame");
    struct tether_agent_opts without = OPTS(.token = "sesame");
    return call(with_tls, without, err);
}

const struct mistake security_mistakes[] = {
    ROW(plain_text_beyond_this_host, EPERM, "in plain text", "'0.0.0.0:0'", "or set `insecure`"),
    ROW(metrics_beyond_this_host,
        EPERM,
        "others can read",
        "metrics on '0.0.0.0:0'",
        "set `insecure`"),
    ROW(certificate_without_key, EINVAL, "without its key", "certificate", "give tls_key_file"),
    ROW(key_without_certificate, EINVAL, "without its certificate", "key", "give tls_cert_file"),
    ROW(certificate_that_is_not_there,
        EIO,
        "No such file",
        "'/nowhere/alpha.pem' (tls_cert_file)",
        "give a PEM file"),
    ROW(certificate_file_that_is_empty, EINVAL, "it is empty", "(tls_cert_file)", "PEM file"),
    ROW(certificate_that_is_none, EINVAL, "is not PEM text", "certificate", "give the content"),
    ROW(token_that_is_empty, EINVAL, "let everybody in", "the token", "give one"),
    ROW(token_missing,
        EAUTH,
        "has no token",
        "'b'",
        "give all workers of the group the same token"),
    ROW(name_not_allowed, EPERM, "not among", "the allowed_peers of 'b'", "add it there"),
    ROW(certificate_of_another_ca,
        EPERM,
        "cannot be verified",
        "'b' cannot be reached: the certificate of 127.0.0.1:",
        "tls_ca_file"),
    ROW(certificate_that_the_other_does_not_trust,
        EPERM,
        "is not signed by a CA in its own tls_ca_file",
        "'b' cannot be reached: 127.0.0.1:",
        "give it one that the others trust"),
    ROW(certificate_of_a_ca_that_the_other_does_not_know,
        ETIMEOUT, /* the other only hangs up, and that can have many reasons */
        "Socket closed",
        "'b'",
        "does it trust the CA of our certificate"),
    ROW(certificate_for_another_address,
        EPERM,
        "is not for this address",
        "'b' cannot be reached: the certificate of 127.0.0.1:",
        "subjectAltName"),
    ROW(certificate_that_has_expired,
        EINVAL,
        "has expired",
        "the TLS certificate of worker 'a'",
        "renew it"),
    ROW(certificate_of_another_worker,
        EPERM,
        "certificate of another name",
        "'b'",
        "subjectAltName"),
    ROW(tls_at_the_other_end_only,
        EPERM,
        "has TLS, but this worker has none",
        "'b' cannot be reached: 127.0.0.1:",
        "give both ends a certificate, or neither"),
    ROW(tls_at_this_end_only,
        EPERM,
        "speaks plain text, but this worker has TLS",
        "'b' cannot be reached: 127.0.0.1:",
        "give both ends a certificate, or neither"),
    ROW(one_way_tls_at_this_end_only,
        EPERM,
        "speaks plain text, but this worker has TLS",
        "'b' cannot be reached: 127.0.0.1:",
        "give both ends a certificate, or neither"),
    {0},
};
