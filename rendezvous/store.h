/* The store: a small shared key-value space through which workers find each other.
 *
 * One interface, several kinds: in this process (hash), in a file, over TCP (store_tcp.h), on etcd
 * (store_etcd.h), under a prefix of another store, or your own (fill a tether_store_ops).
 *
 *     tether_store *store = NULL;
 *     tether_error err = {0};
 *     if (tether_store_hash_new(&store, &err) == TETHER_OK)
 *         tether_store_set(store, "greeting", tether_bytes_str("hello"), TETHER_DEFAULT_MS, &err);
 *     store = tether_store_release(store);
 *
 * Ownership: a result in a `ret_` argument is yours; arguments are borrowed for the call. A
 * `tether_buf *ret_…` must be initialised (TETHER_BUF_INIT) and is replaced on success only.
 *
 * Threads: any thread may make any call, several at once; a waiting call does not delay another.
 * Calls block until they are done or time out: not for inline functions.
 *
 * Time: `timeout_ms` limits each call: 0 polls, -1 waits for ever, TETHER_DEFAULT_MS uses the
 * timeout of the store (tether_store_set_timeout; initially 300 s). A call that times out returns
 * TETHER_ETIMEOUT and leaves the store usable.
 *
 * Errors common to all calls: TETHER_EINVAL (empty or NULL key, a timeout below -2), TETHER_ETOOBIG
 * (a key, value or number of keys over the limits), TETHER_ETIMEOUT, TETHER_ENOMEM,
 * TETHER_EUNAVAILABLE (the server is not reachable), TETHER_EIO. The message names the keys, the
 * store, and the time waited.
 */
#ifndef TETHER_RENDEZVOUS_STORE_H
#define TETHER_RENDEZVOUS_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/macros.h"
#include "base/status.h"

TETHER_BEGIN_DECLS

#define TETHER_STORE_DEFAULT_TIMEOUT_MS 300000
#define TETHER_STORE_MAX_KEY 8192 /* bytes */
#define TETHER_STORE_MAX_KEYS_PER_CALL 131072

typedef struct tether_store tether_store;

/* The result of list_keys. A key may contain any bytes, so each is a buffer (with a NUL after it).
 */
typedef struct tether_store_keys {
    tether_buf *keys;
    size_t count;
} tether_store_keys;

/* ---- Using a store ------------------------------------------------------------------------ */

/* tether_store_retain() returns the same store, release returns NULL; both accept NULL. The last
 * release closes the store, so no call may be waiting then. Any thread. */
TETHER_API tether_store *tether_store_retain(tether_store *store);
TETHER_API tether_store *tether_store_release(tether_store *store);

/* Sets `key` to `value`. When it returns, every client of the store sees the new value. */
TETHER_API tether_status tether_store_set(tether_store *store,
                                          const char *key,
                                          tether_bytes value,
                                          int timeout_ms,
                                          tether_error *reterr);

/* Waits until `key` exists, then gives its value. */
TETHER_API tether_status tether_store_get(tether_store *store,
                                          const char *key,
                                          int timeout_ms,
                                          tether_buf *ret_value,
                                          tether_error *reterr);

/* Gives the value of `key`, or TETHER_ENOTFOUND at once when there is none. */
TETHER_API tether_status tether_store_try_get(tether_store *store,
                                              const char *key,
                                              int timeout_ms,
                                              tether_buf *ret_value,
                                              tether_error *reterr);

/* Adds `delta` to the decimal number at `key` (absent: 0) and gives the sum (`ret_sum` may be
 * NULL). A value that is not a whole decimal number, or a sum beyond 64 bits, is TETHER_EINVAL and
 * changes nothing. */
TETHER_API tether_status tether_store_add(tether_store *store,
                                          const char *key,
                                          int64_t delta,
                                          int timeout_ms,
                                          int64_t *ret_sum,
                                          tether_error *reterr);

