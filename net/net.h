/* Sockets for the TCP store: names to addresses, dialling, listening. Every wait has a deadline (on
 * tether__clock_system), interrupted system calls are repeated, and descriptors are close-on-exec.
 *
 * A host is a name, an IPv4 or IPv6 address (with or without brackets), or "unix:/path".
 */
#ifndef TETHER_NET_NET_H
#define TETHER_NET_NET_H

#include <netdb.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/status.h"
#include "net/socket_path.h"

#define TETHER__NET_UNIX_SCHEME "unix:"
#define TETHER__NET_MAX_LISTENERS 8
#define TETHER__NET_TEXT_SIZE 128

struct tether__net_addr {
    struct sockaddr_storage sockaddr;
    socklen_t len;
};

/* Returns the path of a "unix:/path" host, NULL for any other host. LENDS. */
const char *tether__net_unix_path(const char *host);

/* Gives all addresses of `host`, in the order to try them; free them with freeaddrinfo(). A
 * separate thread looks up names; at the deadline this function returns without it. */
tether_status tether__net_resolve(const char *host,
                                  int port,
                                  int64_t deadline,
                                  struct addrinfo **ret_list,
                                  tether_error *reterr);

/* Connects to the first address of `host` that answers. Tries each address once; after a quarter of
 * a second without an answer it tries the next one, too. The socket is blocking, with TCP_NODELAY.
 * TETHER_EUNAVAILABLE (refused, unknown name ...) or TETHER_ETIMEOUT, with the cause. */
tether_status tether__net_dial(const char *host,
                               int port,
                               int64_t deadline,
                               int *ret_fd,
                               tether_error *reterr);

/* Whether no process listens at `host`: a connection is refused, or the socket file does not exist.
 * False when that is not known by the deadline. */
bool tether__net_refuses(const char *host, int port, int64_t deadline);

/* Connects like tether__net_dial(), to one known address. */
tether_status tether__net_dial_addr(const struct tether__net_addr *addr,
                                    int64_t deadline,
                                    int *ret_fd,
                                    tether_error *reterr);

/* Binds a socket to each local address of `host`, all to the same port; 0 picks one. The caller
 * listens on them. TETHER_EPERM when one is beyond loopback and `insecure` is false, otherwise
 * TETHER_EADDRINUSE, TETHER_EIO "The server socket has failed to listen ...". */
tether_status tether__net_bind(const char *host,
                               int port,
                               bool insecure,
                               int ret_fds[TETHER__NET_MAX_LISTENERS],
                               int *ret_n,
                               tether_error *reterr);

/* Listens at a unix socket that only its own user can connect to. Replaces a socket file on which
 * no process listens. `*ret_id` is for tether__socket_path_remove(). */
tether_status tether__net_bind_unix(const char *path,
                                    int *ret_fd,
                                    struct tether__socket_id *ret_id,
                                    tether_error *reterr);

/* The TCP port that a socket is bound to; 0 for a unix socket, -1 for no socket. */
int tether__net_port(int fd);

/* Whether an address is a loopback address or a unix socket. */
bool tether__net_is_loopback(const struct sockaddr *addr);

/* Formats an address: "127.0.0.1:29500", "[::1]:29500", "unix:/path". */
void tether__net_text(const struct sockaddr *addr, socklen_t len, char text[TETHER__NET_TEXT_SIZE]);

#endif
