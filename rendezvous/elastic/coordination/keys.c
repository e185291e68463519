/* The coordination keys: their names, their messages, and the store calls that they take. */
#include "rendezvous/elastic/coordination/keys.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "rendezvous/elastic/rules/pb.h"

#define SUMMARY_MAGIC 0x48444452u /* the characters "RDDH" */
#define SUMMARY_VERSION 1u
#define KEY_SIZE (TETHER__RDZV_NODE_TEXT + 40)
#define BATCH 1024 /* at most so many keys in one request */
#define BATCH_READ_MS \
    100 /* timeout of a batch; after it the requests are read one by one, up to a missing one */

static tether_status no_memory(tether_error *reterr)
{
    return tether_error_set(reterr, TETHER_ENOMEM,
                            "out of memory for a coordination key of the rendezvous");
}

/* ---- Summary -------------------------------------------------------------------------------- */

static tether_status decode_summary(tether_bytes bytes,
                                    struct tether__rdzv_summary *ret_summary,
                                    tether_error *reterr)
{
    Tether__Rendezvous__Summary *message;
    tether_status st = tether__pb_unpack(&tether__rendezvous__summary__descriptor, bytes, &message);
    if (st == TETHER_ENOMEM)
        return no_memory(reterr);
    if (st != TETHER_OK || message->magic != SUMMARY_MAGIC || message->version != SUMMARY_VERSION ||
        strlen(message->leader) >= TETHER__RDZV_NODE_TEXT ||
        message->world_size > TETHER_RDZV_MAX_NODES) {
        if (st == TETHER_OK)
            tether__pb_free(message);
        return tether_error_set(reterr, TETHER_ECORRUPT,
                                "the rendezvous summary is corrupt: another program, or another "
                                "release, uses the same store and run id");
    }
    struct tether__rdzv_summary summary = {
        .term = message->term,
        .beat = message->beat,
        .edition = message->edition,
        .assignments_term = message->assignments_term,
        .round = message->round,
        .complete = message->complete,
        .closed = message->closed,
        .world_size = (int32_t)message->world_size,
        .counts = {message->participants, message->waiting, message->redundant},
        .applied = message->applied,
    };
    strcpy(summary.leader, message->leader);
    if (message->last_call) {
        uint64_t left = message->last_call->left_ms;
        summary.last_call = true;
        summary.last_calls = message->last_call->number;
        summary.last_call_left_ms = left < INT_MAX ? (int64_t)left : INT_MAX;
    }
    tether__pb_free(message);
    *ret_summary = summary;
    return TETHER_OK;
}

tether_status tether__rdzv_summary_read(tether_store *store,
                                        int timeout_ms,
                                        struct tether__rdzv_summary *ret_summary,
                                        tether_buf *ret_raw,
                                        tether_error *reterr)
{
    tether_status st = tether_store_try_get(store, "summary", timeout_ms, ret_raw, reterr);
    if (st == TETHER_ENOTFOUND)
        ret_raw->len = 0;
    if (st != TETHER_OK)
        return st;
    return decode_summary(tether_buf_bytes(ret_raw), ret_summary, reterr);
}

