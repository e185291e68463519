/* The store: a small shared key-value space that workers meet at.
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
 * Ownership: what comes out of a `ret_` argument is yours; arguments are borrowed for the call. A
 * `tether_buf *ret_…` must be initialised (TETHER_BUF_INIT) and is replaced on success only.
 *
 * Threads: every call may be made from any thread, several at once; a thread that waits does not
 * hold up another. Calls block until done or until their time is up: not for inline functions.
 *
 * Time: each call takes the most it may last, `timeout_ms`: 0 polls, -1 waits for ever,
 * TETHER_DEFAULT_MS takes the store's own (tether_store_set_timeout; at first 300 s). A call that
 * runs out of time returns TETHER_ETIMEOUT and leaves the store usable.
 *
 * Errors common to all calls: TETHER_EINVAL (empty or NULL key, a time-out below -2),
 * TETHER_ETOOBIG (a key, value or number of keys over the limits), TETHER_ETIMEOUT, TETHER_ENOMEM,
 * TETHER_EUNAVAILABLE (the server is gone), TETHER_EIO. The message names the keys, the store, and
 * the time waited.
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

/* Keys as list_keys gives them: any bytes, so each is a buffer (with a NUL behind it). */
typedef struct tether_store_keys {
    tether_buf *keys;
    size_t count;
} tether_store_keys;

/* ---- Using a store ------------------------------------------------------------------------ */

/* Retain gives the same store back, release returns NULL; both accept NULL. The last release closes
 * the store: waiting calls must have returned by then. Any thread. */
TETHER_API tether_store *tether_store_retain(tether_store *store);
TETHER_API tether_store *tether_store_release(tether_store *store);

/* Sets `key` to `value`. When it returns, every client of the store sees the new value. */
TETHER_API tether_status tether_store_set(tether_store *store,
                                          const char *key,
                                          tether_bytes value,
                                          int timeout_ms,
                                          tether_error *reterr);

/* Waits for `key` to exist, then gives its value. */
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
 * it did, else the present value, else (the key is absent and `expected` is not empty) `expected`:
 * the last is what PyTorch's stores answer, so look at `ret_swapped`. */
TETHER_API tether_status tether_store_compare_set(tether_store *store,
                                                  const char *key,
                                                  tether_bytes expected,
                                                  tether_bytes desired,
                                                  int timeout_ms,
                                                  bool *ret_swapped,
                                                  tether_buf *ret_value,
                                                  tether_error *reterr);

/* Whether all `n` keys exist. With no keys: true. */
TETHER_API tether_status tether_store_check(tether_store *store,
                                            const char *const *keys,
                                            size_t n,
                                            int timeout_ms,
                                            bool *ret_ready,
                                            tether_error *reterr);

/* Waits until all `n` keys exist. With no keys: at once. */
TETHER_API tether_status tether_store_wait(tether_store *store,
                                           const char *const *keys,
                                           size_t n,
                                           int timeout_ms,
                                           tether_error *reterr);

/* Removes `key`; `*ret_deleted` (may be NULL) says whether it was there. */
TETHER_API tether_status tether_store_delete(tether_store *store,
                                             const char *key,
                                             int timeout_ms,
                                             bool *ret_deleted,
                                             tether_error *reterr);

/* How many keys the store holds, those of its own book-keeping included; queues don't count.
 * TETHER_ENOTSUP where a store that users made lacks it. */
TETHER_API tether_status tether_store_num_keys(tether_store *store,
                                               int timeout_ms,
                                               int64_t *ret_count,
                                               tether_error *reterr);

/* ---- Extended calls: emulated on the calls above where a store lacks them ------------------- */

/* Whether the store has append, multi_get and multi_set by itself (atomic, one message each). A
 * prefix store has what the store below it has. */
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

/* Sets all keys. Where the store has the extended calls, others see all of them or none. */
TETHER_API tether_status tether_store_multi_set(tether_store *store,
                                                const char *const *keys,
                                                const tether_bytes *values,
                                                size_t n,
                                                int timeout_ms,
                                                tether_error *reterr);

/* All keys. No emulation: TETHER_ENOTSUP where the store lacks it. */
TETHER_API tether_status tether_store_list_keys(tether_store *store,
                                                int timeout_ms,
                                                tether_store_keys *ret_keys,
                                                tether_error *reterr);
TETHER_API void tether_store_keys_fini(tether_store_keys *keys);

/* First-in first-out queues, apart from the plain values. No emulation: TETHER_ENOTSUP where the
 * store lacks them. pop waits for an element; with `timeout_ms` 0 an empty queue is
 * TETHER_ENOTFOUND ("queue is empty"). Every element goes to exactly one popper. check() and
 * wait() count a queue that is not empty as present. */
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

