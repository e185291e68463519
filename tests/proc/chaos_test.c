/* Four workers, a process each, who make things on each other, pass references around, use them and
 * let go of them, thousands of times, while they are killed and started again under the same names,
 * stopped for less and for more than their lease, and cut off from each other.
 *
 * It goes in rounds. In a round everybody works, the test makes its faults, and then all come to
 * rest: what was begun has ended, everybody reaches everybody, and every reference that is left is
 * used once. Before a fault that may break sessions, the test says whom it disturbs in this round;
 * an operation may fail only when it concerns one who was disturbed, and only in the ways that a
 * fault explains. Where nobody was (connections are cut, workers are stopped for a moment) nothing
 * may fail at all.
 *
 * In the end each worker lets go of everything and must come to hold nothing: no object, no
 * reference in any state, no call under way; and the store must hold nothing but names.
 *
 *   TETHER_SEED=1234    chooses what is done and when; each run prints its own. Threads and sockets
 *                       have a mind of their own, so a seed is a neighbourhood, not a replay.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/list.h"
#include "tests/lib/cmocka.h"
#include "tests/proc/stage.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { LEASE_MS = 10000, KILLS = 3, PROGRESS = 40 };
#else
enum { LEASE_MS = 6000, KILLS = 12, PROGRESS = 200 };
#endif

enum {
    N = 4,
    MAX_SLOTS = 64,                    /* references that a worker's program holds */
    MAX_BUSY = 12,                     /* operations under way with one worker */
    SHORT_MS = 300,                    /* for which all sessions last */
    LONG_MS = LEASE_MS + LEASE_MS / 3, /* for which none does */
};

/* Marks. A round begins with GO and ends with REST, each once; IN and DONE count workers. */
enum { GO, IN, REST, DONE, CHECKED, END };

/* Counters: operations by how they ended; the next thing's number; who is disturbed, a bit each. */
enum { WENT_WELL, FAILED_BY_FAULT, NEXT_NUMBER, DISTURBED };

/* ---- Chance ---- */

static uint64_t dice;

static int draw(int n)
{
    dice ^= dice << 13;
    dice ^= dice >> 7;
    dice ^= dice << 17;
    return (int)(dice % (uint64_t)n);
}

static void load_dice(uint64_t seed)
{
    dice = (seed + 1) * UINT64_C(0x9e3779b97f4a7c15);
    draw(2);
}

/* ---- What a worker holds and does ---- */

struct slot {
    tether_rref *rref; /* NULL: free */
    int number, owner; /* of the thing, and the rank that it lives on */
};

struct op {
    struct tether__list node; /* of `ended` */
    struct slot slot;         /* what it is about; its rref is retained */
    int to;                   /* whom it calls; -1: the owner */
    enum { MAKE, PASS, ASK, FETCH, TOUCH } kind;
    tether_future *future;
};

static struct {
    struct actor actor;
    pthread_mutex_t mu;
    pthread_cond_t op_ended;
    /* under mu */
    struct slot slots[MAX_SLOTS];
    struct tether__list ended;
    int under_way;
    /* the main thread's */
    int busy[N]; /* operations that concern a worker */
} me = {.mu = PTHREAD_MUTEX_INITIALIZER, .op_ended = PTHREAD_COND_INITIALIZER};

static bool was_disturbed(int rank)
{
    return crew_count(me.actor.self->world, DISTURBED) >> rank & 1;
}

static bool any_was_disturbed(void)
{
    return crew_count(me.actor.self->world, DISTURBED) != 0;
}

static const char *name_of(int rank)
{
    static const char *const names[] = {"w0", "w1", "w2", "w3"};
    return names[rank];
}

/* TAKES the reference. Without room for it, it is let go of. */
static void slot_put(struct slot slot)
{
    pthread_mutex_lock(&me.mu);
    for (int i = 0; i < MAX_SLOTS && slot.rref; i++)
        if (!me.slots[i].rref) {
            me.slots[i] = slot;
            slot.rref = NULL;
        }
    pthread_mutex_unlock(&me.mu);
    tether_rref_release(slot.rref);
}

/* A slot by its place, retained; the place is free then if it is to be `emptied`. */
static struct slot slot_get(int i, bool emptied)
{
    pthread_mutex_lock(&me.mu);
    struct slot slot = me.slots[i];
    if (emptied)
        me.slots[i].rref = NULL;
    else if (slot.rref)
        tether_rref_retain(slot.rref);
    pthread_mutex_unlock(&me.mu);
    return slot;
}

