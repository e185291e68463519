/* See tether.h. One client, one server; the functions return their argument. */
#include "bench/rpc/tether.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/lib/contestant.h"
#include "bench/lib/crew.h"
#include "bench/lib/measure.h"
#include "rpc/agent.h"
#include "rpc/future.h"

#define TIMEOUT_MS 30000
#define OUTSTANDING 64

static tether_value *value_of(size_t size)
{
    tether_value *value = NULL;
    tether_error err = {0};
    char *data = calloc(1, size + 1);
    bench_check(tether_value_new(tether_bytes_of(data, size), &value, &err), &err);
    free(data);
    return value;
}

static void call(struct bench_crew *crew, const char *fn, const tether_value *arg)
{
    tether_error err = {0};
    tether_value *result = NULL;
    bench_check(tether_rpc_sync(crew->agent, "server", fn, arg, TIMEOUT_MS, &result, &err), &err);
    tether_value_release(result);
}

/* ---- One call after the other ---- */

static struct bench_samples samples;

static void call_again(struct bench_crew *crew, const char *fn, size_t size, double seconds)
{
    tether_value *arg = size ? value_of(size) : NULL;
    for (int i = 0; i < 20; i++)
        call(crew, fn, arg);
    bench_samples_begin(&samples, seconds);
    do {
        call(crew, fn, arg);
    } while (bench_samples_note(&samples));
    tether_value_release(arg);
}

static double median_us(struct bench_crew *crew, const char *fn, size_t size, double seconds)
{
    call_again(crew, fn, size, seconds);
    return bench_samples_median_us(&samples);
}

static double sync_64(void *crew, double seconds)
{
    return median_us(crew, "echo", 64, seconds);
}

static double sync_null(void *crew, double seconds)
{
    return median_us(crew, "nothing", 0, seconds);
}

static double sync_64k(void *crew, double seconds)
{
    return median_us(crew, "echo", 64 << 10, seconds);
}

static double sync_1m(void *crew, double seconds)
{
    return median_us(crew, "echo", 1 << 20, seconds);
}

static double pooled_64(void *crew, double seconds)
{
    return median_us(crew, "pooled", 64, seconds);
}

static double rate_64(void *crew, double seconds)
{
    call_again(crew, "echo", 64, seconds);
    return bench_samples_rate(&samples);
}

/* ---- Context switches of both processes, a call ---- */

static double switches_of(struct bench_crew *crew, const char *fn, double seconds)
{
    tether_value *arg = value_of(64);
    size_t n = 0;
    call(crew, fn, arg);
    double before = bench_switches(getpid()) + bench_switches(crew->members[0]);
    for (double until = bench_now_s() + seconds; bench_now_s() < until; n++)
        call(crew, fn, arg);
    double after = bench_switches(getpid()) + bench_switches(crew->members[0]);
    tether_value_release(arg);
    return (after - before) / (double)n;
}

static double switches_inline(void *crew, double seconds)
{
    return switches_of(crew, "echo", seconds);
}

static double switches_pooled(void *crew, double seconds)
{
    return switches_of(crew, "pooled", seconds);
}

/* ---- 64 outstanding calls: a new one for each that ends ---- */

static double async_64(void *arg, double seconds)
{
    struct bench_crew *crew = arg;
    tether_future *futures[OUTSTANDING] = {NULL};
    tether_value *value = value_of(64);
    tether_error err = {0};
    size_t n = 0;
    double begin = bench_now_s(), now = begin;
    for (; now < begin + seconds; n++) {
        tether_future **slot = &futures[n % OUTSTANDING];
        if (*slot)
            bench_check(tether_future_wait(*slot, TIMEOUT_MS, NULL, &err), &err);
        tether_future_release(*slot);
        *slot = tether_rpc_async(crew->agent, "server", "echo", value, TIMEOUT_MS);
        if (n % OUTSTANDING == 0)
            now = bench_now_s();
    }
    for (int i = 0; i < OUTSTANDING; i++) {
        bench_check(tether_future_wait(futures[i], TIMEOUT_MS, NULL, &err), &err);
        tether_future_release(futures[i]);
    }
    now = bench_now_s();
    tether_value_release(value);
    return (double)n / (now - begin);
}

static const struct bench_skill skills[] = {
    {"sync_64", sync_64},
    {"sync_null", sync_null},
    {"sync_64k", sync_64k},
    {"sync_1m", sync_1m},
    {"pooled_64", pooled_64},
    {"rate_64", rate_64},
    {"async_64", async_64},
    {"switches_inline", switches_inline},
    {"switches_pooled", switches_pooled},
    {0},
};

void rpc_tether_main(int argc, char **argv)
{
    bench_crew_member(argc, argv, bench_crew_serve_calls);
    if (argc != 5 || strcmp(argv[1], "contestant") != 0)
        return;
    struct bench_crew crew = bench_crew_start(argv[2], (const char *[]){"server", NULL},
                                              atoi(argv[3]), atoi(argv[4]), bench_crew_serve_calls);
    for (const struct bench_skill *skill = skills; skill->figure; skill++)
        skill->measure(&crew, 0.05); /* warm up, and let gRPC's windows grow */
    bench_answer(skills, &crew);
    bench_crew_stop(&crew);
    exit(0);
}
