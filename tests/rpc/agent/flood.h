/* The common parts of flood_test.c, which has the worker and a member of its group, and of
 * flood_intruder.c, the process that floods the worker.
 */
#ifndef TETHER_TESTS_RPC_AGENT_FLOOD_H
#define TETHER_TESTS_RPC_AGENT_FLOOD_H

#include "rpc/group/directory.h"
#include "tests/lib/proc.h"

#define LIMIT TETHER_TEST_LIMIT_MS
#define MIB ((size_t)1024 * 1024)
#define N_CONNECTIONS 5000
#define N_TLS 1500
#define N_STREAMS 1000 /* tried on every other connection */
#define N_STREAMS_ALLOWED 100
#define N_WITH_STREAMS 32
#define HUGE_BYTES (1000 * MIB)

enum { SERVING, CALLING, FLOODED, CHECKED };
enum { WORKER, FRIEND, INTRUDER, N_RANKS };
enum flood { ANY, TLS, STREAMS, NO_TOKEN };

/* The worker fills it for the others. */
struct notice {
    char folder[64], address[256], unix_address[256], run[TETHER__RUN_SIZE];
};

struct notice *flood_notice_of(struct tether_test_world *world);

/* Waits for a mark without a time limit of its own: a flood takes minutes on a busy machine. */
void flood_await(struct tether_test_world *world, int mark);

/* The number of connections that the intruder opens. */
int flood_n_connections(enum flood flood);

/* The intruder's part of a test. */
void flood_intrude(struct tether_test_world *world, enum flood flood);

#endif
