/* Shared by the files of the etcd store: store.c (values, the kind), wait.c (check, wait, get,
 * multi_get, barrier), turn.c and queue.c. The store's `impl` is the client.
 */
#ifndef TETHER_RENDEZVOUS_STORE_ETCD_INTERNAL_H
#define TETHER_RENDEZVOUS_STORE_ETCD_INTERNAL_H

#include "rendezvous/store.h"
#include "rendezvous/store/etcd/client/client.h"
#include "rendezvous/store/op.h"

/* The kinds of keys: the letter between the prefix and the slash of a key. */
enum tether__etcd_space {
    TETHER__ETCD_VALUES = 'k',
    TETHER__ETCD_QUEUES = 'q',
    TETHER__ETCD_ARRIVALS = 'b',
    TETHER__ETCD_DONE = 'd',
    TETHER__ETCD_TURNS = 't',
};

/* The deadline of an operation. One with a timeout of 0 still needs a round trip. */
int64_t tether__etcd_deadline(const struct tether__store_op *op);

/* Appends "<prefix><space>/<key>" and `tail`. */
tether_status tether__etcd_name(const struct tether__etcd *etcd,
                                enum tether__etcd_space space,
                                const char *key,
                                tether_bytes tail,
                                tether_buf *name,
                                tether_error *reterr);

/* Gives the range [first, end) of all names that are `key` with a tail, as the elements of a queue
 * are. The caller initialises both buffers. */
tether_status tether__etcd_tails(const struct tether__etcd *etcd,
                                 enum tether__etcd_space space,
                                 const char *key,
                                 tether_buf *first,
                                 tether_buf *end,
                                 tether_error *reterr);

/* A caller's position in the queue of callers that change one value; turn.c explains it. */
struct tether__etcd_turn {
    struct tether__etcd *etcd;
    int64_t deadline;
    tether_bytes value; /* the full key of the value; borrowed */
    /* range of the queue's tickets, and the caller's own ticket; empty: it is not in the queue */
    tether_buf first, end, ticket;
};

/* Initialises a turn. The caller calls tether__etcd_turn_fini(), also after an error. */
tether_status tether__etcd_turn_init(struct tether__etcd_turn *turn,
                                     struct tether__etcd *etcd,
                                     const char *key,
                                     tether_bytes value,
                                     int64_t deadline,
                                     tether_error *reterr);

/* Leaves the queue, unless a transaction of the caller has deleted the ticket
 * (tether__etcd_turn_passed). */
void tether__etcd_turn_fini(struct tether__etcd_turn *turn);

/* Reads the value: at once when the queue is empty, otherwise in this caller's turn. */
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

/* Operations in store/etcd/wait.c. */
tether_status tether__store_etcd_get(struct tether__etcd *etcd, struct tether__store_op *op);
tether_status tether__store_etcd_check(struct tether__etcd *etcd, struct tether__store_op *op);
tether_status tether__store_etcd_wait(struct tether__etcd *etcd, struct tether__store_op *op);
tether_status tether__store_etcd_multi_get(struct tether__etcd *etcd, struct tether__store_op *op);
tether_status tether__store_etcd_barrier(struct tether__etcd *etcd, struct tether__store_op *op);

/* Operations in store/etcd/queue.c. */
tether_status tether__store_etcd_queue_push(struct tether__etcd *etcd, struct tether__store_op *op);
tether_status tether__store_etcd_queue_pop(struct tether__etcd *etcd, struct tether__store_op *op);
tether_status tether__store_etcd_queue_len(struct tether__etcd *etcd, struct tether__store_op *op);

#endif
