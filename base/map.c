/* Robin Hood hashing: open addressing, linear probing, and of two keys that compete for a slot the
 * one that is further from its home slot gets it. So the keys of a cluster are in the order of
 * their home slots, a look-up can stop before the end of a cluster, and a deletion moves the rest
 * of the cluster back by one. There are no tombstones, so the table does not degrade.
 *
 * The home slot is the top bits of the hash. So a table of any size has its keys in the order of
 * their hashes, and tether__map_scan() follows that order even if the table is resized meanwhile.
 *
 * A slot keeps the whole hash, so that growing touches no object and a look-up touches only the one
 * that it finds. docs/decisions.md has the measurements that made us write this: Concurrency Kit's
 * ck_hs slows down 20 times under churn, its ck_rhs takes up to 92 bytes a key.
 */
#include "base/map.h"

#include <limits.h>
#include <pthread.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/alloc.h"

struct tether__map_slot {
    void *key; /* the key; NULL: the slot is free */
    unsigned long hash;
};

#define MIN_SLOTS 16
#define SMALL_SLOTS 1024 /* smaller tables are resized in one step, which takes microseconds */

/* The part of a resize that each put does. Clearing must be finished before the table is full (two
 * new slots for each old one, cleared during 3 % of its puts), moving long before the new table is
 * full. */
#define CLEAR_SLOTS 80
#define MOVE_SLOTS 64

/* At most four fifths of the slots are in use, so that a probe always ends at a free slot. */
static bool too_full(size_t count, size_t n_slots)
{
    return count > n_slots / 5 * 4;
}

/* Whether the next table must be allocated and cleared now: at this load three times the slots at
 * 77 % load are 62 bytes a key. */
static bool soon_too_full(size_t count, size_t n_slots)
{
    return count > n_slots * 77 / 100;
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
    tether__free(map->table.slots);
    tether__free(map->next.slots);
    tether__free(map->old.slots);
    memset(map, 0, sizeof *map);
}

/* ---- One table ---- */

static size_t home(const struct tether__map_table *table, unsigned long hash)
{
    return hash >> table->shift;
}

/* The distance of the key in slot `i` from its home slot. */
static size_t distance(const struct tether__map_table *table, size_t i)
{
    return (i - home(table, table->slots[i].hash)) & table->mask;
}

/* Finds the slot of `key`. False: `key` is not there, and the slot is where it would be inserted.
 */
static inline __attribute__((always_inline)) bool find(const struct tether__map_table *table,
                                                       const struct tether__map_type *type,
                                                       const void *key,
                                                       unsigned long hash,
                                                       size_t *ret_i)
{
    const struct tether__map_slot *slots = table->slots;
    const size_t mask = table->mask;
    size_t i = home(table, hash);
    for (size_t d = 0; slots[i].key; d++, i = (i + 1) & mask) {
        if (slots[i].hash == hash && type->equal(slots[i].key, key)) {
            *ret_i = i;
            return true;
        }
        if (((i - home(table, slots[i].hash)) & mask) < d)
            break;
    }
    *ret_i = i;
    return false;
}

/* Inserts `slot` at `i` and moves the rest of the cluster by one slot. */
static void insert(struct tether__map_table *table, size_t i, struct tether__map_slot slot)
{
    for (; slot.key; i = (i + 1) & table->mask) {
        struct tether__map_slot evicted = table->slots[i];
        table->slots[i] = slot;
        slot = evicted;
    }
}

/* Inserts a key that is in no table. */
static void insert_new(struct tether__map_table *table, struct tether__map_slot slot)
{
    size_t i = home(table, slot.hash);
    for (size_t d = 0; table->slots[i].key && distance(table, i) >= d; d++)
        i = (i + 1) & table->mask;
    insert(table, i, slot);
}

static void *take(struct tether__map_table *table, size_t i)
{
    void *stored = table->slots[i].key;
    size_t next = (i + 1) & table->mask;
    for (; table->slots[next].key && distance(table, next) > 0; next = (next + 1) & table->mask) {
        table->slots[i] = table->slots[next];
        i = next;
    }
    table->slots[i].key = NULL;
    return stored;
}

/* ---- Changing the size ---- */

