/* A watch: hears of every change to some keys from a revision on, without asking again and again.
 *
 * Happy path: read the keys, note the revision, watch from there: whatever happens in between is
 * in etcd's history and comes first. next() blocks until there are events.
 *
 * Failure modes: a stream that breaks is opened again, at the next endpoint if need be, from the
 * revision after the last that was seen, so no event is lost (one may come twice). If etcd has
 * dropped that part of its history, next() gives TETHER_EGONE: read the keys again and watch anew.
 *
 * A watch belongs to one thread, which does all the work. Not public.
 */
#ifndef TETHER_RENDEZVOUS_ETCD_WATCH_H
#define TETHER_RENDEZVOUS_ETCD_WATCH_H

#include "rendezvous/etcd_client.h"

struct tether__etcd_span {
    tether_bytes key, end; /* [key, end); no end: the key alone */
};

struct tether__etcd_watch;

/* Watches `n` spans for everything after `revision`, until `deadline`. Borrows the bytes of the
 * spans (not the array) for as long as the watch lives. With `puts_only`, deletions are not
 * reported. Costs memory only: errors of the wire come from next(). */
tether_status tether__etcd_watch_new(struct tether__etcd *etcd,
                                     const struct tether__etcd_span *spans,
                                     size_t n,
                                     bool puts_only,
                                     int64_t revision,
                                     int64_t deadline,
                                     struct tether__etcd_watch **ret_watch,
                                     tether_error *reterr);

/* Accepts and returns NULL. */
struct tether__etcd_watch *tether__etcd_watch_free(struct tether__etcd_watch *watch);

/* The next events, one at least; to go back with tether__etcd_reply_free(). TETHER_ETIMEOUT at the
 * deadline, TETHER_EGONE as told above, otherwise as tether__etcd_call(). */
tether_status tether__etcd_watch_next(struct tether__etcd_watch *watch,
                                      Etcdserverpb__WatchResponse **ret_events,
                                      tether_error *reterr);

#endif
