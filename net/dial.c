/* Looks names up within a deadline, and connects. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/threads/loop.h"
#include "base/threads/thread.h"
#include "net/net.h"

#define STAGGER_MS 250 /* wait before the next address is tried in parallel */
#define MAX_ATTEMPTS 8 /* at most so many connection attempts at the same time */

/* ---- Addresses ------------------------------------------------------------------------------ */

const char *tether__net_unix_path(const char *host)
{
    size_t len = strlen(TETHER__NET_UNIX_SCHEME);
    return strncmp(host, TETHER__NET_UNIX_SCHEME, len) == 0 ? host + len : NULL;
}

void tether__net_text(const struct sockaddr *addr, socklen_t len, char text[TETHER__NET_TEXT_SIZE])
{
    if (addr->sa_family == AF_UNIX) {
        const struct sockaddr_un *un = (const struct sockaddr_un *)addr;
        snprintf(text, TETHER__NET_TEXT_SIZE, TETHER__NET_UNIX_SCHEME "%.*s",
                 (int)(len - offsetof(struct sockaddr_un, sun_path)), un->sun_path);
        return;
    }
    char host[INET6_ADDRSTRLEN + 16], port[8];
    if (getnameinfo(addr, len, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
        snprintf(text, TETHER__NET_TEXT_SIZE, "an address of family %d", addr->sa_family);
        return;
    }
    bool v6 = addr->sa_family == AF_INET6;
    snprintf(text, TETHER__NET_TEXT_SIZE, "%s%s%s:%s", v6 ? "[" : "", host, v6 ? "]" : "", port);
}

/* A look-up of a name, which may take longer than the call that started it. */
struct lookup {
    char *host;
    char port[8];
    struct addrinfo *list;
    int rc;
    /* under mu */
    bool done, abandoned;
    pthread_mutex_t mu;
    pthread_cond_t finished;
};

static const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};

static void lookup_free(struct lookup *lookup)
{
    if (lookup->list)
        freeaddrinfo(lookup->list);
    pthread_cond_destroy(&lookup->finished);
    pthread_mutex_destroy(&lookup->mu);
    tether__free(lookup->host);
    tether__free(lookup);
}

static void *lookup_main(void *arg)
{
    struct lookup *lookup = arg;
    lookup->rc = getaddrinfo(lookup->host, lookup->port, &hints, &lookup->list);
    /* A minimal system may have no hosts file; "localhost" is loopback all the same (RFC 6761). */
    if (lookup->rc != 0 && strcasecmp(lookup->host, "localhost") == 0)
        lookup->rc = getaddrinfo(NULL, lookup->port, &hints, &lookup->list);
    pthread_mutex_lock(&lookup->mu);
    lookup->done = true;
    bool abandoned = lookup->abandoned;
    pthread_cond_signal(&lookup->finished);
    pthread_mutex_unlock(&lookup->mu);
    if (abandoned)
        lookup_free(lookup);
    return NULL;
}

static struct lookup *lookup_start(const char *host, const char *port)
{
    struct lookup *lookup = tether__calloc(1, sizeof *lookup);
    if (!lookup)
        return NULL;
    pthread_mutex_init(&lookup->mu, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&lookup->finished, &attr);
    pthread_condattr_destroy(&attr);
    snprintf(lookup->port, sizeof lookup->port, "%s", port);
    lookup->host = tether__strdup(host);
    pthread_t thread;
    if (!lookup->host || tether__thread_start(&thread, "tether-lookup", lookup_main, lookup) != 0) {
        lookup_free(lookup);
        return NULL;
    }
    pthread_detach(thread);
    return lookup;
}

/* Waits for the look-up. False when the deadline passes first; then the look-up's thread frees the
 * struct. */
static bool lookup_wait(struct lookup *lookup, int64_t deadline)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    int left_ms = tether__deadline_left_ms(&tether__clock_system, deadline);
    if (left_ms < 0)
        left_ms = INT32_MAX;
    until.tv_sec += left_ms / 1000;
    until.tv_nsec += left_ms % 1000 * TETHER__NS_PER_MS;
    if (until.tv_nsec >= TETHER__NS_PER_S) {
        until.tv_sec++;
        until.tv_nsec -= TETHER__NS_PER_S;
    }
    pthread_mutex_lock(&lookup->mu);
    int rc = 0;
    while (!lookup->done && rc == 0)
        rc = pthread_cond_timedwait(&lookup->finished, &lookup->mu, &until);
    bool done = lookup->done;
    lookup->abandoned = !done;
    pthread_mutex_unlock(&lookup->mu);
    return done;
}

