/* Certificates for tests, as PEM text; make_certs.sh makes them.
 *
 * right_ca has signed alpha (for "alpha", "localhost" and 127.0.0.1), beta (for "beta" and
 * "beta.example") and delta (for "delta" and 127.0.0.1); wrong_ca has signed gamma (for "gamma" and
 * 127.0.0.1). right_ca has also signed zeta, whose name is anywhere but in a DNS entry, and many,
 * which has 42 of them, "omega" last; and expired, whose time is over.
 */
#ifndef TETHER_TESTS_RPC_CERTS_H
#define TETHER_TESTS_RPC_CERTS_H

extern const char cert_right_ca[], cert_wrong_ca[];
extern const char cert_alpha[], key_alpha[];
extern const char cert_beta[], key_beta[];
extern const char cert_gamma[], key_gamma[];
extern const char cert_delta[], key_delta[];
extern const char cert_zeta[], key_zeta[];
extern const char cert_expired[], key_expired[];
extern const char cert_many[], key_many[];

#endif
