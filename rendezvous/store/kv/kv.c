/* Values of the key-value core. Every change first allocates all the memory that it needs, then is
 * applied, then tells the waiters (wait.c). */
#include "rendezvous/store/kv/kv.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/alloc.h"
#include "rendezvous/store/kv/internal.h"

/* ---- Entries -------------------------------------------------------------------------------- */

tether_status tether__kv_init(struct tether__kv *kv, size_t max_value)
{
    *kv = (struct tether__kv){.max_value = max_value, .max_bytes = SIZE_MAX};
    tether__list_init(&kv->ready);
    return tether__map_init(&kv->entries, &tether__map_bytes);
}

void tether__kv_fini(struct tether__kv *kv)
{
    if (!kv->entries.type)
        return;
    struct tether__map_iter it = TETHER__MAP_ITER;
    for (tether_bytes *key; (key = tether__map_next(&kv->entries, &it));) {
        struct tether__kv_entry *entry = tether__container_of(key, struct tether__kv_entry, key);
        if (entry->extra) {
            struct tether__list *node;
            while ((node = tether__list_pop_front(&entry->extra->queue))) {
                struct tether__kv_item *item =
                    tether__list_entry(node, struct tether__kv_item, node);
                tether_buf_fini(&item->value);
                tether__free(item);
            }
            tether__free(entry->extra);
        }
        tether_buf_fini(&entry->value);
        tether__free(entry);
    }
    tether__map_fini(&kv->entries);
    *kv = (struct tether__kv){0};
}

struct tether__kv_entry *tether__kv_entry_find(const struct tether__kv *kv, tether_bytes key)
{
    tether_bytes *found = tether__map_get(&kv->entries, &key);
    return found ? tether__container_of(found, struct tether__kv_entry, key) : NULL;
}

struct tether__kv_entry *tether__kv_entry_make(struct tether__kv *kv, tether_bytes key)
{
    struct tether__kv_entry *entry = tether__kv_entry_find(kv, key);
    if (entry)
        return entry;
    entry = tether__malloc(sizeof *entry + key.len);
    if (!entry)
        return NULL;
    *entry = (struct tether__kv_entry){.key = tether_bytes_of(entry->name, key.len)};
    if (key.len)
        memcpy(entry->name, key.data, key.len);
    if (tether__map_put(&kv->entries, &entry->key) != TETHER_OK)
        return tether__free(entry);
    return entry;
}

struct tether__kv_entry *tether__kv_entry_make_extra(struct tether__kv *kv, tether_bytes key)
{
    struct tether__kv_entry *entry = tether__kv_entry_make(kv, key);
    if (!entry || entry->extra)
        return entry;
    entry->extra = tether__malloc(sizeof *entry->extra);
    if (!entry->extra) {
        tether__kv_entry_trim(kv, entry);
        return NULL;
    }
    tether__list_init(&entry->extra->queue);
    tether__list_init(&entry->extra->waiters);
    tether__list_init(&entry->extra->takers);
    tether__list_init(&entry->extra->poppers);
    tether__heap_init(&entry->extra->members, tether__kv_member_less);
    tether__list_init(&entry->extra->complete);
    entry->extra->had_value = entry->value.data != NULL;
    entry->extra->had_queue = false;
    entry->extra->queue_len = entry->extra->n_claimed = 0;
    return entry;
}

void tether__kv_entry_trim(struct tether__kv *kv, struct tether__kv_entry *entry)
{
    struct tether__kv_extra *extra = entry->extra;
    if (extra && tether__list_empty(&extra->queue) && tether__list_empty(&extra->waiters) &&
        tether__list_empty(&extra->takers) && tether__list_empty(&extra->poppers) &&
        !tether__heap_top(&extra->members) && tether__list_empty(&extra->complete))
        entry->extra = tether__free(extra);
    if (!entry->extra && !entry->value.data) {
        tether__map_del(&kv->entries, &entry->key);
        tether__free(entry);
    }
}

