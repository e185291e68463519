/* Watches: an L0 client (PyTorch 1.13, 2.0) may ask on its second connection to be notified of
 * every change of a key. An event is u8 (updated, created, deleted), key, old value, new value.
 *
 * The hub's map has the first watch of each key; the others of that key form a ring with it.
 */
#include <string.h>

#include "base/alloc.h"
#include "rendezvous/store/tcp/server/reply.h"

enum event { EVENT_UPDATED, EVENT_CREATED, EVENT_DELETED };

struct watch {
    tether_bytes key; /* the key in the map; points to `name` */
    struct tether__store_session *session;
    struct tether__list of_session;
    struct tether__list same_key; /* a node of the ring of all watches of this key */
    char name[];
};

static struct watch *find(const struct tether__store_hub *hub, tether_bytes key)
{
    tether_bytes *found = tether__map_get(&hub->watches, &key);
    return found ? tether__container_of(found, struct watch, key) : NULL;
}

bool tether__store_watched(const struct tether__store_hub *hub, tether_bytes key)
{
    return tether__map_count(&hub->watches) > 0 && find(hub, key);
}

void tether__store_watch_start(struct tether__store_session *session, tether_bytes key)
{
    struct tether__store_hub *hub = session->hub;
    if (session->n_watches >= hub->limits.max_keys) {
        tether__store_session_fail(session, "more watches than the limit");
        return;
    }
    size_t size = sizeof(struct watch) + key.len;
    struct watch *watch = tether__store_session_hold(session, size) ? tether__malloc(size) : NULL;
    if (!watch) {
        tether__store_session_overload(session, "out of memory for another watch");
        return;
    }
    *watch = (struct watch){.key = tether_bytes_of(watch->name, key.len), .session = session};
    if (key.len)
        memcpy(watch->name, key.data, key.len);
    tether__list_init(&watch->same_key);
    struct watch *first = find(hub, key);
    if (first) {
        tether__list_push_back(&first->same_key, &watch->same_key);
    } else if (tether__map_put(&hub->watches, &watch->key) != TETHER_OK) {
        tether__store_session_overload(session, "out of memory for another watch");
        tether__free(watch);
        return;
    }
    tether__list_push_back(&session->watches, &watch->of_session);
    session->n_watches++;
}

static void forget(struct tether__store_hub *hub, struct watch *watch)
{
    if (find(hub, watch->key) == watch) {
        tether__map_del(&hub->watches, &watch->key);
        if (!tether__list_empty(&watch->same_key)) {
            struct watch *heir = tether__list_entry(watch->same_key.next, struct watch, same_key);
            /* The put cannot run out of memory, because the map has just freed a slot. */
            tether__map_put(&hub->watches, &heir->key);
        }
    }
    tether__list_remove(&watch->same_key);
    tether__list_remove(&watch->of_session);
    tether__free(watch);
}

void tether__store_watch_end(struct tether__store_session *session)
{
    TETHER__LIST_FOR_EACH(node, &session->watches)
        forget(session->hub, tether__list_entry(node, struct watch, of_session));
    session->n_watches = 0;
}

static void notify(struct watch *watch, enum event event, tether_bytes old, tether_bytes now)
{
    struct tether__store_session *session = watch->session;
    if (session->out.len >= TETHER__STORE_SESSION_HIGH_WATER) {
        tether__store_session_overload(session, "it does not read the changes that it watches");
        return;
    }
    tether_bytes parts[] = {watch->key, old, now};
    size_t size = 1;
    for (int i = 0; i < 3; i++)
        size += sizeof(uint64_t) + parts[i].len;
    char *at = tether__store_session_room(session, size);
    if (!at)
        return;
    *at++ = (char)event;
    for (int i = 0; i < 3; i++)
        at = tether__store_fill_bytes(at, parts[i]);
}

void tether__store_watch_notify(struct tether__store_hub *hub,
                                tether_bytes key,
                                const tether_bytes *old,
                                const tether_bytes *now)
{
    static const tether_bytes none = {NULL, 0};
    struct watch *first = find(hub, key);
    if (!first)
        return;
    enum event event = !now ? EVENT_DELETED : old ? EVENT_UPDATED : EVENT_CREATED;
    notify(first, event, old ? *old : none, now ? *now : none);
    TETHER__LIST_FOR_EACH(node, &first->same_key)
        notify(tether__list_entry(node, struct watch, same_key), event, old ? *old : none,
               now ? *now : none);
}
