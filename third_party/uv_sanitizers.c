/* Shows the thread sanitizer how libuv closes descriptors, in every program that links libuv.
 *
 * Debian's libuv closes by syscall(SYS_close, fd), which the sanitizer does not see. When another
 * thread then opens a descriptor with the same number, the sanitizer reports a race with libuv's
 * last use of the old one. So this file replaces syscall() under the sanitizer: a close goes
 * through close(), other calls go to the C library.
 */
#if defined(__SANITIZE_THREAD__)

#include <dlfcn.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>

#define VISIBLE __attribute__((visibility("default")))

VISIBLE long syscall(long number, ...)
{
    typedef long syscall_fn(long number, ...);
    static syscall_fn *libc_syscall; /* every thread finds the same address */
    long args[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++)
        args[i] = va_arg(list, long);
    va_end(list);
    if (number == SYS_close)
        return close((int)args[0]);
    syscall_fn *next = __atomic_load_n(&libc_syscall, __ATOMIC_RELAXED);
    if (!next) {
        next = (syscall_fn *)dlsym(RTLD_NEXT, "syscall");
        __atomic_store_n(&libc_syscall, next, __ATOMIC_RELAXED);
    }
    return next(number, args[0], args[1], args[2], args[3], args[4], args[5]);
}

#else
typedef int nothing_here; /* C does not allow an empty file */
#endif
