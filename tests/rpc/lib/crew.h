/* Helpers for tests with agents in processes of their own (tests/lib/proc.h).
 *
 * The test hosts a TCP store and gives its port round; a rank makes an agent, registers what the
 * test needs, and starts it. Counters in the page that all share tell the test what has run where.
 *
 * The ranks meet on the unix sockets of workers of one host; with TETHER_TEST_NETWORK in the
 * environment over gRPC.
 */
#ifndef TETHER_TESTS_RPC_CREW_H
#define TETHER_TESTS_RPC_CREW_H

#include <stdatomic.h>

#include "rpc/agent.h"
#include "tests/lib/proc.h"

#define CREW_COUNTERS 32

/* At the start of world->page. */
struct crew_page {
    _Atomic int64_t count[CREW_COUNTERS];
    char text[CREW_COUNTERS][64]; /* by rank */
};

struct crew_page *crew_page(struct tether_test_world *world);
int64_t crew_count(struct tether_test_world *world, int counter);

/* Fails the test with what `err` says unless `st` is TETHER_OK. */
void crew_ok(tether_status st, const tether_error *err);

/* Fails the test unless `st` is `expected` and the message has `words` in it. */
void crew_fails(tether_status st,
                const tether_error *err,
                tether_status expected,
                const char *words);

/* In the test: a store that outlives every rank. */
struct tether_store_server;
struct tether_store_server *crew_store_start(char ret_port[16]);

/* In a rank: a client of it. */
tether_store *crew_store(const char *port);

/* An agent with "name" (inline: gives the name of its worker) and "count" (inline: adds one to the
 * counter that its argument names in decimal). crew_start() starts it. */
tether_agent *crew_agent(struct tether_test_rank *self, const struct tether_agent_opts *opts);
void crew_start(tether_agent *agent);

/* Graceful, and released. */
void crew_stop(tether_agent *agent);

/* Calls `fn` on `to` with `arg` as text and expects `result` (NULL: any). */
void crew_call(tether_agent *agent,
               const char *to,
               const char *fn,
               const char *arg,
               const char *result);

tether_value *crew_text(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
