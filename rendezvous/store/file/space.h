/* The keys of a file store, rebuilt from its log and kept in step with other processes. store.c has
 * the operations on top.
 *
 * Happy path: begin() takes the mutex and the lock of the file and reads the records that others
 * have written; the call then answers from the keys in memory. A change is written as a record and
 * read back like the records of others, so there is one way to change the keys. A call that has to
 * wait registers with the key-value core. A record costs one step for each call that waits for its
 * keys. One of the waiting threads, the watcher, sleeps on inotify (or polls every few ms where the
 * file system has none) and reads new records. The others sleep until it, or a call of another
 * thread, completes their wait.
 *
 * Compaction: the writer that makes the log longer than 1 MiB and longer than four times its keys
 * and values replaces it by a snapshot (log.h). Other processes load the snapshot into new keys,
 * and their waiting calls move to these. Logs on network file systems are not compacted, because
 * there a process can't detect for certain that a file has lost its name.
 *
 * Failure: the kernel releases the lock of a process that dies; at worst a torn record stays, which
 * readers ignore. While a process with the lock is suspended, calls of the others time out. A
 * record that was written but could not be applied for lack of memory is applied by the next call.
 * A compaction that fails changes nothing, and is retried when the log has doubled.
 *
 * Lock rule: `mu`, then the lock of the file. A thread that waits for the file's lock releases
 * `mu`.
 */
#ifndef TETHER_RENDEZVOUS_STORE_FILE_SPACE_H
#define TETHER_RENDEZVOUS_STORE_FILE_SPACE_H

#include <pthread.h>

#include "base/list.h"
#include "rendezvous/store/file/change.h"
#include "rendezvous/store/file/log.h"
#include "rendezvous/store/kv/kv.h"

struct tether__file_space {
    /* immutable */
    int world_size;
    pthread_mutex_t mu;
    /* fields under mu */
    struct tether__file_log log;
    struct tether__kv *kv; /* the keys in use, one of `kvs`; a snapshot is loaded into the other */
    struct tether__kv kvs[2];
    bool reload;           /* the log begins with a snapshot that is not loaded yet */
    int64_t compact_after; /* after a failed compaction: size of the log at which to retry */
    /* how many processes have the file open, and how many have closed it */
    int64_t users, closed;
    struct tether__list waiting; /* calls that wait */
    /* waiting calls whose keys all exist and that are not woken yet */
    struct tether__list complete;
    bool watched; /* one of the waiting threads watches the file */
    bool watch_tried;
    int inotify_fd;    /* inotify descriptor; -1: none */
    int look_every_ms; /* how often to check the file in addition to inotify; -1: never */
};

/* Opens or makes the file and counts this process as a user. On error there is nothing to undo;
 * messages call the file "it", since the caller adds the path. */
tether_status tether__file_space_open(struct tether__file_space *space,
                                      const char *path,
                                      int world_size,
                                      tether_error *reterr);

/* Ends the use of the file. The last user removes it if `world_size` is not negative and at least
 * so many have closed it. */
void tether__file_space_close(struct tether__file_space *space);

/* Begin and end a call. begin() takes both locks and reads new records; on error it holds neither
 * lock. Even a call that only polls waits a second for the lock of the file. */
tether_status tether__file_space_begin(struct tether__file_space *space,
                                       bool exclusive,
                                       int64_t deadline,
                                       tether_error *reterr);
void tether__file_space_end(struct tether__file_space *space);

/* Between begin(exclusive) and end(): writes the changes as one record: others see all or none.
 * Once the record is written the change is in force, even if a later step fails. */
tether_status tether__file_space_write_locked(struct tether__file_space *space,
                                              const struct tether__file_change *changes,
                                              size_t n,
                                              tether_error *reterr);

/* Waits until all keys are present at the same time as `want` demands, then fills `values` (may be
 * NULL); some of them may have changed on error. Takes the locks itself. */
tether_status tether__file_space_wait(struct tether__file_space *space,
                                      enum tether__kv_want want,
                                      const char *const *keys,
                                      size_t n,
                                      int64_t deadline,
                                      tether_buf *values,
                                      tether_error *reterr);

#endif
