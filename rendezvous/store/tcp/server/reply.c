/* Builds replies in the dialect of the client. */
#include "rendezvous/store/tcp/server/reply.h"

#include <string.h>

char *tether__store_fill(char *at, const void *data, size_t len)
{
    if (len)
        memcpy(at, data, len);
    return at + len;
}

char *tether__store_fill_bytes(char *at, tether_bytes bytes)
{
    uint64_t len = bytes.len;
    return tether__store_fill(tether__store_fill(at, &len, sizeof len), bytes.data, bytes.len);
}

char *tether__store_reply_room(struct tether__store_session *session, size_t size)
{
    bool status = tether__store_session_has_status(session);
    char *at = tether__store_session_room(session, size + status);
    if (at && status)
        *at++ = TETHER_OK;
    return at;
}

void tether__store_reply_u8(struct tether__store_session *session, uint8_t value)
{
    char *at = tether__store_reply_room(session, sizeof value);
    if (at)
        tether__store_fill(at, &value, sizeof value);
}

void tether__store_reply_i64(struct tether__store_session *session, int64_t value)
{
    char *at = tether__store_reply_room(session, sizeof value);
    if (at)
        tether__store_fill(at, &value, sizeof value);
}

void tether__store_reply_bytes(struct tether__store_session *session, tether_bytes bytes)
{
    char *at = tether__store_reply_room(session, sizeof(uint64_t) + bytes.len);
    if (at)
        tether__store_fill_bytes(at, bytes);
}

void tether__store_refuse(struct tether__store_session *session, tether_status st, const char *why)
{
    if (!tether__store_session_has_status(session)) {
        tether__store_session_fail(session, why);
        return;
    }
    char *at = tether__store_session_room(session, 1);
    if (at)
        *at = (char)st;
}

const char *tether__store_why_not(tether_status st)
{
    return st == TETHER_ETOOBIG  ? "the value is too long, or the server has reached max_kept"
           : st == TETHER_EINVAL ? "add to a value that is not a number"
                                 : tether_status_text(st);
}

void tether__store_reply_done(struct tether__store_session *session, tether_status st)
{
    if (st != TETHER_OK)
        tether__store_refuse(session, st, tether__store_why_not(st));
    else if (tether__store_session_has_status(session))
        tether__store_reply_room(session, 0);
}

void tether__store_reply_passed(struct tether__store_session *session)
{
    if (tether__store_session_has_status(session))
        tether__store_reply_room(session, 0);
    else
        tether__store_reply_u8(session, TETHER__STORE_WIRE_STOP_WAITING);
}
