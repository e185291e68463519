/* Blocking socket I/O with a deadline.
 *
 * A blocking call costs one system call, poll and read cost two. So the socket has send and receive
 * timeouts of one slice, set once. While more than a slice is left, a call that timed out is simply
 * repeated; only the last slice is spent in poll().
 */
#include "rendezvous/store/tcp/client/conn.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"

#define SLICE_MS TETHER__STORE_CONN_SLICE_MS
/* a value of at least this size is sent from the caller's memory, not copied */
#define LOAN_MIN ((size_t)8 << 10)
#define KEEP_OUT ((size_t)64 << 10) /* a larger request buffer is freed after the call */

struct tether__store_conn *tether__store_conn_new(int fd, tether_store_dialect dialect)
{
    struct tether__store_conn *conn = tether__malloc(sizeof *conn);
    if (!conn) {
        close(fd);
        return NULL;
    }
    memset(conn, 0, offsetof(struct tether__store_conn, in));
    conn->fd = fd;
    conn->dialect = dialect;
    conn->deadline = TETHER__NEVER;
    tether__list_init(&conn->node);
    struct timeval slice = {.tv_sec = SLICE_MS / 1000, .tv_usec = SLICE_MS % 1000 * 1000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &slice, sizeof slice);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &slice, sizeof slice);
    return conn;
}

struct tether__store_conn *tether__store_conn_close(struct tether__store_conn *conn)
{
    if (!conn)
        return NULL;
    close(conn->fd);
    tether_buf_fini(&conn->out);
    return tether__free(conn);
}

void tether__store_conn_begin(struct tether__store_conn *conn, int64_t deadline)
{
    conn->deadline = deadline;
    conn->status = TETHER_OK;
    conn->replied = false;
    conn->has_time = false;
    conn->n_loans = 0;
    conn->out.len = 0;
    if (conn->out.cap > KEEP_OUT)
        tether_buf_fini(&conn->out);
}

static void fail(struct tether__store_conn *conn, tether_status st, const char *why)
{
    if (conn->status == TETHER_OK)
        conn->status = tether_error_set(&conn->error, st, "%s", why);
}

/* ---- Waiting -------------------------------------------------------------------------------- */

enum wait { WAIT_BLOCK, WAIT_READY, WAIT_TIMEOUT };

/* Decides how to wait for `events`: in the system call itself while a slice is left, otherwise
 * here. */
static enum wait await(struct tether__store_conn *conn, short events)
{
    if (conn->has_time) {
        conn->has_time = false;
        return WAIT_BLOCK;
    }
    for (;;) {
        int left_ms = tether__deadline_left_ms(&tether__clock_system, conn->deadline);
        if (left_ms < 0 || left_ms > SLICE_MS)
            return WAIT_BLOCK;
        struct pollfd poll_fd = {.fd = conn->fd, .events = events};
        int n = poll(&poll_fd, 1, left_ms);
        if (n > 0)
            return WAIT_READY;
        if (n == 0 && left_ms == 0)
            return WAIT_TIMEOUT;
    }
}

/* ---- Request -------------------------------------------------------------------------------- */

static void check_put(struct tether__store_conn *conn, tether_status st)
{
    if (st != TETHER_OK)
        fail(conn, st, "out of memory for the request");
}

void tether__store_conn_put_op(struct tether__store_conn *conn, enum tether__store_wire_op op)
{
    int opcode = tether__store_wire_opcode(op, conn->dialect);
    check_put(conn, tether__store_wire_put_u8(&conn->out, (uint8_t)opcode));
}

void tether__store_conn_put_u32(struct tether__store_conn *conn, uint32_t value)
{
    check_put(conn, tether__store_wire_put_u32(&conn->out, value));
}

void tether__store_conn_put_u64(struct tether__store_conn *conn, uint64_t value)
{
    check_put(conn, tether__store_wire_put_u64(&conn->out, value));
}

