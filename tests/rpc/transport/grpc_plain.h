/* A node and a client that speaks only gRPC to it, for tests. */
#ifndef TETHER_TESTS_RPC_TRANSPORT_GRPC_PLAIN_H
#define TETHER_TESTS_RPC_TRANSPORT_GRPC_PLAIN_H

#include "tests/rpc/lib/plain_client.h"
#include "tests/rpc/lib/transport_node.h"

#define CALL "/tether.Worker/Call"
#define HEALTH "/grpc.health.v1.Health/Check"

struct fixture {
    struct node server;
    struct plain_client client;
};

/* Setup and teardown of a test; *state is the fixture. */
int plain_set_up(void **state);
int plain_tear_down(void **state);

/* A packed UnaryCall; free() it. */
uint8_t *plain_pack(const char *function, const void *payload, size_t len, size_t *ret_len);

/* Calls the function "add" and waits for the end. */
void plain_add(struct fixture *fixture,
               const char *authorization,
               const void *payload,
               size_t len,
               struct plain_call *ret_done);

/* Asserts that the call succeeded, with this payload in the reply. */
void plain_assert_payload(const struct plain_call *done, const void *payload, size_t len);

#endif
