/* The listening server: addresses, and the calls that it takes in.
 *
 * Happy path: start() binds; then the server keeps a few *slots* outstanding for each method; when
 * a call comes its slot hands it on to the file that serves it and is put out again at once.
 *
 * If the transport starts late, start() only binds, and the server is made by begin().
 *
 * A slot is a user of the server side from when it is put out until it comes back because the
 * server shuts down.
 */
#include <errno.h>
#include <grpc/byte_buffer.h>
#include <grpc/slice.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/threads/handover.h"
#include "net/socket_path.h"
#include "rpc/transport/grpc/accept.h"

/* time for the handshakes of TLS and HTTP/2; a slower client is refused */
#define HANDSHAKE_MS 10000
/* concurrent streams of one connection; a Tether worker opens one, further ones wait */
#define MAX_STREAMS 100

/* gRPC reads this much at once and handles all of it, before the acceptor can end the connection
 * (unproved.c). Its own limit is 4 MiB. */
#define READ_BYTES (64 * 1024)

enum method { LANE, CALL, HEALTH, OTHER };

static const struct {
    const char *path;
    size_t slots;
} methods[] = {
    [LANE] = {TETHER__GRPC_LANE_METHOD, 4},
    [CALL] = {"/tether.Worker/Call", 16}, /* the client is admitted before the request is read */
    [HEALTH] = {"/grpc.health.v1.Health/Check", 2},
    [OTHER] = {NULL, 2}, /* all other methods that clients ask for */
};
#define MAX_SLOTS 24

struct slot {
    struct tether__grpc_op taken;
    struct tether__grpc *transport;
    enum method method;
    grpc_call *call;
    gpr_timespec deadline;
    grpc_metadata_array metadata;
    grpc_call_details details;
};

struct tether__grpc_server {
    struct tether__grpc *transport;
    grpc_server *server; /* NULL: gRPC has not started */
    void *handles[TETHER__ARRAY_LEN(methods)];
    struct tether__grpc_listeners listeners;
    struct tether__grpc_external external;
    struct tether__grpc_acceptor *acceptor; /* NULL: gRPC itself accepts connections */
    struct tether__grpc_op shut;
    size_t n_slots;
    struct slot slots[MAX_SLOTS];
};

/* ---- Slots ---- */

static bool put_out(struct slot *slot)
{
    struct tether__grpc_server *server = slot->transport->server;
    grpc_completion_queue *queue = slot->transport->sides[TETHER__SERVER].queue;
    grpc_call_error error;
    tether__hand_over(&slot->taken);
    if (slot->method == OTHER)
        error = grpc_server_request_call(server->server, &slot->call, &slot->details,
                                         &slot->metadata, queue, queue, &slot->taken);
    else
        error = grpc_server_request_registered_call(server->server, server->handles[slot->method],
                                                    &slot->call, &slot->deadline, &slot->metadata,
                                                    NULL, queue, queue, &slot->taken);
    return error == GRPC_CALL_OK;
}

static void refuse_unknown(struct slot *slot)
{
    char error[TETHER_ERROR_MESSAGE_SIZE];
    snprintf(error, sizeof error,
             "a Tether worker has no method %.*s; it has tether.Worker/Call and "
             "grpc.health.v1.Health/Check",
             (int)GRPC_SLICE_LENGTH(slot->details.method),
             (const char *)GRPC_SLICE_START_PTR(slot->details.method));
    tether__grpc_refuse(slot->transport, slot->call, TETHER_ENOTSUP, error);
    grpc_call_details_destroy(&slot->details);
    grpc_call_details_init(&slot->details);
}

static void on_taken(struct tether__grpc_op *op, bool ok)
{
    struct slot *slot = tether__container_of(op, struct slot, taken);
    struct tether__grpc *transport = slot->transport;
    if (ok) {
        switch (slot->method) {
            case LANE:
                tether__grpc_accept(transport, slot->call);
                break;
            case CALL:
                tether__grpc_unary(transport, slot->call, &slot->metadata, slot->deadline);
                break;
            case HEALTH:
                tether__grpc_health(transport, slot->call);
                break;
            case OTHER:
                refuse_unknown(slot);
                break;
        }
        if (put_out(slot))
            return;
    }
    tether__grpc_side_leave(&transport->sides[TETHER__SERVER]);
}

static void put_out_all(struct tether__grpc *transport)
{
    struct tether__grpc_server *server = transport->server;
    struct tether__grpc_side *side = &transport->sides[TETHER__SERVER];
    for (size_t m = 0; m < TETHER__ARRAY_LEN(methods); m++) {
        for (size_t i = 0; i < methods[m].slots; i++) {
            struct slot *slot = &server->slots[server->n_slots++];
            slot->taken.done = on_taken;
            slot->transport = transport;
            slot->method = m;
            grpc_metadata_array_init(&slot->metadata);
            grpc_call_details_init(&slot->details);
            if (tether__grpc_side_enter(side) && !put_out(slot))
                tether__grpc_side_leave(side);
        }
    }
}

