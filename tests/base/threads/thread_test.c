/* A thread of the library has a name and leaves the application's signals alone. */
#include "base/threads/thread.h"

#include <errno.h>
#include <signal.h>
#include <unistd.h>

#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"

struct seen {
    struct tether_test_event named;
    char name[32];
    sigset_t blocked;
    int pipe_errno;
};

static void *record_thread(void *arg)
{
    struct seen *seen = arg;
    tether_test_event_wait(&seen->named, 1, TETHER_TEST_LIMIT_MS);
    pthread_getname_np(pthread_self(), seen->name, sizeof seen->name);
    pthread_sigmask(SIG_SETMASK, NULL, &seen->blocked);

    int ends[2];
    if (pipe(ends) == 0) {
        close(ends[0]);
        seen->pipe_errno = write(ends[1], "x", 1) < 0 ? errno : 0;
        close(ends[1]);
    }
    return NULL;
}

static void thread_has_name_and_blocks_signals(void **state)
{
    (void)state;
    sigset_t before, after;
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    struct seen seen = {.pipe_errno = 0};
    tether_test_event_init(&seen.named);
    pthread_t thread;
    assert_int_equal(tether__thread_start(&thread, "a-name-that-is-too-long", record_thread, &seen),
                     0);
    tether_test_event_signal(&seen.named);
    pthread_join(thread, NULL);
    tether_test_event_fini(&seen.named);

    assert_string_equal(seen.name, "a-name-that-is-");
    const int shielded[] = {SIGINT, SIGTERM, SIGHUP, SIGCHLD, SIGUSR1, SIGPIPE};
    for (size_t i = 0; i < sizeof shielded / sizeof shielded[0]; i++)
        assert_int_equal(sigismember(&seen.blocked, shielded[i]), 1);
    assert_int_equal(sigismember(&seen.blocked, SIGSEGV), 0);
    assert_int_equal(seen.pipe_errno, EPIPE); /* an error, not the end of the process */

    pthread_sigmask(SIG_SETMASK, NULL, &after);
    for (int signal = 1; signal < SIGRTMAX; signal++)
        assert_int_equal(sigismember(&before, signal), sigismember(&after, signal));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(thread_has_name_and_blocks_signals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
