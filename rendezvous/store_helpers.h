/* What groups of workers do with a store: share data, wait for each other, and get a store to begin
 * with. Keys are those that PyTorch's elastic agents use, so both can meet in one group.
 *
 * Ownership: as in store.h: arguments are borrowed, what comes out of a `ret_` argument is yours.
 *
 * Threads: any thread, several at once. Calls block until done or until their time is up, one
 * deadline over each: not for inline functions.
 *
 * Errors common to all calls: those of the store that they are made on (store.h); TETHER_EINVAL for
 * a rank outside of the world, TETHER_ETIMEOUT when not everybody came.
 *
 * Nothing here removes its keys: a prefix serves once.
 */
#ifndef TETHER_RENDEZVOUS_STORE_HELPERS_H
#define TETHER_RENDEZVOUS_STORE_HELPERS_H

#include <stddef.h>

#include "rendezvous/store.h"

TETHER_BEGIN_DECLS

/* ---- Time-outs for a while ------------------------------------------------------------------ */

/* Another time-out for a store (what TETHER_DEFAULT_MS means), and the old one back at the end.
 * The time-out belongs to the store, so all its threads see it change.
 *
 *     TETHER_STORE_TIMEOUT_SCOPE(store, 5000);
 *
 * lasts to the end of the block, however that is left; begin() and end() are the same by hand. */
typedef struct tether_store_timeout {
    tether_store *store; /* retained; NULL: nothing to restore */
    int old_ms;
} tether_store_timeout;

/* TETHER_EINVAL as tether_store_set_timeout(); then `*ret_guard` is safe to end() all the same. */
TETHER_API tether_status tether_store_timeout_begin(tether_store *store,
                                                    int timeout_ms,
                                                    tether_store_timeout *ret_guard,
                                                    tether_error *reterr);
TETHER_API void tether_store_timeout_end(tether_store_timeout *guard); /* again: does nothing */

#define TETHER_STORE_TIMEOUT_SCOPE(store, timeout_ms)               \
    tether_store_timeout tether_store_timeout_guard_                \
        __attribute__((cleanup(tether_store_timeout_end), unused)); \
    tether_store_timeout_begin((store), (timeout_ms), &tether_store_timeout_guard_, NULL)

/* ---- Sharing data --------------------------------------------------------------------------- */

/* Fills `ret_values[0..world_size)`, each initialised by the caller, from the keys "{prefix}0",
 * "{prefix}1" ..., waiting for them. Rank 0 returns only when all have theirs: it may host the
 * store, which goes away with it. */
TETHER_API tether_status tether_store_get_all(tether_store *store,
                                              int rank,
                                              int world_size,
                                              const char *prefix,
                                              int timeout_ms,
                                              tether_buf *ret_values,
                                              tether_error *reterr);

/* Sets "{prefix}{rank}" to `data`, then as get_all: afterwards each has the data of all. */
TETHER_API tether_status tether_store_synchronize(tether_store *store,
                                                  tether_bytes data,
                                                  int rank,
                                                  int world_size,
                                                  const char *prefix,
                                                  int timeout_ms,
                                                  tether_buf *ret_values,
                                                  tether_error *reterr);

/* ---- Waiting for each other ----------------------------------------------------------------- */

/* Returns once `world_size` callers have come to `prefix`. With `rank` >= 0 a caller leaves its
 * mark, and whoever runs out of time is told which ranks have left none: "Timed out waiting on
 * barrier on rank 1, for key prefix: p (world_size=4, missing_ranks=[0, 3], timeout=2000 ms)".
 * With `rank` -1 it has no mark and names nobody. */
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
    size_t size; /* sizeof(struct tether_store_create_opts); TETHER_STORE_CREATE_OPTS fills it */

    bool is_server;
    bool insecure;           /* server: may bind beyond loopback */
    const char *server_addr; /* name or address; NULL: 127.0.0.1 */
    int server_port;         /* TETHER_PORT_ANY: a free one, which the server then tells the others
                                (tether_store_tcp_port()); 0, not given: the same, but for a world
                                of one only */
    int world_size;          /* 0: 1 */
    bool dont_wait;          /* return before all `world_size` have come */
    int timeout_ms;          /* over all of it; 0: TETHER_STORE_CREATE_TIMEOUT_MS, -1: for ever */
    int retries;             /* server: how often to try a taken port again, ever more slowly; its
                                owner may be on its way out. 0: 3, -1: never */
};

#define TETHER_STORE_CREATE_OPTS(...) TETHER__OPTS(tether_store_create_opts, __VA_ARGS__)

/* A TCP store for the members of a group, one of which is the server. TETHER_EINVAL (no port for a
 * world of several), TETHER_EADDRINUSE (the port is still taken after all retries),
 * TETHER_ETIMEOUT (no server came, or not all the others did), else as tether_store_tcp_new(). */
TETHER_API tether_status tether_store_create(const struct tether_store_create_opts *opts,
                                             tether_store **ret_store,
                                             tether_error *reterr);

/* A socket that listens on a free port of loopback, so that nobody else gets that port: yours to
 * close, or to hand to a server. Returns the descriptor and the port. TETHER_EIO. */
TETHER_API tether_status tether_get_socket_with_port(int *ret_fd,
                                                     int *ret_port,
                                                     tether_error *reterr);

TETHER_END_DECLS

#endif
