/* A store operation: one call on a store as a value that passes through the layers of the store.
 *
 * Happy path: a public call (store.c) fills a `struct tether__store_op`; tether__store_run() (op.c)
 * checks the arguments and fixes the deadline; the kind's run() carries the operation out and fills
 * the results. A prefix store replaces the keys and runs the same operation on the store below it.
 *
 * Failure modes: a kind writes only the cause of a failure to `op->cause`; tether__store_run() puts
 * the operation, the keys, the store and the elapsed time in front. An operation that the kind
 * lacks is emulated (fallback.c) or refused with TETHER_ENOTSUP.
 *
 * Threads: an operation belongs to the calling thread. Stores are immutable but for two atomics.
 */
#ifndef TETHER_RENDEZVOUS_STORE_OP_H
#define TETHER_RENDEZVOUS_STORE_OP_H

#include <stdatomic.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "rendezvous/store.h"

enum tether__store_op_kind {
    TETHER__STORE_SET,
    TETHER__STORE_GET,
    TETHER__STORE_TRY_GET,
    TETHER__STORE_ADD,
    TETHER__STORE_COMPARE_SET,
    TETHER__STORE_CHECK,
    TETHER__STORE_WAIT,
    TETHER__STORE_DELETE,
    TETHER__STORE_NUM_KEYS,
    TETHER__STORE_APPEND,
    TETHER__STORE_MULTI_GET,
    TETHER__STORE_MULTI_SET,
    TETHER__STORE_LIST_KEYS,
    TETHER__STORE_QUEUE_PUSH,
    TETHER__STORE_QUEUE_POP,
    TETHER__STORE_QUEUE_LEN,
    TETHER__STORE_BARRIER,
};

struct tether__store_op {
    /* arguments of the operation; borrowed */
    enum tether__store_op_kind kind;
    const char *const *keys; /* array of `n` keys; NUM_KEYS and LIST_KEYS have none */
    size_t n;
    const tether_bytes *values; /* SET, APPEND, QUEUE_PUSH, COMPARE_SET: one; MULTI_SET: `n` */
    tether_bytes expected;      /* COMPARE_SET */
    int64_t number;             /* ADD: the delta; BARRIER: the world size */
    int timeout_ms;             /* never TETHER_DEFAULT_MS when run() is called; 0: must not wait */
    int64_t deadline;           /* on tether__clock_system; passed already when timeout_ms is 0 */
    const char *null_argument;  /* name of a required argument that is NULL; NULL: all are given */
    /* results of the operation, set on success only */
    /* number of buffers: one for GET, TRY_GET, COMPARE_SET and QUEUE_POP, `n` for MULTI_GET */
    tether_buf *results;
    tether_store_keys *list; /* LIST_KEYS */
    int64_t count;           /* ADD: the sum; NUM_KEYS and QUEUE_LEN: the number */
    bool yes;                /* COMPARE_SET: swapped; CHECK: all present; DELETE: was present */
    /* set on failure: only the cause, or left empty */
    tether_error cause;
};

#define TETHER__STORE_BIT(kind) (1U << (kind))

/* One kind of store. run() and lacks() are called from any thread, several at once. */
struct tether__store_kind {
    /* Carries out `op`, whose arguments have been checked. TETHER_ENOTSUP: nothing was done. */
    tether_status (*run)(void *impl, struct tether__store_op *op);
    void (*destroy)(void *impl);
    /* Returns the set of operations (TETHER__STORE_BIT) that this store lacks. NULL: none. */
    uint32_t (*lacks)(const void *impl);
};

struct tether_store {
    /* immutable */
    const struct tether__store_kind *kind;
    void *impl;
    char *description;
    uint32_t lacks;
    /* the store below a prefix store, owned by its impl; NULL: this is no prefix store */
    tether_store *inner;
    /* atomic */
    atomic_int refs;
    /* default timeout; unused in a prefix store, which takes that of the store below it */
    atomic_int timeout_ms;
};

/* Makes a store. TAKES `impl` on success: destroy(impl) runs at the last release. */
tether_status tether__store_new(const struct tether__store_kind *kind,
                                void *impl,
                                const char *description,
                                tether_store **ret_store,
                                tether_error *reterr);

/* The `impl` of a store of this kind; NULL for a store of another kind. LENDS. */
void *tether__store_impl(const tether_store *store, const struct tether__store_kind *kind);

/* Checks the arguments of `op`, runs it and, on failure, makes `op->cause` a whole message. */
tether_status tether__store_run(tether_store *store, struct tether__store_op *op);

/* Emulates an operation that the store lacks. TETHER_ENOTSUP: it cannot be emulated. */
tether_status tether__store_run_fallback(const tether_store *store, struct tether__store_op *op);

/* Copies `text` to `to`, of `size` bytes, for an error message. A text that is too long loses its
 * middle, because the end of a key or path tells most. Unprintable bytes become '?'. Returns `to`.
 */
char *tether__store_shorten(const char *text, char *to, size_t size);

struct tether__kv;

/* Whether the operation only reads the present state, without waiting. */
static inline bool tether__store_op_looks(enum tether__store_op_kind kind)
{
    return TETHER__STORE_BIT(kind) &
           (TETHER__STORE_BIT(TETHER__STORE_TRY_GET) | TETHER__STORE_BIT(TETHER__STORE_CHECK) |
            TETHER__STORE_BIT(TETHER__STORE_NUM_KEYS) | TETHER__STORE_BIT(TETHER__STORE_LIST_KEYS) |
            TETHER__STORE_BIT(TETHER__STORE_QUEUE_LEN));
}

/* Answers an operation that only reads from a key-value core, which the caller guards.
 * TETHER_ENOTSUP: the operation is of another kind. */
tether_status tether__store_op_look(struct tether__store_op *op, struct tether__kv *kv);

/* Computes in `next` the value after `present` (NULL: absent) of an ADD, APPEND or COMPARE_SET.
 * `*ret_write` false: the value stays, and `next` is the result of the COMPARE_SET. */
tether_status tether__store_op_edit(struct tether__store_op *op,
                                    const tether_bytes *present,
                                    tether_buf *next,
                                    bool *ret_write);

/* TETHER_EINVAL: the cause of an ADD to a value that is not a number. */
tether_status tether__store_op_not_a_number(struct tether__store_op *op);

/* Replaces the first result by `value`, whose memory it TAKES. */
static inline void tether__store_op_take_result(struct tether__store_op *op, tether_buf *value)
{
    tether_buf_fini(op->results);
    *op->results = *value;
    *value = TETHER_BUF_INIT;
}

/* Ends a MULTI_GET, which gives all values or none: moves `values` to the results on TETHER_OK, and
 * frees the array and what is left in it. NULL: there are none. */
static inline void tether__store_hand_out(tether_buf *values,
                                          size_t n,
                                          tether_status status,
                                          tether_buf *ret_values)
{
    for (size_t i = 0; values && i < n; i++) {
        if (status == TETHER_OK) {
            tether_buf old = ret_values[i];
            ret_values[i] = values[i];
            values[i] = old;
        }
        tether_buf_fini(&values[i]);
    }
    tether__free(values);
}

#endif
