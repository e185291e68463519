/* An agent and a client that knows gRPC but not Tether: Debian's python3-grpcio, run by
 * python_grpc.py. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rpc/agent.h"
#include "tests/lib/child.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"

#define PYTHON "/usr/bin/python3" /* Debian's, which has Debian's packages */
#define SCRIPT "tests/interop/python_grpc.py"
#define PROTO "protos/rpc.proto"
#define TOKEN "open sesame"

static tether_status echo(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    (void)userdata;
    return tether_value_new(tether_value_bytes(arg), ret_value, reterr);
}

static tether_status upper(void *userdata,
                           const tether_value *arg,
                           tether_value **ret_value,
                           tether_error *reterr)
{
    (void)userdata;
    char text[64];
    tether_bytes bytes = tether_value_bytes(arg);
    if (bytes.len > sizeof text)
        return tether_error_set(reterr, TETHER_ETOOBIG, "too long");
    for (size_t i = 0; i < bytes.len; i++)
        text[i] = (char)toupper(((const char *)bytes.data)[i]);
    return tether_value_new(tether_bytes_of(text, bytes.len), ret_value, reterr);
}

static tether_status fail_always(void *userdata,
                                 const tether_value *arg,
                                 tether_value **ret_value,
                                 tether_error *reterr)
{
    (void)userdata, (void)ret_value;
    tether_bytes name = tether_value_bytes(arg);
    return tether_error_set(reterr, TETHER_EINVAL, "no such beast: %.*s", (int)name.len,
                            (const char *)name.data);
}

/* Outlasts its caller, but not the test. */
static tether_status sleep_until_canceled(void *userdata,
                                          const tether_value *arg,
                                          tether_value **ret_value,
                                          tether_error *reterr)
{
    (void)userdata, (void)arg, (void)ret_value;
    assert_eventually(tether_caller_has_cancelled());
    return tether_error_set(reterr, TETHER_ECANCELED, "nobody waits any more");
}

#define FIND_GRPC                  \
    "import importlib.util as i\n" \
    "print('installed' if i.find_spec('grpc') else 'missing')\n"

/* Skips the test where python3-grpcio is not installed; `./dev test` installs it. */
static void need_grpc(void)
{
    struct tether_test_child *child =
        tether_test_child_start((const char *const[]){PYTHON, "-c", FIND_GRPC, NULL});
    bool ended = tether_test_child_wait(child, TETHER_TEST_LIMIT_MS);
    char *output = tether_test_child_output(child);
    bool missing = strstr(output, "missing") != NULL, installed = strstr(output, "installed");
    free(output);
    tether_test_child_free(child);
    assert_true(ended && missing != installed);
    if (missing)
        skip();
}

static void python_calls_an_agent(void **state)
{
    (void)state;
    need_grpc();
    tether_error err = {0};
    tether_store *store = NULL;
    tether_agent *agent = NULL;
    assert_int_equal(tether_store_hash_new(&store, &err), TETHER_OK);
    assert_int_equal(
        tether_agent_new(TETHER_AGENT_OPTS(.name = "ps", .store = store, .token = TOKEN), &agent,
                         &err),
        TETHER_OK);
    assert_int_equal(tether_agent_register(agent, "echo", echo, NULL, &err), TETHER_OK);
    assert_int_equal(tether_agent_register_inline(agent, "upper", upper, NULL, &err), TETHER_OK);
    assert_int_equal(tether_agent_register(agent, "fail", fail_always, NULL, &err), TETHER_OK);
    assert_int_equal(tether_agent_register(agent, "sleep", sleep_until_canceled, NULL, &err),
                     TETHER_OK);
    if (tether_agent_start(agent, &err) != TETHER_OK)
        fail_msg("%s", err.message);

    struct tether_test_child *child = tether_test_child_start(
        (const char *const[]){PYTHON, SCRIPT, PROTO, tether_agent_address(agent), TOKEN, NULL});
    if (!tether_test_child_wait(child, TETHER_TEST_LIMIT_MS) || !tether_test_child_ok(child)) {
        char *output = tether_test_child_output(child);
        print_error("%s\n", output);
        free(output);
        fail_msg("Python's side ended with %s", tether_test_child_result(child));
    }
    tether_test_child_free(child);
    assert_int_equal(tether_agent_shutdown(agent, true, &err), TETHER_OK);
    tether_agent_release(agent);
    tether_store_release(store);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(python_calls_an_agent)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
