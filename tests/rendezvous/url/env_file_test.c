/* The URL rendezvous: env:// and file://, and mistakes of any scheme, with errors that say what to
 * change. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rendezvous/rendezvous.h"
#include "rendezvous/store_tcp.h"
#include "tests/lib/cmocka.h"
#include "tests/rendezvous/url/fixture.h"

/* ---- Any scheme ------------------------------------------------------------------------------ */

static void unknown_handler(void **state)
{
    (void)state;
    tether_error err = {0};
    struct tether_world world;
    assert_int_equal(tether_rendezvous("invalid://", -1, -1, SHORT_MS, &world, &err),
                     TETHER_ENOTFOUND);
    assert_ptr_equal(strstr(err.message, "No rendezvous handler for invalid://"), err.message);
}

static void url_with_node_params(void **state)
{
    (void)state;
    url_refused("file://foo?rank=12&world_size=16", 12, 16, TETHER_EINVAL,
                "has node-specific arguments");
    url_refused("file:///foo?world_size=16", 12, -1, TETHER_EINVAL, "in the URL or as arguments");
    url_refused("mine://foo?x=1&rank=3", -1, 2, TETHER_ENOTFOUND, "No rendezvous handler");
}

static void rendezvous_checks_its_arguments(void **state)
{
    (void)state;
    struct tether_world world;
    url_refused("host:1234", -1, -1, TETHER_EINVAL, "is not a URL");
    url_refused("", -1, -1, TETHER_EINVAL, "is not a URL");
    url_refused("env://", -2, -1, TETHER_EINVAL, "a rank >= 0");
    url_refused("env://", -1, 0, TETHER_EINVAL, "a world size >= 1");
    url_refused("file:///tmp/x", 2, 2, TETHER_EINVAL, "rank 2 is outside a world of 2");
    assert_int_equal(tether_rendezvous(NULL, 0, 1, SHORT_MS, &world, NULL), TETHER_EINVAL);
    assert_int_equal(tether_rendezvous("env://", 0, 1, -7, &world, NULL), TETHER_EINVAL);
    tether_world_fini(NULL);
}

/* ---- env:// ------------------------------------------------------------------------------------
 */

static void env_nominal(void **state)
{
    (void)state;
    setenv("WORLD_SIZE", "1", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("RANK", "0", 1);
    struct tether_world world = url_host_at("env://", LIMIT_MS);
    assert_int_equal(world.rank, 0);
    assert_int_equal(world.size, 1);
    url_put(world.store, "key0", "value0");
    url_expect(world.store, "key0", "value0");
    tether_world_fini(&world);
    assert_null(world.store);
}

static void env_takes_query_when_environment_differs(void **state)
{
    (void)state;
    setenv("WORLD_SIZE", "100", 1);
    setenv("RANK", "99", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    struct tether_world world = url_host_at("env://?rank=0&world_size=1", LIMIT_MS);
    assert_int_equal(world.rank, 0);
    assert_int_equal(world.size, 1);
    tether_world_fini(&world);
}

static void env_listens_beyond_loopback_when_tether_insecure_is_1(void **state)
{
    (void)state;
    char port[8];
    snprintf(port, sizeof port, "%d", url_free_port());
    setenv("WORLD_SIZE", "1", 1);
    setenv("RANK", "0", 1);
    setenv("MASTER_ADDR", "0.0.0.0", 1);
    setenv("MASTER_PORT", port, 1);
    static const char advice[] = "set TETHER_INSECURE=1 (tether-run: --insecure)";
    url_refused("env://", -1, -1, TETHER_EPERM, advice);
    setenv("TETHER_INSECURE", "0", 1);
    url_refused("env://", -1, -1, TETHER_EPERM, advice);
    setenv("TETHER_INSECURE", "1", 1);
    url_refused("env://?insecure=0", -1, -1, TETHER_EPERM, advice);
    struct tether_world world = url_host_at("env://", LIMIT_MS);
    assert_int_equal(world.rank, 0);
    tether_world_fini(&world);
    setenv("TETHER_INSECURE", "maybe", 1);
    url_refused("env://", -1, -1, TETHER_EINVAL, "TETHER_INSECURE is 'maybe': write 1 or 0");
}

static void env_fails_when_variables_are_missing(void **state)
{
    (void)state;
    static const char *const needed[] = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};
    static const char *const values[] = {"0", "1", "127.0.0.1", "29500"};
    for (size_t i = 0; i < 4; i++) {
        char says[96];
        for (size_t k = 0; k < 4; k++)
            setenv(needed[k], values[k], 1);
        snprintf(says, sizeof says, "environment variable %s expected, but not set", needed[i]);
        setenv(needed[i], "", 1); /* an empty variable counts as not set */
        url_refused("env://", -1, -1, TETHER_EINVAL, says);
        unsetenv(needed[i]);
        url_refused("env://", -1, -1, TETHER_EINVAL, says);
    }
}

static void env_fails_when_variables_are_invalid(void **state)
{
    (void)state;
    static const struct {
        const char *name, *value, *says;
    } rows[] = {
        {"RANK", "first", "RANK is 'first', which is not a number"},
        {"RANK", "-1", "RANK is -1: give a whole number, 0 or more"},
        {"RANK", "4", "rank 4 is outside a world of 4: ranks go from 0 to 3"},
        {"WORLD_SIZE", "0", "WORLD_SIZE is 0: give a whole number, 1 or more"},
        {"MASTER_PORT", "0", "MASTER_PORT is 0: give a number from 1 to 65535"},
        {"MASTER_PORT", "65536", "MASTER_PORT is 65536"},
        {"TETHER_USE_AGENT_STORE", "maybe", "TETHER_USE_AGENT_STORE is 'maybe': write 1 or 0"},
    };
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        url_clear_environment(NULL);
        setenv("RANK", "1", 1);
        setenv("WORLD_SIZE", "4", 1);
        setenv("MASTER_ADDR", "127.0.0.1", 1);
        setenv("MASTER_PORT", "29500", 1);
        setenv(rows[i].name, rows[i].value, 1);
        url_refused("env://", -1, -1, TETHER_EINVAL, rows[i].says);
    }
    url_refused("env://host:1", -1, -1, TETHER_EINVAL, "after env:// means nothing here");
    url_refused("env://?port=1", -1, -1, TETHER_EINVAL, "does not know query parameter 'port'");
}

