/* The conformance suite on the TCP store: in each dialect, over TCP and over a unix socket, with
 * and without a prefix. */
#include <stdio.h>
#include <unistd.h>

#include "rendezvous/store_tcp.h"
#include "tests/rendezvous/store/suite_internal.h"

static tether_store_dialect dialect;

/* Makes a store like create_tcp_store() of PyTorch's tests: a world of one, which has joined. */
static tether_store *make(void)
{
    tether_store *store = NULL;
    assert_ok(
        tether_store_tcp_new(TETHER_STORE_TCP_OPTS(.is_host = true, .world_size = 1,
                                                   .wait_for_workers = true, .dialect = dialect),
                             &store, err));
    return store;
}

static tether_store *join(tether_store *store)
{
    tether_store *other = NULL;
    assert_ok(tether_store_tcp_new(
        TETHER_STORE_TCP_OPTS(.host = tether_store_tcp_host(store),
                              .port = tether_store_tcp_port(store), .dialect = dialect),
        &other, err));
    return other;
}

static tether_store *make_unix(void)
{
    static int made;
    char host[64];
    snprintf(host, sizeof host, "unix:tcp_suite.%d.%d", (int)getpid(), made++);
    tether_store *store = NULL;
    assert_ok(
        tether_store_tcp_new(TETHER_STORE_TCP_OPTS(.host = host, .is_host = true), &store, err));
    assert_int_equal(tether_store_tcp_port(store), 0);
    return store;
}

static tether_store *make_prefix(void)
{
    return tether_test_store_under_prefix(make());
}

static tether_store *join_prefix(tether_store *store)
{
    return tether_test_store_under_prefix(join(store));
}

int main(void)
{
    static const struct tether_test_store_kind kinds[] = {
        {.name = "tcp", .extended = true, .queues = true},
        {.name = "tcp (Tether)", .extended = true, .queues = true},
        {.name = "tcp (V)", .extended = true, .queues = true, .torch_wire = true},
        {.name = "tcp (L0)", .torch_wire = true},
        {.name = "tcp (L1)", .extended = true, .torch_wire = true},
    };
    int failed = 0;
    for (int i = TETHER_STORE_DIALECT_AUTO; i <= TETHER_STORE_DIALECT_L1; i++) {
        struct tether_test_store_kind kind = kinds[i];
        kind.make = make;
        kind.join = join;
        kind.own_keys = 1;
        dialect = (tether_store_dialect)i;
        failed += tether_test_store_suite(&kind);
    }
    dialect = TETHER_STORE_DIALECT_AUTO;
    failed += tether_test_store_suite(TETHER_TEST_STORE_KIND(.name = "tcp (unix)",
                                                             .make = make_unix, .join = join,
                                                             .extended = true, .queues = true));
    failed += tether_test_store_suite(
        TETHER_TEST_STORE_KIND(.name = "prefix over tcp", .make = make_prefix, .join = join_prefix,
                               .own_keys = 1, .extended = true, .queues = true));
    return failed;
}
