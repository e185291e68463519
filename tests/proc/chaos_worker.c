/* A worker of chaos_test: creates things on other workers, passes, uses and releases references,
 * and judges how each operation ended. See chaos_test.c.
 *
 * The main thread begins operations and judges how they ended; callbacks only move ended operations
 * to a list. Slots are filled by functions that others call, too, so they are under `mu`, a leaf.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/list.h"
#include "tests/lib/cmocka.h"
#include "tests/proc/chaos.h"

enum {
    MAX_SLOTS = 64, /* references that a worker's program holds */
    MAX_BUSY = 12,  /* operations under way with one worker */
};

/* ---- Chance ---- */

static uint64_t dice;

int draw(int n)
{
    dice ^= dice << 13;
    dice ^= dice >> 7;
    dice ^= dice << 17;
    return (int)(dice % (uint64_t)n);
}

void load_dice(uint64_t seed)
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
    struct slot slot;         /* the thing that it concerns; its rref is retained */
    int to;                   /* the rank that it calls; -1: the owner */
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

/* TAKES the reference. Releases it if there is no room for it. */
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
    if (op->kind == ASK) /* the owner of the thing is not known before the answer */
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

/* The reference that is attached to the value, retained. */
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
        tether_rref_release(slot_any(draw(MAX_SLOTS), true).rref); /* releases one */
    else {
        struct slot slot = slot_any(draw(MAX_SLOTS), draw(4) == 0);
        if (slot.rref && me.busy[slot.owner] < MAX_BUSY)
            begin_use(slot, to);
        else
            tether_rref_release(slot.rref);
    }
    return true;
}

/* ---- Rounds, at a worker ---- */

/* Waits until every worker can be called, so that the effects of all faults are over. */
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
    tether_test_await_mark(world, DONE, N * round); /* no worker passes on a reference any more */
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

void chaos_worker(struct tether_test_rank *self)
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
              (uint64_t)atomic_load(&world->marks[IN]) * 1000 + (uint64_t)self->rank);
    int round = atomic_load(&world->marks[GO]); /* a restarted worker joins the present round */
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
    tether_test_await_mark(world, DONE, N * round); /* no worker holds anything */
    actor_close(&me.actor);
}