/* Any of the slots that are taken, from a place on that is as good as any; its rref is NULL when
 * there is none. */
static struct slot slot_any(int from, bool emptied)
{
    struct slot slot = {NULL, 0, 0};
    for (int i = 0; i < MAX_SLOTS && !slot.rref; i++)
        slot = slot_get((from + i) % MAX_SLOTS, emptied);
    return slot;
}

/* ---- Who may fail, and how ---- */

static bool may_fail(const struct op *op, tether_status status)
{
    bool excused = was_disturbed(me.actor.self->rank) || was_disturbed(op->slot.owner) ||
                   (op->to >= 0 && was_disturbed(op->to));
    if (op->kind == ASK) /* for whose thing, nobody knows before it comes */
        excused = any_was_disturbed();
    switch (status) {
        case TETHER_EOWNERDIED:
        case TETHER_EGONE:
        case TETHER_EUNAVAILABLE:
        case TETHER_EFENCED:
            return excused;
        case TETHER_ENOTFOUND: /* asked for a reference, and it had none */
            return op->kind == ASK;
        default:
            return false;
    }
}

static void judge(const struct op *op, tether_status status, const tether_error *error)
{
    static const char *const kinds[] = {"making", "passing", "asking for", "fetching", "touching"};
    if (status != TETHER_OK && !may_fail(op, status))
        fail_msg("%s thing %d of w%d%s%s failed for no good reason: %s: %s", kinds[op->kind],
                 op->slot.number, op->slot.owner, op->to >= 0 ? ", with " : "",
                 op->to >= 0 ? name_of(op->to) : "", tether_status_name(status), error->message);
    bool well = status == TETHER_OK || status == TETHER_ENOTFOUND;
    int how = well ? WENT_WELL : FAILED_BY_FAULT;
    atomic_fetch_add(&crew_page(me.actor.self->world)->count[how], 1);
}

/* ---- What workers ask of each other ---- */

/* "thing 17 of 2" */
static tether_value *describe(const struct slot *slot)
{
    tether_error err = {0};
    tether_value *value = crew_text("thing %d of %d", slot->number, slot->owner);
    if (slot->rref)
        crew_ok(tether_value_attach(value, slot->rref, &err), &err);
    return value;
}

/* What came along, retained. */
static struct slot received(const tether_value *value)
{
    struct slot slot = {tether_rref_retain(tether_value_rref(value, 0)), 0, 0};
    assert_int_equal(sscanf(tether_value_str(value), "thing %d of %d", &slot.number, &slot.owner),
                     2);
    assert_int_not_equal(tether_rref_status(slot.rref, NULL), TETHER_RREF_PENDING);
    assert_int_equal(tether_rref_is_owner(slot.rref), slot.owner == me.actor.self->rank);
    return slot;
}

static tether_status take(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    (void)userdata, (void)ret_value, (void)reterr;
    slot_put(received(arg));
    return TETHER_OK;
}

static tether_status give_any(void *userdata,
                              const tether_value *arg,
                              tether_value **ret_value,
                              tether_error *reterr)
{
    (void)userdata;
    struct slot slot = slot_any(atoi(tether_value_str(arg)), false);
    if (!slot.rref)
        return tether_error_set(reterr, TETHER_ENOTFOUND, "nothing is held here");
    if (tether_rref_status(slot.rref, reterr) == TETHER_RREF_BROKEN) {
        tether_rref_release(slot.rref);
        return TETHER_ENOTFOUND;
    }
    *ret_value = describe(&slot);
    tether_rref_release(slot.rref);
    return TETHER_OK;
}

/* ---- Operations ---- */

static void on_ended(tether_future *future, void *userdata)
{
    struct op *op = userdata;
    (void)future;
    pthread_mutex_lock(&me.mu);
    tether__list_push_back(&me.ended, &op->node);
    pthread_cond_signal(&me.op_ended);
    pthread_mutex_unlock(&me.mu);
}

/* TAKES the reference in `slot` and the future. */
static void op_run(int kind, struct slot slot, int to, tether_future *future)
{
    struct op *op = calloc(1, sizeof *op);
    tether_error err = {0};
    assert_non_null(op);
    *op = (struct op){.kind = kind, .slot = slot, .to = to, .future = future};
    me.busy[slot.owner]++;
    if (to >= 0)
        me.busy[to]++;
    pthread_mutex_lock(&me.mu);
    me.under_way++;
    pthread_mutex_unlock(&me.mu);
    crew_ok(tether_future_then(future, on_ended, op), &err);
}

