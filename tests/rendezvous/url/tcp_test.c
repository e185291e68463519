/* The URL rendezvous: tcp://. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/store_tcp.h"
#include "tests/lib/cmocka.h"
#include "tests/rendezvous/url/fixture.h"

static void tcp_common_errors(void **state)
{
    (void)state;
    url_refused("tcp://127.0.0.1?rank=0&world_size=1", -1, -1, TETHER_EINVAL,
                "port number missing");
    url_refused("tcp://127.0.0.1:0?rank=0&world_size=1", -1, -1, TETHER_EINVAL,
                "port number missing");
    url_refused("tcp://[::1]?rank=0&world_size=1", -1, -1, TETHER_EINVAL, "write tcp://[::1]:PORT");
    url_refused("tcp://127.0.0.1:23456?world_size=1", -1, -1, TETHER_EINVAL,
                "rank parameter missing");
    url_refused("tcp://127.0.0.1:23456?rank=0", -1, -1, TETHER_EINVAL, "size parameter missing");
    url_refused("tcp://:23456?rank=0&world_size=1", -1, -1, TETHER_EINVAL, "host missing");
    url_refused("tcp://127.0.0.1:23456/x?rank=0&world_size=1", -1, -1, TETHER_EINVAL,
                "a path ('/x') means nothing here");
    url_refused("tcp://127.0.0.1:23456?rank=x&world_size=1", -1, -1, TETHER_EINVAL,
                "rank is 'x', which is not a number");
    url_refused("tcp://127.0.0.1:23456?rank=0&world_size=1&insecure=2", -1, -1, TETHER_EINVAL,
                "insecure is '2': write 1 or 0");
    url_refused("tcp://127.0.0.1:23456?rank=0&size=1", -1, -1, TETHER_EINVAL,
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
    struct tether_world world = url_host_at("tcp://localhost:%d?world_size=1&rank=0", LIMIT_MS);
    assert_int_equal(world.rank, 0);
    assert_int_equal(world.size, 1);
    url_put(world.store, "key0", "value0");
    url_expect(world.store, "key0", "value0");
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
        snprintf(url, sizeof url, "tcp://127.0.0.1:%d", url_free_port());
        pthread_t thread;
        struct tether_world world = {NULL, 0, 0}, *other = NULL;
        tether_error err = {0};
        assert_int_equal(pthread_create(&thread, NULL, join_as_rank_1, url), 0);
        tether_status st = tether_rendezvous(url, 0, 2, LIMIT_MS, &world, &err);
        pthread_join(thread, (void **)&other);
        if (st == TETHER_OK) {
            assert_non_null(other->store);
            assert_int_equal(other->rank, 1);
            url_put(other->store, "from", "1");
            url_expect(world.store, "from", "1");
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
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d?world_size=2&rank=0", url_free_port());
    url_refused(url, -1, -1, TETHER_ETIMEOUT, "1/2 clients joined");
}

static void tcp_beyond_loopback_needs_insecure(void **state)
{
    (void)state;
    char url[96];
    snprintf(url, sizeof url, "tcp://0.0.0.0:%d?world_size=1&rank=0", url_free_port());
    url_refused(url, -1, -1, TETHER_EPERM, "add insecure=1 to the URL if that is intended");
}

static void tcp_store_timeout_set(void **state)
{
    (void)state;
    struct tether_world world = url_host_at("tcp://127.0.0.1:%d?world_size=1&rank=0", SHORT_MS);
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
    struct tether_world world = url_host_at("tcp://127.0.0.1:%d?world_size=1&rank=0", SHORT_MS);
    tether_buf value = TETHER_BUF_INIT;
    assert_int_equal(tether_store_get(world.store, "the_key", TETHER_DEFAULT_MS, &value, NULL),
                     TETHER_ETIMEOUT);
    url_put(world.store, "the_key", "x");
    url_expect(world.store, "the_key", "x");
    tether_world_fini(&world);
}

static void tcp_url_with_libuv(void **state)
{
    (void)state;
    static const char *const urls[] = {"tcp://127.0.0.1:%d?world_size=1&rank=0&use_libuv=1",
                                       "tcp://127.0.0.1:%d?world_size=1&rank=0&use_libuv=0"};
    for (size_t i = 0; i < 2; i++) {
        struct tether_world world = url_host_at(urls[i], LIMIT_MS);
        url_put(world.store, "k", "v");
        url_expect(world.store, "k", "v");
        assert_true(tether_store_tcp_port(world.store) > 0);
        tether_world_fini(&world);
    }
}

/* Two rendezvous in one process at one address share the server. */
static void tcp_server_is_shared_when_address_is_the_same(void **state)
{
    (void)state;
    struct tether_world first = url_host_at("tcp://127.0.0.1:%d?world_size=1&rank=0", LIMIT_MS);
    struct tether_world second = {NULL, 0, 0};
    char url[96];
    tether_error err = {0};
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d?world_size=1&rank=0",
             tether_store_tcp_port(first.store));
    if (tether_rendezvous(url, -1, -1, LIMIT_MS, &second, &err) != TETHER_OK)
        fail_msg("%s", err.message);
    url_put(first.store, "k", "shared");
    tether_world_fini(&first);
    url_expect(second.store, "k", "shared");
    tether_world_fini(&second);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, url_clear_environment)
    const struct CMUnitTest tests[] = {
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
