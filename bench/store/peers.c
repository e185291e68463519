/* Tether through its TCP store, Redis through hiredis. */
#include "bench/store/peers.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/lib/measure.h"
#include "rendezvous/store_tcp.h"

static void tell_port(int ready_fd, int port)
{
    if (write(ready_fd, &port, sizeof port) != (ssize_t)sizeof port)
        bench_die("telling the port", NULL);
    close(ready_fd);
}

/* ---- Tether --------------------------------------------------------------------------------- */

static void check(tether_status st, const tether_error *error)
{
    if (st != TETHER_OK)
        bench_die(error->message, NULL);
}

static void tether_serve(int ready_fd)
{
    tether_store_server *server;
    tether_error error = {0};
    check(tether_store_server_new(TETHER_STORE_SERVER_OPTS(0), &server, &error), &error);
    tell_port(ready_fd, tether_store_server_port(server));
    for (;;)
        pause();
}

static void *tether_dial(int port)
{
    tether_store *store;
    tether_error error = {0};
    check(tether_store_tcp_new(TETHER_STORE_TCP_OPTS(.port = port), &store, &error), &error);
    return store;
}

static void tether_hang_up(void *client)
{
    tether_store_release(client);
}

static void tether_set(void *client, const char *key, const char *value)
{
    tether_error error = {0};
    check(tether_store_set(client, key, tether_bytes_str(value), TETHER_DEFAULT_MS, &error),
          &error);
}

static void tether_get(void *client, const char *key)
{
    tether_error error = {0};
    tether_buf value = TETHER_BUF_INIT;
    check(tether_store_get(client, key, TETHER_DEFAULT_MS, &value, &error), &error);
    tether_buf_fini(&value);
}

static void tether_add(void *client, const char *key)
{
    tether_error error = {0};
    int64_t sum;
    check(tether_store_add(client, key, 1, TETHER_DEFAULT_MS, &sum, &error), &error);
}

static void tether_set_many(void *client, const char *const *keys, size_t n, const char *value)
{
    tether_error error = {0};
    tether_bytes values[n];
    for (size_t i = 0; i < n; i++)
        values[i] = tether_bytes_str(value);
    check(tether_store_multi_set(client, keys, values, n, TETHER_DEFAULT_MS, &error), &error);
}

static void tether_sleep(void *client, const char *key, char value[STORE_PEER_VALUE_SIZE])
{
    tether_error error = {0};
    tether_buf got = TETHER_BUF_INIT;
    check(tether_store_get(client, key, TETHER_DEFAULT_MS, &got, &error), &error);
    snprintf(value, STORE_PEER_VALUE_SIZE, "%s", got.data);
    tether_buf_fini(&got);
}

static void tether_barrier(void *client, const char *name, int n)
{
    tether_error error = {0};
    check(tether_store_barrier(client, name, n, TETHER_DEFAULT_MS, &error), &error);
}

const struct store_peer store_peer_tether = {
    .name = "tether",
    .serve = tether_serve,
    .dial = tether_dial,
    .hang_up = tether_hang_up,
    .set = tether_set,
    .get = tether_get,
    .add = tether_add,
    .set_many = tether_set_many,
    .wake = tether_set,
    .sleep = tether_sleep,
    .barrier = tether_barrier,
};

/* ---- Redis ---------------------------------------------------------------------------------- */

/* Redis cannot choose a free port, so this finds one and releases it just before the start. */
static int free_port(void)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof addr;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&addr, sizeof addr) != 0 ||
        getsockname(fd, (struct sockaddr *)&addr, &len) != 0)
        bench_die("drawing a port", NULL);
    close(fd);
    return ntohs(addr.sin_port);
}

static void redis_serve(int ready_fd)
{
    char port[8];
    int number = free_port();
    snprintf(port, sizeof port, "%d", number);
    tell_port(ready_fd, number);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    dup2(null, STDOUT_FILENO);
    execlp("redis-server", "redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "",
           "--appendonly", "no", "--maxclients", "20000", (char *)NULL);
    bench_die("redis-server is not installed (Debian: redis-server)", NULL);
}

static void *redis_dial(int port)
{
    redisContext *client = NULL;
    for (int tries = 0; tries < 400; tries++) { /* Redis takes a while to start */
        client = redisConnect("127.0.0.1", port);
        if (client && !client->err)
            break;
        redisFree(client);
        client = NULL;
        usleep(10000);
    }
    if (!client)
        bench_die("redis-server does not answer", NULL);
    int one = 1;
    setsockopt(client->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return client;
}

static void redis_hang_up(void *client)
{
    redisFree(client);
}

static redisReply *good(void *reply)
{
    redisReply *r = reply;
    if (!r || r->type == REDIS_REPLY_ERROR)
        bench_die(r ? r->str : "redis-server is gone", NULL);
    return r;
}

static void redis_set(void *client, const char *key, const char *value)
{
    freeReplyObject(good(redisCommand(client, "SET %s %s", key, value)));
}

static void redis_get(void *client, const char *key)
{
    freeReplyObject(good(redisCommand(client, "GET %s", key)));
}

static void redis_add(void *client, const char *key)
{
    freeReplyObject(good(redisCommand(client, "INCR %s", key)));
}

static void read_replies(redisContext *client, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        void *reply = NULL;
        if (redisGetReply(client, &reply) != REDIS_OK)
            bench_die("redis-server is gone", NULL);
        freeReplyObject(good(reply));
    }
}

static void redis_set_many(void *client, const char *const *keys, size_t n, const char *value)
{
    for (size_t i = 0; i < n; i++)
        redisAppendCommand(client, "SET %s %s", keys[i], value);
    read_replies(client, n);
}

static void redis_wake(void *client, const char *key, const char *value)
{
    freeReplyObject(good(redisCommand(client, "RPUSH %s %s", key, value)));
}

static void redis_sleep(void *client, const char *key, char value[STORE_PEER_VALUE_SIZE])
{
    redisReply *reply = good(redisCommand(client, "BLPOP %s 0", key));
    snprintf(value, STORE_PEER_VALUE_SIZE, "%s", reply->element[1]->str);
    freeReplyObject(reply);
}

/* Redis has no barrier: the member that completes the count pushes a token for each member. */
static void redis_barrier(void *client, const char *name, int n)
{
    redisReply *reply = good(redisCommand(client, "INCR %s", name));
    if (reply->integer == n) {
        for (int i = 0; i < n; i++)
            redisAppendCommand(client, "RPUSH %s:go 1", name);
        read_replies(client, (size_t)n);
    }
    freeReplyObject(reply);
    freeReplyObject(good(redisCommand(client, "BLPOP %s:go 0", name)));
}

const struct store_peer store_peer_redis = {
    .name = "redis",
    .serve = redis_serve,
    .dial = redis_dial,
    .hang_up = redis_hang_up,
    .set = redis_set,
    .get = redis_get,
    .add = redis_add,
    .set_many = redis_set_many,
    .wake = redis_wake,
    .sleep = redis_sleep,
    .barrier = redis_barrier,
};
