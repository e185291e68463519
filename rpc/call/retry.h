/* Control messages that must arrive: tried again after a failed attempt, later and later.
 *
 * The lane already brings a message that it has taken to the peer, exactly once, through any number
 * of broken connections, or the session is fenced. An attempt to hand it to the lane can still
 * fail: no room, no memory, or a test that wants it to. Then it waits and is tried again, up to
 * a limit; the waits are those of the modelled system: 1000, 1000, 1500, 2250, 3375 ms, counted
 * from each attempt. So the receiver applies it once, and a caller that waits for the answer
 * gets it, or an error that says that it could not be sent.
 *
 * Each retry comes out of the peer's budget (budget.h), and waits for it if need be. Retries that
 * wait for the budget of their peer are in a list of that peer, oldest first. Only the first of
 * them is in the agent's heap of retries by due time, so a tick takes as many steps as there are
 * retries that have just become due, and one for each peer whose budget has come.
 *
 * No thread of its own: tick() is called with the agent's timers. Under agent->mu: heap and lists.
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

/* How long after attempt number `attempt` (0, 1 ...) the next one comes; -1: there is none. */
int tether__retry_delay_ms(const struct tether__retry_opts *opts, int attempt);

/* One attempt. peer->mu is held. */
enum tether__attempt_result {
    TETHER__ATTEMPT_SENT,   /* the lane has it */
    TETHER__ATTEMPT_ENDED,  /* the call has ended already, so nothing was sent */
    TETHER__ATTEMPT_REFUSE, /* it must not be sent any more: the request fails with `*ret_why` */
    TETHER__ATTEMPT_FAILED, /* try again later, because of `*ret_why` */
};
typedef enum tether__attempt_result tether__attempt(void *userdata,
                                                    struct tether__peer *peer,
                                                    tether_status *ret_why);

/* It will not be tried again. No lock held. */
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

/* Gives them all up. When no other thread can add to them any more. */
void tether__retries_fini(struct tether_agent *agent);

#endif
