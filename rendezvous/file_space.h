/* The keys that a file store's log adds up to, kept in step with other processes; the machine room
 * of store_file.c.
 *
 * Happy path: a call takes the mutex and the file's lock (begin), which reads what others have
 * written since, and answers from the keys in memory. A change is written as a record and then read
 * back like anybody else's, so there is one way into the keys. A call that has to wait registers
 * with the key-value core, which tells it when a record completes it: a record costs one step for
 * each call that waits for its keys, whatever else waits. One of the waiting threads, the watcher,
 * sleeps on inotify (or looks every few ms where the file system has none) and reads what comes;
 * the others sleep until it, or a call of another thread, has what they wait for.
 *
 * Compaction: the writer that makes the log larger than 1 MiB and than four times its keys and
 * values replaces it by a snapshot (file_log.h). The others load the snapshot into new keys, and
 * calls that wait move over to those. Not on network file systems, where a file that lost its name
 * can't be told for certain: there the log grows until the file is removed.
 *
 * Failure: a process that dies gives its lock back, and at worst leaves a torn record that nobody
 * sees. One that is stopped while it holds the lock runs the others into their time-outs. A record
 * that was written but could not be applied for want of memory is applied by the next call. A
 * compaction that fails changes nothing, and is tried again when the log has doubled.
 *
 * Lock rule: `mu`, then the file's lock, which nobody sleeps for while holding `mu`.
 */
#ifndef TETHER_RENDEZVOUS_FILE_SPACE_H
#define TETHER_RENDEZVOUS_FILE_SPACE_H

#include <pthread.h>

#include "base/list.h"
#include "rendezvous/file_log.h"
#include "rendezvous/kv.h"

struct tether__file_space {
    /* immutable */
    int world_size;
    pthread_mutex_t mu;
    /* under mu */
    struct tether__file_log log;
    struct tether__kv *kv; /* one of the two: a snapshot is loaded into the other */
    struct tether__kv kvs[2];
    bool reload;                  /* the log begins with a snapshot that is not loaded yet */
    int64_t compact_after;        /* a compaction failed: wait until the log is so long */
    int64_t users, closed;        /* how many have it open; have closed it, ever */
    struct tether__list waiting;  /* calls that wait */
    struct tether__list complete; /* of these: have all their keys, and are not told yet */
    bool watched;                 /* one of them watches the file */
    bool watch_tried;
    int inotify_fd;    /* -1: none */
    int look_every_ms; /* beside inotify; -1: no need */
};

/* What a record can do to the keys. */
enum tether__file_op {
    TETHER__FILE_SET = 's',
    TETHER__FILE_DELETE = 'd',
    TETHER__FILE_APPEND = 'a',
    TETHER__FILE_PUSH = 'q',
    TETHER__FILE_POP = 'p',
    TETHER__FILE_OPEN = 'o',
    TETHER__FILE_CLOSE = 'c',
    TETHER__FILE_COUNTS = 'n', /* in a snapshot: users and closed, as u64 each */
};

struct tether__file_change {
    enum tether__file_op op;
    tether_bytes key, value;
};

/* Opens or makes the file and counts itself as a user. On error nothing is left behind; messages
 * are about "it", as the caller knows the path. */
tether_status tether__file_space_open(struct tether__file_space *space,
                                      const char *path,
                                      int world_size,
                                      tether_error *reterr);

/* Counts itself out; removes the file if it was the last user, `world_size` is not negative and at
 * least so many have closed it. */
void tether__file_space_close(struct tether__file_space *space);

/* The beginning and the end of each call: both locks, and all that others have written. On error,
 * neither lock. Even a call that only polls waits a second for the file's lock. */
tether_status tether__file_space_begin(struct tether__file_space *space,
                                       bool exclusive,
                                       int64_t deadline,
                                       tether_error *reterr);
void tether__file_space_end(struct tether__file_space *space);

/* Between begin(exclusive) and end(): writes the changes as one record: others see all or none.
 * Once it is written it has happened, whatever else fails. */
tether_status tether__file_space_write_locked(struct tether__file_space *space,
                                              const struct tether__file_change *changes,
                                              size_t n,
                                              tether_error *reterr);

enum tether__file_wait {
    TETHER__FILE_WAIT_PRESENT, /* a value or a queue that is not empty */
    TETHER__FILE_WAIT_VALUES,
    TETHER__FILE_WAIT_QUEUE, /* a queue that is not empty */
};

/* Waits until all keys are there in that sense at the same time; fills `values` (NULL: none), of
 * which some may have changed on error. Takes the locks itself. */
tether_status tether__file_space_wait(struct tether__file_space *space,
                                      enum tether__file_wait kind,
                                      const char *const *keys,
                                      size_t n,
                                      int64_t deadline,
                                      tether_buf *values,
                                      tether_error *reterr);

#endif