static void op_end(struct op *op)
{
    tether_error error = {0};
    tether_value *value = NULL;
    tether_status st = tether_future_wait(op->future, 0, &value, &error);
    judge(op, st, &error);
    if (st == TETHER_OK && op->kind == FETCH)
        assert_int_equal(thing_number(value), op->slot.number);
    if (st == TETHER_OK && op->kind == ASK)
        slot_put(received(value));
    if (st == TETHER_OK && op->kind == MAKE) {
        slot_put(op->slot);
        op->slot.rref = NULL;
    }
    tether_value_release(value);
    me.busy[op->slot.owner]--;
    if (op->to >= 0)
        me.busy[op->to]--;
    tether_rref_release(op->slot.rref);
    tether_future_release(op->future);
    free(op);
}

/* Ends what can be ended; waits for one if told to. */
static void reap(bool wait)
{
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += LIMIT / 1000;
    for (;;) {
        int rc = 0;
        pthread_mutex_lock(&me.mu);
        while (wait && me.under_way && tether__list_empty(&me.ended) && rc == 0)
            rc = pthread_cond_timedwait(&me.op_ended, &me.mu, &limit);
        struct tether__list *node = tether__list_pop_front(&me.ended);
        me.under_way -= node != NULL;
        pthread_mutex_unlock(&me.mu);
        if (rc != 0)
            fail_msg("nothing has ended for %d ms", LIMIT);
        if (!node)
            return;
        op_end(tether__list_entry(node, struct op, node));
        wait = false;
    }
}

static void reap_all(void)
{
    int left;
    do {
        reap(true);
        pthread_mutex_lock(&me.mu);
        left = me.under_way;
        pthread_mutex_unlock(&me.mu);
    } while (left);
}

static void begin_make(int on)
{
    _Atomic int64_t *next = &crew_page(me.actor.self->world)->count[NEXT_NUMBER];
    struct slot slot = {NULL, (int)atomic_fetch_add(next, 1), on};
    tether_value *arg = crew_text("%d", slot.number);
    slot.rref = tether_remote(me.actor.agent, name_of(on), "make", arg, LIMIT);
    tether_value_release(arg);
    op_run(MAKE, slot, -1, tether_rref_confirmed(slot.rref));
}

static void begin_ask(int to)
{
    tether_value *arg = crew_text("%d", draw(MAX_SLOTS));
    struct slot none = {NULL, -1, to};
    op_run(ASK, none, to, tether_rpc_async(me.actor.agent, name_of(to), "give_any", arg, LIMIT));
    tether_value_release(arg);
}

static void begin_use(struct slot slot, int to)
{
    tether_value *arg = NULL;
    switch (draw(3)) {
        case 0:
            op_run(FETCH, slot, -1, tether_rref_to_here_async(slot.rref, LIMIT));
            break;
        case 1:
            arg = crew_text("%d", slot.number);
            op_run(TOUCH, slot, -1, tether_rref_async(slot.rref, "touch", arg, LIMIT));
            break;
        default:
            arg = describe(&slot);
            op_run(PASS, slot, to,
                   tether_rpc_async(me.actor.agent, name_of(to), draw(2) ? "take" : "take_pooled",
                                    arg, LIMIT));
    }
    tether_value_release(arg);
}

/* One more operation, unless too many are under way with who it would concern. False then. */
static bool begin(void)
{
    int to = draw(N);
    if (me.busy[to] >= MAX_BUSY)
        return false;
    int what = draw(10);
    if (what < 3)
        begin_make(to);
    else if (what < 4 && to != me.actor.self->rank)
        begin_ask(to);
    else if (what < 6)
        tether_rref_release(slot_any(draw(MAX_SLOTS), true).rref); /* lets go of one */
    else {
        struct slot slot = slot_any(draw(MAX_SLOTS), draw(4) == 0);
        if (slot.rref && me.busy[slot.owner] < MAX_BUSY)
            begin_use(slot, to);
        else
            tether_rref_release(slot.rref);
    }
    return true;
}

/* ---- Rounds, as a worker sees them ---- */

/* Everybody can be called: whatever a fault has broken is mended. */
static void reach_all(void)
{
    for (int rank = 0; rank < N; rank++) {
        tether_error err = {0};
        tether_status st;
        do
            st = tether_rpc_sync(me.actor.agent, name_of(rank), "name", NULL, LIMIT, NULL, &err);
        while ((st == TETHER_EUNAVAILABLE || st == TETHER_EFENCED) &&
               (was_disturbed(rank) || was_disturbed(me.actor.self->rank)));
        crew_ok(st, &err);
    }
}

