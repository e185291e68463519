/* Where the workers of a round meet: the address that every node of the round is given.
 *
 * When the rendezvous' own store is a TCP store, that is the place. Otherwise rank 0 runs a TCP
 * store on a free port of its host, anew for every round (so rank 0 may move, and nobody reads what
 * an earlier round left), and publishes MASTER_ADDR and MASTER_PORT in the round's store. Where
 * sharing is turned off, rank 0 publishes a port that is free at the moment and runs nothing.
 */
#ifndef TETHER_RENDEZVOUS_DYNAMIC_BOOTSTRAP_H
#define TETHER_RENDEZVOUS_DYNAMIC_BOOTSTRAP_H

#include <stdbool.h>
#include <stdint.h>

#include "rendezvous/dynamic/handler.h"
#include "rendezvous/store.h"

/* What is done with the network; tests bring their own. */
struct tether__rdzv_bootstrap_ops {
    /* Where the TCP store below `store` is; false when there is none. */
    bool (*locate)(tether_store *store, char ret_addr[TETHER_RDZV_ADDR_MAX], uint16_t *ret_port);

    /* Runs a TCP store on `addr` for as long as `*ret_server` is held. */
    tether_status (*host)(const char *addr,
                          bool insecure,
                          int timeout_ms,
                          tether_store **ret_server,
                          uint16_t *ret_port,
                          tether_error *reterr);

    tether_status (*free_port)(const char *addr, uint16_t *ret_port, tether_error *reterr);
};

extern const struct tether__rdzv_bootstrap_ops tether__rdzv_bootstrap_tcp;

/* Rank 0: settles on an address, publishes it in `info->store`, and gives it in `info`. What has to
 * keep running is in `*server`, which is replaced. */
tether_status tether__rdzv_bootstrap_publish(const struct tether__rdzv_bootstrap_ops *ops,
                                             tether_store *store,
                                             const char *local_addr,
                                             bool share,
                                             bool insecure,
                                             int timeout_ms,
                                             tether_store **server,
                                             struct tether_rdzv_info *info,
                                             tether_error *reterr);

/* The others: wait for what rank 0 publishes, or find the shared store by themselves. */
tether_status tether__rdzv_bootstrap_find(const struct tether__rdzv_bootstrap_ops *ops,
                                          tether_store *store,
                                          bool share,
                                          int timeout_ms,
                                          struct tether_rdzv_info *info,
                                          tether_error *reterr);

#endif
