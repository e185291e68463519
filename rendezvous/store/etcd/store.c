/* The etcd store: values, lists of keys, and the kind.
 *
 * add, compare_set and append read the value, compute the next one, and put it if etcd's
 * mod_revision shows that no client has changed the value since. A caller that was too late waits
 * in a queue for the key (turn.c), so that each of several busy callers makes progress.
 */
#include "rendezvous/store_etcd.h"

#include "base/alloc.h"
#include "rendezvous/store/etcd/internal.h"

#define POLL_MS 5000              /* time to reach etcd for a call that must not wait */
#define KEYS_PER_PAGE 1000        /* keys per request of list_keys */
#define MULTI_SET_BYTES (1 << 20) /* size of one multi_set transaction; etcd accepts 1.5 MiB */

/* ---- Names ---------------------------------------------------------------------------------- */

int64_t tether__etcd_deadline(const struct tether__store_op *op)
{
    return op->timeout_ms == 0 ? tether__deadline_in(&tether__clock_system, POLL_MS) : op->deadline;
}

tether_status tether__etcd_name(const struct tether__etcd *etcd,
                                enum tether__etcd_space space,
                                const char *key,
                                tether_bytes tail,
                                tether_buf *name,
                                tether_error *reterr)
{
    tether_status st = tether_buf_printf(name, "%s%c/%s", tether__etcd_prefix(etcd), space, key);
    if (st == TETHER_OK)
        st = tether_buf_append(name, tail);
    return st == TETHER_OK ? st : tether_error_set(reterr, st, "out of memory for a key");
}

tether_status tether__etcd_tails(const struct tether__etcd *etcd,
                                 enum tether__etcd_space space,
                                 const char *key,
                                 tether_buf *first,
                                 tether_buf *end,
                                 tether_error *reterr)
{
    tether_status st = tether__etcd_name(etcd, space, key, tether_bytes_of("\0", 1), first, reterr);
    return st == TETHER_OK
               ? tether__etcd_name(etcd, space, key, tether_bytes_of("\1", 1), end, reterr)
               : st;
}

static tether_status value_name(const struct tether__etcd *etcd,
                                const char *key,
                                tether_buf *name,
                                tether_error *reterr)
{
    return tether__etcd_name(etcd, TETHER__ETCD_VALUES, key, (tether_bytes){0}, name, reterr);
}

/* ---- Values --------------------------------------------------------------------------------- */

/* Runs SET, TRY_GET and DELETE. */
static tether_status run_on_value(struct tether__etcd *etcd, struct tether__store_op *op)
{
    int64_t deadline = tether__etcd_deadline(op);
    tether_buf name = TETHER_BUF_INIT;
    struct tether__etcd_value value = TETHER__ETCD_VALUE_INIT;
    tether_status st = value_name(etcd, op->keys[0], &name, &op->cause);
    tether_bytes key = tether_buf_bytes(&name);
    if (st == TETHER_OK && op->kind == TETHER__STORE_SET)
        st = tether__etcd_put(etcd, key, op->values[0], 0, deadline, &op->cause);
    else if (st == TETHER_OK && op->kind == TETHER__STORE_DELETE)
        st = tether__etcd_delete(etcd, key, deadline, &op->yes, &op->cause);
    else if (st == TETHER_OK)
        st = tether__etcd_get(etcd, key, deadline, &value, NULL, &op->cause);
    if (st == TETHER_OK && op->kind == TETHER__STORE_TRY_GET) {
        if (value.mod_revision)
            tether__store_op_take_result(op, &value.bytes);
        else
            st = TETHER_ENOTFOUND;
    }
    tether_buf_fini(&value.bytes);
    tether_buf_fini(&name);
    return st;
}

