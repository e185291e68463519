/* The etcd store: operations that wait for keys.
 *
 * Happy path: read the keys once at some revision, and watch the missing ones from there; each put
 * event marks one as found. After the last event, read all keys at the revision of that event: all
 * must exist at the same time, and one may have been deleted before the last was put. If one is
 * missing, watch it from that revision on, so that no such moment is missed.
 *
 * Failure modes: the watch itself survives broken connections. When etcd has compacted the history
 * that the watch needs, read the keys again.
 */
#include <stdlib.h>

#include "base/alloc.h"
#include "rendezvous/store/etcd/client/watch.h"
#include "rendezvous/store/etcd/internal.h"

/* most watchers on one stream; for more keys one span over all keys is watched */
#define MAX_WATCHERS 64
#define VALUES_PER_READ 32 /* keys per read: a value has up to 1.5 MiB, a reply up to 64 MiB */

/* ---- One key -------------------------------------------------------------------------------- */

/* Waits for a put of `name` after `revision`. `ret_value` may be NULL. */
static tether_status await_put(struct tether__etcd *etcd,
                               tether_bytes name,
                               int64_t revision,
                               int64_t deadline,
                               tether_buf *ret_value,
                               tether_error *reterr)
{
    Etcdserverpb__WatchResponse *events = NULL;
    tether_status st = tether__etcd_watch_once(etcd, (struct tether__etcd_span){.key = name}, true,
                                               revision, deadline, &events, reterr);
    if (st == TETHER_OK && ret_value) {
        const Mvccpb__KeyValue *kv = events->events[events->n_events - 1]->kv;
        st = kv ? tether_buf_assign(ret_value, tether_bytes_of(kv->value.data, kv->value.len))
                : TETHER_ECORRUPT;
    }
    tether__pb_free(events);
    return st;
}

tether_status tether__store_etcd_get(struct tether__etcd *etcd, struct tether__store_op *op)
{
    int64_t deadline = tether__etcd_deadline(op);
    tether_buf name = TETHER_BUF_INIT;
    struct tether__etcd_value value = TETHER__ETCD_VALUE_INIT;
    tether_status st = tether__etcd_name(etcd, TETHER__ETCD_VALUES, op->keys[0], (tether_bytes){0},
                                         &name, &op->cause);
    if (st != TETHER_OK)
        goto out;
    do {
        int64_t revision;
        st = tether__etcd_get(etcd, tether_buf_bytes(&name), deadline, &value, &revision,
                              &op->cause);
        if (st == TETHER_OK && !value.mod_revision)
            st = op->timeout_ms == 0 ? TETHER_ETIMEOUT
                                     : await_put(etcd, tether_buf_bytes(&name), revision, deadline,
                                                 &value.bytes, &op->cause);
    } while (st == TETHER_EGONE);
    if (st == TETHER_OK)
        tether__store_op_take_result(op, &value.bytes);
out:
    tether_buf_fini(&value.bytes);
    tether_buf_fini(&name);
    return st;
}

/* Every caller puts the same key, and etcd counts its versions. The transaction that makes version
 * `world_size` also puts the key that the other callers watch. So arriving costs one round trip,
 * callers never conflict, and the last caller cannot die between the two steps. */
tether_status tether__store_etcd_barrier(struct tether__etcd *etcd, struct tether__store_op *op)
{
    int64_t deadline = tether__etcd_deadline(op);
    tether_buf arrivals = TETHER_BUF_INIT, done = TETHER_BUF_INIT;
    struct tether__etcd_value value = TETHER__ETCD_VALUE_INIT;
    struct tether__etcd_outcome outcome = TETHER__ETCD_OUTCOME_INIT;
    tether_status st = tether__etcd_name(etcd, TETHER__ETCD_ARRIVALS, op->keys[0],
                                         (tether_bytes){0}, &arrivals, &op->cause);
    if (st == TETHER_OK)
        st = tether__etcd_name(etcd, TETHER__ETCD_DONE, op->keys[0], (tether_bytes){0}, &done,
                               &op->cause);
    if (st != TETHER_OK)
        goto out;

    struct tether__etcd_op puts[] = {
        {.kind = TETHER__ETCD_PUT, .key = tether_buf_bytes(&arrivals)},
        {.kind = TETHER__ETCD_PUT, .key = tether_buf_bytes(&done)},
    };
    struct tether__etcd_change arrive = {
        .test = TETHER__ETCD_VERSION_ABOVE,
        .test_key = tether_buf_bytes(&arrivals),
        /* compares the key's version before this put: the put makes the next version */
        .number = op->number - 2,
        .then = puts,
        .n_then = 2,
        .otherwise = puts,
        .n_otherwise = 1,
    };
    st = tether__etcd_change(etcd, &arrive, deadline, &outcome, &op->cause);
    if (st != TETHER_OK || outcome.held)
        goto out;
    if (op->timeout_ms == 0) {
        st = TETHER_ETIMEOUT;
        goto out;
    }
    int64_t arrived = outcome.revision, revision = arrived;
    while ((st = await_put(etcd, tether_buf_bytes(&done), revision, deadline, NULL, &op->cause)) ==
           TETHER_EGONE) {
        st = tether__etcd_get(etcd, tether_buf_bytes(&done), deadline, &value, &revision,
                              &op->cause);
        if (st != TETHER_OK || value.mod_revision > arrived)
            break;
    }
out:
    tether__etcd_outcome_fini(&outcome);
    tether_buf_fini(&value.bytes);
    tether_buf_fini(&done);
    tether_buf_fini(&arrivals);
    return st;
}

