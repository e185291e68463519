/* The faults of a world, and the workers that begin ops: drawn from the seed, one after another,
 * each an event of the simulation. */
#include <stdlib.h>

#include "tests/sim/crowd.h"

/* How often each fault comes, in a thousand. The first row is a quiet network. */
struct weather {
    int cut, detour, slow, part, isolate, pause, kill, leave, replace, store;
    bool rename; /* a killed worker may come back under another name, with its id */
};

/* clang-format off */
static const struct weather weathers[WEATHERS] = { /* an odd number: shards of the test take each 4th seed */
    {.cut = 0},                                /* no faults */
    {.cut = 100, .detour = 20},                /* connections break */
    {.cut = 60, .detour = 20, .slow = 80},     /* and are slow */
    {.cut = 20, .detour = 10, .slow = 20, .part = 50, .isolate = 20},
    {.cut = 20, .detour = 10, .slow = 20, .pause = 60},
    {.cut = 10, .detour = 5, .slow = 10, .kill = 40},
    {.cut = 10, .detour = 5, .leave = 40},     /* workers leave and come back */
    {.cut = 20, .detour = 10, .slow = 20, .pause = 10, .replace = 30}, /* two starts of one worker */
    {.cut = 25, .detour = 10, .slow = 30, .part = 20, .isolate = 10, .pause = 20, .kill = 15,
     .leave = 10, .replace = 10},                /* everything */
    {.cut = 20, .detour = 10, .slow = 20, .kill = 40, .rename = true},
    {.cut = 20, .part = 15, .pause = 15, .kill = 20, .leave = 15, .replace = 10, .rename = true},
    {.cut = 60, .store = 60},                  /* the store is lost, and sessions go on */
    {.cut = 20, .detour = 10, .slow = 20, .part = 10, .isolate = 5, .pause = 10, .kill = 15,
     .leave = 10, .replace = 10, .store = 30},   /* everything, and the store is lost */
};
/* clang-format on */

bool weather_loses_store(const struct crowd *crowd)
{
    return weathers[crowd->seed % WEATHERS].store;
}

struct chaos {
    struct crowd *crowd;
    struct weather weather;
    int left; /* actions */
    bool somebody_leaves;
};

/* A fault that ends by itself. */
struct spell {
    struct spell *next;
    struct crowd *crowd;
    struct start *a, *b;
};

/* ---- Faults ---- */

static bool gone(const struct start *start)
{
    return start->dead || start->left;
}

static struct spell *spell_new(struct crowd *crowd, struct start *a, struct start *b)
{
    crowd->disturbed_at = tether_sim_now(crowd->sim);
    struct spell *spell = calloc(1, sizeof *spell);
    if (!spell)
        abort();
    *spell = (struct spell){crowd->spells, crowd, a, b};
    crowd->spells = spell;
    return spell;
}

void spells_free(struct crowd *crowd)
{
    for (struct spell *spell = crowd->spells, *next; spell; spell = next) {
        next = spell->next;
        free(spell);
    }
}

/* When a spell ends: whether there is nothing to end any more. */
static bool over(const struct spell *spell)
{
    spell->crowd->disturbed_at = tether_sim_now(spell->crowd->sim);
    return spell->crowd->over || gone(spell->a) || (spell->b && gone(spell->b));
}

/* Shorter than a lease, or longer. */
static int64_t draw_spell(struct crowd *crowd)
{
    int ms = chance(crowd, 2)   ? between(crowd, 1, LEASE_MS / 3)
             : chance(crowd, 2) ? between(crowd, LEASE_MS / 3, LEASE_MS)
                                : between(crowd, LEASE_MS, 3 * LEASE_MS);
    return ms * TETHER__NS_PER_MS;
}

static void end_slow(void *userdata)
{
    struct spell *spell = userdata;
    if (!over(spell))
        tether_sim_slow(spell->crowd->sim, spell->a->agent, spell->b->agent, 0);
}

static void end_part(void *userdata)
{
    struct spell *spell = userdata;
    if (!over(spell))
        tether_sim_part(spell->crowd->sim, spell->a->agent, spell->b->agent, false);
}

/* The slow connections break, with much under way on them, and the next ones are quick. */
static void end_detour(void *userdata)
{
    struct spell *spell = userdata;
    if (over(spell))
        return;
    tether_sim_cut(spell->crowd->sim, spell->a->agent, spell->b->agent, false);
    tether_sim_slow(spell->crowd->sim, spell->a->agent, spell->b->agent, 0);
}

static void resume(struct start *start)
{
    start->paused = false;
    start->resumed_at = tether_sim_now(start->crowd->sim);
    tether_sim_pause(start->crowd->sim, start->agent, false);
}

static void end_pause(void *userdata)
{
    struct spell *spell = userdata;
    if (!over(spell) && spell->a->paused)
        resume(spell->a);
}

static void end_founder(void *userdata)
{
    struct crowd *crowd = userdata;
    if (!crowd->over && store_is_founders(crowd)) {
        crowd->disturbed_at = tether_sim_now(crowd->sim);
        founder_ends(crowd);
    }
}

