/* gRPC starts as often as asked, leaves the environment alone and speaks through the log hook. */
#include "base/grpc_init.h"

#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "tests/lib/cmocka.h"

static char last_message[256];

static void hear(void *userdata, tether_log_level level, const char *area, const char *message)
{
    (void)userdata;
    if (level == TETHER_LOG_DEBUG && strcmp(area, "grpc") == 0)
        strncpy(last_message, message, sizeof last_message - 1);
}

static void grpc_starts_and_leaves_the_environment_alone(void **state)
{
    (void)state;
    unsetenv("GRPC_POLL_STRATEGY");
    char **before = environ;
    for (int i = 0; i < 2; i++) {
        tether__grpc_init(0);
        assert_int_equal(grpc_is_initialized(), 1);
        assert_ptr_equal(environ, before);
        assert_null(getenv("GRPC_POLL_STRATEGY"));
    }
    grpc_shutdown();
    assert_int_equal(grpc_is_initialized(), 1);
    grpc_shutdown();
}

static void grpc_speaks_through_the_log_hook(void **state)
{
    (void)state;
    tether_set_log(TETHER_LOG_DEBUG, hear, NULL);
    gpr_log(GPR_ERROR, "a message of %s", "gRPC");
    assert_string_equal(last_message, "a message of gRPC");
    tether_set_log(TETHER_LOG_NONE, NULL, NULL);
}

int main(void)
{
    unsetenv("GRPC_VERBOSITY");
    unsetenv("GRPC_TRACE");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grpc_starts_and_leaves_the_environment_alone),
        cmocka_unit_test(grpc_speaks_through_the_log_hook),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
