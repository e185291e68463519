/* Processes that are killed, and references that are broken by it. */
#ifndef TETHER_TESTS_PROC_CRASH_H
#define TETHER_TESTS_PROC_CRASH_H

#include "tests/proc/stage.h"

enum { LEASE_MS = 1500, LONG_LEASE_MS = 30000, TRIES = 6 };
enum { KILLED_AT }; /* counters */

enum { OWNER, USER, OTHER };
enum { UP, HELD, KILLED, RELEASED, IN_TIME, STOP }; /* marks */

enum { NOTICED = 10, NEXT }; /* further marks */

/* Starts the stage and `ranks` processes with this role. */
struct tether_test_procs *crash_begin(struct stage *stage,
                                      const struct tether_test_proc_role *role,
                                      int ranks,
                                      int lease_ms);

/* Kills the process, and keeps the time in the counter KILLED_AT. */
void crash_kill(struct tether_test_procs *procs, int rank);

/* Counts in crash_n_lost when the owner of this reference is lost. */
extern _Atomic int crash_n_lost;
void crash_watch_owner(tether_rref *rref);

/* Ends with TETHER_EOWNERDIED, and names it. TAKES the future. */
void crash_ends_with_owner(tether_future *future, const char *owner);

/* Every new use fails at once, and with the right cause. */
void crash_is_of_no_use(struct actor *actor,
                        tether_rref *rref,
                        const char *owner,
                        const char *third);

#endif
