/* Where the nodes meet: the store behind --rdzv-endpoint, hosted here or not. Blocks; any thread.
 */
#ifndef TETHER_TOOLS_RUN_MEETING_H
#define TETHER_TOOLS_RUN_MEETING_H

#include <stdatomic.h>

#include "rendezvous/elastic/backend/backend.h"
#include "rendezvous/store.h"
#include "tools/run/options.h"

struct run_meeting {
    tether_store *store;
    tether_rdzv_backend *backend; /* NULL: one on the store */
    bool is_host;                 /* the store lives in this process */
    char node_addr[256];          /* how others reach this node */
};

/* Connects to the store, or hosts it, trying for --join-timeout; gives up early (TETHER_ECANCELED)
 * when `*canceled` becomes true. `reterr` is needed here. */
tether_status run_meeting_open(const struct run_options *options,
                               atomic_bool *canceled,
                               struct run_meeting *ret_meeting,
                               tether_error *reterr);
void run_meeting_close(struct run_meeting *meeting); /* zeroed memory is fine */

#endif
