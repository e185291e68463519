/* Queues of the key-value core. */
#include "base/alloc.h"
#include "rendezvous/store/kv/internal.h"

tether_status tether__kv_queue_push(struct tether__kv *kv, tether_bytes key, tether_bytes value)
{
    if (value.len > kv->max_value ||
        !tether__kv_has_room(kv, 0, tether__kv_cost(key.len, value.len)))
        return TETHER_ETOOBIG;
    struct tether__kv_item *item = tether__malloc(sizeof *item);
    if (!item || tether__kv_copy_value(value, &item->value) != TETHER_OK)
        goto undo_item;
    struct tether__kv_entry *entry = tether__kv_entry_make_extra(kv, key);
    if (!entry)
        goto undo_value;

    tether__kv_entry_give(kv, entry, item, false);
    tether__kv_run_ready(kv);
    return TETHER_OK;

undo_value:
    tether_buf_fini(&item->value);
undo_item:
    tether__free(item);
    return TETHER_ENOMEM;
}

struct tether__kv_item *tether__kv_entry_take(struct tether__kv *kv, struct tether__kv_entry *entry)
{
    entry->extra->queue_len--;
    struct tether__kv_item *item = tether__list_entry(tether__list_pop_front(&entry->extra->queue),
                                                      struct tether__kv_item, node);
    kv->bytes -= tether__kv_cost(entry->key.len, item->value.len);
    return item;
}

static void pop_first(struct tether__kv *kv, struct tether__kv_entry *entry, tether_buf *ret_value)
{
    struct tether__kv_item *item = tether__kv_entry_take(kv, entry);
    tether_buf_fini(ret_value);
    *ret_value = item->value;
    tether__free(item);
    if (entry->extra->queue_len == 0)
        tether__kv_entry_changed(kv, entry);
    tether__kv_entry_trim(kv, entry);
}

bool tether__kv_queue_pop(struct tether__kv *kv, tether_bytes key, tether_buf *ret_value)
{
    struct tether__kv_entry *entry = tether__kv_entry_find(kv, key);
    if (!entry || !tether__kv_entry_can_pop(entry))
        return false;
    pop_first(kv, entry, ret_value);
    return true;
}

bool tether__kv_claim_pop(struct tether__kv *kv,
                          struct tether__kv_claim *claim,
                          tether_bytes key,
                          tether_buf *ret_value)
{
    struct tether__kv_entry *entry = claim->entry;
    if (!entry || !tether_bytes_equal(entry->key, key))
        return false;
    claim->entry = NULL;
    entry->extra->n_claimed--;
    pop_first(kv, entry, ret_value);
    return true;
}

bool tether__kv_queue_first(const struct tether__kv *kv, tether_bytes key, tether_bytes *ret_value)
{
    const struct tether__kv_entry *entry = tether__kv_entry_find(kv, key);
    if (!entry || !entry->extra || entry->extra->queue_len == 0)
        return false;
    *ret_value = tether_buf_bytes(
        &tether__list_entry(entry->extra->queue.next, struct tether__kv_item, node)->value);
    return true;
}

size_t tether__kv_queue_len(const struct tether__kv *kv, tether_bytes key)
{
    const struct tether__kv_entry *entry = tether__kv_entry_find(kv, key);
    return entry && entry->extra ? entry->extra->queue_len : 0;
}
