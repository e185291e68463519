/* Connections whose clients have not shown who they are: gRPC has them, and no limit of its own.
 *
 * Happy path: the acceptor enters a connection when gRPC gets it; it is taken out when a worker's
 * handshake on it is over, when a call with the right token or certificate comes on it, or when it
 * ends. Where a worker asks for neither, plain clients stay, and those in use stay longest.
 *
 * Failure modes: when more than MAX_UNPROVED are entered, the oldest is shut down, and gRPC closes
 * it. So is one with more than MAX_UNPROVED_CALLS calls: gRPC's own limit on streams holds only for
 * clients that acknowledge it, and each call that has not ended costs 10 KiB. A connection that
 * cannot be entered because no descriptor is left is closed by the acceptor.
 *
 * gRPC reads a connection for as long as bytes come, and keeps streams, headers and answers to
 * pings in memory, whether the worker looks at them or not. So the *backlog* of a connection is
 * counted: the bytes that gRPC has read (the kernel knows), without those of calls that the worker
 * has looked at. When all backlogs together exceed MAX_BACKLOG, the connection with the largest is
 * shut down. The thread that accepts looks when bytes come. Connections on unix paths have no such
 * counter; their clients are processes of this user. Where the worker asks for no proof, a
 * connection on which it has served a call is not limited any more.
 *
 * A call finds its connection by the socket's inode where gRPC knows it by its descriptor (plain
 * text), else by its TCP address (TLS). So connections with TLS on a unix path are not entered;
 * their clients are processes of this user.
 *
 * gRPC closes a connection some time after it has ended, when its thread gets there. Those are
 * counted, too; when there are many the acceptor waits for gRPC.
 *
 * gRPC gets a duplicate of the descriptor, and the entry keeps the accepted one: gRPC may close its
 * own at any time, and the number may then name another file. (Not the other way round: the thread
 * sanitizer sees neither fcntl() nor what gRPC closes, and would take the duplicate for an older
 * connection of the same number.)
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grpc/support/alloc.h>
#include <limits.h>
#include <linux/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "rpc/transport/grpc/grpc.h"

#define MAX_UNPROVED TETHER__GRPC_MAX_UNPROVED
#define MAX_ENDING TETHER__GRPC_MAX_ENDING

/* Limits of the backlogs of all connections together, in bytes. An honest client sends less than
 * one window of gRPC's before the worker looks at it, which is below the first limit. The second
 * one applies when the poller has been busy reading for HELD_MS. */
#define MAX_BACKLOG (16 * 1024 * 1024)
#define MAX_BACKLOG_HELD (64 * 1024)
#define HELD_MS 50
#define MAX_LOOK_MS 1000 /* a longer time between two checks restarts the measurement */
#define CLOSED_WITHIN_MS 5000
#define WINDOW_BYTES (64 * 1024) /* the size with which a TCP window begins */
#define ANY_WINDOW (1 << 30)

/* How many bytes a call that has ended takes off the backlog: the size of the metadata of most
 * honest calls. OTHER_CALL_BYTES is the least that a stream costs that is reset at once. */
#define ANSWERED_CALL_BYTES 1024
#define OTHER_CALL_BYTES 28

void tether__grpc_unproved_init(struct tether__grpc_unproved *unproved)
{
    pthread_mutex_init(&unproved->mu, NULL);
    unproved->events = -1;
}

tether_status tether__grpc_unproved_listen(struct tether__grpc_unproved *unproved,
                                           bool limits_backlog,
                                           tether_error *reterr)
{
    unproved->limits_backlog = limits_backlog;
    unproved->events = epoll_create1(EPOLL_CLOEXEC);
    if (unproved->events < 0)
        return tether_error_set(reterr, TETHER_EIO, "starting to listen: %s", strerror(errno));
    return TETHER_OK;
}

/* Sets the socket's receive buffer. It bounds the bytes that the kernel accepts before gRPC reads
 * them, and before the backlog is checked. */
static void set_window(int fd, int bytes)
{
    setsockopt(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP, &bytes, sizeof bytes);
}

/* Makes the epoll descriptor `events` report the end of the connection and, if bytes are counted,
 * their arrival. */
static int watch(struct tether__grpc_unproved *unproved,
                 const struct tether__grpc_unproved_entry *entry,
                 int how)
{
    bool counts = unproved->limits_backlog && !entry->is_admitted;
    struct epoll_event event = {.events = EPOLLET | EPOLLRDHUP | (counts ? EPOLLIN : 0)};
    return epoll_ctl(unproved->events, how, entry->fd, &event);
}

