/* Four worker processes create things on each other, and pass, use and release references,
 * thousands of times. Meanwhile the test kills workers and restarts them under the same names,
 * stops them for less and for more than their lease, and cuts them off from each other.
 *
 * The test runs in rounds. In a round all workers run operations while the test causes faults. Then
 * all come to rest: every operation has ended, each worker reaches each other one, and every
 * reference that is left is used once. Before a fault that may break sessions, the test announces
 * the ranks that it disturbs. An operation may fail only if it concerns a disturbed rank, and only
 * with a status that the fault explains. If no rank is disturbed (connections are cut, workers are
 * stopped for a moment), no operation may fail.
 *
 * At the end each worker releases everything. Then it must hold no object, no reference in any
 * state and no call in flight, and the store must hold nothing but names.
 *
 * On a local stage (stage.h) nothing is cut.
 *
 *   TETHER_SEED=1234    chooses the operations, the faults and their times; each run prints its
 *                       seed. Threads and sockets vary, so a seed does not replay a run exactly.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/lib/cmocka.h"
#include "tests/proc/chaos.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { LEASE_MS = 10000, KILLS = 3, PROGRESS = 40 };
#else
enum { LEASE_MS = 6000, KILLS = 12, PROGRESS = 200 };
#endif

enum {
    SHORT_MS = 300,                    /* so short that no session ends */
    LONG_MS = LEASE_MS + LEASE_MS / 3, /* so long that every session ends */
};

TETHER_PROC_ROLE(worker)
{
    chaos_worker(self);
}

/* ---- What the test does to them ---- */

struct director {
    struct stage stage;
    struct tether_test_procs *procs;
    int n_starts; /* as many as have come IN in this round and those before it */
};

static int64_t ended(struct director *director)
{
    return crew_count(director->procs->world, WENT_WELL) +
           crew_count(director->procs->world, FAILED_BY_FAULT);
}

static bool has_got_on(void *userdata, int64_t goal)
{
    return ended(userdata) >= goal;
}

static void await_progress(struct director *director, int n)
{
    stage_await_that(director->procs, has_got_on, director, ended(director) + n);
}

static void nap_ms(int ms)
{
    const struct timespec time = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&time, NULL);
}

/* Called before the fault, so that a rank whose operation fails finds the fault announced. */
static void announce(struct director *director, int ranks)
{
    atomic_fetch_or(&crew_page(director->procs->world)->count[DISTURBED], ranks);
}

static void cut_one(struct director *director)
{
    tether_test_proxy_cut(director->stage.proxies[draw(N)], false);
}

static void cut_all(struct director *director)
{
    stage_cut(&director->stage, draw(2));
    stage_cut(&director->stage, false);
}

static void strand_one(struct director *director)
{
    tether_test_proxy_strand(director->stage.proxies[draw(N)]);
}

static void slow_one(struct director *director)
{
    int rank = draw(N);
    tether_test_proxy_delay(director->stage.proxies[rank], 1 + draw(20));
    await_progress(director, PROGRESS);
    tether_test_proxy_delay(director->stage.proxies[rank], 0);
}

static void stop_one(struct director *director)
{
    int rank = draw(N);
    tether_test_signal(director->procs->world, rank, SIGSTOP);
    nap_ms(SHORT_MS); /* the duration of the pause is the fault itself */
    tether_test_signal(director->procs->world, rank, SIGCONT);
}

static void stop_one_for_long(struct director *director)
{
    int rank = draw(N);
    announce(director, 1 << rank);
    tether_test_signal(director->procs->world, rank, SIGSTOP);
    nap_ms(LONG_MS);
    tether_test_signal(director->procs->world, rank, SIGCONT);
}

static void kill_one(struct director *director)
{
    int rank = draw(N);
    announce(director, 1 << rank);
    tether_test_signal(director->procs->world, rank, SIGKILL);
    tether_test_procs_restart(director->procs, rank, NULL);
    stage_await(director->procs, IN, ++director->n_starts);
}

static void kill_one_while_cut(struct director *director)
{
    stage_cut(&director->stage, true);
    kill_one(director);
    stage_cut(&director->stage, false);
}

