/* One seed: see seed.h. */
#include "tests/sim/seed.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/lib/heap.h"
#include "tests/sim/crowd.h"

uint64_t seed_number_from(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

static void add(struct seed_total *total, const struct crowd *crowd)
{
    const struct tether_sim_faults *faults = tether_sim_faults(crowd->sim);
    static_assert(N_EXCUSES <= TETHER__ARRAY_LEN(total->excuses), "there is room for each rule");
    for (int i = 0; i < N_EXCUSES; i++)
        total->excuses[i] += crowd->excuses[i];
    total->made += crowd->seen.made;
    total->arrived += crowd->seen.arrived;
    total->used += crowd->seen.used;
    total->refused += crowd->seen.refused;
    total->restarted += crowd->seen.restarted;
    total->store_losses += crowd->seen.store_losses;
    total->empty_stores += crowd->seen.empty_stores;
    total->renamed += crowd->seen.renamed;
    total->refused_starts += crowd->seen.refused_starts;
    total->bulky += crowd->bulky;
    total->two_runs += crowd->two_runs;
    total->sliced += crowd->waiting_slice > 0;
    total->faults.cut += faults->cut;
    total->faults.lost += faults->lost;
    total->faults.duplicated += faults->duplicated;
    total->faults.reordered += faults->reordered;
    total->faults.slowed += faults->slowed;
    total->faults.parted += faults->parted;
    total->faults.paused += faults->paused;
    total->faults.killed += faults->killed;
    total->faults.strayed += faults->strayed;
}

const char *seed_excuse(size_t rule)
{
    static const char *const texts[] = {
#define X(name, text) text,
        EXCUSES(X)
#undef X
    };
    return rule < N_EXCUSES ? texts[rule] : NULL;
}

void seed_total_add(struct seed_total *total, const struct seed_total *more)
{
    for (int i = 0; i < N_EXCUSES; i++)
        total->excuses[i] += more->excuses[i];
    total->made += more->made;
    total->arrived += more->arrived;
    total->used += more->used;
    total->refused += more->refused;
}

bool seed_run(uint64_t seed, bool trace, struct seed_total *total, char *why, size_t size)
{
    tether_test_heap_fail_never();
    struct crowd *crowd = crowd_new(seed, trace);
    chaos(crowd);
    if (crowd->violation[0]) {
        snprintf(why, size, "%s", crowd->violation);
        return false;
    }
    add(total, crowd);
    crowd_free(crowd);
    if (tether_test_heap_live() == 0)
        return true;
    snprintf(why, size, "it leaves memory behind");
    return false;
}

const char *seed_total_lacks(const struct seed_total *total,
                             void (*print)(int count, const char *name))
{
    const struct {
        const char *name;
        int n;
    } rows[] = {
        {"cut", total->faults.cut},
        {"messages lost", total->faults.lost},
        {"messages duplicated", total->faults.duplicated},
        {"messages reordered by reconnects", total->faults.reordered},
        {"delay", total->faults.slowed},
        {"partition", total->faults.parted},
        {"pause", total->faults.paused},
        {"crash", total->faults.killed},
        {"restart", total->restarted},
        {"loss of the store", total->store_losses},
        {"store that comes back empty", total->empty_stores},
        {"restart under another name", total->renamed},
        {"start at a lost store", total->refused_starts},
        {"worlds with values in pieces", total->bulky},
        {"worlds with two runs", total->two_runs},
        {"dials that reach another run", total->faults.strayed},
        {"worlds with small slices", total->sliced},
    };
    const char *lacks = NULL;
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        if (print)
            print(rows[i].n, rows[i].name);
        if (!rows[i].n)
            lacks = rows[i].name;
    }
    return lacks;
}
