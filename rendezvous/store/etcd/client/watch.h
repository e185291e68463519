/* A watch: reports every change of some keys after a revision, without polling.
 *
 * Happy path: read the keys, remember the revision, watch from there: changes in between are in
 * etcd's history and come first. next() blocks until there are events.
 *
 * Failure modes: the watch reopens a broken stream, at the next endpoint if necessary, from the
 * revision after the last event, so no event is lost (one may come twice). If etcd has compacted
 * that part of its history, next() returns TETHER_EGONE: read the keys again and start a new watch.
 *
 * A watch belongs to one thread, which does all the work. Not public.
 */
#ifndef TETHER_RENDEZVOUS_STORE_ETCD_CLIENT_WATCH_H
#define TETHER_RENDEZVOUS_STORE_ETCD_CLIENT_WATCH_H

#include "rendezvous/store/etcd/client/client.h"

struct tether__etcd_span {
    tether_bytes key, end; /* the range [key, end); empty `end`: only `key` */
};

struct tether__etcd_watch;

/* Watches `n` spans for everything after `revision`, until `deadline`. Borrows the bytes of the
 * spans (not the array) for as long as the watch lives. With `puts_only`, deletions are not
 * reported. Does no I/O: next() reports connection errors. */
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

/* Gives the next events, at least one; the caller frees them with tether__pb_free().
 * TETHER_ETIMEOUT at the deadline, TETHER_EGONE as described above, otherwise as
 * tether__etcd_call(). */
tether_status tether__etcd_watch_next(struct tether__etcd_watch *watch,
                                      Etcdserverpb__WatchResponse **ret_events,
                                      tether_error *reterr);

/* Watches one span until the first events come, and gives these. */
tether_status tether__etcd_watch_once(struct tether__etcd *etcd,
                                      struct tether__etcd_span span,
                                      bool puts_only,
                                      int64_t revision,
                                      int64_t deadline,
                                      Etcdserverpb__WatchResponse **ret_events,
                                      tether_error *reterr);

#endif
