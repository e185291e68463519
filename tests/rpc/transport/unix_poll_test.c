/* Polling a side of the transport of one host: deadlines, wake-ups, the spin, system calls, the
 * end. */
#include <pthread.h>
#include <string.h>

#include "rpc/transport/socket/socket.h"
#include "tests/lib/cmocka.h"
#include "tests/rpc/lib/transport_node.h"

static int64_t now(void)
{
    return tether__clock_now_ns(&tether__clock_system);
}

static struct tether__transport *make(int spin_us)
{
    struct tether__transport *transport;
    struct tether__transport_opts opts = {.spin_us = spin_us};
    assert_int_equal(tether__transport_unix_new(&opts, &transport, NULL), TETHER_OK);
    return transport;
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
    struct tether__transport *transport = make(20);
    const struct tether__transport_ops *ops = transport->ops;
    struct tether__unix_stats *stats = &tether__unix_of(transport)->stats;

    int64_t begin = now();
    assert_true(ops->poll(transport, TETHER__CLIENT, begin + 20 * TETHER__NS_PER_MS));
    assert_true(now() - begin >= 20 * TETHER__NS_PER_MS);
    assert_true(ops->poll(transport, TETHER__CLIENT, begin)); /* has passed */
    assert_false(ops->poll_ready(transport, TETHER__CLIENT));

    ops->wake(transport, TETHER__CLIENT); /* before the poll that it is for */
    assert_true(ops->poll(transport, TETHER__CLIENT, TETHER__NEVER));
    ops->wake(transport, TETHER__CLIENT);
    assert_true(ops->poll_ready(transport, TETHER__CLIENT));

    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, wake_a_lot, transport), 0);
    assert_true(ops->poll(transport, TETHER__CLIENT, TETHER__NEVER)); /* blocked or not */
    pthread_join(thread, NULL);
    assert_true(ops->poll(transport, TETHER__CLIENT, now()));

    /* While no thread polls, any number of wake-ups needs no system call. */
    unsigned long long wakes = atomic_load(&stats->wakes);
    wake_a_lot(transport);
    assert_int_equal(atomic_load(&stats->wakes), wakes);

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

/* Two threads that wake each other in turn: a wake-up that got lost would stop them for ever. */
struct turns {
    struct tether__transport *transport;
    enum tether__side side;
    atomic_int *mine, *other;
};

#define N_TURNS 20000

static void *take_turns(void *arg)
{
    struct turns *turns = arg;
    const struct tether__transport_ops *ops = turns->transport->ops;
    for (int i = 1; i <= N_TURNS; i++) {
        atomic_fetch_add(turns->other, 1);
        ops->wake(turns->transport, !turns->side);
        while (atomic_load(turns->mine) < i)
            ops->poll(turns->transport, turns->side, TETHER__NEVER);
    }
    return NULL;
}

static void wake_is_not_lost_between_two_pollers(void **state)
{
    (void)state;
    for (int spin_us = 0; spin_us <= 5; spin_us += 5) {
        struct tether__transport *transport = make(spin_us);
        atomic_int a = 0, b = 0;
        struct turns turns[2] = {{transport, TETHER__CLIENT, &a, &b},
                                 {transport, TETHER__SERVER, &b, &a}};
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, take_turns, &turns[0]), 0);
        take_turns(&turns[1]);
        pthread_join(thread, NULL);
        transport->ops->destroy(transport);
    }
}

static void unix_spinning_stops_when_it_finds_no_events(void **state)
{
    (void)state;
    struct tether__transport *transport = make(20);
    struct tether__unix_stats *stats = &tether__unix_of(transport)->stats;
    for (int i = 0; i < 200; i++)
        transport->ops->poll(transport, TETHER__CLIENT, now() + TETHER__NS_PER_MS / 10);
    assert_int_equal(atomic_load(&stats->spin_hits), 0);
    assert_true(atomic_load(&stats->spin_misses) < 20); /* 0 on a single CPU */
    transport->ops->destroy(transport);
}

/* Messages that are not retained are received into the same block again and again. */
static void receive_buffer_is_reused_when_messages_are_not_retained(void **state)
{
    struct pair *pair = *state;
    struct wire *wire = pair_dial(pair);
    wire_send(wire, "warm", 4);
    wire_await_messages(wire, 1);
    struct tether__unix_stats *stats = &tether__unix_of(pair->client.transport)->stats;
    unsigned long long before = atomic_load(&stats->scratches);
    for (size_t i = 2; i < 100; i++) {
        wire_send(wire, "again", 5);
        wire_await_messages(wire, i);
    }
    assert_int_equal(atomic_load(&stats->scratches), before);
    pair->client.retains = true; /* one of them */
    wire_send(wire, "keep", 4);
    wire_await_messages(wire, 100);
    pair->client.retains = false;
    for (size_t i = 101; i < 120; i++) {
        wire_send(wire, "more", 4);
        wire_await_messages(wire, i);
    }
    assert_int_equal(atomic_load(&stats->scratches), before + 1);
    assert_int_equal(pair->client.n_retained, 1);
    assert_memory_equal(pair->client.retained[0].data, "keep", 4);
    tether__slice_release(pair->client.retained[0]);
}

#define IN_PAIR(test) cmocka_unit_test_setup_teardown(test, pair_set_up, pair_tear_down)

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(poll_waits_wakes_and_ends),
    cmocka_unit_test(wake_is_not_lost_between_two_pollers),
    cmocka_unit_test(unix_spinning_stops_when_it_finds_no_events),
    IN_PAIR(receive_buffer_is_reused_when_messages_are_not_retained),
};

int main(void)
{
    node_kind = &node_unix;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
