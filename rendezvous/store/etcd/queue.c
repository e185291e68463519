/* The etcd store: queues. An element is a key of its own, q/<key>\0<revision>-<number>, and the
 * queue is the span of them.
 *
 * push reads etcd's revision and puts it into the name of its element. A push that starts after
 * this one has returned reads a higher revision. So names are in the order of the pushes, the first
 * name is the head, and pushes never conflict. Concurrent pushes may be ordered either way; the
 * random number keeps their names different.
 *
 * pop reads the head and deletes it if it still exists. A caller that is too late gets the next
 * head in the same reply and retries at once: a wait would favour callers that have just succeeded.
 * On an empty queue it watches the span for a put.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "rendezvous/store/etcd/client/watch.h"
#include "rendezvous/store/etcd/internal.h"

/* The key range of a queue during an operation. */
struct queue {
    struct tether__etcd *etcd;
    int64_t deadline;
    tether_buf first, end;
};

static void queue_fini(struct queue *queue)
{
    tether_buf_fini(&queue->end);
    tether_buf_fini(&queue->first);
}

/* Sets up the key range. The caller calls queue_fini(), also after an error. */
static tether_status queue_init(struct queue *queue,
                                struct tether__etcd *etcd,
                                struct tether__store_op *op)
{
    *queue = (struct queue){.etcd = etcd, .deadline = tether__etcd_deadline(op)};
    return tether__etcd_tails(etcd, TETHER__ETCD_QUEUES, op->keys[0], &queue->first, &queue->end,
                              &op->cause);
}

static struct tether__etcd_op range_of(const struct queue *queue)
{
    return (struct tether__etcd_op){.kind = TETHER__ETCD_RANGE,
                                    .key = tether_buf_bytes(&queue->first),
                                    .end = tether_buf_bytes(&queue->end)};
}

/* Reads the number of elements and the revision. */
static tether_status count(const struct queue *queue,
                           int64_t *ret_count,
                           int64_t *ret_revision,
                           tether_error *reterr)
{
    struct tether__etcd_op range = range_of(queue);
    range.count_only = true;
    Etcdserverpb__TxnResponse *reply = NULL;
    tether_status st = tether__etcd_read(queue->etcd, &range, 1, queue->deadline, &reply, reterr);
    if (st != TETHER_OK)
        return st;
    *ret_count = reply->responses[0]->response_range->count;
    *ret_revision = reply->header->revision;
    tether__pb_free(reply);
    return TETHER_OK;
}

tether_status tether__store_etcd_queue_len(struct tether__etcd *etcd, struct tether__store_op *op)
{
    struct queue queue;
    int64_t revision;
    tether_status st = queue_init(&queue, etcd, op);
    if (st == TETHER_OK)
        st = count(&queue, &op->count, &revision, &op->cause);
    queue_fini(&queue);
    return st;
}

tether_status tether__store_etcd_queue_push(struct tether__etcd *etcd, struct tether__store_op *op)
{
    struct queue queue;
    int64_t len, revision;
    tether_status st = queue_init(&queue, etcd, op);
    if (st == TETHER_OK)
        st = count(&queue, &len, &revision, &op->cause);
    if (st == TETHER_OK) {
        uint64_t number;
        arc4random_buf(&number, sizeof number);
        st = tether_buf_printf(&queue.first, "%016" PRIx64 "-%016" PRIx64, (uint64_t)revision,
                               number);
    }
    if (st == TETHER_OK)
        st = tether__etcd_put(etcd, tether_buf_bytes(&queue.first), op->values[0], 0,
                              queue.deadline, &op->cause);
    queue_fini(&queue);
    return st;
}

/* ---- pop ------------------------------------------------------------------------------------ */

struct element {
    tether_buf name, value;
    int64_t mod_revision; /* revision of the head's last change; 0: the queue is empty */
};

static tether_status take_head(const Etcdserverpb__RangeResponse *range, struct element *ret_head)
{
    const Mvccpb__KeyValue *kv = range->n_kvs ? range->kvs[0] : NULL;
    ret_head->mod_revision = 0;
    if (!kv)
        return TETHER_OK;
    tether_status st =
        tether_buf_assign(&ret_head->name, tether_bytes_of(kv->key.data, kv->key.len));
    if (st == TETHER_OK)
        st = tether_buf_assign(&ret_head->value, tether_bytes_of(kv->value.data, kv->value.len));
    if (st == TETHER_OK)
        ret_head->mod_revision = kv->mod_revision;
    return st;
}

