/* Each kind of request carried out on the key-value core, and answered in the client's dialect. */
#include <string.h>

#include "base/alloc.h"
#include "rendezvous/store_session.h"

#define BYTES_A_WAITED_KEY 256 /* what the core needs for one, about, beside the key itself */

/* ---- Replies -------------------------------------------------------------------------------- */

static char *fill(char *at, const void *data, size_t len)
{
    if (len)
        memcpy(at, data, len);
    return at + len;
}

static char *fill_bytes(char *at, tether_bytes bytes)
{
    uint64_t len = bytes.len;
    return fill(fill(at, &len, sizeof len), bytes.data, bytes.len);
}

/* Room for `size` bytes behind the status TETHER_OK, where the dialect has one. */
static char *reply_room(struct tether__store_session *session, size_t size)
{
    bool status = tether__store_session_has_status(session);
    char *at = tether__store_session_room(session, size + status);
    if (at && status)
        *at++ = TETHER_OK;
    return at;
}

static void reply_u8(struct tether__store_session *session, uint8_t value)
{
    char *at = reply_room(session, sizeof value);
    if (at)
        fill(at, &value, sizeof value);
}

static void reply_i64(struct tether__store_session *session, int64_t value)
{
    char *at = reply_room(session, sizeof value);
    if (at)
        fill(at, &value, sizeof value);
}

static void reply_bytes(struct tether__store_session *session, tether_bytes bytes)
{
    char *at = reply_room(session, sizeof(uint64_t) + bytes.len);
    if (at)
        fill_bytes(at, bytes);
}

/* A request failed: says so where the dialect can, otherwise by the end of the connection. */
static void refuse(struct tether__store_session *session, tether_status st, const char *why)
{
    if (!tether__store_session_has_status(session)) {
        tether__store_session_fail(session, why);
        return;
    }
    char *at = tether__store_session_room(session, 1);
    if (at)
        *at = (char)st;
}

/* Why a change failed, for the log. */
static const char *why_not(tether_status st)
{
    return st == TETHER_ETOOBIG  ? "the value is too long, or the server keeps all that it may"
           : st == TETHER_EINVAL ? "add to a value that is not a number"
                                 : tether_status_text(st);
}

/* The end of a request to which PyTorch's dialects have no reply. */
static void reply_done(struct tether__store_session *session, tether_status st)
{
    if (st != TETHER_OK)
        refuse(session, st, why_not(st));
    else if (tether__store_session_has_status(session))
        reply_room(session, 0);
}

/* The end of a WAIT or BARRIER. */
static void reply_passed(struct tether__store_session *session)
{
    if (tether__store_session_has_status(session))
        reply_room(session, 0);
    else
        reply_u8(session, TETHER__STORE_WIRE_STOP_WAITING);
}

/* ---- Keys of requests that name many -------------------------------------------------------- */

/* Lays out `n` views in the hub's scratch. NULL: no memory. */
static tether_bytes *views_room(struct tether__store_hub *hub, size_t n)
{
    if (hub->n_views < n) {
        tether_bytes *views = tether__realloc(hub->views, n * sizeof *views);
        if (!views)
            return NULL;
        hub->views = views;
        hub->n_views = n;
    }
    return hub->views;
}

static void views_fill(tether_bytes *views, size_t n, tether_bytes items)
{
    for (size_t i = 0; i < n; i++)
        views[i] = tether__store_wire_next(&items);
}

static bool all_present(struct tether__store_hub *hub, size_t n, tether_bytes items)
{
    for (size_t i = 0; i < n; i++)
        if (!tether__kv_present(&hub->kv, tether__store_wire_next(&items)))
            return false;
    return true;
}

static bool all_have_values(struct tether__store_hub *hub, size_t n, tether_bytes items)
{
    tether_bytes value;
    for (size_t i = 0; i < n; i++)
        if (!tether__kv_get(&hub->kv, tether__store_wire_next(&items), &value))
            return false;
    return true;
}

/* ---- Changes, and those who watch them ------------------------------------------------------ */

struct change {
    bool watched, existed;
    tether_buf old;
};

