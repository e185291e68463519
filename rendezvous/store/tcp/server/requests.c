/* Executes requests on the key-value core. waits.c has those that may wait. */
#include "rendezvous/store/tcp/server/requests.h"

#include "base/alloc.h"
#include "rendezvous/store/tcp/server/reply.h"

/* ---- Keys of requests that name many -------------------------------------------------------- */

tether_bytes *tether__store_views_room(struct tether__store_hub *hub, size_t n)
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

bool tether__store_all_present(struct tether__store_hub *hub, size_t n, tether_bytes items)
{
    for (size_t i = 0; i < n; i++)
        if (!tether__kv_present(&hub->kv, tether__store_wire_next(&items)))
            return false;
    return true;
}

/* ---- Changes, and watchers of their keys ---------------------------------------------------- */

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
        tether__store_watch_notify(hub, key, change->existed ? &old : NULL, exists ? &now : NULL);
    }
    tether_buf_fini(&change->old);
}

/* ---- Requests ------------------------------------------------------------------------------- */

typedef const struct tether__store_wire_request request;

static void on_validate(struct tether__store_session *session, request *req)
{
    (void)session, (void)req; /* nothing to do: the parser has checked it, and it has no reply */
}

static void on_ping(struct tether__store_session *session, request *req)
{
    uint32_t nonce = (uint32_t)req->number;
    if (nonce != TETHER__STORE_WIRE_HELLO) {
        char *at = tether__store_reply_room(session, sizeof nonce);
        if (at)
            tether__store_fill(at, &nonce, sizeof nonce);
        return;
    }
    const struct tether_store_limits *limits = &session->hub->limits;
    uint32_t welcome = TETHER__STORE_WIRE_WELCOME;
    uint64_t says[] = {limits->max_key, limits->max_value, limits->max_keys, limits->max_message};
    char *at = tether__store_session_room(session, sizeof welcome + sizeof says);
    if (at)
        tether__store_fill(tether__store_fill(at, &welcome, sizeof welcome), says, sizeof says);
}

/* Handles SET and APPEND. */
static void on_write(struct tether__store_session *session, request *req)
{
    struct tether__store_hub *hub = session->hub;
    struct change change;
    tether_status st = change_begin(hub, req->key, &change);
    if (st == TETHER_OK)
        st = (req->op == TETHER__STORE_OP_SET ? tether__kv_set : tether__kv_append)(
            &hub->kv, req->key, req->value);
    change_end(hub, req->key, &change, st == TETHER_OK);
    tether__store_reply_done(session, st);
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
        tether__store_refuse(session, st, tether__store_why_not(st));
    } else if (tether__store_session_has_status(session)) {
        char *at = tether__store_reply_room(session, 1 + sizeof(uint64_t) + value.len);
        if (at) {
            *at++ = swapped;
            tether__store_fill_bytes(at, value);
        }
    } else {
        tether__store_reply_bytes(session, value);
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
        tether__store_reply_i64(session, sum);
    else
        tether__store_refuse(session, st, tether__store_why_not(st));
}

static void on_delete(struct tether__store_session *session, request *req)
{
    struct tether__store_hub *hub = session->hub;
    struct change change;
    tether_status st = change_begin(hub, req->key, &change);
    bool deleted = st == TETHER_OK && tether__kv_delete(&hub->kv, req->key);
    change_end(hub, req->key, &change, deleted);
    if (st == TETHER_OK)
        tether__store_reply_i64(session, deleted);
    else
        tether__store_refuse(session, st, "out of memory");
}