tether_status tether__rdzv_summary_swap(tether_store *store,
                                        const struct tether__rdzv_summary *summary,
                                        int timeout_ms,
                                        tether_buf *raw,
                                        bool *ret_swapped,
                                        tether_error *reterr)
{
    Tether__Rendezvous__Summary message = TETHER__RENDEZVOUS__SUMMARY__INIT;
    Tether__Rendezvous__LastCall last_call = TETHER__RENDEZVOUS__LAST_CALL__INIT;
    message.magic = SUMMARY_MAGIC;
    message.version = SUMMARY_VERSION;
    message.term = summary->term;
    message.leader = (char *)summary->leader; /* protobuf-c only reads it while packing */
    message.beat = summary->beat;
    message.edition = summary->edition;
    message.assignments_term = summary->assignments_term;
    message.round = summary->round;
    message.complete = summary->complete;
    message.closed = summary->closed;
    message.world_size = (uint32_t)summary->world_size;
    message.participants = (uint32_t)summary->counts.participants;
    message.waiting = (uint32_t)summary->counts.waiting;
    message.redundant = (uint32_t)summary->counts.redundant;
    message.applied = summary->applied;
    if (summary->last_call) {
        last_call.number = summary->last_calls;
        last_call.left_ms = (uint64_t)summary->last_call_left_ms;
        message.last_call = &last_call;
    }
    tether_buf packed = TETHER_BUF_INIT;
    if (tether__pb_pack(&message.base, &packed) != TETHER_OK)
        return no_memory(reterr);
    bool swapped = false;
    tether_status st =
        tether_store_compare_set(store, "summary", tether_buf_bytes(raw), tether_buf_bytes(&packed),
                                 timeout_ms, &swapped, NULL, reterr);
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

/* ---- Requests ------------------------------------------------------------------------------- */

static const char *request_key(uint64_t number, char key[KEY_SIZE])
{
    snprintf(key, KEY_SIZE, "request/%" PRIu64, number);
    return key;
}

tether_status tether__rdzv_request_post(tether_store *store,
                                        enum tether__rdzv_request_kind kind,
                                        const struct tether__rdzv_self *self,
                                        int timeout_ms,
                                        uint64_t *ret_number,
                                        tether_error *reterr)
{
    Tether__Rendezvous__Request message = TETHER__RENDEZVOUS__REQUEST__INIT;
    Tether__Rendezvous__Member member;
    tether__rdzv_pb_from_self(&member, self, 0);
    message.kind = (Tether__Rendezvous__Request__Kind)kind;
    message.member = &member;
    tether_buf packed = TETHER_BUF_INIT;
    if (tether__pb_pack(&message.base, &packed) != TETHER_OK)
        return no_memory(reterr);
    int64_t number;
    char key[KEY_SIZE];
    tether_status st = tether_store_add(store, "requests", 1, timeout_ms, &number, reterr);
    if (st == TETHER_OK)
        st = tether_store_set(store, request_key((uint64_t)number, key), tether_buf_bytes(&packed),
                              timeout_ms, reterr);
    tether_buf_fini(&packed);
    if (st == TETHER_OK)
        *ret_number = (uint64_t)number;
    return st;
}

tether_status tether__rdzv_request_count(tether_store *store,
                                         int timeout_ms,
                                         uint64_t *ret_count,
                                         tether_error *reterr)
{
    tether_buf value = TETHER_BUF_INIT;
    tether_status st = tether_store_try_get(store, "requests", timeout_ms, &value, reterr);
    if (st == TETHER_OK)
        *ret_count = strtoull(value.data, NULL, 10);
    else if (st == TETHER_ENOTFOUND)
        *ret_count = 0, st = TETHER_OK;
    tether_buf_fini(&value);
    return st;
}

static tether_status take_request(tether_bytes bytes,
                                  tether__rdzv_request_fn *fn,
                                  void *userdata,
                                  tether_error *reterr)
{
    Tether__Rendezvous__Request *message = NULL;
    struct tether__rdzv_self self = {.node = {"", 0, 0}, .hint = -1, .previous = -1};
    tether_status st = tether__pb_unpack(&tether__rendezvous__request__descriptor, bytes, &message);
    if (st == TETHER_ENOMEM)
        return no_memory(reterr);
    enum tether__rdzv_request_kind kind = 0;
    int number = st == TETHER_OK ? (int)message->kind : 0;
    if (number >= TETHER__RDZV_JOIN && number <= TETHER__RDZV_CLOSE && message->member &&
        tether__rdzv_pb_to_self(message->member, &self))
        kind = (enum tether__rdzv_request_kind)number;
    st = fn(userdata, kind, &self, reterr);
    tether__pb_free(message);
    return st;
}

/* Reads the requests one by one, up to the first that is not in the store. */
static tether_status read_singly(tether_store *store,
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
        st = tether_store_try_get(store, request_key(first + found, key), timeout_ms,
                                  &values[found], reterr);
        if (st != TETHER_OK)
            break;
        found++;
    }
    *ret_found = found;
    return st == TETHER_ENOTFOUND ? TETHER_OK : st;
}

