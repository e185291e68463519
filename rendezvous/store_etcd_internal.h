/* What the files of the etcd store share: store_etcd.c (values, the vtable), store_etcd_wait.c
 * (check, wait, get, multi_get, barrier) and store_etcd_queue.c. The store's `impl` is the client.
 */
#ifndef TETHER_RENDEZVOUS_STORE_ETCD_INTERNAL_H
#define TETHER_RENDEZVOUS_STORE_ETCD_INTERNAL_H

#include "rendezvous/etcd_client.h"
#include "rendezvous/store.h"

/* Where things are under the prefix: the letter before the slash. */
enum tether__etcd_space {
    TETHER__ETCD_VALUES = 'k',
    TETHER__ETCD_QUEUES = 'q',
    TETHER__ETCD_ARRIVALS = 'b',
    TETHER__ETCD_DONE = 'd',
    TETHER__ETCD_TURNS = 't',
};

/* The deadline of a call. 0 ms still need a round trip. */
int64_t tether__etcd_deadline(int timeout_ms);

/* Appends "<prefix><space>/<key>" and `tail`. */
tether_status tether__etcd_name(const struct tether__etcd *etcd,
                                enum tether__etcd_space space,
                                const char *key,
                                tether_bytes tail,
                                tether_buf *name,
                                tether_error *reterr);

/* All elements of a queue: [first, end). Both are initialised by the caller. */
tether_status tether__etcd_queue_span(const struct tether__etcd *etcd,
                                      const char *key,
                                      tether_buf *first,
                                      tether_buf *end,
                                      tether_error *reterr);

/* A place in the queue of those who change a value; store_etcd_turn.c says how it works. */
struct tether__etcd_turn {
    struct tether__etcd *etcd;
    int64_t deadline;
    tether_bytes value;            /* the name of the value; borrowed */
    tether_buf first, end, ticket; /* no ticket: not in the queue */
};

/* To be undone by tether__etcd_turn_fini() also on error. */
tether_status tether__etcd_turn_init(struct tether__etcd_turn *turn,
                                     struct tether__etcd *etcd,
                                     const char *key,
                                     tether_bytes value,
                                     int64_t deadline,
                                     tether_error *reterr);

/* Leaves the queue, if that has not happened in a transaction (tether__etcd_turn_passed). */
void tether__etcd_turn_fini(struct tether__etcd_turn *turn);

/* Reads the value: at once when nobody is in the queue, otherwise in this caller's turn. */
tether_status tether__etcd_turn_read(struct tether__etcd_turn *turn,
                                     struct tether__etcd_value *ret_value,
                                     tether_error *reterr);

/* Joins the queue if this caller is not in it, and reads the value in its turn. */
tether_status tether__etcd_turn_await(struct tether__etcd_turn *turn,
                                      struct tether__etcd_value *ret_value,
                                      tether_error *reterr);

/* The ticket has been deleted in a transaction of the caller's. */
static inline void tether__etcd_turn_passed(struct tether__etcd_turn *turn)
{
    tether_buf_fini(&turn->ticket);
}

/* As in tether_store_ops; store_etcd_wait.c */
tether_status tether__store_etcd_get(void *impl,
                                     const char *key,
                                     int timeout_ms,
                                     tether_buf *ret_value,
                                     tether_error *reterr);
tether_status tether__store_etcd_check(void *impl,
                                       const char *const *keys,
                                       size_t n,
                                       int timeout_ms,
                                       bool *ret_ready,
                                       tether_error *reterr);
tether_status tether__store_etcd_wait(void *impl,
                                      const char *const *keys,
                                      size_t n,
                                      int timeout_ms,
                                      tether_error *reterr);
tether_status tether__store_etcd_multi_get(void *impl,
                                           const char *const *keys,
                                           size_t n,
                                           int timeout_ms,
                                           tether_buf *ret_values,
                                           tether_error *reterr);
tether_status tether__store_etcd_barrier(void *impl,
                                         const char *key,
                                         int64_t world_size,
                                         int timeout_ms,
                                         tether_error *reterr);

/* store_etcd_queue.c */
tether_status tether__store_etcd_queue_push(void *impl,
                                            const char *key,
                                            tether_bytes value,
                                            int timeout_ms,
                                            tether_error *reterr);
tether_status tether__store_etcd_queue_pop(void *impl,
                                           const char *key,
                                           int timeout_ms,
                                           tether_buf *ret_value,
                                           tether_error *reterr);
tether_status tether__store_etcd_queue_len(void *impl,
                                           const char *key,
                                           int timeout_ms,
                                           int64_t *ret_len,
                                           tether_error *reterr);

#endif
