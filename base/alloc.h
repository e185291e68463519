/* Memory: the library allocates through these functions only, so that an application can set its
 * own allocator and a test can make the nth allocation fail.
 *
 * Running out of memory is an error like any other (TETHER_ENOMEM); nothing aborts.
 */
#ifndef TETHER_BASE_ALLOC_H
#define TETHER_BASE_ALLOC_H

#include "base/macros.h"

TETHER_BEGIN_DECLS

/* Three functions with the meaning that C gives them; each may be called from any thread. */
struct tether_allocator {
    void *(*malloc)(void *userdata, size_t size);
    void *(*realloc)(void *userdata, void *ptr, size_t size);
    void (*free)(void *userdata, void *ptr);
    void *userdata;
};

/* Makes the library use `allocator` (copied; NULL: the C library's). Call it before all other
 * functions of Tether: memory must be freed by the allocator that made it. Not thread-safe. */
TETHER_API void tether_set_allocator(const struct tether_allocator *allocator);

/* Internal from here on. These functions work like the C functions; NULL when out of memory. Any
 * thread. */
void *tether__malloc(size_t size);
void *tether__calloc(size_t count, size_t size); /* returns NULL also when count * size overflows */
void *tether__realloc(void *ptr, size_t size);   /* on failure `ptr` is unchanged */
char *tether__strdup(const char *text);
char *tether__asprintf(const char *format, ...) TETHER_PRINTF(1, 2);

/* Frees memory. Accepts NULL and returns NULL: `p->name = tether__free(p->name)`. */
void *tether__free(void *ptr);

/* Makes the C library keep large freed blocks for later allocations. Any thread. */
void tether__alloc_keep_freed(void);

TETHER_END_DECLS

#endif
