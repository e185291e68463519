/* Notes: keys, messages, and the store calls that they take. */
#include "rendezvous/dynamic/notes.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "rendezvous/dynamic/pb.h"

#define HEAD_MAGIC 0x48444452u /* "RDDH" */
#define HEAD_VERSION 1u
#define KEY_SIZE (TETHER__RDZV_NODE_TEXT + 40)
#define BATCH 1024   /* keys of one request */
#define HURRY_MS 100 /* for wishes that are numbered to be there, before they are read singly */

static tether_status no_memory(tether_error *reterr)
{
    return tether_error_set(reterr, TETHER_ENOMEM, "no memory for a note of the rendezvous");
}

/* ---- The head ------------------------------------------------------------------------------- */

static tether_status read_head(tether_bytes bytes,
                               struct tether__rdzv_head *ret_head,
                               tether_error *reterr)
{
    Tether__Rendezvous__Head *message;
    tether_status st =
        tether__rdzv_pb_unpack(&tether__rendezvous__head__descriptor, bytes, &message);
    if (st == TETHER_ENOMEM)
        return no_memory(reterr);
    if (st != TETHER_OK || message->magic != HEAD_MAGIC || message->version != HEAD_VERSION ||
        strlen(message->leader) >= TETHER__RDZV_NODE_TEXT ||
        message->world_size > TETHER_RDZV_MAX_NODES) {
        if (st == TETHER_OK)
            tether__rdzv_pb_free(message);
        return tether_error_set(reterr, TETHER_ECORRUPT,
                                "the rendezvous head is corrupt: another program, or another "
                                "release, uses the same store and run id");
    }
    struct tether__rdzv_head head = {
        .term = message->term,
        .beat = message->beat,
        .edition = message->edition,
        .places = message->places,
        .round = message->round,
        .complete = message->complete,
        .closed = message->closed,
        .world_size = (int32_t)message->world_size,
        .counts = {message->participants, message->waiting, message->redundant},
        .folded = message->folded,
    };
    strcpy(head.leader, message->leader);
    if (message->last_call) {
        uint64_t left = message->last_call->left_ms;
        head.last_call = true;
        head.last_calls = message->last_call->number;
        head.last_call_left_ms = left < INT_MAX ? (int64_t)left : INT_MAX;
    }
    tether__rdzv_pb_free(message);
    *ret_head = head;
    return TETHER_OK;
}

tether_status tether__rdzv_head_read(const struct tether__rdzv_notes *notes,
                                     int timeout_ms,
                                     struct tether__rdzv_head *ret_head,
                                     tether_buf *ret_raw,
                                     tether_error *reterr)
{
    tether_status st = tether_store_try_get(notes->store, "head", timeout_ms, ret_raw, reterr);
    if (st == TETHER_ENOTFOUND)
        ret_raw->len = 0;
    if (st != TETHER_OK)
        return st;
    return read_head(tether_buf_bytes(ret_raw), ret_head, reterr);
}

tether_status tether__rdzv_head_swap(const struct tether__rdzv_notes *notes,
                                     const struct tether__rdzv_head *head,
                                     int timeout_ms,
                                     tether_buf *raw,
                                     bool *ret_swapped,
                                     tether_error *reterr)
{
    Tether__Rendezvous__Head message = TETHER__RENDEZVOUS__HEAD__INIT;
    Tether__Rendezvous__LastCall last_call = TETHER__RENDEZVOUS__LAST_CALL__INIT;
    message.magic = HEAD_MAGIC;
    message.version = HEAD_VERSION;
    message.term = head->term;
    message.leader = (char *)head->leader; /* only read while packing */
    message.beat = head->beat;
    message.edition = head->edition;
    message.places = head->places;
    message.round = head->round;
    message.complete = head->complete;
    message.closed = head->closed;
    message.world_size = (uint32_t)head->world_size;
    message.participants = (uint32_t)head->counts.participants;
    message.waiting = (uint32_t)head->counts.waiting;
    message.redundant = (uint32_t)head->counts.redundant;
    message.folded = head->folded;
    if (head->last_call) {
        last_call.number = head->last_calls;
        last_call.left_ms = (uint64_t)head->last_call_left_ms;
        message.last_call = &last_call;
    }
    tether_buf packed = TETHER_BUF_INIT;
    if (tether__rdzv_pb_pack(&message.base, &packed) != TETHER_OK)
        return no_memory(reterr);
    bool swapped = false;
    tether_status st =
        tether_store_compare_set(notes->store, "head", tether_buf_bytes(raw),
                                 tether_buf_bytes(&packed), timeout_ms, &swapped, NULL, reterr);
    if (st == TETHER_OK && swapped) {
        tether_buf_fini(raw);
        *raw = packed;
    } else {
        tether_buf_fini(&packed);
    }
    if (st == TETHER_OK)
        *ret_swapped = swapped;
    return st;
}

