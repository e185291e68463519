/* A process group and an RPC agent of one process meet at the same place (PyTorch's test_store.py:
 * test_init_pg_and_rpc_with_same_file, test_init_pg_and_rpc_with_same_socket). The group is what
 * others build on a store: a rendezvous, and keys under a prefix. The agent is a real one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rendezvous/rendezvous.h"
#include "rpc/agent.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/port.h"
#include "tests/lib/wait.h"

#define LIMIT TETHER_TEST_LIMIT_MS

static tether_status say_hello(void *userdata,
                               const tether_value *arg,
                               tether_value **ret_value,
                               tether_error *reterr)
{
    (void)userdata;
    return tether_value_printf(ret_value, reterr, "hello, %s", tether_value_str(arg));
}

static void expect_ok(tether_status st, const tether_error *error)
{
    if (st != TETHER_OK)
        fail_msg("%s", error->message);
}

static tether_agent *init_rpc(const char *url)
{
    tether_agent *agent = NULL;
    tether_error error = {0};
    expect_ok(
        tether_agent_new(TETHER_AGENT_OPTS(.name = "worker0", .rendezvous = url), &agent, &error),
        &error);
    expect_ok(tether_agent_register(agent, "say_hello", say_hello, NULL, &error), &error);
    expect_ok(tether_agent_start(agent, &error), &error);
    assert_int_equal(tether_agent_rank(agent), 0);
    return agent;
}

static void expect_rpc_works(tether_agent *agent)
{
    tether_value *who = NULL, *text = NULL;
    tether_error error = {0};
    expect_ok(tether_value_printf(&who, &error, "group"), &error);
    expect_ok(tether_rpc_sync(agent, "worker0", "say_hello", who, LIMIT, &text, &error), &error);
    assert_string_equal(tether_value_str(text), "hello, group");
    tether_value_release(text);
    tether_value_release(who);
}

static void end_rpc(tether_agent *agent)
{
    tether_error error = {0};
    expect_ok(tether_agent_shutdown(agent, true, &error), &error);
    tether_agent_release(agent);
}

static tether_store *init_process_group(const char *url)
{
    struct tether_world world = {0};
    tether_store *store = NULL;
    tether_error error = {0};
    expect_ok(tether_rendezvous(url, 0, 1, LIMIT, &world, &error), &error);
    assert_int_equal(world.size, 1);
    expect_ok(tether_store_prefix_new("default_pg", world.store, &store, &error), &error);
    tether_world_fini(&world);
    return store;
}

/* Uses the store as a group does: ranks count themselves in and publish their addresses. */
static void expect_group_works(tether_store *store, int times)
{
    tether_buf value = TETHER_BUF_INIT;
    int64_t sum = 0;
    assert_int_equal(tether_store_add(store, "worker0", 1, LIMIT, &sum, NULL), TETHER_OK);
    assert_int_equal(sum, times); /* the agent of that name has keys of its own */
    assert_int_equal(tether_store_set(store, "0", tether_bytes_str("address"), LIMIT, NULL),
                     TETHER_OK);
    assert_int_equal(tether_store_get(store, "0", LIMIT, &value, NULL), TETHER_OK);
    assert_string_equal(value.data, "address");
    tether_buf_fini(&value);
}

static void test_init_pg_and_rpc_with_same_file(void **state)
{
    (void)state;
    const char *dir = getenv("TEST_TMPDIR");
    char path[256], url[300], with_rank[340];
    snprintf(path, sizeof path, "%s/same-XXXXXX", dir ? dir : "/tmp");
    close(mkstemp(path));
    snprintf(url, sizeof url, "file://%s", path);
    snprintf(with_rank, sizeof with_rank, "%s?rank=0&world_size=1", url);
    tether_agent *agent = init_rpc(with_rank);
    tether_store *group = init_process_group(url);
    expect_group_works(group, 1);
    tether_store_release(group);
    assert_int_equal(access(path, F_OK), 0); /* the agent still uses it */
    expect_rpc_works(agent);
    end_rpc(agent);
    unlink(path);
}

/* USE_LIBUV chooses between PyTorch's two servers. Tether has one, and works with either value. */
static void test_init_pg_and_rpc_with_same_socket(void **state)
{
    const char *use_libuv = *state;
    char port[16], url[64];
    snprintf(port, sizeof port, "%d", tether_test_quiet_port());
    snprintf(url, sizeof url, "tcp://localhost:%s?rank=0&world_size=1", port);
    setenv("MASTER_ADDR", "localhost", 1);
    setenv("MASTER_PORT", port, 1);
    setenv("USE_LIBUV", use_libuv, 1);
    tether_store *group = init_process_group("env://");
    tether_agent *agent = init_rpc(url);
    unsetenv("USE_LIBUV");
    expect_group_works(group, 1);
    expect_rpc_works(agent);
    end_rpc(agent);
    expect_group_works(group, 2); /* the group hosts the store, and goes on */
    tether_store_release(group);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_init_pg_and_rpc_with_same_file),
        {"test_init_pg_and_rpc_with_same_socket (USE_LIBUV=0)",
         test_init_pg_and_rpc_with_same_socket, NULL, NULL, "0"},
        {"test_init_pg_and_rpc_with_same_socket (USE_LIBUV=1)",
         test_init_pg_and_rpc_with_same_socket, NULL, NULL, "1"},
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
