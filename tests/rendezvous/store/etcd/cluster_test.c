/* The etcd store on three members, of which one after the other is killed. No change is lost or
 * applied twice, whichever member leads or receives the request. */
#include <stdatomic.h>
#include <stdio.h>

#include "tests/rendezvous/store/etcd/fixture.h"

#define LIMIT TETHER_TEST_LIMIT_MS
#define MEMBERS 3
#define THREADS 4

static atomic_int adds;
static atomic_bool enough;

static void call_adds(struct run *run)
{
    while (run->status == TETHER_OK && !atomic_load(&enough)) {
        run->status = tether_store_add(run->store, "sum", 1, LIMIT, NULL, &run->error);
        if (run->status == TETHER_OK) {
            run->number++;
            atomic_fetch_add(&adds, 1);
        }
    }
}

static void call_wait(struct run *run)
{
    const char *keys[] = {"first", "last"};
    run->status = tether_store_wait(run->store, keys, 2, 5 * LIMIT, &run->error);
}

static void adds_are_applied_once_when_members_are_killed(void **state)
{
    (void)state;
    tether_store *stores[THREADS], *store;
    struct run adders[THREADS], waiters[THREADS];
    for (int i = 0; i < THREADS; i++) {
        stores[i] = etcd_store(tether_test_etcd_endpoint(etcd), "cluster/");
        waiters[i] = (struct run){.store = stores[i], .call = call_wait};
        adders[i] = (struct run){.store = stores[i], .call = call_adds};
        run_start(&waiters[i]);
        run_start(&adders[i]);
    }
    for (int member = 0; member < MEMBERS; member++) {
        int before = atomic_load(&adds);
        assert_eventually(atomic_load(&adds) >= before + 20);
        tether_test_etcd_kill_member(etcd, member);
        before = atomic_load(&adds);
        assert_eventually(atomic_load(&adds) >= before + 20); /* the other two members continue */
        tether_test_etcd_restart_member(etcd, member);
    }
    store = stores[0];
    SET("first", "x");
    SET("last", "x");
    atomic_store(&enough, true);
    int64_t sum = 0;
    for (int i = 0; i < THREADS; i++) {
        run_join(&waiters[i]);
        run_join(&adders[i]);
        sum += adders[i].number;
    }
    ADD("sum", 0, sum);
    for (int i = 0; i < THREADS; i++)
        tether_store_release(stores[i]);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    etcd = tether_test_etcd_start(&(struct tether_test_etcd_opts){.members = MEMBERS});
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adds_are_applied_once_when_members_are_killed),
    };
    int failed = cmocka_run_group_tests_name("etcd store, cluster", tests, NULL, NULL);
    tether_test_etcd_free(etcd);
    return failed;
}
