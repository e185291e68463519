/* Watches. On the wire each span is a watcher, all on one stream; the watcher's id is 1 + the index
 * of the span. See watch.h. */
#include "rendezvous/store/etcd/client/watch.h"

#include "base/alloc.h"

struct watcher {
    struct tether__etcd_span span;
    int64_t next_revision;
};

struct tether__etcd_watch {
    struct tether__etcd_channel *channel;
    struct tether__etcd_stream *stream; /* the stream of this watch; NULL: not open */
    struct tether__etcd_try try;
    bool puts_only;
    size_t n;
    struct watcher watchers[];
};

tether_status tether__etcd_watch_new(struct tether__etcd *etcd,
                                     const struct tether__etcd_span *spans,
                                     size_t n,
                                     bool puts_only,
                                     int64_t revision,
                                     int64_t deadline,
                                     struct tether__etcd_watch **ret_watch,
                                     tether_error *reterr)
{
    struct tether__etcd_watch *watch =
        tether__calloc(1, sizeof *watch + n * sizeof(struct watcher));
    if (!watch)
        return tether_error_set(reterr, TETHER_ENOMEM, "out of memory to watch %zu keys", n);
    watch->channel = tether__etcd_channel(etcd);
    watch->try = (struct tether__etcd_try)TETHER__ETCD_TRY(deadline);
    watch->puts_only = puts_only;
    watch->n = n;
    for (size_t i = 0; i < n; i++)
        watch->watchers[i] = (struct watcher){spans[i], revision + 1};
    *ret_watch = watch;
    return TETHER_OK;
}

struct tether__etcd_watch *tether__etcd_watch_free(struct tether__etcd_watch *watch)
{
    if (!watch)
        return NULL;
    tether__etcd_stream_free(watch->stream);
    tether__free(watch);
    return NULL;
}

static bool open_stream(struct tether__etcd_watch *watch)
{
    watch->stream =
        tether__etcd_stream_open(watch->channel, &tether__etcd_watch_stream, &watch->try);
    if (!watch->stream)
        return false;
    Etcdserverpb__WatchCreateRequest__FilterType filter =
        ETCDSERVERPB__WATCH_CREATE_REQUEST__FILTER_TYPE__NODELETE;
    for (size_t i = 0; i < watch->n; i++) {
        const struct watcher *watcher = &watch->watchers[i];
        Etcdserverpb__WatchCreateRequest create = ETCDSERVERPB__WATCH_CREATE_REQUEST__INIT;
        create.key.data = (uint8_t *)watcher->span.key.data;
        create.key.len = watcher->span.key.len;
        create.range_end.data = (uint8_t *)watcher->span.end.data;
        create.range_end.len = watcher->span.end.len;
        create.start_revision = watcher->next_revision;
        create.filters = &filter;
        create.n_filters = watch->puts_only ? 1 : 0;
        create.watch_id = (int64_t)i + 1;
        create.fragment = true;
        Etcdserverpb__WatchRequest request = ETCDSERVERPB__WATCH_REQUEST__INIT;
        request.request_union_case = ETCDSERVERPB__WATCH_REQUEST__REQUEST_UNION_CREATE_REQUEST;
        request.create_request = &create;
        if (!tether__etcd_stream_send(watch->stream, &request.base, &watch->try))
            return false;
    }
    return true;
}

/* Advances the watcher, so that a new stream starts after these events. */
static void note_progress(struct tether__etcd_watch *watch,
                          const Etcdserverpb__WatchResponse *response)
{
    if (response->watch_id < 1 || (uint64_t)response->watch_id > watch->n)
        return;
    const Mvccpb__Event *last = response->events[response->n_events - 1];
    if (last->kv) /* the reply is a fragment: more events of its last revision follow */
        watch->watchers[response->watch_id - 1].next_revision =
            last->kv->mod_revision + (response->fragment ? 0 : 1);
}

tether_status tether__etcd_watch_next(struct tether__etcd_watch *watch,
                                      Etcdserverpb__WatchResponse **ret_events,
                                      tether_error *reterr)
{
    for (;;) {
        ProtobufCMessage *message = NULL;
        bool alive = (watch->stream || open_stream(watch)) &&
                     tether__etcd_stream_recv(watch->stream, &watch->try, &message);
        Etcdserverpb__WatchResponse *response = (Etcdserverpb__WatchResponse *)message;
        bool compacted = alive && response->canceled && response->compact_revision;
        if (alive && response->canceled) {
            tether__etcd_try_fail_saying(&watch->try, response->cancel_reason);
            alive = false;
        }
        if (!alive) {
            tether__pb_free(message);
            watch->stream = tether__etcd_stream_free(watch->stream);
            if (compacted)
                return tether_error_set(reterr, TETHER_EGONE,
                                        "etcd has compacted the history that was to be watched");
            if (!tether__etcd_try_again(watch->channel, &watch->try))
                return tether__etcd_try_error(watch->channel, &watch->try, reterr);
            continue;
        }
        watch->try.failures = watch->try.refused_tokens = 0;
        if (response->n_events) {
            note_progress(watch, response);
            *ret_events = response;
            return TETHER_OK;
        }
        tether__pb_free(message);
    }
}

tether_status tether__etcd_watch_once(struct tether__etcd *etcd,
                                      struct tether__etcd_span span,
                                      bool puts_only,
                                      int64_t revision,
                                      int64_t deadline,
                                      Etcdserverpb__WatchResponse **ret_events,
                                      tether_error *reterr)
{
    struct tether__etcd_watch *watch = NULL;
    tether_status st =
        tether__etcd_watch_new(etcd, &span, 1, puts_only, revision, deadline, &watch, reterr);
    if (st == TETHER_OK)
        st = tether__etcd_watch_next(watch, ret_events, reterr);
    tether__etcd_watch_free(watch);
    return st;
}
