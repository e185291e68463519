/* What the files of the TCP store's client share: store_tcp.c (making it, its connections) and
 * store_tcp_calls.c (its calls). */
#ifndef TETHER_RENDEZVOUS_STORE_TCP_INTERNAL_H
#define TETHER_RENDEZVOUS_STORE_TCP_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/list.h"
#include "rendezvous/net.h"
#include "rendezvous/store_conn.h"
#include "rendezvous/store_tcp.h"

/* What servers of the same dialect may lack. */
enum tether__store_part {
    TETHER__STORE_PART_QUEUES,
    TETHER__STORE_PART_LIST_KEYS,
    TETHER__STORE_PART_BARRIER,
    TETHER__STORE_N_PARTS,
};

struct tether__store_tcp {
    /* immutable once made */
    char *host;
    int port;
    struct tether__net_addr addr; /* the one that answered */
    tether_store_dialect dialect;
    bool has_ping;                           /* V of 2.5 and later, T */
    struct tether_store_limits limits;       /* ours, and the server's as far as it has told */
    tether_store_server *server;             /* ours, when we host */
    atomic_int parts[TETHER__STORE_N_PARTS]; /* what is known of them; store_probe.c */
    /* under mu, a leaf */
    struct tether__list idle; /* connections between calls, last used first */
    size_t n_idle;
    pthread_mutex_t mu;
};

extern const struct tether_store_ops tether__store_tcp_ops;

/* Makes `fd` (TAKEN) a connection that speaks `dialect` (AUTO: what the server has) and lowers
 * `limits` to what the server has told. `without_ping`: in the way of PyTorch 2.2 to 2.4. */
tether_status tether__store_tcp_handshake(int fd,
                                          tether_store_dialect dialect,
                                          bool without_ping,
                                          int64_t deadline,
                                          struct tether_store_limits *limits,
                                          struct tether__store_conn **ret_conn,
                                          tether_error *reterr);

/* A connection for one call, which has until `deadline`: an idle one (`*ret_reused`: its server may
 * have gone since), else a new one. */
tether_status tether__store_tcp_take(struct tether__store_tcp *store,
                                     int64_t deadline,
                                     struct tether__store_conn **ret_conn,
                                     bool *ret_reused,
                                     tether_error *reterr);

/* A new one that speaks `dialect`, as a rule the store's. */
tether_status tether__store_tcp_dial(struct tether__store_tcp *store,
                                     tether_store_dialect dialect,
                                     int64_t deadline,
                                     struct tether__store_conn **ret_conn,
                                     tether_error *reterr);

/* Gives it back: to be used again, or, when its status is not TETHER_OK, closed; a server that is
 * gone takes the idle ones with it. */
void tether__store_tcp_give(struct tether__store_tcp *store, struct tether__store_conn *conn);

/* Counts this store as joined; a host waits until `world_size` are (store_join.c). `timeout_ms` is
 * what the caller was given in all, for the message. */
tether_status tether__store_tcp_join(struct tether__store_tcp *store,
                                     int world_size,
                                     int timeout_ms,
                                     int64_t deadline,
                                     tether_error *reterr);

/* TETHER_ENOTSUP when the server is known to lack `part`. */
tether_status tether__store_part_check(const struct tether__store_tcp *store,
                                       enum tether__store_part part,
                                       tether_error *reterr);

/* Finds out why a call that needs `part` ended with `st`: TETHER_ENOTSUP when the server lacks the
 * part, otherwise `st`. */
tether_status tether__store_part_explain(struct tether__store_tcp *store,
                                         enum tether__store_part part,
                                         tether_status st,
                                         int64_t deadline,
                                         tether_error *reterr);

void tether__store_tcp_destroy(void *impl);

/* The server of a host, shared with other tenants of its port where asked for (store_tenant.c). */
tether_status tether__store_tenant_new(const struct tether_store_server_opts *opts,
                                       bool multi_tenant,
                                       tether_store_server **ret_server,
                                       tether_error *reterr);
void tether__store_tenant_release(tether_store_server *server); /* NULL is fine */

#endif
