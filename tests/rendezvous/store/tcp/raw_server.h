/* A store server for tests that send raw bytes to it (raw.h): setups, connections, and its
 * statistics. */
#ifndef TETHER_TESTS_RENDEZVOUS_STORE_TCP_RAW_SERVER_H
#define TETHER_TESTS_RENDEZVOUS_STORE_TCP_RAW_SERVER_H

#include "rendezvous/store_tcp.h"

/* A request, and the reply to it. */
struct step {
    const char *request;
    size_t request_len;
    const char *reply;
    size_t reply_len;
};

#define STEP(request, reply)                                   \
    {                                                          \
        request, sizeof(request) - 1, reply, sizeof(reply) - 1 \
    }

#define WITH(test, setup) cmocka_unit_test_setup_teardown(test, setup, raw_server_stop)

/* The server of the running test. */
extern tether_store_server *raw_server;

/* Setups: a server with the default options, and one that drops a slow client after 200 ms. */
int raw_server_start(void **state);
int raw_server_start_impatient(void **state);
int raw_server_stop(void **state); /* the teardown */

/* Connects to the server; the second one has also sent the first bytes of a V client. */
int raw_server_dial(void);
int raw_server_dial_v(void);

struct tether_store_server_stats raw_server_stats(void);

#endif
