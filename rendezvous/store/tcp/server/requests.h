/* Functions that requests.c (requests answered at once) and waits.c (requests that may wait) share.
 */
#ifndef TETHER_RENDEZVOUS_STORE_TCP_SERVER_REQUESTS_H
#define TETHER_RENDEZVOUS_STORE_TCP_SERVER_REQUESTS_H

#include "rendezvous/store/tcp/server/session.h"

/* Returns an array of `n` byte views, valid until the next request. NULL: out of memory. */
tether_bytes *tether__store_views_room(struct tether__store_hub *hub, size_t n);

/* Whether the `n` keys encoded in `items` have values or elements. */
bool tether__store_all_present(struct tether__store_hub *hub, size_t n, tether_bytes items);

/* Handlers of requests that may wait, in waits.c. */
typedef void tether__store_handler(struct tether__store_session *session,
                                   const struct tether__store_wire_request *req);
tether__store_handler tether__store_on_wait, tether__store_on_get, tether__store_on_multi_get,
    tether__store_on_queue_pop, tether__store_on_barrier, tether__store_on_cancel_wait;

#endif