/* ---- Many keys ------------------------------------------------------------------------------ */

struct awaited {
    tether_bytes key;
    tether_buf value;      /* the name of the key as a value */
    tether_buf first, end; /* the span of names of the queue of that key */
    bool present;
};

/* A wait for keys. The keys are sorted, so that the key of an event is found by binary search. */
struct wait {
    struct tether__etcd *etcd;
    int64_t deadline;
    int64_t revision; /* revision at which the keys were read; later the one of the newest event */
    bool queues;      /* a key also counts as present if it has a queue that is not empty */
    size_t n, missing;
    struct awaited *items;
};

static void wait_fini(struct wait *wait)
{
    for (size_t i = 0; i < wait->n; i++) {
        tether_buf_fini(&wait->items[i].value);
        tether_buf_fini(&wait->items[i].first);
        tether_buf_fini(&wait->items[i].end);
    }
    tether__free(wait->items);
}

static int order_keys(tether_bytes a, tether_bytes b)
{
    int order = memcmp(a.data, b.data, a.len < b.len ? a.len : b.len);
    return order ? order : (a.len > b.len) - (a.len < b.len);
}

static int order_items(const void *a, const void *b)
{
    return order_keys(((const struct awaited *)a)->key, ((const struct awaited *)b)->key);
}

/* Sets up the wait. On error there is nothing to free. */
static tether_status wait_init(struct wait *wait,
                               struct tether__etcd *etcd,
                               const char *const *keys,
                               size_t n,
                               bool queues,
                               int64_t deadline,
                               tether_error *reterr)
{
    *wait =
        (struct wait){.etcd = etcd, .deadline = deadline, .queues = queues, .n = n, .missing = n};
    wait->items = tether__calloc(n, sizeof *wait->items);
    if (!wait->items)
        return tether_error_set(reterr, TETHER_ENOMEM, "out of memory for %zu keys", n);
    tether_status st = TETHER_OK;
    for (size_t i = 0; st == TETHER_OK && i < n; i++) {
        struct awaited *item = &wait->items[i];
        item->key = tether_bytes_str(keys[i]);
        st = tether__etcd_name(etcd, TETHER__ETCD_VALUES, keys[i], (tether_bytes){0}, &item->value,
                               reterr);
        if (st == TETHER_OK && queues)
            st = tether__etcd_tails(etcd, TETHER__ETCD_QUEUES, keys[i], &item->first, &item->end,
                                    reterr);
    }
    if (st != TETHER_OK) {
        wait_fini(wait);
        return st;
    }
    qsort(wait->items, n, sizeof *wait->items, order_items);
    return TETHER_OK;
}

static void tick_off(struct wait *wait, struct awaited *item)
{
    wait->missing -= !item->present;
    item->present = true;
}

/* Reads as many missing keys from `*next` on as fit into one transaction. */
static tether_status read_some_keys(struct wait *wait, size_t *next, tether_error *reterr)
{
    struct tether__etcd_op ranges[TETHER__ETCD_MAX_OPS];
    struct awaited *asked[TETHER__ETCD_MAX_OPS];
    size_t per_key = wait->queues ? 2 : 1, n = 0;
    for (; *next < wait->n && (n + 1) * per_key <= TETHER__ETCD_MAX_OPS; ++*next) {
        struct awaited *item = &wait->items[*next];
        if (item->present)
            continue;
        asked[n] = item;
        ranges[n * per_key] = (struct tether__etcd_op){
            .key = tether_buf_bytes(&item->value), .revision = wait->revision, .count_only = true};
        if (wait->queues)
            ranges[n * per_key + 1] =
                (struct tether__etcd_op){.key = tether_buf_bytes(&item->first),
                                         .end = tether_buf_bytes(&item->end),
                                         .revision = wait->revision,
                                         .count_only = true};
        n++;
    }
    if (!n)
        return TETHER_OK;
    Etcdserverpb__TxnResponse *reply = NULL;
    tether_status st =
        tether__etcd_read(wait->etcd, ranges, n * per_key, wait->deadline, &reply, reterr);
    if (st != TETHER_OK)
        return st;
    for (size_t i = 0; i < n * per_key; i++)
        if (reply->responses[i]->response_range->count > 0)
            tick_off(wait, asked[i / per_key]);
    if (!wait->revision)
        wait->revision = reply->header->revision;
    tether__pb_free(reply);
    return TETHER_OK;
}