/* Trims the entry of a call that failed half-way, if it is still there. */
static void trim_key(struct tether__kv *kv, tether_bytes key)
{
    struct tether__kv_entry *entry = tether__kv_entry_find(kv, key);
    if (entry)
        tether__kv_entry_trim(kv, entry);
}

/* ---- Values --------------------------------------------------------------------------------- */

tether_status tether__kv_copy_value(tether_bytes value, tether_buf *ret_copy)
{
    char *data = value.len < SIZE_MAX ? tether__malloc(value.len + 1) : NULL;
    if (!data)
        return TETHER_ENOMEM;
    if (value.len)
        memcpy(data, value.data, value.len);
    data[value.len] = '\0';
    *ret_copy = (tether_buf){data, value.len, value.len + 1};
    return TETHER_OK;
}

/* The bytes that the value of `entry` counts for against the limit; 0 when it has no value. */
static size_t value_cost(const struct tether__kv_entry *entry)
{
    return entry && entry->value.data ? tether__kv_cost(entry->key.len, entry->value.len) : 0;
}

/* Makes `value`, whose memory it takes, the value of `entry`. */
static void install(struct tether__kv *kv, struct tether__kv_entry *entry, tether_buf value)
{
    kv->count += !entry->value.data;
    kv->bytes -= value_cost(entry);
    tether_buf_fini(&entry->value);
    entry->value = value;
    kv->bytes += value_cost(entry);
}

bool tether__kv_get(const struct tether__kv *kv, tether_bytes key, tether_bytes *ret_value)
{
    const struct tether__kv_entry *entry = tether__kv_entry_find(kv, key);
    if (!entry || !entry->value.data)
        return false;
    *ret_value = tether_buf_bytes(&entry->value);
    return true;
}

bool tether__kv_present(const struct tether__kv *kv, tether_bytes key)
{
    const struct tether__kv_entry *entry = tether__kv_entry_find(kv, key);
    return entry && tether__kv_entry_present(entry);
}

bool tether__kv_next(struct tether__kv *kv, struct tether__map_iter *it, tether_bytes *ret_key)
{
    for (tether_bytes *key; (key = tether__map_next(&kv->entries, it));) {
        if (tether__container_of(key, struct tether__kv_entry, key)->value.data) {
            *ret_key = *key;
            return true;
        }
    }
    return false;
}

tether_status tether__kv_visit(struct tether__kv *kv, tether__kv_visit_fn *visit, void *userdata)
{
    struct tether__map_iter it = TETHER__MAP_ITER;
    for (tether_bytes *key; (key = tether__map_next(&kv->entries, &it));) {
        struct tether__kv_entry *entry = tether__container_of(key, struct tether__kv_entry, key);
        if (entry->value.data) {
            tether_status st = visit(userdata, *key, tether_buf_bytes(&entry->value), false);
            if (st != TETHER_OK)
                return st;
        }
        if (!entry->extra)
            continue;
        TETHER__LIST_FOR_EACH(node, &entry->extra->queue) {
            struct tether__kv_item *item = tether__list_entry(node, struct tether__kv_item, node);
            tether_status st = visit(userdata, *key, tether_buf_bytes(&item->value), true);
            if (st != TETHER_OK)
                return st;
        }
    }
    return TETHER_OK;
}

tether_status tether__kv_keys(struct tether__kv *kv, tether_buf **ret_keys, size_t *ret_count)
{
    tether_buf *keys = tether__calloc(kv->count ? kv->count : 1, sizeof *keys);
    if (!keys)
        return TETHER_ENOMEM;
    size_t n = 0;
    struct tether__map_iter it = TETHER__MAP_ITER;
    for (tether_bytes key; tether__kv_next(kv, &it, &key); n++) {
        if (tether__kv_copy_value(key, &keys[n]) != TETHER_OK) {
            while (n > 0)
                tether_buf_fini(&keys[--n]);
            tether__free(keys);
            return TETHER_ENOMEM;
        }
    }
    *ret_keys = keys;
    *ret_count = n;
    return TETHER_OK;
}

