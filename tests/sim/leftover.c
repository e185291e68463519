/* Two runs at once: workers of an earlier run of the group that were not ended, at the addresses of
 * the workers of this run, with their names. See crowd.h.
 *
 * Happy path: they start first, in a store of their own, and meet each other. Then the workers of
 * this run start, and a worker that dials an address reaches one run or the other. From then on the
 * leftovers call each other, make objects on each other and end, as the seed has it.
 *
 * Failure modes, each of which breaks T: a call of one run is served by the other; a worker meets a
 * start of the other run; a worker believes that a start of the other run has replaced it. The
 * other promises hold for the workers of this run as in any other world.
 *
 * A founder is a newcomer that starts in an emptied store before the running workers have put their
 * run back. It finds no run and founds one. This is allowed (docs/operations.md): nothing tells an
 * emptied store from a new one. T holds for it, too. Then the operator ends it and clears the
 * store, and the running workers put their run back.
 */
#include <stdlib.h>
#include <string.h>

#include "rpc/peer/table.h"
#include "tests/sim/crowd.h"

#define TIMEOUT_VISIT_MS 500

struct leftover {
    struct crowd *crowd;
    char name[8];
    uint64_t incarnation;
    tether_agent *agent;
    bool gone;
};

/* ---- What they serve ---- */

static tether_status visit(void *userdata,
                           const tether_value *arg,
                           tether_value **ret_value,
                           tether_error *reterr)
{
    (void)userdata, (void)arg;
    return tether_value_printf(ret_value, reterr, "earlier");
}

static tether_status trespass(void *userdata,
                              const tether_value *arg,
                              tether_value **ret_value,
                              tether_error *reterr)
{
    struct leftover *leftover = userdata;
    (void)arg, (void)ret_value, (void)reterr;
    blame(leftover->crowd, "T: %s of another run serves a call of this one", leftover->name);
    return TETHER_OK;
}

tether_status serve_visit(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    struct start *start = userdata;
    (void)arg, (void)ret_value, (void)reterr;
    blame(start->crowd, "T: %s serves a call of an earlier run", start->name);
    return TETHER_OK;
}

static void must(struct crowd *crowd, tether_status st, const tether_error *error)
{
    if (st != TETHER_OK)
        blame(crowd, "a worker of another run did not start: %s", error->message);
}

static struct leftover *leftover_new(struct crowd *crowd, int worker, tether_store *store)
{
    static const char *const functions[] = {"make", "make_pooled", "make_late",  "keep",
                                            "look", "give",        "keep_pooled"};
    tether_error error = {0};
    struct leftover *leftover = calloc(1, sizeof *leftover);
    if (!leftover)
        abort();
    leftover->crowd = crowd;
    leftover->name[0] = 'w';
    leftover->name[1] = (char)('0' + worker);
    must(crowd,
         tether_agent_new(
             TETHER_AGENT_OPTS(.name = leftover->name, .store = store, .lease_ms = LEASE_MS,
                               .timeout_ms = TIMEOUT_MS, .shutdown_timeout_ms = SHUTDOWN_MS,
                               .hooks = tether_sim_hooks(crowd->sim)),
             &leftover->agent, &error),
         &error);
    tether_agent_register_inline(leftover->agent, "visit", visit, leftover, &error);
    for (size_t i = 0; i < TETHER__ARRAY_LEN(functions); i++)
        tether_agent_register_inline(leftover->agent, functions[i], trespass, leftover, &error);
    must(crowd, error.code, &error);
    must(crowd, tether_agent_start(leftover->agent, &error), &error);
    leftover->incarnation = leftover->agent->self.incarnation;
    tether_sim_note(crowd->sim, "%s of another run, incarnation %llu", leftover->name,
                    (unsigned long long)leftover->incarnation);
    return leftover;
}

/* ---- What they do ---- */

static void on_visited(tether_future *future, void *userdata)
{
    struct leftover *leftover = userdata;
    const tether_value *value = tether_future_value(future);
    if (!leftover->crowd->over && tether_future_status(future, NULL) == TETHER_OK && value &&
        strcmp(tether_value_str(value), "earlier") != 0)
        blame(leftover->crowd, "T: this run answers %s of an earlier one", leftover->name);
}

static void call_each_other(struct leftover *by, const struct leftover *to)
{
    tether_value *arg = message_new(by->crowd, 0, NULL, 0);
    tether_future *future = tether_rpc_async(by->agent, to->name, "visit", arg, TIMEOUT_VISIT_MS);
    tether_future_then(future, on_visited, by);
    tether_future_release(future);
    if (chance(by->crowd, 2)) /* with ids that may be those of this run */
        tether_rref_release(tether_remote(by->agent, to->name, "visit", arg, TIMEOUT_VISIT_MS));
    tether_value_release(arg);
}

static void end(struct leftover *leftover)
{
    tether_sim_note(leftover->crowd->sim, "%s of another run ends", leftover->name);
    leftover->gone = true;
    tether_agent_shutdown(leftover->agent, false, NULL);
}

static struct leftover *any_leftover(struct crowd *crowd)
{
    struct leftover *leftover = crowd->leftovers[between(crowd, 0, crowd->n_workers - 1)];
    return leftover && !leftover->gone ? leftover : NULL;
}

void leftovers_act(struct crowd *crowd)
{
    struct leftover *by = any_leftover(crowd), *to = any_leftover(crowd);
    if (!by)
        return;
    if (to && by != to && chance(crowd, 2))
        call_each_other(by, to);
    else if (chance(crowd, 200))
        end(by);
}

/* ---- Their lives ---- */

