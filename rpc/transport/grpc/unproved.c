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
#include <fcntl.h>
#include <grpc/support/alloc.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "rpc/transport/grpc/grpc.h"

#define MAX_UNPROVED TETHER__GRPC_MAX_UNPROVED
#define MAX_ENDING TETHER__GRPC_MAX_ENDING
#define CLOSED_WITHIN_MS 5000

void tether__grpc_unproved_init(struct tether__grpc_unproved *unproved)
{
    pthread_mutex_init(&unproved->mu, NULL);
}

static void take_out_locked(struct tether__grpc_unproved *unproved, size_t i)
{
    close(unproved->entries[i].fd);
    unproved->n--;
    memmove(&unproved->entries[i], &unproved->entries[i + 1],
            (unproved->n - i) * sizeof unproved->entries[0]);
}

void tether__grpc_unproved_fini(struct tether__grpc_unproved *unproved)
{
    while (unproved->n)
        take_out_locked(unproved, 0);
    pthread_mutex_destroy(&unproved->mu);
}

/* Whether the number still names that socket. By its name, since the descriptor is not ours. */
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

/* The connection has ended, but for what gRPC has to do. */
static void end_locked(struct tether__grpc_unproved *unproved, size_t i)
{
    const struct tether__grpc_unproved_entry *entry = &unproved->entries[i];
    if (unproved->n_ending < MAX_ENDING)
        unproved->ending[unproved->n_ending++] = (struct tether__grpc_half_closed){
            entry->grpcs_fd, entry->inode,
            tether__deadline_in(&tether__clock_system, CLOSED_WITHIN_MS)};
    take_out_locked(unproved, i);
}

static void shut_down_locked(struct tether__grpc_unproved *unproved, size_t i)
{
    int fd = unproved->entries[i].fd;
    shutdown(fd, SHUT_RDWR);
    while (recv(fd, NULL, INT_MAX, MSG_TRUNC | MSG_DONTWAIT) > 0) {
    } /* gRPC would still read what has come */
    end_locked(unproved, i);
}

/* "ip port" of the other end. False: it is no TCP connection. */
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

/* The same of "ipv4:127.0.0.1:80", "ipv6:[::1]:80" and "ipv6:%5B::1%5D:80". */
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

static void drop_ended_locked(struct tether__grpc_unproved *unproved)
{
    struct pollfd fds[MAX_UNPROVED];
    for (size_t i = 0; i < unproved->n; i++)
        fds[i] = (struct pollfd){.fd = unproved->entries[i].fd, .events = POLLRDHUP};
    if (poll(fds, unproved->n, 0) <= 0)
        return;
    for (size_t i = unproved->n; i-- > 0;)
        if (fds[i].revents && unproved->n_ending < MAX_ENDING)
            end_locked(unproved, i);
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
    pthread_mutex_lock(&unproved->mu);
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

/* The index of the connection with `id`; `n` when it is not here (any more). */
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

void tether__grpc_unproved_call_ends(struct tether__grpc_unproved *unproved, uint64_t id)
{
    if (!id)
        return;
    pthread_mutex_lock(&unproved->mu);
    size_t i = find_locked(unproved, id);
    if (i < unproved->n)
        unproved->entries[i].n_calls--;
    pthread_mutex_unlock(&unproved->mu);
}

void tether__grpc_unproved_used(struct tether__grpc_unproved *unproved, uint64_t id)
{
    if (!id)
        return;
    pthread_mutex_lock(&unproved->mu);
    size_t i = find_locked(unproved, id);
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
    if (i < unproved->n)
        take_out_locked(unproved, i);
    pthread_mutex_unlock(&unproved->mu);
}

/* ---- For the acceptor ---- */

bool tether__grpc_unproved_has_room(struct tether__grpc_unproved *unproved)
{
    pthread_mutex_lock(&unproved->mu);
    if (unproved->n_ending == MAX_ENDING)
        drop_closed_locked(unproved);
    bool has_room = unproved->n_ending < MAX_ENDING;
    pthread_mutex_unlock(&unproved->mu);
    return has_room;
}

size_t tether__grpc_unproved_watch(struct tether__grpc_unproved *unproved, struct pollfd *ret_fds)
{
    pthread_mutex_lock(&unproved->mu);
    size_t n = unproved->n;
    for (size_t i = 0; i < n; i++)
        ret_fds[i] = (struct pollfd){.fd = unproved->entries[i].fd, .events = POLLRDHUP};
    pthread_mutex_unlock(&unproved->mu);
    return n;
}

void tether__grpc_unproved_drop_ended(struct tether__grpc_unproved *unproved)
{
    pthread_mutex_lock(&unproved->mu);
    drop_ended_locked(unproved);
    pthread_mutex_unlock(&unproved->mu);
}
