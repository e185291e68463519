/* The metrics over HTTP: every request on the port gets the text, then the connection is closed.
 *
 * The server has a libuv loop thread of its own, so that a slow client delays no other work. A
 * client that sends or reads nothing is dropped after PATIENCE_MS. At most MAX_CLIENTS are served
 * at once.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/threads/loop.h"
#include "rpc/agent.h"
#include "rpc/agent/metrics.h"
#include "rpc/peer/stream.h"

#define MAX_CLIENTS 32
#define PATIENCE_MS 5000
#define BACKLOG 128 /* with a shorter queue the kernel delays a client of a burst by a second */

struct tether__metrics_server {
    tether_agent *agent;
    struct tether__loop loop;
    uv_tcp_t listener;
    char address[280];
    /* used only on the loop's thread */
    struct tether__list clients;
    size_t n_clients;
    uv_tcp_t refused;     /* a connection for which there is no memory: it is accepted and closed */
    bool refuses;         /* `refused` has not been closed yet */
    bool refuses_another; /* another connection waits to be refused */
    struct tether__task start, stop;
    int error; /* result of the task `start` */
};

struct client {
    struct tether__list node;
    struct tether__metrics_server *server;
    uv_tcp_t tcp;
    uv_timer_t timer;
    uv_write_t write;
    tether_buf text;
    char request[1024];
    int open_handles;
    bool answered;
};

static void on_handle_closed(uv_handle_t *handle)
{
    struct client *client = handle->data;
    if (--client->open_handles > 0)
        return;
    tether_buf_fini(&client->text);
    tether__free(client);
}

static void client_close(struct client *client)
{
    if (uv_is_closing((uv_handle_t *)&client->tcp))
        return;
    tether__list_remove(&client->node);
    client->server->n_clients--;
    uv_close((uv_handle_t *)&client->tcp, on_handle_closed);
    uv_close((uv_handle_t *)&client->timer, on_handle_closed);
}

static void on_written(uv_write_t *write, int status)
{
    (void)status;
    client_close(write->data);
}

static void on_patience(uv_timer_t *timer)
{
    client_close(timer->data);
}

static void answer(struct client *client)
{
    tether_buf body = TETHER_BUF_INIT;
    client->answered = true;
    if (tether_agent_metrics(client->server->agent, &body) != TETHER_OK ||
        tether_buf_printf(&client->text,
                          "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n"
                          "Content-Length: %zu\r\nConnection: close\r\n\r\n",
                          body.len) != TETHER_OK ||
        tether_buf_append(&client->text, tether_buf_bytes(&body)) != TETHER_OK) {
        tether_buf_fini(&body);
        client_close(client);
        return;
    }
    tether_buf_fini(&body);
    uv_buf_t buf = uv_buf_init(client->text.data, (unsigned)client->text.len);
    client->write.data = client;
    if (uv_write(&client->write, (uv_stream_t *)&client->tcp, &buf, 1, on_written) != 0)
        client_close(client);
}

static void on_alloc(uv_handle_t *handle, size_t wanted, uv_buf_t *buf)
{
    struct client *client = handle->data;
    (void)wanted;
    *buf = uv_buf_init(client->request, sizeof client->request);
}

/* All requests get the same answer, so the request is not parsed. */
static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct client *client = stream->data;
    (void)buf;
    if (n < 0)
        client_close(client);
    else if (n > 0 && !client->answered)
        answer(client);
}

static void refuse(struct tether__metrics_server *server);

static void on_refused_closed(uv_handle_t *handle)
{
    struct tether__metrics_server *server = handle->data;
    bool again = server->refuses_another && !uv_is_closing((uv_handle_t *)&server->listener);
    server->refuses = server->refuses_another = false;
    if (again)
        refuse(server);
}

/* Accepts the reported connection and closes it: otherwise libuv would report no further ones. */
static void refuse(struct tether__metrics_server *server)
{
    if (server->refuses) {
        server->refuses_another = true;
        return;
    }
    server->refuses = true;
    uv_tcp_init(server->listener.loop, &server->refused);
    server->refused.data = server;
    uv_accept((uv_stream_t *)&server->listener, (uv_stream_t *)&server->refused);
    uv_close((uv_handle_t *)&server->refused, on_refused_closed);
}