static tether_status change_begin(struct tether__store_hub *hub,
                                  tether_bytes key,
                                  struct change *change)
{
    *change = (struct change){.watched = tether__store_watched(hub, key)};
    tether_bytes old;
    if (!change->watched || !tether__kv_get(&hub->kv, key, &old))
        return TETHER_OK;
    change->existed = true;
    return tether_buf_assign(&change->old, old);
}

static void change_end(struct tether__store_hub *hub,
                       tether_bytes key,
                       struct change *change,
                       bool happened)
{
    if (change->watched && happened) {
        tether_bytes old = tether_buf_bytes(&change->old), now;
        bool exists = tether__kv_get(&hub->kv, key, &now);
        tether__store_watch_tell(hub, key, change->existed ? &old : NULL, exists ? &now : NULL);
    }
    tether_buf_fini(&change->old);
}

/* ---- Requests ------------------------------------------------------------------------------- */

typedef const struct tether__store_wire_request request;

static void on_validate(struct tether__store_session *session, request *req)
{
    (void)session, (void)req; /* the parser has looked at it; no reply */
}

static void on_ping(struct tether__store_session *session, request *req)
{
    uint32_t nonce = (uint32_t)req->number;
    if (nonce != TETHER__STORE_WIRE_HELLO) {
        char *at = reply_room(session, sizeof nonce);
        if (at)
            fill(at, &nonce, sizeof nonce);
        return;
    }
    const struct tether_store_limits *limits = &session->hub->limits;
    uint32_t welcome = TETHER__STORE_WIRE_WELCOME;
    uint64_t says[] = {limits->max_key, limits->max_value, limits->max_keys, limits->max_message};
    char *at = tether__store_session_room(session, sizeof welcome + sizeof says);
    if (at)
        fill(fill(at, &welcome, sizeof welcome), says, sizeof says);
}

static void on_set(struct tether__store_session *session, request *req)
{
    struct tether__store_hub *hub = session->hub;
    struct change change;
    tether_status st = change_begin(hub, req->key, &change);
    if (st == TETHER_OK)
        st = tether__kv_set(&hub->kv, req->key, req->value);
    change_end(hub, req->key, &change, st == TETHER_OK);
    reply_done(session, st);
}

static void on_append(struct tether__store_session *session, request *req)
{
    struct tether__store_hub *hub = session->hub;
    struct change change;
    tether_status st = change_begin(hub, req->key, &change);
    if (st == TETHER_OK)
        st = tether__kv_append(&hub->kv, req->key, req->value);
    change_end(hub, req->key, &change, st == TETHER_OK);
    reply_done(session, st);
}

static void on_compare_set(struct tether__store_session *session, request *req)
{
    struct tether__store_hub *hub = session->hub;
    struct change change;
    bool swapped = false;
    tether_bytes value;
    tether_status st = change_begin(hub, req->key, &change);
    if (st == TETHER_OK)
        st =
            tether__kv_compare_set(&hub->kv, req->key, req->expected, req->value, &swapped, &value);
    change_end(hub, req->key, &change, swapped);
    if (st != TETHER_OK) {
        refuse(session, st, why_not(st));
    } else if (tether__store_session_has_status(session)) {
        char *at = reply_room(session, 1 + sizeof(uint64_t) + value.len);
        if (at) {
            *at++ = swapped;
            fill_bytes(at, value);
        }
    } else {
        reply_bytes(session, value);
    }
}

static void on_add(struct tether__store_session *session, request *req)
{
    struct tether__store_hub *hub = session->hub;
    struct change change;
    int64_t sum = 0;
    tether_status st = change_begin(hub, req->key, &change);
    if (st == TETHER_OK)
        st = tether__kv_add(&hub->kv, req->key, req->number, &sum);
    change_end(hub, req->key, &change, st == TETHER_OK);
    if (st == TETHER_OK)
        reply_i64(session, sum);
    else
        refuse(session, st, why_not(st));
}

static void on_delete(struct tether__store_session *session, request *req)
{
    struct tether__store_hub *hub = session->hub;
    struct change change;
    tether_status st = change_begin(hub, req->key, &change);
    bool deleted = st == TETHER_OK && tether__kv_delete(&hub->kv, req->key);
    change_end(hub, req->key, &change, deleted);
    if (st == TETHER_OK)
        reply_i64(session, deleted);
    else
        refuse(session, st, "out of memory");
}

