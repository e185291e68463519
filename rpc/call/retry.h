/* Control messages that must arrive: after a failed attempt they are sent again, with growing
 * pauses.
 *
 * A message that the lane has taken reaches the peer exactly once, through any number of broken
 * connections, or the session is fenced. But the attempt to hand a message to the lane can fail: no
 * room, no memory, or a test that injects the failure. Then it is repeated up to five times, after
 * 1000, 1000, 1500, 2250 and 3375 ms, counted from each attempt. So the receiver applies the
 * message at most once, and a caller that waits for the answer gets it or an error.
 *
 * Each retry comes out of the peer's budget (budget.h), and waits for it if need be. Retries that
 * wait for the budget of their peer are in a list of that peer, oldest first. Only the first of
 * them is in agent->retries, the heap by due time. So a tick takes one step for each retry that has
 * become due, and one for each peer whose budget has a token again.
 *
 * This unit has no thread: the agent's timers call tick(). The heap and the lists are under
 * agent->mu.
 */
#ifndef TETHER_RPC_CALL_RETRY_H
#define TETHER_RPC_CALL_RETRY_H

#include <stdint.h>

#include "base/heap.h"
#include "base/status.h"

struct tether_agent;
struct tether__peer;

struct tether__retry_opts {
    int max_retries;
    int first_delay_ms;
    double backoff;
};
extern const struct tether__retry_opts tether__retry_defaults; /* 5, 1000, 1.5 */

/* Returns the pause in ms after failed attempt number `attempt` (0, 1 ...); -1: there is no further
 * attempt. */
int tether__retry_delay_ms(const struct tether__retry_opts *opts, int attempt);

/* Makes one attempt to send the message. peer->mu is held. */
enum tether__attempt_result {
    TETHER__ATTEMPT_SENT,  /* the lane has taken the message */
    TETHER__ATTEMPT_ENDED, /* the call has ended already, so nothing was sent */
    /* the message must not be sent any more: the request fails with `*ret_why` */
    TETHER__ATTEMPT_REFUSE,
    TETHER__ATTEMPT_FAILED, /* try again later, because of `*ret_why` */
};
typedef enum tether__attempt_result tether__attempt(void *userdata,
                                                    struct tether__peer *peer,
                                                    tether_status *ret_why);

/* Called when the message will not be tried again. No lock held. */
typedef void tether__give_up(void *userdata, struct tether__peer *peer, tether_status status);

/* Records that attempt 0 has failed with `status`, and schedules the next one. TETHER_ENOMEM:
 * nothing was scheduled. */
tether_status tether__retry_later(struct tether__peer *peer,
                                  tether_status status,
                                  tether__attempt *attempt,
                                  tether__give_up *give_up,
                                  void *userdata);

/* The order of agent->retries. */
bool tether__retry_is_due_first(const struct tether__heap_node *a,
                                const struct tether__heap_node *b);

int64_t tether__retries_tick(struct tether_agent *agent, int64_t now);

/* Gives all retries up. No other thread may add retries any more. */
void tether__retries_fini(struct tether_agent *agent);

#endif
