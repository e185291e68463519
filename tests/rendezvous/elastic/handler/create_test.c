/* Ways to create a handler (seed classes DynamicRendezvousHandlerFromBackendTest and
 * CreateHandlerTest). */
#include "rendezvous/elastic/handler/internal.h"
#include "tests/rendezvous/elastic/handler/fixture.h"
#include "tests/rendezvous/elastic/lib/fixture.h"

/* ---- Made from a backend -------------------------------------------------------------------- */

static void create_and_check(struct fixture *f, const struct tether_rdzv_settings *settings)
{
    struct fake_backend backend;
    tether_rdzv *rdzv = NULL;
    tether_error err = {0};
    fake_backend_init(&backend);
    if (tether_rdzv_new(settings, f->store.store, backend.backend, &rdzv, &err) != TETHER_OK)
        fail_msg("%s", err.message);
    const struct tether_rdzv_settings *copy = tether_rdzv_get_settings(rdzv);
    assert_string_equal(tether_rdzv_get_backend(rdzv), "fake_backend");
    assert_string_equal(tether_rdzv_get_run_id(rdzv), settings->run_id);
    assert_string_equal(copy->run_id, settings->run_id);
    assert_ptr_not_equal(copy->run_id, settings->run_id);
    assert_int_equal(copy->min_nodes, settings->min_nodes);
    assert_int_equal(copy->max_nodes, settings->max_nodes);
    assert_memory_equal(&copy->timeouts, &settings->timeouts, sizeof copy->timeouts);
    assert_int_equal(backend.gets + backend.sets, 0); /* no request was made */
    tether_rdzv_release(rdzv);
    fake_backend_fini(&backend);
}

static void test_init_initializes_handler(void **state)
{
    struct fixture *f = *state;
    f->settings = test_settings(3, 6);
    f->settings.timeouts = (struct tether_rdzv_timeouts){50000, 60000, 70000, 8000};
    create_and_check(f, &f->settings);
}

static void test_init_initializes_handler_if_timeout_is_not_specified(void **state)
{
    struct fixture *f = *state;
    f->settings = test_settings(3, 6);
    create_and_check(f, &f->settings);
    assert_int_equal(f->settings.timeouts.join_ms, TETHER_RDZV_JOIN_MS);
}

static void test_init_initializes_handler_if_min_and_max_nodes_are_equal(void **state)
{
    struct fixture *f = *state;
    f->settings = test_settings(3, 3);
    create_and_check(f, &f->settings);
}

static void assert_refused(struct fixture *f, int min_nodes, int max_nodes, const char *message)
{
    tether_rdzv *rdzv = NULL;
    tether_error err = {0};
    f->settings.min_nodes = min_nodes;
    f->settings.max_nodes = max_nodes;
    assert_int_equal(tether_rdzv_new(&f->settings, f->store.store, NULL, &rdzv, &err),
                     TETHER_EINVAL);
    assert_string_equal(err.message, message);
    assert_null(rdzv);
}

static void test_init_raises_error_if_min_nodes_is_not_positive(void **state)
{
    struct fixture *f = *state;
    assert_refused(f, 0, 6, "the minimum number of nodes (0) must be greater than zero");
    assert_refused(f, -10, 6, "the minimum number of nodes (-10) must be greater than zero");
}

static void test_init_raises_error_if_max_nodes_is_less_than_min(void **state)
{
    assert_refused(*state, 3, 2,
                   "the maximum number of nodes (2) must be greater than or equal to the minimum "
                   "number of nodes (3)");
}

/* ---- Made from configuration ---------------------------------------------------------------- */

static void test_create_handler_returns_handler(void **state)
{
    struct fixture *f = *state;
    f->settings = test_settings(3, 6);
    assert_int_equal(tether_rdzv_settings_set(&f->settings, "join_timeout", "50", NULL), TETHER_OK);
    assert_int_equal(tether_rdzv_settings_set(&f->settings, "last_call_timeout", "60", NULL),
                     TETHER_OK);
    assert_int_equal(tether_rdzv_settings_set(&f->settings, "close_timeout", "70", NULL),
                     TETHER_OK);
    assert_int_equal(f->settings.timeouts.join_ms, 50000);
    assert_int_equal(f->settings.timeouts.last_call_ms, 60000);
    assert_int_equal(f->settings.timeouts.close_ms, 70000);
    create_and_check(f, &f->settings);
}

static void test_create_handler_returns_handler_if_timeout_is_not_specified(void **state)
{
    struct fixture *f = *state;
    tether_rdzv *rdzv = NULL;
    f->settings = test_settings(3, 6);
    assert_int_equal(tether_rdzv_new(&f->settings, f->store.store, NULL, &rdzv, NULL), TETHER_OK);
    const struct tether_rdzv_timeouts *timeouts = &tether_rdzv_get_settings(rdzv)->timeouts;
    assert_int_equal(timeouts->join_ms, 600000);
    assert_int_equal(timeouts->last_call_ms, 30000);
    assert_int_equal(timeouts->close_ms, 30000);
    assert_string_equal(tether_rdzv_get_backend(rdzv), "store"); /* no backend given */
    tether_rdzv_release(rdzv);
}

static void test_create_handler_records_and_raises_exceptions(void **state)
{
    struct fixture *f = *state;
    tether_rdzv *rdzv = NULL;
    tether_error err = {0};
    f->settings.timeouts.join_ms = 0;
    assert_int_equal(tether_rdzv_new(&f->settings, f->store.store, NULL, &rdzv, &err),
                     TETHER_EINVAL);
    assert_string_equal(err.message, "the join timeout (0 s) must be positive");
    assert_int_equal(f->failures, 1);
    assert_string_equal(f->last_event, "new");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, handler_setup, handler_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_init_initializes_handler),
        TEST(test_init_initializes_handler_if_timeout_is_not_specified),
        TEST(test_init_initializes_handler_if_min_and_max_nodes_are_equal),
        TEST(test_init_raises_error_if_min_nodes_is_not_positive),
        TEST(test_init_raises_error_if_max_nodes_is_less_than_min),
        TEST(test_create_handler_returns_handler),
        TEST(test_create_handler_returns_handler_if_timeout_is_not_specified),
        TEST(test_create_handler_records_and_raises_exceptions),
    };
    return cmocka_run_group_tests_name("dynamic handler", tests, NULL, NULL);
}
