/* The TCP store: one server, any number of clients in any number of processes.
 *
 * The process that hosts (rank 0, by custom) sets `is_host` and gets a server on a thread of its
 * own and a client of it; all other processes get a client. For a server that outlives its users,
 * use the standalone server below, or the program tether-store, which is built on it.
 *
 *     tether_store *store = NULL;
 *     tether_error err = {0};
 *     if (tether_store_tcp_new(TETHER_STORE_TCP_OPTS(.is_host = true), &store, &err) == TETHER_OK)
 *         printf("listening on port %d\n", tether_store_tcp_port(store));
 *     store = tether_store_release(store);
 *
 * Peers: PyTorch processes can use our server, and our clients their server (TCPStore of 1.13 and
 * 2.0: dialect L0; 2.1: L1; 2.2 and later: V). The server detects the dialect from the first bytes.
 * Tether's own dialect answers every request and reports errors.
 *
 * Connections: each call has a connection of its own while it runs, so a waiting call never delays
 * another, and no thread hands a reply to another. A store used by one thread has one connection.
 *
 * Time: when a wait times out, the client cancels it at the server and waits up to two more seconds
 * for the answer. Only a server that does not respond uses up this time.
 *
 * Ownership: results in `ret_` arguments are yours to release; options and their strings are
 * borrowed for the call.
 *
 * Security: there is neither encryption nor a password: every client that can connect can read and
 * write. So a server binds to loopback by default, and beyond loopback only with `insecure`; a unix
 * socket is open to its own user only.
 */
#ifndef TETHER_RENDEZVOUS_STORE_TCP_H
#define TETHER_RENDEZVOUS_STORE_TCP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/macros.h"
#include "base/status.h"
#include "rendezvous/store.h"

TETHER_BEGIN_DECLS

#define TETHER_STORE_TCP_DEFAULT_PORT 29500

typedef enum tether_store_dialect {
    /* client: Tether's dialect if the server supports it, otherwise V */
    TETHER_STORE_DIALECT_AUTO = 0,
    TETHER_STORE_DIALECT_TETHER,
    TETHER_STORE_DIALECT_V,  /* dialect of PyTorch 2.2 and later */
    TETHER_STORE_DIALECT_L0, /* dialect of PyTorch 1.13 and 2.0 */
    TETHER_STORE_DIALECT_L1, /* dialect of PyTorch 2.1 */
} tether_store_dialect;

/* Limits of the messages that a server accepts and a client sends; zero means the default. They are
 * checked before memory is allocated. A client also keeps to the limits of its server, and to 8 MiB
 * a value when the server is PyTorch's. */
struct tether_store_limits {
    size_t max_key;      /* largest key in bytes; default and maximum: TETHER_STORE_MAX_KEY */
    size_t max_value;    /* largest value in bytes; default 64 MiB */
    size_t max_keys;     /* most keys in one request; default TETHER_STORE_MAX_KEYS_PER_CALL */
    size_t max_message;  /* largest request or reply in bytes; default 256 MiB */
    size_t max_buffered; /* bytes a server holds for unfinished requests, unread replies and
                            waits of all its clients together; default 1 GiB */
    size_t max_kept;     /* bytes a server keeps in values and queues: key and value, and 128 bytes
                            for each value and element; default 4 GiB. A change beyond it returns
                            TETHER_ETOOBIG and changes nothing; PyTorch's dialects have no such
                            reply, so the server closes the connection. */
};

/* ---- The store ------------------------------------------------------------------------------ */

struct tether_store_tcp_opts {
    size_t size; /* set by TETHER_STORE_TCP_OPTS to sizeof(struct tether_store_tcp_opts) */

    const char *host; /* name, IPv4 or IPv6 address, or "unix:/path"; NULL: 127.0.0.1. A client
                         tries all addresses of a name, a host binds to all of them. */
    /* port of the server; a host with port 0 picks a free one, see tether_store_tcp_port() */
    int port;

    bool is_host;         /* run the server in this process, for as long as this store lives */
    bool multi_tenant;    /* host: share the server of another multi-tenant store of this process
                             at the same port, if there is one; the last release stops it */
    bool insecure;        /* host: may listen beyond loopback */
    const int *listen_fd; /* host: a bound socket to listen on (TAKEN on success, closed with the
                             server); NULL: none. `port` must be its own or 0. */

    int world_size;        /* how many stores will join, including the host's own; 0: not known */
    bool wait_for_workers; /* with `world_size`: count this store as joined; the host returns once
                              all have joined, or fails with "J/W clients joined" */

    /* time to connect and join, and later the meaning of TETHER_DEFAULT_MS; 0: 300 s, -1: for
     * ever */
    int timeout_ms;
    tether_store_dialect dialect;      /* the dialect to use with the server */
    struct tether_store_limits limits; /* also the limits of the server that this store hosts */
};