void tether__store_conn_put_key(struct tether__store_conn *conn,
                                const char *prefix,
                                const char *key)
{
    size_t prefix_len = strlen(prefix), key_len = strlen(key);
    tether__store_conn_put_u64(conn, prefix_len + key_len);
    check_put(conn, tether_buf_append(&conn->out, tether_bytes_of(prefix, prefix_len)));
    check_put(conn, tether_buf_append(&conn->out, tether_bytes_of(key, key_len)));
}

void tether__store_conn_put_bytes(struct tether__store_conn *conn, tether_bytes bytes)
{
    if (bytes.len < LOAN_MIN || conn->n_loans == TETHER__STORE_CONN_MAX_LOANS) {
        check_put(conn, tether__store_wire_put_bytes(&conn->out, bytes));
        return;
    }
    tether__store_conn_put_u64(conn, bytes.len);
    conn->loans[conn->n_loans].at = conn->out.len;
    conn->loans[conn->n_loans++].bytes = bytes;
}

void tether__store_conn_move_request(struct tether__store_conn *conn,
                                     struct tether__store_conn *from)
{
    tether_buf_fini(&conn->out);
    conn->out = from->out;
    from->out = TETHER_BUF_INIT;
    memcpy(conn->loans, from->loans, sizeof conn->loans);
    conn->n_loans = from->n_loans;
}

/* Lists the parts of the request in order: pieces of `out`, with the loans between them. */
static int gather(const struct tether__store_conn *conn, struct iovec *iov)
{
    int n = 0;
    size_t at = 0;
    for (int i = 0; i <= conn->n_loans; i++) {
        size_t upto = i < conn->n_loans ? conn->loans[i].at : conn->out.len;
        if (upto > at)
            iov[n++] = (struct iovec){conn->out.data + at, upto - at};
        at = upto;
        if (i < conn->n_loans)
            iov[n++] = (struct iovec){(void *)conn->loans[i].bytes.data, conn->loans[i].bytes.len};
    }
    return n;
}

/* send() is cheaper than sendmsg(), and most requests have one piece. */
static ssize_t send_some(int fd, const struct msghdr *message, int flags)
{
    const struct iovec *first = message->msg_iov;
    return message->msg_iovlen == 1 ? send(fd, first->iov_base, first->iov_len, flags)
                                    : sendmsg(fd, message, flags);
}

void tether__store_conn_send(struct tether__store_conn *conn)
{
    struct iovec parts[2 * TETHER__STORE_CONN_MAX_LOANS + 1];
    struct msghdr message = {.msg_iov = parts};
    if (conn->status != TETHER_OK)
        return;
    message.msg_iovlen = (size_t)gather(conn, parts);
    /* usually the socket accepts all bytes, so do not block */
    int flags = MSG_NOSIGNAL | MSG_DONTWAIT;
    while (message.msg_iovlen > 0) {
        ssize_t n = send_some(conn->fd, &message, flags);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno != EAGAIN) {
            fail(conn, TETHER_EUNAVAILABLE, strerror(errno));
            return;
        }
        for (size_t left = n > 0 ? (size_t)n : 0; left > 0;) {
            size_t step = left < message.msg_iov->iov_len ? left : message.msg_iov->iov_len;
            message.msg_iov->iov_base = (char *)message.msg_iov->iov_base + step;
            message.msg_iov->iov_len -= step;
            left -= step;
            if (message.msg_iov->iov_len == 0) {
                message.msg_iov++;
                message.msg_iovlen--;
            }
        }
        if (message.msg_iovlen == 0)
            return;
        enum wait wait = await(conn, POLLOUT);
        if (wait == WAIT_TIMEOUT) {
            fail(conn, TETHER_ETIMEOUT, "the server does not take the request");
            return;
        }
        flags = MSG_NOSIGNAL | (wait == WAIT_READY ? MSG_DONTWAIT : 0);
    }
}

/* ---- Reply ---------------------------------------------------------------------------------- */

/* Reads some bytes into `to` and returns how many; 0 on error or, with `timed_out` given, at the
 * deadline. */