static void on_multi_set(struct tether__store_session *session, request *req)
{
    struct tether__store_hub *hub = session->hub;
    size_t n = req->n_items;
    /* Watchers are L0 clients, MULTI_SET is not L0's: nobody who uses both is known to exist, so
     * its changes are not told. */
    tether_bytes *keys = views_room(hub, 2 * n);
    tether_status st = keys || n == 0 ? TETHER_OK : TETHER_ENOMEM;
    if (st == TETHER_OK && n) {
        tether_bytes *values = keys + n, items = req->items;
        for (size_t i = 0; i < n; i++) {
            keys[i] = tether__store_wire_next(&items);
            values[i] = tether__store_wire_next(&items);
        }
        st = tether__kv_multi_set(&hub->kv, keys, values, n);
    }
    reply_done(session, st);
}

static void on_check(struct tether__store_session *session, request *req)
{
    bool ready = all_present(session->hub, req->n_items, req->items);
    reply_u8(session, ready ? TETHER__STORE_WIRE_READY : TETHER__STORE_WIRE_NOT_READY);
}

static void on_num_keys(struct tether__store_session *session, request *req)
{
    (void)req;
    reply_i64(session, (int64_t)tether__kv_count(&session->hub->kv));
}

static void on_list_keys(struct tether__store_session *session, request *req)
{
    (void)req;
    struct tether__kv *kv = &session->hub->kv;
    uint64_t count = 0;
    size_t size = sizeof count;
    tether_bytes key;
    struct tether__map_iter it = TETHER__MAP_ITER;
    for (; tether__kv_next(kv, &it, &key); count++)
        size += sizeof(uint64_t) + key.len;
    if (size > session->hub->limits.max_message) {
        refuse(session, TETHER_ETOOBIG, "the list of keys is longer than the limit");
        return;
    }
    char *at = reply_room(session, size);
    if (!at)
        return;
    at = fill(at, &count, sizeof count);
    it = (struct tether__map_iter)TETHER__MAP_ITER;
    while (tether__kv_next(kv, &it, &key))
        at = fill_bytes(at, key);
}

static void on_queue_push(struct tether__store_session *session, request *req)
{
    reply_done(session, tether__kv_queue_push(&session->hub->kv, req->key, req->value));
}

static void on_queue_len(struct tether__store_session *session, request *req)
{
    reply_i64(session, (int64_t)tether__kv_queue_len(&session->hub->kv, req->key));
}

static void on_watch_key(struct tether__store_session *session, request *req)
{
    tether__store_watch_start(session, req->key);
    reply_u8(session, TETHER__STORE_WIRE_WATCHING);
}

/* ---- Requests that may wait ----------------------------------------------------------------- */

/* The values of `n` keys. T has waited for them; in the others one may be missing. */
static void reply_values(struct tether__store_session *session, size_t n, tether_bytes items)
{
    struct tether__kv *kv = &session->hub->kv;
    tether_bytes rest = items, value;
    size_t size = 0;
    for (size_t i = 0; i < n && size <= session->hub->limits.max_message; i++) {
        tether_bytes key = tether__store_wire_next(&rest);
        if (tether__kv_get(kv, key, &value)) {
            size += sizeof(uint64_t) + value.len;
        } else if (tether__store_session_is_legacy(session)) {
            refuse(session, TETHER_ENOTFOUND, "get of a key that is not there");
            return;
        } else {
            size += sizeof(uint64_t); /* V says it by an empty value */
        }
    }
    if (size > session->hub->limits.max_message) {
        refuse(session, TETHER_ETOOBIG, "the values are longer than the limit together");
        return;
    }
    char *at = reply_room(session, size);
    for (size_t i = 0; at && i < n; i++) {
        tether_bytes key = tether__store_wire_next(&items);
        if (!tether__kv_get(kv, key, &value))
            value = tether_bytes_of(NULL, 0);
        at = fill_bytes(at, value);
    }
}

