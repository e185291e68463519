/* How a lane stream ends: politely, at once, or because the peer or the network ended it.
 *
 * Whatever the way, gRPC gives back every op that is under way, and closed() comes with the last.
 * `ending` says how far it has come and only goes on, under conn->mu.
 */
#include <grpc/slice.h>
#include <stdio.h>
#include <string.h>

#include "rpc/transport_grpc.h"

/* Out of the transport's lists; the last thing that the transport does with it, but for closed().
 */
void tether__grpc_conn_unlink(struct tether__grpc_conn *conn)
{
    pthread_mutex_lock(&conn->side->transport->mu);
    tether__list_remove(&conn->all);
    tether__list_remove(&conn->timed);
    pthread_mutex_unlock(&conn->side->transport->mu);
}

/* What gRPC says is often a chain of causes with the one that matters at its end. */
static const char *last_cause(const char *details)
{
    static const char mark[] = "last error: ";
    const char *at = strstr(details, mark);
    return at ? at + strlen(mark) : details;
}

static tether_status tell_dialled(struct tether__grpc_conn *conn, char *why, size_t size)
{
    char details[TETHER_ERROR_MESSAGE_SIZE * 2];
    snprintf(details, sizeof details, "%.*s", (int)GRPC_SLICE_LENGTH(conn->details),
             (const char *)GRPC_SLICE_START_PTR(conn->details));
    const char *cause = details[0] ? last_cause(details) : "no reason given";

    switch (conn->code) {
        case GRPC_STATUS_OK:
            snprintf(why, size, "the connection to %s was closed", conn->peer);
            return TETHER_OK;
        case GRPC_STATUS_UNIMPLEMENTED:
            snprintf(why, size, "%s speaks gRPC but is not a Tether worker: %s", conn->peer, cause);
            return TETHER_ENOTSUP;
        case GRPC_STATUS_RESOURCE_EXHAUSTED:
            snprintf(why, size, "a limit on the connection to %s was exceeded: %s", conn->peer,
                     cause);
            return TETHER_ETOOBIG;
        case GRPC_STATUS_UNAUTHENTICATED:
        case GRPC_STATUS_PERMISSION_DENIED:
            snprintf(why, size, "%s refused us: %s", conn->peer, cause);
            return tether_status_from_grpc(conn->code);
        default:
            if (conn->is_open)
                snprintf(why, size, "the connection to %s broke: %s", conn->peer, cause);
            else
                snprintf(why, size, "cannot connect to %s: %s", conn->peer, cause);
            return TETHER_EUNAVAILABLE;
    }
}

static tether_status tell_accepted(struct tether__grpc_conn *conn, char *why, size_t size)
{
    if (!conn->canceled) {
        snprintf(why, size, "the connection from %s was closed", conn->peer);
        return TETHER_OK;
    }
    snprintf(why, size, "the connection from %s broke", conn->peer);
    return TETHER_EUNAVAILABLE;
}

static void finish(struct tether__grpc_conn *conn)
{
    struct tether__grpc_side *side = conn->side;
    char why[sizeof conn->why];
    tether_status status = conn->reason; /* nobody writes it any more */
    if (status != TETHER_OK)
        memcpy(why, conn->why, sizeof why);
    else if (tether__grpc_is_dialled(conn))
        status = tell_dialled(conn, why, sizeof why);
    else
        status = tell_accepted(conn, why, sizeof why);

    tether__grpc_conn_unlink(conn);
    conn->base.events->closed(&conn->base, status, why);
    tether__grpc_conn_unref(conn);
    tether__grpc_side_leave(side);
}

/* One op has come back for good. */
void tether__grpc_op_back(struct tether__grpc_conn *conn)
{
    pthread_mutex_lock(&conn->mu);
    bool last = conn->finished = --conn->pending == 0;
    pthread_mutex_unlock(&conn->mu);
    if (last)
        finish(conn);
}

void tether__grpc_abort_locked(struct tether__grpc_conn *conn,
                               tether_status status,
                               const char *why)
{
    if (conn->ending == TETHER__GRPC_ABORTED || conn->finished)
        return;
    conn->ending = TETHER__GRPC_ABORTED;
    conn->reason = status;
    snprintf(conn->why, sizeof conn->why, "%s", why);
    atomic_store(&conn->mute, true);
    if (conn->pending) /* else it is not going yet, and is canceled when it does */
        grpc_call_cancel_with_status(conn->call, tether_status_to_grpc(status), conn->why, NULL);
}

void tether__grpc_abort(struct tether__grpc_conn *conn, tether_status status, const char *why)
{
    pthread_mutex_lock(&conn->mu);
    tether__grpc_abort_locked(conn, status, why);
    pthread_mutex_unlock(&conn->mu);
}

/* Closes our half: nothing is being sent. */
void tether__grpc_end_locked(struct tether__grpc_conn *conn)
{
    grpc_op op = {0};
    if (tether__grpc_is_dialled(conn)) {
        op.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
    } else {
        op.op = GRPC_OP_SEND_STATUS_FROM_SERVER;
        op.data.send_status_from_server.status = GRPC_STATUS_OK;
    }
    conn->ending = TETHER__GRPC_ENDED;
    conn->pending++;
    if (!tether__grpc_start(conn->side->transport, conn->call, &op, 1, &conn->ended)) {
        conn->pending--;
        tether__grpc_abort_locked(conn, TETHER_EINTERNAL, "gRPC refused to end a stream");
    }
}

void tether__grpc_close_politely_locked(struct tether__grpc_conn *conn)
{
    if (conn->ending != TETHER__GRPC_IN_USE || conn->finished)
        return;
    conn->ending = TETHER__GRPC_LAST_SEND;
    if (!conn->sending)
        tether__grpc_end_locked(conn);
    tether__grpc_set_deadline(
        conn, tether__clock_now_ns(&tether__clock_system) + conn->side->transport->patience_ns);
}

void tether__grpc_close(struct tether__conn *base, bool polite)
{
    struct tether__grpc_conn *conn = tether__grpc_conn_of(base);
    pthread_mutex_lock(&conn->mu);
    if (polite)
        tether__grpc_close_politely_locked(conn);
    else
        tether__grpc_abort_locked(conn, TETHER_ECANCELED, "the connection was closed by this side");
    pthread_mutex_unlock(&conn->mu);
}

void tether__grpc_expired(struct tether__grpc_conn *conn)
{
    char why[sizeof conn->why];
    snprintf(why, sizeof why, "%s did not %s within %lld ms", conn->peer,
             conn->is_open || !tether__grpc_is_dialled(conn) ? "close the connection" : "answer",
             (long long)(conn->side->transport->patience_ns / TETHER__NS_PER_MS));
    tether__grpc_abort(conn, TETHER_EUNAVAILABLE, why);
}
