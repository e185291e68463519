/* Requests that may wait: WAIT, GET, MULTI_GET, QUEUE_POP and BARRIER. */
#include "rendezvous/store/tcp/server/reply.h"
#include "rendezvous/store/tcp/server/requests.h"

/* estimated memory of the core for each awaited key, without the key itself */
#define BYTES_A_WAITED_KEY 256

/* ---- Keys of a request ---------------------------------------------------------------------- */

static void views_fill(tether_bytes *views, size_t n, tether_bytes items)
{
    for (size_t i = 0; i < n; i++)
        views[i] = tether__store_wire_next(&items);
}

static bool all_have_values(struct tether__store_hub *hub, size_t n, tether_bytes items)
{
    tether_bytes value;
    for (size_t i = 0; i < n; i++)
        if (!tether__kv_get(&hub->kv, tether__store_wire_next(&items), &value))
            return false;
    return true;
}

/* ---- Waiting -------------------------------------------------------------------------------- */

/* Replies with the values of `n` keys. T has waited for them; in the other dialects one may be
 * missing. */
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
            tether__store_refuse(session, TETHER_ENOTFOUND, "get of a key that does not exist");
            return;
        } else {
            size += sizeof(uint64_t); /* dialect V sends an empty value for a missing key */
        }
    }
    if (size > session->hub->limits.max_message) {
        tether__store_refuse(session, TETHER_ETOOBIG,
                             "the values together are longer than the limit");
        return;
    }
    char *at = tether__store_reply_room(session, size);
    for (size_t i = 0; at && i < n; i++) {
        tether_bytes key = tether__store_wire_next(&items);
        if (!tether__kv_get(kv, key, &value))
            value = tether_bytes_of(NULL, 0);
        at = tether__store_fill_bytes(at, value);
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
            tether__store_reply_bytes(session, tether_buf_bytes(popped));
            break;
        default: /* all other operations: WAIT and BARRIER */
            tether__store_reply_passed(session);
            if (tether__kv_has_claim(&session->claim))
                tether__list_push_back(&session->hub->claims, &session->claim_node);
    }
    tether__store_session_end_wait(session);
}

/* Marks the session as waiting for `n` keys of `len` bytes in all. False: refused. */
static bool start_wait(struct tether__store_session *session,
                       enum tether__store_wire_op op,
                       size_t n,
                       size_t len)
{
    size_t bytes = len + n * BYTES_A_WAITED_KEY;
    if (!tether__store_session_hold(session, bytes)) {
        tether_buf_fini(&session->awaited);
        tether__store_refuse(session, TETHER_EBUSY, tether_status_text(TETHER_EBUSY));
        return false;
    }
    session->wait_bytes = bytes;
    session->is_waiting = true;
    session->waiting_op = op;
    session->hub->waiting++;
    return true;
}

/* Ends the wait with a refusal if the core did not accept it. */
static void wait_started(struct tether__store_session *session, tether_status st)
{
    if (st == TETHER_OK)
        return;
    tether__store_session_end_wait(session);
    tether__store_refuse(session, st, tether_status_text(st));
}

/* WAIT waits until the keys exist, GET and MULTI_GET until they have values. */
static void wait_for_keys(struct tether__store_session *session,
                          enum tether__store_wire_op op,
                          size_t n,
                          tether_bytes items)
{
    struct tether__kv *kv = &session->hub->kv;
    if (!start_wait(session, op, n, items.len))
        return;
    tether_bytes *keys = tether__store_views_room(session->hub, n);
    if (!keys) {
        wait_started(session, TETHER_ENOMEM);
        return;
    }
    views_fill(keys, n, items);
    enum tether__kv_want want =
        op == TETHER__STORE_OP_WAIT ? TETHER__KV_WANT_ANY : TETHER__KV_WANT_VALUE;
    wait_started(session, tether__kv_wait(kv, &session->waiter, want, keys, n, on_ready));
}

/* A V client waits for the key of a queue before it pops, and raises an error when the queue is
 * empty then. So one element ends only one such wait. */
static void wait_turn(struct tether__store_session *session, tether_bytes key)
{
    struct tether__kv *kv = &session->hub->kv;
    tether_bytes value;
    if (tether__kv_get(kv, key, &value))
        tether__store_reply_passed(session);
    else if (start_wait(session, TETHER__STORE_OP_WAIT, 1, key.len))
        wait_started(session,
                     tether__kv_wait_turn(kv, &session->waiter, key, &session->claim, on_ready));
}

void tether__store_on_wait(struct tether__store_session *session,
                           const struct tether__store_wire_request *req)
{
    tether__store_session_cancel_wait(session); /* a second WAIT replaces the first */
    tether_bytes items = req->items;
    if (session->parser.dialect == TETHER_STORE_DIALECT_V && req->n_items == 1)
        wait_turn(session, tether__store_wire_next(&items));
    else if (tether__store_all_present(session->hub, req->n_items, req->items))
        tether__store_reply_passed(session);
    else
        wait_for_keys(session, TETHER__STORE_OP_WAIT, req->n_items, req->items);
}

/* GET and MULTI_GET. They wait in T only; clients of other dialects have sent a WAIT before. */
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
        tether__store_refuse(session, TETHER_ENOMEM, "out of memory");
        return;
    }
    wait_for_keys(session, op, n, tether_buf_bytes(&session->awaited));
}

void tether__store_on_get(struct tether__store_session *session,
                          const struct tether__store_wire_request *req)
{
    tether_bytes value;
    /* the usual case: one look-up finds the value */
    if (tether__kv_get(&session->hub->kv, req->key, &value)) {
        tether__store_reply_bytes(session, value);
        return;
    }
    /* A key is encoded like a list of one: its length is right before it. */
    tether_bytes items = tether_bytes_of((const char *)req->key.data - sizeof(uint64_t),
                                         sizeof(uint64_t) + req->key.len);
    get_values(session, TETHER__STORE_OP_GET, 1, items);
}

void tether__store_on_multi_get(struct tether__store_session *session,
                                const struct tether__store_wire_request *req)
{
    get_values(session, TETHER__STORE_OP_MULTI_GET, req->n_items, req->items);
}

void tether__store_on_queue_pop(struct tether__store_session *session,
                                const struct tether__store_wire_request *req)
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
        before = 0; /* all elements are reserved for other callers, so the queue counts as empty */
    size_t size = sizeof before + (popped ? sizeof(uint64_t) + value.len : 0);
    char *at = tether__store_session_room(session, size);
    if (at)
        at = tether__store_fill(at, &before, sizeof before);
    if (at && popped)
        tether__store_fill_bytes(at, tether_buf_bytes(&value));
    tether_buf_fini(&value);
}

void tether__store_on_barrier(struct tether__store_session *session,
                              const struct tether__store_wire_request *req)
{
    tether__store_session_cancel_wait(session);
    if (start_wait(session, TETHER__STORE_OP_BARRIER, 1, req->key.len))
        wait_started(session, tether__kv_wait_barrier(&session->hub->kv, &session->waiter, req->key,
                                                      req->number, on_ready));
}

void tether__store_on_cancel_wait(struct tether__store_session *session,
                                  const struct tether__store_wire_request *req)
{
    (void)req;
    tether__store_session_cancel_wait(session);
    char *at = tether__store_session_room(session, 1);
    if (at)
        *at = tether__store_session_has_status(session) ? TETHER_ECANCELED
                                                        : TETHER__STORE_WIRE_WAIT_CANCELED;
}