/* Reads all keys at `revision` (0: now). */
static tether_status read_keys(struct wait *wait, int64_t revision, tether_error *reterr)
{
    tether_status st = TETHER_OK;
    wait->revision = revision;
    wait->missing = wait->n;
    for (size_t i = 0; i < wait->n; i++)
        wait->items[i].present = false;
    for (size_t next = 0; st == TETHER_OK && next < wait->n;)
        st = read_some_keys(wait, &next, reterr);
    return st;
}

static void handle_event(struct wait *wait, const Mvccpb__Event *event)
{
    /* length of prefix and "k/" or "q/" */
    size_t skip = strlen(tether__etcd_prefix(wait->etcd)) + 2;
    if (!event->kv || event->kv->key.len <= skip)
        return;
    if (event->kv->mod_revision > wait->revision)
        wait->revision = event->kv->mod_revision;
    const uint8_t *name = event->kv->key.data + skip;
    size_t len = event->kv->key.len - skip;
    /* the key ends at the NUL if it belongs to an element of a queue */
    const uint8_t *nul = memchr(name, '\0', len);
    struct awaited wanted = {.key = tether_bytes_of(name, nul ? (size_t)(nul - name) : len)};
    struct awaited *item = bsearch(&wanted, wait->items, wait->n, sizeof *wait->items, order_items);
    if (!item)
        return;
    /* The caller may have named a key twice. */
    while (item > wait->items && order_items(item - 1, &wanted) == 0)
        item--;
    for (; item < wait->items + wait->n && order_items(item, &wanted) == 0; item++)
        tick_off(wait, item);
}

/* Returns the spans to watch: each missing key or, when many are missing, one span over all keys.
 */
static size_t make_spans(const struct wait *wait, struct tether__etcd_span spans[MAX_WATCHERS])
{
    size_t n = 0;
    if (wait->missing * (wait->queues ? 2 : 1) > MAX_WATCHERS) {
        const struct awaited *first = &wait->items[0], *last = &wait->items[wait->n - 1];
        /* A buffer has a NUL after its content. With that NUL the name is the next one in key
         * order, so it ends the range. */
        spans[n++] =
            (struct tether__etcd_span){tether_buf_bytes(&first->value),
                                       tether_bytes_of(last->value.data, last->value.len + 1)};
        if (wait->queues)
            spans[n++] = (struct tether__etcd_span){tether_buf_bytes(&first->first),
                                                    tether_buf_bytes(&last->end)};
        return n;
    }
    for (size_t i = 0; i < wait->n; i++) {
        const struct awaited *item = &wait->items[i];
        if (item->present)
            continue;
        spans[n++] = (struct tether__etcd_span){.key = tether_buf_bytes(&item->value)};
        if (wait->queues)
            spans[n++] = (struct tether__etcd_span){tether_buf_bytes(&item->first),
                                                    tether_buf_bytes(&item->end)};
    }
    return n;
}

static tether_status watch_missing(struct wait *wait, tether_error *reterr)
{
    struct tether__etcd_span spans[MAX_WATCHERS];
    size_t n = make_spans(wait, spans);
    struct tether__etcd_watch *watch = NULL;
    tether_status st = tether__etcd_watch_new(wait->etcd, spans, n, true, wait->revision,
                                              wait->deadline, &watch, reterr);
    while (st == TETHER_OK && wait->missing) {
        Etcdserverpb__WatchResponse *events = NULL;
        st = tether__etcd_watch_next(watch, &events, reterr);
        if (st != TETHER_OK)
            break;
        for (size_t i = 0; i < events->n_events; i++)
            handle_event(wait, events->events[i]);
        tether__pb_free(events);
    }
    tether__etcd_watch_free(watch);
    return st;
}

