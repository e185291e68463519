/* Receiving over a unix socket.
 *
 * Happy path: all bytes that have arrived are read into the side's scratch block, in one system
 * call, and lent out message by message. If no code has kept any of it the block is used again. The
 * rest of a message that has not arrived completely is read directly to its place. So a conn that
 * is idle has no memory for receiving.
 *
 * Failure modes: a peer that is gone without the end marker broke off; one that announces too long
 * a message, or for whose message there is no memory, is closed at once.
 *
 * No locks: only the poller receives.
 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "rpc/transport/socket/socket.h"

/* A payload of 64 KiB with its headers fits, so that it can be lent out without a copy. */
#define SCRATCH_BYTES (72u << 10)

/* Returns the side's block to receive into, and makes one if there is none. NULL: no memory. */
static struct tether__block *scratch(struct tether__unix_side *side)
{
    if (side->scratch && !tether__block_is_mine(side->scratch))
        side->scratch = tether__block_release(side->scratch);
    if (!side->scratch) {
        side->scratch = tether__block_new(SCRATCH_BYTES);
        atomic_fetch_add_explicit(&side->transport->stats.scratches, 1, memory_order_relaxed);
    }
    return side->scratch;
}

static void broke_off(struct tether__unix_conn *conn, int error)
{
    tether_error why;
    tether_error_set(&why, TETHER_EUNAVAILABLE, "the connection %s %s broke off%s%s",
                     conn->dialled ? "to" : "from", conn->peer, error ? ": " : "",
                     error ? strerror(error) : "");
    tether__unix_finish(conn, why.code, why.message);
}

static void too_big(struct tether__unix_conn *conn)
{
    tether_error why;
    tether_error_set(
        &why, TETHER_ETOOBIG, "a message of %lu bytes from %s is over the limit of %lu",
        (unsigned long)conn->frames.announced, conn->peer, (unsigned long)conn->frames.max_bytes);
    tether__unix_finish(conn, why.code, why.message);
}

static bool is_over(const struct tether__unix_conn *conn)
{
    return atomic_load_explicit(&conn->mute, memory_order_relaxed) ||
           atomic_load_explicit(&conn->side->transport->stopping, memory_order_relaxed);
}

static void deliver(struct tether__unix_conn *conn, struct tether__slice bytes)
{
    while (!is_over(conn)) {
        struct tether__slice message;
        switch (tether__frames_next(&conn->frames, &bytes, &message)) {
            case TETHER__NEXT_MESSAGE:
                conn->base.events->message(&conn->base, message);
                break;
            case TETHER__NEXT_NONE:
                return;
            case TETHER__NEXT_END:
                tether__unix_peer_ended(conn);
                return;
            case TETHER__NEXT_TOO_BIG:
                too_big(conn);
                return;
            case TETHER__NEXT_NO_MEMORY:
                tether__unix_finish(conn, TETHER_ENOMEM, "no memory for a received message");
                return;
        }
    }
}

/* A short read means that the socket is empty, so another read would only return EAGAIN. */
bool tether__unix_receive(struct tether__unix_conn *conn)
{
    struct tether__unix_side *side = conn->side;
    struct tether__block *block = scratch(side);
    if (!block) {
        tether__unix_finish(conn, TETHER_ENOMEM, "no memory to receive into");
        return true;
    }
    uint8_t *to;
    size_t room = tether__frames_room(&conn->frames, &to);
    struct iovec parts[2] = {{to, room}, {block->data, block->size}};
    ssize_t n =
        room ? recvmsg(conn->fd, &(struct msghdr){.msg_iov = parts, .msg_iovlen = 2}, MSG_DONTWAIT)
             : recv(conn->fd, block->data, block->size, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n <= 0) {
        broke_off(conn, n < 0 ? errno : 0);
        return true;
    }
    side->hot = conn;
    size_t filled = (size_t)n < room ? (size_t)n : room;
    tether__frames_filled(&conn->frames, filled);
    deliver(conn, (struct tether__slice){block->data, (size_t)n - filled, &block->owner});
    return true;
}
