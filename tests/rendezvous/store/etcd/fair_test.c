/* Several clients change one key on etcd at the same time: each of them makes progress. */
#include <stdatomic.h>
#include <stdio.h>

#include "tests/rendezvous/store/etcd/fixture.h"

#define LIMIT TETHER_TEST_LIMIT_MS
#define CLIENTS 6
#define TOTAL (CLIENTS * 40)
#define LEAST (TOTAL / CLIENTS / 4) /* a quarter of the fair share of a client */

struct client {
    tether_store *store;
    pthread_t thread;
    tether_status (*change)(tether_store *store, tether_error *reterr);
    pthread_barrier_t *start;
    atomic_int *total;
    int count;
    tether_status status;
    tether_error error;
};

static tether_status add_one(tether_store *store, tether_error *reterr)
{
    return tether_store_add(store, "contended", 1, LIMIT, NULL, reterr);
}

static tether_status append_one(tether_store *store, tether_error *reterr)
{
    return tether_store_append(store, "contended", tether_bytes_str("x"), LIMIT, reterr);
}

/* Moves an element from the front of a queue to its end; there is one element for all. */
static tether_status pop_one(tether_store *store, tether_error *reterr)
{
    tether_buf value = TETHER_BUF_INIT;
    tether_status st = tether_store_queue_pop(store, "contended", LIMIT, &value, reterr);
    if (st == TETHER_OK)
        st = tether_store_queue_push(store, "contended", tether_buf_bytes(&value), LIMIT, reterr);
    tether_buf_fini(&value);
    return st;
}

static void *change_until_total(void *arg)
{
    struct client *client = arg;
    pthread_barrier_wait(client->start);
    while (client->status == TETHER_OK && atomic_fetch_add(client->total, 1) < TOTAL) {
        client->status = client->change(client->store, &client->error);
        client->count++;
    }
    return NULL;
}

/* All clients change the key until TOTAL changes are made. Counts changes, not time: a slow machine
 * slows all clients down. */
static void all_make_progress(struct world *w,
                              tether_status (*change)(tether_store *, tether_error *))
{
    atomic_int total = 0;
    pthread_barrier_t start;
    assert_int_equal(pthread_barrier_init(&start, NULL, CLIENTS), 0);
    struct client clients[CLIENTS];
    for (int i = 0; i < CLIENTS; i++)
        clients[i] =
            (struct client){.store = etcd_store(tether_test_etcd_endpoint(etcd), w->prefix),
                            .change = change,
                            .start = &start,
                            .total = &total};
    for (int i = 0; i < CLIENTS; i++)
        assert_int_equal(pthread_create(&clients[i].thread, NULL, change_until_total, &clients[i]),
                         0);
    for (int i = 0; i < CLIENTS; i++)
        pthread_join(clients[i].thread, NULL);
    pthread_barrier_destroy(&start);
    for (int i = 0; i < CLIENTS; i++)
        print_message("client %d: %d of %d changes\n", i, clients[i].count, TOTAL);
    for (int i = 0; i < CLIENTS; i++) {
        tether_store_release(clients[i].store);
        if (clients[i].status != TETHER_OK)
            fail_msg("client %d: %s", i, clients[i].error.message);
        if (clients[i].count < LEAST)
            fail_msg("client %d made %d of %d changes; its fair share is %d", i, clients[i].count,
                     TOTAL, TOTAL / CLIENTS);
    }
}

static void add_makes_progress_for_each_client_when_contended(void **state)
{
    struct world *w = *state;
    tether_store *store = w->direct;
    all_make_progress(w, add_one);
    ADD("contended", 0, TOTAL);
    assert_int_equal(etcd_look(w->client, under(w, "t/"), NULL, NULL), 0); /* no ticket is left */
}

static void append_makes_progress_for_each_client_when_contended(void **state)
{
    struct world *w = *state;
    tether_buf value = TETHER_BUF_INIT;
    all_make_progress(w, append_one);
    assert_ok(tether_store_get(w->direct, "contended", LIMIT, &value, err));
    assert_int_equal(value.len, TOTAL);
    tether_buf_fini(&value);
}

