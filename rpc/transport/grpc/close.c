/* How a lane stream ends: gracefully, at once, or because the peer or the network ended it.
 *
 * In each case, gRPC completes every pending op, and closed() is called after the last. `ending` is
 * the stage of the close; it only advances, under conn->mu.
 */
#include <errno.h>
#include <grpc/slice.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "rpc/transport/grpc/accept.h"

/* Takes the conn out of the transport's lists. After this the transport uses the conn only for
 * closed().
 */
void tether__grpc_conn_unlink(struct tether__grpc_conn *conn)
{
    pthread_mutex_lock(&conn->side->transport->mu);
    tether__list_remove(&conn->all);
    tether__list_remove(&conn->timed);
    pthread_mutex_unlock(&conn->side->transport->mu);
}

/* Returns whether the text from `at` to `end` is a status name or an address, such as
 * "UNAVAILABLE" or "ipv4:127.0.0.1:1234". The error message has both already. */
static bool is_noise(const char *at, const char *end)
{
    size_t len = (size_t)(end - at);
    return strspn(at, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_") == len ||
           (len > 5 &&
            (!memcmp(at, "ipv4:", 5) || !memcmp(at, "ipv6:", 5) || !memcmp(at, "unix:", 5)));
}

/* The text of gRPC is often a chain of causes with the one that matters at its end. */
static const char *last_cause(const char *details)
{
    static const char mark[] = "last error: ";
    const char *at = strstr(details, mark), *end;
    at = at ? at + strlen(mark) : details;
    while ((end = strstr(at, ": ")) && is_noise(at, end))
        at = end + 2;
    return at;
}

/* Returns whether the cause is a refused connection; gRPC takes the text from strerror(), which
 * may be translated. */
static bool is_refusal(const char *cause)
{
    return strstr(cause, "Connection refused") || strstr(cause, strerror(ECONNREFUSED));
}

static bool was_hung_up_on(const char *cause)
{
    return strstr(cause, "Socket closed") || strstr(cause, "reset by peer");
}

/* Returns a hint for the error message: a server whose TLS settings differ from ours may just
 * close the connection. */
static const char *hint(const struct tether__grpc *transport, const char *cause)
{
    if (is_refusal(cause))
        return " (is it still running?)";
    if (!was_hung_up_on(cause))
        return "";
    if (!transport->has_tls)
        return " (does it want TLS? give both ends certificates, or neither)";
    return transport->has_own_cert ? " (does it trust the CA of our certificate?)"
                                   : " (does it want a client certificate?)";
}

/* Whether our certificate has expired. Uses the system time, as certificates do, which may have
 * been changed since the start. */
static bool own_cert_has_expired(const struct tether__grpc *transport)
{
    return transport->own_cert_ends_at && time(NULL) >= transport->own_cert_ends_at;
}

/* Whether the settings of both ends contradict, so that another dial of this address fails, too;
 * `ret_end` then has the reason. The server is not authenticated: any process that listens there
 * can claim this. */
static bool tell_misfit(const struct tether__grpc_conn *conn,
                        const char *cause,
                        tether_error *ret_end)
{
    const struct tether__grpc *transport = conn->side->transport;
    if (!transport->has_tls) {
        if (conn->code != GRPC_STATUS_PERMISSION_DENIED ||
            strcmp(cause, TETHER__GRPC_NEEDS_TLS) != 0)
            return false;
        tether_error_set(ret_end, TETHER_EPERM,
                         "%s has TLS, but this worker has none: give both ends a certificate, or "
                         "neither",
                         conn->peer);
    } else if (strstr(cause, "wrong version number") || strstr(cause, "alert protocol version")) {
        tether_error_set(ret_end, TETHER_EPERM,
                         "%s speaks plain text, but this worker has TLS: give both ends a "
                         "certificate, or neither",
                         conn->peer);
    } else if (strstr(cause, "certificate verify failed")) {
        tether_error_set(ret_end, TETHER_EPERM,
                         "the certificate of %s cannot be verified: is it signed by a CA in "
                         "tls_ca_file, and has it not expired?",
                         conn->peer);
    } else if (strstr(cause, "is not in peer certificate")) {
        tether_error_set(ret_end, TETHER_EPERM,
                         "the certificate of %s is not for this address: put the address into its "
                         "subjectAltName (%.80s)",
                         conn->peer, cause);
    } else if (was_hung_up_on(cause) && own_cert_has_expired(transport)) {
        tether_error_set(ret_end, TETHER_EPERM,
                         "%s hung up, and the certificate of this worker has expired: renew it and "
                         "start the worker again",
                         conn->peer);
    } else if (was_hung_up_on(cause) && transport->own_cert_is_foreign) {
        tether_error_set(ret_end, TETHER_EPERM,
                         "%s hung up, and the certificate of this worker is not signed by a CA in "
                         "its own tls_ca_file: give it one that the others trust",
                         conn->peer);
    } else {
        return false;
    }
    return true;
}

static tether_status tell_dialled(const struct tether__grpc_conn *conn, tether_error *ret_end)
{
    char details[TETHER_ERROR_MESSAGE_SIZE * 2];
    snprintf(details, sizeof details, "%.*s", (int)GRPC_SLICE_LENGTH(conn->details),
             (const char *)GRPC_SLICE_START_PTR(conn->details));
    const char *cause = details[0] ? last_cause(details) : "no reason given";
    if (!conn->is_open && tell_misfit(conn, cause, ret_end))
        return ret_end->code;

    switch (conn->code) {
        case GRPC_STATUS_OK:
            return tether_error_set(ret_end, TETHER_OK, "the connection to %s was closed",
                                    conn->peer);
        case GRPC_STATUS_UNIMPLEMENTED:
            return tether_error_set(ret_end, TETHER_ENOTSUP,
                                    "%s speaks gRPC but is not a Tether worker: %s", conn->peer,
                                    cause);
        case GRPC_STATUS_OUT_OF_RANGE: /* a server sends this code for TETHER_ETOOBIG */
        /* gRPC sends this code when one of its own limits is exceeded */
        case GRPC_STATUS_RESOURCE_EXHAUSTED:
            return tether_error_set(ret_end, TETHER_ETOOBIG,
                                    "a limit on the connection to %s was exceeded: %s", conn->peer,
                                    cause);
        case GRPC_STATUS_UNAUTHENTICATED:
        case GRPC_STATUS_PERMISSION_DENIED:
            return tether_error_set(ret_end, tether_status_from_grpc(conn->code),
                                    "%s refused us: %s", conn->peer, cause);
        default:
            if (conn->is_open)
                return tether_error_set(ret_end, TETHER_EUNAVAILABLE,
                                        "the connection to %s broke: %s", conn->peer, cause);
            return tether_error_set(ret_end,
                                    is_refusal(cause) ? TETHER_ENOTFOUND : TETHER_EUNAVAILABLE,
                                    "cannot connect to %s: %s%s", conn->peer, cause,
                                    hint(conn->side->transport, cause));
    }
}

static tether_status tell_accepted(const struct tether__grpc_conn *conn, tether_error *ret_end)
{
    if (conn->canceled)
        return tether_error_set(ret_end, TETHER_EUNAVAILABLE, "the connection from %s broke",
                                conn->peer);
    return tether_error_set(ret_end, TETHER_OK, "the connection from %s was closed", conn->peer);
}

static void finish(struct tether__grpc_conn *conn)
{
    struct tether__grpc_side *side = conn->side;
    /* copied without the lock: no thread writes it any more */
    tether_error end = conn->abort_cause;
    if (end.code == TETHER_OK) {
        if (tether__grpc_is_dialled(conn))
            tell_dialled(conn, &end);
        else
            tell_accepted(conn, &end);
    }
    tether__grpc_unproved_call_ends(&side->transport->unproved, conn->unproved_id, false);
    tether__grpc_conn_unlink(conn);
    conn->base.events->closed(&conn->base, end.code, end.message);
    tether__grpc_conn_unref(conn);
    tether__grpc_side_leave(side);
}

/* Called when one op has completed and is not started again. */
void tether__grpc_op_back(struct tether__grpc_conn *conn)
{
    pthread_mutex_lock(&conn->mu);
    bool last = conn->finished = --conn->pending == 0;
    pthread_mutex_unlock(&conn->mu);
    if (last)
        finish(conn);
}

void tether__grpc_abort_locked(struct tether__grpc_conn *conn, const tether_error *cause)
{
    if (conn->ending == TETHER__GRPC_ABORTED || conn->finished)
        return;
    conn->ending = TETHER__GRPC_ABORTED;
    conn->abort_cause = *cause;
    atomic_store(&conn->mute, true);
    /* otherwise no op was started yet, and the call is cancelled when the first one is */
    if (conn->pending)
        grpc_call_cancel_with_status(conn->call, tether_status_to_grpc(cause->code), cause->message,
                                     NULL);
}

void tether__grpc_abort(struct tether__grpc_conn *conn, const tether_error *cause)
{
    pthread_mutex_lock(&conn->mu);
    tether__grpc_abort_locked(conn, cause);
    pthread_mutex_unlock(&conn->mu);
}

/* Half-closes the call. No message may be under way. */
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
        tether__grpc_abort_locked(
            conn, &(tether_error){TETHER_EINTERNAL, "gRPC refused to end a stream"});
    }
}

void tether__grpc_close_gracefully_locked(struct tether__grpc_conn *conn)
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
        tether__grpc_close_gracefully_locked(conn);
    else
        tether__grpc_abort_locked(
            conn, &(tether_error){TETHER_ECANCELED, "the connection was closed by this side"});
    pthread_mutex_unlock(&conn->mu);
}

void tether__grpc_expired(struct tether__grpc_conn *conn)
{
    tether_error cause;
    bool closing = conn->is_open || !tether__grpc_is_dialled(conn);
    tether_error_set(&cause, TETHER_EUNAVAILABLE, "%s did not %s within %lld ms", conn->peer,
                     closing ? "close the connection" : "answer",
                     (long long)(conn->side->transport->patience_ns / TETHER__NS_PER_MS));
    tether__grpc_abort(conn, &cause);
}