/* Sets `key` to `desired` if its value is `expected`; an absent key equals the empty value.
 * `*ret_swapped` (may be NULL) says whether it did. `ret_value` (may be NULL) gets `desired` when
 * it did, otherwise the present value. For an absent key and a non-empty `expected` it gets
 * `expected`, as PyTorch's stores answer, so look at `ret_swapped`. */
TETHER_API tether_status tether_store_compare_set(tether_store *store,
                                                  const char *key,
                                                  tether_bytes expected,
                                                  tether_bytes desired,
                                                  int timeout_ms,
                                                  bool *ret_swapped,
                                                  tether_buf *ret_value,
                                                  tether_error *reterr);

/* Gives whether all `n` keys exist; true without keys. */
TETHER_API tether_status tether_store_check(tether_store *store,
                                            const char *const *keys,
                                            size_t n,
                                            int timeout_ms,
                                            bool *ret_ready,
                                            tether_error *reterr);

/* Waits until all `n` keys exist; returns at once without keys. */
TETHER_API tether_status tether_store_wait(tether_store *store,
                                           const char *const *keys,
                                           size_t n,
                                           int timeout_ms,
                                           tether_error *reterr);

/* Deletes `key`; `*ret_deleted` (may be NULL) says whether it existed. */
TETHER_API tether_status tether_store_delete(tether_store *store,
                                             const char *key,
                                             int timeout_ms,
                                             bool *ret_deleted,
                                             tether_error *reterr);

/* Gives the number of keys, including keys that the store itself uses, without queues.
 * TETHER_ENOTSUP for a user-defined store that lacks it. */
TETHER_API tether_status tether_store_num_keys(tether_store *store,
                                               int timeout_ms,
                                               int64_t *ret_count,
                                               tether_error *reterr);

/* ---- Extended calls: emulated on the calls above where a store lacks them ------------------- */

/* Whether the store itself has append, multi_get and multi_set (atomic, one message each). A prefix
 * store answers for the store below it. */
TETHER_API bool tether_store_has_extended_api(const tether_store *store);

/* Appends to the value of `key` (absent: empty), atomically. */
TETHER_API tether_status tether_store_append(tether_store *store,
                                             const char *key,
                                             tether_bytes value,
                                             int timeout_ms,
                                             tether_error *reterr);

/* Waits for all keys, then fills `ret_values[0..n)`, each initialised by the caller. */
TETHER_API tether_status tether_store_multi_get(tether_store *store,
                                                const char *const *keys,
                                                size_t n,
                                                int timeout_ms,
                                                tether_buf *ret_values,
                                                tether_error *reterr);

/* Sets all keys. If the store has the extended calls, other clients see all of them or none. */
TETHER_API tether_status tether_store_multi_set(tether_store *store,
                                                const char *const *keys,
                                                const tether_bytes *values,
                                                size_t n,
                                                int timeout_ms,
                                                tether_error *reterr);

/* Gives all keys. Not emulated: TETHER_ENOTSUP for a store that lacks it. */
TETHER_API tether_status tether_store_list_keys(tether_store *store,
                                                int timeout_ms,
                                                tether_store_keys *ret_keys,
                                                tether_error *reterr);
TETHER_API void tether_store_keys_fini(tether_store_keys *keys);

/* First-in first-out queues, separate from plain values. Not emulated: TETHER_ENOTSUP for a store
 * that lacks them. pop waits for an element; with `timeout_ms` 0 an empty queue is TETHER_ENOTFOUND
 * ("queue is empty"). Every element goes to exactly one caller of pop. For check() and wait() a
 * queue exists while it is not empty. */
TETHER_API tether_status tether_store_queue_push(tether_store *store,
                                                 const char *key,
                                                 tether_bytes value,
                                                 int timeout_ms,
                                                 tether_error *reterr);
