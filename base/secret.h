/* Secrets (tokens, passwords, private keys): in memory of their own that is left out of core dumps,
 * not swapped where the limits allow it, and wiped when it is freed.
 *
 * Copies that other libraries make (gRPC keeps the private key) are out of reach here. Any thread.
 */
#ifndef TETHER_BASE_SECRET_H
#define TETHER_BASE_SECRET_H

#include <stddef.h>

#include "base/bytes.h"

/* A copy of `text`, with a NUL behind it; NULL without memory. */
char *tether__secret_new(tether_bytes text);

/* The content of a file of up to `max` bytes, with a NUL behind it. No other copy of it is made.
 * NULL: errno says why; EFBIG: it is longer. */
char *tether__secret_read(const char *path, size_t max);

/* Wipes and frees it. Accepts NULL and returns NULL. */
void *tether__secret_free(const char *secret);

#endif