/* Allocates the slots of a table, without clearing them. */
static bool table_alloc(struct tether__map_table *table, size_t n_slots)
{
    struct tether__map_slot *slots = tether__malloc(n_slots * sizeof *slots);
    if (!slots)
        return false;
    *table =
        (struct tether__map_table){slots, n_slots - 1, 64 - (unsigned)__builtin_ctzll(n_slots)};
    return true;
}

static void clear_some(struct tether__map *map, size_t n)
{
    size_t left = map->next.mask + 1 - map->done;
    n = n < left ? n : left;
    memset(map->next.slots + map->done, 0, n * sizeof *map->next.slots);
    map->done += n;
}

/* Moves whole clusters, so that the remaining ones can still be searched. */
static void move_some(struct tether__map *map, size_t n)
{
    struct tether__map_table *old = &map->old;
    for (; map->done <= old->mask; map->done++) {
        struct tether__map_slot *slot = &old->slots[(map->start + map->done) & old->mask];
        if (slot->key) {
            insert_new(&map->table, *slot);
            slot->key = NULL;
        } else if (n == 0) {
            return;
        }
        n -= n > 0;
    }
    tether__free(old->slots);
    *old = (struct tether__map_table){0};
}

static void begin_to_move(struct tether__map *map)
{
    map->old = map->table;
    map->table = map->next;
    map->next = (struct tether__map_table){0};
    map->start = map->done = 0;
    if (!map->old.slots)
        return;
    while (map->old.slots[map->start].key)
        map->start++;
}

static tether_status begin_resize(struct tether__map *map, size_t n_slots)
{
    map->done = 0;
    return table_alloc(&map->next, n_slots) ? TETHER_OK : TETHER_ENOMEM;
}

static void finish_resize(struct tether__map *map)
{
    if (map->next.slots) {
        clear_some(map, SIZE_MAX);
        begin_to_move(map);
    }
    if (map->old.slots)
        move_some(map, SIZE_MAX);
}

static tether_status resize(struct tether__map *map, size_t n_slots)
{
    tether_status st = begin_resize(map, n_slots);
    if (st == TETHER_OK)
        finish_resize(map);
    return st;
}

static void resize_some(struct tether__map *map)
{
    if (map->old.slots) {
        move_some(map, MOVE_SLOTS);
        return;
    }
    clear_some(map, CLEAR_SLOTS);
    if (map->done == map->next.mask + 1)
        begin_to_move(map);
}

/* Returns the size of a smaller table: it has room for the puts that happen while it is cleared
 * and filled. */
static size_t smaller(const struct tether__map *map)
{
    size_t n_slots = MIN_SLOTS, puts = (map->table.mask + 1) / (MOVE_SLOTS / 2);
    while (n_slots / 2 < map->count + puts)
        n_slots *= 2;
    return n_slots;
}

/* Makes room for one more key. */
static tether_status make_room(struct tether__map *map)
{
    if (!map->table.slots)
        return resize(map, MIN_SLOTS);
    size_t n_slots = map->table.mask + 1;
    bool small = n_slots <= SMALL_SLOTS;
    if (map->next.slots || map->old.slots)
        resize_some(map);
    else if (!small && soon_too_full(map->count + 1, n_slots))
        (void)begin_resize(map, n_slots * 2);
    else if (too_empty(map->count, n_slots))
        (void)(small ? resize(map, n_slots / 4 < MIN_SLOTS ? MIN_SLOTS : n_slots / 4)
                     : begin_resize(map, smaller(map))); /* if out of memory: keep the table */
    if (!too_full(map->count + 1, map->table.mask + 1))
        return TETHER_OK;
    finish_resize(map); /* `old` is usually empty by now */
    n_slots = map->table.mask + 1;
    return too_full(map->count + 1, n_slots) ? resize(map, n_slots * 2) : TETHER_OK;
}

/* ---- The map ---- */

/* Out of line, so that the code of an ordinary look-up stays small. */
static __attribute__((noinline)) bool find_old(const struct tether__map *map,
                                               const void *key,
                                               unsigned long hash,
                                               size_t *ret_i)
{
    return find(&map->old, map->type, key, hash, ret_i);
}

