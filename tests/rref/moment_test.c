/* tether_rref_status() gives a state and a cause of one moment: here the session with the owner
 * ends right after the lock of the references has been released for the first time.
 */
#include "rpc/peer/fence.h"
#include "rpc/peer/session.h"
#include "rref/context.h"
#include "tests/lib/cmocka.h"
#include "tests/rref/cast.h"

static const pthread_mutex_t *watched;
static struct tether__peer *ending; /* its session ends when `watched` has been released */

int __real_pthread_mutex_unlock(pthread_mutex_t *mu);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mu);

/* The linker sends calls of pthread_mutex_unlock() here (`--wrap`, in BUILD). */
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mu)
{
    bool ends = mu == watched;
    int result = __real_pthread_mutex_unlock(mu);
    if (ends) {
        watched = NULL;
        tether__session_fence(ending->session, "the test wants it");
    }
    return result;
}

static void status_has_a_cause_when_reference_breaks_meanwhile(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_error err = {0};
    tether_test_world_register = cast_register;
    tether_test_world_start(&world, TETHER_TEST_SIM, 2, NULL);
    tether_rref *rref = cast_remote_counter(world.agents[0], "w1", "1");
    cast_add_ok(rref, "1", "2"); /* it is confirmed */
    assert_int_equal(tether__agent_peer(world.agents[0], "w1", &ending, NULL), TETHER_OK);
    watched = &tether__refs_of(world.agents[0])->mu;
    assert_int_equal(tether_rref_status(rref, &err), TETHER_RREF_CONFIRMED);
    assert_null(watched); /* the session has ended meanwhile */
    assert_int_equal(err.code, TETHER_OK);
    assert_int_equal(tether_rref_status(rref, &err), TETHER_RREF_BROKEN);
    assert_int_equal(err.code, TETHER_EOWNERDIED);
    tether__peer_release(ending);
    tether_rref_release(rref);
    cast_call_ok(world.agents[0], "w1", "note"); /* w1 learns that the session has ended */
    cast_assert_nothing_left(&world);
    tether_test_world_stop(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(status_has_a_cause_when_reference_breaks_meanwhile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
