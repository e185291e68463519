/* Shared by the files of the TCP store's client: store.c (the store and its connections), ops.c
 * (its operations), join.c, probe.c and tenant.c. */
#ifndef TETHER_RENDEZVOUS_STORE_TCP_CLIENT_INTERNAL_H
#define TETHER_RENDEZVOUS_STORE_TCP_CLIENT_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/list.h"
#include "net/net.h"
#include "rendezvous/store/op.h"
#include "rendezvous/store/tcp/client/conn.h"
#include "rendezvous/store_tcp.h"

/* Operations that some servers of a dialect lack. */
enum tether__store_part {
    TETHER__STORE_PART_QUEUES,
    TETHER__STORE_PART_LIST_KEYS,
    TETHER__STORE_PART_BARRIER,
    TETHER__STORE_N_PARTS,
};

struct tether__store_tcp {
    /* fields that do not change once the store is made */
    char *host;
    int port;
    struct tether__net_addr addr; /* the address of the server that answered */
    tether_store_dialect dialect;
    bool has_ping; /* the server knows PING: dialect T, and V of PyTorch 2.5 and later */
    struct tether_store_limits
        limits; /* the lower ones of this client's limits and those that the server has announced */
    tether_store_server *server; /* the server, if this store hosts it */
    /* results of probe.c for each part: present, absent or unknown */
    atomic_int parts[TETHER__STORE_N_PARTS];
    /* fields under mu, a leaf lock */
    struct tether__list idle; /* idle connections, last used first */
    size_t n_idle;
    pthread_mutex_t mu;
};

extern const struct tether__store_kind tether__store_tcp_kind;

/* Makes `fd` (TAKEN) a connection in `dialect` (AUTO: the best one of the server) and lowers
 * `limits` to those of the server. `without_ping`: for servers of PyTorch 2.2 to 2.4. */
tether_status tether__store_tcp_handshake(int fd,
                                          tether_store_dialect dialect,
                                          bool without_ping,
                                          int64_t deadline,
                                          struct tether_store_limits *limits,
                                          struct tether__store_conn **ret_conn,
                                          tether_error *reterr);

/* Gives a connection for one call with this deadline: an idle one (`*ret_reused`: the server may
 * have closed it), otherwise a new one. */
tether_status tether__store_tcp_take(struct tether__store_tcp *store,
                                     int64_t deadline,
                                     struct tether__store_conn **ret_conn,
                                     bool *ret_reused,
                                     tether_error *reterr);

/* Opens a new connection in `dialect`, usually that of the store. */
tether_status tether__store_tcp_dial(struct tether__store_tcp *store,
                                     tether_store_dialect dialect,
                                     int64_t deadline,
                                     struct tether__store_conn **ret_conn,
                                     tether_error *reterr);

/* Returns a connection: keeps it as idle, or closes it when its status is not TETHER_OK. After
 * TETHER_EUNAVAILABLE also closes the idle ones. */
void tether__store_tcp_give(struct tether__store_tcp *store, struct tether__store_conn *conn);

/* join.c: counts this store as joined; a host waits until `world_size` stores have joined.
 * `timeout_ms` is the caller's whole timeout, for the message. */
tether_status tether__store_tcp_join(struct tether__store_tcp *store,
                                     int world_size,
                                     int timeout_ms,
                                     int64_t deadline,
                                     tether_error *reterr);

/* Returns TETHER_ENOTSUP when the server is known to lack `part`. */
tether_status tether__store_part_check(const struct tether__store_tcp *store,
                                       enum tether__store_part part,
                                       tether_error *reterr);

/* Finds out why a call that needs `part` failed with `st`: returns TETHER_ENOTSUP when the server
 * lacks the part, otherwise `st`. */
tether_status tether__store_part_explain(struct tether__store_tcp *store,
                                         enum tether__store_part part,
                                         tether_status st,
                                         int64_t deadline,
                                         tether_error *reterr);

void tether__store_tcp_destroy(void *impl);

/* tenant.c: the server of a host; with `multi_tenant`, shared with other stores at the same port.
 */
tether_status tether__store_tenant_new(const struct tether_store_server_opts *opts,
                                       bool multi_tenant,
                                       tether_store_server **ret_server,
                                       tether_error *reterr);
void tether__store_tenant_release(tether_store_server *server); /* NULL is fine */

#endif
