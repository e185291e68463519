/* For tests that need a second user: the calling thread, and those that it starts from then on, are
 * somebody else for a while. Not the whole process, as with seteuid(): that interrupts every
 * thread, and the thread sanitizer keeps them from answering.
 */
#ifndef TETHER_TESTS_LIB_USER_H
#define TETHER_TESTS_LIB_USER_H

#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TETHER_TEST_STRANGER 65534 /* a user that nobody else is */

/* False: this user may not become another, as in most sandboxes. */
static inline bool tether_test_become(uid_t user)
{
    return syscall(SYS_setresuid, -1, user, -1) == 0;
}

#endif
