/* Failed attempts waiting for their next turn. See retry.h. */
#include "rpc/call/retry.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/list.h"
#include "rpc/agent.h"
#include "rpc/agent/internal.h"
#include "rpc/call/budget.h"
#include "rpc/peer/peer.h"

const struct tether__retry_opts tether__retry_defaults = {5, 1000, 1.5};

struct retry {
    struct tether__list node; /* under agent->mu */
    struct tether__peer *peer;
    int attempts; /* that have failed */
    int64_t due;
    tether__attempt *attempt;
    tether__give_up *give_up;
    void *userdata;
};

int tether__retry_delay_ms(const struct tether__retry_opts *opts, int attempt)
{
    if (attempt >= opts->max_retries)
        return -1;
    double delay = opts->first_delay_ms;
    for (int i = 1; i < attempt; i++)
        delay *= opts->backoff;
    return (int)delay;
}

static void wait_until(tether_agent *agent, struct retry *retry, int64_t due)
{
    retry->due = due;
    pthread_mutex_lock(&agent->mu);
    tether__list_push_back(&agent->retries, &retry->node);
    pthread_mutex_unlock(&agent->mu);
    tether__agent_kick(agent, due);
}

static void wait_for_turn(tether_agent *agent, struct retry *retry, int64_t sent_at)
{
    int delay = tether__retry_delay_ms(&tether__retry_defaults, retry->attempts - 1);
    wait_until(agent, retry, sent_at + delay * TETHER__NS_PER_MS);
}

tether_status tether__retry_later(struct tether__peer *peer,
                                  tether_status status,
                                  tether__attempt *attempt,
                                  tether__give_up *give_up,
                                  void *userdata)
{
    (void)status;
    struct retry *retry = tether__malloc(sizeof *retry);
    if (!retry)
        return TETHER_ENOMEM;
    *retry = (struct retry){
        .peer = tether__peer_retain(peer),
        .attempts = 1,
        .attempt = attempt,
        .give_up = give_up,
        .userdata = userdata,
    };
    wait_for_turn(peer->agent, retry, tether__clock_now_ns(peer->agent->clock));
    return TETHER_OK;
}

static struct retry *take_due(tether_agent *agent, int64_t now, int64_t *ret_next)
{
    struct retry *found = NULL;
    int64_t next = TETHER__NEVER;
    pthread_mutex_lock(&agent->mu);
    TETHER__LIST_FOR_EACH(node, &agent->retries) {
        struct retry *retry = tether__list_entry(node, struct retry, node);
        if (!found && retry->due <= now) {
            tether__list_remove(node);
            found = retry;
        } else if (retry->due < next) {
            next = retry->due;
        }
    }
    pthread_mutex_unlock(&agent->mu);
    *ret_next = next;
    return found;
}

/* Makes an attempt, if the budget has one; else says when it has. */
static int64_t try_again(struct retry *retry,
                         int64_t now,
                         enum tether__attempt_result *ret_result,
                         tether_status *ret_why)
{
    struct tether__peer *peer = retry->peer;
    tether__peer_lock(peer);
    int64_t put_off = tether__budget_spend(&peer->budget, now);
    if (put_off) {
        peer->metrics.retries_put_off++;
    } else {
        *ret_result = retry->attempt(retry->userdata, peer, ret_why);
        if (*ret_result == TETHER__ATTEMPT_ENDED)
            tether__budget_refund(&peer->budget); /* it was none */
        else
            peer->metrics.retries++;
    }
    tether__peer_unlock(peer);
    return put_off;
}

int64_t tether__retries_tick(tether_agent *agent, int64_t now)
{
    int64_t next;
    for (struct retry *retry; (retry = take_due(agent, now, &next));) {
        enum tether__attempt_result result = TETHER__ATTEMPT_ENDED;
        tether_status why = TETHER_OK;
        int64_t put_off = try_again(retry, now, &result, &why);
        if (put_off) {
            wait_until(agent, retry, put_off);
            continue;
        }
        bool over = result == TETHER__ATTEMPT_SENT || result == TETHER__ATTEMPT_ENDED;
        bool last = result == TETHER__ATTEMPT_REFUSE ||
                    tether__retry_delay_ms(&tether__retry_defaults, retry->attempts) < 0;
        if (!over && last) {
            retry->give_up(retry->userdata, retry->peer, why);
            over = true;
        }
        if (!over) {
            retry->attempts++;
            wait_for_turn(agent, retry, now);
            continue;
        }
        tether__peer_release(retry->peer);
        tether__free(retry);
    }
    return next;
}

void tether__retries_fini(tether_agent *agent)
{
    for (struct tether__list *node; (node = tether__list_pop_front(&agent->retries));) {
        struct retry *retry = tether__list_entry(node, struct retry, node);
        retry->give_up(retry->userdata, retry->peer, TETHER_ESHUTDOWN);
        tether__peer_release(retry->peer);
        tether__free(retry);
    }
}
