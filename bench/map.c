/* Measures the cost of the map by its size: nanoseconds of look-ups that hit and miss and of churn
 * (one key is deleted and one added, at a constant number of keys), and bytes per key beside the
 * object, at rest and at the worst moment of growth.
 *
 * Churn replaces ten times the size of the map, which would show a map that degrades with use. The
 * columns "after" are the look-ups after the churn.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/map.h"
#include "bench/lib/measure.h"
#include "bench/lib/options.h"
#include "bench/lib/results.h"

struct object {
    uint64_t key;
    char payload[56]; /* makes the object a cache line long, like small real objects */
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
    abort(); /* the map does not use realloc() */
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

/* Keys 0, 2, 4 ... are in the map at the beginning; odd keys never are. */
static double time_gets(struct tether__map *map, struct object *objects, size_t n, bool hit)
{
    size_t rounds = 2000000, found = 0;
    double start = bench_now_s();
    for (size_t i = 0; i < rounds; i++) {
        uint64_t key = objects[next_random() % n].key | !hit;
        found += tether__map_get(map, &key) != NULL;
    }
    must(found == (hit ? rounds : 0));
    return (bench_now_s() - start) * 1e9 / (double)rounds;
}

static double time_churn(struct tether__map *map, struct object *objects, size_t n)
{
    size_t rounds = n * 10 < 2000000 ? 2000000 : n * 10;
    uint64_t next_key = n * 2;
    double start = bench_now_s();
    for (size_t i = 0; i < rounds; i++) {
        struct object *object = &objects[next_random() % n];
        must(tether__map_del(map, &object->key) != NULL);
        object->key = next_key;
        next_key += 2;
        must(tether__map_put(map, &object->key) == TETHER_OK);
    }
    return (bench_now_s() - start) * 1e9 / (double)rounds;
}

static void measure(size_t n)
{
    struct object *objects = calloc(n, sizeof *objects);
    struct tether__map map;
    must(objects != NULL);
    in_use = peak = 0;
    must(tether__map_init(&map, &tether__map_u64) == TETHER_OK);

    double start = bench_now_s();
    for (size_t i = 0; i < n; i++) {
        objects[i].key = i * 2;
        must(tether__map_put(&map, &objects[i].key) == TETHER_OK);
    }
    double put = (bench_now_s() - start) * 1e9 / (double)n;
    double hit = time_gets(&map, objects, n, true);
    double miss = time_gets(&map, objects, n, false);
    double at_rest = (double)in_use / (double)n, at_worst = (double)peak / (double)n;
    double churn = time_churn(&map, objects, n);
    double hit_after = time_gets(&map, objects, n, true);
    double miss_after = time_gets(&map, objects, n, false);
    const struct {
        const char *figure, *unit;
        double value;
    } figures[] = {
        {"put", "ns", put},
        {"look-up that hits", "ns", hit},
        {"look-up that misses", "ns", miss},
        {"churn: one goes, one comes", "ns", churn},
        {"look-up that hits, after churn", "ns", hit_after},
        {"look-up that misses, after churn", "ns", miss_after},
        {"memory of a key, at rest", "B", at_rest},
        {"memory of a key, growing", "B", at_worst},
    };
    char who[32];
    snprintf(who, sizeof who, n < 1000000 ? "%zu,000 keys" : "%zu.%zu million keys",
             n < 1000000 ? n / 1000 : n / 1000000, n / 100000 % 10);
    for (size_t i = 0; i < TETHER__ARRAY_LEN(figures); i++)
        bench_result(&(struct bench_result){.figure = figures[i].figure,
                                            .placement = "-",
                                            .who = who,
                                            .unit = figures[i].unit,
                                            .value = bench_single(figures[i].value)});
    tether__map_fini(&map);
    free(objects);
}

int main(int argc, char **argv)
{
    static const struct tether_allocator counted = {counted_malloc, no_realloc, counted_free, NULL};
    static const size_t sizes[] = {1000, 10000, 100000, 1000000,
                                   1100000 /* the last size is just past a doubling */};
    struct bench_options options = {.only = "", .rounds = 1, .seconds = 1};
    bench_options_read(argc, argv, &options);
    tether_set_allocator(&counted);
    bench_results_open("map", options.tsv);
    for (size_t i = 0; i < TETHER__ARRAY_LEN(sizes); i++) {
        char what[32];
        snprintf(what, sizeof what, "%zu keys", sizes[i]);
        bench_progress(i, TETHER__ARRAY_LEN(sizes), what);
        measure(sizes[i]);
    }
    bench_results_close();
    return 0;
}