tether_status tether__kv_set_take(struct tether__kv *kv, tether_bytes key, tether_buf *value)
{
    if (value->len > kv->max_value)
        return TETHER_ETOOBIG;
    if (!value->data && tether_buf_reserve(value, 0) != TETHER_OK)
        return TETHER_ENOMEM;
    if (!tether__kv_has_room(kv, value_cost(tether__kv_entry_find(kv, key)),
                             tether__kv_cost(key.len, value->len)))
        return TETHER_ETOOBIG;
    struct tether__kv_entry *entry = tether__kv_entry_make(kv, key);
    if (!entry)
        return TETHER_ENOMEM;
    install(kv, entry, *value);
    *value = TETHER_BUF_INIT;
    tether__kv_entry_changed(kv, entry);
    tether__kv_run_ready(kv);
    return TETHER_OK;
}

/* Whether `value` can be written over the old one without wasting much of its memory. */
static bool fits(const tether_buf *old, tether_bytes value)
{
    return old->data && value.len < old->cap && old->cap / 2 <= value.len + 64;
}

tether_status tether__kv_set(struct tether__kv *kv, tether_bytes key, tether_bytes value)
{
    if (value.len > kv->max_value)
        return TETHER_ETOOBIG;
    struct tether__kv_entry *entry = tether__kv_entry_find(kv, key);
    size_t old = value_cost(entry), new = tether__kv_cost(key.len, value.len);
    if (!tether__kv_has_room(kv, old, new))
        return TETHER_ETOOBIG;
    /* The key was and stays present: no waiter completes. */
    if (entry && fits(&entry->value, value)) {
        kv->bytes += new - old;
        if (value.len)
            memmove(entry->value.data, value.data, value.len);
        entry->value.data[value.len] = '\0';
        entry->value.len = value.len;
        return TETHER_OK;
    }
    tether_buf copy;
    tether_status st = tether__kv_copy_value(value, &copy);
    if (st == TETHER_OK) {
        st = tether__kv_set_take(kv, key, &copy);
        if (st != TETHER_OK)
            tether_buf_fini(&copy);
    }
    return st;
}

tether_status tether__kv_multi_set(struct tether__kv *kv,
                                   const tether_bytes *keys,
                                   const tether_bytes *values,
                                   size_t n)
{
    struct change {
        struct tether__kv_entry *entry;
        tether_buf value;
    } *changes = tether__calloc(n ? n : 1, sizeof *changes);
    tether_status st = changes ? TETHER_OK : TETHER_ENOMEM;

    /* keys that replace a value or come twice count in full here, so this is an upper bound */
    size_t total = 0;
    for (size_t i = 0; st == TETHER_OK && i < n; i++)
        if (__builtin_add_overflow(total, tether__kv_cost(keys[i].len, values[i].len), &total) ||
            !tether__kv_has_room(kv, 0, total))
            st = TETHER_ETOOBIG;

    size_t made = 0;
    for (; st == TETHER_OK && made < n; made++) {
        struct change *change = &changes[made];
        st = values[made].len > kv->max_value ? TETHER_ETOOBIG
                                              : tether__kv_copy_value(values[made], &change->value);
        if (st != TETHER_OK)
            break;
        change->entry = tether__kv_entry_make(kv, keys[made]);
        if (!change->entry) {
            tether_buf_fini(&change->value);
            st = TETHER_ENOMEM;
            break;
        }
    }
    if (st == TETHER_OK) {
        for (size_t i = 0; i < n; i++)
            install(kv, changes[i].entry, changes[i].value);
        for (size_t i = 0; i < n; i++)
            tether__kv_entry_changed(kv, changes[i].entry);
        tether__kv_run_ready(kv);
    } else {
        for (size_t i = 0; i < made; i++) {
            tether_buf_fini(&changes[i].value);
            trim_key(kv, keys[i]);
        }
    }
    tether__free(changes);
    return st;
}

tether_status tether__kv_append(struct tether__kv *kv, tether_bytes key, tether_bytes value)
{
    struct tether__kv_entry *entry = tether__kv_entry_find(kv, key);
    if (!entry || !entry->value.data)
        return tether__kv_set(kv, key, value);
    if (value.len > kv->max_value || entry->value.len > kv->max_value - value.len ||
        !tether__kv_has_room(kv, 0, value.len))
        return TETHER_ETOOBIG;
    tether_status st = tether_buf_append(&entry->value, value);
    if (st == TETHER_OK)
        kv->bytes += value.len;
    return st;
}

