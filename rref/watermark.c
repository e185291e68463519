/* Watermarks: how far the creations of another worker have arrived. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "rref/context.h"

static uint64_t watermark_key(tether_rref_id id)
{
    /* the incarnation alone identifies the start: no two starts of a run have the same */
    return id.incarnation;
}

static bool is_made_first(const struct tether__heap_node *a, const struct tether__heap_node *b)
{
    return tether__container_of(a, const struct tether__awaited, by_counter)->id.counter <
           tether__container_of(b, const struct tether__awaited, by_counter)->id.counter;
}

struct tether__watermark *tether__watermark_locked(struct tether__refs *refs, tether_rref_id id)
{
    uint64_t key = watermark_key(id);
    uint64_t *found = tether__map_get(&refs->watermarks, &key);
    if (found)
        return tether__container_of(found, struct tether__watermark, key);
    struct tether__watermark *mark = tether__calloc(1, sizeof *mark);
    if (!mark)
        return NULL;
    mark->key = key;
    tether__list_init(&mark->retired);
    tether__heap_init(&mark->awaited, is_made_first);
    tether__list_init(&mark->passed);
    if (tether__map_put(&refs->watermarks, &mark->key) == TETHER_OK)
        return mark;
    tether__free(mark);
    return NULL;
}

void tether__watermark_forget_locked(struct tether__refs *refs, struct tether__watermark *mark)
{
    if (mark->counter > 0 || mark->of || tether__heap_top(&mark->awaited))
        return;
    tether__list_remove(&mark->passed);
    tether__map_del(&refs->watermarks, &mark->key);
    tether__free(mark);
}

static void unretire_locked(struct tether__refs *refs, struct tether__watermark *mark)
{
    if (!tether__list_empty(&mark->retired))
        refs->n_retired--;
    tether__list_remove(&mark->retired);
}

/* Drops the oldest ended watermark. Requests for objects of that start then wait until their
 * deadlines. */
static void drop_oldest_locked(struct tether__refs *refs)
{
    struct tether__watermark *mark =
        tether__list_entry(refs->retired.next, struct tether__watermark, retired);
    unretire_locked(refs, mark);
    mark->counter = 0;
    tether__watermark_forget_locked(refs, mark);
}

void tether__watermark_retire_locked(struct tether__refs *refs, struct tether__watermark *mark)
{
    mark->of->mark = NULL;
    mark->of = NULL;
    tether__list_push_back(&refs->retired, &mark->retired);
    if (++refs->n_retired > TETHER__MAX_RETIRED_MARKS)
        drop_oldest_locked(refs);
}

/* Makes this watermark the one of the creator's present start. A start number belongs to one
 * worker, so claims of other workers about it are ignored from here on. */
static void take_locked(struct tether__refs *refs,
                        struct tether__watermark *mark,
                        struct tether__ref_peer *creator)
{
    const char *name = tether__peer_name(creator->peer);
    if (strcmp(mark->by, name) != 0) {
        mark->counter = 0;
        snprintf(mark->by, sizeof mark->by, "%s", name);
    }
    if (mark->of == creator)
        return;
    if (mark->of)
        mark->of->mark = NULL;
    unretire_locked(refs, mark);
    mark->of = creator;
    if (creator->mark)
        tether__watermark_retire_locked(refs, creator->mark);
    creator->mark = mark;
}

tether_status tether__watermark_raise_locked(struct tether__refs *refs,
                                             struct tether__peer *creator,
                                             tether_rref_id id)
{
    struct tether__ref_peer *ref_peer = tether__ref_peer_locked(creator);
    struct tether__watermark *mark = ref_peer ? tether__watermark_locked(refs, id) : NULL;
    if (!mark)
        return TETHER_ENOMEM;
    take_locked(refs, mark, ref_peer);
    if (id.counter <= mark->counter)
        return TETHER_OK;
    mark->counter = id.counter;
    if (tether__heap_top(&mark->awaited) && tether__list_empty(&mark->passed))
        tether__list_push_back(&refs->passed, &mark->passed);
    return TETHER_OK;
}

bool tether__may_come_locked(struct tether__refs *refs, tether_rref_id id)
{
    /* our own creations are in the table, or gone: none is still to come */
    if (id.incarnation == refs->self->incarnation)
        return false;
    uint64_t key = watermark_key(id);
    uint64_t *found = tether__map_get(&refs->watermarks, &key);
    return !found ||
           tether__container_of(found, struct tether__watermark, key)->counter < id.counter;
}
