/* The URL rendezvous: every scheme, and every mistake with an error that says what to change. */
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/store_tcp.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/heap.h"

#define LIMIT_MS 60000
#define SHORT_MS 300

static const char *const variables[] = {"RANK",
                                        "WORLD_SIZE",
                                        "MASTER_ADDR",
                                        "MASTER_PORT",
                                        "TETHER_USE_AGENT_STORE",
                                        "TETHER_INSECURE",
                                        "TETHER_STORE_PREFIX"};

static int clear_environment(void **state)
{
    (void)state;
    for (size_t i = 0; i < TETHER__ARRAY_LEN(variables); i++)
        unsetenv(variables[i]);
    return 0;
}

/* Returns a port that was free a moment ago. Another process may take it, so host_at() tries
 * several. */
static int free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, len), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &len), 0);
    close(fd);
    return ntohs(address.sin_port);
}

/* Joins as rank 0 at a free port; `format` takes the port. */
static struct tether_world host_at(const char *format, int timeout_ms) TETHER_PRINTF(1, 0);
static struct tether_world host_at(const char *format, int timeout_ms)
{
    tether_error err = {0};
    for (int tries = 0; tries < 20; tries++) {
        char url[256];
        struct tether_world world = {NULL, -1, -1};
        int port = free_port();
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(url, sizeof url, format, port);
#pragma GCC diagnostic pop
        if (strncmp(url, "env:", 4) == 0) {
            char text[16];
            snprintf(text, sizeof text, "%d", port);
            setenv("MASTER_PORT", text, 1);
        }
        tether_status st = tether_rendezvous(url, -1, -1, timeout_ms, &world, &err);
        if (st == TETHER_OK)
            return world;
        if (st != TETHER_EADDRINUSE)
            break;
    }
    fail_msg("%s", err.message);
    return (struct tether_world){NULL, -1, -1};
}

static void put(tether_store *store, const char *key, const char *value)
{
    tether_error err = {0};
    if (tether_store_set(store, key, tether_bytes_str(value), LIMIT_MS, &err) != TETHER_OK)
        fail_msg("%s", err.message);
}

static void expect(tether_store *store, const char *key, const char *value)
{
    tether_error err = {0};
    tether_buf got = TETHER_BUF_INIT;
    if (tether_store_get(store, key, LIMIT_MS, &got, &err) != TETHER_OK)
        fail_msg("%s", err.message);
    assert_string_equal(got.data, value);
    tether_buf_fini(&got);
}

static void refused(const char *url, int rank, int size, tether_status status, const char *says)
{
    struct tether_world world = {NULL, 71, 72};
    tether_error err = {0};
    tether_status st = tether_rendezvous(url, rank, size, SHORT_MS, &world, &err);
    if (st != status || !strstr(err.message, says))
        fail_msg("%s gives %s '%s', not %s '%s'", url, tether_status_name(st), err.message,
                 tether_status_name(status), says);
    assert_null(world.store);
    assert_int_equal(world.rank, 71);
}

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
    refused("file://foo?rank=12&world_size=16", 12, 16, TETHER_EINVAL,
            "has node-specific arguments");
    refused("file:///foo?world_size=16", 12, -1, TETHER_EINVAL, "in the URL or as arguments");
    refused("mine://foo?x=1&rank=3", -1, 2, TETHER_ENOTFOUND, "No rendezvous handler");
}

static void rendezvous_checks_its_arguments(void **state)
{
    (void)state;
    struct tether_world world;
    refused("host:1234", -1, -1, TETHER_EINVAL, "is not a URL");
    refused("", -1, -1, TETHER_EINVAL, "is not a URL");
    refused("env://", -2, -1, TETHER_EINVAL, "a rank >= 0");
    refused("env://", -1, 0, TETHER_EINVAL, "a world size >= 1");
    refused("file:///tmp/x", 2, 2, TETHER_EINVAL, "rank 2 is outside a world of 2");
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
    struct tether_world world = host_at("env://", LIMIT_MS);
    assert_int_equal(world.rank, 0);
    assert_int_equal(world.size, 1);
    put(world.store, "key0", "value0");
    expect(world.store, "key0", "value0");
    tether_world_fini(&world);
    assert_null(world.store);
}