/* ---- Wishes --------------------------------------------------------------------------------- */

static const char *wish_key(uint64_t number, char key[KEY_SIZE])
{
    snprintf(key, KEY_SIZE, "wish/%" PRIu64, number);
    return key;
}

tether_status tether__rdzv_wish_post(const struct tether__rdzv_notes *notes,
                                     enum tether__rdzv_wish_kind kind,
                                     const struct tether__rdzv_self *self,
                                     int timeout_ms,
                                     uint64_t *ret_number,
                                     tether_error *reterr)
{
    Tether__Rendezvous__Wish message = TETHER__RENDEZVOUS__WISH__INIT;
    Tether__Rendezvous__Member member;
    tether__rdzv_pb_from_self(&member, self, 0);
    message.kind = (Tether__Rendezvous__Wish__Kind)kind;
    message.member = &member;
    tether_buf packed = TETHER_BUF_INIT;
    if (tether__rdzv_pb_pack(&message.base, &packed) != TETHER_OK)
        return no_memory(reterr);
    int64_t number;
    char key[KEY_SIZE];
    tether_status st = tether_store_add(notes->store, "wishes", 1, timeout_ms, &number, reterr);
    if (st == TETHER_OK)
        st = tether_store_set(notes->store, wish_key((uint64_t)number, key),
                              tether_buf_bytes(&packed), timeout_ms, reterr);
    tether_buf_fini(&packed);
    if (st == TETHER_OK)
        *ret_number = (uint64_t)number;
    return st;
}

tether_status tether__rdzv_wish_count(const struct tether__rdzv_notes *notes,
                                      int timeout_ms,
                                      uint64_t *ret_count,
                                      tether_error *reterr)
{
    tether_buf value = TETHER_BUF_INIT;
    tether_status st = tether_store_try_get(notes->store, "wishes", timeout_ms, &value, reterr);
    if (st == TETHER_OK)
        *ret_count = strtoull(value.data, NULL, 10);
    else if (st == TETHER_ENOTFOUND)
        *ret_count = 0, st = TETHER_OK;
    tether_buf_fini(&value);
    return st;
}

static tether_status hand_over(tether_bytes bytes,
                               tether__rdzv_wish_fn *fn,
                               void *userdata,
                               tether_error *reterr)
{
    Tether__Rendezvous__Wish *message = NULL;
    struct tether__rdzv_self self = {.node = {"", 0, 0}, .hint = -1, .previous = -1};
    tether_status st =
        tether__rdzv_pb_unpack(&tether__rendezvous__wish__descriptor, bytes, &message);
    if (st == TETHER_ENOMEM)
        return no_memory(reterr);
    enum tether__rdzv_wish_kind kind = 0;
    int number = st == TETHER_OK ? (int)message->kind : 0;
    if (number >= TETHER__RDZV_JOIN && number <= TETHER__RDZV_CLOSE && message->member &&
        tether__rdzv_pb_to_self(message->member, &self))
        kind = (enum tether__rdzv_wish_kind)number;
    st = fn(userdata, kind, &self, reterr);
    tether__rdzv_pb_free(message);
    return st;
}

/* One at a time, up to the first that is not there. */
static tether_status read_singly(const struct tether__rdzv_notes *notes,
                                 uint64_t first,
                                 size_t n,
                                 int timeout_ms,
                                 tether_buf *values,
                                 size_t *ret_found,
                                 tether_error *reterr)
{
    size_t found = 0;
    tether_status st = TETHER_OK;
    while (found < n) {
        char key[KEY_SIZE];
        st = tether_store_try_get(notes->store, wish_key(first + found, key), timeout_ms,
                                  &values[found], reterr);
        if (st != TETHER_OK)
            break;
        found++;
    }
    *ret_found = found;
    return st == TETHER_ENOTFOUND ? TETHER_OK : st;
}

