/* The store on etcd v3 (3.4 or later): for those who outgrow one store process, or run etcd anyway.
 *
 *     tether_store *store = NULL;
 *     tether_error err = {0};
 *     if (tether_store_etcd_new(TETHER_STORE_ETCD_OPTS(.endpoints = "127.0.0.1:2379",
 *                                                      .prefix = "jobs/42/"),
 *                               &store, &err) == TETHER_OK)
 *         tether_store_set(store, "greeting", tether_bytes_str("hello"), TETHER_DEFAULT_MS, &err);
 *     store = tether_store_release(store);
 *
 * Reads see every write that returned before them, by whomever. Waiting is a watch: etcd tells, we
 * don't ask. Every call goes on through a restart of etcd, or a member of it, until its time is up;
 * what was sent twice because a reply got lost is applied once.
 *
 * What etcd sets: a value has a place in one request, 1.5 MiB unless etcd was told otherwise
 * (TETHER_ETOOBIG). multi_set is one transaction up to 126 keys and 1 MiB; beyond that, several.
 * Pushes to a queue that overlap in time may come out in either order; others come out as they
 * went in. A call with a time-out of 0 does not wait for keys, but has a few seconds to reach etcd.
 *
 * In etcd, all is under the prefix: k/<key> a value, q/<key>\0<element> an element of a queue,
 * b/<key> and d/<key> a barrier (times come, done), r/... receipts, gone with the client that wrote
 * them. num_keys and list_keys tell of values.
 */
#ifndef TETHER_RENDEZVOUS_STORE_ETCD_H
#define TETHER_RENDEZVOUS_STORE_ETCD_H

#include <stdbool.h>
#include <stddef.h>

#include "base/macros.h"
#include "base/status.h"
#include "rendezvous/store.h"

TETHER_BEGIN_DECLS

struct tether_store_etcd_opts {
    size_t size; /* sizeof(struct tether_store_etcd_opts); TETHER_STORE_ETCD_OPTS fills it */

    /* "host:port", "[IPv6]:port", "https://host:port" or "unix:/path"; several with commas, all of
     * one cluster: when one can't be reached, the next is asked. The port may be left out (2379).
     */
    const char *endpoints;
    const char *prefix; /* NULL: "tether/". Stores don't see each other when their prefixes differ
                           and neither starts with the other. */

    /* TLS, asked for by ca_path, cert_path or "https://". PEM files. */
    const char *ca_path;              /* who signs the servers; NULL: the system's authorities */
    const char *cert_path, *key_path; /* who we are, if etcd wants to know */

    const char *user, *password; /* both or none */
    bool insecure; /* may send the password without TLS to another host than this one */

    int timeout_ms; /* for connecting, and what TETHER_DEFAULT_MS means from then on; 0: 300 s,
                       -1: for ever */
};

#define TETHER_STORE_ETCD_OPTS(...) TETHER__OPTS(tether_store_etcd_opts, __VA_ARGS__)

/* Connects and logs in; tries again until the time is up. Any thread; blocks.
 *
 * TETHER_EINVAL (an endpoint, a certificate without its key ...), TETHER_EIO (a file that can't be
 * read), TETHER_EPERM (a password in the clear without `insecure`), TETHER_EAUTH (wrong user or
 * password), TETHER_EUNAVAILABLE (no endpoint answers, or not over TLS with these certificates).
 * `*ret_store` is yours to release; `opts` is borrowed. On error nothing is left behind. */
TETHER_API tether_status tether_store_etcd_new(const struct tether_store_etcd_opts *opts,
                                               tether_store **ret_store,
                                               tether_error *reterr);

TETHER_END_DECLS

#endif
