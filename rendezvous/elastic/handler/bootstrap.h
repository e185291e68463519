/* The address of the store of a round's workers. Every node of the round gets the same.
 *
 * If the store of the rendezvous is a TCP store, the workers use it. Otherwise rank 0 runs a TCP
 * store on a free port of its host and publishes MASTER_ADDR and MASTER_PORT in the round's store.
 * Each round gets a new one, so rank 0 may move, and no worker reads keys of an earlier round. With
 * sharing turned off, rank 0 publishes a port that is free at the moment and runs nothing.
 */
#ifndef TETHER_RENDEZVOUS_ELASTIC_HANDLER_BOOTSTRAP_H
#define TETHER_RENDEZVOUS_ELASTIC_HANDLER_BOOTSTRAP_H

#include <stdbool.h>
#include <stdint.h>

#include "rendezvous/elastic/handler/handler.h"
#include "rendezvous/store.h"

/* The network operations; tests replace them. */
struct tether__rdzv_bootstrap_ops {
    /* Gives the address of the TCP store below `store`; false when there is none. */
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

/* Rank 0: chooses an address, publishes it in `info->store`, and gives it in `info`. Replaces
 * `*server` by the store that has to keep running, or NULL. */
tether_status tether__rdzv_bootstrap_publish(const struct tether__rdzv_bootstrap_ops *ops,
                                             tether_store *store,
                                             const char *local_addr,
                                             bool share,
                                             bool insecure,
                                             int timeout_ms,
                                             tether_store **server,
                                             struct tether_rdzv_info *info,
                                             tether_error *reterr);

/* The other ranks: wait for the address from rank 0, or find the shared store themselves. */
tether_status tether__rdzv_bootstrap_find(const struct tether__rdzv_bootstrap_ops *ops,
                                          tether_store *store,
                                          bool share,
                                          int timeout_ms,
                                          struct tether_rdzv_info *info,
                                          tether_error *reterr);

#endif