TETHER_API tether_status tether_store_queue_pop(tether_store *store,
                                                const char *key,
                                                int timeout_ms,
                                                tether_buf *ret_value,
                                                tether_error *reterr);
TETHER_API tether_status tether_store_queue_len(tether_store *store,
                                                const char *key,
                                                int timeout_ms,
                                                int64_t *ret_len,
                                                tether_error *reterr);

/* Returns once `world_size` callers have arrived at barrier `key`. Use a key once: a caller that
 * timed out stays counted, and after all have arrived, later callers pass at once. */
TETHER_API tether_status tether_store_barrier(tether_store *store,
                                              const char *key,
                                              int64_t world_size,
                                              int timeout_ms,
                                              tether_error *reterr);

/* ---- Settings ------------------------------------------------------------------------------- */

/* The timeout that TETHER_DEFAULT_MS means for this store. Negative values other than -1 are
 * TETHER_EINVAL. */
TETHER_API tether_status tether_store_set_timeout(tether_store *store,
                                                  int timeout_ms,
                                                  tether_error *reterr);
TETHER_API int tether_store_get_timeout(const tether_store *store);

/* Returns a description for messages: "hash store", "tcp store 127.0.0.1:29500". LENDS, as long as
 * the store. Any thread. */
TETHER_API const char *tether_store_describe(const tether_store *store);

/* ---- Kinds ---------------------------------------------------------------------------------- */

/* A store in this process; all threads that hold it share it. */
TETHER_API tether_status tether_store_hash_new(tether_store **ret_store, tether_error *reterr);

/* A store in a file that several processes open (flock, append-only; mode 0600). The last user
 * deletes the file if at least `world_size` users have closed it; never if `world_size` < 0. A
 * writer that is killed in the middle of a record loses that record only. The count of users is one
 * of the keys. Even a call that polls waits up to a second for the lock of the file. The log is
 * compacted (through a file PATH.compact beside it) when it is longer than 1 MiB and longer than
 * four times its keys and values; never on network file systems.
 *
 * TETHER_EIO (the path can't be opened), TETHER_ECORRUPT (another kind of file, or a damaged one;
 * it is left unchanged), TETHER_EINVAL (not a regular file), TETHER_EPERM (a symbolic link, a file
 * of another user, a file that other users may write to, or one with several hard links),
 * TETHER_ETIMEOUT (another process keeps it locked). Calls also return TETHER_EUNAVAILABLE once the
 * file has been removed. */
TETHER_API tether_status tether_store_file_new(const char *path,
                                               int world_size,
                                               tether_store **ret_store,
                                               tether_error *reterr);
TETHER_API const char *tether_store_file_path(
    const tether_store *store); /* NULL: not a file store */

/* A view of another store under "prefix/". Retains `inner`; shares its timeout and its num_keys.
 * May be nested. */
TETHER_API tether_status tether_store_prefix_new(const char *prefix,
                                                 tether_store *inner,
                                                 tether_store **ret_store,
                                                 tether_error *reterr);

/* Return the store below a prefix store (LENDS), one level or all levels down; `store` itself if it
 * is not a prefix store. */
TETHER_API tether_store *tether_store_underlying(tether_store *store);
TETHER_API tether_store *tether_store_underlying_non_prefix(tether_store *store);

/* ---- Your own kind ----------------------------------------------------------------------------
 *
 * `size`, set, get, add, compare_set, check, wait, del and destroy are needed. A call whose
 * function is NULL is emulated or returns TETHER_ENOTSUP, as described above. A barrier that
 * returns TETHER_ENOTSUP without doing anything is emulated, too.
 *
 * Every function gets `impl`. `timeout_ms` is never TETHER_DEFAULT_MS here. 0 forbids waiting for
 * other callers, not the round trip to a server. Keys have been checked: not NULL, not empty, at
 * most TETHER_STORE_MAX_KEY bytes, and at least one where there are `n`. Any thread may call the
 * functions, several at once. Return values through tether_buf_assign(); out arguments are never
 * NULL, and you set them on success only.
 *
 * `reterr` is never NULL here. Set only the cause ("connection reset by peer"), or nothing: the
 * library adds the call, the keys, the description and the time waited. A number that is no status
 * counts as TETHER_EREMOTE.
 */