/* Every reference is of use, but for those that a fault of this round has broken. */
static void use_all(void)
{
    for (int i = 0; i < MAX_SLOTS; i++) {
        struct slot slot = slot_get(i, false);
        if (!slot.rref)
            continue;
        struct op op = {.kind = TOUCH, .slot = slot, .to = -1};
        tether_error err = {0};
        tether_status st = thing_try(slot.rref, slot.number, &err);
        judge(&op, st, &err);
        if (st != TETHER_OK) {
            assert_int_equal(tether_rref_status(slot.rref, NULL), TETHER_RREF_BROKEN);
            tether_rref_release(slot_get(i, true).rref);
        }
        tether_rref_release(slot.rref);
    }
}

static void drop_all(void)
{
    for (int i = 0; i < MAX_SLOTS; i++)
        tether_rref_release(slot_get(i, true).rref);
}

static void run_round(int round)
{
    struct tether_test_world *world = me.actor.self->world;
    tether_test_mark(world, IN);
    while (atomic_load(&world->marks[REST]) < round)
        reap(!begin());
    reap_all();
    tether_test_mark(world, DONE);
    tether_test_await_mark(world, DONE, N * round); /* nobody passes anything on any more */
    reach_all();
    use_all();
    tether_test_mark(world, CHECKED);
    tether_test_await_mark(world, CHECKED, N * round);
}

/* ---- A worker ---- */

static int64_t metric(const char *name)
{
    tether_buf text = TETHER_BUF_INIT;
    char line[64];
    assert_int_equal(tether_agent_metrics(me.actor.agent, &text), TETHER_OK);
    snprintf(line, sizeof line, "\n%s ", name);
    const char *at = strstr(text.data, line);
    assert_non_null(at);
    int64_t value = atoll(at + strlen(line));
    tether_buf_fini(&text);
    return value;
}

/* `words`: "static" or "dynamic", and the seed behind it. */
TETHER_PROC_ROLE(worker)
{
    struct actor_opts opts = {.static_group = strstr(self->arg, " static")};
    struct tether_test_world *world = self->world;
    tether_error err = {0};
    tether__list_init(&me.ended);
    actor_open(&me.actor, self, &opts);
    crew_ok(tether_agent_register_inline(me.actor.agent, "take", take, NULL, &err), &err);
    crew_ok(tether_agent_register(me.actor.agent, "take_pooled", take, NULL, &err), &err);
    crew_ok(tether_agent_register_inline(me.actor.agent, "give_any", give_any, NULL, &err), &err);
    actor_start(&me.actor);
    load_dice(strtoull(strpbrk(me.actor.words, "0123456789"), NULL, 10) +
              (uint64_t)atomic_load(&world->marks[IN]) * 1000 + (uint64_t)rank);
    int round = atomic_load(&world->marks[GO]); /* who was started again joins the present one */
    for (round = round ? round : 1;; round++) {
        tether_test_await_mark(world, GO, round);
        if (atomic_load(&world->marks[END]))
            break;
        run_round(round);
    }
    drop_all();
    await_nothing(me.actor.agent);
    assert_int_equal(me.under_way, 0);
    assert_int_equal(metric("tether_client_active_calls"), 0);
    assert_int_equal(metric("tether_server_active_calls"), 0);
    tether_test_mark(world, DONE);
    tether_test_await_mark(world, DONE, N * round); /* everybody holds nothing */
    actor_close(&me.actor);
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

/* Before it happens: who fails because of it finds it said. */
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
    nap_ms(SHORT_MS); /* it is as long as that: this is the fault itself */
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
static const struct round {
    const char *words;
    int n;
    fault *faults[4];
} rounds[] = {
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

static void direct_round(struct director *director, int number)
{
    const struct round *round = &rounds[number - 1];
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
    int n_rounds = (int)TETHER__ARRAY_LEN(rounds);
    for (int number = 1; number <= n_rounds; number++)
        direct_round(&director, number);
    tether_test_mark(director.procs->world, END);
    tether_test_mark(director.procs->world, GO);
    tether_test_procs_end(director.procs);
    stage_check_store(&director.stage, N, strcmp(kind, "static") == 0);
    stage_end(&director.stage);
}

static void a_dynamic_group_survives(void **state)
{
    (void)state;
    run("dynamic");
}

static void a_static_group_survives(void **state)
{
    (void)state;
    run("static");
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_dynamic_group_survives),
        cmocka_unit_test(a_static_group_survives),
    };
    return cmocka_run_group_tests_name("references and everything that goes wrong", tests, NULL,
                                       NULL);
}
