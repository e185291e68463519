/* Servers and clients of the TCP store, for its tests. */
#ifndef TETHER_TESTS_RENDEZVOUS_STORE_TCP_SERVED_H
#define TETHER_TESTS_RENDEZVOUS_STORE_TCP_SERVED_H

#include <pthread.h>
#include <stdatomic.h>

#include "rendezvous/store_tcp.h"

/* A server at this port. The other functions fail the test on error, too. */
tether_store_server *store_serve_at(int port);

/* A client of the server at this address. */
tether_store *store_dial(const char *host, int port);

struct tether_store_server_stats store_stats_of(tether_store_server *server);

/* A thread that uses a store, and what came of it. */
struct waiting {
    tether_store *store;
    tether_status status;
    pthread_t thread;
    atomic_int tid;
};

#endif
