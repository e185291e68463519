/* Which thread delays which frame: a batch that one thread handles delays only the frames that this
 * thread queues. An inline function of w1 blocks while the pool of w1 answers other calls of w0. */
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"
#include "tests/rpc/lib/certs.h"
#include "tests/rpc/lib/world.h"

#define LARGE_BYTES (16u << 20) /* many messages, and more than the buffers of a connection */

static struct tether_test_event inline_began, inline_may_end;

/* Occupies the thread that receives for w1. */
static tether_status block_receiver(void *userdata,
                                    const tether_value *arg,
                                    tether_value **ret_value,
                                    tether_error *reterr)
{
    (void)userdata, (void)arg, (void)ret_value;
    tether_test_event_signal(&inline_began);
    if (!tether_test_event_wait(&inline_may_end, 1, TETHER_TEST_LIMIT_MS))
        return tether_error_set(reterr, TETHER_EINTERNAL, "the test did not end this function");
    return TETHER_OK;
}

/* Answers once the receiving thread is occupied. */
static tether_status answer_later(void *userdata,
                                  const tether_value *arg,
                                  tether_value **ret_value,
                                  tether_error *reterr)
{
    (void)userdata, (void)arg, (void)ret_value;
    if (!tether_test_event_wait(&inline_began, 1, TETHER_TEST_LIMIT_MS))
        return tether_error_set(reterr, TETHER_EINTERNAL, "the inline function did not begin");
    return TETHER_OK;
}

/* As answer_later(), with a result that takes many messages. */
static tether_status answer_much_later(void *userdata,
                                       const tether_value *arg,
                                       tether_value **ret_value,
                                       tether_error *reterr)
{
    static uint8_t bytes[LARGE_BYTES];
    tether_status st = answer_later(userdata, arg, ret_value, reterr);
    if (st == TETHER_OK)
        st = tether_value_new(tether_bytes_of(bytes, sizeof bytes), ret_value, reterr);
    return st;
}

static void register_functions(tether_agent *agent)
{
    tether_status st =
        tether_agent_register_inline(agent, "block_receiver", block_receiver, NULL, NULL);
    if (st == TETHER_OK)
        st = tether_agent_register(agent, "answer_later", answer_later, NULL, NULL);
    if (st == TETHER_OK)
        st = tether_agent_register(agent, "answer_much_later", answer_much_later, NULL, NULL);
    assert_int_equal(st, TETHER_OK);
}

/* Their names need not be in the certificate. */
#define WITH_TLS                                                               \
    TETHER_AGENT_OPTS(.tls_ca_pem = cert_right_ca, .tls_cert_pem = cert_delta, \
                      .tls_key_pem = key_delta, .tls_one_way = true, .token = "flush")

static void run_beside_inline_function(enum tether_test_net net,
                                       const struct tether_agent_opts *opts,
                                       const char *function,
                                       int n_pooled)
{
    struct tether_test_world world;
    tether_future *pooled[4];
    tether_error err = {0};
    assert_true(n_pooled <= 4);
    tether_test_event_init(&inline_began);
    tether_test_event_init(&inline_may_end);
    tether_test_world_register = register_functions;
    tether_test_world_start(&world, net, 2, opts);
    tether_test_world_register = NULL;
    tether_agent *caller = world.agents[0];
    assert_int_equal(tether_rpc_sync(caller, "w1", "echo", NULL, 60000, NULL, NULL), TETHER_OK);

    for (int i = 0; i < n_pooled; i++)
        pooled[i] = tether_rpc_async(caller, "w1", function, NULL, 60000);
    tether_future *blocked = tether_rpc_async(caller, "w1", "block_receiver", NULL, 60000);
    for (int i = 0; i < n_pooled; i++) {
        tether_status st = tether_future_wait(pooled[i], 20000, NULL, &err);
        if (st != TETHER_OK)
            fail_msg("pooled reply %d: %s: %s", i, tether_status_name(st), err.message);
        tether_future_release(pooled[i]);
    }
    tether_test_event_signal(&inline_may_end);
    assert_int_equal(tether_future_wait(blocked, 60000, NULL, NULL), TETHER_OK);
    tether_future_release(blocked);

    tether_test_world_stop(&world);
    tether_test_event_fini(&inline_began);
    tether_test_event_fini(&inline_may_end);
}

static void pooled_replies_leave_over_unix_sockets_when_inline_function_runs(void **state)
{
    (void)state;
    run_beside_inline_function(TETHER_TEST_UNIX, NULL, "answer_later", 4);
}

static void pooled_replies_leave_over_grpc_when_inline_function_runs(void **state)
{
    (void)state;
    run_beside_inline_function(TETHER_TEST_GRPC, NULL, "answer_later", 4);
}

static void pooled_replies_leave_over_tls_when_inline_function_runs(void **state)
{
    (void)state;
    run_beside_inline_function(TETHER_TEST_GRPC, WITH_TLS, "answer_later", 4);
}

static void large_pooled_replies_leave_over_unix_sockets_when_inline_function_runs(void **state)
{
    (void)state;
    run_beside_inline_function(TETHER_TEST_UNIX, NULL, "answer_much_later", 2);
}

static void large_pooled_replies_leave_over_grpc_when_inline_function_runs(void **state)
{
    (void)state;
    run_beside_inline_function(TETHER_TEST_GRPC, NULL, "answer_much_later", 2);
}

static void large_pooled_replies_leave_over_tls_when_inline_function_runs(void **state)
{
    (void)state;
    run_beside_inline_function(TETHER_TEST_GRPC, WITH_TLS, "answer_much_later", 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pooled_replies_leave_over_unix_sockets_when_inline_function_runs),
        cmocka_unit_test(pooled_replies_leave_over_grpc_when_inline_function_runs),
        cmocka_unit_test(pooled_replies_leave_over_tls_when_inline_function_runs),
        cmocka_unit_test(large_pooled_replies_leave_over_unix_sockets_when_inline_function_runs),
        cmocka_unit_test(large_pooled_replies_leave_over_grpc_when_inline_function_runs),
        cmocka_unit_test(large_pooled_replies_leave_over_tls_when_inline_function_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
