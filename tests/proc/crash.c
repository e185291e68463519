#include "tests/proc/crash.h"

#include "tests/lib/cmocka.h"
#include "tests/proc/stage.h"

struct tether_test_procs *crash_begin(struct stage *stage,
                                      const struct tether_test_proc_role *role,
                                      int ranks,
                                      int lease_ms)
{
    stage_start(stage, ranks, lease_ms, "");
    return tether_test_procs_start_opts(
        role, &(struct tether_test_procs_opts){
                  .ranks = ranks, .arg = stage->arg, .timeout_ms = 3 * LIMIT});
}

void crash_kill(struct tether_test_procs *procs, int rank)
{
    atomic_store(&crew_page(procs->world)->count[KILLED_AT], now_ns());
    tether_test_signal(procs->world, rank, SIGKILL);
}

_Atomic int crash_n_lost;

static void crash_count_loss(tether_rref *rref, void *userdata)
{
    (void)userdata;
    assert_int_equal(tether_rref_status(rref, NULL), TETHER_RREF_BROKEN);
    atomic_fetch_add(&crash_n_lost, 1);
}

void crash_watch_owner(tether_rref *rref)
{
    tether_error err = {0};
    crew_ok(tether_rref_on_owner_lost(rref, crash_count_loss, NULL, &err), &err);
}

void crash_ends_with_owner(tether_future *future, const char *owner)
{
    tether_error err = {0};
    crew_fails(tether_future_wait(future, LIMIT, NULL, &err), &err, TETHER_EOWNERDIED, owner);
    tether_future_release(future);
}

void crash_is_of_no_use(struct actor *actor,
                        tether_rref *rref,
                        const char *owner,
                        const char *third)
{
    tether_error err = {0};
    assert_int_equal(tether_rref_status(rref, &err), TETHER_RREF_BROKEN);
    assert_int_equal(err.code, TETHER_EOWNERDIED);
    crew_fails(thing_try(rref, 0, &err), &err, TETHER_EOWNERDIED, owner);
    crash_ends_with_owner(tether_rref_to_here_async(rref, LIMIT), owner);
    crash_ends_with_owner(pass_on_async(actor, third, "keep", rref), owner);
    tether_rref *result = tether_rref_remote(rref, "touch", NULL, LIMIT);
    crash_ends_with_owner(tether_rref_to_here_async(result, LIMIT), owner);
    tether_rref_release(result);
}
