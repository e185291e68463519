/* Settings and time-outs (seed class RendezvousTimeoutTest). */
#include <string.h>

#include "tests/rendezvous/elastic/lib/fixture.h"

static void test_init_initializes_timeout(void **state)
{
    (void)state;
    struct tether_rdzv_settings settings = test_settings(1, 1);
    assert_int_equal(tether_rdzv_settings_set(&settings, "join_timeout", "50", NULL), TETHER_OK);
    assert_int_equal(tether_rdzv_settings_set(&settings, "last_call_timeout", "60", NULL),
                     TETHER_OK);
    assert_int_equal(tether_rdzv_settings_set(&settings, "close_timeout", "70", NULL), TETHER_OK);
    assert_int_equal(tether_rdzv_settings_set(&settings, "heartbeat_timeout", "80.5", NULL),
                     TETHER_OK);
    assert_int_equal(settings.timeouts.join_ms, 50000);
    assert_int_equal(settings.timeouts.last_call_ms, 60000);
    assert_int_equal(settings.timeouts.close_ms, 70000);
    assert_int_equal(settings.timeouts.heartbeat_ms, 80500);
    assert_int_equal(tether_rdzv_settings_check(&settings, NULL), TETHER_OK);
}

static void test_init_initializes_timeout_if_no_timeout_is_specified(void **state)
{
    (void)state;
    struct tether_rdzv_settings settings;
    tether_rdzv_settings_init(&settings);
    assert_int_equal(settings.timeouts.join_ms, 600000);
    assert_int_equal(settings.timeouts.last_call_ms, 30000);
    assert_int_equal(settings.timeouts.close_ms, 30000);
    assert_int_equal(settings.timeouts.heartbeat_ms, 5000);
    assert_int_equal(settings.keep_alive_interval_ms, 5000);
    assert_int_equal(settings.keep_alive_max_attempts, 3);
    assert_int_equal(settings.rank_hint, -1);
}

static void test_init_raises_error_if_timeout_is_not_positive(void **state)
{
    (void)state;
    static const char *const bad[] = {"0", "-1"};
    static const char *const messages[] = {"the join timeout (0 s) must be positive",
                                           "the join timeout (-1 s) must be positive"};
    for (int i = 0; i < 2; i++) {
        struct tether_rdzv_settings settings = test_settings(1, 1);
        tether_error err = {0};
        assert_int_equal(tether_rdzv_settings_set(&settings, "join_timeout", bad[i], &err),
                         TETHER_EINVAL);
        assert_string_equal(err.message, messages[i]);
        assert_int_equal(settings.timeouts.join_ms, 600000);

        /* A wrong field that was set directly is reported when the handler is made. */
        settings.timeouts.join_ms = -i * 1000;
        assert_int_equal(tether_rdzv_settings_check(&settings, &err), TETHER_EINVAL);
        assert_string_equal(err.message, messages[i]);
    }
}

/* All other ways in which a setting can be invalid. */
static void check_refuses_invalid_settings(void **state)
{
    (void)state;
    static const struct {
        const char *name, *value, *message;
    } texts[] = {
        {"join_timeout", "soon", "the join timeout must be a number of seconds, not 'soon'"},
        {"join_timeout", "", "the join timeout must be a number of seconds, not ''"},
        {"join_timeout", "5s", "the join timeout must be a number of seconds, not '5s'"},
        {"join_timeout", "nan", "the join timeout must be a number of seconds, not 'nan'"},
        {"join_timeout", "1e300", "the join timeout must be a number of seconds, not '1e300'"},
        {"close_timeout", "4e7", "the close timeout (4e+07 s) must be at most a year"},
        {"keep_alive_interval", "0", "the keep-alive interval (0 s) must be positive"},
        {"rank_hint", "1.5", "the rank hint must be a whole number up to 100000, not '1.5'"},
        {"keep_alive_max_attempt", "-7",
         "the number of keep-alive attempts must be a whole number up to 100000, not '-7'"},
    };
    for (size_t i = 0; i < TETHER__ARRAY_LEN(texts); i++) {
        struct tether_rdzv_settings settings = test_settings(1, 1), before = settings;
        tether_error err = {0};
        assert_int_equal(tether_rdzv_settings_set(&settings, texts[i].name, texts[i].value, &err),
                         TETHER_EINVAL);
        assert_string_equal(err.message, texts[i].message);
        assert_memory_equal(&settings, &before, sizeof settings);
    }

    struct tether_rdzv_settings settings = test_settings(1, 4);
    tether_error err = {0};
    assert_int_equal(tether_rdzv_settings_set(&settings, "colour", "red", &err), TETHER_EINVAL);
    assert_non_null(strstr(err.message, "'colour'"));
    assert_non_null(strstr(err.message, "last_call_timeout"));

    settings.rank_hint = 4;
    assert_int_equal(tether_rdzv_settings_check(&settings, &err), TETHER_EINVAL);
    assert_non_null(strstr(err.message, "rank hint (4)"));

    settings = test_settings(1, TETHER_RDZV_MAX_NODES + 1);
    assert_int_equal(tether_rdzv_settings_check(&settings, &err), TETHER_EINVAL);

    settings = test_settings(1, 1);
    settings.keep_alive_max_attempts = 0;
    assert_int_equal(tether_rdzv_settings_check(&settings, &err), TETHER_EINVAL);

    settings = test_settings(1, 1);
    settings.run_id = "";
    assert_int_equal(tether_rdzv_settings_check(&settings, &err), TETHER_EINVAL);
    settings.run_id = NULL;
    assert_int_equal(tether_rdzv_settings_check(&settings, &err), TETHER_EINVAL);

    memset(&settings, 0, sizeof settings);
    assert_int_equal(tether_rdzv_settings_check(&settings, &err), TETHER_EINVAL);
    assert_non_null(strstr(err.message, "tether_rdzv_settings_init"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_init_initializes_timeout),
        cmocka_unit_test(test_init_initializes_timeout_if_no_timeout_is_specified),
        cmocka_unit_test(test_init_raises_error_if_timeout_is_not_positive),
        cmocka_unit_test(check_refuses_invalid_settings),
    };
    return cmocka_run_group_tests_name("dynamic settings", tests, NULL, NULL);
}
