/* Opens the store of the rendezvous.
 *
 * With --rdzv-host=auto, the first node on the machine of the endpoint hosts the TCP store; the
 * others find the port in use and become clients. */
#include "tools/run/node/meeting.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rendezvous/elastic/backend/etcd.h"
#include "rendezvous/store_etcd.h"
#include "rendezvous/store_tcp.h"
#include "tools/run/node/clock.h"

#define RDZV_PORT 29400
#define ETCD_PORT 2379
/* Timeout of the first attempt; `canceled` is checked between attempts. Each attempt takes twice
 * as long as the one before, for slow name servers. */
#define FIRST_TRY_MS 500
#define LONGEST_TRY_MS 8000

struct place {
    char host[256];
    int port;
};

/* An address belongs to this machine if a socket can be bound to it. */
static bool can_bind(const struct addrinfo *ai)
{
    struct sockaddr_storage address;
    memcpy(&address, ai->ai_addr, ai->ai_addrlen);
    if (ai->ai_family == AF_INET)
        ((struct sockaddr_in *)&address)->sin_port = 0;
    else
        ((struct sockaddr_in6 *)&address)->sin6_port = 0;
    int fd = socket(ai->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return false;
    bool bound = bind(fd, (struct sockaddr *)&address, ai->ai_addrlen) == 0;
    close(fd);
    return bound;
}

/* Gives the address from which this machine sends to `ai`. Sends no packet. */
static bool source_address(const struct addrinfo *ai, char *text, size_t size)
{
    struct sockaddr_storage address;
    socklen_t len = sizeof address;
    int fd = socket(ai->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return false;
    bool found = connect(fd, ai->ai_addr, ai->ai_addrlen) == 0 &&
                 getsockname(fd, (struct sockaddr *)&address, &len) == 0 &&
                 getnameinfo((struct sockaddr *)&address, len, text, (socklen_t)size, NULL, 0,
                             NI_NUMERICHOST) == 0;
    close(fd);
    return found;
}

/* Finds out whether `place` is on this machine, and the address of this machine on the way to
 * it. */
static void locate(const struct place *place, bool *ret_is_here, char *addr, size_t addr_size)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_DGRAM};
    struct addrinfo *list = NULL;
    char port[8];
    snprintf(port, sizeof port, "%d", place->port);
    *ret_is_here = false;
    addr[0] = '\0';
    if (getaddrinfo(place->host, port, &hints, &list) != 0)
        return; /* leave it to the connection attempt, which reports the error and retries */
    for (const struct addrinfo *ai = list; ai; ai = ai->ai_next) {
        *ret_is_here |= can_bind(ai);
        if (!addr[0] && !source_address(ai, addr, addr_size))
            addr[0] = '\0';
    }
    freeaddrinfo(list);
}

static tether_status host_store(const struct run_options *options,
                                const struct place *place,
                                struct run_meeting *meeting,
                                tether_error *reterr)
{
    tether_status st =
        tether_store_tcp_new(TETHER_STORE_TCP_OPTS(.host = place->host, .port = place->port,
                                                   .is_host = true, .insecure = options->insecure,
                                                   .timeout_ms = options->join_timeout_ms),
                             &meeting->store, reterr);
    meeting->is_host = st == TETHER_OK;
    if (st == TETHER_EPERM && !options->insecure)
        return tether_error_set(reterr, st, /* the library's message names its own option */
                                "the store of this run at %.100s:%d would be beyond loopback, and "
                                "anyone who can connect could read and change it: give --insecure "
                                "if you trust the network",
                                place->host, place->port);
    return st;
}

typedef tether_status connect_fn(const struct run_options *options,
                                 const struct place *place,
                                 int timeout_ms,
                                 tether_store **ret_store,
                                 tether_error *reterr);

static tether_status connect_tcp(const struct run_options *options,
                                 const struct place *place,
                                 int timeout_ms,
                                 tether_store **ret_store,
                                 tether_error *reterr)
{
    (void)options;
    return tether_store_tcp_new(
        TETHER_STORE_TCP_OPTS(.host = place->host, .port = place->port, .timeout_ms = timeout_ms),
        ret_store, reterr);
}

static struct tether_store_etcd_opts etcd_opts(const struct run_options *options, int timeout_ms)
{
    return (struct tether_store_etcd_opts){
        .size = sizeof(struct tether_store_etcd_opts),
        .endpoints = options->endpoint,
        .prefix = "tether-run/",
        .ca_path = options->etcd_ca,
        .cert_path = options->etcd_cert,
        .key_path = options->etcd_key,
        .user = options->etcd_user,
        .password = options->etcd_user ? getenv("TETHER_ETCD_PASSWORD") : NULL,
        .insecure = options->insecure,
        .timeout_ms = timeout_ms,
    };
}

