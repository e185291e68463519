/* The log below the file store: records appended to a file by several processes.
 *
 * Layout, numbers in little-endian order:
 *   file:   8 bytes "TETHERF2", 16 bytes random id, 8 bytes generation, 8 bytes checksum of these
 *   record: 8 bytes length of the body, 8 bytes checksum of the body, 8 bytes checksum of these 16
 *           bytes and of the record's offset in the file, body
 *
 * Happy path of a reader: try_lock() shared, then read() the new records. Of a writer: try_lock()
 * exclusive, read(), then write() a record, which the next read() returns like any other.
 *
 * Compaction: with the exclusive lock, replace_begin() makes a second file, NAME.compact, with the
 * same id and the next generation; the owner writes a snapshot into it, and replace_commit()
 * renames it over the first. Other processes read the old file to its end, see that it has no name
 * any more (TETHER_EGONE), and follow() to the new one. If a process dies before the rename, the
 * old file stays in use, and the next compaction removes the NAME.compact.
 *
 * Failure: a writer that dies in the middle of a record leaves a prefix of it at the end of the
 * file. read() stops there and the next write() truncates it: no earlier record is lost. Any other
 * defect means damage, and a file that does not begin like a log belongs to another program: both
 * are TETHER_ECORRUPT, and the file is left unchanged.
 *
 * Security: the last part of the path must not be a symbolic link. The file must belong to this
 * user, have one name, and not be writable for other users.
 *
 * Threads: the owner guards it. The lock is flock()'s: between open files, not between threads.
 */
#ifndef TETHER_RENDEZVOUS_STORE_FILE_LOG_H
#define TETHER_RENDEZVOUS_STORE_FILE_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/status.h"

#define TETHER__FILE_LOG_START 40  /* size of the header before the first record */
#define TETHER__FILE_LOG_HEADER 24 /* size of the header before each record's body */

struct tether__file_log {
    int fd;     /* descriptor of the file; -1: not open */
    int dir_fd; /* descriptor of the directory that has the file */
    char *path;
    const char *name; /* the last part of `path` */
    char id[16];
    uint64_t generation; /* how often the log has been compacted */
    int64_t offset;      /* position after the last record that was read */
    tether_buf chunk;    /* read buffer; most records fit into it */
};

/* Opens `path`, or makes it (mode 0600). Does not read it yet: lock, then check(). On error there
 * is nothing to undo. TETHER_EPERM: see Security above. */
tether_status tether__file_log_open(struct tether__file_log *log,
                                    const char *path,
                                    tether_error *reterr);
void tether__file_log_close(struct tether__file_log *log); /* zeroed memory is fine */

/* TETHER_EBUSY when another process holds the lock. */
tether_status tether__file_log_try_lock(struct tether__file_log *log,
                                        bool exclusive,
                                        tether_error *reterr);
void tether__file_log_unlock(struct tether__file_log *log);

/* With the exclusive lock, once: checks that the file is a log, and begins one if it is empty.
 * TETHER_EGONE when the path leads to another file now: open it again. */
tether_status tether__file_log_check(struct tether__file_log *log, tether_error *reterr);

/* With a lock: calls `apply` with the body of each new record (LENT for the call). When `apply`
 * fails, read() returns its error, and the next read() begins with the same record. TETHER_EGONE:
 * all records have been read, and the file has lost its name: follow(). */
typedef tether_status tether__file_log_apply(void *userdata,
                                             tether_bytes body,
                                             tether_error *reterr);
tether_status tether__file_log_read(struct tether__file_log *log,
                                    tether__file_log_apply *apply,
                                    void *userdata,
                                    tether_error *reterr);

/* After TETHER_EGONE: opens the file that has replaced this one. Does not lock it; read() begins
 * with its snapshot. TETHER_EUNAVAILABLE: the file was removed. On error `log` is unchanged. */
tether_status tether__file_log_follow(struct tether__file_log *log, tether_error *reterr);

/* Makes the next read() begin with the first record. */
void tether__file_log_rewind(struct tether__file_log *log);

/* With the exclusive lock, after read(): appends a record. Fills in the first
 * TETHER__FILE_LOG_HEADER bytes of `record`, which `len` includes. On error the file is unchanged,
 * or ends with a torn record. */
tether_status tether__file_log_write(struct tether__file_log *log,
                                     char *record,
                                     size_t len,
                                     tether_error *reterr);

/* With the exclusive lock and all records read: makes and locks the file that is to replace this
 * one. Write records into `next` and advance its offset, then commit or abandon it. On error there
 * is nothing to undo; a commit that fails abandons it. */
tether_status tether__file_log_replace_begin(struct tether__file_log *log,
                                             struct tether__file_log *next,
                                             tether_error *reterr);
tether_status tether__file_log_replace_commit(struct tether__file_log *log,
                                              struct tether__file_log *next,
                                              tether_error *reterr);
void tether__file_log_replace_abandon(struct tether__file_log *log, struct tether__file_log *next);

/* With the exclusive lock: removes the file from its directory if it still has its name. */
void tether__file_log_remove(struct tether__file_log *log);

#endif
