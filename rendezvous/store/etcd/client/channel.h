/* A channel to an etcd cluster: its endpoints, credentials, and calls that fail over.
 *
 * Happy path: a call packs its request, sends it to the endpoint in use, and the calling thread
 * drives gRPC until the reply arrives, without another thread of ours. A stream works alike.
 *
 * Failure modes: when an endpoint can't be reached or has no leader, the call tries the next one.
 * When none answers, it waits with backoff (until the connection comes back, if that is earlier)
 * and tries all endpoints again until its deadline. A token that etcd no longer accepts is
 * replaced. All other answers of etcd are final.
 *
 * An attempt that ends without an answer may have been applied. tether__etcd_call() resends it and
 * reports that (`in_doubt`). Requests that must not be applied twice go through
 * tether__etcd_change() (client.h), which makes resending safe.
 *
 * Any thread, several at once. Not public. Only the .c files behind this header know gRPC.
 */
#ifndef TETHER_RENDEZVOUS_STORE_ETCD_CLIENT_CHANNEL_H
#define TETHER_RENDEZVOUS_STORE_ETCD_CLIENT_CHANNEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/pb.h"
#include "rendezvous/store_etcd.h"

#define TETHER__ETCD_DEFAULT_PORT 2379
#define TETHER__ETCD_DEFAULT_PREFIX "tether/"

struct tether__etcd_channel;
struct tether__etcd_stream;

struct tether__etcd_method {
    const char *path; /* path of the gRPC method, such as "/etcdserverpb.KV/Txn" */
    const ProtobufCMessageDescriptor *reply;
};

extern const struct tether__etcd_method tether__etcd_txn;
extern const struct tether__etcd_method tether__etcd_watch_stream;
extern const struct tether__etcd_method tether__etcd_lease_grant_call;
extern const struct tether__etcd_method tether__etcd_lease_keepalive_call;
extern const struct tether__etcd_method tether__etcd_lease_revoke_call;
extern const struct tether__etcd_method tether__etcd_authenticate;

/* Checks the options and reads the files; connects at the first call. TETHER_EINVAL,
 * TETHER_EIO (a file), TETHER_EPERM (a password in the clear), TETHER_ENOMEM. */
tether_status tether__etcd_channel_new(const struct tether_store_etcd_opts *opts,
                                       struct tether__etcd_channel **ret_channel,
                                       tether_error *reterr);

/* Frees a channel without calls and streams. Accepts and returns NULL. */
struct tether__etcd_channel *tether__etcd_channel_free(struct tether__etcd_channel *channel);

/* Returns the endpoints for messages, such as "127.0.0.1:2379,127.0.0.1:2381". LENDS. */
const char *tether__etcd_channel_describe(const struct tether__etcd_channel *channel);

/* Sends `request` and gives the reply, which the caller frees with tether__pb_free(). Tries
 * until `deadline` (of tether__clock_system). Always sets `*ret_in_doubt` (may be NULL): whether an
 * attempt ended without an answer.
 *
 * TETHER_EUNAVAILABLE (no endpoint answered), TETHER_ETIMEOUT, TETHER_EAUTH, TETHER_EPERM,
 * TETHER_ETOOBIG, TETHER_ENOTFOUND (a lease), TETHER_EGONE (history compacted away),
 * TETHER_ENOTSUP, TETHER_EIO (any other refusal of etcd), TETHER_ECORRUPT, TETHER_ENOMEM. */
tether_status tether__etcd_call(struct tether__etcd_channel *channel,
                                const struct tether__etcd_method *method,
                                const ProtobufCMessage *request,
                                int64_t deadline,
                                bool *ret_in_doubt,
                                ProtobufCMessage **ret_reply,
                                tether_error *reterr);

/* Sends `request` once and waits for its answer, for requests whose failure does no harm. */
void tether__etcd_call_once(struct tether__etcd_channel *channel,
                            const struct tether__etcd_method *method,
                            const ProtobufCMessage *request,
                            int64_t deadline);

/* ---- Retries -----------------------------------------------------------------------------------
 *
 *     struct tether__etcd_try try = TETHER__ETCD_TRY(deadline);
 *     do {
 *         if (an attempt works)
 *             return TETHER_OK;
 *     } while (tether__etcd_try_again(channel, &try));
 *     return tether__etcd_try_error(channel, &try, reterr);
 */
struct tether__etcd_try {
    int64_t deadline;
    /* endpoint and token generation of the current or the last attempt */
    unsigned endpoint, token;
    tether_status local; /* an error on our side, such as lack of memory; TETHER_OK: none */
    int code;            /* if `local` is TETHER_OK: the gRPC status */
    char text[160];      /* message that belongs to the status */
    /* counts over all attempts so far */
    unsigned failures, refused_tokens;
    bool in_doubt;
};
#define TETHER__ETCD_TRY(when) \
    {                          \
        .deadline = (when)     \
    }

/* Records an attempt that etcd ended with a message, which gave `reason`. */
void tether__etcd_try_fail_saying(struct tether__etcd_try *try, const char *reason);

/* Returns whether another attempt makes sense; waits before it if necessary. */
bool tether__etcd_try_again(struct tether__etcd_channel *channel, struct tether__etcd_try *try);
tether_status tether__etcd_try_error(struct tether__etcd_channel *channel,
                                     const struct tether__etcd_try *try,
                                     tether_error *reterr);

/* ---- Streams ---------------------------------------------------------------------------------
 *
 * One attempt each: false means that the stream has ended, and `try` says why. A stream belongs to
 * one thread and ends at the deadline of the `try` that opened it. */
struct tether__etcd_stream *tether__etcd_stream_open(struct tether__etcd_channel *channel,
                                                     const struct tether__etcd_method *method,
                                                     struct tether__etcd_try *try);
bool tether__etcd_stream_send(struct tether__etcd_stream *stream,
                              const ProtobufCMessage *request,
                              struct tether__etcd_try *try);
bool tether__etcd_stream_recv(struct tether__etcd_stream *stream,
                              struct tether__etcd_try *try,
                              ProtobufCMessage **ret_reply);
/* Ends the stream if it has not ended. Accepts and returns NULL. */
struct tether__etcd_stream *tether__etcd_stream_free(struct tether__etcd_stream *stream);

#endif
