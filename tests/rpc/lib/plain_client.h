/* A client that speaks only gRPC, for tests: it knows nothing of Tether but the address. */
#ifndef TETHER_TESTS_RPC_PLAIN_CLIENT_H
#define TETHER_TESTS_RPC_PLAIN_CLIENT_H

#include <grpc/grpc.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "tests/lib/wait.h"

struct plain_client {
    grpc_channel *channel;
    grpc_completion_queue *queue;
    pthread_t poller;
};

struct plain_request {
    const char *method; /* a literal */
    const void *body;
    size_t len;
    bool body_is_static;                     /* it outlives the call and is not copied */
    const char *authorization, *traceparent; /* NULL: none */
    int timeout_ms;                          /* 0: the limit of the tests */
    bool keeps_back;                         /* sends the metadata only, never the request */
    bool does_not_read;                      /* the reply */
};

struct plain_call {
    grpc_call *call;
    struct tether_test_event done;
    grpc_metadata_array initial, trailing;
    grpc_byte_buffer *message;
    grpc_status_code code; /* from here on: after finish() */
    grpc_slice details_slice;
    char details[512];
    char tether_status[16]; /* "" when there was none */
    char *body;
    size_t len;
};

void plain_client_init(struct plain_client *client, const char *address);
void plain_client_init_gzip(struct plain_client *client, const char *address); /* compresses */

/* Over TLS, showing a certificate; all in PEM. */
void plain_client_init_tls(struct plain_client *client,
                           const char *address,
                           const char *ca,
                           const char *cert,
                           const char *key);
void plain_client_fini(struct plain_client *client);

/* Returns whether the call has ended. */
bool plain_has_ended(struct plain_call *call);
/* Asks for its end, which finish() waits for. */
void plain_cancel(struct plain_call *call);

/* Starts a call; finish() waits for its end; free() it then. */
void plain_start(struct plain_client *client,
                 const struct plain_request *request,
                 struct plain_call *ret_call);
void plain_finish(struct plain_call *call);
void plain_free(struct plain_call *call);

#endif