/* Runs ADD, APPEND and COMPARE_SET. */
static tether_status modify(struct tether__etcd *etcd, struct tether__store_op *op)
{
    int64_t deadline = tether__etcd_deadline(op);
    tether_buf name = TETHER_BUF_INIT, next = TETHER_BUF_INIT;
    struct tether__etcd_value current = TETHER__ETCD_VALUE_INIT;
    struct tether__etcd_turn turn = {0};
    tether_status st = value_name(etcd, op->keys[0], &name, &op->cause);
    if (st == TETHER_OK)
        st = tether__etcd_turn_init(&turn, etcd, op->keys[0], tether_buf_bytes(&name), deadline,
                                    &op->cause);
    if (st == TETHER_OK)
        st = tether__etcd_turn_read(&turn, &current, &op->cause);
    bool over = false;
    while (st == TETHER_OK && !over) {
        bool write = false;
        tether_bytes present = tether_buf_bytes(&current.bytes);
        st = tether__store_op_edit(op, current.mod_revision ? &present : NULL, &next, &write);
        if (st != TETHER_OK || !write)
            break;
        st = tether__etcd_compare_put(etcd, tether_buf_bytes(&name), tether_buf_bytes(&next),
                                      tether_buf_bytes(&turn.ticket), deadline, &current, &over,
                                      &op->cause);
        if (st == TETHER_OK && over)
            tether__etcd_turn_passed(&turn);
        else if (st == TETHER_OK && !turn.ticket.len)
            st = tether__etcd_turn_await(&turn, &current, &op->cause);
        /* With a ticket, retry at once: only callers that had read the value before the ticket was
         * written can be faster, and they are few. */
    }
    if (st == TETHER_OK && op->kind == TETHER__STORE_COMPARE_SET)
        tether__store_op_take_result(op, &next);
    tether__etcd_turn_fini(&turn);
    tether_buf_fini(&current.bytes);
    tether_buf_fini(&next);
    tether_buf_fini(&name);
    return st;
}

/* ---- Several values ------------------------------------------------------------------------- */

/* How many of the `n` keys from `from` on fit into one transaction. */
static size_t count_batch(const char *const *keys, const tether_bytes *values, size_t n)
{
    size_t bytes = 0, count = 0;
    while (count < n && count < TETHER__ETCD_MAX_OPS) {
        bytes += strlen(keys[count]) + values[count].len;
        if (count > 0 && bytes > MULTI_SET_BYTES)
            break;
        count++;
    }
    return count;
}

/* etcd accepts a key once in a transaction; a key that is set twice gets its last value. */
static bool comes_again(const char *const *keys, size_t i, size_t n)
{
    for (size_t later = i + 1; later < n; later++)
        if (strcmp(keys[i], keys[later]) == 0)
            return true;
    return false;
}

static tether_status set_batch(struct tether__etcd *etcd,
                               const char *const *keys,
                               const tether_bytes *values,
                               size_t n,
                               int64_t deadline,
                               tether_error *reterr)
{
    struct tether__etcd_op puts[TETHER__ETCD_MAX_OPS];
    tether_buf names[TETHER__ETCD_MAX_OPS];
    size_t count = 0;
    tether_status st = TETHER_OK;
    for (size_t i = 0; st == TETHER_OK && i < n; i++) {
        if (comes_again(keys, i, n))
            continue;
        names[count] = TETHER_BUF_INIT;
        st = value_name(etcd, keys[i], &names[count], reterr);
        puts[count] = (struct tether__etcd_op){
            .kind = TETHER__ETCD_PUT, .key = tether_buf_bytes(&names[count]), .value = values[i]};
        count++;
    }
    struct tether__etcd_change change = {.then = puts, .n_then = count};
    struct tether__etcd_outcome outcome = TETHER__ETCD_OUTCOME_INIT;
    if (st == TETHER_OK)
        st = tether__etcd_change(etcd, &change, deadline, &outcome, reterr);
    tether__etcd_outcome_fini(&outcome);
    while (count > 0)
        tether_buf_fini(&names[--count]);
    return st;
}

static tether_status etcd_multi_set(struct tether__etcd *etcd, struct tether__store_op *op)
{
    int64_t deadline = tether__etcd_deadline(op);
    tether_status st = TETHER_OK;
    for (size_t done = 0; st == TETHER_OK && done < op->n;) {
        size_t count = count_batch(op->keys + done, op->values + done, op->n - done);
        st = set_batch(etcd, op->keys + done, op->values + done, count, deadline, &op->cause);
        done += count;
    }
    return st;
}