void leftovers_start(struct crowd *crowd)
{
    tether_error error = {0};
    tether_sim_trust_nobody(crowd->sim);
    must(crowd, crowd_store_new_earlier(crowd, chance(crowd, 2) ? 0 : 500, &error), &error);
    for (int i = 0; i < crowd->n_workers; i++)
        if (i < 2 || chance(crowd, 2))
            crowd->leftovers[i] = leftover_new(crowd, i, crowd->earlier_store);
    for (int i = 0; i < 8; i++)
        leftovers_act(crowd);
    tether_sim_run(crowd->sim, NULL, NULL, 20);
    /* If the store is lost and comes back empty, workers of the earlier run use it as well. */
    if (!weather_loses_store(crowd) && chance(crowd, 2))
        crowd_store_give_way(crowd);
    else
        crowd->earlier_is_lost = chance(crowd, 2);
}

void leftovers_meet(struct crowd *crowd, struct start *start)
{
    struct leftover *leftover = crowd->leftovers[start->worker];
    if (leftover && !leftover->gone && !crowd->violation[0]) /* it may not have started */
        tether_sim_share_address(crowd->sim, start->agent, leftover->agent);
}

void leftovers_release(struct crowd *crowd)
{
    for (int i = 0; i < crowd->n_workers; i++)
        if (crowd->leftovers[i])
            tether_agent_release(crowd->leftovers[i]->agent);
    for (int i = 0; i < crowd->n_founders; i++)
        tether_agent_release(crowd->founders[i]->agent);
}

void leftovers_free(struct crowd *crowd)
{
    for (int i = 0; i < crowd->n_workers; i++)
        free(crowd->leftovers[i]);
    for (int i = 0; i < crowd->n_founders; i++)
        free(crowd->founders[i]);
}

/* ---- Newcomers that do not find the run ---- */

static void refused(struct crowd *crowd, int worker)
{
    tether_error error = {0};
    tether_agent *agent = NULL;
    const char name[] = {'w', (char)('0' + worker), '\0'};
    must(crowd,
         tether_agent_new(TETHER_AGENT_OPTS(.name = name, .store = crowd->store,
                                            .hooks = tether_sim_hooks(crowd->sim)),
                          &agent, &error),
         &error);
    tether_status st = tether_agent_start(agent, &error);
    tether_sim_note(crowd->sim, "%s cannot start: %s", name, error.message);
    if (st != TETHER_EUNAVAILABLE || !strstr(error.message, "the store has been lost"))
        blame(crowd, "%s started at a lost store with %s: %s", name, tether_status_name(st),
              error.message);
    tether_agent_release(agent);
    crowd->seen.refused_starts++;
}

static struct leftover *founder_of(const struct crowd *crowd)
{
    struct leftover *last = crowd->n_founders ? crowd->founders[crowd->n_founders - 1] : NULL;
    return last && !last->gone ? last : NULL;
}

bool newcomer_starts(struct crowd *crowd, int worker)
{
    if (founder_of(crowd) || crowd->n_newcomers == MAX_NEWCOMERS)
        return false;
    crowd->n_newcomers++;
    if (crowd->store_is_lost) {
        refused(crowd, worker);
        return false;
    }
    crowd->founders[crowd->n_founders++] = leftover_new(crowd, worker, crowd->store);
    struct start *killed = crowd->latest[worker]->dead ? crowd->latest[worker] : NULL;
    if (killed && crowd->two_runs && !crowd->leftovers[worker] && !crowd->violation[0])
        tether_sim_share_address(crowd->sim, founder_of(crowd)->agent, killed->agent);
    return excuse(crowd, EXCUSE_FOUNDED_RUN);
}

void founder_ends(struct crowd *crowd)
{
    struct leftover *founder = founder_of(crowd);
    if (!founder)
        return;
    end(founder);
    crowd_store_return(crowd, true);
}

bool store_is_founders(const struct crowd *crowd)
{
    return founder_of(crowd) != NULL;
}

/* ---- T ---- */

static bool is_of_this_run(const struct crowd *crowd, const char *name, uint64_t incarnation)
{
    for (int i = 0; i < crowd->n_starts; i++)
        if (strcmp(crowd->starts[i]->name, name) == 0 &&
            crowd->starts[i]->agent->self.incarnation == incarnation)
            return true;
    return false;
}

static bool is_of_earlier_run(const struct crowd *crowd, const char *name, uint64_t incarnation)
{
    for (int i = 0; i < crowd->n_workers; i++)
        if (crowd->leftovers[i] && strcmp(crowd->leftovers[i]->name, name) == 0 &&
            crowd->leftovers[i]->incarnation == incarnation)
            return true;
    return false;
}

static void judge_run_of(struct crowd *crowd, tether_agent *agent, bool is_earlier)
{
    struct tether__peer *peer;
    if (atomic_load(&agent->replaced))
        blame(crowd, "T: %s believes that a start of another run has replaced it", agent->name);
    for (uint64_t at = 0; (peer = tether__agent_next_peer_locked(agent, &at));) {
        uint64_t met = peer->pairing.peer_incarnation;
        if (met && !(is_earlier ? is_of_earlier_run : is_of_this_run)(crowd, peer->name, met))
            blame(crowd, "T: %s has met start %llu of '%s', which is of another run", agent->name,
                  (unsigned long long)met, peer->name);
    }
}

void judge_runs(struct crowd *crowd)
{
    for (int i = 0; i < crowd->n_starts; i++)
        if (start_lives(crowd->starts[i]))
            judge_run_of(crowd, crowd->starts[i]->agent, false);
    for (int i = 0; i < crowd->n_workers; i++)
        if (crowd->leftovers[i] && !crowd->leftovers[i]->gone)
            judge_run_of(crowd, crowd->leftovers[i]->agent, true);
    if (founder_of(crowd))
        judge_run_of(crowd, founder_of(crowd)->agent, true);
}