static void env_takes_query_when_environment_differs(void **state)
{
    (void)state;
    setenv("WORLD_SIZE", "100", 1);
    setenv("RANK", "99", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    struct tether_world world = host_at("env://?rank=0&world_size=1", LIMIT_MS);
    assert_int_equal(world.rank, 0);
    assert_int_equal(world.size, 1);
    tether_world_fini(&world);
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
        refused("env://", -1, -1, TETHER_EINVAL, says);
        unsetenv(needed[i]);
        refused("env://", -1, -1, TETHER_EINVAL, says);
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
        clear_environment(NULL);
        setenv("RANK", "1", 1);
        setenv("WORLD_SIZE", "4", 1);
        setenv("MASTER_ADDR", "127.0.0.1", 1);
        setenv("MASTER_PORT", "29500", 1);
        setenv(rows[i].name, rows[i].value, 1);
        refused("env://", -1, -1, TETHER_EINVAL, rows[i].says);
    }
    refused("env://host:1", -1, -1, TETHER_EINVAL, "after env:// means nothing here");
    refused("env://?port=1", -1, -1, TETHER_EINVAL, "does not know query parameter 'port'");
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
    put(attempts[0].store, "key", "old");
    bool there = true;
    const char *key = "key";
    assert_int_equal(tether_store_check(attempts[1].store, &key, 1, LIMIT_MS, &there, NULL),
                     TETHER_OK);
    assert_false(there);
    expect(attempts[2].store, "job/0/key", "old");
    for (size_t i = 0; i < 3; i++)
        tether_world_fini(&attempts[i]);
    tether_store_server_release(server);
}

/* ---- file:// ----------------------------------------------------------------------------------
 */

