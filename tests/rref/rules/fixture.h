/* The world of the tests of single rules (rules_test.c, forged_test.c): three simulated workers,
 * to which a test delivers messages by itself. w1 owns, w0 creates, w2 is the third.
 */
#ifndef TETHER_TESTS_RREF_RULES_FIXTURE_H
#define TETHER_TESTS_RREF_RULES_FIXTURE_H

#include "rpc/refs.h"
#include "rref/context.h"
#include "tests/rref/cast.h"

enum { LEASE_MS = 3000, LONG_LEASE_MS = 60000, TIMEOUT_MS = 20000 };

extern bool rules_no_calls; /* are handed to the lane */

/* Setup and teardown of a test; `*state` is the world. */
int rules_start(void **state);
int rules_stop(void **state);

/* The record that `agent` has of the worker `name`. It lives as long as the agent. */
struct tether__peer *rules_peer(tether_agent *agent, const char *name);

/* A message of `from` arrives at `agent`, as one of the session `session_number`. */
enum tether__outcome rules_outcome(tether_agent *agent,
                                   struct tether__peer *from,
                                   uint64_t session_number,
                                   uint32_t kind,
                                   const ProtobufCMessage *body);

/* The same, and the message has to be taken. */
void rules_deliver(tether_agent *agent,
                   struct tether__peer *from,
                   uint64_t session_number,
                   uint32_t kind,
                   const ProtobufCMessage *body);

/* A call that is to make the object `id`. The arrays are its memory. */
Tether__Call rules_creation(tether_rref_id id,
                            tether_rref_id fork,
                            uint64_t result[3],
                            uint64_t result_fork[3]);

/* One id as the columns of a message. */
struct rules_id {
    Tether__RefIds ids;
    uint32_t creator;
    uint64_t incarnation, counter;
};

/* Fills `one`. LENDS the columns, which are in it. */
Tether__RefIds *rules_ids(struct rules_id *one, tether_rref_id id);

size_t rules_n_forks(tether_agent *agent);
void rules_pass_time(struct tether_test_world *w, int64_t ms);

#endif