/* Returns once `world_size` callers have come to barrier `key`. One use per key: a caller that ran
 * out of time stays counted, and once all have come, later callers pass at once. */
TETHER_API tether_status tether_store_barrier(tether_store *store,
                                              const char *key,
                                              int64_t world_size,
                                              int timeout_ms,
                                              tether_error *reterr);

/* ---- Settings ------------------------------------------------------------------------------- */

/* What TETHER_DEFAULT_MS means for this store. Negative values other than -1 are TETHER_EINVAL. */
TETHER_API tether_status tether_store_set_timeout(tether_store *store,
                                                  int timeout_ms,
                                                  tether_error *reterr);
TETHER_API int tether_store_get_timeout(const tether_store *store);

/* What the store is, for people: "hash store", "tcp store 127.0.0.1:29500". Lives as long as the
 * store. Any thread. */
TETHER_API const char *tether_store_describe(const tether_store *store);

/* ---- Kinds ---------------------------------------------------------------------------------- */

/* In this process only; shared by the threads that hold it. */
TETHER_API tether_status tether_store_hash_new(tether_store **ret_store, tether_error *reterr);

/* In a file that several processes open (flock, append-only; mode 0600). The file goes away with
 * its last user once `world_size` users have closed it; `world_size` < 0: never. A writer killed in
 * the middle of a record loses that record only. The count of its users counts as one key. Even a
 * call that polls waits up to a second for the file's lock. The log is compacted (through a file
 * PATH.compact beside it, and except on network file systems) when it is longer than 1 MiB and than
 * four times what it keeps.
 *
 * TETHER_EIO (the path can't be opened), TETHER_ECORRUPT (it is some other file, or a damaged one;
 * both are left as they are), TETHER_EINVAL (not a regular file), TETHER_EPERM (a symbolic link, a
 * file of another user, one that other users may write to, or one with several hard links),
 * TETHER_ETIMEOUT (another process keeps it locked). Calls also give TETHER_EUNAVAILABLE once the
 * file has been removed. */
TETHER_API tether_status tether_store_file_new(const char *path,
                                               int world_size,
                                               tether_store **ret_store,
                                               tether_error *reterr);
TETHER_API const char *tether_store_file_path(
    const tether_store *store); /* NULL: not a file store */

/* Another store under "prefix/": retains `inner`, shares its time-out and its num_keys. Nests. */
TETHER_API tether_status tether_store_prefix_new(const char *prefix,
                                                 tether_store *inner,
                                                 tether_store **ret_store,
                                                 tether_error *reterr);

/* The store below a prefix store (LENDS), one level or all the way down; `store` itself when it is
 * of another kind. */
TETHER_API tether_store *tether_store_underlying(tether_store *store);
TETHER_API tether_store *tether_store_underlying_non_prefix(tether_store *store);

/* ---- Your own kind ----------------------------------------------------------------------------
 *
 * Fill what you have. `size`, set, get, add, compare_set, check, wait, del and destroy are needed;
 * a call whose function is NULL is emulated or answers TETHER_ENOTSUP as told above. A barrier that
 * returns TETHER_ENOTSUP, and has done nothing, is emulated, too. Every function
 * gets `impl`; `timeout_ms` is never TETHER_DEFAULT_MS here, and 0 asks for what is there now: it
 * forbids waiting for other callers, not the round trip to a server. Keys have been checked: not
 * NULL, not empty, within TETHER_STORE_MAX_KEY, and at least one where there are `n`. Functions are
 * called from any thread, several at once. Values go out through tether_buf_assign(); out arguments
 * are never NULL, and are set on success only.
 *
 * `reterr` is never NULL here and gets the cause alone ("connection reset by peer"), or nothing:
 * the call, the keys, the description and the time waited are put in front of it for you.
 */
struct tether_store_ops {
    size_t size; /* sizeof(struct tether_store_ops) */

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
 * last release; on error it is still yours. `description` is copied. TETHER_EINVAL when a function
 * that is needed is missing. */
TETHER_API tether_status tether_store_new(const struct tether_store_ops *ops,
                                          void *impl,
                                          const char *description,
                                          tether_store **ret_store,
                                          tether_error *reterr);

/* The `impl` that a store made with exactly these functions was given (matched by `ops->destroy`);
 * NULL for a store of another kind. LENDS. */
TETHER_API void *tether_store_impl(const tether_store *store, const struct tether_store_ops *ops);

TETHER_END_DECLS

#endif
