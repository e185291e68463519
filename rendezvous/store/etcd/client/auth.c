/* The authentication token. A call without one requests it with user and password; every call sends
 * it; it is replaced when etcd no longer accepts it (after a restart, or when it has expired).
 *
 * One thread requests the token, and other threads wait for it, because each request costs etcd a
 * bcrypt. The lock is not held during the request.
 */
#include <string.h>

#include "base/threads/cond.h"
#include "protos/etcd.pb-c.h"
#include "rendezvous/store/etcd/client/grpc.h"

static void drop_token_locked(struct tether__etcd_channel *channel)
{
    if (channel->has_token && !channel->auth_off)
        grpc_slice_unref(channel->token);
    channel->has_token = channel->auth_off = false;
}

/* One attempt to get a token. It also succeeds without a token when authentication is turned off in
 * etcd, as etcd's own clients do. */
static bool authenticate(struct tether__etcd_channel *channel, struct tether__etcd_try *try)
{
    Etcdserverpb__AuthenticateRequest request = ETCDSERVERPB__AUTHENTICATE_REQUEST__INIT;
    request.name = channel->user;
    request.password = channel->password;
    bool in_doubt = try->in_doubt;
    ProtobufCMessage *reply =
        tether__etcd_attempt(channel, &tether__etcd_authenticate, &request.base, NULL, try);
    /* this attempt only requested a token, so it leaves no change in doubt */
    try->in_doubt = in_doubt;
    bool off = !reply && strstr(try->text, "authentication is not enabled");

    pthread_mutex_lock(&channel->mu);
    if (reply || off) {
        drop_token_locked(channel);
        channel->has_token = true;
        channel->auth_off = off;
        channel->token_generation++;
        if (reply)
            channel->token =
                grpc_slice_from_copied_string(((Etcdserverpb__AuthenticateResponse *)reply)->token);
    }
    channel->authenticating = false;
    pthread_cond_broadcast(&channel->authenticated);
    pthread_mutex_unlock(&channel->mu);
    tether__pb_free(reply);
    return reply || off;
}

bool tether__etcd_auth_begin(struct tether__etcd_channel *channel,
                             struct tether__etcd_try *try,
                             bool *ret_has_token,
                             grpc_slice *ret_token)
{
    *ret_has_token = false;
    if (!channel->user)
        return true;
    pthread_mutex_lock(&channel->mu);
    while (!channel->has_token) {
        if (channel->authenticating) {
            if (tether__cond_wait(&channel->authenticated, &channel->mu, try->deadline))
                continue;
            pthread_mutex_unlock(&channel->mu);
            tether__etcd_try_fail(try, GRPC_STATUS_DEADLINE_EXCEEDED,
                                  grpc_slice_from_static_string("waited for a token"));
            return false;
        }
        channel->authenticating = true;
        pthread_mutex_unlock(&channel->mu);
        if (!authenticate(channel, try))
            return false;
        pthread_mutex_lock(&channel->mu);
    }
    try->token = channel->token_generation;
    if (!channel->auth_off) {
        *ret_has_token = true;
        *ret_token = grpc_slice_ref(channel->token);
    }
    pthread_mutex_unlock(&channel->mu);
    return true;
}

void tether__etcd_auth_refused(struct tether__etcd_channel *channel,
                               const struct tether__etcd_try *try)
{
    pthread_mutex_lock(&channel->mu);
    if (channel->token_generation ==
        try->token) /* otherwise another thread has replaced the token already */
        drop_token_locked(channel);
    pthread_mutex_unlock(&channel->mu);
}
