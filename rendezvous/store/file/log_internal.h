/* Functions that log.c and compact.c share. */
#ifndef TETHER_RENDEZVOUS_STORE_FILE_LOG_INTERNAL_H
#define TETHER_RENDEZVOUS_STORE_FILE_LOG_INTERNAL_H

#include <sys/stat.h>
#include <sys/types.h>

#include "rendezvous/store/file/log.h"

/* Sets TETHER_EIO with the message "can't <what>: <errno>". The message does not name the file:
 * the caller adds its path. */
tether_status tether__file_io_error(const char *what, tether_error *reterr);

/* Returns TETHER_EUNAVAILABLE with a message that the file has been removed. */
tether_status tether__file_removed(tether_error *reterr);

/* Whether the path still leads to the open file, whose fstat() result is `mine`. */
bool tether__file_log_has_name(const struct tether__file_log *log, const struct stat *mine);

/* Checks owner, mode and links of a file (Security in log.h). Accepts a file without a name, which
 * the last user has just removed: check() notices that. */
tether_status tether__file_may_use(const struct stat *st, tether_error *reterr);

/* Reads `len` bytes at `offset`, or fewer at the end of the file. Returns -1 on error. */
ssize_t tether__file_read_at(int fd, char *data, size_t len, int64_t offset);

/* Writes the first TETHER__FILE_LOG_START bytes of the file. */
tether_status tether__file_log_write_start(struct tether__file_log *log, tether_error *reterr);

/* Whether `len` bytes are a prefix of a log, as far as the magic number tells. */
bool tether__file_starts_like_log(const char *start, size_t len);

/* Whether `start` is complete and valid; then gives the id (16 bytes, LENT) and the generation. */
bool tether__file_read_start(const char start[TETHER__FILE_LOG_START],
                             const char **ret_id,
                             uint64_t *ret_generation);

#endif