static void file_common_errors(void **state)
{
    (void)state;
    refused("file://?rank=0&world_size=1", -1, -1, TETHER_EINVAL, "path missing");
    refused("file:///?rank=0&world_size=1", -1, -1, TETHER_EINVAL, "path missing");
    refused("file:///tmp/foo?world_size=1", -1, -1, TETHER_EINVAL, "rank parameter missing");
    refused("file:///tmp/foo?rank=0", -1, -1, TETHER_EINVAL, "size parameter missing");
    refused("file://tmp/foo?rank=0&world_size=1", -1, -1, TETHER_EINVAL,
            "write three slashes before an absolute path, file:///tmp/foo");
    refused("file:///tmp/foo?rank=0&world_size=1&port=2", -1, -1, TETHER_EINVAL,
            "does not know query parameter 'port', only rank, world_size");
    refused("file:///nonexistent/dir/foo?rank=0&world_size=1", -1, -1, TETHER_EIO,
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
    put(worlds[0].store, "key0", "value0");
    put(worlds[1].store, "key1", "value1");
    expect(worlds[1].store, "key0", "value0");
    expect(worlds[0].store, "key1", "value1");
    assert_string_equal(tether_store_file_path(worlds[0].store) + 1, path);
    tether_world_fini(&worlds[0]);
    tether_world_fini(&worlds[1]);
    assert_int_not_equal(access(path, F_OK), 0); /* the last of two users removes the file */
}

/* ---- tcp:// ------------------------------------------------------------------------------------
 */

static void tcp_common_errors(void **state)
{
    (void)state;
    refused("tcp://127.0.0.1?rank=0&world_size=1", -1, -1, TETHER_EINVAL, "port number missing");
    refused("tcp://127.0.0.1:0?rank=0&world_size=1", -1, -1, TETHER_EINVAL, "port number missing");
    refused("tcp://[::1]?rank=0&world_size=1", -1, -1, TETHER_EINVAL, "write tcp://[::1]:PORT");
    refused("tcp://127.0.0.1:23456?world_size=1", -1, -1, TETHER_EINVAL, "rank parameter missing");
    refused("tcp://127.0.0.1:23456?rank=0", -1, -1, TETHER_EINVAL, "size parameter missing");
    refused("tcp://:23456?rank=0&world_size=1", -1, -1, TETHER_EINVAL, "host missing");
    refused("tcp://127.0.0.1:23456/x?rank=0&world_size=1", -1, -1, TETHER_EINVAL,
            "a path ('/x') means nothing here");
    refused("tcp://127.0.0.1:23456?rank=x&world_size=1", -1, -1, TETHER_EINVAL,
            "rank is 'x', which is not a number");
    refused("tcp://127.0.0.1:23456?rank=0&world_size=1&insecure=2", -1, -1, TETHER_EINVAL,
            "insecure is '2': write 1 or 0");
    refused("tcp://127.0.0.1:23456?rank=0&size=1", -1, -1, TETHER_EINVAL,
            "does not know query parameter 'size'");
}

/* The client gives the error of the seed; rank 0 would have to listen at that address, and says so.
 * Both return within the timeout, including the name lookup. */
static void tcp_dns_timeout(void **state)
{
    (void)state;
    int64_t start = tether__clock_now_ms(&tether__clock_system);
    struct tether_world world;
    tether_error err = {0};
    assert_int_equal(tether_rendezvous("tcp://dnsnotexist:23456?world_size=2&rank=1", -1, -1,
                                       SHORT_MS, &world, &err),
                     TETHER_ETIMEOUT);
    const char *says = strstr(err.message, "client socket has timed out after");
    assert_non_null(says);
    assert_non_null(strstr(says, "dnsnotexist"));
    assert_int_not_equal(tether_rendezvous("tcp://dnsnotexist:23456?world_size=2&rank=0", -1, -1,
                                           SHORT_MS, &world, &err),
                         TETHER_OK);
    assert_non_null(strstr(err.message, "dnsnotexist"));
    assert_true(tether__clock_now_ms(&tether__clock_system) - start < LIMIT_MS);
}

static void tcp_nominal(void **state)
{
    (void)state;
    struct tether_world world = host_at("tcp://localhost:%d?world_size=1&rank=0", LIMIT_MS);
    assert_int_equal(world.rank, 0);
    assert_int_equal(world.size, 1);
    put(world.store, "key0", "value0");
    expect(world.store, "key0", "value0");
    tether_world_fini(&world);
}

static void *join_as_rank_1(void *url)
{
    struct tether_world *world = calloc(1, sizeof *world);
    tether_error err = {0};
    if (tether_rendezvous(url, 1, 2, LIMIT_MS, world, &err) != TETHER_OK)
        fprintf(stderr, "%s\n", err.message);
    return world;
}

static void tcp_two_ranks_meet(void **state)
{
    (void)state;
    for (int tries = 0; tries < 20; tries++) {
        char url[64];
        snprintf(url, sizeof url, "tcp://127.0.0.1:%d", free_port());
        pthread_t thread;
        struct tether_world world = {NULL, 0, 0}, *other = NULL;
        tether_error err = {0};
        assert_int_equal(pthread_create(&thread, NULL, join_as_rank_1, url), 0);
        tether_status st = tether_rendezvous(url, 0, 2, LIMIT_MS, &world, &err);
        pthread_join(thread, (void **)&other);
        if (st == TETHER_OK) {
            assert_non_null(other->store);
            assert_int_equal(other->rank, 1);
            put(other->store, "from", "1");
            expect(world.store, "from", "1");
        }
        tether_world_fini(other);
        free(other);
        tether_world_fini(&world);
        if (st == TETHER_OK)
            return;
        if (st != TETHER_EADDRINUSE)
            fail_msg("%s", err.message);
    }
    fail_msg("no free port");
}

static void tcp_host_waits_for_the_others(void **state)
{
    (void)state;
    char url[96];
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d?world_size=2&rank=0", free_port());
    refused(url, -1, -1, TETHER_ETIMEOUT, "1/2 clients joined");
}

static void tcp_beyond_loopback_needs_insecure(void **state)
{
    (void)state;
    char url[96];
    snprintf(url, sizeof url, "tcp://0.0.0.0:%d?world_size=1&rank=0", free_port());
    refused(url, -1, -1, TETHER_EPERM, "insecure");
}

static void tcp_store_timeout_set(void **state)
{
    (void)state;
    struct tether_world world = host_at("tcp://127.0.0.1:%d?world_size=1&rank=0", SHORT_MS);
    assert_int_equal(tether_store_get_timeout(world.store), SHORT_MS);
    tether_error err = {0};
    tether_buf value = TETHER_BUF_INIT;
    int64_t start = tether__clock_now_ms(&tether__clock_system);
    assert_int_equal(
        tether_store_get(world.store, "nonexistant key", TETHER_DEFAULT_MS, &value, &err),
        TETHER_ETIMEOUT);
    int64_t took = tether__clock_now_ms(&tether__clock_system) - start;
    assert_true(took >= SHORT_MS && took < LIMIT_MS);
    assert_non_null(strstr(err.message, "nonexistant key"));
    tether_world_fini(&world);
}

static void tcp_store_timeout_doesnt_break_client(void **state)
{
    (void)state;
    struct tether_world world = host_at("tcp://127.0.0.1:%d?world_size=1&rank=0", SHORT_MS);
    tether_buf value = TETHER_BUF_INIT;
    assert_int_equal(tether_store_get(world.store, "the_key", TETHER_DEFAULT_MS, &value, NULL),
                     TETHER_ETIMEOUT);
    put(world.store, "the_key", "x");
    expect(world.store, "the_key", "x");
    tether_world_fini(&world);
}

static void tcp_url_with_libuv(void **state)
{
    (void)state;
    static const char *const urls[] = {"tcp://127.0.0.1:%d?world_size=1&rank=0&use_libuv=1",
                                       "tcp://127.0.0.1:%d?world_size=1&rank=0&use_libuv=0"};
    for (size_t i = 0; i < 2; i++) {
        struct tether_world world = host_at(urls[i], LIMIT_MS);
        put(world.store, "k", "v");
        expect(world.store, "k", "v");
        assert_true(tether_store_tcp_port(world.store) > 0);
        tether_world_fini(&world);
    }
}

/* Two rendezvous in one process at one address share the server. */
static void tcp_server_is_shared_when_address_is_the_same(void **state)
{
    (void)state;
    struct tether_world first = host_at("tcp://127.0.0.1:%d?world_size=1&rank=0", LIMIT_MS);
    struct tether_world second = {NULL, 0, 0};
    char url[96];
    tether_error err = {0};
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d?world_size=1&rank=0",
             tether_store_tcp_port(first.store));
    if (tether_rendezvous(url, -1, -1, LIMIT_MS, &second, &err) != TETHER_OK)
        fail_msg("%s", err.message);
    put(first.store, "k", "shared");
    tether_world_fini(&first);
    expect(second.store, "k", "shared");
    tether_world_fini(&second);
}

