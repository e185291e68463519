/* Shared by the files of the etcd client that use gRPC: channel.c (endpoints and credentials),
 * try.c (retries), auth.c (the token), call.c and stream.c. No other file includes it.
 */
#ifndef TETHER_RENDEZVOUS_STORE_ETCD_CLIENT_GRPC_H
#define TETHER_RENDEZVOUS_STORE_ETCD_CLIENT_GRPC_H

#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <grpc/slice.h>
#include <pthread.h>
#include <stdatomic.h>

#include "rendezvous/store/etcd/client/channel.h"

struct tether__etcd_endpoint {
    char *name; /* the endpoint for messages, such as "127.0.0.1:2379" */
    grpc_channel *channel;
};

struct tether__etcd_channel {
    /* immutable */
    struct tether__etcd_endpoint *endpoints;
    size_t n_endpoints;
    char *description;
    char *user, *password; /* NULL: the channel does not authenticate */
    /* atomic */
    /* index of the endpoint in use; a thread that cannot reach it switches all threads to the
     * next */
    atomic_uint current;
    /* fields under mu, which is a leaf lock */
    bool authenticating;       /* a thread requests a token now */
    bool has_token;            /* there is a token, or none is needed; false: request one first */
    bool auth_off;             /* `has_token` is set, but etcd needs no authentication */
    grpc_slice token;          /* valid if has_token and not auth_off */
    unsigned token_generation; /* generation of `token`, incremented with each new one */
    pthread_mutex_t mu;
    pthread_cond_t authenticated; /* signalled when `authenticating` becomes false */
};

/* Convert between messages and byte buffers. unpack() returns NULL and sets `try->local` on
 * failure. */
grpc_byte_buffer *tether__etcd_pack(const ProtobufCMessage *message);
ProtobufCMessage *tether__etcd_unpack(grpc_byte_buffer *buffer,
                                      const ProtobufCMessageDescriptor *type,
                                      struct tether__etcd_try *try);

/* Converts a deadline into the format of gRPC. */
gpr_timespec tether__etcd_gpr_deadline(int64_t deadline);

/* Waits for the completion of one tag without a limit, because every call has its own deadline. */
bool tether__etcd_pluck(grpc_completion_queue *cq, void *tag);

/* Frees a pluck queue whose tags have all been plucked. */
void tether__etcd_cq_free(grpc_completion_queue *cq);

/* Record a failed attempt in `try`; `code` is the gRPC status. */
void tether__etcd_try_fail(struct tether__etcd_try *try, int code, grpc_slice details);
void tether__etcd_try_fail_locally(struct tether__etcd_try *try, tether_status status);

/* Makes one attempt of a call with one request and one reply, at `try->endpoint`. Returns the
 * reply; NULL: `try` says why there is none. `token` may be NULL. */
ProtobufCMessage *tether__etcd_attempt(struct tether__etcd_channel *channel,
                                       const struct tether__etcd_method *method,
                                       const ProtobufCMessage *request,
                                       const grpc_slice *token,
                                       struct tether__etcd_try *try);

/* Gives the token for the next attempt, and requests one from etcd if there is none. The caller
 * unrefs `ret_token` when `*ret_has_token`. False: `try` says why there is none. */
bool tether__etcd_auth_begin(struct tether__etcd_channel *channel,
                             struct tether__etcd_try *try,
                             bool *ret_has_token,
                             grpc_slice *ret_token);

/* Drops the token that etcd refused in this attempt; the next attempt requests a new one. */
void tether__etcd_auth_refused(struct tether__etcd_channel *channel,
                               const struct tether__etcd_try *try);

#endif
