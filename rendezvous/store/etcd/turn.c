/* The etcd store: a queue of callers that change one value (add, append, compare_set).
 *
 * Happy path: a caller reads the value and puts the next one if no other caller has changed it in
 * between; nothing else is written. A caller that was too late, or that finds tickets in the queue,
 * writes a ticket, t/<key>\0<revision>-<number>, and watches the ticket before its own. When that
 * is deleted it is the caller's turn: it reads the value, and its transaction deletes the ticket.
 * Callers that read the value before the ticket was written may be faster, but each only once.
 *
 * Failure modes: tickets order the callers; they never decide whether a change is applied. So the
 * value stays correct when a ticket disappears or two callers take their turn at once. A caller
 * that sees the same ticket in front for PATIENCE_MS deletes it: its owner was killed or hangs.
 * Tickets belong to the lease of their client, so etcd deletes the last one, too.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/backoff.h"
#include "rendezvous/store/etcd/client/watch.h"
#include "rendezvous/store/etcd/internal.h"

#define PATIENCE_MS 2000
#define RETRY_NS (2 * TETHER__NS_PER_MS)
#define LEAVE_MS 500 /* time to leave the queue, beyond the caller's deadline */

tether_status tether__etcd_turn_init(struct tether__etcd_turn *turn,
                                     struct tether__etcd *etcd,
                                     const char *key,
                                     tether_bytes value,
                                     int64_t deadline,
                                     tether_error *reterr)
{
    *turn = (struct tether__etcd_turn){.etcd = etcd, .deadline = deadline, .value = value};
    return tether__etcd_tails(etcd, TETHER__ETCD_TURNS, key, &turn->first, &turn->end, reterr);
}

void tether__etcd_turn_fini(struct tether__etcd_turn *turn)
{
    if (turn->ticket.len) {
        int64_t deadline = tether__deadline_in(&tether__clock_system, LEAVE_MS);
        if (deadline < turn->deadline)
            deadline = turn->deadline;
        tether__etcd_delete(turn->etcd, tether_buf_bytes(&turn->ticket), deadline, NULL, NULL);
    }
    tether_buf_fini(&turn->ticket);
    tether_buf_fini(&turn->end);
    tether_buf_fini(&turn->first);
}

/* Writes a ticket after those that existed at `revision`. */
static tether_status take_ticket(struct tether__etcd_turn *turn,
                                 int64_t revision,
                                 tether_error *reterr)
{
    uint64_t number;
    arc4random_buf(&number, sizeof number);
    tether_status st = tether_buf_assign(&turn->ticket, tether_buf_bytes(&turn->first));
    if (st == TETHER_OK)
        st = tether_buf_printf(&turn->ticket, "%016" PRIx64 "-%016" PRIx64, (uint64_t)revision,
                               number);
    if (st != TETHER_OK) {
        tether_buf_fini(&turn->ticket);
        return tether_error_set(reterr, st, "out of memory for a key");
    }
    do {
        int64_t lease;
        st = tether__etcd_own_lease(turn->etcd, turn->deadline, &lease, reterr);
        if (st == TETHER_OK)
            st = tether__etcd_put(turn->etcd, tether_buf_bytes(&turn->ticket), (tether_bytes){0},
                                  lease, turn->deadline, reterr);
    } while (st == TETHER_ENOTFOUND && /* the lease has expired: the next attempt makes a new one */
             tether__backoff_sleep(0, RETRY_NS, RETRY_NS, turn->deadline));
    return st;
}

/* The first and the last ticket before the caller's own; both empty: it is the caller's turn. */
struct view {
    tether_buf head, before;
    int64_t revision;
};

static void view_fini(struct view *view)
{
    tether_buf_fini(&view->head);
    tether_buf_fini(&view->before);
}

static tether_status copy_name(const Etcdserverpb__RangeResponse *range, tether_buf *ret_name)
{
    tether_bytes name = {0};
    if (range->n_kvs)
        name = tether_bytes_of(range->kvs[0]->key.data, range->kvs[0]->key.len);
    return tether_buf_assign(ret_name, name);
}

