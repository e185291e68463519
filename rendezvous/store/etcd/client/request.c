/* Transactions as protobuf; see the header. */
#include "rendezvous/store/etcd/client/request.h"

#include "base/alloc.h"

/* A protobuf operation together with its body. */
struct op {
    Etcdserverpb__RequestOp request;
    union {
        Etcdserverpb__RangeRequest range;
        Etcdserverpb__PutRequest put;
        Etcdserverpb__DeleteRangeRequest delete;
        Etcdserverpb__TxnRequest txn;
    };
};

/* The block: the transaction, its comparisons and its operations, filled from the front. */
struct block {
    /* the first field, so that freeing the transaction frees the block */
    Etcdserverpb__TxnRequest txn;
    Etcdserverpb__Compare compare[2], *compare_at[2];
    size_t used;
    Etcdserverpb__RequestOp **at; /* pointers to the operations, as protobuf-c needs them */
    struct op ops[];
};

static struct block *block_new(size_t n_ops)
{
    struct block *block = tether__calloc(
        1, sizeof *block + n_ops * (sizeof(struct op) + sizeof(Etcdserverpb__RequestOp *)));
    if (!block)
        return NULL;
    etcdserverpb__txn_request__init(&block->txn);
    block->at = (Etcdserverpb__RequestOp **)(void *)&block->ops[n_ops];
    return block;
}

static ProtobufCBinaryData binary(tether_bytes bytes)
{
    return (ProtobufCBinaryData){bytes.len, (uint8_t *)bytes.data};
}

static struct op *next_op(struct block *block)
{
    struct op *op = &block->ops[block->used];
    etcdserverpb__request_op__init(&op->request);
    block->at[block->used++] = &op->request;
    return op;
}

static void add_put(struct block *block, tether_bytes key, tether_bytes value, int64_t lease)
{
    struct op *op = next_op(block);
    etcdserverpb__put_request__init(&op->put);
    op->put.key = binary(key);
    op->put.value = binary(value);
    op->put.lease = lease;
    op->request.request_case = ETCDSERVERPB__REQUEST_OP__REQUEST_REQUEST_PUT;
    op->request.request_put = &op->put;
}

static void add_delete(struct block *block, tether_bytes key, tether_bytes end)
{
    struct op *op = next_op(block);
    etcdserverpb__delete_range_request__init(&op->delete);
    op->delete.key = binary(key);
    op->delete.range_end = binary(end);
    op->request.request_case = ETCDSERVERPB__REQUEST_OP__REQUEST_REQUEST_DELETE_RANGE;
    op->request.request_delete_range = &op->delete;
}

static void add_range(struct block *block, const struct tether__etcd_op *range)
{
    struct op *op = next_op(block);
    etcdserverpb__range_request__init(&op->range);
    op->range.key = binary(range->key);
    op->range.range_end = binary(range->end);
    op->range.limit = range->limit;
    op->range.revision = range->revision;
    op->range.keys_only = range->keys_only;
    op->range.count_only = range->count_only;
    if (range->last_first)
        op->range.sort_order = ETCDSERVERPB__RANGE_REQUEST__SORT_ORDER__DESCEND;
    op->request.request_case = ETCDSERVERPB__REQUEST_OP__REQUEST_REQUEST_RANGE;
    op->request.request_range = &op->range;
}

static void add_ops(struct block *block, const struct tether__etcd_op *ops, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        switch (ops[i].kind) {
            case TETHER__ETCD_RANGE:
                add_range(block, &ops[i]);
                break;
            case TETHER__ETCD_PUT:
                add_put(block, ops[i].key, ops[i].value, ops[i].lease);
                break;
            case TETHER__ETCD_DELETE:
                add_delete(block, ops[i].key, ops[i].end);
                break;
        }
    }
}

/* Makes compare[i] the condition of `txn`. */
static void set_condition(struct block *block,
                          int i,
                          Etcdserverpb__TxnRequest *txn,
                          enum tether__etcd_test test,
                          tether_bytes key,
                          int64_t number)
{
    Etcdserverpb__Compare *compare = &block->compare[i];
    etcdserverpb__compare__init(compare);
    compare->key = binary(key);
    if (test == TETHER__ETCD_MOD_REVISION_IS) {
        compare->target = ETCDSERVERPB__COMPARE__COMPARE_TARGET__MOD;
        compare->result = ETCDSERVERPB__COMPARE__COMPARE_RESULT__EQUAL;
        compare->target_union_case = ETCDSERVERPB__COMPARE__TARGET_UNION_MOD_REVISION;
        compare->mod_revision = number;
    } else {
        compare->target = ETCDSERVERPB__COMPARE__COMPARE_TARGET__VERSION;
        compare->result = ETCDSERVERPB__COMPARE__COMPARE_RESULT__GREATER;
        compare->target_union_case = ETCDSERVERPB__COMPARE__TARGET_UNION_VERSION;
        compare->version = number;
    }
    block->compare_at[i] = compare;
    txn->compare = &block->compare_at[i];
    txn->n_compare = 1;
}

Etcdserverpb__TxnRequest *tether__etcd_read_request(const struct tether__etcd_op *ranges, size_t n)
{
    struct block *block = block_new(n);
    if (!block)
        return NULL;
    add_ops(block, ranges, n);
    block->txn.success = block->at;
    block->txn.n_success = n;
    return &block->txn;
}

Etcdserverpb__TxnRequest *tether__etcd_change_request(const struct tether__etcd_change *change,
                                                      const struct tether__etcd_receipt *receipt)
{
    /* Room for both branches with a put of the receipt each, the inner transaction, and the range
     * of the receipt. */
    struct block *block = block_new(change->n_then + 1 + change->n_otherwise + 1 + 1 + 1);
    if (!block)
        return NULL;
    Etcdserverpb__TxnRequest *outer = &block->txn, *inner = outer;
    set_condition(block, 0, outer, TETHER__ETCD_MOD_REVISION_IS, receipt->key, receipt->revision);

    if (change->test != TETHER__ETCD_ALWAYS) {
        outer->success = &block->at[block->used];
        outer->n_success = 1;
        struct op *op = next_op(block);
        inner = &op->txn;
        etcdserverpb__txn_request__init(inner);
        op->request.request_case = ETCDSERVERPB__REQUEST_OP__REQUEST_REQUEST_TXN;
        op->request.request_txn = inner;
        set_condition(block, 1, inner, change->test, change->test_key, change->number);

        inner->failure = &block->at[block->used];
        add_ops(block, change->otherwise, change->n_otherwise);
        add_put(block, receipt->key, tether_bytes_str("-"), receipt->lease);
        inner->n_failure = change->n_otherwise + 1;
    }
    inner->success = &block->at[block->used];
    add_ops(block, change->then, change->n_then);
    add_put(block, receipt->key, tether_bytes_str("+"), receipt->lease);
    inner->n_success = change->n_then + 1;

    outer->failure = &block->at[block->used];
    add_range(block, &(struct tether__etcd_op){.key = receipt->key});
    outer->n_failure = 1;
    return outer;
}
