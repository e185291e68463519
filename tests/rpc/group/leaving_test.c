/* A worker that leaves answers what it has begun, also what runs inline, on the thread that would
 * else hear that it leaves. */
#include <pthread.h>

#include "rpc/agent/internal.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"
#include "tests/rpc/lib/world.h"

static struct tether_test_event entered;

/* Returns when its worker is leaving, and has had the time to look whether something runs. */
static tether_status linger(void *userdata,
                            const tether_value *arg,
                            tether_value **ret_value,
                            tether_error *reterr)
{
    tether_agent *agent = userdata;
    (void)arg;
    tether_test_event_signal(&entered);
    assert_eventually(atomic_load(&agent->leaving));
    for (int i = 0; i < 50; i++)
        tether_test_nap(0);
    return tether_value_printf(ret_value, reterr, "here it is");
}

static void register_linger(tether_agent *agent)
{
    assert_int_equal(tether_agent_register_inline(agent, "linger", linger, agent, NULL), TETHER_OK);
}

static void *leave(void *agent)
{
    assert_int_equal(tether_agent_shutdown(agent, true, NULL), TETHER_OK);
    return NULL;
}

static void answers_what_it_has_begun(enum tether_test_net net)
{
    struct tether_test_world w;
    tether_value *value = NULL;
    tether_error err = {0};
    pthread_t leaver;
    tether_test_event_init(&entered);
    tether_test_world_register = register_linger;
    tether_test_world_start(&w, net, 2, NULL);

    tether_future *call = tether_rpc_async(w.agents[0], "w1", "linger", NULL, TETHER_TEST_LIMIT_MS);
    assert_true(tether_test_event_wait(&entered, 1, TETHER_TEST_LIMIT_MS));
    assert_int_equal(pthread_create(&leaver, NULL, leave, w.agents[1]), 0);
    if (tether_future_wait(call, TETHER_TEST_LIMIT_MS, &value, &err) != TETHER_OK)
        fail_msg("%s", err.message);
    assert_string_equal(tether_value_str(value), "here it is");

    pthread_join(leaver, NULL);
    tether_value_release(value);
    tether_future_release(call);
    tether_test_world_stop(&w);
    tether_test_world_register = NULL;
    tether_test_event_fini(&entered);
}

static void leaving_worker_answers_begun_calls_over_grpc(void **state)
{
    (void)state;
    answers_what_it_has_begun(TETHER_TEST_GRPC);
}

static void leaving_worker_answers_begun_calls_over_unix_socket(void **state)
{
    (void)state;
    answers_what_it_has_begun(TETHER_TEST_UNIX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(leaving_worker_answers_begun_calls_over_grpc),
        cmocka_unit_test(leaving_worker_answers_begun_calls_over_unix_socket),
    };
    return cmocka_run_group_tests_name("leaving", tests, NULL, NULL);
}