static void on_ready(struct tether__kv_waiter *waiter, tether_buf *popped)
{
    struct tether__store_session *session =
        tether__container_of(waiter, struct tether__store_session, waiter);
    switch (session->waiting_op) {
        case TETHER__STORE_OP_GET:
        case TETHER__STORE_OP_MULTI_GET:
            reply_values(session, session->n_awaited, tether_buf_bytes(&session->awaited));
            break;
        case TETHER__STORE_OP_QUEUE_POP:
            reply_bytes(session, tether_buf_bytes(popped));
            break;
        default: /* WAIT, BARRIER */
            reply_passed(session);
            if (tether__kv_has_claim(&session->claim))
                tether__list_push_back(&session->hub->claims, &session->claim_node);
    }
    tether__store_session_end_wait(session);
}

/* The session waits from here on, for `n` keys of `len` bytes in all. False: refused. */
static bool start_wait(struct tether__store_session *session,
                       enum tether__store_wire_op op,
                       size_t n,
                       size_t len)
{
    size_t bytes = len + n * BYTES_A_WAITED_KEY;
    if (!tether__store_session_hold(session, bytes)) {
        tether_buf_fini(&session->awaited);
        refuse(session, TETHER_EBUSY, tether_status_text(TETHER_EBUSY));
        return false;
    }
    session->wait_bytes = bytes;
    session->is_waiting = true;
    session->waiting_op = op;
    session->hub->waiting++;
    return true;
}

/* The core has taken the wait, or has not. */
static void wait_started(struct tether__store_session *session, tether_status st)
{
    if (st == TETHER_OK)
        return;
    tether__store_session_end_wait(session);
    refuse(session, st, tether_status_text(st));
}

/* WAIT until the keys are there, GET and MULTI_GET until they have values. */
static void wait_for_keys(struct tether__store_session *session,
                          enum tether__store_wire_op op,
                          size_t n,
                          tether_bytes items)
{
    struct tether__kv *kv = &session->hub->kv;
    if (!start_wait(session, op, n, items.len))
        return;
    tether_bytes *keys = views_room(session->hub, n);
    if (!keys) {
        wait_started(session, TETHER_ENOMEM);
        return;
    }
    views_fill(keys, n, items);
    wait_started(session, op == TETHER__STORE_OP_WAIT
                              ? tether__kv_wait(kv, &session->waiter, keys, n, on_ready)
                              : tether__kv_wait_values(kv, &session->waiter, keys, n, on_ready));
}

/* A V client that pops from a queue first waits for its key. So an element ends one such wait only:
 * a client whose pop finds nothing raises an error. */
static void wait_turn(struct tether__store_session *session, tether_bytes key)
{
    struct tether__kv *kv = &session->hub->kv;
    tether_bytes value;
    if (tether__kv_get(kv, key, &value))
        reply_passed(session);
    else if (start_wait(session, TETHER__STORE_OP_WAIT, 1, key.len))
        wait_started(session,
                     tether__kv_wait_turn(kv, &session->waiter, key, &session->claim, on_ready));
}

static void on_wait(struct tether__store_session *session, request *req)
{
    tether__store_session_cancel_wait(session); /* a second WAIT takes the place of the first */
    tether_bytes items = req->items;
    if (session->parser.dialect == TETHER_STORE_DIALECT_V && req->n_items == 1)
        wait_turn(session, tether__store_wire_next(&items));
    else if (all_present(session->hub, req->n_items, req->items))
        reply_passed(session);
    else
        wait_for_keys(session, TETHER__STORE_OP_WAIT, req->n_items, req->items);
}

/* GET and MULTI_GET; only T waits. A client of the other dialects has waited before. */
static void get_values(struct tether__store_session *session,
                       enum tether__store_wire_op op,
                       size_t n,
                       tether_bytes items)
{
    if (!tether__store_session_has_status(session) || all_have_values(session->hub, n, items)) {
        reply_values(session, n, items);
        return;
    }
    session->n_awaited = n;
    if (tether_buf_assign(&session->awaited, items) != TETHER_OK) {
        refuse(session, TETHER_ENOMEM, "out of memory");
        return;
    }
    wait_for_keys(session, op, n, tether_buf_bytes(&session->awaited));
}

static void on_get(struct tether__store_session *session, request *req)
{
    tether_bytes value;
    if (tether__kv_get(&session->hub->kv, req->key, &value)) { /* mostly so: one look-up */
        reply_bytes(session, value);
        return;
    }
    /* A key is encoded as a list of one is: its length stands right before it. */
    tether_bytes items = tether_bytes_of((const char *)req->key.data - sizeof(uint64_t),
                                         sizeof(uint64_t) + req->key.len);
    get_values(session, TETHER__STORE_OP_GET, 1, items);
}

