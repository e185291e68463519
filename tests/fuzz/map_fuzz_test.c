/* The map against a plain table: any order of put, del, get and walk gives the same answers.
 *
 * Each pair of bytes is a step: what to do, and with which of 256 keys.
 */
#include "base/map.h"
#include "tests/fuzz/fuzz.h"

#define N_KEYS 256

/* Walks the map while taking out every key that has the bit `doomed` set. */
static void walk(struct tether__map *map, bool *present, uint64_t doomed)
{
    size_t before = tether__map_count(map), seen = 0;
    struct tether__map_iter it = TETHER__MAP_ITER;
    for (uint64_t *key; (key = tether__map_next(map, &it)); seen++) {
        fuzz_check(present[*key]);
        if ((*key & doomed) == 0)
            continue;
        fuzz_check(tether__map_del(map, key) == key);
        present[*key] = false;
    }
    fuzz_check(seen == before);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint64_t keys[N_KEYS];
    bool present[N_KEYS] = {false};
    size_t count = 0;
    struct tether__map map;
    if (tether__map_init(&map, &tether__map_u64) != TETHER_OK)
        return 0;
    for (size_t i = 0; i + 1 < size; i += 2) {
        uint8_t k = data[i + 1];
        uint64_t wanted = keys[k] = k;
        switch (data[i] % 4) {
            case 0:
                fuzz_check(tether__map_put(&map, &keys[k]) ==
                           (present[k] ? TETHER_EEXIST : TETHER_OK));
                present[k] = true;
                break;
            case 1:
                fuzz_check(tether__map_del(&map, &wanted) == (present[k] ? &keys[k] : NULL));
                present[k] = false;
                break;
            case 2:
                fuzz_check(tether__map_get(&map, &wanted) == (present[k] ? &keys[k] : NULL));
                break;
            case 3:
                walk(&map, present, k);
                break;
        }
    }
    for (size_t k = 0; k < N_KEYS; k++)
        count += present[k];
    fuzz_check(tether__map_count(&map) == count);
    tether__map_fini(&map);
    return 0;
}