/* ---- Binding ---- */

/* Makes gRPC listen at a unix path. gRPC gives the file a mode by the umask, so it binds in a
 * folder that only this user may enter. The file is moved to its path once it has its mode. */
static tether_status bind_path_by_grpc(struct tether__grpc *transport,
                                       const char *path,
                                       int *ret_port,
                                       tether_error *reterr)
{
    struct tether__grpc_server *server = transport->server;
    struct sockaddr_un at;
    char folder[sizeof at.sun_path + 8], address[sizeof folder + 8];
    snprintf(folder, sizeof folder, "%s.XXXXXX", path);
    snprintf(address, sizeof address, "unix:%s/s", folder);
    if (!tether__socket_sockaddr(tether__socket_path(address), &at))
        return tether_error_set(reterr, TETHER_EINVAL,
                                "cannot listen on unix:%s: with this version of gRPC the path must "
                                "be 9 bytes shorter; choose another path",
                                path);
    if (!mkdtemp(folder))
        return tether_error_set(reterr, TETHER_EIO, "cannot listen on unix:%s: making %s: %s", path,
                                folder, strerror(errno));
    snprintf(address, sizeof address, "unix:%s/s", folder);
    const char *private_path = tether__socket_path(address);
    tether_status st = TETHER_OK;
    *ret_port = grpc_server_add_http2_port(server->server, address, transport->listen_credentials);
    if (*ret_port > 0 &&
        (chmod(private_path, S_IRUSR | S_IWUSR) != 0 || link(private_path, path) != 0 ||
         !tether__socket_file_note(&server->listeners.file, path)))
        st = tether_error_set(reterr, TETHER_EIO, "cannot listen on unix:%s: %s", path,
                              strerror(errno));
    unlink(private_path);
    rmdir(folder);
    return st;
}

/* Makes gRPC itself listen. Used with TLS and a version of gRPC to which accepted connections
 * cannot be handed (external.c). The process must then never run out of descriptors. */
static tether_status bind_by_grpc(struct tether__grpc *transport,
                                  const char *path,
                                  int *ret_port,
                                  tether_error *reterr)
{
    struct tether__socket_lock lock = {.fd = -1};
    if (!path) {
        if (strchr(transport->listen, ':')) /* without a port gRPC would take 443 */
            *ret_port = grpc_server_add_http2_port(transport->server->server, transport->listen,
                                                   transport->listen_credentials);
        return TETHER_OK;
    }
    tether_status st = tether__socket_file_lock(path, &lock, reterr);
    if (st != TETHER_OK)
        return st;
    st = tether__socket_file_clear(path, reterr);
    if (st == TETHER_OK)
        st = bind_path_by_grpc(transport, path, ret_port, reterr);
    tether__socket_path_unlock(&lock);
    return st;
}

/* Binds sockets of our own, and accepts on them. */
static tether_status bind_ours(struct tether__grpc *transport,
                               const char *path,
                               int *ret_port,
                               tether_error *reterr)
{
    struct tether__grpc_server *server = transport->server;
    char host[256];
    const char *port;
    if (path) {
        tether_status st = tether__grpc_bind_path(&server->listeners, path, reterr);
        if (st != TETHER_OK)
            return st;
        *ret_port = 1; /* gRPC returns 1 as the port of a unix path, so do the same */
    } else if (tether__grpc_split(transport->listen, host, sizeof host, &port)) {
        *ret_port = tether__grpc_bind_tcp(&server->listeners, host, port);
    }
    if (*ret_port <= 0)
        return TETHER_OK;
    if (transport->has_tls && !tether__grpc_external_add(&server->external, server->server,
                                                         transport->listen_credentials))
        return tether__grpc_bad_tls(transport->listen, reterr);
    return tether__grpc_acceptor_new(transport, transport->has_tls ? &server->external : NULL,
                                     &server->listeners, &server->acceptor, reterr);
}

static tether_status bind_address(struct tether__grpc *transport, tether_error *reterr)
{
    const char *address = transport->listen, *path = tether__socket_path(address);
    int port = 0;
    tether_status st = transport->has_tls && !tether__grpc_external_works()
                           ? bind_by_grpc(transport, path, &port, reterr)
                           : bind_ours(transport, path, &port, reterr);
    if (st != TETHER_OK)
        return st;
    if (port <= 0)
        return tether__grpc_why_not(transport, address, reterr);
    tether__grpc_set_bound(transport->base.address, sizeof transport->base.address, address, port);
    return TETHER_OK;
}