static tether_status connect_etcd(const struct run_options *options,
                                  const struct place *place,
                                  int timeout_ms,
                                  tether_store **ret_store,
                                  tether_error *reterr)
{
    (void)place;
    struct tether_store_etcd_opts opts = etcd_opts(options, timeout_ms);
    return tether_store_etcd_new(&opts, ret_store, reterr);
}

/* Retries to connect until --join-timeout. */
static tether_status keep_connecting(const struct run_options *options,
                                     const struct place *place,
                                     connect_fn *connect_once,
                                     atomic_bool *canceled,
                                     tether_store **ret_store,
                                     tether_error *reterr)
{
    int64_t deadline = run_now_ms() + options->join_timeout_ms;
    for (int try_ms = FIRST_TRY_MS;; try_ms = try_ms < LONGEST_TRY_MS ? 2 * try_ms : try_ms) {
        int64_t left = deadline - run_now_ms();
        int slice = left < 1 ? 1 : left < try_ms ? (int)left : try_ms;
        tether_status st = connect_once(options, place, slice, ret_store, reterr);
        if (st == TETHER_OK)
            return tether_store_set_timeout(*ret_store, options->join_timeout_ms, reterr);
        if (st != TETHER_ETIMEOUT && st != TETHER_EUNAVAILABLE)
            return st;
        if (atomic_load(canceled))
            return tether_error_set(reterr, TETHER_ECANCELED, "canceled");
        if (run_now_ms() >= deadline)
            return tether_error_set(reterr, TETHER_EUNAVAILABLE, "no store at %.60s for %d s: %s",
                                    options->endpoint, options->join_timeout_ms / 1000,
                                    reterr->message);
    }
}

static tether_status open_tcp(const struct run_options *options,
                              atomic_bool *canceled,
                              struct run_meeting *meeting,
                              tether_error *reterr)
{
    struct place place = {"127.0.0.1", 0};
    if (!options->endpoint) {
        strcpy(meeting->node_addr, place.host);
        return host_store(options, &place, meeting, reterr);
    }
    tether_status st = run_split_endpoint(options->endpoint, RDZV_PORT, place.host,
                                          sizeof place.host, &place.port, reterr);
    if (st != TETHER_OK)
        return st;
    bool is_here = false;
    locate(&place, &is_here, meeting->node_addr, sizeof meeting->node_addr);
    if (options->host_store == RUN_YES || (options->host_store == RUN_AUTO && is_here)) {
        st = host_store(options, &place, meeting, reterr);
        if (st != TETHER_EADDRINUSE || options->host_store == RUN_YES)
            return st;
    }
    return keep_connecting(options, &place, connect_tcp, canceled, &meeting->store, reterr);
}

static tether_status open_etcd(const struct run_options *options,
                               atomic_bool *canceled,
                               struct run_meeting *meeting,
                               tether_error *reterr)
{
    struct place place;
    bool is_here = false;
    if (run_split_endpoint(options->endpoint, ETCD_PORT, place.host, sizeof place.host, &place.port,
                           /* a list of endpoints or a URL needs neither a host nor a port */
                           NULL) == TETHER_OK)
        locate(&place, &is_here, meeting->node_addr, sizeof meeting->node_addr);
    tether_status st =
        keep_connecting(options, NULL, connect_etcd, canceled, &meeting->store, reterr);
    if (st != TETHER_OK)
        return st;
    /* The endpoint is etcd. Its backend compares the state by revision and keeps heartbeats in
     * leases. */
    struct tether_store_etcd_opts opts = etcd_opts(options, options->join_timeout_ms);
    return tether_rdzv_backend_etcd_new(&opts, options->run_id, &meeting->backend, reterr);
}

tether_status run_meeting_open(const struct run_options *options,
                               atomic_bool *canceled,
                               struct run_meeting *ret_meeting,
                               tether_error *reterr)
{
    struct run_meeting meeting = {0};
    tether_status st = TETHER_OK;
    switch (options->backend) {
        case RUN_BACKEND_TCP:
            st = open_tcp(options, canceled, &meeting, reterr);
            break;
        case RUN_BACKEND_FILE:
            st = tether_store_file_new(options->endpoint, -1, &meeting.store, reterr);
            if (!options->insecure)
                strcpy(meeting.node_addr, "127.0.0.1");
            break;
        case RUN_BACKEND_ETCD:
            st = open_etcd(options, canceled, &meeting, reterr);
            break;
    }
    if (st != TETHER_OK) {
        run_meeting_close(&meeting);
        return st;
    }
    if (options->node_addr)
        snprintf(meeting.node_addr, sizeof meeting.node_addr, "%s", options->node_addr);
    *ret_meeting = meeting;
    return TETHER_OK;
}

void run_meeting_close(struct run_meeting *meeting)
{
    meeting->backend = tether_rdzv_backend_release(meeting->backend);
    meeting->store = tether_store_release(meeting->store);
}