/* ---- User-defined schemes ---------------------------------------------------------------------
 */

struct seen {
    char url[128];
    int timeout_ms;
    int calls;
};

static tether_status my_handler(void *userdata,
                                const char *url,
                                int timeout_ms,
                                struct tether_world *ret_world,
                                tether_error *reterr)
{
    struct seen *seen = userdata;
    snprintf(seen->url, sizeof seen->url, "%s", url);
    seen->timeout_ms = timeout_ms;
    seen->calls++;
    if (strstr(url, "refuse"))
        return tether_error_set(reterr, TETHER_EBUSY, "not today");
    ret_world->rank = 3;
    ret_world->size = 4;
    return tether_store_hash_new(&ret_world->store, reterr);
}

static void schemes_can_be_registered(void **state)
{
    (void)state;
    struct seen seen = {.calls = 0};
    struct tether_world world;
    tether_error err = {0};
    assert_int_equal(tether_rendezvous_register("my+scheme", my_handler, &seen, &err), TETHER_OK);
    assert_int_equal(tether_rendezvous_register("MY+Scheme", my_handler, &seen, &err),
                     TETHER_EEXIST);
    assert_non_null(strstr(err.message, "already registered"));
    assert_int_equal(tether_rendezvous_register("tcp", my_handler, &seen, &err), TETHER_EEXIST);
    assert_string_equal(err.message,
                        "Rendezvous handler for tcp:// already registered: choose another scheme");

    assert_int_equal(
        tether_rendezvous("my+scheme://a b#c", -1, -1, TETHER_DEFAULT_MS, &world, &err), TETHER_OK);
    /* The URL of a registered scheme is not parsed. */
    assert_string_equal(seen.url, "my+scheme://a b#c");
    assert_int_equal(seen.timeout_ms, TETHER_STORE_DEFAULT_TIMEOUT_MS);
    assert_int_equal(world.rank, 3);
    assert_int_equal(world.size, 4);
    tether_world_fini(&world);

    assert_int_equal(tether_rendezvous("my+scheme://x", 1, 2, -1, &world, &err), TETHER_OK);
    assert_string_equal(seen.url, "my+scheme://x?rank=1&world_size=2");
    assert_int_equal(seen.timeout_ms, -1);
    tether_world_fini(&world);
    assert_int_equal(tether_rendezvous("my+scheme://x?y=1", 1, -1, 5, &world, &err), TETHER_OK);
    assert_string_equal(seen.url, "my+scheme://x?y=1&rank=1");
    tether_world_fini(&world);
    refused("my+scheme://refuse", -1, -1, TETHER_EBUSY, "not today");

    assert_int_equal(tether_rendezvous_unregister("my+scheme", &err), TETHER_OK);
    assert_int_equal(tether_rendezvous_unregister("my+scheme", &err), TETHER_ENOTFOUND);
    assert_int_equal(tether_rendezvous_unregister("tcp", &err), TETHER_ENOTFOUND);
    refused("my+scheme://x", -1, -1, TETHER_ENOTFOUND, "No rendezvous handler");
}

