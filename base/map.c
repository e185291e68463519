/* The map: ck_hs in object mode (one writer, pointers only), our allocator, XXH3 for bytes. */
#include "base/map.h"

#include <pthread.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/alloc.h"

#define MIN_CAPACITY 16

static void *ck_malloc_cb(size_t size)
{
    return tether__malloc(size);
}

static void ck_free_cb(void *ptr, size_t size, bool defer)
{
    (void)size, (void)defer;
    tether__free(ptr);
}

static struct ck_malloc ck_allocator = {.malloc = ck_malloc_cb, .free = ck_free_cb};

static pthread_once_t seed_once = PTHREAD_ONCE_INIT;
static unsigned long seed;

static void draw_seed(void)
{
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != (ssize_t)sizeof seed)
        seed = (unsigned long)time(NULL) ^ (unsigned long)(uintptr_t)&seed;
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
    if (!ck_hs_init(&map->set, CK_HS_MODE_SPMC | CK_HS_MODE_OBJECT | CK_HS_MODE_DELETE, type->hash,
                    type->equal, &ck_allocator, MIN_CAPACITY, seed)) {
        memset(map, 0, sizeof *map);
        return TETHER_ENOMEM;
    }
    map->type = type;
    return TETHER_OK;
}

void tether__map_fini(struct tether__map *map)
{
    if (map->type)
        ck_hs_destroy(&map->set);
    memset(map, 0, sizeof *map);
}

/* ck_hs never writes in a look-up, but its signatures are not const. */
static struct ck_hs *set_of(const struct tether__map *map)
{
    return (struct ck_hs *)&map->set;
}

void *tether__map_get(const struct tether__map *map, const void *key)
{
    return ck_hs_get(set_of(map), ck_hs_hash(&map->set, key), key);
}

tether_status tether__map_put(struct tether__map *map, void *key)
{
    unsigned long hash = ck_hs_hash(&map->set, key);
    if (ck_hs_put(&map->set, hash, key))
        return TETHER_OK;
    return ck_hs_get(&map->set, hash, key) ? TETHER_EEXIST : TETHER_ENOMEM;
}

void *tether__map_del(struct tether__map *map, const void *key)
{
    return ck_hs_remove(&map->set, ck_hs_hash(&map->set, key), key);
}

size_t tether__map_count(const struct tether__map *map)
{
    return ck_hs_count(set_of(map));
}

void *tether__map_next(struct tether__map *map, struct tether__map_iter *it)
{
    void *key;
    return ck_hs_next(&map->set, &it->ck, &key) ? key : NULL;
}