/* A worker starts although the store does not have the run. */
static void start_too_soon(struct crowd *crowd, int worker)
{
    if (!crowd->closing && chance(crowd, 3) && newcomer_starts(crowd, worker))
        tether_sim_after(crowd->sim, draw_spell(crowd), end_founder, crowd);
}

/* The new start waits for the store, or for the workers that restore the run. */
static void end_death(void *userdata)
{
    struct spell *spell = userdata;
    struct crowd *crowd = spell->crowd;
    if (crowd->over)
        return;
    if (!crowd_store_is_whole(crowd)) {
        start_too_soon(crowd, spell->a->worker);
        tether_sim_after(crowd->sim, 100 * TETHER__NS_PER_MS, end_death, spell);
        return;
    }
    if (crowd->renames && spell->a->dead && chance(crowd, 2))
        crowd_rename(crowd, spell->a->worker);
    crowd_start(crowd, spell->a->worker);
}

static void end_loss(void *userdata)
{
    struct crowd *crowd = userdata;
    if (!crowd->store_is_lost || crowd->over)
        return; /* the end of the world was sooner */
    crowd->disturbed_at = tether_sim_now(crowd->sim);
    crowd_store_return(crowd, chance(crowd, 2));
}

static void lose_store(struct crowd *crowd)
{
    if (!crowd_store_is_whole(crowd))
        return;
    crowd->disturbed_at = tether_sim_now(crowd->sim);
    crowd_store_lose(crowd);
    tether_sim_after(crowd->sim, draw_spell(crowd), end_loss, crowd);
}

static void part(struct chaos *chaos, struct start *a, struct start *b, int64_t ns)
{
    tether_sim_part(chaos->crowd->sim, a->agent, b->agent, true);
    tether_sim_after(chaos->crowd->sim, ns, end_part, spell_new(chaos->crowd, a, b));
}

static void detour(struct chaos *chaos, struct start *a, struct start *b)
{
    struct crowd *crowd = chaos->crowd;
    tether_sim_slow(crowd->sim, a->agent, b->agent, LEASE_MS / 4 * TETHER__NS_PER_MS);
    tether_sim_after(crowd->sim, between(crowd, 10, 100) * TETHER__NS_PER_MS, end_detour,
                     spell_new(crowd, a, b));
}

static void pause_start(struct chaos *chaos, struct start *start, int64_t ns)
{
    start->paused = true;
    tether_sim_pause(chaos->crowd->sim, start->agent, true);
    tether_sim_after(chaos->crowd->sim, ns, end_pause, spell_new(chaos->crowd, start, NULL));
}

/* Blocks, as it would a program; the world goes on meanwhile. */
static void leave(struct chaos *chaos, struct start *start)
{
    struct crowd *crowd = chaos->crowd;
    tether_error error = {0};
    int64_t began = tether_sim_now(crowd->sim);
    bool graceful = !chance(crowd, 4);
    chaos->somebody_leaves = start->leaving = true;
    touch_all(crowd); /* by what this event has done so far */
    tether_sim_note(crowd->sim, "%s leaves%s", start->name, graceful ? "" : " at once");
    tether_status st = tether_agent_shutdown(start->agent, graceful, &error);
    tether_sim_note(crowd->sim, "%s has left: %s %s", start->name, tether_status_name(st),
                    st == TETHER_OK ? "" : error.message);
    int64_t took = tether_sim_now(crowd->sim) - began;
    if (took > (SHUTDOWN_MS + 600) * TETHER__NS_PER_MS && start->resumed_at < began)
        blame(crowd, "L2: %s took %lld ms to leave", start->name,
              (long long)(took / TETHER__NS_PER_MS));
    chaos->somebody_leaves = false;
    start->left = true;
    tether_sim_after(crowd->sim, draw_spell(crowd), end_death,
                     spell_new(chaos->crowd, start, NULL));
}

static void strike(struct chaos *chaos)
{
    struct crowd *crowd = chaos->crowd;
    const struct weather *weather = &chaos->weather;
    struct start *a = any_worker(crowd), *b = other_worker(crowd, a);
    int at = between(crowd, 0, 999);
    if (gone(a) || gone(b) || a->leaving || a->paused)
        return;
    if ((at -= weather->cut) < 0) {
        crowd->disturbed_at = tether_sim_now(crowd->sim);
        tether_sim_cut(crowd->sim, a->agent, b->agent, chance(crowd, 2));
    } else if ((at -= weather->detour) < 0) {
        detour(chaos, a, b);
    } else if ((at -= weather->slow) < 0) {
        tether_sim_slow(crowd->sim, a->agent, b->agent,
                        between(crowd, 1, LEASE_MS / 4) * TETHER__NS_PER_MS);
        tether_sim_after(crowd->sim, draw_spell(crowd), end_slow, spell_new(chaos->crowd, a, b));
    } else if ((at -= weather->part) < 0) {
        part(chaos, a, b, draw_spell(crowd));
    } else if ((at -= weather->isolate) < 0) {
        int64_t ns = draw_spell(crowd);
        for (int i = 0; i < crowd->n_workers; i++)
            if (crowd->latest[i] != a && !gone(crowd->latest[i]))
                part(chaos, a, crowd->latest[i], ns);
    } else if ((at -= weather->pause) < 0) {
        pause_start(chaos, a, draw_spell(crowd));
    } else if ((at -= weather->kill) < 0) {
        a->dead = true;
        tether_sim_kill(crowd->sim, a->agent);
        tether_sim_after(crowd->sim, draw_spell(crowd), end_death,
                         spell_new(chaos->crowd, a, NULL));
    } else if ((at -= weather->leave) < 0) {
        if (!chaos->somebody_leaves)
            leave(chaos, a);
    } else if ((at -= weather->replace) < 0) {
        if (!crowd_store_is_whole(crowd)) {
            start_too_soon(crowd, a->worker);
            return;
        }
        pause_start(chaos, a, draw_spell(crowd));
        crowd_start(crowd, a->worker);
    } else if ((at -= weather->store) < 0) {
        lose_store(crowd);
    }
}

