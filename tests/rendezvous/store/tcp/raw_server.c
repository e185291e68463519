#include "tests/rendezvous/store/tcp/raw_server.h"

#include "rendezvous/store_tcp.h"
#include "tests/rendezvous/store/tcp/raw.h"

tether_store_server *raw_server;

int raw_server_start(void **state)
{
    (void)state;
    raw_server = NULL;
    return tether_store_server_new(TETHER_STORE_SERVER_OPTS(0), &raw_server, NULL) != TETHER_OK;
}

int raw_server_stop(void **state)
{
    (void)state;
    raw_server = tether_store_server_release(raw_server);
    return 0;
}

int raw_server_dial(void)
{
    return raw_dial(tether_store_server_port(raw_server));
}

int raw_server_dial_v(void)
{
    int fd = raw_server_dial();
    RAW_SEND(fd, VALIDATE);
    return fd;
}

struct tether_store_server_stats raw_server_stats(void)
{
    struct tether_store_server_stats now;
    tether_store_server_stats(raw_server, &now);
    return now;
}

int raw_server_start_impatient(void **state)
{
    (void)state;
    raw_server = NULL;
    return tether_store_server_new(TETHER_STORE_SERVER_OPTS(.stall_timeout_ms = 200), &raw_server,
                                   NULL) != TETHER_OK;
}
