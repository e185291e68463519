/* Hash map of objects that carry their own key.
 *
 * The map stores a pointer to the key, which is a field of your object and must not change while it
 * is in the map; tether__container_of() gives the object. So an entry needs no allocation of its
 * own, and the map owns only its table: 20 to 40 bytes an entry, at most 64 while it grows. The
 * table shrinks when keys are deleted.
 *
 * It uses Robin Hood hashing (map.c says why not a library). The speed of look-up, put and del does
 * not depend on how many keys were added and deleted before. A large table grows and shrinks step
 * by step, so the longest put is short at every size. Not thread-safe: the owner of the map guards
 * it.
 */
#ifndef TETHER_BASE_MAP_H
#define TETHER_BASE_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/status.h"

/* Hash and comparison of one kind of key. `seed` is random per process, so that a hostile peer
 * cannot choose colliding keys. */
struct tether__map_type {
    unsigned long (*hash)(const void *key, unsigned long seed);
    bool (*equal)(const void *a, const void *b);
};

struct tether__map_table {
    struct tether__map_slot *slots; /* array of slots, a power of two of them; NULL: no table */
    size_t mask;                    /* number of slots, less one */
    /* the index of a key's home slot is its hash, shifted right by this */
    unsigned shift;
};

struct tether__map {
    const struct tether__map_type *type;
    struct tether__map_table table;
    size_t count;
    /* While the size changes: first each put clears some slots of `next`. Then `table` becomes
     * `old` and `next` becomes `table`, and each put moves some keys from `old` to `table`. */
    struct tether__map_table next, old;
    size_t start; /* the free slot of `old` at which moving began */
    /* how many slots of `next` are cleared, or of `old` (from `start` on) are empty */
    size_t done;
};

/* Ready-made kinds: the key is a uint64_t, or a tether_bytes (whose bytes the object owns). */
extern const struct tether__map_type tether__map_u64;
extern const struct tether__map_type tether__map_bytes;

/* For keys of your own: a good 64-bit hash of `len` bytes. */
unsigned long tether__hash(const void *data, size_t len, unsigned long seed);

/* Sets the seed of all maps, for tests that must be reproducible. No map may be in use. */
void tether__map_set_seed(unsigned long seed);

/* Allocates nothing yet; always TETHER_OK. */
tether_status tether__map_init(struct tether__map *map, const struct tether__map_type *type);
/* frees the table but not your objects; accepts zeroed memory */
void tether__map_fini(struct tether__map *map);

/* Returns the stored key that equals `key`, or NULL. */
void *tether__map_get(const struct tether__map *map, const void *key);

/* Adds `key`. TETHER_EEXIST when there is an equal one, TETHER_ENOMEM; then nothing changed. */
tether_status tether__map_put(struct tether__map *map, void *key);

/* Removes and returns the stored key that equals `key`; NULL when there is none. */
void *tether__map_del(struct tether__map *map, const void *key);

size_t tether__map_count(const struct tether__map *map);

/* Iterates over all keys, in no order; NULL at the end. Meanwhile you may delete the key that was
 * last returned, but not add keys.
 *
 *     struct tether__map_iter it = TETHER__MAP_ITER;
 *     for (uint64_t *key; (key = tether__map_next(&map, &it));)
 */
struct tether__map_iter {
    bool begun, in_old;
    size_t at, left;
};
#define TETHER__MAP_ITER   \
    {                      \
        false, false, 0, 0 \
    }
void *tether__map_next(struct tether__map *map, struct tether__map_iter *it);

/* Visits all keys in slices of about `n`. Between slices the map may change in any way (and its
 * lock be released): a key that is in the map from the first slice to the last is visited once,
 * other keys at most once. `*cursor` is 0 at first. False: that was the last slice. visit() must
 * not change the map. */
bool tether__map_scan(const struct tether__map *map,
                      unsigned long *cursor,
                      size_t n,
                      void (*visit)(void *key, void *userdata),
                      void *userdata);

#endif
