/* The store behind --rdzv-endpoint, which this process may host. Functions block; any thread.
 */
#ifndef TETHER_TOOLS_RUN_NODE_MEETING_H
#define TETHER_TOOLS_RUN_NODE_MEETING_H

#include <stdatomic.h>

#include "rendezvous/elastic/backend/backend.h"
#include "rendezvous/store.h"
#include "tools/run/options/options.h"

struct run_meeting {
    tether_store *store;
    tether_rdzv_backend *backend; /* NULL: use one on the store */
    bool is_host;                 /* this process hosts the store */
    char node_addr[256];          /* the address at which others reach this node */
};

/* Connects to the store or hosts it, with retries until --join-timeout. Returns TETHER_ECANCELED
 * soon after `*canceled` becomes true. `reterr` must not be NULL. */
tether_status run_meeting_open(const struct run_options *options,
                               atomic_bool *canceled,
                               struct run_meeting *ret_meeting,
                               tether_error *reterr);
void run_meeting_close(struct run_meeting *meeting); /* accepts zeroed memory */

#endif