static size_t receive(struct tether__store_conn *conn, void *to, size_t size, bool *timed_out)
{
    while (conn->status == TETHER_OK) {
        enum wait wait = await(conn, POLLIN);
        if (wait == WAIT_TIMEOUT) {
            if (timed_out)
                *timed_out = true;
            else
                fail(conn, TETHER_ETIMEOUT, "the server does not answer");
            return 0;
        }
        ssize_t n = recv(conn->fd, to, size, wait == WAIT_READY ? MSG_DONTWAIT : 0);
        if (n > 0) {
            conn->replied = true;
            return (size_t)n;
        }
        if (n == 0)
            fail(conn, TETHER_EUNAVAILABLE, "the server has closed the connection");
        else if (errno != EINTR && errno != EAGAIN)
            fail(conn, TETHER_EUNAVAILABLE, strerror(errno));
    }
    return 0;
}

static bool fill_in(struct tether__store_conn *conn, bool *timed_out)
{
    conn->in_at = 0;
    conn->in_len = receive(conn, conn->in, sizeof conn->in, timed_out);
    return conn->in_len > 0;
}

bool tether__store_conn_wait_readable(struct tether__store_conn *conn)
{
    bool timed_out = false;
    if (conn->in_at == conn->in_len && conn->status == TETHER_OK)
        fill_in(conn, &timed_out);
    return !timed_out;
}

static void get(struct tether__store_conn *conn, void *to, size_t size)
{
    char *at = to;
    while (size > 0 && conn->status == TETHER_OK) {
        size_t have = conn->in_len - conn->in_at;
        /* the string is large: read it directly into the result */
        if (have == 0 && size >= sizeof conn->in) {
            size_t n = receive(conn, at, size, NULL);
            at += n;
            size -= n;
            continue;
        }
        if (have == 0 && !fill_in(conn, NULL))
            break;
        have = conn->in_len - conn->in_at;
        size_t step = size < have ? size : have;
        memcpy(at, conn->in + conn->in_at, step);
        conn->in_at += step;
        at += step;
        size -= step;
    }
    if (conn->status != TETHER_OK)
        memset(at, 0, size);
}

uint8_t tether__store_conn_get_u8(struct tether__store_conn *conn)
{
    uint8_t value = 0;
    get(conn, &value, sizeof value);
    return value;
}

uint32_t tether__store_conn_get_u32(struct tether__store_conn *conn)
{
    uint32_t value = 0;
    get(conn, &value, sizeof value);
    return value;
}

uint64_t tether__store_conn_get_u64(struct tether__store_conn *conn)
{
    uint64_t value = 0;
    get(conn, &value, sizeof value);
    return value;
}

void tether__store_conn_get_bytes(struct tether__store_conn *conn,
                                  size_t limit,
                                  tether_buf *ret_bytes)
{
    uint64_t len = tether__store_conn_get_u64(conn);
    if (conn->status != TETHER_OK)
        return;
    if (len > limit) {
        fail(conn, TETHER_ECORRUPT, "the server announces more bytes than can be: no store?");
        return;
    }
    if (len <= conn->in_len - conn->in_at) { /* usually all bytes of the string have arrived */
        tether_bytes here = tether_bytes_of(conn->in + conn->in_at, len);
        conn->in_at += len;
        if (tether_buf_assign(ret_bytes, here) != TETHER_OK)
            fail(conn, TETHER_ENOMEM, "out of memory for the reply");
        return;
    }
    tether_buf bytes = TETHER_BUF_INIT;
    if (tether_buf_reserve(&bytes, len) != TETHER_OK) {
        fail(conn, TETHER_ENOMEM, "out of memory for the reply");
        return;
    }
    get(conn, bytes.data, len);
    if (conn->status != TETHER_OK) {
        tether_buf_fini(&bytes);
        return;
    }
    bytes.len = len;
    bytes.data[len] = '\0';
    tether_buf_fini(ret_bytes);
    *ret_bytes = bytes;
}