tether_status tether__net_resolve(const char *host,
                                  int port,
                                  int64_t deadline,
                                  struct addrinfo **ret_list,
                                  tether_error *reterr)
{
    char name[NI_MAXHOST], service[8];
    size_t len = strlen(host);
    bool bracketed = len > 2 && host[0] == '[' && host[len - 1] == ']';
    if (len >= sizeof name)
        return tether_error_set(reterr, TETHER_EINVAL, "a host name of %zu bytes is too long", len);
    snprintf(name, sizeof name, "%.*s", (int)(bracketed ? len - 2 : len), host + bracketed);
    snprintf(service, sizeof service, "%d", port);

    struct addrinfo numeric = hints;
    numeric.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
    if (getaddrinfo(name, service, &numeric, ret_list) == 0)
        return TETHER_OK;

    struct lookup *lookup = lookup_start(name, service);
    if (!lookup)
        return tether_error_set(reterr, TETHER_ENOMEM, "no thread to look up host '%s' on", name);
    if (!lookup_wait(lookup, deadline))
        return tether_error_set(reterr, TETHER_ETIMEOUT, "looking up host '%s' takes too long",
                                name);
    int rc = lookup->rc;
    if (rc == 0) {
        *ret_list = lookup->list;
        lookup->list = NULL;
    }
    lookup_free(lookup);
    if (rc != 0)
        return tether_error_set(reterr, TETHER_EUNAVAILABLE, "looking up host '%s': %s", name,
                                gai_strerror(rc));
    return TETHER_OK;
}

/* ---- Connecting ----------------------------------------------------------------------------- */

struct attempts {
    struct pollfd polls[MAX_ATTEMPTS];
    int n;
    int last_errno;
};

/* Whether the socket is connected to itself. A socket that dials a port of this machine may by
 * chance get the same port as its own. */
static bool is_connected_to_itself(int fd)
{
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t here_len = sizeof here, there_len = sizeof there;
    return getsockname(fd, (struct sockaddr *)&here, &here_len) == 0 &&
           getpeername(fd, (struct sockaddr *)&there, &there_len) == 0 &&
           here.ss_family != AF_UNIX && here_len == there_len &&
           memcmp(&here, &there, here_len) == 0;
}

static void start_attempt(struct attempts *attempts, const struct sockaddr *addr, socklen_t len)
{
    tether__occupy_standard_streams();
    int fd = socket(addr->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0 && (connect(fd, addr, len) == 0 || errno == EINPROGRESS || errno == EINTR)) {
        attempts->polls[attempts->n++] = (struct pollfd){.fd = fd, .events = POLLOUT};
        return;
    }
    attempts->last_errno = errno;
    if (fd >= 0)
        close(fd);
}

/* Removes a finished attempt; returns its socket if it is connected, otherwise -1. */
static int finish_attempt(struct attempts *attempts, int i)
{
    int fd = attempts->polls[i].fd, error = 0;
    socklen_t len = sizeof error;
    attempts->polls[i] = attempts->polls[--attempts->n];
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0)
        error = errno;
    if (error == 0 && is_connected_to_itself(fd))
        error = ECONNREFUSED;
    if (error == 0)
        return fd;
    attempts->last_errno = error;
    close(fd);
    return -1;
}

/* Waits at most `wait_ms` for an attempt to finish; returns its socket, or -1 if none has
 * connected. */
static int poll_attempts(struct attempts *attempts, int wait_ms)
{
    if (poll(attempts->polls, (nfds_t)attempts->n, wait_ms) <= 0)
        return -1;
    for (int i = attempts->n - 1; i >= 0; i--) {
        if (!attempts->polls[i].revents)
            continue;
        int fd = finish_attempt(attempts, i);
        if (fd >= 0)
            return fd;
    }
    return -1;
}

static int least_ms(int a, int b)
{
    return a < 0 || (b >= 0 && b < a) ? b : a;
}

