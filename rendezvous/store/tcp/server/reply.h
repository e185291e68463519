/* Replies to the requests of a session, in the dialect of its client. Loop thread only.
 *
 * When a reply does not fit, the session fails (`why` is set) and these functions do nothing.
 */
#ifndef TETHER_RENDEZVOUS_STORE_TCP_SERVER_REPLY_H
#define TETHER_RENDEZVOUS_STORE_TCP_SERVER_REPLY_H

#include "rendezvous/store/tcp/server/session.h"

/* Both copy to `at` and return the position after the copy; fill_bytes() writes the length first.
 */
char *tether__store_fill(char *at, const void *data, size_t len);
char *tether__store_fill_bytes(char *at, tether_bytes bytes);

/* Appends `size` bytes to the reply for the caller to fill, after the status TETHER_OK if the
 * dialect has one. NULL: the session fails. */
char *tether__store_reply_room(struct tether__store_session *session, size_t size);

void tether__store_reply_u8(struct tether__store_session *session, uint8_t value);
void tether__store_reply_i64(struct tether__store_session *session, int64_t value);
void tether__store_reply_bytes(struct tether__store_session *session, tether_bytes bytes);

/* Answers a request that PyTorch's dialects have no reply to. */
void tether__store_reply_done(struct tether__store_session *session, tether_status st);

/* Answers a WAIT or BARRIER whose wait is over. */
void tether__store_reply_passed(struct tether__store_session *session);

/* Reports a failed request: by a status if the dialect has one, otherwise by closing the connection
 * with `why` in the log. */
void tether__store_refuse(struct tether__store_session *session, tether_status st, const char *why);

/* Returns the reason of a failed change, for the log. Static string. */
const char *tether__store_why_not(tether_status st);

#endif
