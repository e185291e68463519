/* For tests that need a second user: the calling thread, and those that it starts from then on, are
 * somebody else for a while. Not the whole process, as with seteuid(): that interrupts every
 * thread, and the thread sanitizer keeps them from answering.
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

/* False: this user may not become another, or there is no other in this user namespace, as in most
 * sandboxes. Fails the test on any other error. */
static inline bool tether_test_become(uid_t user)
{
    bool done = syscall(SYS_setresuid, -1, user, -1) == 0;
    if (!done && errno != EPERM && errno != EINVAL)
        fail_msg("becoming user %d: %s", (int)user, strerror(errno));
    return done;
}

#endif