static tether_status read_batch(const struct tether__rdzv_notes *notes,
                                uint64_t first,
                                size_t n,
                                int timeout_ms,
                                tether_buf *values,
                                size_t *ret_found,
                                tether_error *reterr)
{
    if (n == 1)
        return read_singly(notes, first, n, timeout_ms, values, ret_found, reterr);
    char(*texts)[KEY_SIZE] = tether__calloc(n, sizeof *texts);
    const char **keys = tether__calloc(n, sizeof *keys);
    tether_status st = TETHER_ENOMEM;
    if (texts && keys) {
        for (size_t i = 0; i < n; i++)
            keys[i] = wish_key(first + i, texts[i]);
        int hurry = timeout_ms < 0 || timeout_ms > HURRY_MS ? HURRY_MS : timeout_ms;
        st = tether_store_multi_get(notes->store, keys, n, hurry, values, reterr);
        *ret_found = n;
        if (st == TETHER_ETIMEOUT)
            st = read_singly(notes, first, n, timeout_ms, values, ret_found, reterr);
    } else {
        no_memory(reterr);
    }
    tether__free(keys);
    tether__free(texts);
    return st;
}

tether_status tether__rdzv_wish_read(const struct tether__rdzv_notes *notes,
                                     uint64_t first,
                                     uint64_t last,
                                     int timeout_ms,
                                     tether__rdzv_wish_fn *fn,
                                     void *userdata,
                                     uint64_t *ret_taken,
                                     tether_error *reterr)
{
    *ret_taken = 0;
    if (last < first)
        return TETHER_OK;
    size_t cap = last - first + 1 < BATCH ? (size_t)(last - first + 1) : BATCH;
    tether_buf *values = tether__calloc(cap, sizeof *values);
    if (!values)
        return no_memory(reterr);
    tether_status st = TETHER_OK;
    bool hole = false;
    while (first + *ret_taken <= last && st == TETHER_OK && !hole) {
        uint64_t at = first + *ret_taken;
        size_t n = last - at + 1 < cap ? (size_t)(last - at + 1) : cap, found = 0;
        st = read_batch(notes, at, n, timeout_ms, values, &found, reterr);
        hole = found < n;
        for (size_t i = 0; i < found && st == TETHER_OK; i++) {
            st = hand_over(tether_buf_bytes(&values[i]), fn, userdata, reterr);
            if (st == TETHER_OK)
                ++*ret_taken;
        }
        for (size_t i = 0; i < n; i++)
            tether_buf_fini(&values[i]);
    }
    tether__free(values);
    return st;
}

void tether__rdzv_wish_forget(const struct tether__rdzv_notes *notes,
                              uint64_t first,
                              uint64_t last,
                              int timeout_ms)
{
    char key[KEY_SIZE];
    tether_status st = TETHER_OK;
    for (uint64_t n = first; n <= last && st == TETHER_OK; n++)
        st = tether_store_delete(notes->store, wish_key(n, key), timeout_ms, NULL, NULL);
}

/* ---- Places --------------------------------------------------------------------------------- */

static const char *place_key(uint64_t term, const char *node, char key[KEY_SIZE])
{
    snprintf(key, KEY_SIZE, "place/%" PRIu64 "/%s", term, node);
    return key;
}

tether_status tether__rdzv_place_read(const struct tether__rdzv_notes *notes,
                                      uint64_t term,
                                      const struct tether__rdzv_node *node,
                                      int timeout_ms,
                                      struct tether__rdzv_place *ret_place,
                                      tether_error *reterr)
{
    char text[TETHER__RDZV_NODE_TEXT], key[KEY_SIZE];
    tether_buf value = TETHER_BUF_INIT;
    tether_status st = tether_store_try_get(
        notes->store, place_key(term, tether__rdzv_node_format(node, text), key), timeout_ms,
        &value, reterr);
    if (st == TETHER_ENOTFOUND) {
        *ret_place = (struct tether__rdzv_place){.list = TETHER__RDZV_NO_LIST};
        st = TETHER_OK;
        goto undo_value;
    }
    if (st != TETHER_OK)
        goto undo_value;
    Tether__Rendezvous__Place *message;
    st = tether__rdzv_pb_unpack(&tether__rendezvous__place__descriptor, tether_buf_bytes(&value),
                                &message);
    if (st == TETHER_ENOMEM)
        no_memory(reterr);
    else if (st != TETHER_OK)
        tether_error_set(reterr, TETHER_ECORRUPT,
                         "the rendezvous note '%s' is corrupt: another program may use the same "
                         "store and run id",
                         key);
    if (st != TETHER_OK)
        goto undo_value;
    *ret_place = (struct tether__rdzv_place){
        .list = (enum tether__rdzv_list)message->list,
        .round = message->round,
        .complete = message->complete,
        .rank = (int32_t)message->rank,
        .world_size = (int32_t)message->world_size,
    };
    tether__rdzv_pb_free(message);

undo_value:
    tether_buf_fini(&value);
    return st;
}

