/* Sending over a unix socket.
 *
 * Happy path: the header and the pieces go out in one system call, on the thread that sends;
 * nothing is copied or allocated, and the next message may be sent at once.
 *
 * A message that is large, and one that the socket does not take whole, keeps the next waiting: the
 * poller calls sent(). So a thread that sends without end lets the poller see other events in
 * between, and no thread writes for longer than a socket's buffer lasts. The rest of a message is
 * *held*: pieces with an owner as they are, others copied.
 *
 * Failure modes: a peer that is gone is noticed by reading, which also finds what it said before;
 * here the message is just dropped. No memory to keep the rest: the conn is ended.
 *
 * Locks: all writing is under conn->mu; pieces are released outside.
 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "base/alloc.h"
#include "rpc/transport/socket/socket.h"

/* after a message of this size the next one waits for sent() from the poller */
#define BULK_BYTES (64u << 10)
#define MAX_PARTS 64 /* at most so many slices in one system call */

/* The part of a message that is not written yet. */
struct rest {
    uint8_t header[TETHER__UNIX_HEADER_BYTES];
    size_t header_sent;
    const struct tether__slice *pieces;
    /* number of pieces, and the index of the first one that is not completely written */
    size_t n, at;
    size_t offset; /* how many bytes of piece `at` are written */
};

struct tether__unix_held {
    struct rest rest;
    struct tether__slice pieces[]; /* each is retained */
};

enum written { ALL, NOT_ALL, FAILED /* FAILED: errno says why */ };

/* ---- Writing ---- */

static size_t fill(struct iovec *parts, const struct rest *rest, size_t *ret_bytes)
{
    size_t n = 0, bytes = 0;
    if (rest->header_sent < sizeof rest->header) {
        bytes = sizeof rest->header - rest->header_sent;
        parts[n++] = (struct iovec){(void *)(rest->header + rest->header_sent), bytes};
    }
    for (size_t i = rest->at, from = rest->offset; i < rest->n && n < MAX_PARTS; i++, from = 0) {
        size_t len = rest->pieces[i].len - from;
        if (len == 0)
            continue;
        /* sendmsg() only reads the bytes, though iovec is not const. */
        parts[n++] = (struct iovec){(void *)(rest->pieces[i].data + from), len};
        bytes += len;
    }
    *ret_bytes = bytes;
    return n;
}

static void advance(struct rest *rest, size_t bytes)
{
    size_t of_header = sizeof rest->header - rest->header_sent;
    if (bytes < of_header)
        of_header = bytes;
    rest->header_sent += of_header;
    bytes -= of_header;
    while (rest->at < rest->n && bytes >= rest->pieces[rest->at].len - rest->offset) {
        bytes -= rest->pieces[rest->at].len - rest->offset;
        rest->at++;
        rest->offset = 0;
    }
    rest->offset += bytes;
}

static enum written write_rest(int fd, struct rest *rest)
{
    for (;;) {
        struct iovec parts[MAX_PARTS];
        size_t bytes, n = fill(parts, rest, &bytes);
        if (n == 0)
            return ALL;
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = n};
        ssize_t sent = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0)
            return errno == EAGAIN ? NOT_ALL : FAILED;
        if (n < MAX_PARTS && (size_t)sent == bytes)
            return ALL;
        advance(rest, (size_t)sent);
        if ((size_t)sent < bytes)
            return NOT_ALL;
    }
}

/* ---- Keeping the rest ---- */

static void release_all(const struct tether__slice *pieces, size_t n)
{
    for (size_t i = 0; i < n; i++)
        tether__slice_release(pieces[i]);
}

void tether__unix_held_free(struct tether__unix_held *held)
{
    if (!held)
        return;
    release_all(held->pieces, held->rest.n);
    tether__free(held);
}

/* Returns in `ret_held` the piece itself, retained, if it has an owner, otherwise a copy. False:
 * no memory. */
static bool keep_piece(struct tether__slice piece, struct tether__slice *ret_held)
{
    *ret_held = piece;
    if (piece.owner || piece.len == 0)
        return true;
    struct tether__block *block = tether__block_new(piece.len);
    if (!block)
        return false;
    memcpy(block->data, piece.data, piece.len);
    *ret_held = (struct tether__slice){block->data, piece.len, &block->owner};
    return true;
}

/* Copies the unwritten rest into a held message. TAKES the retains of the pieces in it; the
 * written ones stay with the caller. NULL: no memory, and nothing is taken. */
static struct tether__unix_held *keep(const struct rest *rest)
{
    size_t n = rest->n - rest->at;
    struct tether__unix_held *held = tether__malloc(sizeof *held + n * sizeof held->pieces[0]);
    if (!held)
        return NULL;
    held->rest = *rest;
    held->rest.pieces = held->pieces;
    held->rest.n = n;
    held->rest.at = 0;
    for (size_t i = 0; i < n; i++) {
        if (keep_piece(rest->pieces[rest->at + i], &held->pieces[i]))
            continue;
        while (i-- > 0)
            if (!rest->pieces[rest->at + i].owner)
                tether__slice_release(held->pieces[i]);
        tether__free(held);
        return NULL;
    }
    return held;
}

