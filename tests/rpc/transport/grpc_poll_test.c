/* Polling a side without any conn: deadlines, wake-ups, the spin, the end. */
#include <pthread.h>

#include "rpc/transport/grpc/grpc.h"
#include "tests/lib/cmocka.h"

static int64_t now(void)
{
    return tether__clock_now_ns(&tether__clock_system);
}

static void *wake_a_lot(void *transport)
{
    for (int i = 0; i < 1000; i++)
        ((struct tether__transport *)transport)->ops->wake(transport, TETHER__CLIENT);
    return NULL;
}

static void poll_waits_wakes_and_ends(void **state)
{
    (void)state;
    struct tether__transport *transport;
    struct tether__transport_opts opts = {.spin_us = 20};
    assert_int_equal(tether__transport_grpc_new(&opts, &transport, NULL), TETHER_OK);
    const struct tether__transport_ops *ops = transport->ops;
    struct tether__grpc_stats *stats = &tether__grpc_of(transport)->stats;

    int64_t begin = now();
    assert_true(ops->poll(transport, TETHER__CLIENT, begin + 20 * TETHER__NS_PER_MS));
    assert_true(now() - begin >= 20 * TETHER__NS_PER_MS);
    assert_true(ops->poll(transport, TETHER__CLIENT, begin)); /* has passed */

    ops->wake(transport, TETHER__CLIENT); /* before the poll that it is for */
    assert_true(ops->poll(transport, TETHER__CLIENT, TETHER__NEVER));

    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, wake_a_lot, transport), 0);
    assert_true(ops->poll(transport, TETHER__CLIENT, TETHER__NEVER)); /* blocked or not */
    pthread_join(thread, NULL);
    assert_true(ops->poll(transport, TETHER__CLIENT, now()));

    /* While no thread polls, any number of wake-ups is one event. */
    unsigned long long wakes = atomic_load(&stats->wakes);
    wake_a_lot(transport);
    assert_int_equal(atomic_load(&stats->wakes), wakes + 1);

    ops->wake(transport, TETHER__SERVER);
    ops->stop(transport);
    while (ops->poll(transport, TETHER__CLIENT, TETHER__NEVER)) {
    }
    while (ops->poll(transport, TETHER__SERVER, TETHER__NEVER)) {
    }
    ops->wake(transport, TETHER__CLIENT); /* harmless */
    assert_false(ops->poll(transport, TETHER__CLIENT, TETHER__NEVER));
    ops->destroy(transport);
}

static void spinning_stops_when_it_finds_no_events(void **state)
{
    (void)state;
    struct tether__transport *transport;
    struct tether__transport_opts opts = {.spin_us = 20};
    assert_int_equal(tether__transport_grpc_new(&opts, &transport, NULL), TETHER_OK);
    struct tether__grpc_stats *stats = &tether__grpc_of(transport)->stats;
    for (int i = 0; i < 200; i++)
        transport->ops->poll(transport, TETHER__CLIENT, now() + TETHER__NS_PER_MS / 10);
    assert_int_equal(atomic_load(&stats->spin_hits), 0);
    assert_true(atomic_load(&stats->spin_misses) < 20); /* 0 on a single CPU */
    transport->ops->destroy(transport);
}

static void transport_refuses_invalid_options(void **state)
{
    (void)state;
    struct tether__transport *transport;
    struct tether__transport_opts opts = {.max_message_bytes = (size_t)1 << 40};
    tether_error error;
    assert_int_equal(tether__transport_grpc_new(&opts, &transport, &error), TETHER_EINVAL);
    transport = NULL;
    opts.max_message_bytes = 0;
    assert_int_equal(tether__transport_grpc_new(&opts, &transport, &error), TETHER_OK);
    transport->ops->destroy(transport); /* never started */
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(poll_waits_wakes_and_ends),
    cmocka_unit_test(spinning_stops_when_it_finds_no_events),
    cmocka_unit_test(transport_refuses_invalid_options),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL);
}
