/* The etcd store: values, lists of keys, and the vtable.
 *
 * add, compare_set and append read the value, work out the next one, and put that if nobody has
 * changed it since (etcd's mod_revision tells). A caller that was too late queues up for the key
 * (store_etcd_turn.c), so that each of several busy callers makes progress.
 */
#include "rendezvous/store_etcd.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/alloc.h"
#include "rendezvous/kv.h"
#include "rendezvous/store_etcd_internal.h"

#define POLL_MS 5000              /* what a call that must not wait has for reaching etcd */
#define KEYS_PER_PAGE 1000        /* of list_keys */
#define MULTI_SET_BYTES (1 << 20) /* of one transaction; etcd takes 1.5 MiB */

/* ---- Names ---------------------------------------------------------------------------------- */

int64_t tether__etcd_deadline(int timeout_ms)
{
    return tether__deadline_in(&tether__clock_system, timeout_ms == 0 ? POLL_MS : timeout_ms);
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
    return st == TETHER_OK ? st : tether_error_set(reterr, st, "no memory for a key");
}

static tether_status value_name(const struct tether__etcd *etcd,
                                const char *key,
                                tether_buf *name,
                                tether_error *reterr)
{
    return tether__etcd_name(etcd, TETHER__ETCD_VALUES, key, (tether_bytes){0}, name, reterr);
}

/* ---- Values --------------------------------------------------------------------------------- */

static tether_status etcd_set(void *impl,
                              const char *key,
                              tether_bytes value,
                              int timeout_ms,
                              tether_error *reterr)
{
    tether_buf name = TETHER_BUF_INIT;
    tether_status st = value_name(impl, key, &name, reterr);
    if (st == TETHER_OK)
        st = tether__etcd_put(impl, tether_buf_bytes(&name), value, 0,
                              tether__etcd_deadline(timeout_ms), reterr);
    tether_buf_fini(&name);
    return st;
}

static tether_status etcd_try_get(void *impl,
                                  const char *key,
                                  int timeout_ms,
                                  tether_buf *ret_value,
                                  tether_error *reterr)
{
    tether_buf name = TETHER_BUF_INIT;
    struct tether__etcd_value value = TETHER__ETCD_VALUE_INIT;
    tether_status st = value_name(impl, key, &name, reterr);
    if (st == TETHER_OK)
        st = tether__etcd_get(impl, tether_buf_bytes(&name), tether__etcd_deadline(timeout_ms),
                              &value, NULL, reterr);
    if (st == TETHER_OK && !value.mod_revision)
        st = TETHER_ENOTFOUND;
    if (st == TETHER_OK) {
        tether_buf_fini(ret_value);
        *ret_value = value.bytes;
    } else {
        tether_buf_fini(&value.bytes);
    }
    tether_buf_fini(&name);
    return st;
}

static tether_status etcd_delete(void *impl,
                                 const char *key,
                                 int timeout_ms,
                                 bool *ret_deleted,
                                 tether_error *reterr)
{
    tether_buf name = TETHER_BUF_INIT;
    tether_status st = value_name(impl, key, &name, reterr);
    if (st == TETHER_OK)
        st = tether__etcd_delete(impl, tether_buf_bytes(&name), tether__etcd_deadline(timeout_ms),
                                 ret_deleted, reterr);
    tether_buf_fini(&name);
    return st;
}

/* Works out what `current` becomes. `*ret_write` false: leave it. */
typedef tether_status edit_fn(void *userdata,
                              const struct tether__etcd_value *current,
                              tether_buf *next,
                              bool *ret_write,
                              tether_error *reterr);

static tether_status modify(struct tether__etcd *etcd,
                            const char *key,
                            int timeout_ms,
                            edit_fn *edit,
                            void *userdata,
                            tether_error *reterr)
{
    int64_t deadline = tether__etcd_deadline(timeout_ms);
    tether_buf name = TETHER_BUF_INIT, next = TETHER_BUF_INIT;
    struct tether__etcd_value current = TETHER__ETCD_VALUE_INIT;
    struct tether__etcd_turn turn = {0};
    tether_status st = value_name(etcd, key, &name, reterr);
    if (st == TETHER_OK)
        st = tether__etcd_turn_init(&turn, etcd, key, tether_buf_bytes(&name), deadline, reterr);
    if (st == TETHER_OK)
        st = tether__etcd_turn_read(&turn, &current, reterr);
    bool over = false;
    while (st == TETHER_OK && !over) {
        bool write = false;
        st = edit(userdata, &current, &next, &write, reterr);
        if (st != TETHER_OK || !write)
            break;
        st = tether__etcd_compare_put_and_delete(
            etcd, tether_buf_bytes(&name), tether_buf_bytes(&next), tether_buf_bytes(&turn.ticket),
            deadline, &current, &over, reterr);
        if (st == TETHER_OK && over)
            tether__etcd_turn_passed(&turn);
        else if (st == TETHER_OK && !turn.ticket.len)
            st = tether__etcd_turn_await(&turn, &current, reterr);
        /* With a ticket: those who were faster had read before it was there, so they are few. */
    }
    tether__etcd_turn_fini(&turn);
    tether_buf_fini(&current.bytes);
    tether_buf_fini(&next);
    tether_buf_fini(&name);
    return st;
}

