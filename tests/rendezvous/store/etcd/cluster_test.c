/* The etcd store on three members, of which one after the other is killed. No change is lost or
 * applied twice, whichever member leads or receives the request. */
#include <stdatomic.h>
#include <stdio.h>

#include "tests/rendezvous/store/etcd/fixture.h"

#define LIMIT TETHER_TEST_LIMIT_MS
#define WAIT (4 * LIMIT) /* of the whole test; Bazel gives it more, so a hang reports itself */
#define MEMBERS 3
#define THREADS 4

static atomic_int adds;
static atomic_bool enough;
static struct run *_Atomic failed; /* a call that did not succeed */

static void call_adds(struct run *run)
{
    while (run->status == TETHER_OK && !atomic_load(&enough)) {
        run->status = tether_store_add(run->store, "sum", 1, LIMIT, NULL, &run->error);
        if (run->status == TETHER_OK) {
            run->number++;
            atomic_fetch_add(&adds, 1);
        }
    }
    if (run->status != TETHER_OK)
        atomic_store(&failed, run);
}

static void call_wait(struct run *run)
{
    const char *keys[] = {"first", "last"};
    run->status = tether_store_wait(run->store, keys, 2, WAIT, &run->error);
    if (run->status != TETHER_OK)
        atomic_store(&failed, run);
}

/* Waits for 20 more adds. `member` has been `what`. */
static void await_adds(int member, const char *what)
{
    int before = atomic_load(&adds), now;
    for (int tries = 0; (now = atomic_load(&adds)) < before + 20; tries++) {
        struct run *run = atomic_load(&failed);
        if (run)
            fail_msg("member %d was %s: %s: %s", member, what, tether_status_name(run->status),
                     run->error.message);
        if (!tether_test_nap(tries))
            fail_msg("member %d was %s: only %d of 20 adds in %d ms", member, what, now - before,
                     LIMIT);
    }
}

static void adds_are_applied_once_when_members_are_killed(void **state)
{
    (void)state;
    tether_store *stores[THREADS], *store;
    static struct run adders[THREADS], waiters[THREADS]; /* the threads outlive a failed test */
    for (int i = 0; i < THREADS; i++) {
        stores[i] = etcd_store(tether_test_etcd_endpoint(etcd), "cluster/");
        waiters[i] = (struct run){.store = stores[i], .call = call_wait};
        adders[i] = (struct run){.store = stores[i], .call = call_adds};
        run_start(&waiters[i]);
        run_start(&adders[i]);
    }
    for (int member = 0; member < MEMBERS; member++) {
        await_adds(member, "not killed yet");
        tether_test_etcd_kill_member(etcd, member);
        await_adds(member, "killed"); /* the other two members continue */
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
    int failures = cmocka_run_group_tests_name("etcd store, cluster", tests, NULL, NULL);
    tether_test_etcd_free(etcd);
    return failures;
}