struct tether_store_ops {
    size_t size; /* set it to sizeof(struct tether_store_ops) */

    tether_status (*set)(void *impl,
                         const char *key,
                         tether_bytes value,
                         int timeout_ms,
                         tether_error *reterr);
    tether_status (*get)(void *impl,
                         const char *key,
                         int timeout_ms,
                         tether_buf *ret_value,
                         tether_error *reterr);
    tether_status (*add)(void *impl,
                         const char *key,
                         int64_t delta,
                         int timeout_ms,
                         int64_t *ret_sum,
                         tether_error *reterr);
    tether_status (*compare_set)(void *impl,
                                 const char *key,
                                 tether_bytes expected,
                                 tether_bytes desired,
                                 int timeout_ms,
                                 bool *ret_swapped,
                                 tether_buf *ret_value,
                                 tether_error *reterr);
    tether_status (*check)(void *impl,
                           const char *const *keys,
                           size_t n,
                           int timeout_ms,
                           bool *ret_ready,
                           tether_error *reterr);
    tether_status (
        *wait)(void *impl, const char *const *keys, size_t n, int timeout_ms, tether_error *reterr);
    tether_status (
        *del)(void *impl, const char *key, int timeout_ms, bool *ret_deleted, tether_error *reterr);
    void (*destroy)(void *impl);

    tether_status (*try_get)(void *impl,
                             const char *key,
                             int timeout_ms,
                             tether_buf *ret_value,
                             tether_error *reterr);
    tether_status (*num_keys)(void *impl, int timeout_ms, int64_t *ret_count, tether_error *reterr);
    tether_status (*append)(void *impl,
                            const char *key,
                            tether_bytes value,
                            int timeout_ms,
                            tether_error *reterr);
    tether_status (*multi_get)(void *impl,
                               const char *const *keys,
                               size_t n,
                               int timeout_ms,
                               tether_buf *ret_values,
                               tether_error *reterr);
    tether_status (*multi_set)(void *impl,
                               const char *const *keys,
                               const tether_bytes *values,
                               size_t n,
                               int timeout_ms,
                               tether_error *reterr);
    tether_status (*list_keys)(void *impl,
                               int timeout_ms,
                               tether_store_keys *ret_keys,
                               tether_error *reterr);
    tether_status (*queue_push)(void *impl,
                                const char *key,
                                tether_bytes value,
                                int timeout_ms,
                                tether_error *reterr);
    tether_status (*queue_pop)(void *impl,
                               const char *key,
                               int timeout_ms,
                               tether_buf *ret_value,
                               tether_error *reterr);
    tether_status (*queue_len)(void *impl,
                               const char *key,
                               int timeout_ms,
                               int64_t *ret_len,
                               tether_error *reterr);
    tether_status (*barrier)(void *impl,
                             const char *key,
                             int64_t world_size,
                             int timeout_ms,
                             tether_error *reterr);
};

/* Makes a store of `ops` (copied) and `impl`. TAKES `impl` on success: destroy(impl) runs at the
 * last release; on error it is still yours. `description` is copied. TETHER_EINVAL when a needed
 * function is missing. */
TETHER_API tether_status tether_store_new(const struct tether_store_ops *ops,
                                          void *impl,
                                          const char *description,
                                          tether_store **ret_store,
                                          tether_error *reterr);

/* Returns the `impl` of a store that was made with these functions (compared by `ops->destroy`);
 * NULL for a store of another kind. LENDS. */
TETHER_API void *tether_store_impl(const tether_store *store, const struct tether_store_ops *ops);

TETHER_END_DECLS

#endif
