/* The handler: keep-alive (seed class DynamicRendezvousHandlerTest). */
#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "rendezvous/elastic/handler/internal.h"
#include "tests/lib/wait.h"
#include "tests/rendezvous/elastic/handler/fixture.h"
#include "tests/rendezvous/elastic/lib/fixture.h"

static int64_t last_heartbeat(struct fixture *f)
{
    return tether__rdzv_roster_find(&f->holder.state.last_heartbeats, &f->node)->heard_at;
}

static void test_keep_alive_updates_last_heartbeat(void **state)
{
    struct fixture *f = *state;
    int64_t now = fake_env_now(&f->env);
    put_heard(&f->holder.state, "this_node", now - 60 * S);
    tether_rdzv *rdzv = handler_create(f);
    tether__rdzv_keep_alive(rdzv);
    assert_int_equal(last_heartbeat(f), now);
    assert_int_equal(f->failures, 0);
    tether_rdzv_release(rdzv);
}

static void assert_keep_alive_swallows_rendezvous_errors(struct fixture *f)
{
    int64_t last = fake_env_now(&f->env) - 60 * S;
    put_heard(&f->holder.state, "this_node", last);
    tether_rdzv *rdzv = handler_create(f);
    tether__rdzv_keep_alive(rdzv);
    assert_int_equal(last_heartbeat(f), last);
    assert_int_equal(f->failures, 1);
    assert_string_equal(f->last_event, "keep_alive");
    tether_rdzv_release(rdzv);
}

static void test_keep_alive_swallows_rendezvous_errors(void **state)
{
    struct fixture *f = *state;
    f->holder.fail = TETHER_EUNAVAILABLE;
    assert_keep_alive_swallows_rendezvous_errors(f);
}

static void test_keep_alive_respects_the_requested_timeout(void **state)
{
    struct fixture *f = *state;
    f->holder.sync_takes_ns = 300 * TETHER__NS_PER_MS;
    f->settings.timeouts.heartbeat_ms = 200;
    assert_keep_alive_swallows_rendezvous_errors(f);
}

static bool thread_exists(const char *name)
{
    bool found = false;
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    for (struct dirent *task; (task = readdir(tasks));) {
        char path[300], comm[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
        FILE *file = task->d_name[0] == '.' ? NULL : fopen(path, "r");
        if (file && fgets(comm, sizeof comm, file)) {
            comm[strcspn(comm, "\n")] = '\0';
            found |= strcmp(comm, name) == 0;
        }
        if (file)
            fclose(file);
    }
    closedir(tasks);
    return found;
}

static void test_keep_alive_thread_is_started_with_next_rendezvous_and_stopped_with_shutdown(
    void **state)
{
    struct fixture *f = *state;
    f->node.local_id = 2;
    tether_rdzv *rdzv = handler_create(f);
    assert_false(thread_exists("rdzv-2"));
    struct tether_rdzv_info info = handler_next(rdzv);
    assert_eventually(thread_exists("rdzv-2")); /* it names itself */
    assert_int_equal(tether_rdzv_shutdown(rdzv, NULL), TETHER_OK);
    assert_false(thread_exists("rdzv-2"));
    tether_rdzv_info_fini(&info);
    tether_rdzv_release(rdzv);
}

static void test_keep_alive_thread_is_started_with_next_rendezvous_and_stopped_with_finalizer(
    void **state)
{
    struct fixture *f = *state;
    f->node.local_id = 3;
    tether_rdzv *rdzv = handler_create(f);
    assert_false(thread_exists("rdzv-3"));
    struct tether_rdzv_info info = handler_next(rdzv);
    assert_eventually(thread_exists("rdzv-3"));
    tether_rdzv_info_fini(&info);
    tether_rdzv_release(rdzv);
    assert_false(thread_exists("rdzv-3"));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, handler_setup, handler_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_keep_alive_updates_last_heartbeat),
        TEST(test_keep_alive_swallows_rendezvous_errors),
        TEST(test_keep_alive_respects_the_requested_timeout),
        TEST(test_keep_alive_thread_is_started_with_next_rendezvous_and_stopped_with_shutdown),
        TEST(test_keep_alive_thread_is_started_with_next_rendezvous_and_stopped_with_finalizer),
    };
    return cmocka_run_group_tests_name("dynamic handler", tests, NULL, NULL);
}