static void black_out(struct director *director)
{
    announce(director, (1 << N) - 1);
    stage_swallow(&director->stage);
    nap_ms(LONG_MS);
    stage_cut(&director->stage, false);
}

typedef void fault(struct director *director);

/* One round: some of these faults, so many in all, drawn one by one. */
struct round {
    const char *words;
    int n;
    fault *faults[4];
};

static const struct round rounds_through_proxies[] = {
    {"cuts", 25, {cut_one, cut_all, cut_one, slow_one}},
    {"short stops", 4, {stop_one, stop_one, cut_one, strand_one}},
    {"kills", KILLS, {kill_one, kill_one, kill_one, kill_one_while_cut}},
    {"a long stop",
     1,
     {stop_one_for_long, stop_one_for_long, stop_one_for_long, stop_one_for_long}},
    {"cuts after it", 10, {cut_one, cut_all, cut_one, stop_one}},
    {"kills and cuts", KILLS, {kill_one, cut_one, cut_all, kill_one_while_cut}},
    {"a blackout", 1, {black_out, black_out, black_out, black_out}},
    {"peace", 0, {NULL}},
};

static const struct round rounds_local[] = {
    {"short stops", 4, {stop_one, stop_one, stop_one, stop_one}},
    {"kills", KILLS, {kill_one, kill_one, kill_one, kill_one}},
    {"a long stop",
     1,
     {stop_one_for_long, stop_one_for_long, stop_one_for_long, stop_one_for_long}},
    {"kills and stops", KILLS, {kill_one, kill_one, kill_one, stop_one}},
    {"peace", 0, {NULL}},
};

static void direct_round(struct director *director, const struct round *round, int number)
{
    struct tether_test_world *world = director->procs->world;
    int64_t well = crew_count(world, WENT_WELL), failed = crew_count(world, FAILED_BY_FAULT);
    atomic_store(&crew_page(world)->count[DISTURBED], 0);
    tether_test_mark(world, GO);
    stage_await(director->procs, IN, director->n_starts += N);
    await_progress(director, 5 * PROGRESS);
    for (int i = 0; i < round->n; i++) {
        round->faults[draw(4)](director);
        await_progress(director, PROGRESS);
    }
    tether_test_mark(world, REST);
    stage_await(director->procs, CHECKED, N * number);
    print_message("%s: %lld operations, %lld failed by them\n", round->words,
                  (long long)(crew_count(world, WENT_WELL) - well),
                  (long long)(crew_count(world, FAILED_BY_FAULT) - failed));
}

static uint64_t seed_of_this_run(void)
{
    const char *given = getenv("TETHER_SEED");
    return given && *given ? strtoull(given, NULL, 10) : (uint64_t)now_ns() % 1000000;
}

static void run(const char *kind)
{
    struct director director = {.n_starts = 0};
    uint64_t seed = seed_of_this_run();
    char words[64];
    print_message("TETHER_SEED=%llu\n", (unsigned long long)seed);
    load_dice(seed);
    snprintf(words, sizeof words, "%s%llu", kind, (unsigned long long)seed);
    stage_start(&director.stage, N, LEASE_MS, words);
    director.procs = tether_test_procs_start(worker, .ranks = N, .arg = director.stage.arg,
                                             .timeout_ms = 10 * LIMIT);
    bool local = stage_is_local();
    const struct round *rounds = local ? rounds_local : rounds_through_proxies;
    size_t n_rounds =
        local ? TETHER__ARRAY_LEN(rounds_local) : TETHER__ARRAY_LEN(rounds_through_proxies);
    for (size_t i = 0; i < n_rounds; i++)
        direct_round(&director, &rounds[i], (int)i + 1);
    tether_test_mark(director.procs->world, END);
    tether_test_mark(director.procs->world, GO);
    tether_test_procs_end(director.procs);
    stage_check_store(&director.stage, strcmp(kind, "static") == 0);
    stage_end(&director.stage);
}

static void dynamic_group_survives_chaos(void **state)
{
    (void)state;
    run("dynamic");
}

static void static_group_survives_chaos(void **state)
{
    (void)state;
    run("static");
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dynamic_group_survives_chaos),
        cmocka_unit_test(static_group_survives_chaos),
    };
    return cmocka_run_group_tests_name("references and everything that goes wrong", tests, NULL,
                                       NULL);
}