/* Returns a connected socket, or -1 with errno (ETIMEDOUT at the deadline). */
static int race(const struct addrinfo *list, int64_t deadline)
{
    struct attempts attempts = {.last_errno = EHOSTUNREACH};
    int fd = -1;
    for (const struct addrinfo *next = list; fd < 0 && (next || attempts.n > 0);) {
        int left_ms = tether__deadline_left_ms(&tether__clock_system, deadline);
        if (left_ms == 0) {
            attempts.last_errno = ETIMEDOUT;
            break;
        }
        if (next && attempts.n < MAX_ATTEMPTS) {
            start_attempt(&attempts, next->ai_addr, next->ai_addrlen);
            next = next->ai_next;
        }
        if (attempts.n > 0)
            fd = poll_attempts(&attempts, next ? least_ms(left_ms, STAGGER_MS) : left_ms);
    }
    for (int i = 0; i < attempts.n; i++)
        close(attempts.polls[i].fd);
    errno = attempts.last_errno;
    return fd;
}

/* Makes the socket blocking, since one thread at a time uses it. Keep-alive detects a dead host
 * within two minutes, also for calls without a timeout. (It has no effect on a unix socket.) */
static void make_usable(int fd)
{
    int one = 1, idle_s = 60, interval_s = 10, probes = 6;
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

static tether_status dial_list(const struct addrinfo *list,
                               int64_t deadline,
                               int *ret_fd,
                               tether_error *reterr)
{
    int fd = race(list, deadline);
    if (fd < 0) {
        char text[TETHER__NET_TEXT_SIZE];
        int error = errno;
        tether__net_text(list->ai_addr, list->ai_addrlen, text);
        return tether_error_set(reterr, error == ETIMEDOUT ? TETHER_ETIMEOUT : TETHER_EUNAVAILABLE,
                                "connecting to %s%s: %s: %s", text,
                                list->ai_next ? " and its other addresses" : "", strerror(error),
                                error == ECONNREFUSED
                                    ? "does a store (rank 0, tether-run, tether-store) run there?"
                                    : "check the address, and that nothing blocks the port");
    }
    make_usable(fd);
    *ret_fd = fd;
    return TETHER_OK;
}

tether_status tether__net_dial_addr(const struct tether__net_addr *addr,
                                    int64_t deadline,
                                    int *ret_fd,
                                    tether_error *reterr)
{
    struct sockaddr_storage copy = addr->sockaddr;
    struct addrinfo one = {.ai_addr = (struct sockaddr *)&copy, .ai_addrlen = addr->len};
    return dial_list(&one, deadline, ret_fd, reterr);
}

static tether_status path_addr(const char *path,
                               struct tether__net_addr *ret_addr,
                               tether_error *reterr)
{
    *ret_addr = (struct tether__net_addr){.len = sizeof(struct sockaddr_un)};
    struct sockaddr_un *un = (struct sockaddr_un *)&ret_addr->sockaddr;
    if (strlen(path) >= sizeof un->sun_path)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "the path of a unix socket is at most "
                                "%zu bytes long, not %zu",
                                sizeof un->sun_path - 1, strlen(path));
    un->sun_family = AF_UNIX;
    strcpy(un->sun_path, path);
    return TETHER_OK;
}

bool tether__net_refuses(const char *host, int port, int64_t deadline)
{
    const char *path = tether__net_unix_path(host);
    struct tether__net_addr addr;
    struct addrinfo at_path = {.ai_addr = (struct sockaddr *)&addr.sockaddr}, *list = NULL;
    tether_status st = path ? path_addr(path, &addr, NULL)
                            : tether__net_resolve(host, port, deadline, &list, NULL);
    if (st != TETHER_OK)
        return false;
    at_path.ai_addrlen = addr.len;
    int fd = race(path ? &at_path : list, deadline);
    bool refuses = fd < 0 && (errno == ECONNREFUSED || (path && errno == ENOENT));
    if (fd >= 0)
        close(fd);
    if (list)
        freeaddrinfo(list);
    return refuses;
}

tether_status tether__net_dial(const char *host,
                               int port,
                               int64_t deadline,
                               int *ret_fd,
                               tether_error *reterr)
{
    const char *path = tether__net_unix_path(host);
    if (path) {
        struct tether__net_addr addr;
        tether_status st = path_addr(path, &addr, reterr);
        return st == TETHER_OK ? tether__net_dial_addr(&addr, deadline, ret_fd, reterr) : st;
    }
    struct addrinfo *list;
    tether_status st = tether__net_resolve(host, port, deadline, &list, reterr);
    if (st != TETHER_OK)
        return st;
    st = dial_list(list, deadline, ret_fd, reterr);
    freeaddrinfo(list);
    return st;
}