/* ---- All keys ------------------------------------------------------------------------------- */

/* The range of all values: from "<prefix>k/" to "<prefix>k0", since '0' follows '/'. */
static tether_status all_values(const struct tether__etcd *etcd,
                                tether_buf *first,
                                tether_buf *end,
                                tether_error *reterr)
{
    tether_status st = value_name(etcd, "", first, reterr);
    if (st == TETHER_OK)
        st = value_name(etcd, "", end, reterr);
    if (st == TETHER_OK)
        end->data[end->len - 1] = '/' + 1;
    return st;
}

static tether_status etcd_num_keys(struct tether__etcd *etcd, struct tether__store_op *op)
{
    tether_buf first = TETHER_BUF_INIT, end = TETHER_BUF_INIT;
    Etcdserverpb__TxnResponse *reply = NULL;
    tether_status st = all_values(etcd, &first, &end, &op->cause);
    struct tether__etcd_op range = {
        .key = tether_buf_bytes(&first), .end = tether_buf_bytes(&end), .count_only = true};
    if (st == TETHER_OK)
        st = tether__etcd_read(etcd, &range, 1, tether__etcd_deadline(op), &reply, &op->cause);
    if (st == TETHER_OK) {
        op->count = reply->responses[0]->response_range->count;
        tether__pb_free(reply);
    }
    tether_buf_fini(&end);
    tether_buf_fini(&first);
    return st;
}

/* Adds the keys of one page without the first `skip` bytes of each name. */
static tether_status add_page(tether_store_keys *keys,
                              const Etcdserverpb__RangeResponse *page,
                              size_t skip)
{
    tether_buf *more =
        tether__realloc(keys->keys, (keys->count + page->n_kvs) * sizeof *keys->keys);
    if (!more)
        return TETHER_ENOMEM;
    keys->keys = more;
    for (size_t i = 0; i < page->n_kvs; i++) {
        ProtobufCBinaryData name = page->kvs[i]->key;
        if (name.len < skip)
            return TETHER_ECORRUPT;
        tether_buf *key = &keys->keys[keys->count];
        *key = TETHER_BUF_INIT;
        tether_status st =
            tether_buf_assign(key, tether_bytes_of(name.data + skip, name.len - skip));
        if (st != TETHER_OK)
            return st;
        keys->count++;
    }
    return TETHER_OK;
}

/* Reads page by page, all at the revision of the first. */
static tether_status list_at_once(struct tether__etcd *etcd,
                                  int64_t deadline,
                                  tether_store_keys *keys,
                                  tether_error *reterr)
{
    tether_buf first = TETHER_BUF_INIT, end = TETHER_BUF_INIT;
    int64_t revision = 0;
    bool more = true;
    tether_status st = all_values(etcd, &first, &end, reterr);
    size_t skip = first.len;
    while (st == TETHER_OK && more) {
        struct tether__etcd_op range = {.key = tether_buf_bytes(&first),
                                        .end = tether_buf_bytes(&end),
                                        .limit = KEYS_PER_PAGE,
                                        .revision = revision,
                                        .keys_only = true};
        Etcdserverpb__TxnResponse *reply = NULL;
        st = tether__etcd_read(etcd, &range, 1, deadline, &reply, reterr);
        if (st != TETHER_OK)
            break;
        const Etcdserverpb__RangeResponse *page = reply->responses[0]->response_range;
        if (!revision)
            revision = reply->header->revision;
        more = page->more && page->n_kvs;
        if (page->n_kvs)
            st = add_page(keys, page, skip);
        if (st == TETHER_OK && more) { /* continue with the key after the last one of this page */
            ProtobufCBinaryData last = page->kvs[page->n_kvs - 1]->key;
            st = tether_buf_assign(&first, tether_bytes_of(last.data, last.len));
            if (st == TETHER_OK)
                st = tether_buf_append(&first, tether_bytes_of("", 1));
        }
        tether__pb_free(reply);
    }
    tether_buf_fini(&end);
    tether_buf_fini(&first);
    return st;
}