void *tether__map_get(const struct tether__map *map, const void *key)
{
    size_t i;
    if (!map->table.slots)
        return NULL;
    unsigned long hash = map->type->hash(key, seed);
    if (find(&map->table, map->type, key, hash, &i))
        return map->table.slots[i].key;
    if (map->old.slots && find_old(map, key, hash, &i))
        return map->old.slots[i].key;
    return NULL;
}

tether_status tether__map_put(struct tether__map *map, void *key)
{
    struct tether__map_slot slot = {key, map->type->hash(key, seed)};
    size_t i = 0, in_old;
    tether_status st = make_room(map); /* make room first, since that moves keys */
    if (map->table.slots && find(&map->table, map->type, key, slot.hash, &i))
        return TETHER_EEXIST;
    if (map->old.slots && find_old(map, key, slot.hash, &in_old))
        return TETHER_EEXIST;
    if (st != TETHER_OK)
        return st;
    insert(&map->table, i, slot);
    map->count++;
    return TETHER_OK;
}

/* Moves no keys between tables, so that an iteration can continue. */
void *tether__map_del(struct tether__map *map, const void *key)
{
    size_t i;
    if (map->count == 0)
        return NULL;
    unsigned long hash = map->type->hash(key, seed);
    struct tether__map_table *table = &map->table;
    if (!find(table, map->type, key, hash, &i)) {
        table = &map->old;
        if (!table->slots || !find_old(map, key, hash, &i))
            return NULL;
    }
    void *stored = take(table, i);
    map->count--;
    if (map->count == 0 && map->table.mask + 1 > MIN_SLOTS) {
        const struct tether__map_type *type = map->type;
        tether__map_fini(map);
        map->type = type;
    }
    return stored;
}

size_t tether__map_count(const struct tether__map *map)
{
    return map->count;
}

/* Goes backwards from a free slot. So keys that a deletion moves have been visited already: they
 * move back within their cluster, and no cluster extends across a free slot. */
static void *table_next(const struct tether__map_table *table, struct tether__map_iter *it)
{
    if (!table->slots)
        return NULL;
    if (!it->begun) {
        it->begun = true;
        it->left = table->mask;
        it->at = 0;
        while (table->slots[it->at].key)
            it->at++;
    }
    while (it->left > 0) {
        it->left--;
        it->at = (it->at - 1) & table->mask;
        if (table->slots[it->at].key)
            return table->slots[it->at].key;
    }
    return NULL;
}

void *tether__map_next(struct tether__map *map, struct tether__map_iter *it)
{
    if (!it->in_old) {
        void *key = table_next(&map->table, it);
        if (key)
            return key;
        it->in_old = true;
        it->begun = false;
    }
    return table_next(&map->old, it);
}

/* Visits the keys whose hashes are from `first` to `last`. A cluster is in the order of home slots,
 * so none of them comes after a key with a later home slot. */
static void scan_table(const struct tether__map_table *table,
                       unsigned long first,
                       unsigned long last,
                       void (*visit)(void *key, void *userdata),
                       void *userdata)
{
    if (!table->slots)
        return;
    size_t from = home(table, first), span = home(table, last) - from;
    for (size_t k = 0; k <= table->mask + span; k++) {
        size_t i = (from + k) & table->mask;
        const struct tether__map_slot *slot = &table->slots[i];
        if (k > span && (!slot->key || distance(table, i) < k - span))
            return;
        /* Clusters wrap around: a key at the start of the table whose home slot is at its end
         * belongs to the slice of that end. */
        if (slot->key && slot->hash >= first && slot->hash <= last && distance(table, i) <= k)
            visit(slot->key, userdata);
    }
}

bool tether__map_scan(const struct tether__map *map,
                      unsigned long *cursor,
                      size_t n,
                      void (*visit)(void *key, void *userdata),
                      void *userdata)
{
    if (map->count == 0)
        return false;
    unsigned long first = *cursor, last = ULONG_MAX;
    if (n <= map->table.mask) { /* a table this small is visited in one slice */
        unsigned long width = (unsigned long)n << map->table.shift;
        if (width - 1 < ULONG_MAX - first)
            last = first + (width - 1);
    }
    scan_table(&map->table, first, last, visit, userdata);
    scan_table(&map->old, first, last, visit, userdata);
    *cursor = last + 1;
    return last != ULONG_MAX;
}
