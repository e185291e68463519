/* Waits in tests: for an event that another thread reports, or for a condition that no event
 * reports (a state of another process or of the kernel). Every wait has a limit that only a hang
 * reaches; none is a fixed sleep.
 */
#ifndef TETHER_TESTS_LIB_WAIT_H
#define TETHER_TESTS_LIB_WAIT_H

#include <pthread.h>
#include <stdbool.h>

/* The limit of every wait. It is long enough for the slowest machine under a sanitizer, so
 * reaching it is a failure. */
#define TETHER_TEST_LIMIT_MS 60000

/* An event that counts calls of signal(). Any thread. */
struct tether_test_event {
    pthread_mutex_t mu;
    pthread_cond_t changed;
    /* number of signals so far; under mu */
    int count;
};

void tether_test_event_init(struct tether_test_event *event);
void tether_test_event_fini(struct tether_test_event *event);
void tether_test_event_signal(struct tether_test_event *event);

/* Waits up to `timeout_ms` until signal() has been called `count` times in all; false when it has
 * not. */
bool tether_test_event_wait(struct tether_test_event *event, int count, int timeout_ms);

/* Evaluates `condition` every millisecond until it holds; fails the test at the limit. */
#define assert_eventually(condition)                                                          \
    do {                                                                                      \
        for (int tether_test_tries_ = 0; !(condition); tether_test_tries_++)                  \
            if (!tether_test_nap(tether_test_tries_))                                         \
                fail_msg("still not true after %d ms: %s", TETHER_TEST_LIMIT_MS, #condition); \
    } while (0)

/* Sleeps a millisecond; false when TETHER_TEST_LIMIT_MS have passed since this thread's last call
 * with `tries` 0. */
bool tether_test_nap(int tries);

#endif
