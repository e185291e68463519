/* Decides what follows a failed attempt: another endpoint, a wait, a new token, or an error. */
#include <string.h>

#include "base/backoff.h"
#include "base/text.h"
#include "rendezvous/store/etcd/client/grpc.h"

#define FIRST_WAIT_MS 20
#define LONGEST_WAIT_MS 500
#define MAX_REFUSED_TOKENS 3

void tether__etcd_try_fail(struct tether__etcd_try *try, int code, grpc_slice details)
{
    /* etcd knows our deadline and may notice first that it has passed. */
    static const char deadline_words[] = "context deadline exceeded";
    if (code == GRPC_STATUS_UNKNOWN && grpc_slice_str_cmp(details, deadline_words) == 0)
        code = GRPC_STATUS_DEADLINE_EXCEEDED;
    try->local = TETHER_OK;
    try->code = code;
    /* After a timeout during retries, the earlier error explains more. */
    if (code != GRPC_STATUS_DEADLINE_EXCEEDED || !try->failures) {
        tether__text_fit(
            try->text, sizeof try->text,
            tether_bytes_of(GRPC_SLICE_START_PTR(details), GRPC_SLICE_LENGTH(details)));
    }
    switch (code) {
        case GRPC_STATUS_INVALID_ARGUMENT:
        case GRPC_STATUS_NOT_FOUND:
        case GRPC_STATUS_PERMISSION_DENIED:
        case GRPC_STATUS_UNAUTHENTICATED:
        case GRPC_STATUS_RESOURCE_EXHAUSTED:
        case GRPC_STATUS_FAILED_PRECONDITION:
        case GRPC_STATUS_OUT_OF_RANGE:
        case GRPC_STATUS_UNIMPLEMENTED:
            break; /* etcd has refused the request */
        default:
            try->in_doubt = true;
    }
}

void tether__etcd_try_fail_locally(struct tether__etcd_try *try, tether_status status)
{
    try->local = status;
    try->text[0] = '\0';
    try->in_doubt = true;
}

void tether__etcd_try_fail_saying(struct tether__etcd_try *try, const char *reason)
{
    bool denied = strstr(reason, "permission denied") != NULL;
    tether__etcd_try_fail(try, denied ? GRPC_STATUS_PERMISSION_DENIED : GRPC_STATUS_UNAVAILABLE,
                          grpc_slice_from_static_string(*reason ? reason : "ended the watch"));
}

static bool says(const struct tether__etcd_try *try, const char *words)
{
    return strstr(try->text, words) != NULL;
}

static bool out_of_time(const struct tether__etcd_try *try)
{
    return tether__deadline_left_ms(&tether__clock_system, try->deadline) == 0;
}

/* Returns whether a retry at this or another endpoint may succeed. */
static bool is_passing(const struct tether__etcd_try *try)
{
    switch (try->code) {
        /* the endpoint was not reached, has no leader or no quorum in time, or stops */
        case GRPC_STATUS_UNAVAILABLE:
        case GRPC_STATUS_CANCELLED:         /* etcd has reset the stream, because it stops */
        case GRPC_STATUS_DEADLINE_EXCEEDED: /* a time limit inside etcd has passed */
            return true;
        case GRPC_STATUS_UNKNOWN:
            return says(try, "Stream removed");
        case GRPC_STATUS_RESOURCE_EXHAUSTED:
            return says(try, "too many requests");
        default:
            return false;
    }
}

static bool is_token_refused(const struct tether__etcd_try *try)
{
    return says(try, "invalid auth token") || says(try, "revision of auth store is old") ||
           says(try, "user name is empty");
}

/* Sleeps for the backoff time, or until the connection to the endpoint in use changes. */
static void wait_for_backoff(struct tether__etcd_channel *channel,
                             const struct tether__etcd_try *try)
{
    unsigned rounds = try->failures / (unsigned)channel->n_endpoints;
    int64_t wait_ns = tether__backoff_ns(rounds, FIRST_WAIT_MS * TETHER__NS_PER_MS,
                                         LONGEST_WAIT_MS * TETHER__NS_PER_MS);
    int64_t until = tether__clock_now_ns(&tether__clock_system) + wait_ns;
    if (until > try->deadline)
        until = try->deadline;
    grpc_channel *grpc = channel->endpoints[atomic_load(&channel->current)].channel;
    grpc_completion_queue *cq = grpc_completion_queue_create_for_pluck(NULL);
    grpc_connectivity_state now = grpc_channel_check_connectivity_state(grpc, 1);
    grpc_channel_watch_connectivity_state(grpc, now, tether__etcd_gpr_deadline(until), cq, cq);
    tether__etcd_pluck(cq, cq);
    tether__etcd_cq_free(cq);
}

bool tether__etcd_try_again(struct tether__etcd_channel *channel, struct tether__etcd_try *try)
{
    if (try->local != TETHER_OK || out_of_time(try))
        return false;
    if (channel->user && is_token_refused(try)) {
        tether__etcd_auth_refused(channel, try);
        return ++try->refused_tokens <= MAX_REFUSED_TOKENS;
    }
    if (!is_passing(try))
        return false;
    /* by etcd's clock the deadline may pass slightly early */
    if (try->code == GRPC_STATUS_DEADLINE_EXCEEDED) {
        wait_for_backoff(channel, try);
        return !out_of_time(try);
    }
    try->failures++;
    unsigned failed = try->endpoint, next = (failed + 1) % (unsigned)channel->n_endpoints;
    atomic_compare_exchange_strong(&channel->current, &failed, next);
    if (try->failures % channel->n_endpoints == 0)
        wait_for_backoff(channel, try);
    return !out_of_time(try);
}

static tether_status final_status(const struct tether__etcd_try *try)
{
    if (try->code == GRPC_STATUS_DEADLINE_EXCEEDED)
        return try->failures ? TETHER_EUNAVAILABLE : TETHER_ETIMEOUT;
    if (is_passing(try))
        return TETHER_EUNAVAILABLE;
    if (says(try, "authentication failed") || is_token_refused(try))
        return TETHER_EAUTH;
    if (says(try, "request is too large") || says(try, "larger than max"))
        return TETHER_ETOOBIG;
    if (says(try, "revision has been compacted"))
        return TETHER_EGONE;
    switch (try->code) {
        case GRPC_STATUS_NOT_FOUND:
            return TETHER_ENOTFOUND;
        case GRPC_STATUS_PERMISSION_DENIED:
            return TETHER_EPERM;
        case GRPC_STATUS_UNIMPLEMENTED:
            return TETHER_ENOTSUP;
        default:
            return TETHER_EIO;
    }
}

tether_status tether__etcd_try_error(struct tether__etcd_channel *channel,
                                     const struct tether__etcd_try *try,
                                     tether_error *reterr)
{
    if (try->local == TETHER_ENOMEM)
        return tether_error_set(reterr, TETHER_ENOMEM, "out of memory for the reply of etcd");
    if (try->local != TETHER_OK)
        return tether_error_set(reterr, try->local, "the reply of etcd %.60s is malformed",
                                channel->endpoints[try->endpoint].name);
    tether_status st = final_status(try);
    if (st == TETHER_ETIMEOUT)
        return tether_error_set(reterr, st, "etcd %.60s has not answered in time",
                                channel->endpoints[try->endpoint].name);
    return tether_error_set(reterr, st, "etcd %.60s: %s", channel->endpoints[try->endpoint].name,
                            *try->text ? try->text : tether_status_text(st));
}
