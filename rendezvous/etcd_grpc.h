/* What the gRPC side of the etcd client shares between its files: etcd_channel.c (endpoints and
 * credentials), etcd_try.c (what follows a failure), etcd_auth.c (the token), etcd_call.c and
 * etcd_stream.c. Nobody else includes it.
 */
#ifndef TETHER_RENDEZVOUS_ETCD_GRPC_H
#define TETHER_RENDEZVOUS_ETCD_GRPC_H

#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <grpc/slice.h>
#include <pthread.h>
#include <stdatomic.h>

#include "rendezvous/etcd_channel.h"

struct tether__etcd_endpoint {
    char *name; /* "127.0.0.1:2379", for people */
    grpc_channel *channel;
};

struct tether__etcd_channel {
    /* immutable */
    struct tether__etcd_endpoint *endpoints;
    size_t n_endpoints;
    char *description;
    char *user, *password; /* NULL: no authentication */
    /* atomic */
    atomic_uint current; /* the endpoint in use: everybody follows whoever finds it dead */
    /* under mu, a leaf */
    bool authenticating;       /* somebody asks for a token right now */
    bool has_token;            /* false: ask first */
    bool auth_off;             /* has_token, but etcd wants none */
    grpc_slice token;          /* if has_token and not auth_off */
    unsigned token_generation; /* of `token`; counts up with each new one */
    pthread_mutex_t mu;
    pthread_cond_t authenticated; /* `authenticating` has become false */
};

/* Messages and byte buffers. `unpack` gives NULL and sets `try->local` when it can't. */
grpc_byte_buffer *tether__etcd_pack(const ProtobufCMessage *message);
ProtobufCMessage *tether__etcd_unpack(grpc_byte_buffer *buffer,
                                      const ProtobufCMessageDescriptor *type,
                                      struct tether__etcd_try *try);

/* The deadline as gRPC wants it. */
gpr_timespec tether__etcd_gpr_deadline(int64_t deadline);

/* Pluck one tag, however long it takes: the calls behind it have deadlines of their own. */
bool tether__etcd_pluck(grpc_completion_queue *cq, void *tag);

/* The end of a pluck queue whose tags have all come out. */
void tether__etcd_cq_free(grpc_completion_queue *cq);

/* Notes a failed attempt in `try`; `code` is the gRPC status. */
void tether__etcd_try_fail(struct tether__etcd_try *try, int code, grpc_slice details);
void tether__etcd_try_fail_locally(struct tether__etcd_try *try, tether_status status);

/* One attempt of a call with one request and one reply, at `try->endpoint`; NULL: `try` says why.
 * `token` may be NULL. */
ProtobufCMessage *tether__etcd_attempt(struct tether__etcd_channel *channel,
                                       const struct tether__etcd_method *method,
                                       const ProtobufCMessage *request,
                                       const grpc_slice *token,
                                       struct tether__etcd_try *try);

/* The metadata that the next attempt needs: none, or a token, which is asked for when there is
 * none yet. `ret_token` is to be unref'd when `*ret_has_token`. False: `try` says why not. */
bool tether__etcd_auth_begin(struct tether__etcd_channel *channel,
                             struct tether__etcd_try *try,
                             bool *ret_has_token,
                             grpc_slice *ret_token);

/* etcd did not accept the token of this attempt: the next one gets a new one. */
void tether__etcd_auth_refused(struct tether__etcd_channel *channel,
                               const struct tether__etcd_try *try);

#endif
