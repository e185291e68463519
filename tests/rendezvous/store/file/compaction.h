/* Helpers of the tests of compaction: large values, and logs that have been replaced. */
#ifndef TETHER_TESTS_RENDEZVOUS_STORE_FILE_COMPACTION_H
#define TETHER_TESTS_RENDEZVOUS_STORE_FILE_COMPACTION_H

#include <stdint.h>

#include "rendezvous/store.h"

#define MIB (1 << 20)
#define BIG_LEN (16 << 10)

/* A value that fills a log quickly; fill_big() makes it. */
extern char big[BIG_LEN + 1];
void fill_big(void);

/* A store in this file. */
tether_store *compact_open(const char *path);

/* Returns how often the log has been compacted, from the start of the file (log.h). */
uint64_t compact_generation_of(const char *path);

/* Sets one key until the log has been replaced `times` times. */
void compact(tether_store *store, const char *path, int times);

#endif
