/* The URL rendezvous: schemes that users define, and failed allocations. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rendezvous/rendezvous.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/heap.h"
#include "tests/rendezvous/url/fixture.h"

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
    url_refused("my+scheme://refuse", -1, -1, TETHER_EBUSY, "not today");

    assert_int_equal(tether_rendezvous_unregister("my+scheme", &err), TETHER_OK);
    assert_int_equal(tether_rendezvous_unregister("my+scheme", &err), TETHER_ENOTFOUND);
    assert_int_equal(tether_rendezvous_unregister("tcp", &err), TETHER_ENOTFOUND);
    url_refused("my+scheme://x", -1, -1, TETHER_ENOTFOUND, "No rendezvous handler");
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
    url_refused("lax://5/2", -1, -1, TETHER_EINVAL, "gave rank 5 of 2");
    url_refused("lax://2/2", -1, -1, TETHER_EINVAL, "gave rank 2 of 2");
    url_refused("lax://-1/2", -1, -1, TETHER_EINVAL, "gave rank -1 of 2");
    url_refused("lax://0/0", -1, -1, TETHER_EINVAL, "gave rank 0 of 0");
    url_refused("lax://nothing", -1, -1, TETHER_EINVAL, "no store");
    url_refused("lax://number", -1, -1, TETHER_EREMOTE, "");
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
#define TEST(name) cmocka_unit_test_setup(name, url_clear_environment)
    const struct CMUnitTest tests[] = {
        TEST(schemes_can_be_registered),
        TEST(rendezvous_fails_when_handler_gives_an_invalid_result),
        TEST(register_refuses_invalid_schemes),
        TEST(rendezvous_reports_failed_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