/* Reads the value and the queue at one revision. Without a ticket, the whole queue is before us. */
static tether_status look(const struct tether__etcd_turn *turn,
                          struct view *view,
                          struct tether__etcd_value *ret_value,
                          tether_error *reterr)
{
    const tether_buf *end = turn->ticket.len ? &turn->ticket : &turn->end;
    struct tether__etcd_op ranges[] = {
        {.key = turn->value},
        {.key = tether_buf_bytes(&turn->first),
         .end = tether_buf_bytes(end),
         .limit = 1,
         .keys_only = true},
        {.key = tether_buf_bytes(&turn->first),
         .end = tether_buf_bytes(end),
         .limit = 1,
         .keys_only = true,
         .last_first = true},
    };
    Etcdserverpb__TxnResponse *reply = NULL;
    tether_status st = tether__etcd_read(turn->etcd, ranges, TETHER__ARRAY_LEN(ranges),
                                         turn->deadline, &reply, reterr);
    if (st != TETHER_OK)
        return st;
    view->revision = reply->header->revision;
    st = copy_name(reply->responses[1]->response_range, &view->head);
    if (st == TETHER_OK)
        st = copy_name(reply->responses[2]->response_range, &view->before);
    if (st == TETHER_OK && !view->before.len)
        st = tether__etcd_take_value(reply->responses[0]->response_range, ret_value, reterr);
    tether__pb_free(reply);
    return st;
}

/* Returns when the ticket before ours has been deleted, or after PATIENCE_MS; look() shows which.
 */
static tether_status await_deletion(const struct tether__etcd_turn *turn,
                                    const struct view *view,
                                    tether_error *reterr)
{
    int64_t deadline = tether__deadline_in(&tether__clock_system, PATIENCE_MS);
    Etcdserverpb__WatchResponse *events = NULL;
    tether_status st = tether__etcd_watch_once(
        turn->etcd, (struct tether__etcd_span){.key = tether_buf_bytes(&view->before)}, false,
        view->revision, deadline < turn->deadline ? deadline : turn->deadline, &events, NULL);
    tether__pb_free(events);
    return st == TETHER_ENOMEM ? tether_error_set(reterr, st, "out of memory to watch a key")
                               : TETHER_OK;
}

static tether_status await_turn(struct tether__etcd_turn *turn,
                                struct view *view,
                                struct tether__etcd_value *ret_value,
                                tether_error *reterr)
{
    tether_buf stuck = TETHER_BUF_INIT; /* the ticket in front, and since when it has been there */
    int64_t stuck_since = 0;
    tether_status st;
    for (;;) {
        st = look(turn, view, ret_value, reterr);
        if (st != TETHER_OK || !view->before.len)
            break;
        int64_t now = tether__clock_now_ns(&tether__clock_system);
        if (now >= turn->deadline) {
            st = tether_error_set(reterr, TETHER_ETIMEOUT, "others change the value, too");
            break;
        }
        if (!tether_bytes_equal(tether_buf_bytes(&stuck), tether_buf_bytes(&view->head))) {
            st = tether_buf_assign(&stuck, tether_buf_bytes(&view->head));
            stuck_since = now;
        } else if (now - stuck_since >= PATIENCE_MS * TETHER__NS_PER_MS) {
            st = tether__etcd_delete(turn->etcd, tether_buf_bytes(&stuck), turn->deadline, NULL,
                                     reterr);
            if (st == TETHER_OK)
                continue;
        }
        if (st == TETHER_OK)
            st = await_deletion(turn, view, reterr);
        if (st != TETHER_OK)
            break;
    }
    tether_buf_fini(&stuck);
    return st;
}

tether_status tether__etcd_turn_await(struct tether__etcd_turn *turn,
                                      struct tether__etcd_value *ret_value,
                                      tether_error *reterr)
{
    struct view view = {.revision = ret_value->mod_revision};
    tether_status st = turn->ticket.len ? TETHER_OK : take_ticket(turn, view.revision, reterr);
    if (st == TETHER_OK)
        st = await_turn(turn, &view, ret_value, reterr);
    view_fini(&view);
    return st;
}

tether_status tether__etcd_turn_read(struct tether__etcd_turn *turn,
                                     struct tether__etcd_value *ret_value,
                                     tether_error *reterr)
{
    struct view view = {0};
    tether_status st = look(turn, &view, ret_value, reterr);
    if (st == TETHER_OK && view.before.len) {
        st = take_ticket(turn, view.revision, reterr);
        if (st == TETHER_OK)
            st = await_turn(turn, &view, ret_value, reterr);
    }
    view_fini(&view);
    return st;
}