/* ---- The beginning ---- */

static void make_server(struct tether__grpc *transport)
{
    struct tether__grpc_server *server = transport->server;
    grpc_arg args[] = {
        TETHER__GRPC_COMMON_ARGS(transport),
        tether__grpc_int_arg(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, HANDSHAKE_MS),
        tether__grpc_int_arg(GRPC_ARG_MAX_CONCURRENT_STREAMS, MAX_STREAMS),
        tether__grpc_int_arg(GRPC_ARG_ALLOW_REUSEPORT, 0),
        tether__grpc_int_arg(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, READ_BYTES),
        tether__grpc_external_arg(&server->external),
    };
    grpc_channel_args all = {TETHER__ARRAY_LEN(args), args};
    server->server = grpc_server_create(&all, NULL);
    grpc_server_register_completion_queue(server->server, transport->sides[TETHER__SERVER].queue,
                                          NULL);
    for (size_t m = 0; m < TETHER__ARRAY_LEN(methods); m++)
        if (methods[m].path)
            server->handles[m] = grpc_server_register_method(server->server, methods[m].path, NULL,
                                                             GRPC_SRM_PAYLOAD_NONE, 0);
}

static void start_server(struct tether__grpc *transport)
{
    grpc_server_start(transport->server->server);
    put_out_all(transport);
}

tether_status tether__grpc_listen(struct tether__transport *base, tether_error *reterr)
{
    struct tether__grpc *transport = tether__grpc_of(base);
    if (!transport->listen)
        return TETHER_OK;
    struct tether__grpc_server *server = tether__calloc(1, sizeof *server);
    if (!server)
        return tether_error_set(reterr, TETHER_ENOMEM, "starting to listen: out of memory");
    server->transport = transport;
    transport->server = server;
    if (!transport->late)
        make_server(transport); /* gRPC binds by itself, or takes accepted connections with TLS, so
                                   its server is needed now */
    tether_status st = bind_address(transport, reterr);
    if (st != TETHER_OK || transport->late)
        return st; /* after an error destroy() frees what was made */
    start_server(transport);
    if (!server->acceptor)
        return TETHER_OK;
    tether__grpc_acceptor_open(server->acceptor, server->server);
    return tether__grpc_acceptor_run(server->acceptor, reterr);
}

void tether__grpc_listen_begin(struct tether__grpc *transport)
{
    if (!transport->server)
        return;
    make_server(transport);
    start_server(transport);
}

void tether__grpc_listen_open(struct tether__grpc *transport, bool ok)
{
    struct tether__grpc_server *server = transport->server;
    if (server)
        tether__grpc_acceptor_open(server->acceptor, ok ? server->server : NULL);
}

int tether__grpc_accept_fd(struct tether__transport *base)
{
    struct tether__grpc_server *server = tether__grpc_of(base)->server;
    return server ? tether__grpc_acceptor_fd(server->acceptor) : -1;
}

int64_t tether__grpc_accept_turn(struct tether__transport *base)
{
    return tether__grpc_acceptor_turn(tether__grpc_of(base)->server->acceptor);
}

/* ---- The end ---- */

static void on_shut(struct tether__grpc_op *op, bool ok)
{
    (void)ok;
    struct tether__grpc_server *server = tether__container_of(op, struct tether__grpc_server, shut);
    tether__grpc_side_leave(&server->transport->sides[TETHER__SERVER]);
}

void tether__grpc_listen_stop(struct tether__grpc *transport)
{
    struct tether__grpc_server *server = transport->server;
    if (!server)
        return;
    struct tether__grpc_side *side = &transport->sides[TETHER__SERVER];
    tether__grpc_acceptor_stop(server->acceptor);
    tether__grpc_listeners_close(&server->listeners);
    if (!server->server)
        return;
    pthread_mutex_lock(&transport->mu);
    /* stop() itself is one more user, so that the queue is not shut down during it */
    side->users++;
    pthread_mutex_unlock(&transport->mu);
    server->shut.done = on_shut;
    tether__hand_over(&server->shut);
    grpc_server_shutdown_and_notify(server->server, side->queue, &server->shut);
    grpc_server_cancel_all_calls(server->server);
}

void tether__grpc_listen_destroy(struct tether__grpc *transport)
{
    struct tether__grpc_server *server = transport->server;
    if (!server)
        return;
    tether__grpc_acceptor_free(server->acceptor);
    if (server->server)
        grpc_server_destroy(server->server);
    for (size_t i = 0; i < server->n_slots; i++) {
        grpc_metadata_array_destroy(&server->slots[i].metadata);
        grpc_call_details_destroy(&server->slots[i].details);
    }
    transport->server = tether__free(server);
}
