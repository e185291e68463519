/* Sockets for the TCP store: names to addresses, dialling, listening. Every wait has a deadline (on
 * tether__clock_system), interrupted system calls go on, and descriptors are close-on-exec.
 *
 * A host is a name, an IPv4 or IPv6 address (in brackets or not), or "unix:/path".
 */
#ifndef TETHER_RENDEZVOUS_NET_H
#define TETHER_RENDEZVOUS_NET_H

#include <netdb.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/socket_path.h"
#include "base/status.h"

#define TETHER__NET_UNIX_SCHEME "unix:"
#define TETHER__NET_MAX_LISTENERS 8
#define TETHER__NET_TEXT_SIZE 128

struct tether__net_addr {
    struct sockaddr_storage sockaddr;
    socklen_t len;
};

/* The path of a "unix:/path" host; NULL for any other. LENDS. */
const char *tether__net_unix_path(const char *host);

/* All addresses of `host`, in the order to try them; give them back with freeaddrinfo(). A name is
 * looked up on a thread of its own, which is left to itself when the time is up. */
tether_status tether__net_resolve(const char *host,
                                  int port,
                                  int64_t deadline,
                                  struct addrinfo **ret_list,
                                  tether_error *reterr);

/* Connects to the first address of `host` that answers: one round, the next address a quarter of a
 * second behind one that hangs. The socket is blocking and has no delay. TETHER_EUNAVAILABLE
 * (refused, unknown name ...) or TETHER_ETIMEOUT, with the cause. */
tether_status tether__net_dial(const char *host,
                               int port,
                               int64_t deadline,
                               int *ret_fd,
                               tether_error *reterr);

/* The same for an address that is known already. */
tether_status tether__net_dial_addr(const struct tether__net_addr *addr,
                                    int64_t deadline,
                                    int *ret_fd,
                                    tether_error *reterr);

/* Binds a socket to each address that `host` has here, all to the same port; 0 picks one. The
 * caller listens on them. TETHER_EPERM when one is beyond loopback and `insecure` is false, else
 * TETHER_EADDRINUSE, TETHER_EIO "The server socket has failed to listen ...". */
tether_status tether__net_bind(const char *host,
                               int port,
                               bool insecure,
                               int ret_fds[TETHER__NET_MAX_LISTENERS],
                               int *ret_n,
                               tether_error *reterr);

/* Listens at a unix socket for its own user only. Takes the place of a socket that nobody listens
 * on. `*ret_id` is for tether__socket_path_remove(). */
tether_status tether__net_bind_unix(const char *path,
                                    int *ret_fd,
                                    struct tether__socket_id *ret_id,
                                    tether_error *reterr);

/* The TCP port that a socket is bound to; 0 for a unix socket, -1 for no socket. */
int tether__net_port(int fd);

/* Whether an address is of this machine's loopback, or a unix socket. */
bool tether__net_is_loopback(const struct sockaddr *addr);

/* "127.0.0.1:29500", "[::1]:29500", "unix:/path". */
void tether__net_text(const struct sockaddr *addr, socklen_t len, char text[TETHER__NET_TEXT_SIZE]);

#endif
