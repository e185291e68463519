/* Shows the thread sanitizer how libuv closes descriptors, in every program that links libuv.
 *
 * Debian's libuv closes by syscall(SYS_close, fd), which the sanitizer does not see. It then takes
 * the descriptor for open, and the next one of the same number that another thread opens for a race
 * with whatever libuv last did to the old one. So syscall() is ours under the sanitizer: a close
 * goes through close(), the rest where it would have gone.
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
    static syscall_fn *libc_syscall; /* every thread finds the same */
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
typedef int nothing_here; /* a file must have something in it */
#endif
