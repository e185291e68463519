/* The world of the tests of the eleven holes (holes_test.c, sessions_test.c, circles_test.c):
 * three simulated workers, whose messages of one kind can be made to fail.
 */
#ifndef TETHER_TESTS_RREF_HOLES_FIXTURE_H
#define TETHER_TESTS_RREF_HOLES_FIXTURE_H

#include "rref/context.h"
#include "rref/rref.h"
#include "tests/rref/cast.h"

#define LEASE_MS 3000
#define TIMEOUT_MS 20000
#define MS TETHER__NS_PER_MS
#define SOON_MS 200 /* some messages there and back, and the wait of an acknowledgement */

/* The kind of message that fails, set by a test. */
struct holes_fault {
    uint32_t kind;
    int left; /* how many more attempts fail */
    int n_deletes;
};
extern struct holes_fault holes_fault;

/* Registers more functions with each worker before it starts; NULL: none. */
extern void (*holes_register_more)(tether_agent *agent);

/* The options of the workers. LENDS until the next call. */
const struct tether_agent_opts *holes_options(void);

/* For a world that a test starts by itself: registers the functions, and makes messages fail. */
void holes_register(tether_agent *agent);
tether_status holes_before_send(void *userdata, const char *peer, uint32_t kind);

/* Setup and teardown of a test; `*state` is the world. stop() asserts that no object is left. */
int holes_start(void **state);
int holes_stop(void **state);

int64_t holes_now_ms(struct tether_test_world *w);
void holes_pass_time(struct tether_test_world *w, int64_t ms);

/* Asserts that `done` returns true within SOON_MS. */
void holes_assert_soon(struct tether_test_world *w, bool (*done)(void *userdata), void *userdata);

bool holes_w1_is_idle(void *world);
bool holes_is_broken(void *rref);
void holes_assert_confirmed(tether_rref *rref);

/* Shuts worker i down gracefully, within a second and without a leak. */
void holes_leave_ok(struct tether_test_world *w, int i);

#endif
