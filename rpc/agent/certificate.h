/* Checks the certificate of this worker at its start, since other workers that refuse it later do
 * not always say why. */
#ifndef TETHER_RPC_AGENT_CERTIFICATE_H
#define TETHER_RPC_AGENT_CERTIFICATE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* Returns TETHER_EINVAL if the certificate has expired. Text that is no certificate passes: the
 * transport refuses it. */
tether_status tether__certificate_check(const char *cert_pem,
                                        const char *worker,
                                        tether_error *reterr);

/* Returns when the first certificate of `cert_pem` expires, in seconds since 1970; 0: not known. */
int64_t tether__certificate_ends_at(const char *cert_pem);

/* Returns whether a CA of `ca_pem` has signed the first certificate of `cert_pem`, directly or by
 * way of the certificates behind it. */
bool tether__certificate_is_signed_by(const char *cert_pem, const char *ca_pem);

#endif