/* ---- The loop of ops and faults ---- */

static void act(void *userdata)
{
    struct chaos *chaos = userdata;
    struct crowd *crowd = chaos->crowd;
    if (crowd->violation[0])
        return;
    chaos->left--;
    if (chaos->left > 0) /* first, since a worker that leaves blocks us */
        tether_sim_after(crowd->sim,
                         chance(crowd, 10)  ? between(crowd, 50, 500) * TETHER__NS_PER_MS
                         : chance(crowd, 2) ? between(crowd, 0, 300) * 1000
                                            : between(crowd, 1, 20) * TETHER__NS_PER_MS,
                         act, chaos);
    if (!crowd->faultless)
        strike(chaos);
    if (crowd->two_runs)
        leftovers_act(crowd);
    struct start *by = crowd->starts[between(crowd, 0, crowd->n_starts - 1)];
    if (start_works(by) ||
        (by->replaced && !gone(by) && !by->paused)) /* a replaced start goes on, too */
        op_begin(by);
}

static bool is_through(void *userdata)
{
    struct chaos *chaos = userdata;
    return chaos->crowd->violation[0] || (chaos->left <= 0 && !chaos->somebody_leaves);
}

static bool no_ops(void *userdata)
{
    struct crowd *crowd = userdata;
    TETHER__LIST_FOR_EACH(node, &crowd->ops)
        if (!gone(tether__list_entry(node, struct op, node)->by))
            return crowd->violation[0] != '\0';
    return true;
}

static void drop_all(struct crowd *crowd)
{
    for (int i = 0; i < crowd->n_starts; i++)
        TETHER__LIST_FOR_EACH(node, &crowd->starts[i]->slots)
            slot_drop(tether__list_entry(node, struct slot, node));
}

void chaos(struct crowd *crowd)
{
    struct chaos chaos = {.crowd = crowd, .left = between(crowd, 60, 260)};
    chaos.weather = weathers[crowd->seed % WEATHERS];
    crowd->faultless = crowd->seed % WEATHERS == 0;
    const struct weather *weather = &chaos.weather;
    crowd->renames = weather->rename;
    crowd->sessions_last = !weather->slow && !weather->detour && !weather->part &&
                           !weather->isolate && !weather->pause && !weather->kill &&
                           !weather->leave && !weather->replace;
    if (!crowd->faultless && chance(crowd, 2))
        tether_sim_duplicate(crowd->sim, between(crowd, 1, 10), LEASE_MS / 4 * TETHER__NS_PER_MS);
    if (chance(crowd, 3))
        tether_sim_set_latency(crowd->sim, 1000, 20 * TETHER__NS_PER_MS);
    tether_sim_after(crowd->sim, 0, act, &chaos);
    tether_sim_run(crowd->sim, is_through, &chaos, INT32_MAX);

    /* All faults end here. Ops that are in flight end, and no new op begins. */
    crowd->closing = true;
    crowd->disturbed_at = tether_sim_now(crowd->sim);
    tether_sim_heal(crowd->sim);
    if (crowd->store_is_lost)
        crowd_store_return(crowd, false);
    founder_ends(crowd);
    for (int i = 0; i < crowd->n_starts; i++)
        if (crowd->starts[i]->paused && !gone(crowd->starts[i]))
            resume(crowd->starts[i]);
    if (!tether_sim_run(crowd->sim, no_ops, crowd, 10000))
        blame(crowd, "L2: some operations never ended");
    if (chance(crowd, 2)) {
        tether_sim_run(crowd->sim, NULL, NULL, LEASE_MS + 1000);
        judge_lost_owners(crowd);
    }
    drop_all(crowd);
    /* A worker may still start, and what an object held is dropped when that object goes. */
    for (int64_t left; (left = idle_limit(crowd) - tether_sim_now(crowd->sim)) > 0;)
        tether_sim_run(crowd->sim, NULL, NULL, left / TETHER__NS_PER_MS + 1);
    judge_all_is_gone(crowd);
}
