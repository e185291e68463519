/* Robin Hood hashing: open addressing, linear probing, and of two keys that want a slot the one
 * that is further from its home gets it. So the keys of a cluster stand in the order of their
 * homes, a look-up knows when it has gone too far, and a deletion moves the rest of the cluster
 * back by one: no tombstones, nothing that wears out.
 *
 * A slot keeps the whole hash, so that growing touches no object and a look-up touches only the one
 * that it finds. docs/decisions.md has the measurements that made us write this: Concurrency Kit's
 * ck_hs slows down 20 times under churn, its ck_rhs takes up to 92 bytes a key.
 */
#include "base/map.h"

#include <pthread.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/alloc.h"

struct tether__map_slot {
    void *key; /* NULL: free */
    unsigned long hash;
};

#define MIN_SLOTS 16

/* At most four fifths of the slots are taken, so there is always a free one to stop at. */
static bool too_full(size_t count, size_t n_slots)
{
    return count > n_slots / 5 * 4;
}

static bool too_empty(size_t count, size_t n_slots)
{
    return n_slots > MIN_SLOTS && count < n_slots / 8;
}

static pthread_once_t seed_once = PTHREAD_ONCE_INIT;
static unsigned long seed;

static void draw_seed(void)
{
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != (ssize_t)sizeof seed)
        seed = (unsigned long)time(NULL) ^ (unsigned long)(uintptr_t)&seed;
}

void tether__map_set_seed(unsigned long fixed)
{
    pthread_once(&seed_once, draw_seed);
    seed = fixed;
}

unsigned long tether__hash(const void *data, size_t len, unsigned long hash_seed)
{
    return XXH3_64bits_withSeed(data, len, hash_seed);
}

static unsigned long hash_u64(const void *key, unsigned long hash_seed)
{
    return tether__hash(key, sizeof(uint64_t), hash_seed);
}

static bool equal_u64(const void *a, const void *b)
{
    return *(const uint64_t *)a == *(const uint64_t *)b;
}

static unsigned long hash_bytes(const void *key, unsigned long hash_seed)
{
    const tether_bytes *bytes = key;
    return tether__hash(bytes->data, bytes->len, hash_seed);
}

static bool equal_bytes(const void *a, const void *b)
{
    return tether_bytes_equal(*(const tether_bytes *)a, *(const tether_bytes *)b);
}

const struct tether__map_type tether__map_u64 = {hash_u64, equal_u64};
const struct tether__map_type tether__map_bytes = {hash_bytes, equal_bytes};

tether_status tether__map_init(struct tether__map *map, const struct tether__map_type *type)
{
    pthread_once(&seed_once, draw_seed);
    memset(map, 0, sizeof *map);
    map->type = type;
    return TETHER_OK;
}

void tether__map_fini(struct tether__map *map)
{
    tether__free(map->slots);
    memset(map, 0, sizeof *map);
}

/* How far the key in slot `i` is from its home. */
static size_t distance(const struct tether__map *map, size_t i)
{
    return (i - map->slots[i].hash) & map->mask;
}

/* Where `key` is, or else where it belongs. */
static bool find(const struct tether__map *map, const void *key, unsigned long hash, size_t *ret_i)
{
    size_t i = hash & map->mask;
    bool found = false;
    for (size_t d = 0; map->slots[i].key && distance(map, i) >= d; d++, i = (i + 1) & map->mask) {
        const struct tether__map_slot *slot = &map->slots[i];
        if (slot->hash == hash && map->type->equal(slot->key, key)) {
            found = true;
            break;
        }
    }
    *ret_i = i;
    return found;
}

/* Puts `slot` at `i`, where it belongs, and what is there one further, to the end of the cluster.
 */
static void insert(struct tether__map *map, size_t i, struct tether__map_slot slot)
{
    for (; slot.key; i = (i + 1) & map->mask) {
        struct tether__map_slot evicted = map->slots[i];
        map->slots[i] = slot;
        slot = evicted;
    }
}

static tether_status resize(struct tether__map *map, size_t n_slots)
{
    struct tether__map old = *map;
    struct tether__map_slot *slots = tether__calloc(n_slots, sizeof *slots);
    if (!slots)
        return TETHER_ENOMEM;
    map->slots = slots;
    map->mask = n_slots - 1;
    for (size_t left = old.count, from = 0; left > 0; from++) {
        const struct tether__map_slot *slot = &old.slots[from];
        if (!slot->key)
            continue;
        size_t i = slot->hash & map->mask;
        for (size_t d = 0; map->slots[i].key && distance(map, i) >= d; d++)
            i = (i + 1) & map->mask;
        insert(map, i, *slot);
        left--;
    }
    tether__free(old.slots);
    return TETHER_OK;
}

/* Makes the table fit one key more. */
static tether_status make_room(struct tether__map *map)
{
    if (!map->slots)
        return resize(map, MIN_SLOTS);
    size_t n_slots = map->mask + 1;
    if (too_full(map->count + 1, n_slots))
        return resize(map, n_slots * 2);
    if (too_empty(map->count, n_slots))
        (void)resize(map, n_slots / 4 < MIN_SLOTS ? MIN_SLOTS : n_slots / 4); /* a courtesy */
    return TETHER_OK;
}

void *tether__map_get(const struct tether__map *map, const void *key)
{
    size_t i;
    if (!map->slots || !find(map, key, map->type->hash(key, seed), &i))
        return NULL;
    return map->slots[i].key;
}

tether_status tether__map_put(struct tether__map *map, void *key)
{
    struct tether__map_slot slot = {key, map->type->hash(key, seed)};
    size_t i = 0;
    tether_status st = make_room(map); /* first, since it moves everything */
    if (map->slots && find(map, key, slot.hash, &i))
        return TETHER_EEXIST;
    if (st != TETHER_OK)
        return st;
    insert(map, i, slot);
    map->count++;
    return TETHER_OK;
}

void *tether__map_del(struct tether__map *map, const void *key)
{
    size_t i;
    if (!map->slots || !find(map, key, map->type->hash(key, seed), &i))
        return NULL;
    void *stored = map->slots[i].key;
    map->count--;
    if (map->count == 0 && map->mask + 1 > MIN_SLOTS) {
        map->slots = tether__free(map->slots);
        return stored;
    }
    size_t next = (i + 1) & map->mask;
    for (; map->slots[next].key && distance(map, next) > 0; next = (next + 1) & map->mask) {
        map->slots[i] = map->slots[next];
        i = next;
    }
    map->slots[i].key = NULL;
    return stored;
}

size_t tether__map_count(const struct tether__map *map)
{
    return map->count;
}

/* Goes backwards from a free slot: what a deletion moves has then been visited already, since it
 * moves back only within its cluster, and no cluster reaches across a free slot. */
void *tether__map_next(struct tether__map *map, struct tether__map_iter *it)
{
    if (!map->slots)
        return NULL;
    if (!it->begun) {
        it->begun = true;
        it->left = map->mask;
        while (map->slots[it->at].key)
            it->at++;
    }
    while (it->left > 0) {
        it->left--;
        it->at = (it->at - 1) & map->mask;
        if (map->slots[it->at].key)
            return map->slots[it->at].key;
    }
    return NULL;
}
