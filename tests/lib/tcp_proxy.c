/* A proxy that loses things; see the header. One thread polls everything; what a test asks for is
 * noted under the lock, and the thread is woken to do it. */
#include "tests/lib/tcp_proxy.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/lib/cmocka.h"

#define MAX_PAIRS 64

struct pair {
    int client, server; /* -1: no pair */
};

struct tether_test_proxy {
    /* immutable */
    struct sockaddr_in target;
    char endpoint[32];
    int listener, wake;
    pthread_t thread;
    /* of the thread */
    struct pair pairs[MAX_PAIRS];
    /* under mu */
    pthread_mutex_t mu;
    pthread_cond_t cut_done;
    bool stop, cut, refuse, swallow_when_seen, swallowing;
    char needle[64];
    int seen, connections;
};

static void close_pair(struct pair *pair)
{
    if (pair->client >= 0)
        close(pair->client);
    if (pair->server >= 0)
        close(pair->server);
    *pair = (struct pair){-1, -1};
}

static void accept_pair(struct tether_test_proxy *proxy)
{
    int client = accept4(proxy->listener, NULL, NULL, SOCK_CLOEXEC);
    if (client < 0)
        return;
    pthread_mutex_lock(&proxy->mu);
    bool refuse = proxy->refuse;
    proxy->connections += !refuse;
    pthread_mutex_unlock(&proxy->mu);
    int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct pair *free_pair = NULL;
    for (int i = 0; i < MAX_PAIRS && !free_pair; i++)
        if (proxy->pairs[i].client < 0)
            free_pair = &proxy->pairs[i];
    if (refuse || !free_pair ||
        connect(server, (struct sockaddr *)&proxy->target, sizeof proxy->target) != 0) {
        close(client);
        close(server);
        return;
    }
    *free_pair = (struct pair){client, server};
}

static void note_request(struct tether_test_proxy *proxy, const char *bytes, size_t len)
{
    pthread_mutex_lock(&proxy->mu);
    size_t needle_len = strlen(proxy->needle);
    const char *end = bytes + len, *found;
    while (needle_len &&
           (found = memmem(bytes, (size_t)(end - bytes), proxy->needle, needle_len))) {
        proxy->seen++;
        proxy->swallowing = proxy->swallowing || proxy->swallow_when_seen;
        bytes = found + needle_len;
    }
    pthread_mutex_unlock(&proxy->mu);
}

/* Passes on what one side has sent; false when it is over. */
static bool forward(struct tether_test_proxy *proxy, int from, int to, bool is_request)
{
    char bytes[65536];
    ssize_t n = read(from, bytes, sizeof bytes);
    if (n <= 0)
        return false;
    if (is_request) {
        note_request(proxy, bytes, (size_t)n);
    } else {
        pthread_mutex_lock(&proxy->mu);
        bool swallow = proxy->swallowing;
        pthread_mutex_unlock(&proxy->mu);
        if (swallow)
            return true;
    }
    for (ssize_t sent = 0; sent < n;) {
        ssize_t now = send(to, bytes + sent, (size_t)(n - sent), MSG_NOSIGNAL);
        if (now < 0)
            return false;
        sent += now;
    }
    return true;
}

/* Does what was asked for; false when the proxy is to end. */
static bool obey(struct tether_test_proxy *proxy)
{
    uint64_t count;
    if (read(proxy->wake, &count, sizeof count) != sizeof count)
        return true;
    pthread_mutex_lock(&proxy->mu);
    if (proxy->cut) {
        for (int i = 0; i < MAX_PAIRS; i++)
            close_pair(&proxy->pairs[i]);
        proxy->cut = proxy->swallowing = proxy->swallow_when_seen = false;
        pthread_cond_broadcast(&proxy->cut_done);
    }
    bool stop = proxy->stop;
    pthread_mutex_unlock(&proxy->mu);
    return !stop;
}