/* On success, all keys existed at `wait->revision`. */
static tether_status wait_for_all(struct wait *wait, bool may_wait, tether_error *reterr)
{
    int64_t revision = 0;
    for (;;) {
        tether_status st = read_keys(wait, revision, reterr);
        if (st == TETHER_OK && wait->missing == 0)
            return TETHER_OK;
        if (st == TETHER_OK)
            st = may_wait ? watch_missing(wait, reterr) : TETHER_ETIMEOUT;
        if (st == TETHER_OK && wait->n == 1)
            return TETHER_OK;
        if (st != TETHER_OK && st != TETHER_EGONE)
            return st;
        /* If etcd has compacted the history, read the present state instead. */
        revision = st == TETHER_OK ? wait->revision : 0;
    }
}

tether_status tether__store_etcd_check(struct tether__etcd *etcd, struct tether__store_op *op)
{
    struct wait wait;
    tether_status st =
        wait_init(&wait, etcd, op->keys, op->n, true, tether__etcd_deadline(op), &op->cause);
    if (st != TETHER_OK)
        return st;
    do {
        st = read_keys(&wait, 0, &op->cause);
    } while (st ==
             TETHER_EGONE); /* etcd compacted its history between the first keys and the last */
    if (st == TETHER_OK)
        op->yes = wait.missing == 0;
    wait_fini(&wait);
    return st;
}

tether_status tether__store_etcd_wait(struct tether__etcd *etcd, struct tether__store_op *op)
{
    struct wait wait;
    tether_status st =
        wait_init(&wait, etcd, op->keys, op->n, true, tether__etcd_deadline(op), &op->cause);
    if (st != TETHER_OK)
        return st;
    st = wait_for_all(&wait, op->timeout_ms != 0, &op->cause);
    wait_fini(&wait);
    return st;
}

/* Reads all values at `revision` (0: now); `*ret_missing` says whether one did not exist. */
static tether_status read_values(struct tether__etcd *etcd,
                                 const char *const *keys,
                                 size_t n,
                                 int64_t revision,
                                 int64_t deadline,
                                 tether_buf *values,
                                 bool *ret_missing,
                                 tether_error *reterr)
{
    tether_status st = TETHER_OK;
    *ret_missing = false;
    for (size_t done = 0; st == TETHER_OK && !*ret_missing && done < n;) {
        struct tether__etcd_op ranges[VALUES_PER_READ];
        tether_buf names[VALUES_PER_READ];
        size_t count = 0;
        for (; st == TETHER_OK && count < VALUES_PER_READ && done + count < n; count++) {
            names[count] = TETHER_BUF_INIT;
            st = tether__etcd_name(etcd, TETHER__ETCD_VALUES, keys[done + count], (tether_bytes){0},
                                   &names[count], reterr);
            ranges[count] = (struct tether__etcd_op){.key = tether_buf_bytes(&names[count]),
                                                     .revision = revision};
        }
        Etcdserverpb__TxnResponse *reply = NULL;
        if (st == TETHER_OK)
            st = tether__etcd_read(etcd, ranges, count, deadline, &reply, reterr);
        for (size_t i = 0; i < count; i++)
            tether_buf_fini(&names[i]);
        if (st != TETHER_OK)
            break;
        for (size_t i = 0; st == TETHER_OK && !*ret_missing && i < count; i++) {
            const Etcdserverpb__RangeResponse *range = reply->responses[i]->response_range;
            *ret_missing = range->n_kvs == 0;
            if (!*ret_missing)
                st = tether_buf_assign(
                    &values[done + i],
                    tether_bytes_of(range->kvs[0]->value.data, range->kvs[0]->value.len));
        }
        if (!revision)
            revision = reply->header->revision;
        tether__pb_free(reply);
        done += count;
    }
    return st;
}

tether_status tether__store_etcd_multi_get(struct tether__etcd *etcd, struct tether__store_op *op)
{
    int64_t deadline = tether__etcd_deadline(op);
    tether_buf *values = tether__calloc(op->n, sizeof *values);
    if (!values)
        return tether_error_set(&op->cause, TETHER_ENOMEM, "out of memory for %zu values", op->n);
    tether_status st;
    int64_t revision = 0;
    bool missing;
    do {
        st = read_values(etcd, op->keys, op->n, revision, deadline, values, &missing, &op->cause);
        revision = 0;
        if (st != TETHER_OK || !missing)
            continue;
        struct wait wait;
        st = wait_init(&wait, etcd, op->keys, op->n, false, deadline, &op->cause);
        if (st == TETHER_OK) {
            st = wait_for_all(&wait, op->timeout_ms != 0, &op->cause);
            revision = wait.revision;
            wait_fini(&wait);
        }
    } while (st == TETHER_EGONE || (st == TETHER_OK && missing));

    tether__store_hand_out(values, op->n, st, op->results);
    return st;
}
