/* Shared by the files of flat_bench: its workers, and the measurements that bench.c lists. */
#ifndef TETHER_BENCH_FLAT_SHARED_H
#define TETHER_BENCH_FLAT_SHARED_H

#include <stddef.h>

#include "rendezvous/store.h"
#include "rref/rref.h"

#define FLAT_TIMEOUT_MS 600000
#define FLAT_PER_MESSAGE 1000 /* references on one value */
#define FLAT_MAX_KEPT 1000000
#define FLAT_MAX_HOLDERS 32

/* ---- Workers (workers.c) ---- */

/* The values that a worker keeps. */
struct flat_keeper {
    tether_value **values; /* that have references attached */
    size_t n;
    tether_reply *held;
};

extern tether_store *flat_store;
extern tether_agent *flat_client, *flat_owner;

/* Those of "client", "owner", and of workers that join for one measurement. */
extern struct flat_keeper flat_keepers[2 + FLAT_MAX_HOLDERS];

/* Starts a worker with these types. Its functions use `keeper`; free `keeper->values` at the end.
 */
tether_agent *flat_join(const char *name,
                        struct flat_keeper *keeper,
                        const tether_type *types,
                        size_t n_types);

/* Names a worker that joins for one measurement. A second worker with the same name would count as
 * a restart, which fences the first one. */
void flat_next_name(char ret_name[16]);

/* Calls `fn` and waits for its reply. */
void flat_call(tether_agent *from, const char *to, const char *fn, const tether_value *arg);

/* Releases all values that `keeper` has. */
void flat_release_values(struct flat_keeper *keeper);

/* Creates an object on `agent` and returns the reference to it. */
tether_rref *flat_own_object(tether_agent *agent);

/* Makes `to` hold `n` more references: to the object of `rref`, or (NULL) to `n` new objects. */
void flat_lend(tether_agent *from, const char *to, tether_rref *rref, size_t n);

/* Block until no other worker holds references to objects of `agent`, until `client` holds no
 * confirmed reference, and for one more millisecond. No event reports these counts, so the first
 * two poll. */
void flat_wait_until_empty(tether_agent *agent);
void flat_wait_until_lost(void);
void flat_wait_1_ms(void);

/* ---- Costs of one operation beside `n` other things (costs.c), in ns or bytes ---- */

double flat_add_fork(size_t n);
double flat_create_beside_waiting(size_t n);
double flat_add_notice(size_t n);
double flat_complete_requests(size_t n);
double flat_pass_typed(size_t n);
double flat_end_holders(size_t n_holders);
double flat_shut_down(size_t n);
double flat_keep_lost(size_t n);

/* ---- Other operations meanwhile (watch.c) ---- */

/* The longest times, in ms. */
struct flat_pause {
    double call_ms, creation_ms; /* by the clock */
    double locked_ms;            /* under one lock, processor time */
    double scheduler_ms;         /* by which the scheduler delayed a thread */
};

/* Begins to create objects on `agent` and to call `to`, again and again on another thread. */
void flat_watch_begin(tether_agent *agent, const char *to);
struct flat_pause flat_watch_end(void);

/* ---- Pauses while something happens to `n` references or calls (pauses.c) ---- */

struct flat_pause flat_pause_of_fence(size_t n);
struct flat_pause flat_pause_of_lost_owner(size_t n);
struct flat_pause flat_pause_of_dump(size_t n);
struct flat_pause flat_pause_of_creations(size_t n);
struct flat_pause flat_pause_of_timeout(size_t n);
struct flat_pause flat_pause_of_lost_calls(size_t n);

#endif
