/* Secrets (tokens, passwords, private keys) in separate memory, which is left out of core dumps,
 * not swapped where the limits allow it, and wiped when it is freed.
 *
 * This does not cover copies of other libraries (gRPC keeps the private key). Any thread.
 */
#ifndef TETHER_BASE_SECRET_H
#define TETHER_BASE_SECRET_H

#include <stddef.h>

#include "base/bytes.h"

/* Returns a copy of `text` with a NUL after it; NULL when out of memory. */
char *tether__secret_new(tether_bytes text);

/* Reads a file of up to `max` bytes and adds a NUL. Makes no other copy of it. NULL: errno says
 * why; EFBIG: it is longer. */
char *tether__secret_read(const char *path, size_t max);

/* The same, for a file of this user that no other user may read; EPERM: it is not. Checks the file
 * that it reads, so another user who swaps the path meanwhile gains nothing. */
char *tether__secret_read_private(const char *path, size_t max);

/* Wipes and frees a secret. Accepts NULL and returns NULL. */
void *tether__secret_free(const char *secret);

#endif
