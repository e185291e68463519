/* The replaceable allocator. One global, written before the library starts and only read after. */
#include "base/alloc.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *libc_malloc(void *userdata, size_t size)
{
    (void)userdata;
    return malloc(size);
}

static void *libc_realloc(void *userdata, void *ptr, size_t size)
{
    (void)userdata;
    return realloc(ptr, size);
}

static void libc_free(void *userdata, void *ptr)
{
    (void)userdata;
    free(ptr);
}

static const struct tether_allocator libc_allocator = {libc_malloc, libc_realloc, libc_free, NULL};
static struct tether_allocator current = {libc_malloc, libc_realloc, libc_free, NULL};

void tether_set_allocator(const struct tether_allocator *allocator)
{
    current = allocator ? *allocator : libc_allocator;
}

void *tether__malloc(size_t size)
{
    return current.malloc(current.userdata, size ? size : 1);
}

void *tether__calloc(size_t count, size_t size)
{
    size_t total;
    if (__builtin_mul_overflow(count, size, &total))
        return NULL;
    void *ptr = tether__malloc(total);
    return ptr ? memset(ptr, 0, total) : NULL;
}

void *tether__realloc(void *ptr, size_t size)
{
    return current.realloc(current.userdata, ptr, size ? size : 1);
}

void *tether__free(void *ptr)
{
    if (ptr)
        current.free(current.userdata, ptr);
    return NULL;
}

char *tether__strdup(const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = tether__malloc(size);
    return copy ? memcpy(copy, text, size) : NULL;
}

char *tether__asprintf(const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int len = vsnprintf(NULL, 0, format, args);
    char *text = len < 0 ? NULL : tether__malloc((size_t)len + 1);
    if (text)
        vsnprintf(text, (size_t)len + 1, format, again);
    va_end(again);
    va_end(args);
    return text;
}

/* glibc gives a large block back to the kernel when it is freed, which costs a page fault for every
 * 4 KiB of the next message. It stops doing so once a block as large as this has been freed
 * (mallopt(3), M_MMAP_THRESHOLD); settings of the user's own stay in force. */
void tether__alloc_keep_freed(void)
{
    static atomic_flag done = ATOMIC_FLAG_INIT;
    if (atomic_flag_test_and_set(&done))
        return;
    void *volatile block =
        malloc((size_t)16 << 20); /* volatile: keeps the compiler from removing this pair */
    free(block);
}