static void take_out_locked(struct tether__grpc_unproved *unproved, size_t i)
{
    int fd = unproved->entries[i].fd;
    /* remove it explicitly: gRPC's duplicate would keep the socket in epoll */
    epoll_ctl(unproved->events, EPOLL_CTL_DEL, fd, NULL);
    close(fd);
    unproved->n--;
    memmove(&unproved->entries[i], &unproved->entries[i + 1],
            (unproved->n - i) * sizeof unproved->entries[0]);
}

void tether__grpc_unproved_fini(struct tether__grpc_unproved *unproved)
{
    while (unproved->n)
        take_out_locked(unproved, 0);
    if (unproved->events >= 0)
        close(unproved->events);
    pthread_mutex_destroy(&unproved->mu);
}

/* Whether gRPC's descriptor number still refers to this socket. Compares inodes, because gRPC may
 * have closed it and the number may be in use again. */
static bool is_open(int fd, ino_t inode)
{
    char path[32], name[64], wanted[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(path, name, sizeof name - 1);
    name[len > 0 ? len : 0] = '\0';
    snprintf(wanted, sizeof wanted, "socket:[%llu]", (unsigned long long)inode);
    return strcmp(name, wanted) == 0;
}

static void drop_closed_locked(struct tether__grpc_unproved *unproved)
{
    size_t n = 0;
    int64_t now = tether__clock_now_ns(&tether__clock_system);
    for (size_t i = 0; i < unproved->n_ending; i++) {
        struct tether__grpc_half_closed *ending = &unproved->ending[i];
        if (is_open(ending->grpcs_fd, ending->inode) && now < ending->until)
            unproved->ending[n++] = *ending;
    }
    unproved->n_ending = n;
}

/* Returns how many bytes of the connection gRPC has read, or can read at any time, that belong to
 * no call. `ret_unread`: how many of these gRPC has not read yet. */
static uint64_t backlog_of(const struct tether__grpc_unproved *unproved,
                           const struct tether__grpc_unproved_entry *entry,
                           uint64_t *ret_unread)
{
    struct tcp_info info = {.tcpi_bytes_received = 0};
    socklen_t size = sizeof info;
    int unread = 0;
    *ret_unread = 0;
    if (!unproved->limits_backlog || entry->is_admitted ||
        getsockopt(entry->fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 ||
        info.tcpi_bytes_received <= entry->looked_at)
        return 0;
    uint64_t backlog = info.tcpi_bytes_received - entry->looked_at;
    if (ioctl(entry->fd, FIONREAD, &unread) == 0 && unread > 0)
        *ret_unread = (uint64_t)unread < backlog ? (uint64_t)unread : backlog;
    return backlog;
}

/* Shuts the connection down; gRPC still has to close it. Discards bytes that have arrived, because
 * gRPC would still read them. */
static void shut_down_locked(struct tether__grpc_unproved *unproved, size_t i)
{
    const struct tether__grpc_unproved_entry *entry = &unproved->entries[i];
    uint64_t unread, backlog = backlog_of(unproved, entry, &unread);
    shutdown(entry->fd, SHUT_RDWR);
    while (recv(entry->fd, NULL, INT_MAX, MSG_TRUNC | MSG_DONTWAIT) > 0) {
    }
    if (unproved->n_ending < MAX_ENDING)
        unproved->ending[unproved->n_ending++] = (struct tether__grpc_half_closed){
            entry->grpcs_fd, entry->inode,
            tether__deadline_in(&tether__clock_system, CLOSED_WITHIN_MS), backlog - unread};
    take_out_locked(unproved, i);
}

/* Writes the address of the other end as "ip port". False: it is no TCP connection. */
static bool peer_of(int fd, char *ret_peer, size_t size)
{
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    char ip[INET6_ADDRSTRLEN];
    if (getpeername(fd, (struct sockaddr *)&at, &len) != 0 ||
        (at.ss_family != AF_INET && at.ss_family != AF_INET6))
        return false;
    bool v6 = at.ss_family == AF_INET6;
    const struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&at;
    const struct sockaddr_in *in4 = (struct sockaddr_in *)&at;
    if (!inet_ntop(at.ss_family, v6 ? (const void *)&in6->sin6_addr : &in4->sin_addr, ip,
                   sizeof ip))
        return false;
    snprintf(ret_peer, size, "%s %d", ip, ntohs(v6 ? in6->sin6_port : in4->sin_port));
    return true;
}

/* Converts an address of gRPC ("ipv4:127.0.0.1:80", "ipv6:[::1]:80", "ipv6:%5B::1%5D:80") into "ip
 * port". */
static void peer_in(const char *address, char *ret_peer, size_t size)
{
    size_t len = 0;
    const char *at = strchr(address, ':'), *port = strrchr(address, ':');
    for (at = at ? at + 1 : address; *at && len + 1 < size; at++) {
        if (*at == '%' && at[1] && at[2])
            at += 2;
        else if (*at != '[' && *at != ']')
            ret_peer[len++] = *at;
        if (at == port)
            ret_peer[len - 1] = ' ';
    }
    ret_peer[len] = '\0';
}

/* Returns whether some stay, for which there is no room: `events` does not tell of them again. */
static bool drop_ended_locked(struct tether__grpc_unproved *unproved)
{
    bool some_stay = false;
    struct pollfd fds[MAX_UNPROVED];
    for (size_t i = 0; i < unproved->n; i++)
        fds[i] = (struct pollfd){.fd = unproved->entries[i].fd, .events = POLLRDHUP};
    if (poll(fds, unproved->n, 0) <= 0)
        return false;
    for (size_t i = unproved->n; i-- > 0;) {
        if (fds[i].revents && unproved->n_ending < MAX_ENDING)
            shut_down_locked(unproved, i);
        else
            some_stay |= fds[i].revents != 0;
    }
    return some_stay;
}

/* Whether the server's poller has read for long without handling an event, measured by its CPU
 * time. Honest clients wait for a new window before that happens. After each true the measurement
 * starts again. */
static bool poller_is_held(struct tether__grpc_unproved *unproved)
{
    const struct tether__grpc_side *side =
        &tether__container_of(unproved, struct tether__grpc, unproved)->sides[TETHER__SERVER];
    uint64_t polls = atomic_load(&side->polls);
    struct timespec used;
    if (atomic_load(&side->poller) != TETHER__GRPC_ASKS || !polls ||
        clock_gettime(atomic_load(&side->cpu_clock), &used) != 0)
        return false;
    int64_t cpu = used.tv_sec * INT64_C(1000000000) + used.tv_nsec;
    int64_t now = tether__clock_now_ns(&tether__clock_system);
    bool is_same = polls == unproved->polls_before &&
                   now - unproved->looked_before < MAX_LOOK_MS * TETHER__NS_PER_MS;
    bool is_held = is_same && cpu - unproved->cpu_before > HELD_MS * TETHER__NS_PER_MS;
    if (!is_same || is_held)
        unproved->cpu_before = cpu;
    unproved->polls_before = polls;
    unproved->looked_before = now;
    return is_held;
}

/* Shuts down connections, those with the largest backlogs first, until the sum is within the
 * limit. Bytes that gRPC has not read count only when clients keep the poller busy: otherwise it
 * may just have had no time. Returns whether the backlog may exceed the limit without further
 * bytes. */
static bool limit_backlog_locked(struct tether__grpc_unproved *unproved)
{
    bool is_held = poller_is_held(unproved);
    for (;;) {
        uint64_t all = 0, counted = 0, largest = 0, unread;
        size_t at = 0;
        for (size_t i = 0; i < unproved->n; i++) {
            uint64_t backlog = backlog_of(unproved, &unproved->entries[i], &unread);
            uint64_t counts = is_held ? backlog : backlog - unread;
            all += backlog;
            counted += counts;
            if (counts > largest) {
                largest = counts;
                at = i;
            }
        }
        if (counted <= (is_held ? MAX_BACKLOG_HELD : MAX_BACKLOG))
            return all > counted && all > MAX_BACKLOG_HELD;
        shut_down_locked(unproved, at);
    }
}

static ino_t inode_of(int fd)
{
    struct stat what;
    return fstat(fd, &what) == 0 ? what.st_ino : 0;
}

int tether__grpc_unproved_enter(struct tether__grpc_unproved *unproved, int fd)
{
    struct tether__grpc_unproved_entry entry = {.fd = fd, .inode = inode_of(fd)};
    if (!peer_of(fd, entry.peer, sizeof entry.peer))
        entry.peer[0] = '\0';
    entry.grpcs_fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (entry.grpcs_fd < 0)
        return -1;
    set_window(fd, WINDOW_BYTES);
    pthread_mutex_lock(&unproved->mu);
    if (watch(unproved, &entry, EPOLL_CTL_ADD) != 0) {
        pthread_mutex_unlock(&unproved->mu);
        close(entry.grpcs_fd);
        return -1;
    }
    if (unproved->n == MAX_UNPROVED)
        drop_ended_locked(unproved);
    if (unproved->n == MAX_UNPROVED)
        shut_down_locked(unproved, 0);
    entry.id = ++unproved->last_id;
    unproved->entries[unproved->n++] = entry;
    pthread_mutex_unlock(&unproved->mu);
    return entry.grpcs_fd;
}

/* ---- Calls ---- */

/* Returns the index of the connection with `id`, or `n` when it is not entered (any more). */
static size_t find_locked(const struct tether__grpc_unproved *unproved, uint64_t id)
{
    size_t i = 0;
    while (i < unproved->n && unproved->entries[i].id != id)
        i++;
    return i;
}

/* The index of the connection that gRPC knows as `address`. */
static size_t find_address_locked(const struct tether__grpc_unproved *unproved, const char *address)
{
    char peer[sizeof unproved->entries[0].peer];
    ino_t inode = strncmp(address, "fd:", 3) == 0 ? inode_of(atoi(address + 3)) : 0;
    peer_in(address, peer, sizeof peer);
    size_t i = 0;
    while (i < unproved->n && (inode ? unproved->entries[i].inode != inode
                                     : strcmp(unproved->entries[i].peer, peer) != 0))
        i++;
    return i;
}

uint64_t tether__grpc_unproved_call_begins(struct tether__grpc_unproved *unproved, grpc_call *call)
{
    uint64_t id = 0;
    char *address = grpc_call_get_peer(call);
    pthread_mutex_lock(&unproved->mu);
    size_t i = unproved->n && address ? find_address_locked(unproved, address) : unproved->n;
    if (i < unproved->n) {
        id = unproved->entries[i].id;
        if (++unproved->entries[i].n_calls > TETHER__GRPC_MAX_UNPROVED_CALLS)
            shut_down_locked(unproved, i);
    }
    pthread_mutex_unlock(&unproved->mu);
    gpr_free(address);
    return id;
}

void tether__grpc_unproved_call_ends(struct tether__grpc_unproved *unproved,
                                     uint64_t id,
                                     bool was_answered)
{
    if (!id)
        return;
    pthread_mutex_lock(&unproved->mu);
    size_t i = find_locked(unproved, id);
    if (i < unproved->n) {
        unproved->entries[i].n_calls--;
        unproved->entries[i].looked_at += was_answered ? ANSWERED_CALL_BYTES : OTHER_CALL_BYTES;
    }
    pthread_mutex_unlock(&unproved->mu);
}

void tether__grpc_unproved_used(struct tether__grpc_unproved *unproved, uint64_t id)
{
    if (!id)
        return;
    pthread_mutex_lock(&unproved->mu);
    size_t i = find_locked(unproved, id);
    if (i < unproved->n && !unproved->entries[i].is_admitted) {
        unproved->entries[i].is_admitted = true;
        set_window(unproved->entries[i].fd, ANY_WINDOW);
        watch(unproved, &unproved->entries[i], EPOLL_CTL_MOD);
    }
    if (i + 1 < unproved->n) {
        struct tether__grpc_unproved_entry entry = unproved->entries[i];
        memmove(&unproved->entries[i], &unproved->entries[i + 1],
                (unproved->n - 1 - i) * sizeof entry);
        unproved->entries[unproved->n - 1] = entry;
    }
    pthread_mutex_unlock(&unproved->mu);
}

void tether__grpc_unproved_remove(struct tether__grpc_unproved *unproved, uint64_t id)
{
    if (!id)
        return;
    pthread_mutex_lock(&unproved->mu);
    size_t i = find_locked(unproved, id);
    if (i < unproved->n) {
        set_window(unproved->entries[i].fd, ANY_WINDOW);
        take_out_locked(unproved, i);
    }
    pthread_mutex_unlock(&unproved->mu);
}

/* ---- For the acceptor ---- */

bool tether__grpc_unproved_has_room(struct tether__grpc_unproved *unproved)
{
    uint64_t backlog = 0;
    pthread_mutex_lock(&unproved->mu);
    for (size_t i = 0; i < unproved->n_ending; i++)
        backlog += unproved->ending[i].backlog;
    if (unproved->n_ending == MAX_ENDING || backlog > MAX_BACKLOG)
        drop_closed_locked(unproved);
    for (size_t i = backlog = 0; i < unproved->n_ending; i++)
        backlog += unproved->ending[i].backlog;
    bool has_room = unproved->n_ending < MAX_ENDING && backlog <= MAX_BACKLOG;
    pthread_mutex_unlock(&unproved->mu);
    return has_room;
}

bool tether__grpc_unproved_look(struct tether__grpc_unproved *unproved)
{
    struct epoll_event events[MAX_UNPROVED];
    while (epoll_wait(unproved->events, events, MAX_UNPROVED, 0) == MAX_UNPROVED) {
    }
    pthread_mutex_lock(&unproved->mu);
    bool again = drop_ended_locked(unproved);
    again |= limit_backlog_locked(unproved);
    pthread_mutex_unlock(&unproved->mu);
    return again;
}
