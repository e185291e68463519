/* The world of the tests with many references, requests and messages: three simulated workers. w1
 * owns, w0 creates and holds, w2 is the third.
 */
#ifndef TETHER_TESTS_RREF_SCALE_FIXTURE_H
#define TETHER_TESTS_RREF_SCALE_FIXTURE_H

#include "rref/context.h"
#include "tests/rref/cast.h"

/* Setups and the teardown of a test; `*state` is the world. */
int scale_start(void **state);
int scale_start_connected(void **state); /* w0 and w2 have sessions with w1 */
int scale_stop(void **state);            /* asserts that no object is left */

/* The record that `agent` has of the worker `name`, and their session. LENDS the record, which
 * lives as long as the agent. */
struct tether__peer *scale_peer(tether_agent *agent, const char *name);
struct tether__ref_session scale_session(tether_agent *agent, const char *name);

tether_rref_id scale_id(size_t i); /* of no worker of this world */

/* Has `agent` hold `n` references to objects of `owner`, as if they had come in a message. */
tether_rref **scale_hold_many(tether_agent *agent,
                              struct tether__ref_session owner,
                              size_t n,
                              bool known_to_owner);
void scale_release_held(tether_rref **rrefs, size_t n); /* and frees the array */

/* Tells the reference layer that a session has ended, although it stands. */
void scale_end_session(struct tether__refs *refs, struct tether__peer *peer, uint64_t number);
void scale_revive_sessions(struct tether__peer *peer); /* the real session stands */

/* The messages that have gathered for a peer. */
size_t scale_n_deletes(const struct tether__peer *peer);
size_t scale_n_accepts(const struct tether__peer *peer);
bool scale_has_sent_notices(void *peer); /* none is left */

#endif
