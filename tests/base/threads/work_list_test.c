/* The work list of a thread: order, nesting, and a stack that does not grow with the chain. */
#include "base/threads/work_list.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/macros.h"
#include "tests/lib/cmocka.h"

enum { CHAIN = 1000000, STACK_BYTES = 256 * 1024 };

static char seen[64]; /* the names of the items that have run, in order */

struct item {
    struct tether__work work;
    char name;
    struct item *adds, *adds_last; /* items that it adds while it runs */
};

static void note(char what)
{
    size_t len = strlen(seen);
    assert_true(len + 1 < sizeof seen);
    seen[len] = what;
}

/* Records its name when it begins, and a dot when it ends. */
static void run_item(struct tether__work *work)
{
    struct item *item = tether__container_of(work, struct item, work);
    note(item->name);
    if (item->adds)
        tether__work_run(&item->adds->work);
    if (item->adds_last)
        tether__work_run_last(&item->adds_last->work);
    note('.');
}

static struct item item_of(char name, struct item *adds, struct item *adds_last)
{
    return (struct item){{NULL, run_item}, name, adds, adds_last};
}

static int forget(void **state)
{
    (void)state;
    memset(seen, 0, sizeof seen);
    return 0;
}

static void run_executes_item_at_once_when_nothing_runs(void **state)
{
    (void)state;
    struct item a = item_of('a', NULL, NULL);
    assert_false(tether__work_is_running());
    tether__work_run(&a.work);
    assert_string_equal(seen, "a.");
    tether__work_run_last(&a.work); /* the same item again */
    assert_string_equal(seen, "a.a.");
    assert_false(tether__work_is_running());
}

static void run_appends_item_when_another_runs(void **state)
{
    (void)state;
    struct item c = item_of('c', NULL, NULL), b = item_of('b', &c, NULL),
                a = item_of('a', &b, NULL);
    tether__work_run(&a.work);
    assert_string_equal(seen, "a.b.c.");
}

static void run_last_waits_for_all_other_items(void **state)
{
    (void)state;
    struct item c = item_of('c', NULL, NULL), b = item_of('b', &c, NULL);
    struct item z = item_of('z', NULL, NULL), a = item_of('a', &b, &z);
    tether__work_run(&a.work);
    assert_string_equal(seen, "a.b.c.z.");
}

/* A destructor may wait for a message whose handling adds items: these must not wait for the
 * destructor. */
static void run_executes_item_at_once_inside_run_last(void **state)
{
    (void)state;
    struct item y = item_of('y', NULL, NULL), a = item_of('a', NULL, NULL);
    struct item z = item_of('z', &a, &y);
    tether__work_run_last(&z.work);
    assert_string_equal(seen, "za..y.");
}

struct chain {
    struct tether__work work;
    int left;
    bool last;
};

static void run_chain(struct tether__work *work)
{
    struct chain *chain = tether__container_of(work, struct chain, work);
    if (chain->left-- > 0)
        (chain->last ? tether__work_run_last : tether__work_run)(work);
}

static void *run_chains(void *arg)
{
    (void)arg;
    for (int last = 0; last < 2; last++) {
        struct chain chain = {{NULL, run_chain}, CHAIN, last};
        (last ? tether__work_run_last : tether__work_run)(&chain.work);
        assert_int_equal(chain.left, -1);
    }
    return NULL;
}

static void stack_does_not_grow_with_the_chain(void **state)
{
    (void)state;
    pthread_t thread;
    pthread_attr_t attr;
    assert_int_equal(pthread_attr_init(&attr), 0);
    assert_int_equal(pthread_attr_setstacksize(&attr, STACK_BYTES), 0);
    assert_int_equal(pthread_create(&thread, &attr, run_chains, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    pthread_attr_destroy(&attr);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(run_executes_item_at_once_when_nothing_runs, forget),
        cmocka_unit_test_setup(run_appends_item_when_another_runs, forget),
        cmocka_unit_test_setup(run_last_waits_for_all_other_items, forget),
        cmocka_unit_test_setup(run_executes_item_at_once_inside_run_last, forget),
        cmocka_unit_test(stack_does_not_grow_with_the_chain),
    };
    return cmocka_run_group_tests_name("work list", tests, NULL, NULL);
}