static tether_status read_batch(tether_store *store,
                                uint64_t first,
                                size_t n,
                                int timeout_ms,
                                tether_buf *values,
                                size_t *ret_found,
                                tether_error *reterr)
{
    if (n == 1)
        return read_singly(store, first, n, timeout_ms, values, ret_found, reterr);
    char(*texts)[KEY_SIZE] = tether__calloc(n, sizeof *texts);
    const char **keys = tether__calloc(n, sizeof *keys);
    tether_status st = TETHER_ENOMEM;
    if (texts && keys) {
        for (size_t i = 0; i < n; i++)
            keys[i] = request_key(first + i, texts[i]);
        int batch_ms = timeout_ms < 0 || timeout_ms > BATCH_READ_MS ? BATCH_READ_MS : timeout_ms;
        st = tether_store_multi_get(store, keys, n, batch_ms, values, reterr);
        *ret_found = n;
        if (st == TETHER_ETIMEOUT)
            st = read_singly(store, first, n, timeout_ms, values, ret_found, reterr);
    } else {
        no_memory(reterr);
    }
    tether__free(keys);
    tether__free(texts);
    return st;
}

tether_status tether__rdzv_request_read(tether_store *store,
                                        uint64_t first,
                                        uint64_t last,
                                        int timeout_ms,
                                        tether__rdzv_request_fn *fn,
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
    bool gap = false;
    while (first + *ret_taken <= last && st == TETHER_OK && !gap) {
        uint64_t at = first + *ret_taken;
        size_t n = last - at + 1 < cap ? (size_t)(last - at + 1) : cap, found = 0;
        st = read_batch(store, at, n, timeout_ms, values, &found, reterr);
        gap = found < n;
        for (size_t i = 0; i < found && st == TETHER_OK; i++) {
            st = take_request(tether_buf_bytes(&values[i]), fn, userdata, reterr);
            if (st == TETHER_OK)
                ++*ret_taken;
        }
        for (size_t i = 0; i < n; i++)
            tether_buf_fini(&values[i]);
    }
    tether__free(values);
    return st;
}

void tether__rdzv_request_delete(tether_store *store, uint64_t first, uint64_t last, int timeout_ms)
{
    char key[KEY_SIZE];
    tether_status st = TETHER_OK;
    for (uint64_t n = first; n <= last && st == TETHER_OK; n++)
        st = tether_store_delete(store, request_key(n, key), timeout_ms, NULL, NULL);
}

/* ---- Assignments ---------------------------------------------------------------------------- */

static const char *assignment_key(uint64_t term, const char *node, char key[KEY_SIZE])
{
    snprintf(key, KEY_SIZE, "assignment/%" PRIu64 "/%s", term, node);
    return key;
}

tether_status tether__rdzv_assignment_read(tether_store *store,
                                           uint64_t term,
                                           const struct tether__rdzv_node *node,
                                           int timeout_ms,
                                           struct tether__rdzv_assignment *ret_assignment,
                                           tether_error *reterr)
{
    char text[TETHER__RDZV_NODE_TEXT], key[KEY_SIZE];
    tether_buf value = TETHER_BUF_INIT;
    tether_status st =
        tether_store_try_get(store, assignment_key(term, tether__rdzv_node_format(node, text), key),
                             timeout_ms, &value, reterr);
    if (st == TETHER_ENOTFOUND) {
        *ret_assignment = (struct tether__rdzv_assignment){.list = TETHER__RDZV_NO_LIST};
        st = TETHER_OK;
        goto undo_value;
    }
    if (st != TETHER_OK)
        goto undo_value;
    Tether__Rendezvous__Assignment *message;
    st = tether__pb_unpack(&tether__rendezvous__assignment__descriptor, tether_buf_bytes(&value),
                           &message);
    if (st == TETHER_ENOMEM)
        no_memory(reterr);
    else if (st != TETHER_OK)
        tether_error_set(reterr, TETHER_ECORRUPT,
                         "the rendezvous key '%s' is corrupt: another program may use the same "
                         "store and run id",
                         key);
    if (st != TETHER_OK)
        goto undo_value;
    *ret_assignment = (struct tether__rdzv_assignment){
        .list = (enum tether__rdzv_list)message->list,
        .round = message->round,
        .complete = message->complete,
        .rank = (int32_t)message->rank,
        .world_size = (int32_t)message->world_size,
    };
    tether__pb_free(message);

undo_value:
    tether_buf_fini(&value);
    return st;
}