static void on_multi_set(struct tether__store_session *session, request *req)
{
    struct tether__store_hub *hub = session->hub;
    size_t n = req->n_items;
    /* Only L0 has watches, and L0 has no MULTI_SET. So its changes do not notify watchers. */
    tether_bytes *keys = tether__store_views_room(hub, 2 * n);
    tether_status st = keys || n == 0 ? TETHER_OK : TETHER_ENOMEM;
    if (st == TETHER_OK && n) {
        tether_bytes *values = keys + n, items = req->items;
        for (size_t i = 0; i < n; i++) {
            keys[i] = tether__store_wire_next(&items);
            values[i] = tether__store_wire_next(&items);
        }
        st = tether__kv_multi_set(&hub->kv, keys, values, n);
    }
    tether__store_reply_done(session, st);
}

static void on_check(struct tether__store_session *session, request *req)
{
    bool ready = tether__store_all_present(session->hub, req->n_items, req->items);
    tether__store_reply_u8(session,
                           ready ? TETHER__STORE_WIRE_READY : TETHER__STORE_WIRE_NOT_READY);
}

static void on_num_keys(struct tether__store_session *session, request *req)
{
    (void)req;
    tether__store_reply_i64(session, (int64_t)tether__kv_count(&session->hub->kv));
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
        tether__store_refuse(session, TETHER_ETOOBIG, "the list of keys is longer than the limit");
        return;
    }
    char *at = tether__store_reply_room(session, size);
    if (!at)
        return;
    at = tether__store_fill(at, &count, sizeof count);
    it = (struct tether__map_iter)TETHER__MAP_ITER;
    while (tether__kv_next(kv, &it, &key))
        at = tether__store_fill_bytes(at, key);
}

static void on_queue_push(struct tether__store_session *session, request *req)
{
    tether__store_reply_done(session,
                             tether__kv_queue_push(&session->hub->kv, req->key, req->value));
}

static void on_queue_len(struct tether__store_session *session, request *req)
{
    tether__store_reply_i64(session, (int64_t)tether__kv_queue_len(&session->hub->kv, req->key));
}

static void on_watch_key(struct tether__store_session *session, request *req)
{
    tether__store_watch_start(session, req->key);
    tether__store_reply_u8(session, TETHER__STORE_WIRE_WATCHING);
}

/* ---- By kind -------------------------------------------------------------------------------- */

static tether__store_handler *const handlers[TETHER__STORE_N_OPS] = {
    [TETHER__STORE_OP_VALIDATE] = on_validate,
    [TETHER__STORE_OP_SET] = on_write,
    [TETHER__STORE_OP_COMPARE_SET] = on_compare_set,
    [TETHER__STORE_OP_GET] = tether__store_on_get,
    [TETHER__STORE_OP_ADD] = on_add,
    [TETHER__STORE_OP_CHECK] = on_check,
    [TETHER__STORE_OP_WAIT] = tether__store_on_wait,
    [TETHER__STORE_OP_NUM_KEYS] = on_num_keys,
    [TETHER__STORE_OP_WATCH_KEY] = on_watch_key,
    [TETHER__STORE_OP_DELETE] = on_delete,
    [TETHER__STORE_OP_APPEND] = on_write,
    [TETHER__STORE_OP_MULTI_GET] = tether__store_on_multi_get,
    [TETHER__STORE_OP_MULTI_SET] = on_multi_set,
    [TETHER__STORE_OP_CANCEL_WAIT] = tether__store_on_cancel_wait,
    [TETHER__STORE_OP_PING] = on_ping,
    [TETHER__STORE_OP_QUEUE_PUSH] = on_queue_push,
    [TETHER__STORE_OP_QUEUE_POP] = tether__store_on_queue_pop,
    [TETHER__STORE_OP_QUEUE_LEN] = on_queue_len,
    [TETHER__STORE_OP_LIST_KEYS] = on_list_keys,
    [TETHER__STORE_OP_BARRIER] = tether__store_on_barrier,
};

void tether__store_session_handle(struct tether__store_session *session,
                                  const struct tether__store_wire_request *req)
{
    if (tether__kv_has_claim(&session->claim) && req->op != TETHER__STORE_OP_QUEUE_POP)
        tether__store_session_drop_claim(session);
    handlers[req->op](session, req);
}
