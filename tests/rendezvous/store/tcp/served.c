#include "tests/rendezvous/store/tcp/served.h"

#include "rendezvous/store_tcp.h"
#include "tests/rendezvous/store/suite_internal.h"

tether_store_server *store_serve_at(int port)
{
    tether_store_server *server = NULL;
    assert_ok(tether_store_server_new(TETHER_STORE_SERVER_OPTS(.port = port), &server, err));
    return server;
}

tether_store *store_dial(const char *host, int port)
{
    tether_store *store = NULL;
    assert_ok(tether_store_tcp_new(
        TETHER_STORE_TCP_OPTS(.host = host, .port = port, .timeout_ms = TETHER_TEST_LIMIT_MS),
        &store, err));
    return store;
}

struct tether_store_server_stats store_stats_of(tether_store_server *server)
{
    struct tether_store_server_stats stats;
    tether_store_server_stats(server, &stats);
    return stats;
}