static tether_status pack_assignment(const struct tether__rdzv_assignment *assignment,
                                     tether_buf *ret_bytes)
{
    Tether__Rendezvous__Assignment message = TETHER__RENDEZVOUS__ASSIGNMENT__INIT;
    message.list = (Tether__Rendezvous__Assignment__List)assignment->list;
    message.round = assignment->round;
    message.complete = assignment->complete;
    message.rank = (uint32_t)assignment->rank;
    message.world_size = (uint32_t)assignment->world_size;
    return tether__pb_pack(&message.base, ret_bytes);
}

static tether_status write_batch(tether_store *store,
                                 uint64_t term,
                                 const struct tether__rdzv_named_assignment *assignments,
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
        keys[i] = assignment_key(term, assignments[i].node, texts[i]);
        if (pack_assignment(&assignments[i].assignment, &packed[i]) != TETHER_OK)
            st = no_memory(reterr);
        else
            values[i] = tether_buf_bytes(&packed[i]);
    }
    if (st == TETHER_OK)
        st = tether_store_multi_set(store, keys, values, n, timeout_ms, reterr);
    for (size_t i = 0; packed && i < n; i++)
        tether_buf_fini(&packed[i]);
    tether__free(values);
    tether__free(packed);
    tether__free(keys);
    tether__free(texts);
    return st;
}

tether_status tether__rdzv_assignment_write(tether_store *store,
                                            uint64_t term,
                                            const struct tether__rdzv_named_assignment *assignments,
                                            size_t n,
                                            int timeout_ms,
                                            tether_error *reterr)
{
    tether_status st = TETHER_OK;
    for (size_t at = 0; at < n && st == TETHER_OK; at += BATCH)
        st = write_batch(store, term, assignments + at, n - at < BATCH ? n - at : BATCH, timeout_ms,
                         reterr);
    return st;
}

void tether__rdzv_assignment_delete(tether_store *store,
                                    uint64_t term,
                                    const char *node,
                                    int timeout_ms)
{
    char key[KEY_SIZE];
    tether_store_delete(store, assignment_key(term, node, key), timeout_ms, NULL, NULL);
}

/* ---- Keys to wait for ----------------------------------------------------------------------- */

void tether__rdzv_pause_for_round(struct tether__rdzv_pause *pause, uint64_t round)
{
    snprintf(pause->key, sizeof pause->key, "done/%" PRIu64, round);
}

void tether__rdzv_pause_for_request(struct tether__rdzv_pause *pause, uint64_t number)
{
    snprintf(pause->key, sizeof pause->key, "request/%" PRIu64, number);
}

tether_status tether__rdzv_done_write(tether_store *store,
                                      uint64_t round,
                                      int timeout_ms,
                                      tether_error *reterr)
{
    struct tether__rdzv_pause done = {0};
    tether__rdzv_pause_for_round(&done, round);
    tether_status st = tether_store_set(store, done.key, tether_bytes_str("1"), timeout_ms, reterr);
    if (st == TETHER_OK && round >= 2) {
        tether__rdzv_pause_for_round(&done, round - 2);
        tether_store_delete(store, done.key, timeout_ms, NULL, NULL);
    }
    return st;
}