/* Gives the rank and size in the URL, even if they are invalid. */
static tether_status lax_handler(void *userdata,
                                 const char *url,
                                 int timeout_ms,
                                 struct tether_world *ret_world,
                                 tether_error *reterr)
{
    (void)timeout_ms, (void)reterr;
    if (strstr(url, "number"))
        return (tether_status)256;
    if (!strstr(url, "nothing"))
        ret_world->store = tether_store_retain(userdata);
    sscanf(url, "lax://%d/%d", &ret_world->rank, &ret_world->size);
    return TETHER_OK;
}

static void rendezvous_fails_when_handler_gives_an_invalid_result(void **state)
{
    (void)state;
    tether_store *store = NULL;
    assert_int_equal(tether_store_hash_new(&store, NULL), TETHER_OK);
    assert_int_equal(tether_rendezvous_register("lax", lax_handler, store, NULL), TETHER_OK);
    refused("lax://5/2", -1, -1, TETHER_EINVAL, "gave rank 5 of 2");
    refused("lax://2/2", -1, -1, TETHER_EINVAL, "gave rank 2 of 2");
    refused("lax://-1/2", -1, -1, TETHER_EINVAL, "gave rank -1 of 2");
    refused("lax://0/0", -1, -1, TETHER_EINVAL, "gave rank 0 of 0");
    refused("lax://nothing", -1, -1, TETHER_EINVAL, "no store");
    refused("lax://number", -1, -1, TETHER_EREMOTE, "");
    tether_rendezvous_unregister("lax", NULL);
    tether_store_release(store);
}

static void register_refuses_invalid_schemes(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "1a", "a b", "a:", "a/b", "a_b", "\xc3\xa9"};
    tether_error err = {0};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(bad); i++)
        assert_int_equal(tether_rendezvous_register(bad[i], my_handler, NULL, &err), TETHER_EINVAL);
    assert_int_equal(tether_rendezvous_register(NULL, my_handler, NULL, &err), TETHER_EINVAL);
    assert_int_equal(tether_rendezvous_register("ok", NULL, NULL, &err), TETHER_EINVAL);
}

/* ---- No memory --------------------------------------------------------------------------------
 */

static tether_status registered_once(void *userdata)
{
    struct seen seen = {.calls = 0};
    struct tether_world world = {NULL, 0, 0};
    tether_status st = tether_rendezvous_register("lean", my_handler, &seen, userdata);
    if (st != TETHER_OK)
        return st;
    st = tether_rendezvous("lean://x", 0, 1, 5, &world, userdata);
    tether_world_fini(&world);
    tether_rendezvous_unregister("lean", NULL);
    return st;
}

static tether_status file_once(void *userdata)
{
    struct tether_world world = {NULL, 0, 0};
    tether_status st = tether_rendezvous(userdata, 0, 1, LIMIT_MS, &world, NULL);
    tether_world_fini(&world);
    return st;
}

static void rendezvous_reports_failed_allocations(void **state)
{
    (void)state;
    char path[] = "/tmp/tether-url-XXXXXX", url[64];
    close(mkstemp(path));
    snprintf(url, sizeof url, "file://%s", path);
    tether_test_heap_fail_each(registered_once, NULL);
    tether_test_heap_fail_each(file_once, url);
    unlink(path);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, clear_environment)
    const struct CMUnitTest tests[] = {
        TEST(unknown_handler),
        TEST(url_with_node_params),
        TEST(rendezvous_checks_its_arguments),
        TEST(env_nominal),
        TEST(env_takes_query_when_environment_differs),
        TEST(env_fails_when_variables_are_missing),
        TEST(env_fails_when_variables_are_invalid),
        TEST(env_connects_as_client_when_launcher_hosts_the_store),
        TEST(file_common_errors),
        TEST(file_nominal),
        TEST(tcp_common_errors),
        TEST(tcp_dns_timeout),
        TEST(tcp_nominal),
        TEST(tcp_two_ranks_meet),
        TEST(tcp_host_waits_for_the_others),
        TEST(tcp_beyond_loopback_needs_insecure),
        TEST(tcp_store_timeout_set),
        TEST(tcp_store_timeout_doesnt_break_client),
        TEST(tcp_url_with_libuv),
        TEST(tcp_server_is_shared_when_address_is_the_same),
        TEST(schemes_can_be_registered),
        TEST(rendezvous_fails_when_handler_gives_an_invalid_result),
        TEST(register_refuses_invalid_schemes),
        TEST(rendezvous_reports_failed_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
