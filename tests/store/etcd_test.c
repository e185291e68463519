/* The etcd store, as every store, on a real etcd. */
#include <stdio.h>

#include "tests/store/etcd_fixture.h"

static char prefix[32];

static tether_store *make(void)
{
    static int made;
    snprintf(prefix, sizeof prefix, "suite/%d/", made++);
    return etcd_store(tether_test_etcd_endpoint(etcd), prefix);
}

static tether_store *join(tether_store *store)
{
    (void)store;
    return etcd_store(tether_test_etcd_endpoint(etcd), prefix);
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
