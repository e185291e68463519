/* Visits all states of the model of two workers (pairing_model.h), breadth first. */
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "tests/lib/cmocka.h"
#include "tests/rpc/handshake/pairing_model.h"

static uint8_t forgeries, forgets; /* in the worlds that are visited next */

struct visit {
    struct world world;
    uint32_t from;
    uint8_t step;
};

struct space {
    struct visit *visits;
    uint32_t *table; /* hash → index + 1 */
    size_t n, cap, mask;
};

static size_t hash(const struct world *world)
{
    return tether__hash(world, sizeof *world, 0);
}

static void grow(struct space *space)
{
    space->cap = space->cap ? space->cap * 2 : 1024;
    space->mask = space->cap * 2 - 1;
    space->visits = realloc(space->visits, space->cap * sizeof *space->visits);
    free(space->table);
    space->table = calloc(space->cap * 2, sizeof *space->table);
    assert_true(space->visits && space->table);
    for (size_t i = 0; i < space->n; i++) {
        size_t slot = hash(&space->visits[i].world) & space->mask;
        while (space->table[slot])
            slot = (slot + 1) & space->mask;
        space->table[slot] = (uint32_t)i + 1;
    }
}

static void add(struct space *space, const struct world *world, uint32_t from, int step)
{
    if (space->n == space->cap)
        grow(space);
    size_t slot = hash(world) & space->mask;
    for (; space->table[slot]; slot = (slot + 1) & space->mask)
        if (memcmp(&space->visits[space->table[slot] - 1].world, world, sizeof *world) == 0)
            return;
    space->visits[space->n] = (struct visit){*world, from, (uint8_t)step};
    space->table[slot] = (uint32_t)++space->n;
}

static void tell_way(const struct space *space, size_t index)
{
    if (index)
        tell_way(space, space->visits[index].from);
    const struct visit *visit = &space->visits[index];
    print_message("%s stream %d end %d\n", index ? model_kinds[visit->step / 4] : "start,",
                  visit->step / 2 % 2, visit->step % 2);
    model_say_world(&visit->world);
}

static void visit_all(const struct world *start)
{
    struct space space = {0};
    unsigned most_hellos = 0;
    add(&space, start, 0, 0);
    for (size_t i = 0; i < space.n; i++) {
        for (int step = 0; step < 4 * KINDS && !model_violation; step++) {
            struct world next = space.visits[i].world;
            if (model_try_step(&next, step) && !model_violation)
                add(&space, &next, (uint32_t)i, step);
            if (model_violation)
                print_message("at step %s stream %d end %d\n", model_kinds[step / 4], step / 2 % 2,
                              step % 2);
        }
        if (!model_violation) {
            model_settle(space.visits[i].world, (unsigned)i);
            most_hellos = model_hellos_sent > most_hellos ? model_hellos_sent : most_hellos;
        }
        if (model_violation) {
            tell_way(&space, i);
            fail_msg("%s", model_violation);
        }
    }
    print_message("%zu states; at most %u hellos until both streams are up\n", space.n,
                  most_hellos);
    assert_in_range(most_hellos, 4, forgeries || forgets ? 16 : 12);
    free(space.visits);
    free(space.table);
}

static void visit(uint8_t fences,
                  uint8_t restarts,
                  uint8_t cuts,
                  uint8_t frames,
                  uint8_t late_hellos)
{
    struct world world;
    memset(&world, 0, sizeof world);
    for (int e = 0; e < ENDS; e++) {
        world.end[e].incarnation = 1;
        world.end[e].epoch = 1;
    }
    world.fences = fences;
    world.restarts = restarts;
    world.cuts = cuts;
    world.frames = frames;
    world.late_hellos = late_hellos;
    world.forgeries = forgeries;
    world.forgets = forgets;
    model_violation = NULL;
    visit_all(&world);
}

static void pairing_converges_after_forged_dial_numbers(void **state)
{
    (void)state;
    forgeries = 1;
    visit(0, 0, 1, 1, 0);
    visit(1, 0, 0, 1, 0);
    visit(0, 1, 0, 1, 0);
    forgeries = 0;
}

static void pairing_converges_after_one_forgets_the_other(void **state)
{
    (void)state;
    forgets = 1;
    visit(1, 0, 0, 1, 0);
    forgets = 0;
}

static void pairing_converges_after_both_forget_each_other(void **state)
{
    (void)state;
    forgets = 2;
    visit(1, 0, 0, 0, 0);
    forgets = 0;
}

static void pairing_converges_after_both_fence(void **state)
{
    (void)state;
    visit(2, 0, 0, 1, 0);
}

static void pairing_converges_after_fence_and_cut(void **state)
{
    (void)state;
    visit(1, 0, 1, 1, 0);
}

static void pairing_converges_after_restart_and_fence(void **state)
{
    (void)state;
    visit(1, 1, 0, 1, 0);
}

static void pairing_converges_after_both_restart(void **state)
{
    (void)state;
    visit(0, 2, 0, 1, 0);
}

static void pairing_ignores_late_hellos(void **state)
{
    (void)state;
    visit(1, 0, 1, 1, 1);
    visit(0, 0, 3, 1, 1);
}

static void pairing_ignores_late_hellos_of_earlier_starts(void **state)
{
    (void)state;
    visit(0, 1, 1, 1, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pairing_converges_after_both_fence),
        cmocka_unit_test(pairing_converges_after_fence_and_cut),
        cmocka_unit_test(pairing_converges_after_restart_and_fence),
        cmocka_unit_test(pairing_converges_after_both_restart),
        cmocka_unit_test(pairing_ignores_late_hellos),
        cmocka_unit_test(pairing_ignores_late_hellos_of_earlier_starts),
        cmocka_unit_test(pairing_converges_after_forged_dial_numbers),
        cmocka_unit_test(pairing_converges_after_one_forgets_the_other),
        cmocka_unit_test(pairing_converges_after_both_forget_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