struct addition {
    int64_t delta, sum;
};

static tether_status edit_add(void *userdata,
                              const struct tether__etcd_value *current,
                              tether_buf *next,
                              bool *ret_write,
                              tether_error *reterr)
{
    struct addition *addition = userdata;
    tether_bytes old = tether_buf_bytes(&current->bytes);
    tether_status st =
        tether__kv_sum(current->mod_revision ? &old : NULL, addition->delta, &addition->sum);
    if (st != TETHER_OK)
        return tether_error_set(reterr, st,
                                "the value is not a whole number, or the sum is beyond 64 bits: "
                                "count in another key");
    char text[24];
    snprintf(text, sizeof text, "%" PRId64, addition->sum);
    *ret_write = true;
    return tether_buf_assign(next, tether_bytes_str(text));
}

static tether_status etcd_add(void *impl,
                              const char *key,
                              int64_t delta,
                              int timeout_ms,
                              int64_t *ret_sum,
                              tether_error *reterr)
{
    struct addition addition = {.delta = delta};
    tether_status st = modify(impl, key, timeout_ms, edit_add, &addition, reterr);
    if (st == TETHER_OK)
        *ret_sum = addition.sum;
    return st;
}

static tether_status edit_append(void *userdata,
                                 const struct tether__etcd_value *current,
                                 tether_buf *next,
                                 bool *ret_write,
                                 tether_error *reterr)
{
    (void)reterr;
    *ret_write = true;
    tether_status st = tether_buf_assign(next, tether_buf_bytes(&current->bytes));
    return st == TETHER_OK ? tether_buf_append(next, *(const tether_bytes *)userdata) : st;
}

static tether_status etcd_append(void *impl,
                                 const char *key,
                                 tether_bytes value,
                                 int timeout_ms,
                                 tether_error *reterr)
{
    return modify(impl, key, timeout_ms, edit_append, &value, reterr);
}

struct comparison {
    tether_bytes expected, desired;
    bool swapped;
    tether_buf answer;
};

static tether_status edit_compare(void *userdata,
                                  const struct tether__etcd_value *current,
                                  tether_buf *next,
                                  bool *ret_write,
                                  tether_error *reterr)
{
    (void)reterr;
    struct comparison *comparison = userdata;
    tether_bytes present = tether_buf_bytes(&current->bytes); /* absent: empty */
    comparison->swapped = tether_bytes_equal(present, comparison->expected);
    *ret_write = comparison->swapped;
    tether_bytes answer = comparison->swapped     ? comparison->desired
                          : current->mod_revision ? present
                                                  : comparison->expected;
    tether_status st = tether_buf_assign(&comparison->answer, answer);
    return st == TETHER_OK ? tether_buf_assign(next, comparison->desired) : st;
}

static tether_status etcd_compare_set(void *impl,
                                      const char *key,
                                      tether_bytes expected,
                                      tether_bytes desired,
                                      int timeout_ms,
                                      bool *ret_swapped,
                                      tether_buf *ret_value,
                                      tether_error *reterr)
{
    struct comparison comparison = {.expected = expected, .desired = desired};
    tether_status st = modify(impl, key, timeout_ms, edit_compare, &comparison, reterr);
    if (st != TETHER_OK) {
        tether_buf_fini(&comparison.answer);
        return st;
    }
    *ret_swapped = comparison.swapped;
    tether_buf_fini(ret_value);
    *ret_value = comparison.answer;
    return TETHER_OK;
}

/* ---- Several values ------------------------------------------------------------------------- */

/* The keys from `from` on that go into one transaction: how many of `n`. */
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

/* etcd takes a key once in a transaction; what is set twice keeps the last value. */
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

static tether_status etcd_multi_set(void *impl,
                                    const char *const *keys,
                                    const tether_bytes *values,
                                    size_t n,
                                    int timeout_ms,
                                    tether_error *reterr)
{
    int64_t deadline = tether__etcd_deadline(timeout_ms);
    tether_status st = TETHER_OK;
    for (size_t done = 0; st == TETHER_OK && done < n;) {
        size_t count = count_batch(keys + done, values + done, n - done);
        st = set_batch(impl, keys + done, values + done, count, deadline, reterr);
        done += count;
    }
    return st;
}

