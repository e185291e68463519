/* Failed attempts waiting for their next turn. See retry.h. */
#include "rpc/call/retry.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/list.h"
#include "rpc/agent.h"
#include "rpc/agent/internal.h"
#include "rpc/call/budget.h"
#include "rpc/peer/peer.h"

const struct tether__retry_opts tether__retry_defaults = {5, 1000, 1.5};

struct retry {
    struct tether__peer *peer;
    int attempts; /* number of failed attempts */
    /* under agent->mu */
    int64_t due;
    /* in agent->retries, unless it waits in `put_off` behind another retry */
    struct tether__heap_node by_due;
    /* in peer->retries_put_off, the retries that wait for the budget; empty: it does not wait */
    struct tether__list put_off;
    /* immutable */
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

static struct retry *retry_of(const struct tether__heap_node *node)
{
    return tether__container_of(node, struct retry, by_due);
}

bool tether__retry_is_due_first(const struct tether__heap_node *a,
                                const struct tether__heap_node *b)
{
    return retry_of(a)->due < retry_of(b)->due;
}

static void insert_locked(tether_agent *agent, struct retry *retry, int64_t due)
{
    retry->due = due;
    tether__heap_insert(&agent->retries, &retry->by_due);
}

static void wait_until(tether_agent *agent, struct retry *retry, int64_t due)
{
    pthread_mutex_lock(&agent->mu);
    insert_locked(agent, retry, due);
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
    tether__list_init(&retry->put_off);
    wait_for_turn(peer->agent, retry, tether__clock_now_ns(peer->agent->clock));
    return TETHER_OK;
}

/* Takes a due retry out of the heap. NULL: none is due; `*ret_next` is when the first one will be.
 */
static struct retry *take_due(tether_agent *agent, int64_t now, int64_t *ret_next)
{
    struct retry *first = NULL;
    *ret_next = TETHER__NEVER;
    pthread_mutex_lock(&agent->mu);
    if (tether__heap_top(&agent->retries)) {
        first = retry_of(tether__heap_top(&agent->retries));
        *ret_next = first->due;
        if (first->due <= now)
            tether__heap_remove(&agent->retries, &first->by_due);
        else
            first = NULL;
    }
    pthread_mutex_unlock(&agent->mu);
    return first;
}

/* ---- Retries that wait for the budget ---- */

static void count_put_off(struct tether__peer *peer)
{
    tether__peer_lock(peer);
    peer->metrics.retries_put_off++;
    tether__peer_unlock(peer);
}

/* Returns the retry that asks the budget: if other retries of the peer wait already, `retry` waits
 * after them, and the first of them is taken out of the heap instead. */
static struct retry *first_of_peer(tether_agent *agent, struct retry *retry)
{
    struct tether__list *waiting = &retry->peer->retries_put_off;
    struct retry *first = retry;
    pthread_mutex_lock(&agent->mu);
    if (!tether__list_empty(waiting))
        first = tether__list_entry(waiting->next, struct retry, put_off);
    if (first != retry) {
        tether__list_push_back(waiting, &retry->put_off);
        tether__heap_remove(&agent->retries, &first->by_due);
    }
    pthread_mutex_unlock(&agent->mu);
    if (first != retry)
        count_put_off(retry->peer);
    return first;
}

/* Makes a retry wait for the budget of its peer. It is the first of the peer's waiting retries, and
 * the only one of them that is in the heap. */
static void wait_for_budget(tether_agent *agent, struct retry *retry, int64_t put_off)
{
    struct tether__list *waiting = &retry->peer->retries_put_off;
    pthread_mutex_lock(&agent->mu);
    bool is_new = tether__list_empty(waiting);
    if (is_new)
        tether__list_push_back(waiting, &retry->put_off);
    insert_locked(agent, retry, put_off);
    pthread_mutex_unlock(&agent->mu);
    if (is_new)
        count_put_off(retry->peer);
    tether__agent_kick(agent, put_off);
}

/* Takes the retry out of the list of waiting ones, because the budget has admitted it or the agent
 * ends. Makes the next one due. */
static void leave_put_off(tether_agent *agent, struct retry *retry, int64_t now)
{
    struct tether__list *waiting = &retry->peer->retries_put_off;
    pthread_mutex_lock(&agent->mu);
    bool was_first = !tether__list_empty(&retry->put_off);
    tether__list_remove(&retry->put_off);
    if (was_first && !tether__list_empty(waiting))
        insert_locked(agent, tether__list_entry(waiting->next, struct retry, put_off), now);
    pthread_mutex_unlock(&agent->mu);
}

/* ---- Attempts ---- */

/* Makes an attempt and returns 0, if the budget has a token. Otherwise returns when it will have
 * one. */
static int64_t try_again(struct retry *retry,
                         int64_t now,
                         enum tether__attempt_result *ret_result,
                         tether_status *ret_why)
{
    struct tether__peer *peer = retry->peer;
    tether__peer_lock(peer);
    int64_t put_off = tether__budget_spend(&peer->budget, now);
    if (!put_off) {
        *ret_result = retry->attempt(retry->userdata, peer, ret_why);
        if (*ret_result == TETHER__ATTEMPT_ENDED)
            tether__budget_refund(&peer->budget); /* nothing was sent */
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
        retry = first_of_peer(agent, retry);
        int64_t put_off = try_again(retry, now, &result, &why);
        if (put_off) {
            wait_for_budget(agent, retry, put_off);
            continue;
        }
        leave_put_off(agent, retry, now);
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
    int64_t next;
    for (struct retry *retry; (retry = take_due(agent, TETHER__NEVER, &next));) {
        leave_put_off(agent, retry, 0);
        retry->give_up(retry->userdata, retry->peer, TETHER_ESHUTDOWN);
        tether__peer_release(retry->peer);
        tether__free(retry);
    }
}