/* ---- Sending ---- */

/* Leave the report of a closed peer to the reader, which also finds the messages that the peer sent
 * before. */
static void failed_locked(struct tether__unix_conn *conn, int error)
{
    conn->broken = true;
    if (error == EPIPE || error == ECONNRESET)
        return;
    tether_error cause;
    tether_error_set(&cause, TETHER_EUNAVAILABLE, "cannot write to %s: %s", conn->peer,
                     strerror(error));
    tether__unix_abort_locked(conn, &cause);
}

static bool may_send_locked(struct tether__unix_conn *conn, size_t len)
{
    size_t max = conn->side->transport->max_message_bytes;
    if (conn->ending != TETHER__UNIX_IN_USE || conn->fd < 0 || conn->broken)
        return false;
    if (len <= max && !conn->sending)
        return true;
    tether_error cause;
    if (conn->sending)
        tether_error_set(&cause, TETHER_EINTERNAL, "a message to %s before the last one was sent()",
                         conn->peer);
    else
        tether_error_set(&cause, TETHER_ETOOBIG,
                         "a message of %zu bytes to %s is over the limit of %zu", len, conn->peer,
                         max);
    tether__unix_abort_locked(conn, &cause);
    return false;
}

/* Keeps the rest of a message that the socket did not take. True: the poller continues to write
 * it. */
static bool keep_locked(struct tether__unix_conn *conn, const struct rest *rest)
{
    conn->held = keep(rest);
    if (!conn->held) {
        tether__unix_abort_locked(
            conn, &(tether_error){TETHER_ENOMEM, "no memory to keep a message until it is sent"});
        return false;
    }
    conn->sending = true;
    tether__unix_watch_locked(conn, conn->wants_in, true);
    return true;
}

bool tether__unix_send(struct tether__conn *base, const struct tether__slice *pieces, size_t n)
{
    struct tether__unix_conn *conn = tether__unix_conn_of(base);
    size_t len = 0, n_released = n;
    for (size_t i = 0; i < n; i++)
        len += pieces[i].len;

    bool next_may_go = false;
    pthread_mutex_lock(&conn->mu);
    if (may_send_locked(conn, len)) {
        struct rest rest = {.pieces = pieces, .n = n};
        tether__frames_header(rest.header, (uint32_t)len);
        enum written written = write_rest(conn->fd, &rest);
        if (written == FAILED)
            failed_locked(conn, errno);
        else if (written == NOT_ALL && keep_locked(conn, &rest))
            n_released = rest.at;
        else if (written == ALL && len >= BULK_BYTES) {
            conn->sending = conn->sent_due = true;
            tether__unix_attend_locked(conn);
        } else {
            next_may_go = written == ALL;
        }
        atomic_store_explicit(&conn->side->just_sent, true, memory_order_relaxed);
    }
    pthread_mutex_unlock(&conn->mu);
    release_all(pieces, n_released); /* if pieces were not sent, closed() reports the reason */
    return next_may_go;
}

/* Continues to write a message. Returns whether all of it has been written; `ret_done` then gets
 * its held slices, to be freed after unlocking. */
static bool write_held_locked(struct tether__unix_conn *conn, struct tether__unix_held **ret_done)
{
    enum written written = write_rest(conn->fd, &conn->held->rest);
    if (written == NOT_ALL)
        return false;
    if (written == FAILED)
        failed_locked(conn, errno);
    *ret_done = conn->held;
    conn->held = NULL;
    conn->sending = false;
    return written == ALL && conn->ending == TETHER__UNIX_IN_USE;
}

void tether__unix_writable(struct tether__unix_conn *conn)
{
    struct tether__unix_held *done = NULL;
    bool next_may_go = false;
    pthread_mutex_lock(&conn->mu);
    if (conn->held)
        next_may_go = write_held_locked(conn, &done);
    /* nothing is held: stop watching only now, because while messages follow each other that
     * would take two calls of epoll_ctl() for each */
    else
        tether__unix_watch_locked(conn, conn->wants_in, false);
    pthread_mutex_unlock(&conn->mu);
    tether__unix_held_free(done);
    if (next_may_go)
        conn->base.events->sent(&conn->base);
}

bool tether__unix_take_sent(struct tether__conn *base)
{
    struct tether__unix_conn *conn = tether__unix_conn_of(base);
    struct tether__unix_held *done = NULL;
    bool next_may_go = false;
    if (atomic_load(&conn->side->asleep))
        return false;
    pthread_mutex_lock(&conn->mu);
    bool in_use = conn->ending == TETHER__UNIX_IN_USE && conn->fd >= 0 && !conn->broken;
    if (in_use && conn->held) {
        next_may_go = write_held_locked(conn, &done);
    } else if (in_use && conn->sent_due) {
        conn->sent_due = conn->sending = false;
        next_may_go = true;
    }
    pthread_mutex_unlock(&conn->mu);
    tether__unix_held_free(done);
    return next_may_go;
}
