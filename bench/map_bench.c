/* What the map costs by size: nanoseconds for look-ups that hit and miss and for churn (one key
 * goes, a new one comes, at a constant number of keys), and bytes a key beside the object, at rest
 * and at the worst moment of growth.
 *
 * Churn runs ten times the size of the map, so that a map which wears out with use shows it; the
 * columns "after" are the look-ups again when all of that is over.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/alloc.h"
#include "base/map.h"

struct object {
    uint64_t key;
    char payload[56]; /* a cache line in all, as small real objects are */
};

static size_t in_use, peak;

static void *counted_malloc(void *userdata, size_t size)
{
    (void)userdata;
    size_t *block = malloc(sizeof(size_t) * 2 + size);
    if (!block)
        return NULL;
    *block = size;
    in_use += size;
    if (in_use > peak)
        peak = in_use;
    return block + 2;
}

static void counted_free(void *userdata, void *ptr)
{
    (void)userdata;
    size_t *block = (size_t *)ptr - 2;
    in_use -= *block;
    free(block);
}

static void *no_realloc(void *userdata, void *ptr, size_t size)
{
    (void)userdata, (void)ptr, (void)size;
    abort(); /* the map does not use it */
}

static double now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

static uint64_t random_state = 88172645463325252u;

static uint64_t next_random(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* Like assert(), in every build. */
static void must(bool condition)
{
    if (!condition)
        abort();
}

/* Keys 0, 2, 4 ... are there in the beginning; odd ones never are. */
static double time_gets(struct tether__map *map, struct object *objects, size_t n, bool hit)
{
    size_t rounds = 2000000, found = 0;
    double start = now_ns();
    for (size_t i = 0; i < rounds; i++) {
        uint64_t key = objects[next_random() % n].key | !hit;
        found += tether__map_get(map, &key) != NULL;
    }
    must(found == (hit ? rounds : 0));
    return (now_ns() - start) / (double)rounds;
}

static double time_churn(struct tether__map *map, struct object *objects, size_t n)
{
    size_t rounds = n * 10 < 2000000 ? 2000000 : n * 10;
    uint64_t next_key = n * 2;
    double start = now_ns();
    for (size_t i = 0; i < rounds; i++) {
        struct object *object = &objects[next_random() % n];
        must(tether__map_del(map, &object->key) != NULL);
        object->key = next_key;
        next_key += 2;
        must(tether__map_put(map, &object->key) == TETHER_OK);
    }
    return (now_ns() - start) / (double)rounds;
}

static void measure(size_t n)
{
    struct object *objects = calloc(n, sizeof *objects);
    struct tether__map map;
    must(objects != NULL);
    in_use = peak = 0;
    must(tether__map_init(&map, &tether__map_u64) == TETHER_OK);

    double start = now_ns();
    for (size_t i = 0; i < n; i++) {
        objects[i].key = i * 2;
        must(tether__map_put(&map, &objects[i].key) == TETHER_OK);
    }
    double put = (now_ns() - start) / (double)n;
    double hit = time_gets(&map, objects, n, true);
    double miss = time_gets(&map, objects, n, false);
    double at_rest = (double)in_use / (double)n, at_worst = (double)peak / (double)n;
    double churn = time_churn(&map, objects, n);
    double hit_after = time_gets(&map, objects, n, true);
    double miss_after = time_gets(&map, objects, n, false);
    printf("%9zu %6.0f %6.0f %6.0f %6.0f %6.0f %6.0f %10.1f %8.1f\n", n, put, hit, miss, churn,
           hit_after, miss_after, at_rest, at_worst);
    tether__map_fini(&map);
    free(objects);
}

int main(void)
{
    static const struct tether_allocator counted = {counted_malloc, no_realloc, counted_free, NULL};
    tether_set_allocator(&counted);
    puts("                             ns                        bytes a key");
    puts("     keys    put    hit   miss  churn  hit after miss    at rest  growing");
    for (size_t n = 1000; n <= 1000000; n *= 10)
        measure(n);
    measure(1100000); /* just past a doubling */
    return 0;
}
