/* URL rendezvous: from a meeting point that everybody knows to a store, a rank and a world size.
 *
 *     struct tether_world world;
 *     tether_error err = {0};
 *     if (tether_rendezvous("tcp://10.0.0.1:29500?world_size=2", rank, -1, 60000, &world, &err))
 *         fprintf(stderr, "%s\n", err.message);
 *
 * Schemes:
 *
 *     env://                    RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT of the environment
 *                               (what tether-run sets); rank= and world_size= in the query win
 *     tcp://host:port?…         a TCP store; rank 0 hosts it at that address, the others connect
 *     file:///path?…            a file that all can open, on one host or a shared disk
 *     etcd://host:port/prefix?… keys below /prefix of an etcd server
 *     yours://…                 whatever you register
 *
 * rank= and world_size= come in the query or as arguments, not both. Characters that mean
 * something in a URL are written %XX; an IPv6 address stands in brackets.
 *
 * etcd:// also knows endpoints= (further members of the cluster, with commas), tls=1, ca=, cert=,
 * key= (files), user= (with the password in TETHER_ETCD_PASSWORD) and insecure=1; choose a new
 * prefix for each run, since etcd keeps what the last one wrote. tcp:// and env:// know insecure=1
 * (rank 0 may listen beyond loopback; env:// also by TETHER_INSECURE=1).
 *
 * env:// understands two more variables, which tether-run sets when it hosts the store itself:
 * TETHER_USE_AGENT_STORE=1 (rank 0 connects like everybody else) and TETHER_STORE_PREFIX (all keys
 * go below it, so that a restarted group never reads what the attempt before it left).
 *
 * Time: one deadline, `timeout_ms`, over name lookup, connecting, and rank 0's wait for the others.
 * It also becomes the time-out of the store that is returned. TETHER_DEFAULT_MS: 300 s.
 *
 * Ownership: arguments are borrowed for the call; the store in a world is yours.
 */
#ifndef TETHER_RENDEZVOUS_RENDEZVOUS_H
#define TETHER_RENDEZVOUS_RENDEZVOUS_H

#include "base/macros.h"
#include "base/status.h"
#include "rendezvous/store.h"

TETHER_BEGIN_DECLS

/* What a rendezvous gives: who you are among how many, and where all of you can talk. */
struct tether_world {
    tether_store *store; /* yours: tether_world_fini() or tether_store_release() */
    int rank;            /* 0 .. size - 1 */
    int size;
};

/* Meets at `url`. `rank` and `world_size`: -1 when the URL (or the environment) has them; if either
 * is given, the URL must have neither. Blocks: not in an inline function or a callback.
 *
 * TETHER_EINVAL: the URL, the environment or the numbers are wrong; TETHER_ENOTFOUND: nobody
 * registered the scheme; TETHER_ETIMEOUT: not everybody came; TETHER_EADDRINUSE: rank 0 cannot
 * listen there; TETHER_EUNAVAILABLE: the store does not answer; TETHER_EIO, TETHER_ENOMEM. The
 * message says what to change. On error there is nothing to undo. */
TETHER_API tether_status tether_rendezvous(const char *url,
                                           int rank,
                                           int world_size,
                                           int timeout_ms,
                                           struct tether_world *ret_world,
                                           tether_error *reterr);

/* Releases the store and zeroes the rest. NULL and zeroed memory are fine. Any thread. */
TETHER_API void tether_world_fini(struct tether_world *world);

/* A scheme of your own. Called for each rendezvous with a URL of that scheme, on the caller's
 * thread, several at once; may block up to `timeout_ms` (-1: for ever; never TETHER_DEFAULT_MS).
 * `url` is as the caller wrote it, with rank= and world_size= appended to its query when they came
 * as arguments. Fills `ret_world` on success only. */
typedef tether_status tether_rendezvous_fn(void *userdata,
                                           const char *url,
                                           int timeout_ms,
                                           struct tether_world *ret_world,
                                           tether_error *reterr);

/* Makes `fn` the handler of `scheme`:// in this process; `userdata` must live until it is taken out
 * again, or as long as the process. Any thread. TETHER_EEXIST when the scheme
 * has one, TETHER_EINVAL when it is not letters, digits, '+', '-', '.' after a letter (case does
 * not matter), TETHER_ENOMEM. */
TETHER_API tether_status tether_rendezvous_register(const char *scheme,
                                                    tether_rendezvous_fn *fn,
                                                    void *userdata,
                                                    tether_error *reterr);

/* Takes a registered handler out again; rendezvous under way finish with it. Any thread.
 * TETHER_ENOTFOUND when the scheme has no handler of yours; built-in ones stay. */
TETHER_API tether_status tether_rendezvous_unregister(const char *scheme, tether_error *reterr);

TETHER_END_DECLS

#endif