static tether_status etcd_list_keys(struct tether__etcd *etcd, struct tether__store_op *op)
{
    int64_t deadline = tether__etcd_deadline(op);
    tether_store_keys keys = {NULL, 0};
    tether_status st;
    /* etcd has compacted its history between two pages: start again. */
    while ((st = list_at_once(etcd, deadline, &keys, &op->cause)) == TETHER_EGONE)
        tether_store_keys_fini(&keys);
    if (st != TETHER_OK) {
        tether_store_keys_fini(&keys);
        return st;
    }
    *op->list = keys;
    return TETHER_OK;
}

/* ---- The store ------------------------------------------------------------------------------ */

static void etcd_destroy(void *impl)
{
    tether__etcd_free(impl);
}

static tether_status etcd_run(void *impl, struct tether__store_op *op)
{
    switch (op->kind) {
        case TETHER__STORE_SET:
        case TETHER__STORE_TRY_GET:
        case TETHER__STORE_DELETE:
            return run_on_value(impl, op);
        case TETHER__STORE_GET:
            return tether__store_etcd_get(impl, op);
        case TETHER__STORE_ADD:
        case TETHER__STORE_APPEND:
        case TETHER__STORE_COMPARE_SET:
            return modify(impl, op);
        case TETHER__STORE_CHECK:
            return tether__store_etcd_check(impl, op);
        case TETHER__STORE_WAIT:
            return tether__store_etcd_wait(impl, op);
        case TETHER__STORE_NUM_KEYS:
            return etcd_num_keys(impl, op);
        case TETHER__STORE_MULTI_GET:
            return tether__store_etcd_multi_get(impl, op);
        case TETHER__STORE_MULTI_SET:
            return etcd_multi_set(impl, op);
        case TETHER__STORE_LIST_KEYS:
            return etcd_list_keys(impl, op);
        case TETHER__STORE_QUEUE_PUSH:
            return tether__store_etcd_queue_push(impl, op);
        case TETHER__STORE_QUEUE_POP:
            return tether__store_etcd_queue_pop(impl, op);
        case TETHER__STORE_QUEUE_LEN:
            return tether__store_etcd_queue_len(impl, op);
        case TETHER__STORE_BARRIER:
            return tether__store_etcd_barrier(impl, op);
    }
    return TETHER_ENOTSUP;
}

static const struct tether__store_kind etcd_kind = {etcd_run, etcd_destroy, NULL};

tether_status tether_store_etcd_new(const struct tether_store_etcd_opts *opts,
                                    tether_store **ret_store,
                                    tether_error *reterr)
{
    struct tether_store_etcd_opts all = {0};
    if (!opts || !opts->size || !ret_store)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "etcd store: options missing: use TETHER_STORE_ETCD_OPTS");
    memcpy(&all, opts, opts->size < sizeof all ? opts->size : sizeof all);
    int timeout_ms = all.timeout_ms ? all.timeout_ms : TETHER_STORE_DEFAULT_TIMEOUT_MS;
    if (timeout_ms < -1)
        return tether_error_set(reterr, TETHER_EINVAL, "etcd store: %d ms is no time-out",
                                timeout_ms);
    struct tether__etcd *etcd = NULL;
    tether_store *store = NULL;
    tether_status st = tether__etcd_new(
        &all, tether__deadline_in(&tether__clock_system, timeout_ms), &etcd, reterr);
    if (st != TETHER_OK)
        return tether_error_wrap(
            reterr, st,
            st == TETHER_EUNAVAILABLE ? "etcd store (is etcd running there?)" : "etcd store");

    char *description = tether__asprintf("etcd store %s", tether__etcd_describe(etcd));
    if (!description)
        st = tether_error_set(reterr, TETHER_ENOMEM, "out of memory for an etcd store");
    else
        st = tether__store_new(&etcd_kind, etcd, description, &store, reterr);
    tether__free(description);
    if (st != TETHER_OK) {
        tether__etcd_free(etcd);
        return st;
    }
    tether_store_set_timeout(store, timeout_ms, NULL);
    *ret_store = store;
    return TETHER_OK;
}
