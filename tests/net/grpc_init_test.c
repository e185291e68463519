/* gRPC can be started several times, leaves the environment unchanged and logs through the hook. */
#include "net/grpc_init.h"

#include <dlfcn.h>
#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "base/macros.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/proc.h"

static char last_message[256];

static void on_log(void *userdata, tether_log_level level, const char *area, const char *message)
{
    (void)userdata;
    if (level == TETHER_LOG_DEBUG && strcmp(area, "grpc") == 0)
        strncpy(last_message, message, sizeof last_message - 1);
}

static void grpc_init_leaves_environment_unchanged(void **state)
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

static void grpc_messages_reach_log_hook(void **state)
{
    (void)state;
    tether_set_log(TETHER_LOG_DEBUG, on_log, NULL);
    gpr_log(GPR_ERROR, "a message of %s", "gRPC");
    assert_string_equal(last_message, "a message of gRPC");
    tether_set_log(TETHER_LOG_NONE, NULL, NULL);
}

/* With these variables gRPC logs where its documentation says. */
TETHER_PROC_TEST(grpc_messages_reach_standard_error_when_variables_of_grpc_are_set, .ranks = 2)
{
    char output[1024] = "";
    setenv(rank == 0 ? "GRPC_VERBOSITY" : "GRPC_TRACE", rank == 0 ? "error" : "none", 1);
    tether__grpc_init(0);
    tether_set_log(TETHER_LOG_TRACE, on_log, NULL);
    int fd = memfd_create("stderr", MFD_CLOEXEC);
    assert_true(fd >= 0);
    int before = dup(STDERR_FILENO);
    dup2(fd, STDERR_FILENO);
    gpr_log(GPR_ERROR, "a message of %s", "gRPC");
    fflush(stderr);
    dup2(before, STDERR_FILENO);
    close(before);
    assert_true(pread(fd, output, sizeof output - 1, 0) > 0);
    assert_non_null(strstr(output, "a message of gRPC"));
    assert_string_equal(last_message, "");
    close(fd);
    tether_set_log(TETHER_LOG_NONE, NULL, NULL);
    grpc_shutdown();
}

/* gRPC chooses its poll strategy once in a process, so every case has a process of its own. */
static const struct {
    const char *strategy, *world_size; /* of the environment */
    int expected_peers;
    const char *chosen;
} cases[] = {
    {NULL, NULL, 0, "poll"},       {NULL, NULL, 64, "poll"},     {NULL, NULL, 65, "epoll1"},
    {NULL, "65", 0, "epoll1"},     {NULL, "64", 0, "poll"},      {NULL, "65", 2, "poll"},
    {"epoll1", NULL, 0, "epoll1"}, {"poll", NULL, 1000, "poll"},
};

static void set_variable(const char *name, const char *value)
{
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

TETHER_PROC_TEST(poll_strategy_is_chosen_by_size_of_group, .ranks = TETHER__ARRAY_LEN(cases))
{
    const char *(*name_of_strategy)(void) =
        (const char *(*)(void))dlsym(RTLD_DEFAULT, "_Z27grpc_get_poll_strategy_namev");
    if (!name_of_strategy) /* another version of gRPC lacks this symbol */
        skip();
    set_variable("GRPC_POLL_STRATEGY", cases[rank].strategy);
    set_variable("WORLD_SIZE", cases[rank].world_size);
    tether__grpc_init(cases[rank].expected_peers);
    assert_string_equal(name_of_strategy(), cases[rank].chosen);
    grpc_shutdown();
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    unsetenv("GRPC_VERBOSITY");
    unsetenv("GRPC_TRACE");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grpc_init_leaves_environment_unchanged),
        cmocka_unit_test(grpc_messages_reach_log_hook),
        cmocka_unit_test(grpc_messages_reach_standard_error_when_variables_of_grpc_are_set),
        cmocka_unit_test(poll_strategy_is_chosen_by_size_of_group),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
