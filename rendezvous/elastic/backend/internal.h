/* Inside of a backend, for the heartbeats that it keeps itself. sync/heartbeat.c keeps those of
 * other backends.
 */
#ifndef TETHER_RENDEZVOUS_ELASTIC_BACKEND_INTERNAL_H
#define TETHER_RENDEZVOUS_ELASTIC_BACKEND_INTERNAL_H

#include <stdatomic.h>

#include "rendezvous/elastic/backend/backend.h"

struct tether_rdzv_backend {
    atomic_int refs;
    /* immutable */
    struct tether_rdzv_backend_ops ops; /* without `beat`: it keeps no heartbeats */
    void *impl;
    char *name;
};

#endif
