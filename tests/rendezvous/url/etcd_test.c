/* etcd:// against a real etcd. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/rendezvous.h"
#include "tests/lib/child.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/etcd.h"

#define LIMIT_MS 60000

static int start_etcd(void **state)
{
    *state = tether_test_etcd_start(NULL);
    return 0;
}

static int end_etcd(void **state)
{
    tether_test_etcd_free(*state);
    return 0;
}

static struct tether_world meet(struct tether_test_etcd *etcd, const char *rest, int rank, int size)
{
    char url[256];
    struct tether_world world = {NULL, 0, 0};
    tether_error err = {0};
    snprintf(url, sizeof url, "etcd://%s%s", tether_test_etcd_endpoint(etcd), rest);
    if (tether_rendezvous(url, rank, size, LIMIT_MS, &world, &err) != TETHER_OK)
        fail_msg("%s", err.message);
    return world;
}

static void ranks_share_keys_below_prefix(void **state)
{
    struct tether_world first = meet(*state, "/job/1?rank=0&world_size=2", -1, -1);
    struct tether_world second = meet(*state, "/job/1?insecure=0", 1, 2);
    struct tether_world other = meet(*state, "/job/2?tls=0", 0, 1);
    assert_int_equal(first.rank, 0);
    assert_int_equal(second.rank, 1);
    assert_int_equal(second.size, 2);
    assert_int_equal(tether_store_get_timeout(first.store), LIMIT_MS);

    tether_buf value = TETHER_BUF_INIT;
    assert_int_equal(
        tether_store_set(first.store, "key", tether_bytes_str("value"), LIMIT_MS, NULL), TETHER_OK);
    assert_int_equal(tether_store_get(second.store, "key", LIMIT_MS, &value, NULL), TETHER_OK);
    assert_string_equal(value.data, "value");
    assert_int_equal(tether_store_try_get(other.store, "key", LIMIT_MS, &value, NULL),
                     TETHER_ENOTFOUND);
    tether_buf_fini(&value);
    tether_world_fini(&first);
    tether_world_fini(&second);
    tether_world_fini(&other);
}

static void further_endpoints_are_tried(void **state)
{
    char url[256];
    struct tether_world world = {NULL, 0, 0};
    tether_error err = {0};
    snprintf(url, sizeof url, "etcd://127.0.0.1:1/job?endpoints=%s",
             tether_test_etcd_endpoint(*state));
    if (tether_rendezvous(url, 0, 1, LIMIT_MS, &world, &err) != TETHER_OK)
        fail_msg("%s", err.message);
    tether_world_fini(&world);
}

static void wrong_urls_are_refused_with_advice(void **state)
{
    (void)state;
    static const struct {
        const char *url, *says;
        tether_status status;
    } rows[] = {
        {"etcd://?rank=0&world_size=1", "host missing", TETHER_EINVAL},
        {"etcd://127.0.0.1:1?rank=0&world_size=1", "prefix missing", TETHER_EINVAL},
        {"etcd://127.0.0.1:1/?rank=0&world_size=1", "prefix missing", TETHER_EINVAL},
        {"etcd://127.0.0.1:1/p?world_size=1", "rank parameter missing", TETHER_EINVAL},
        {"etcd://127.0.0.1:1/p?rank=0", "world size parameter missing", TETHER_EINVAL},
        {"etcd://127.0.0.1:1/p?rank=0&world_size=1&tls=x", "tls is 'x'", TETHER_EINVAL},
        {"etcd://127.0.0.1:1/p?rank=0&world_size=1&ttl=1", "'ttl', only rank", TETHER_EINVAL},
        {"etcd://127.0.0.1:1/p?rank=0&world_size=1", "127.0.0.1:1", TETHER_EUNAVAILABLE},
    };
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        struct tether_world world = {NULL, 0, 0};
        tether_error err = {0};
        tether_status st = tether_rendezvous(rows[i].url, -1, -1, 300, &world, &err);
        if (st != rows[i].status || !strstr(err.message, rows[i].says))
            fail_msg("%s gives %s '%s'", rows[i].url, tether_status_name(st), err.message);
        assert_null(world.store);
    }
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_share_keys_below_prefix),
        cmocka_unit_test(further_endpoints_are_tried),
        cmocka_unit_test(wrong_urls_are_refused_with_advice),
    };
    return cmocka_run_group_tests(tests, start_etcd, end_etcd);
}