#define TETHER_STORE_TCP_OPTS(...) TETHER__OPTS(tether_store_tcp_opts, __VA_ARGS__)

/* Connects, and hosts if `is_host`. Retries the connection with backoff until the timeout, since
 * the server may start later. Any thread; blocks.
 *
 * TETHER_EADDRINUSE / TETHER_EIO "The server socket has failed to listen on any local network
 * address ...", TETHER_EPERM (beyond loopback without `insecure`), TETHER_ETIMEOUT "The client
 * socket has timed out after 1000 ms while trying to connect to (host, port) ..." or "Timed out
 * after 2 seconds waiting for clients. 1/2 clients joined.", TETHER_EUNAVAILABLE (the server at
 * that address is not a store), TETHER_EINVAL. On error there is nothing to undo. */
TETHER_API tether_status tether_store_tcp_new(const struct tether_store_tcp_opts *opts,
                                              tether_store **ret_store,
                                              tether_error *reterr);

/* Return port and host of the server, as this client reaches it. `store` may be a prefix store
 * above a TCP store. -1 and NULL when it is neither; the port is 0 for a unix socket. LENDS. Any
 * thread. */
TETHER_API int tether_store_tcp_port(tether_store *store);
TETHER_API const char *tether_store_tcp_host(tether_store *store);

/* Returns the dialect in use with the server; AUTO when `store` is not a TCP store. Any thread. */
TETHER_API tether_store_dialect tether_store_tcp_dialect(tether_store *store);

/* ---- The server alone ----------------------------------------------------------------------- */

typedef struct tether_store_server tether_store_server;

struct tether_store_server_opts {
    size_t size; /* set by TETHER_STORE_SERVER_OPTS to sizeof(struct tether_store_server_opts) */

    /* as in tether_store_tcp_opts; NULL: 127.0.0.1, or no TCP at all when `unix_path` is set */
    const char *host;
    int port;              /* TCP port to listen on; 0: a free one */
    const char *unix_path; /* a unix socket to listen on (too); mode 0600, removed at the end. While
                              it is made and removed, the file PATH.lock guards it: TETHER_EPERM if
                              other users can open that file. */
    const int *listen_fd;  /* as in tether_store_tcp_opts, used in place of `host` */
    bool insecure;
    bool legacy_is_l1; /* read requests that differ between L0 and L1 as L1 */

    int max_clients;      /* the server serves at most so many at once. Beyond it a new client takes
                             the place of the oldest one that has made no request, and is refused
                             if there is none. 0: half of the descriptors of the process (`ulimit
                             -n` when the server starts), at least 16. */
    int stall_timeout_ms; /* drop a client that has read none of its replies for so long, and one
                             that has made no request for so long while more than half of
                             max_clients are connected and none of them is from PyTorch 1.13 to 2.1;
                             0: 30 s, -1: never */
    struct tether_store_limits limits;
};

#define TETHER_STORE_SERVER_OPTS(...) TETHER__OPTS(tether_store_server_opts, __VA_ARGS__)

struct tether_store_server_stats {
    uint64_t clients;        /* clients that are connected now */
    uint64_t accepted;       /* clients accepted so far */
    uint64_t refused;        /* clients refused because of max_clients */
    uint64_t malformed;      /* clients dropped because of invalid requests */
    uint64_t stalled;        /* clients dropped because they did not read, or for lack of room */
    uint64_t requests;       /* requests executed so far */
    uint64_t waiting;        /* clients with a waiting request now */
    uint64_t keys;           /* keys that have a value now, queues not counted */
    uint64_t buffered_bytes; /* bytes of unfinished requests and unread replies now */
    uint64_t bytes_in, bytes_out;
    uint64_t silent; /* clients dropped because they made no request */
};

/* Starts a server, which listens and serves on a thread of its own until it is released. Errors as
 * for tether_store_tcp_new(). Any thread. */
TETHER_API tether_status tether_store_server_new(const struct tether_store_server_opts *opts,
                                                 tether_store_server **ret_server,
                                                 tether_error *reterr);

/* Stops and frees the server; its connections close. Accepts and returns NULL. Blocks until the
 * thread has ended. */
TETHER_API tether_store_server *tether_store_server_release(tether_store_server *server);

/* Returns the TCP port that the server listens on; 0 when it has a unix socket only. Any thread. */
TETHER_API int tether_store_server_port(const tether_store_server *server);

/* Gives the figures of the server. Any thread; blocks until the server's thread has filled them in.
 */
TETHER_API void tether_store_server_stats(tether_store_server *server,
                                          struct tether_store_server_stats *ret_stats);

TETHER_END_DECLS

#endif
