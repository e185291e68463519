/* The TCP store: one server, any number of clients in any number of processes.
 *
 * The process that hosts (rank 0, by custom) asks for `is_host` and gets a server on a thread of
 * its own together with a client of it; everybody else gets a client. A server that outlives its
 * users is the standalone one below, or the program tether-store, which is built on it.
 *
 *     tether_store *store = NULL;
 *     tether_error err = {0};
 *     if (tether_store_tcp_new(TETHER_STORE_TCP_OPTS(.is_host = true), &store, &err) == TETHER_OK)
 *         printf("listening on port %d\n", tether_store_tcp_port(store));
 *     store = tether_store_release(store);
 *
 * Peers: real PyTorch processes may use our server and our clients theirs (TCPStore of 1.13 and
 * 2.0: dialect L0; 2.1: L1; 2.2 and later: V). The server tells them apart by their first bytes.
 * Two Tethers speak a dialect of their own, which answers every request and says what is wrong.
 *
 * Connections: a call under way has a connection to itself and gives it back when it is done, so
 * a call that waits never holds up another, and no thread hands a reply to another. A store used
 * by one thread has one connection.
 *
 * Time: a wait that runs out of it is taken back at the server, which has two seconds more to
 * answer that; only a server that stands still needs them.
 *
 * Ownership: what comes out of a `ret_` argument is yours to release; options and their strings are
 * borrowed for the call.
 *
 * Security: there is neither encryption nor a password here: whoever can connect can read and
 * write. So a server binds to loopback unless told otherwise, and beyond loopback only with
 * `insecure`; a unix socket is open to its own user only.
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
    TETHER_STORE_DIALECT_AUTO = 0, /* client: Tether's where the server has it, else V */
    TETHER_STORE_DIALECT_TETHER,
    TETHER_STORE_DIALECT_V,  /* PyTorch 2.2 and later */
    TETHER_STORE_DIALECT_L0, /* PyTorch 1.13 and 2.0 */
    TETHER_STORE_DIALECT_L1, /* PyTorch 2.1 */
} tether_store_dialect;

/* What a server takes in and a client sends; zero means the default. Checked before memory is
 * taken. A client also keeps to what its server has said, and to 8 MiB a value when the server is
 * PyTorch's. */
struct tether_store_limits {
    size_t max_key;      /* bytes of a key; default and most: TETHER_STORE_MAX_KEY */
    size_t max_value;    /* bytes of a value; default 64 MiB */
    size_t max_keys;     /* keys of one request; default TETHER_STORE_MAX_KEYS_PER_CALL */
    size_t max_message;  /* bytes of a whole request or reply; default 256 MiB */
    size_t max_buffered; /* bytes a server holds for unfinished requests, unread replies and
                            waits of all its clients together; default 1 GiB */
    size_t max_kept;     /* bytes a server keeps in values and queues: both texts, and 128 bytes
                            for each value and element; default 4 GiB. A change beyond it gives
                            TETHER_ETOOBIG and changes nothing; PyTorch's dialects, which can't
                            say so, lose the connection. */
};

/* ---- The store ------------------------------------------------------------------------------ */

struct tether_store_tcp_opts {
    size_t size; /* sizeof(struct tether_store_tcp_opts); TETHER_STORE_TCP_OPTS fills it */

    const char *host; /* name, IPv4 or IPv6 address, or "unix:/path"; NULL: 127.0.0.1. All
                         addresses that a name gives are tried, or bound to by a host. */
    int port;         /* a host may give 0 and ask for the one it got */

    bool is_host;         /* run the server in this process, for as long as this store lives */
    bool multi_tenant;    /* host: share the server of another multi-tenant store of this process
                             at the same port, if there is one; it lives until the last is gone */
    bool insecure;        /* host: may bind beyond loopback */
    const int *listen_fd; /* host: a bound socket to listen on (TAKEN on success, closed with the
                             server); NULL: none. `port` must be its own or 0. */

    int world_size;        /* how many stores will join, the host's own included; 0: not known */
    bool wait_for_workers; /* with `world_size`: count this store as joined; the host returns once
                              all have, or fails with "J/W clients joined" */

