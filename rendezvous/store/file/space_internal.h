/* Functions that the files of a space share. The caller of a _locked() function holds `mu`. */
#ifndef TETHER_RENDEZVOUS_STORE_FILE_SPACE_INTERNAL_H
#define TETHER_RENDEZVOUS_STORE_FILE_SPACE_INTERNAL_H

#include "rendezvous/store/file/space.h"

/* snapshot.c: writes all keys, queues and counts to `log`. */
tether_status tether__file_write_snapshot_locked(struct tether__file_space *space,
                                                 struct tether__file_log *log);

/* Functions of wait.c. */

/* Whether other machines may write to the file, which inotify does not report. */
bool tether__file_on_network(int fd);

/* Makes inotify watch the file that is open now. */
void tether__file_watch_locked(struct tether__file_space *space);

/* Wakes the calls whose keys are complete, with their values filled in. */
void tether__file_wake_complete_locked(struct tether__file_space *space);

/* Registers the waiting calls with the keys of `space->kv`, and removes them from `old`. */
void tether__file_move_waits_locked(struct tether__file_space *space, struct tether__kv *old);

#endif