static tether_status read_head(const struct queue *queue,
                               struct element *ret_head,
                               int64_t *ret_revision,
                               tether_error *reterr)
{
    struct tether__etcd_op range = range_of(queue);
    range.limit = 1;
    Etcdserverpb__TxnResponse *reply = NULL;
    tether_status st = tether__etcd_read(queue->etcd, &range, 1, queue->deadline, &reply, reterr);
    if (st != TETHER_OK)
        return st;
    st = take_head(reply->responses[0]->response_range, ret_head);
    *ret_revision = reply->header->revision;
    tether__pb_free(reply);
    return st;
}

/* Deletes `head` if it still exists; otherwise reads the new head. */
static tether_status remove_head(const struct queue *queue,
                                 struct element *head,
                                 int64_t *ret_revision,
                                 bool *ret_ours,
                                 tether_error *reterr)
{
    struct tether__etcd_op delete = {.kind = TETHER__ETCD_DELETE,
                                     .key = tether_buf_bytes(&head->name)};
    struct tether__etcd_op next = range_of(queue);
    next.limit = 1;
    struct tether__etcd_change change = {.test = TETHER__ETCD_MOD_REVISION_IS,
                                         .test_key = delete.key,
                                         .number = head->mod_revision,
                                         .then = &delete,
                                         .n_then = 1,
                                         .otherwise = &next,
                                         .n_otherwise = 1};
    struct tether__etcd_outcome outcome = TETHER__ETCD_OUTCOME_INIT;
    tether_status st = tether__etcd_change(queue->etcd, &change, queue->deadline, &outcome, reterr);
    if (st == TETHER_OK) {
        *ret_ours = outcome.held;
        *ret_revision = outcome.revision;
    }
    if (st == TETHER_OK && !outcome.held) {
        bool has_next = outcome.reply && outcome.reply->responses[0]->response_case ==
                                             ETCDSERVERPB__RESPONSE_OP__RESPONSE_RESPONSE_RANGE;
        st = has_next ? take_head(outcome.reply->responses[0]->response_range, head)
                      : read_head(queue, head, ret_revision, reterr);
    }
    tether__etcd_outcome_fini(&outcome);
    return st;
}

/* Returns when an element has been pushed after `revision`, or may have been. */
static tether_status await_push(const struct queue *queue, int64_t revision, tether_error *reterr)
{
    Etcdserverpb__WatchResponse *events = NULL;
    tether_status st = tether__etcd_watch_once(
        queue->etcd,
        (struct tether__etcd_span){tether_buf_bytes(&queue->first), tether_buf_bytes(&queue->end)},
        true, revision, queue->deadline, &events, reterr);
    tether__pb_free(events);
    return st == TETHER_EGONE ? TETHER_OK : st;
}

tether_status tether__store_etcd_queue_pop(struct tether__etcd *etcd, struct tether__store_op *op)
{
    struct queue queue;
    struct element head = {0};
    int64_t revision;
    bool ours = false;
    tether_status st = queue_init(&queue, etcd, op);
    if (st == TETHER_OK)
        st = read_head(&queue, &head, &revision, &op->cause);
    while (st == TETHER_OK && !ours) {
        /* stop at the deadline; each failed attempt means that another caller has got an element */
        if (head.mod_revision) {
            st = remove_head(&queue, &head, &revision, &ours, &op->cause);
            continue;
        }
        st = op->timeout_ms == 0 ? tether_error_set(&op->cause, TETHER_ENOTFOUND, "queue is empty")
                                 : await_push(&queue, revision, &op->cause);
        if (st == TETHER_OK)
            st = read_head(&queue, &head, &revision, &op->cause);
    }
    if (st == TETHER_OK)
        tether__store_op_take_result(op, &head.value);
    tether_buf_fini(&head.value);
    tether_buf_fini(&head.name);
    queue_fini(&queue);
    return st;
}