static void *proxy_thread(void *arg)
{
    struct tether_test_proxy *proxy = arg;
    for (;;) {
        struct pollfd fds[2 + 2 * MAX_PAIRS] = {{proxy->wake, POLLIN, 0},
                                                {proxy->listener, POLLIN, 0}};
        for (int i = 0; i < MAX_PAIRS; i++) {
            fds[2 + 2 * i] = (struct pollfd){proxy->pairs[i].client, POLLIN, 0};
            fds[3 + 2 * i] = (struct pollfd){proxy->pairs[i].server, POLLIN, 0};
        }
        poll(fds, 2 + 2 * MAX_PAIRS, -1);
        if (fds[0].revents) {
            if (!obey(proxy))
                return NULL;
            continue; /* what poll() said may be of connections that are gone */
        }
        for (int i = 0; i < MAX_PAIRS; i++) {
            struct pair *pair = &proxy->pairs[i];
            if ((fds[2 + 2 * i].revents && !forward(proxy, pair->client, pair->server, true)) ||
                (fds[3 + 2 * i].revents && !forward(proxy, pair->server, pair->client, false)))
                close_pair(pair);
        }
        if (fds[1].revents)
            accept_pair(proxy);
    }
}

struct tether_test_proxy *tether_test_proxy_start(const char *target)
{
    struct tether_test_proxy *proxy = calloc(1, sizeof *proxy);
    char address[32];
    int port = 0;
    assert_int_equal(sscanf(target, "%31[0-9.]:%d", address, &port), 2);
    proxy->target = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    inet_pton(AF_INET, address, &proxy->target.sin_addr);

    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof own;
    proxy->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(proxy->listener, (struct sockaddr *)&own, sizeof own), 0);
    assert_int_equal(listen(proxy->listener, 64), 0);
    assert_int_equal(getsockname(proxy->listener, (struct sockaddr *)&own, &len), 0);
    snprintf(proxy->endpoint, sizeof proxy->endpoint, "127.0.0.1:%d", ntohs(own.sin_port));
    proxy->wake = eventfd(0, EFD_CLOEXEC);
    for (int i = 0; i < MAX_PAIRS; i++)
        proxy->pairs[i] = (struct pair){-1, -1};
    pthread_mutex_init(&proxy->mu, NULL);
    pthread_cond_init(&proxy->cut_done, NULL);
    assert_int_equal(pthread_create(&proxy->thread, NULL, proxy_thread, proxy), 0);
    return proxy;
}

static void wake(struct tether_test_proxy *proxy)
{
    uint64_t one = 1;
    assert_int_equal(write(proxy->wake, &one, sizeof one), sizeof one);
}

void tether_test_proxy_free(struct tether_test_proxy *proxy)
{
    if (!proxy)
        return;
    pthread_mutex_lock(&proxy->mu);
    proxy->stop = proxy->cut = true;
    pthread_mutex_unlock(&proxy->mu);
    wake(proxy);
    pthread_join(proxy->thread, NULL);
    pthread_cond_destroy(&proxy->cut_done);
    pthread_mutex_destroy(&proxy->mu);
    close(proxy->wake);
    close(proxy->listener);
    free(proxy);
}

const char *tether_test_proxy_endpoint(const struct tether_test_proxy *proxy)
{
    return proxy->endpoint;
}

static void look_for(struct tether_test_proxy *proxy, const char *needle, bool swallow)
{
    pthread_mutex_lock(&proxy->mu);
    snprintf(proxy->needle, sizeof proxy->needle, "%s", needle);
    proxy->seen = 0;
    proxy->swallow_when_seen = swallow;
    pthread_mutex_unlock(&proxy->mu);
}

void tether_test_proxy_look_for(struct tether_test_proxy *proxy, const char *needle)
{
    look_for(proxy, needle, false);
}

void tether_test_proxy_swallow_after(struct tether_test_proxy *proxy, const char *needle)
{
    look_for(proxy, needle, true);
}

int tether_test_proxy_seen(struct tether_test_proxy *proxy)
{
    pthread_mutex_lock(&proxy->mu);
    int seen = proxy->seen;
    pthread_mutex_unlock(&proxy->mu);
    return seen;
}

void tether_test_proxy_cut(struct tether_test_proxy *proxy, bool refuse)
{
    pthread_mutex_lock(&proxy->mu);
    proxy->cut = true;
    proxy->refuse = refuse;
    wake(proxy);
    while (proxy->cut)
        pthread_cond_wait(&proxy->cut_done, &proxy->mu);
    pthread_mutex_unlock(&proxy->mu);
}

int tether_test_proxy_connections(struct tether_test_proxy *proxy)
{
    pthread_mutex_lock(&proxy->mu);
    int connections = proxy->connections;
    pthread_mutex_unlock(&proxy->mu);
    return connections;
}