static void pop_makes_progress_for_each_client_when_contended(void **state)
{
    struct world *w = *state;
    for (int i = 0; i < CLIENTS; i++)
        assert_ok(
            tether_store_queue_push(w->direct, "contended", tether_bytes_str("x"), LIMIT, err));
    all_make_progress(w, pop_one);
}

/* Replies are lost, watches break and leases may be stale: every add is still applied once. */
static void adds_are_applied_once_when_etcd_is_killed_under_contention(void **state)
{
    struct world *w = *state;
    tether_store *store = w->direct;
    atomic_int total = 0;
    pthread_barrier_t start;
    struct client clients[CLIENTS];
    assert_int_equal(pthread_barrier_init(&start, NULL, CLIENTS), 0);
    for (int i = 0; i < CLIENTS; i++)
        clients[i] =
            (struct client){.store = etcd_store(tether_test_etcd_endpoint(etcd), w->prefix),
                            .change = add_one,
                            .start = &start,
                            .total = &total};
    for (int i = 0; i < CLIENTS; i++)
        assert_int_equal(pthread_create(&clients[i].thread, NULL, change_until_total, &clients[i]),
                         0);
    assert_eventually(atomic_load(&total) >= TOTAL / 4);
    tether_test_etcd_kill(etcd);
    tether_test_etcd_restart(etcd);
    int made = 0;
    for (int i = 0; i < CLIENTS; i++) {
        pthread_join(clients[i].thread, NULL);
        made += clients[i].count;
    }
    pthread_barrier_destroy(&start);
    for (int i = 0; i < CLIENTS; i++) {
        tether_store_release(clients[i].store);
        if (clients[i].status != TETHER_OK)
            fail_msg("client %d: %s", i, clients[i].error.message);
    }
    assert_int_equal(made, TOTAL);
    ADD("contended", 0, TOTAL);
}

/* Puts the first ticket in the queue of `key`, as a client that was killed leaves it behind. */
static void leave_ticket(struct world *w, const char *key)
{
    char name[128];
    size_t len = (size_t)snprintf(name, sizeof name, "%st/%s", w->prefix, key);
    assert_ok(tether__etcd_put(w->client, tether_bytes_of(name, len + 1), (tether_bytes){0}, 0,
                               etcd_soon(), err));
}

static void add_removes_the_ticket_in_front_when_its_owner_is_gone(void **state)
{
    struct world *w = *state;
    tether_store *store = w->direct;
    leave_ticket(w, "sum");
    ADD("sum", 5, 5);
    assert_int_equal(etcd_look(w->client, under(w, "t/"), NULL, NULL), 0);
}

static void compare_set_leaves_the_queue_when_the_value_differs(void **state)
{
    struct world *w = *state;
    tether_store *store = w->direct;
    SET("key", "value");
    leave_ticket(w, "key");
    bool swapped = true;
    assert_ok(tether_store_compare_set(store, "key", tether_bytes_str("other"),
                                       tether_bytes_str("new"), LIMIT, &swapped, NULL, err));
    assert_false(swapped);
    assert_int_equal(etcd_look(w->client, under(w, "t/"), NULL, NULL), 0);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    etcd = tether_test_etcd_start(NULL);
    const struct CMUnitTest tests[] = {
        WORLD_TEST(add_makes_progress_for_each_client_when_contended),
        WORLD_TEST(append_makes_progress_for_each_client_when_contended),
        WORLD_TEST(add_removes_the_ticket_in_front_when_its_owner_is_gone),
        WORLD_TEST(compare_set_leaves_the_queue_when_the_value_differs),
        WORLD_TEST(adds_are_applied_once_when_etcd_is_killed_under_contention),
        WORLD_TEST(pop_makes_progress_for_each_client_when_contended),
    };
    int failed = cmocka_run_group_tests_name("etcd store, contended", tests, NULL, NULL);
    tether_test_etcd_free(etcd);
    return failed;
}