static void on_connection(uv_stream_t *listener, int status)
{
    struct tether__metrics_server *server = listener->data;
    if (status != 0)
        return;
    struct client *client = tether__calloc(1, sizeof *client);
    if (!client) {
        refuse(server);
        return;
    }
    client->server = server;
    client->open_handles = 2;
    uv_tcp_init(listener->loop, &client->tcp);
    uv_timer_init(listener->loop, &client->timer);
    client->tcp.data = client->timer.data = client;
    tether__list_push_back(&server->clients, &client->node);
    server->n_clients++;
    if (uv_accept(listener, (uv_stream_t *)&client->tcp) != 0 || server->n_clients > MAX_CLIENTS ||
        uv_read_start((uv_stream_t *)&client->tcp, on_alloc, on_read) != 0) {
        client_close(client);
        return;
    }
    uv_timer_start(&client->timer, on_patience, PATIENCE_MS, 0);
}

static int parse(const char *listen, struct sockaddr_storage *ret_address)
{
    char host[256];
    const char *colon = strrchr(listen, ':');
    if (!colon || (size_t)(colon - listen) >= sizeof host)
        return UV_EINVAL;
    size_t len = (size_t)(colon - listen);
    bool brackets = len >= 2 && listen[0] == '[';
    snprintf(host, sizeof host, "%.*s", (int)(brackets ? len - 2 : len), listen + brackets);
    int port = atoi(colon + 1);
    if (brackets)
        return uv_ip6_addr(host, port, (struct sockaddr_in6 *)ret_address);
    return uv_ip4_addr(strcmp(host, "localhost") == 0 ? "127.0.0.1" : host, port,
                       (struct sockaddr_in *)ret_address);
}

static void on_start(struct tether__task *task)
{
    struct tether__metrics_server *server =
        tether__container_of(task, struct tether__metrics_server, start);
    struct sockaddr_storage address;
    uv_tcp_init(tether__loop_uv(&server->loop), &server->listener);
    server->listener.data = server;
    server->error = parse(server->address, &address);
    if (server->error == 0)
        server->error = uv_tcp_bind(&server->listener, (struct sockaddr *)&address, 0);
    if (server->error == 0)
        server->error = uv_listen((uv_stream_t *)&server->listener, BACKLOG, on_connection);
    if (server->error != 0)
        return;
    int size = sizeof address;
    uv_tcp_getsockname(&server->listener, (struct sockaddr *)&address, &size);
    char host[64];
    bool v6 = address.ss_family == AF_INET6;
    int port = ntohs(v6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                        : ((struct sockaddr_in *)&address)->sin_port);
    if (v6)
        uv_ip6_name((struct sockaddr_in6 *)&address, host, sizeof host);
    else
        uv_ip4_name((struct sockaddr_in *)&address, host, sizeof host);
    snprintf(server->address, sizeof server->address, v6 ? "[%s]:%d" : "%s:%d", host, port);
}

static void on_stop(struct tether__task *task)
{
    struct tether__metrics_server *server =
        tether__container_of(task, struct tether__metrics_server, stop);
    uv_close((uv_handle_t *)&server->listener, NULL);
    TETHER__LIST_FOR_EACH(node, &server->clients)
        client_close(tether__list_entry(node, struct client, node));
}

tether_status tether__metrics_serve(tether_agent *agent,
                                    const char *listen,
                                    struct tether__metrics_server **ret_server,
                                    tether_error *reterr)
{
    struct tether__metrics_server *server = tether__calloc(1, sizeof *server);
    if (!server)
        return tether_error_set(reterr, TETHER_ENOMEM, "no memory for the metrics server");
    server->agent = agent;
    tether__list_init(&server->clients);
    snprintf(server->address, sizeof server->address, "%s", listen);
    tether_status st = tether__loop_start(&server->loop, "tether-metrics", reterr);
    if (st != TETHER_OK) {
        tether__free(server);
        return st;
    }
    server->start.run = on_start;
    server->stop.run = on_stop;
    tether__loop_call(&server->loop, &server->start);
    if (server->error != 0) {
        st = tether_error_set(
            reterr, server->error == UV_EADDRINUSE ? TETHER_EADDRINUSE : TETHER_EINVAL,
            "cannot serve metrics on '%s': %s", listen, uv_strerror(server->error));
        tether__metrics_stop(server);
        return st;
    }
    *ret_server = server;
    return TETHER_OK;
}

const char *tether__metrics_address(const struct tether__metrics_server *server)
{
    return server->address;
}

void tether__metrics_stop(struct tether__metrics_server *server)
{
    if (!server)
        return;
    tether__loop_call(&server->loop, &server->stop);
    tether__loop_stop(&server->loop);
    tether__free(server);
}
