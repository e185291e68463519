/* The log below the file store: records appended to a file by several processes.
 *
 * Layout: 8 bytes "TETHERF1", then records of 8 bytes checksum (over all that follows), 8 bytes
 * length of the body, body; numbers in little-endian order.
 *
 * Happy path: try_lock() shared, read() what others have appended since; or exclusive, read(), then
 * write() a record of one's own, which the next read() gives back like any other.
 *
 * Failure: a writer that dies in the middle of a record leaves a torn tail, which read() stops at
 * and the next write() cuts off: nothing before it is lost. A record that is wrong although more
 * follow it was not torn but damaged, and a file that does not begin as ours is somebody else's:
 * both are TETHER_ECORRUPT, and nothing is written.
 *
 * Threads: the owner guards it. The lock is flock()'s: between open files, not between threads.
 */
#ifndef TETHER_RENDEZVOUS_FILE_LOG_H
#define TETHER_RENDEZVOUS_FILE_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/status.h"

#define TETHER__FILE_LOG_HEADER 16 /* bytes before the body of a record */

struct tether__file_log {
    int fd; /* -1: not open */
    char *path;
    int64_t offset;   /* the end of what has been read */
    tether_buf chunk; /* what is being read; kept at a size that most records fit into */
};

/* Opens `path`, or makes it (mode 0600). Does not look into it yet: lock, then check(). On error
 * nothing is left behind. */
tether_status tether__file_log_open(struct tether__file_log *log,
                                    const char *path,
                                    tether_error *reterr);
void tether__file_log_close(struct tether__file_log *log); /* zeroed memory is fine */

/* TETHER_EBUSY when another holds the lock. */
tether_status tether__file_log_try_lock(struct tether__file_log *log,
                                        bool exclusive,
                                        tether_error *reterr);
void tether__file_log_unlock(struct tether__file_log *log);

/* With the exclusive lock, once: makes sure that the file is a log, beginning it if it is empty.
 * TETHER_EGONE when the path leads to another file by now: open it again. */
tether_status tether__file_log_check(struct tether__file_log *log, tether_error *reterr);

/* With a lock: calls `apply` with the body of each new record (LENT for the call). When that
 * returns an error, reading ends with it, and begins with the same record next time. */
typedef tether_status tether__file_log_apply(void *userdata,
                                             tether_bytes body,
                                             tether_error *reterr);
tether_status tether__file_log_read(struct tether__file_log *log,
                                    tether__file_log_apply *apply,
                                    void *userdata,
                                    tether_error *reterr);

/* With the exclusive lock, after read(): appends a record. `record` begins with room for
 * TETHER__FILE_LOG_HEADER bytes, which are filled in; `len` counts them. On error the file is as it
 * was, or has a torn tail. */
tether_status tether__file_log_write(struct tether__file_log *log,
                                     char *record,
                                     size_t len,
                                     tether_error *reterr);

/* With the exclusive lock: removes the file from its directory if it is still there. */
void tether__file_log_remove(struct tether__file_log *log);

#endif