/* If the launcher hosts the store, rank 0 connects like the others and does not wait. Keys of one
 * attempt are not visible to the next. */
static void env_connects_as_client_when_launcher_hosts_the_store(void **state)
{
    (void)state;
    tether_store_server *server = NULL;
    tether_error err = {0};
    if (tether_store_server_new(TETHER_STORE_SERVER_OPTS(.host = "127.0.0.1"), &server, &err))
        fail_msg("%s", err.message);
    char port[16];
    snprintf(port, sizeof port, "%d", tether_store_server_port(server));
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "2", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", port, 1);
    setenv("TETHER_USE_AGENT_STORE", "1", 1);
    struct tether_world attempts[3];
    static const char *const prefixes[] = {"job/0", "job/1", ""};
    for (size_t i = 0; i < 3; i++) {
        setenv("TETHER_STORE_PREFIX", prefixes[i], 1);
        if (tether_rendezvous("env://", -1, -1, LIMIT_MS, &attempts[i], &err) != TETHER_OK)
            fail_msg("%s", err.message);
    }
    url_put(attempts[0].store, "key", "old");
    bool there = true;
    const char *key = "key";
    assert_int_equal(tether_store_check(attempts[1].store, &key, 1, LIMIT_MS, &there, NULL),
                     TETHER_OK);
    assert_false(there);
    url_expect(attempts[2].store, "job/0/key", "old");
    for (size_t i = 0; i < 3; i++)
        tether_world_fini(&attempts[i]);
    tether_store_server_release(server);
}

/* ---- file:// ----------------------------------------------------------------------------------
 */

static void file_common_errors(void **state)
{
    (void)state;
    url_refused("file://?rank=0&world_size=1", -1, -1, TETHER_EINVAL, "path missing");
    url_refused("file:///?rank=0&world_size=1", -1, -1, TETHER_EINVAL, "path missing");
    url_refused("file:///tmp/foo?world_size=1", -1, -1, TETHER_EINVAL, "rank parameter missing");
    url_refused("file:///tmp/foo?rank=0", -1, -1, TETHER_EINVAL, "size parameter missing");
    url_refused("file://tmp/foo?rank=0&world_size=1", -1, -1, TETHER_EINVAL,
                "write three slashes before an absolute path, file:///tmp/foo");
    url_refused("file:///tmp/foo?rank=0&world_size=1&port=2", -1, -1, TETHER_EINVAL,
                "does not know query parameter 'port', only rank, world_size");
    url_refused("file:///nonexistent/dir/foo?rank=0&world_size=1", -1, -1, TETHER_EIO,
                "/nonexistent/dir/foo");
}

static void file_nominal(void **state)
{
    (void)state;
    char path[] = "/tmp/tether url XXXXXX";
    close(mkstemp(path));
    char url[128];
    snprintf(url, sizeof url, "file:////tmp/tether%%20url%%20%s?world_size=2", path + 16);
    struct tether_world worlds[2];
    for (int rank = 0; rank < 2; rank++) {
        char with_rank[160];
        tether_error err = {0};
        snprintf(with_rank, sizeof with_rank, "%s&rank=%d", url, rank);
        if (tether_rendezvous(with_rank, -1, -1, LIMIT_MS, &worlds[rank], &err) != TETHER_OK)
            fail_msg("%s", err.message);
        assert_int_equal(worlds[rank].rank, rank);
        assert_int_equal(worlds[rank].size, 2);
    }
    url_put(worlds[0].store, "key0", "value0");
    url_put(worlds[1].store, "key1", "value1");
    url_expect(worlds[1].store, "key0", "value0");
    url_expect(worlds[0].store, "key1", "value1");
    assert_string_equal(tether_store_file_path(worlds[0].store) + 1, path);
    tether_world_fini(&worlds[0]);
    tether_world_fini(&worlds[1]);
    assert_int_not_equal(access(path, F_OK), 0); /* the last of two users removes the file */
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, url_clear_environment)
    const struct CMUnitTest tests[] = {
        TEST(unknown_handler),
        TEST(url_with_node_params),
        TEST(rendezvous_checks_its_arguments),
        TEST(env_nominal),
        TEST(env_takes_query_when_environment_differs),
        TEST(env_listens_beyond_loopback_when_tether_insecure_is_1),
        TEST(env_fails_when_variables_are_missing),
        TEST(env_fails_when_variables_are_invalid),
        TEST(env_connects_as_client_when_launcher_hosts_the_store),
        TEST(file_common_errors),
        TEST(file_nominal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