static tether_status pack_place(const struct tether__rdzv_place *place, tether_buf *ret_bytes)
{
    Tether__Rendezvous__Place message = TETHER__RENDEZVOUS__PLACE__INIT;
    message.list = (Tether__Rendezvous__Place__List)place->list;
    message.round = place->round;
    message.complete = place->complete;
    message.rank = (uint32_t)place->rank;
    message.world_size = (uint32_t)place->world_size;
    return tether__rdzv_pb_pack(&message.base, ret_bytes);
}

static tether_status write_batch(const struct tether__rdzv_notes *notes,
                                 uint64_t term,
                                 const struct tether__rdzv_placing *placings,
                                 size_t n,
                                 int timeout_ms,
                                 tether_error *reterr)
{
    char(*texts)[KEY_SIZE] = tether__calloc(n, sizeof *texts);
    const char **keys = tether__calloc(n, sizeof *keys);
    tether_buf *packed = tether__calloc(n, sizeof *packed);
    tether_bytes *values = tether__calloc(n, sizeof *values);
    tether_status st = texts && keys && packed && values ? TETHER_OK : no_memory(reterr);
    for (size_t i = 0; i < n && st == TETHER_OK; i++) {
        keys[i] = place_key(term, placings[i].node, texts[i]);
        if (pack_place(&placings[i].place, &packed[i]) != TETHER_OK)
            st = no_memory(reterr);
        else
            values[i] = tether_buf_bytes(&packed[i]);
    }
    if (st == TETHER_OK)
        st = tether_store_multi_set(notes->store, keys, values, n, timeout_ms, reterr);
    for (size_t i = 0; packed && i < n; i++)
        tether_buf_fini(&packed[i]);
    tether__free(values);
    tether__free(packed);
    tether__free(keys);
    tether__free(texts);
    return st;
}

tether_status tether__rdzv_place_write(const struct tether__rdzv_notes *notes,
                                       uint64_t term,
                                       const struct tether__rdzv_placing *placings,
                                       size_t n,
                                       int timeout_ms,
                                       tether_error *reterr)
{
    tether_status st = TETHER_OK;
    for (size_t at = 0; at < n && st == TETHER_OK; at += BATCH)
        st = write_batch(notes, term, placings + at, n - at < BATCH ? n - at : BATCH, timeout_ms,
                         reterr);
    return st;
}

void tether__rdzv_place_forget(const struct tether__rdzv_notes *notes,
                               uint64_t term,
                               const char *node,
                               int timeout_ms)
{
    char key[KEY_SIZE];
    tether_store_delete(notes->store, place_key(term, node, key), timeout_ms, NULL, NULL);
}

/* ---- Things to wait for --------------------------------------------------------------------- */

void tether__rdzv_pause_for_round(struct tether__rdzv_pause *pause, uint64_t round)
{
    snprintf(pause->key, sizeof pause->key, "done/%" PRIu64, round);
}

void tether__rdzv_pause_for_wish(struct tether__rdzv_pause *pause, uint64_t number)
{
    snprintf(pause->key, sizeof pause->key, "wish/%" PRIu64, number);
}

tether_status tether__rdzv_done_write(const struct tether__rdzv_notes *notes,
                                      uint64_t round,
                                      int timeout_ms,
                                      tether_error *reterr)
{
    struct tether__rdzv_pause event = {0};
    tether__rdzv_pause_for_round(&event, round);
    tether_status st =
        tether_store_set(notes->store, event.key, tether_bytes_str("1"), timeout_ms, reterr);
    if (st == TETHER_OK && round >= 2) {
        tether__rdzv_pause_for_round(&event, round - 2);
        tether_store_delete(notes->store, event.key, timeout_ms, NULL, NULL);
    }
    return st;
}