    int timeout_ms; /* for connecting and joining, and what TETHER_DEFAULT_MS means from then on;
                       0: 300 s, -1: for ever */
    tether_store_dialect dialect;      /* what to speak to the server */
    struct tether_store_limits limits; /* a host's server has the same */
};

#define TETHER_STORE_TCP_OPTS(...) TETHER__OPTS(tether_store_tcp_opts, __VA_ARGS__)

/* Connects (and hosts, if asked to). Connecting is tried again, ever more slowly, until the time is
 * up: the server may be started later. Any thread; blocks.
 *
 * TETHER_EADDRINUSE / TETHER_EIO "The server socket has failed to listen on any local network
 * address ...", TETHER_EPERM (beyond loopback without `insecure`), TETHER_ETIMEOUT "The client
 * socket has timed out after 1000 ms while trying to connect to (host, port) ..." or "Timed out
 * after 2 seconds waiting for clients. 1/2 clients joined.", TETHER_EUNAVAILABLE (something else
 * than a store answers there), TETHER_EINVAL. On error nothing is left behind. */
TETHER_API tether_status tether_store_tcp_new(const struct tether_store_tcp_opts *opts,
                                              tether_store **ret_store,
                                              tether_error *reterr);

/* Where the server is, as this client reaches it. `store` may be a prefix store above a TCP store.
 * -1 and NULL when there is no TCP store below; the port is 0 for a unix socket. LENDS. Any
 * thread. */
TETHER_API int tether_store_tcp_port(tether_store *store);
TETHER_API const char *tether_store_tcp_host(tether_store *store);

/* What is spoken with the server; AUTO when `store` is no TCP store. Any thread. */
TETHER_API tether_store_dialect tether_store_tcp_dialect(tether_store *store);

/* ---- The server alone ----------------------------------------------------------------------- */

typedef struct tether_store_server tether_store_server;

struct tether_store_server_opts {
    size_t size; /* sizeof(struct tether_store_server_opts); TETHER_STORE_SERVER_OPTS fills it */

    const char *host;      /* as above; NULL: 127.0.0.1, or no TCP at all when `unix_path` is set */
    int port;              /* 0: a free one */
    const char *unix_path; /* listen here (too); mode 0600, removed at the end. NULL: don't. */
    const int *listen_fd;  /* as above, in place of `host` */
    bool insecure;
    bool legacy_is_l1; /* read the few bytes that L0 and L1 understand differently as L1 */

    int max_clients;      /* more are turned away at once; 0: as many as there are descriptors */
    int stall_timeout_ms; /* drop a client that has not read any of its replies for so long;
                             0: 30 s, -1: never */
    struct tether_store_limits limits;
};

#define TETHER_STORE_SERVER_OPTS(...) TETHER__OPTS(tether_store_server_opts, __VA_ARGS__)

struct tether_store_server_stats {
    uint64_t clients;        /* connected now */
    uint64_t accepted;       /* ever */
    uint64_t refused;        /* turned away at max_clients */
    uint64_t malformed;      /* dropped for what they sent */
    uint64_t stalled;        /* dropped for not reading, or for want of room */
    uint64_t requests;       /* carried out, ever */
    uint64_t waiting;        /* clients that wait for something now */
    uint64_t keys;           /* now, queues not counted */
    uint64_t buffered_bytes; /* of unfinished requests and unread replies, now */
    uint64_t bytes_in, bytes_out;
};

/* Listens and serves on a thread of its own until released. Errors as above. Any thread. */
TETHER_API tether_status tether_store_server_new(const struct tether_store_server_opts *opts,
                                                 tether_store_server **ret_server,
                                                 tether_error *reterr);

/* Stops and frees it; clients see their connections close. Accepts and returns NULL. Blocks until
 * the thread has ended. */
TETHER_API tether_store_server *tether_store_server_release(tether_store_server *server);

/* The TCP port it listens on; 0 when it has a unix socket only. Any thread. */
TETHER_API int tether_store_server_port(const tether_store_server *server);

/* How the server is doing. Any thread; blocks until the server's thread has taken the figures. */
TETHER_API void tether_store_server_stats(tether_store_server *server,
                                          struct tether_store_server_stats *ret_stats);

TETHER_END_DECLS

#endif