/* ---- All keys ------------------------------------------------------------------------------- */

/* Everything in the space of values: from "<prefix>k/" to "<prefix>k0", '0' being behind '/'. */
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

static tether_status etcd_num_keys(void *impl,
                                   int timeout_ms,
                                   int64_t *ret_count,
                                   tether_error *reterr)
{
    tether_buf first = TETHER_BUF_INIT, end = TETHER_BUF_INIT;
    Etcdserverpb__TxnResponse *reply = NULL;
    tether_status st = all_values(impl, &first, &end, reterr);
    struct tether__etcd_op range = {
        .key = tether_buf_bytes(&first), .end = tether_buf_bytes(&end), .count_only = true};
    if (st == TETHER_OK)
        st = tether__etcd_read(impl, &range, 1, tether__etcd_deadline(timeout_ms), &reply, reterr);
    if (st == TETHER_OK) {
        *ret_count = reply->responses[0]->response_range->count;
        tether__etcd_reply_free(&reply->base);
    }
    tether_buf_fini(&end);
    tether_buf_fini(&first);
    return st;
}

/* Adds the keys of one page; `skip` bytes of each name are ours. */
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

/* Page by page, all at the revision of the first. */
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
        if (st == TETHER_OK && more) { /* on from the key right behind the last */
            ProtobufCBinaryData last = page->kvs[page->n_kvs - 1]->key;
            st = tether_buf_assign(&first, tether_bytes_of(last.data, last.len));
            if (st == TETHER_OK)
                st = tether_buf_append(&first, tether_bytes_of("", 1));
        }
        tether__etcd_reply_free(&reply->base);
    }
    tether_buf_fini(&end);
    tether_buf_fini(&first);
    return st;
}

static tether_status etcd_list_keys(void *impl,
                                    int timeout_ms,
                                    tether_store_keys *ret_keys,
                                    tether_error *reterr)
{
    int64_t deadline = tether__etcd_deadline(timeout_ms);
    tether_store_keys keys = {NULL, 0};
    tether_status st;
    /* Compacted between two pages: start again. */
    while ((st = list_at_once(impl, deadline, &keys, reterr)) == TETHER_EGONE)
        tether_store_keys_fini(&keys);
    if (st != TETHER_OK) {
        tether_store_keys_fini(&keys);
        return st;
    }
    *ret_keys = keys;
    return TETHER_OK;
}

/* ---- The store ------------------------------------------------------------------------------ */

static void etcd_destroy(void *impl)
{
    tether__etcd_free(impl);
}

static const struct tether_store_ops etcd_ops = {
    .size = sizeof etcd_ops,
    .set = etcd_set,
    .get = tether__store_etcd_get,
    .add = etcd_add,
    .compare_set = etcd_compare_set,
    .check = tether__store_etcd_check,
    .wait = tether__store_etcd_wait,
    .del = etcd_delete,
    .destroy = etcd_destroy,
    .try_get = etcd_try_get,
    .num_keys = etcd_num_keys,
    .append = etcd_append,
    .multi_get = tether__store_etcd_multi_get,
    .multi_set = etcd_multi_set,
    .list_keys = etcd_list_keys,
    .queue_push = tether__store_etcd_queue_push,
    .queue_pop = tether__store_etcd_queue_pop,
    .queue_len = tether__store_etcd_queue_len,
    .barrier = tether__store_etcd_barrier,
};

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
    struct tether__etcd_opts etcd_opts = {
        .endpoints = all.endpoints,
        .prefix = all.prefix,
        .ca_path = all.ca_path,
        .cert_path = all.cert_path,
        .key_path = all.key_path,
        .user = all.user,
        .password = all.password,
        .insecure = all.insecure,
    };
    struct tether__etcd *etcd = NULL;
    tether_store *store = NULL;
    tether_status st = tether__etcd_new(
        &etcd_opts, tether__deadline_in(&tether__clock_system, timeout_ms), &etcd, reterr);
    if (st != TETHER_OK)
        return tether_error_wrap(
            reterr, st,
            st == TETHER_EUNAVAILABLE ? "etcd store (is etcd running there?)" : "etcd store");

    char *description = tether__asprintf("etcd store %s", tether__etcd_describe(etcd));
    if (!description)
        st = tether_error_set(reterr, TETHER_ENOMEM, "no memory for an etcd store");
    else
        st = tether_store_new(&etcd_ops, etcd, description, &store, reterr);
    tether__free(description);
    if (st != TETHER_OK) {
        tether__etcd_free(etcd);
        return st;
    }
    tether_store_set_timeout(store, timeout_ms, NULL);
    *ret_store = store;
    return TETHER_OK;
}
