/* The store on etcd v3 (3.4 or later): for groups that need a replicated store, or run etcd anyway.
 *
 *     tether_store *store = NULL;
 *     tether_error err = {0};
 *     if (tether_store_etcd_new(TETHER_STORE_ETCD_OPTS(.endpoints = "127.0.0.1:2379",
 *                                                      .prefix = "jobs/42/"),
 *                               &store, &err) == TETHER_OK)
 *         tether_store_set(store, "greeting", tether_bytes_str("hello"), TETHER_DEFAULT_MS, &err);
 *     store = tether_store_release(store);
 *
 * A read sees every write of any client that returned before it. Waiting calls watch keys; they do
 * not poll. Every call continues through a restart of etcd, or of a member, until its timeout. A
 * change that was sent twice because a reply got lost is applied once.
 *
 * Limits of etcd: a value must fit into one request, 1.5 MiB by default (TETHER_ETOOBIG). multi_set
 * is one transaction up to 126 keys and 1 MiB; beyond that it is several. Concurrent pushes to a
 * queue may be ordered either way; other elements keep their order. A call with a timeout of 0 does
 * not wait for keys, but has a few seconds to reach etcd.
 *
 * Keys in etcd, all under the prefix: k/<key> a value, q/<key>\0<element> an element of a queue,
 * b/<key> and d/<key> a barrier (arrivals, done), t/<key>\0... tickets of callers that wait for
 * their turn, r/... receipts. Tickets and receipts are deleted with the lease of their client.
 * num_keys and list_keys report values only.
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
    size_t size; /* set by TETHER_STORE_ETCD_OPTS to sizeof(struct tether_store_etcd_opts) */

    /* "host:port", "[IPv6]:port", "https://host:port" or "unix:/path". Separate several members of
     * one cluster with commas: the client tries the next when one is not reachable. The default
     * port is 2379. */
    const char *endpoints;
    const char *prefix; /* NULL: "tether/". Stores don't see each other when their prefixes differ
                           and neither starts with the other. */

    /* TLS is used if ca_path, cert_path or an "https://" endpoint is given. All paths are of
     * PEM files. `ca_path` has the authority that signs the servers; NULL: the system's
     * authorities. */
    const char *ca_path;
    const char *cert_path, *key_path; /* certificate and key of this client, if etcd asks for one */

    const char *user, *password; /* give both or neither */
    bool insecure;               /* allow sending the password without TLS to another host */

    /* time to connect, and later the meaning of TETHER_DEFAULT_MS; 0: 300 s, -1: for ever */
    int timeout_ms;
};

#define TETHER_STORE_ETCD_OPTS(...) TETHER__OPTS(tether_store_etcd_opts, __VA_ARGS__)

/* Connects and logs in; retries until the timeout. Any thread; blocks.
 *
 * TETHER_EINVAL (an endpoint, a certificate without its key ...), TETHER_EIO (a file that can't be
 * read), TETHER_EPERM (a password in the clear without `insecure`), TETHER_EAUTH (wrong user or
 * password), TETHER_EUNAVAILABLE (no endpoint answers, or not over TLS with these certificates).
 * `*ret_store` is yours to release; `opts` is borrowed. On error there is nothing to undo. */
TETHER_API tether_status tether_store_etcd_new(const struct tether_store_etcd_opts *opts,
                                               tether_store **ret_store,
                                               tether_error *reterr);

TETHER_END_DECLS

#endif
