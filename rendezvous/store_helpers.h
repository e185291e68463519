/* Helpers for groups of workers with a store: share data, wait for each other, and create the
 * store. They use the keys of PyTorch's elastic agents, so both can be in one group.
 *
 * Ownership: as in store.h: arguments are borrowed, results in `ret_` arguments are yours.
 *
 * Threads: any thread, several at once. Calls block until they are done or time out, with one
 * deadline for all their steps: not for inline functions.
 *
 * Errors common to all calls: those of the store (store.h); TETHER_EINVAL for a rank outside of the
 * world, TETHER_ETIMEOUT when not all workers came.
 *
 * The helpers do not delete their keys: use a prefix once.
 */
#ifndef TETHER_RENDEZVOUS_STORE_HELPERS_H
#define TETHER_RENDEZVOUS_STORE_HELPERS_H

#include <stddef.h>

#include "rendezvous/store.h"

TETHER_BEGIN_DECLS

/* ---- Temporary timeouts --------------------------------------------------------------------- */

/* Sets another timeout of a store (the meaning of TETHER_DEFAULT_MS) and restores the old one
 * later. The timeout belongs to the store, so all its threads see it change.
 *
 *     TETHER_STORE_TIMEOUT_SCOPE(store, 5000);
 *
 * restores it at the end of the block; with begin() and end() you choose the moment. */
typedef struct tether_store_timeout {
    tether_store *store; /* retained; NULL: nothing to restore */
    int old_ms;
} tether_store_timeout;

/* Begins the scope. TETHER_EINVAL as for tether_store_set_timeout(). `*ret_guard` may be passed to
 * end() in any case. */
TETHER_API tether_status tether_store_timeout_begin(tether_store *store,
                                                    int timeout_ms,
                                                    tether_store_timeout *ret_guard,
                                                    tether_error *reterr);
TETHER_API void tether_store_timeout_end(
    tether_store_timeout *guard); /* a second call does nothing */

#define TETHER_STORE_TIMEOUT_SCOPE(store, timeout_ms)               \
    tether_store_timeout tether_store_timeout_guard_                \
        __attribute__((cleanup(tether_store_timeout_end), unused)); \
    tether_store_timeout_begin((store), (timeout_ms), &tether_store_timeout_guard_, NULL)

/* ---- Sharing data --------------------------------------------------------------------------- */

/* Waits for the keys "{prefix}0", "{prefix}1" ... and fills `ret_values[0..world_size)`, each
 * initialised by the caller, with their values. Rank 0 may host the store, so it returns only after
 * all ranks have read the values. */
TETHER_API tether_status tether_store_get_all(tether_store *store,
                                              int rank,
                                              int world_size,
                                              const char *prefix,
                                              int timeout_ms,
                                              tether_buf *ret_values,
                                              tether_error *reterr);

/* Sets "{prefix}{rank}" to `data`, then does the same as tether_store_get_all(): each rank gets
 * the data of all ranks. */
TETHER_API tether_status tether_store_synchronize(tether_store *store,
                                                  tether_bytes data,
                                                  int rank,
                                                  int world_size,
                                                  const char *prefix,
                                                  int timeout_ms,
                                                  tether_buf *ret_values,
                                                  tether_error *reterr);

/* ---- Waiting for each other ----------------------------------------------------------------- */

/* Returns once `world_size` callers have arrived at `prefix`. With `rank` >= 0 a caller records its
 * rank, and the error of a timeout lists the ranks that are missing: "Timed out waiting on barrier
 * on rank 1, for key prefix: p (world_size=4, missing_ranks=[0, 3], timeout=2000 ms)". With `rank`
 * -1 it records none and the error lists none. */
TETHER_API tether_status tether_store_rank_barrier(tether_store *store,
                                                   int rank,
                                                   int world_size,
                                                   const char *prefix,
                                                   int timeout_ms,
                                                   tether_error *reterr);

/* ---- Getting a store ------------------------------------------------------------------------ */

#define TETHER_PORT_ANY (-1)
#define TETHER_STORE_CREATE_TIMEOUT_MS 600000

struct tether_store_create_opts {
    size_t size; /* set by TETHER_STORE_CREATE_OPTS to sizeof(struct tether_store_create_opts) */

    bool is_server;
    bool insecure;           /* server: may listen beyond loopback */
    const char *server_addr; /* name or address of the server; NULL: 127.0.0.1 */
    int server_port;         /* TETHER_PORT_ANY: a free one; pass tether_store_tcp_port() of the
                                server to the others. 0, not given: the same, but only for a world
                                of one */
    int world_size;          /* number of members; 0: 1 */
    bool dont_wait;          /* return before all `world_size` members have joined */
    /* time for all steps together; 0: TETHER_STORE_CREATE_TIMEOUT_MS, -1: for ever */
    int timeout_ms;
    int retries; /* server: how often to retry a port in use, with backoff; its owner
                    may be about to end. 0: 3, -1: never */
};

#define TETHER_STORE_CREATE_OPTS(...) TETHER__OPTS(tether_store_create_opts, __VA_ARGS__)

/* Makes a TCP store for the members of a group, one of which is the server. TETHER_EINVAL (no port
 * for a world of several), TETHER_EADDRINUSE (the port is in use after all retries),
 * TETHER_ETIMEOUT (no server, or members are missing), otherwise as tether_store_tcp_new(). */
TETHER_API tether_status tether_store_create(const struct tether_store_create_opts *opts,
                                             tether_store **ret_store,
                                             tether_error *reterr);

/* Makes a socket that listens on a free port of loopback, so that no other process gets that port.
 * It is yours to close, or to pass to a server. Gives the descriptor and the port. TETHER_EIO. */
TETHER_API tether_status tether_get_socket_with_port(int *ret_fd,
                                                     int *ret_port,
                                                     tether_error *reterr);

TETHER_END_DECLS

#endif
