/* The work of a fence is cut into slices. Users of references see its result at once.
 *
 * w1 owns, w0 creates and holds.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/lib/cmocka.h"
#include "tests/rref/scale/fixture.h"

static int n_noticed;

static void on_lost(tether_rref *rref, void *userdata)
{
    (void)rref;
    assert_int_equal((int)(intptr_t)userdata, n_noticed); /* in the order of attaching */
    n_noticed++;
}

static void references_are_broken_at_once_when_the_fence_works_in_slices(void **state)
{
    struct tether_test_world *w = *state;
    enum { N = 5000 };
    struct tether__refs *refs = tether__refs_of(w->agents[0]);
    struct tether__ref_session owner = scale_session(w->agents[0], "w1");
    tether_rref **rrefs = scale_hold_many(w->agents[0], owner, N, false);
    n_noticed = 0;
    for (int i = 0; i < N; i++)
        tether_rref_on_owner_lost(rrefs[i], on_lost, (void *)(intptr_t)i, NULL);
    scale_end_session(refs, owner.peer, owner.number);
    assert_in_range(n_noticed, 1, N - 1); /* it has not come to all of them */
    for (int i = 0; i < N; i++) {
        tether_error err = {0};
        assert_int_equal(tether_rref_status(rrefs[i], &err), TETHER_RREF_BROKEN);
        assert_int_equal(err.code, TETHER_EOWNERDIED);
        assert_non_null(strstr(err.message, "lost"));
    }
    int64_t now = tether__clock_now_ns(w->agents[0]->clock), next = 0;
    for (int i = 0; next != TETHER__NEVER; i++) {
        next = tether__fence_go_on(refs, now);
        assert_in_range(i, 0, N / 64);
    }
    assert_int_equal(n_noticed, N);
    assert_int_equal(tether_rref_counts(w->agents[0]).broken_users, N);
    assert_ptr_equal(rrefs[0]->cause, rrefs[N - 1]->cause); /* one for all */
    for (int i = 0; i < N; i++)
        tether_rref_release(rrefs[i]);
    scale_revive_sessions(owner.peer);
    free(rrefs);
    cast_assert_nothing_left(w);
}

static void references_of_a_later_session_survive_the_fence(void **state)
{
    struct tether_test_world *w = *state;
    struct tether__refs *refs = tether__refs_of(w->agents[0]);
    struct tether__ref_session owner = scale_session(w->agents[0], "w1"), later = owner;
    later.number++;
    tether_rref **rrefs = scale_hold_many(w->agents[0], owner, 3, false);
    rrefs[1]->user.owner = later;
    scale_end_session(refs, owner.peer, owner.number);
    assert_int_equal(tether_rref_status(rrefs[0], NULL), TETHER_RREF_BROKEN);
    assert_int_equal(tether_rref_status(rrefs[1], NULL), TETHER_RREF_CONFIRMED);
    assert_int_equal(tether_rref_status(rrefs[2], NULL), TETHER_RREF_BROKEN);
    scale_end_session(refs, owner.peer, later.number);
    assert_int_equal(tether_rref_status(rrefs[1], NULL), TETHER_RREF_BROKEN);
    for (int i = 0; i < 3; i++)
        tether_rref_release(rrefs[i]);
    scale_revive_sessions(owner.peer);
    free(rrefs);
    cast_assert_nothing_left(w);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, scale_start, scale_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(references_are_broken_at_once_when_the_fence_works_in_slices),
        CASE(references_of_a_later_session_survive_the_fence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
