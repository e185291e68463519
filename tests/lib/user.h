/* For tests that need a second user: changes the user of the calling thread and of threads that it
 * starts later. It does not change the whole process, as seteuid() would: that interrupts every
 * thread, and under the thread sanitizer they do not answer.
 */
#ifndef TETHER_TESTS_LIB_USER_H
#define TETHER_TESTS_LIB_USER_H

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/lib/cmocka.h"

#define TETHER_TEST_OTHER_USER 65534 /* a user id that no process of a test has */

/* False when this user may not change its id, or when the user namespace has no other id, as in
 * most sandboxes. Fails the test on any other error. */
static inline bool tether_test_become(uid_t user)
{
    bool done = syscall(SYS_setresuid, -1, user, -1) == 0;
    if (!done && errno != EPERM && errno != EINVAL)
        fail_msg("becoming user %d: %s", (int)user, strerror(errno));
    return done;
}

/* Skips the test when its processes cannot become another user. Call it in the process of the
 * test, not in a child. */
static inline void tether_test_need_other_user(void)
{
    uid_t self = geteuid();
    if (!tether_test_become(TETHER_TEST_OTHER_USER))
        skip();
    assert_true(tether_test_become(self));
}

#endif
