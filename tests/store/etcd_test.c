/* The etcd store, as every store, on a real etcd. */
#include <stdio.h>

#include "rendezvous/store_etcd.h"
#include "tests/lib/child.h"
#include "tests/lib/etcd.h"
#include "tests/store/suite_internal.h"

static struct tether_test_etcd *etcd;

static tether_store *open_store(const char *prefix)
{
    tether_store *store = NULL;
    assert_ok(tether_store_etcd_new(
        TETHER_STORE_ETCD_OPTS(.endpoints = tether_test_etcd_endpoint(etcd), .prefix = prefix),
        &store, err));
    return store;
}

static char prefix[32];

static tether_store *make(void)
{
    static int made;
    snprintf(prefix, sizeof prefix, "suite/%d/", made++);
    return open_store(prefix);
}

static tether_store *join(tether_store *store)
{
    (void)store;
    return open_store(prefix);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    etcd = tether_test_etcd_start(NULL);
    int failed =
        tether_test_store_suite(TETHER_TEST_STORE_KIND(.name = "etcd", .make = make, .join = join,
                                                       .extended = true, .queues = true));
    tether_test_etcd_free(etcd);
    return failed;
}
