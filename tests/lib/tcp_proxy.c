/* A proxy that breaks connections; see the header. One thread polls all sockets. A call of the test
 * records a request under the lock and wakes the thread.
 *
 * A pair of sockets has two flows. A flow keeps the bytes that it has read in chunks until they are
 * due and the other socket accepts them. A flow that holds many bytes stops reading, so that a fast
 * sender blocks as it would without the proxy.
 */
#include "tests/lib/tcp_proxy.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/list.h"
#include "base/macros.h"
#include "base/threads/cond.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"

#define MAX_PAIRS 64
#define MAX_HELD ((size_t)1 << 20)

struct chunk {
    struct tether__list node;
    int64_t due;
    size_t at, len;
    char bytes[];
};

/* One direction of a pair. */
struct flow {
    struct tether__list held; /* chunks of bytes not passed on yet, oldest first */
    size_t n_held;            /* number of bytes in these chunks */
    bool blocked;             /* the other socket takes no more at present */
};

struct pair {
    int sockets[2]; /* the sockets of the client and of the server; -1: the pair is not in use */
    bool stranded;
    struct flow from[2];
};

enum { CLIENT, SERVER };

struct tether_test_proxy {
    /* immutable */
    struct sockaddr_storage target;
    socklen_t target_len;
    char endpoint[32];
    int listener, wake;
    pthread_t thread;
    /* fields that only the proxy's thread uses */
    struct pair pairs[MAX_PAIRS];
    /* fields under mu */
    pthread_mutex_t mu;
    pthread_cond_t cut_done;
    bool stop, cut, strand, refuse, swallow_when_seen, dribble;
    int swallow, delay_ms;
    char needle[64];
    int seen, connections;
};

/* A copy of the proxy's settings, taken under the lock. */
struct settings {
    bool refuse, dribble;
    int swallow, delay_ms;
};

static struct settings read_settings(struct tether_test_proxy *proxy)
{
    pthread_mutex_lock(&proxy->mu);
    struct settings settings = {proxy->refuse, proxy->dribble, proxy->swallow, proxy->delay_ms};
    pthread_mutex_unlock(&proxy->mu);
    return settings;
}

static int64_t now_ns(void)
{
    return tether__clock_now_ns(&tether__clock_system);
}

/* ---- Pairs ---- */

static void close_pair(struct pair *pair)
{
    for (int end = CLIENT; end <= SERVER && pair->sockets[end] >= 0; end++) {
        close(pair->sockets[end]);
        pair->sockets[end] = -1;
        for (struct tether__list *node; (node = tether__list_pop_front(&pair->from[end].held));)
            free(tether__list_entry(node, struct chunk, node));
    }
}