tether_status tether__kv_sum(const tether_bytes *old, int64_t delta, int64_t *ret_sum)
{
    int64_t number = 0;
    if (old) {
        const char *at = old->data;
        const char *end = at + old->len;
        bool negative = at < end && *at == '-';
        at += negative;
        if (at == end)
            return TETHER_EINVAL;
        for (; at < end; at++) {
            int digit = *at - '0';
            if (digit < 0 || digit > 9 || __builtin_mul_overflow(number, 10, &number) ||
                __builtin_sub_overflow(number, digit, &number)) /* negative: INT64_MIN fits */
                return TETHER_EINVAL;
        }
        if (!negative && __builtin_sub_overflow(0, number, &number))
            return TETHER_EINVAL;
    }
    int64_t sum;
    if (__builtin_add_overflow(number, delta, &sum))
        return TETHER_EINVAL;
    *ret_sum = sum;
    return TETHER_OK;
}

tether_status tether__kv_entry_add(struct tether__kv *kv,
                                   struct tether__kv_entry *entry,
                                   int64_t delta,
                                   int64_t *ret_sum)
{
    tether_bytes old = tether_buf_bytes(&entry->value);
    int64_t sum;
    tether_status st = tether__kv_sum(entry->value.data ? &old : NULL, delta, &sum);
    if (st != TETHER_OK)
        return st;

    char text[24];
    tether_bytes digits = {text, (size_t)snprintf(text, sizeof text, "%" PRId64, sum)};
    size_t before = value_cost(entry);
    if (!tether__kv_has_room(kv, before, tether__kv_cost(entry->key.len, digits.len)))
        return TETHER_ETOOBIG;
    if (entry->value.data) {
        st = tether_buf_assign(&entry->value, digits);
        kv->bytes += value_cost(entry) - before;
    } else {
        tether_buf copy;
        st = tether__kv_copy_value(digits, &copy);
        if (st == TETHER_OK)
            install(kv, entry, copy);
    }
    if (st == TETHER_OK)
        *ret_sum = sum;
    return st;
}

tether_status tether__kv_add(struct tether__kv *kv,
                             tether_bytes key,
                             int64_t delta,
                             int64_t *ret_sum)
{
    struct tether__kv_entry *entry = tether__kv_entry_make(kv, key);
    if (!entry)
        return TETHER_ENOMEM;
    tether_status st = tether__kv_entry_add(kv, entry, delta, ret_sum);
    if (st != TETHER_OK) {
        tether__kv_entry_trim(kv, entry);
        return st;
    }
    tether__kv_entry_counted(kv, entry, *ret_sum);
    tether__kv_run_ready(kv);
    return TETHER_OK;
}

tether_status tether__kv_compare_set(struct tether__kv *kv,
                                     tether_bytes key,
                                     tether_bytes expected,
                                     tether_bytes desired,
                                     bool *ret_swapped,
                                     tether_bytes *ret_value)
{
    tether_bytes present = {NULL, 0};
    bool found = tether__kv_get(kv, key, &present);
    if (!tether_bytes_equal(present, expected)) {
        *ret_swapped = false;
        *ret_value = found ? present : expected;
        return TETHER_OK;
    }
    tether_status st = tether__kv_set(kv, key, desired);
    if (st == TETHER_OK) {
        *ret_swapped = true;
        *ret_value = desired;
    }
    return st;
}

bool tether__kv_delete(struct tether__kv *kv, tether_bytes key)
{
    struct tether__kv_entry *entry = tether__kv_entry_find(kv, key);
    if (!entry || !entry->value.data)
        return false;
    kv->bytes -= value_cost(entry);
    tether_buf_fini(&entry->value);
    kv->count--;
    tether__kv_entry_changed(kv, entry);
    tether__kv_entry_trim(kv, entry);
    return true;
}