static void on_multi_get(struct tether__store_session *session, request *req)
{
    get_values(session, TETHER__STORE_OP_MULTI_GET, req->n_items, req->items);
}

static void on_queue_pop(struct tether__store_session *session, request *req)
{
    struct tether__kv *kv = &session->hub->kv;
    if (tether__store_session_has_status(session)) {
        if (start_wait(session, TETHER__STORE_OP_QUEUE_POP, 1, req->key.len))
            wait_started(session, tether__kv_wait_pop(kv, &session->waiter, req->key, on_ready));
        return;
    }
    int64_t before = (int64_t)tether__kv_queue_len(kv, req->key);
    tether_buf value = TETHER_BUF_INIT;
    bool popped = tether__kv_claim_pop(kv, &session->claim, req->key, &value);
    tether__store_session_drop_claim(session);
    if (!popped)
        popped = tether__kv_queue_pop(kv, req->key, &value);
    if (!popped)
        before = 0; /* others have a claim to what is there */
    size_t size = sizeof before + (popped ? sizeof(uint64_t) + value.len : 0);
    char *at = tether__store_session_room(session, size);
    if (at)
        at = fill(at, &before, sizeof before);
    if (at && popped)
        fill_bytes(at, tether_buf_bytes(&value));
    tether_buf_fini(&value);
}

static void on_barrier(struct tether__store_session *session, request *req)
{
    tether__store_session_cancel_wait(session);
    if (start_wait(session, TETHER__STORE_OP_BARRIER, 1, req->key.len))
        wait_started(session, tether__kv_wait_barrier(&session->hub->kv, &session->waiter, req->key,
                                                      req->number, on_ready));
}

static void on_cancel_wait(struct tether__store_session *session, request *req)
{
    (void)req;
    tether__store_session_cancel_wait(session);
    char *at = tether__store_session_room(session, 1);
    if (at)
        *at = tether__store_session_has_status(session) ? TETHER_ECANCELED
                                                        : TETHER__STORE_WIRE_WAIT_CANCELED;
}

/* ---- By kind -------------------------------------------------------------------------------- */

static void (*const handlers[TETHER__STORE_N_OPS])(struct tether__store_session *, request *) = {
    [TETHER__STORE_OP_VALIDATE] = on_validate,
    [TETHER__STORE_OP_SET] = on_set,
    [TETHER__STORE_OP_COMPARE_SET] = on_compare_set,
    [TETHER__STORE_OP_GET] = on_get,
    [TETHER__STORE_OP_ADD] = on_add,
    [TETHER__STORE_OP_CHECK] = on_check,
    [TETHER__STORE_OP_WAIT] = on_wait,
    [TETHER__STORE_OP_NUM_KEYS] = on_num_keys,
    [TETHER__STORE_OP_WATCH_KEY] = on_watch_key,
    [TETHER__STORE_OP_DELETE] = on_delete,
    [TETHER__STORE_OP_APPEND] = on_append,
    [TETHER__STORE_OP_MULTI_GET] = on_multi_get,
    [TETHER__STORE_OP_MULTI_SET] = on_multi_set,
    [TETHER__STORE_OP_CANCEL_WAIT] = on_cancel_wait,
    [TETHER__STORE_OP_PING] = on_ping,
    [TETHER__STORE_OP_QUEUE_PUSH] = on_queue_push,
    [TETHER__STORE_OP_QUEUE_POP] = on_queue_pop,
    [TETHER__STORE_OP_QUEUE_LEN] = on_queue_len,
    [TETHER__STORE_OP_LIST_KEYS] = on_list_keys,
    [TETHER__STORE_OP_BARRIER] = on_barrier,
};

void tether__store_session_handle(struct tether__store_session *session,
                                  const struct tether__store_wire_request *req)
{
    if (tether__kv_has_claim(&session->claim) && req->op != TETHER__STORE_OP_QUEUE_POP)
        tether__store_session_drop_claim(session);
    handlers[req->op](session, req);
}
