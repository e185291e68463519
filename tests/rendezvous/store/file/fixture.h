/* Helpers of the tests of the file store: stores in new files, and the bytes of a file. */
#ifndef TETHER_TESTS_RENDEZVOUS_STORE_FILE_FIXTURE_H
#define TETHER_TESTS_RENDEZVOUS_STORE_FILE_FIXTURE_H

#include <stdbool.h>
#include <sys/types.h>

#include "rendezvous/store.h"
#include "tests/lib/proc.h"

#define LIMIT TETHER_TEST_LIMIT_MS
#define PATH_SIZE 256

/* Makes a new path in the test's directory; the file does not exist. */
void file_new_path(char path[PATH_SIZE]);

/* A store in this file; the second one makes a new file, the third one opens that of `store`. */
tether_store *file_open(const char *path, int world_size);
tether_store *file_make(void);
tether_store *file_join(tether_store *store);

/* Returns the last part of a path, which even a shortened message shows. */
const char *file_name_of(const char *path);
bool file_exists(const char *path);
off_t file_size(const char *path);

/* Writes the bytes at the start of the file, or at its end with O_APPEND in `flags`. */
void file_put(const char *path, int flags, const void *data, size_t len);

#endif
