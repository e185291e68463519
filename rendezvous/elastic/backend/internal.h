/* The struct of a backend, and the calls of the heartbeats that it keeps itself. sync/heartbeat.c
 * keeps the heartbeats of other backends.
 */
#ifndef TETHER_RENDEZVOUS_ELASTIC_BACKEND_INTERNAL_H
#define TETHER_RENDEZVOUS_ELASTIC_BACKEND_INTERNAL_H

#include <stdatomic.h>

#include "rendezvous/elastic/backend/backend.h"

struct tether_rdzv_backend {
    atomic_int refs;
    /* immutable */
    struct tether_rdzv_backend_ops ops; /* a backend whose `beat` is NULL keeps no heartbeats */
    void *impl;
    char *name;
};

#endif
