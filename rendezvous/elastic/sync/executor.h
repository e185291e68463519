/* The executor: calls an op, applies the action that it returns, and repeats until FINISH.
 *
 *     sync -> op(context, deadline) -> action -> apply, mark dirty -> sync -> ...
 *
 * The action SYNC means: wait for news. The holder pauses for a second, or less if news arrives. A
 * lost compare-and-set is retried after a random delay whose limit doubles each time, up to a
 * second.
 *
 * Lock rule: the executor holds `mu`, if given, while it uses the holder and the state, also during
 * requests to the store. It unlocks `mu` for every pause and delay.
 */
#ifndef TETHER_RENDEZVOUS_ELASTIC_SYNC_EXECUTOR_H
#define TETHER_RENDEZVOUS_ELASTIC_SYNC_EXECUTOR_H

#include <pthread.h>
#include <stdatomic.h>

#include "rendezvous/elastic/rules/ops.h"
#include "rendezvous/elastic/sync/env.h"
#include "rendezvous/elastic/sync/holder.h"

struct tether__rdzv_executor {
    struct tether__rdzv_self *self;
    struct tether__rdzv_holder *holder;
    const struct tether_rdzv_settings *settings;
    const struct tether__rdzv_env *env;
    pthread_mutex_t *mu; /* NULL: only one thread uses the holder */
    atomic_bool *cancel; /* NULL: never cancelled */

    /* Called under `mu` with each decision. May be NULL. */
    void (*on_step)(void *userdata,
                    const struct tether__rdzv_context *context,
                    enum tether__rdzv_action action,
                    int64_t deadline);
    void *userdata;
};

/* Runs `op`. TETHER_ECLOSED, TETHER_ESHUTDOWN (a spare of a closed rendezvous), TETHER_ETIMEOUT,
 * TETHER_ECANCELED, or an error of the holder. When a node stops being a spare, its time to join
 * starts again. */
tether_status tether__rdzv_execute(struct tether__rdzv_executor *executor,
                                   tether__rdzv_op *op,
                                   int64_t deadline,
                                   tether_error *reterr);

#endif
