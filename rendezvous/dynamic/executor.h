/* The executor: asks an op what to do, does it, and asks again until the op is content.
 *
 *     sync -> op(context, deadline) -> action -> apply, mark dirty -> sync -> ...
 *
 * SYNC means nothing to do but wait: the holder pauses for a second, or less if it hears news. A
 * lost compare-and-set is tried again after a random delay that doubles each time, up to a second.
 *
 * Lock rule: where `mu` is given, it is held while the holder and the state are looked at and
 * changed (the store is talked to under it), and let go for every pause and delay.
 */
#ifndef TETHER_RENDEZVOUS_DYNAMIC_EXECUTOR_H
#define TETHER_RENDEZVOUS_DYNAMIC_EXECUTOR_H

#include <pthread.h>
#include <stdatomic.h>

#include "rendezvous/dynamic/env.h"
#include "rendezvous/dynamic/holder.h"
#include "rendezvous/dynamic/ops.h"

struct tether__rdzv_executor {
    struct tether__rdzv_self *self;
    struct tether__rdzv_holder *holder;
    const struct tether_rdzv_settings *settings;
    const struct tether__rdzv_env *env;
    pthread_mutex_t *mu; /* NULL: one thread only */
    atomic_bool *cancel; /* NULL: can't be cancelled */

    /* Told, under `mu`, of each look at the state and what comes of it. NULL: nobody listens. */
    void (*on_step)(void *userdata,
                    const struct tether__rdzv_context *context,
                    enum tether__rdzv_action action,
                    int64_t deadline);
    void *userdata;
};

/* Runs `op`. TETHER_ECLOSED, TETHER_ESHUTDOWN (a spare of a closed rendezvous), TETHER_ETIMEOUT,
 * TETHER_ECANCELED, or what the holder says. A node that stops being a spare gets the whole time
 * for joining again. */
tether_status tether__rdzv_execute(struct tether__rdzv_executor *executor,
                                   tether__rdzv_op *op,
                                   int64_t deadline,
                                   tether_error *reterr);

#endif
