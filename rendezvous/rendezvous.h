/* URL rendezvous: turns a URL that all workers know into a store, a rank and a world size.
 *
 *     struct tether_world world;
 *     tether_error err = {0};
 *     if (tether_rendezvous("tcp://10.0.0.1:29500?world_size=2", rank, -1, 60000, &world, &err))
 *         fprintf(stderr, "%s\n", err.message);
 *
 * Schemes:
 *
 *     env://                    RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT of the environment
 *                               (tether-run sets them); rank= and world_size= in the query win
 *     tcp://host:port?…         a TCP store; rank 0 hosts it at that address, the others connect
 *     file:///path?…            a file that all workers can open, on one host or a shared disk
 *     etcd://host:port/prefix?… keys below /prefix of an etcd server
 *     yours://…                 a scheme that you register
 *
 * Give rank= and world_size= in the query or as arguments, not both. Write characters that are
 * special in a URL as %XX, and an IPv6 address in brackets.
 *
 * etcd:// also accepts endpoints= (further members of the cluster, with commas), tls=1, ca=, cert=,
 * key= (files), user= (with the password in TETHER_ETCD_PASSWORD) and insecure=1. Choose a new
 * prefix for each run, since etcd keeps the keys of the last one. tcp:// and env:// accept
 * insecure=1 (rank 0 may listen beyond loopback; env:// also by TETHER_INSECURE=1).
 *
 * env:// reads two more variables, which tether-run sets when it hosts the store itself:
 * TETHER_USE_AGENT_STORE=1 (rank 0 connects like all other ranks) and TETHER_STORE_PREFIX (a prefix
 * of all keys, so that a restarted group never reads keys of the attempt before).
 *
 * Time: `timeout_ms` is one deadline for name lookup, connecting, and rank 0's wait for the others.
 * It also becomes the timeout of the returned store. TETHER_DEFAULT_MS: 300 s.
 *
 * Ownership: arguments are borrowed for the call; the store in a world is yours.
 */
#ifndef TETHER_RENDEZVOUS_RENDEZVOUS_H
#define TETHER_RENDEZVOUS_RENDEZVOUS_H

#include "base/macros.h"
#include "base/status.h"
#include "rendezvous/store.h"

TETHER_BEGIN_DECLS

/* The result of a rendezvous: this worker's rank, the number of workers, and their common store. */
struct tether_world {
    tether_store *store; /* yours: release it by tether_world_fini() or tether_store_release() */
    int rank;            /* this worker's rank, 0 .. size - 1 */
    int size;
};

/* Joins the workers at `url`. `rank` and `world_size`: -1 when the URL (or the environment) has
 * them; if either is given, the URL must have neither. Blocks: not in an inline function or a
 * callback.
 *
 * TETHER_EINVAL: the URL, the environment or the numbers are wrong; TETHER_ENOTFOUND: the scheme is
 * not registered; TETHER_ETIMEOUT: not all workers came; TETHER_EADDRINUSE: rank 0 cannot listen
 * there; TETHER_EUNAVAILABLE: the store does not answer; TETHER_EIO, TETHER_ENOMEM. The
 * message says what to change. On error there is nothing to undo. */
TETHER_API tether_status tether_rendezvous(const char *url,
                                           int rank,
                                           int world_size,
                                           int timeout_ms,
                                           struct tether_world *ret_world,
                                           tether_error *reterr);

/* Releases the store and zeroes the rest. NULL and zeroed memory are fine. Any thread. */
TETHER_API void tether_world_fini(struct tether_world *world);

/* The handler of a scheme of your own. Runs for each rendezvous with a URL of that scheme, on the
 * caller's thread, several at once. May block up to `timeout_ms` (-1: for ever; never
 * TETHER_DEFAULT_MS). `url` is the text of the caller, with rank= and world_size= appended to its
 * query when they came as arguments. Fills all of `ret_world`, and on success only: without a
 * store, or with a rank outside of the world, the rendezvous fails with TETHER_EINVAL. */
typedef tether_status tether_rendezvous_fn(void *userdata,
                                           const char *url,
                                           int timeout_ms,
                                           struct tether_world *ret_world,
                                           tether_error *reterr);

/* Registers `fn` as the handler of `scheme`:// in this process. `userdata` must stay valid until
 * the handler is unregistered. Any thread. TETHER_EEXIST when the scheme has a handler,
 * TETHER_EINVAL when it is not a letter followed by letters, digits, '+', '-' or '.' (case does not
 * matter), TETHER_ENOMEM. */
TETHER_API tether_status tether_rendezvous_register(const char *scheme,
                                                    tether_rendezvous_fn *fn,
                                                    void *userdata,
                                                    tether_error *reterr);

/* Unregisters a handler; a rendezvous that is running finishes with it. Any thread.
 * TETHER_ENOTFOUND when the scheme has no handler of yours; built-in handlers cannot be
 * unregistered. */
TETHER_API tether_status tether_rendezvous_unregister(const char *scheme, tether_error *reterr);

TETHER_END_DECLS

#endif