static void open_pair(struct pair *pair, int client, int server)
{
    int sockets[2] = {client, server}, one = 1;
    pair->stranded = false;
    for (int end = CLIENT; end <= SERVER; end++) {
        /* fails without harm on a unix socket */
        setsockopt(sockets[end], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        pair->sockets[end] = sockets[end];
        pair->from[end] = (struct flow){0};
        tether__list_init(&pair->from[end].held);
    }
}

static void accept_pair(struct tether_test_proxy *proxy)
{
    int client = accept4(proxy->listener, NULL, NULL, SOCK_CLOEXEC);
    if (client < 0)
        return;
    bool refuse = read_settings(proxy).refuse;
    int server = socket(proxy->target.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct pair *free_pair = NULL;
    for (int i = 0; i < MAX_PAIRS && !free_pair; i++)
        if (proxy->pairs[i].sockets[CLIENT] < 0)
            free_pair = &proxy->pairs[i];
    if (refuse || !free_pair ||
        connect(server, (struct sockaddr *)&proxy->target, proxy->target_len) != 0) {
        close(client);
        close(server);
        return;
    }
    open_pair(free_pair, client, server);
    pthread_mutex_lock(&proxy->mu);
    proxy->connections++;
    pthread_mutex_unlock(&proxy->mu);
}

/* ---- Flows ---- */

static void note_request(struct tether_test_proxy *proxy, const char *bytes, size_t len)
{
    pthread_mutex_lock(&proxy->mu);
    size_t needle_len = strlen(proxy->needle);
    const char *end = bytes + len, *found;
    while (needle_len &&
           (found = memmem(bytes, (size_t)(end - bytes), proxy->needle, needle_len))) {
        proxy->seen++;
        if (proxy->swallow_when_seen)
            proxy->swallow |= TETHER_TEST_FROM_SERVER;
        bytes = found + needle_len;
    }
    pthread_mutex_unlock(&proxy->mu);
}

/* Reads the bytes that one end has sent; false when that end has closed. */
static bool read_from(struct tether_test_proxy *proxy, struct pair *pair, int end)
{
    char bytes[65536];
    struct flow *flow = &pair->from[end];
    ssize_t n = recv(pair->sockets[end], bytes, sizeof bytes, MSG_DONTWAIT);
    if (n <= 0)
        return false;
    if (end == CLIENT)
        note_request(proxy, bytes, (size_t)n);
    struct settings settings = read_settings(proxy);
    if (settings.swallow & (end == CLIENT ? TETHER_TEST_FROM_CLIENT : TETHER_TEST_FROM_SERVER))
        return true;
    struct chunk *chunk = malloc(sizeof *chunk + (size_t)n);
    *chunk =
        (struct chunk){.due = now_ns() + settings.delay_ms * TETHER__NS_PER_MS, .len = (size_t)n};
    memcpy(chunk->bytes, bytes, (size_t)n);
    tether__list_push_back(&flow->held, &chunk->node);
    flow->n_held += chunk->len;
    return true;
}

/* Writes the bytes that are due. If the other end has closed, poll() reports it. */
static void write_to_other(struct pair *pair, int end, bool dribble)
{
    struct flow *flow = &pair->from[end];
    flow->blocked = false;
    while (!tether__list_empty(&flow->held)) {
        struct chunk *chunk = tether__list_entry(flow->held.next, struct chunk, node);
        if (chunk->due > now_ns())
            return;
        ssize_t n = send(pair->sockets[!end], chunk->bytes + chunk->at,
                         dribble ? 1 : chunk->len - chunk->at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0) {
            flow->blocked = true;
            return;
        }
        chunk->at += (size_t)n;
        flow->n_held -= (size_t)n;
        if (chunk->at == chunk->len) {
            tether__list_remove(&chunk->node);
            free(chunk);
        }
    }
}

static int64_t next_due(const struct pair *pair, int end)
{
    const struct flow *flow = &pair->from[end];
    return tether__list_empty(&flow->held) || flow->blocked || pair->stranded
               ? TETHER__NEVER
               : tether__list_entry(flow->held.next, struct chunk, node)->due;
}

static struct pollfd interest(const struct pair *pair, int end)
{
    short events = 0;
    if (pair->sockets[end] < 0)
        return (struct pollfd){.fd = -1};
    if (pair->stranded) /* discard the bytes: only the end of the connection matters */
        return (struct pollfd){pair->sockets[end], POLLRDHUP, 0};
    if (pair->from[end].n_held < MAX_HELD)
        events |= POLLIN;
    if (pair->from[!end].blocked)
        events |= POLLOUT;
    return (struct pollfd){pair->sockets[end], events, 0};
}

/* Reads and writes one pair after both sockets have been polled. */
static void serve_pair(struct tether_test_proxy *proxy, struct pair *pair, const struct pollfd *got)
{
    if (pair->sockets[CLIENT] < 0)
        return;
    if (pair->stranded) {
        if (got[CLIENT].revents || got[SERVER].revents)
            close_pair(pair);
        return;
    }
    bool dribble = read_settings(proxy).dribble, alive = true;
    for (int end = CLIENT; end <= SERVER && alive; end++)
        if (got[end].revents & (POLLIN | POLLHUP | POLLERR))
            alive = read_from(proxy, pair, end);
    for (int end = CLIENT; end <= SERVER && alive; end++)
        write_to_other(pair, end, dribble);
    if (!alive)
        close_pair(pair);
}

/* ---- The thread ---- */

/* Carries out the requests of the test; false when the proxy has to end. */
static bool obey(struct tether_test_proxy *proxy)
{
    uint64_t count;
    if (read(proxy->wake, &count, sizeof count) != sizeof count)
        return true;
    pthread_mutex_lock(&proxy->mu);
    if (proxy->cut) {
        for (int i = 0; i < MAX_PAIRS; i++)
            close_pair(&proxy->pairs[i]);
        proxy->cut = proxy->swallow_when_seen = false;
        proxy->swallow = 0;
        pthread_cond_broadcast(&proxy->cut_done);
    }
    for (int i = 0; i < MAX_PAIRS && proxy->strand; i++)
        proxy->pairs[i].stranded = true;
    proxy->strand = false;
    bool stop = proxy->stop;
    pthread_mutex_unlock(&proxy->mu);
    return !stop;
}

static int time_to_poll_ms(const struct tether_test_proxy *proxy)
{
    int64_t due = TETHER__NEVER;
    for (int i = 0; i < MAX_PAIRS; i++)
        for (int end = CLIENT; end <= SERVER && proxy->pairs[i].sockets[CLIENT] >= 0; end++)
            if (next_due(&proxy->pairs[i], end) < due)
                due = next_due(&proxy->pairs[i], end);
    return tether__deadline_left_ms(&tether__clock_system, due);
}

static void *proxy_thread(void *arg)
{
    struct tether_test_proxy *proxy = arg;
    for (;;) {
        struct pollfd fds[2 + 2 * MAX_PAIRS] = {{proxy->wake, POLLIN, 0},
                                                {proxy->listener, POLLIN, 0}};
        for (int i = 0; i < MAX_PAIRS; i++)
            for (int end = CLIENT; end <= SERVER; end++)
                fds[2 + 2 * i + end] = interest(&proxy->pairs[i], end);
        poll(fds, 2 + 2 * MAX_PAIRS, time_to_poll_ms(proxy));
        if (fds[0].revents) {
            if (!obey(proxy))
                return NULL;
            /* skip the results of poll(), which may belong to connections that were closed */
            continue;
        }
        for (int i = 0; i < MAX_PAIRS; i++)
            serve_pair(proxy, &proxy->pairs[i], &fds[2 + 2 * i]);
        if (fds[1].revents)
            accept_pair(proxy);
    }
}

/* ---- For the test ---- */

static void set_target(struct tether_test_proxy *proxy, const char *target)
{
    char address[32];
    int port = 0;
    if (strncmp(target, "unix:", 5) == 0) {
        struct sockaddr_un *at = (struct sockaddr_un *)&proxy->target;
        at->sun_family = AF_UNIX;
        assert_true(strlen(target + 5) < sizeof at->sun_path);
        strcpy(at->sun_path, target + 5);
        proxy->target_len = sizeof *at;
    } else {
        struct sockaddr_in *at = (struct sockaddr_in *)&proxy->target;
        assert_int_equal(sscanf(target, "%31[0-9.]:%d", address, &port), 2);
        at->sin_family = AF_INET;
        at->sin_port = htons((uint16_t)port);
        inet_pton(AF_INET, address, &at->sin_addr);
        proxy->target_len = sizeof *at;
    }
}

struct tether_test_proxy *tether_test_proxy_start(const char *target)
{
    struct tether_test_proxy *proxy = calloc(1, sizeof *proxy);
    set_target(proxy, target);
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof own;
    proxy->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(proxy->listener, (struct sockaddr *)&own, sizeof own), 0);
    assert_int_equal(listen(proxy->listener, 64), 0);
    assert_int_equal(getsockname(proxy->listener, (struct sockaddr *)&own, &len), 0);
    snprintf(proxy->endpoint, sizeof proxy->endpoint, "127.0.0.1:%d", ntohs(own.sin_port));
    proxy->wake = eventfd(0, EFD_CLOEXEC);
    for (int i = 0; i < MAX_PAIRS; i++)
        proxy->pairs[i].sockets[CLIENT] = proxy->pairs[i].sockets[SERVER] = -1;
    pthread_mutex_init(&proxy->mu, NULL);
    tether__cond_init(&proxy->cut_done);
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

void tether_test_proxy_swallow(struct tether_test_proxy *proxy, int from)
{
    pthread_mutex_lock(&proxy->mu);
    proxy->swallow = from;
    pthread_mutex_unlock(&proxy->mu);
}

void tether_test_proxy_delay(struct tether_test_proxy *proxy, int ms)
{
    pthread_mutex_lock(&proxy->mu);
    proxy->delay_ms = ms;
    pthread_mutex_unlock(&proxy->mu);
}

void tether_test_proxy_dribble(struct tether_test_proxy *proxy, bool dribble)
{
    pthread_mutex_lock(&proxy->mu);
    proxy->dribble = dribble;
    pthread_mutex_unlock(&proxy->mu);
}

void tether_test_proxy_strand(struct tether_test_proxy *proxy)
{
    pthread_mutex_lock(&proxy->mu);
    proxy->strand = true;
    pthread_mutex_unlock(&proxy->mu);
    wake(proxy);
}

void tether_test_proxy_cut(struct tether_test_proxy *proxy, bool refuse)
{
    pthread_mutex_lock(&proxy->mu);
    proxy->cut = true;
    proxy->refuse = refuse;
    wake(proxy);
    int64_t deadline = tether__deadline_in(&tether__clock_system, TETHER_TEST_LIMIT_MS);
    while (proxy->cut && tether__cond_wait(&proxy->cut_done, &proxy->mu, deadline)) {
    }
    bool done = !proxy->cut;
    pthread_mutex_unlock(&proxy->mu);
    if (!done)
        fail_msg("the proxy has not cut its connections after %d ms", TETHER_TEST_LIMIT_MS);
}

int tether_test_proxy_connections(struct tether_test_proxy *proxy)
{
    pthread_mutex_lock(&proxy->mu);
    int connections = proxy->connections;
    pthread_mutex_unlock(&proxy->mu);
    return connections;
}
