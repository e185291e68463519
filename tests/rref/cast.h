/* Helpers for the tests of references: counted objects, functions that keep, give and drop
 * references, and checks of a whole world.
 *
 * The functions, on every worker: "make_counter" and "make_counter_pooled" make a counter that
 * starts at their argument, "make_secret" an object that cannot be copied; "keep" holds the
 * reference of its argument, "give" returns the held one (if any), "drop" releases it. The method
 * "add" of a counter adds its argument and returns the sum.
 *
 * Objects and held references are global to the process, so a test runs one world at a time.
 */
#ifndef TETHER_TESTS_RREF_CAST_H
#define TETHER_TESTS_RREF_CAST_H

#include "rref/rref.h"
#include "tests/lib/wait.h"
#include "tests/rpc/lib/world.h"

struct cast_counter {
    _Atomic int n;
};

extern const tether_type cast_counter_type;
extern _Atomic int cast_n_live; /* objects that exist on all workers, copies included */

/* The reference that each worker holds. Written by functions on the workers' threads, read by the
 * tests. */
extern _Atomic(tether_rref *) cast_held[TETHER_TEST_MAX_WORKERS];
extern _Atomic int cast_n_keeps; /* how often "keep" has run */

void cast_register(tether_agent *agent); /* registers the functions above */
void cast_drop_all(void);                /* releases the held references of all workers */

/* Registers "stay", a pooled function that signals `cast_entered` and returns after `cast_go_on`,
 * and a method of counters that makes another one. The test has the events initialised. */
extern struct tether_test_event cast_entered, cast_go_on;
void cast_register_stay(tether_agent *agent, const char *method, bool is_inline);

tether_status cast_new_counter(int n, tether_value **ret_value, tether_error *reterr);
tether_value *cast_text(const char *words); /* a value; never NULL */
tether_rref *cast_remote_counter(tether_agent *agent, const char *to, const char *start);
tether_rref *cast_own_counter(tether_agent *agent, int n);

/* Calls `fn` on `to` with the reference attached. */
tether_future *cast_send_async(tether_agent *agent,
                               const char *to,
                               const char *fn,
                               tether_rref *rref,
                               int timeout_ms);
tether_status cast_send(tether_agent *agent,
                        const char *to,
                        const char *fn,
                        tether_rref *rref,
                        tether_error *reterr);
void cast_send_ok(tether_agent *agent, const char *to, const char *fn, tether_rref *rref);
void cast_call_ok(tether_agent *agent, const char *to, const char *fn);
void cast_add_ok(tether_rref *rref, const char *n, const char *expected);

/* An object on w1 that is made when the test says so. */
tether_rref *cast_begin_object(struct tether_test_world *world, int timeout_ms);
void cast_finish_object(struct tether_test_world *world);

tether_rref *cast_confirmed(tether_rref *rref); /* the same, once its owner knows it */

bool cast_is_held(void *world);         /* "hold" has been called */
bool cast_is_idle(tether_agent *agent); /* all of its tables are empty */
bool cast_nothing_is_left(void *world);
void cast_assert_nothing_left(struct tether_test_world *world); /* soon */
bool cast_has_no_forks(void *agent);

#endif
