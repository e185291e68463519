/* The handler, for its own files and for tests that bring their own holder. */
#ifndef TETHER_RENDEZVOUS_DYNAMIC_HANDLER_INTERNAL_H
#define TETHER_RENDEZVOUS_DYNAMIC_HANDLER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "rendezvous/dynamic/bootstrap.h"
#include "rendezvous/dynamic/executor.h"
#include "rendezvous/dynamic/handler.h"
#include "rendezvous/dynamic/member.h"

struct tether_rdzv {
    atomic_int refs;
    atomic_bool canceled;

    /* immutable */
    struct tether_rdzv_settings settings; /* strings are owned */
    char *backend_name;
    char node_text[TETHER__RDZV_NODE_TEXT];
    tether_store *store;
    const struct tether__rdzv_env *env;
    const struct tether__rdzv_bootstrap_ops *bootstrap;
    bool share; /* workers use a store that the rendezvous runs */

    /* under mu, which is held while the store is talked to, but not in pauses; event hooks run
     * under it, so that they come one at a time */
    struct tether__rdzv_self self; /* node.addr is owned */
    struct tether__rdzv_holder *holder;
    bool looked;       /* `looked_at` counts */
    int64_t looked_at; /* when the holder was last in step */
    bool joining;      /* a next() is under way */
    bool joined;       /* in a round; the three below count */
    uint64_t round;
    int rank, world_size;
    struct tether_rdzv_members reported; /* by the last MEMBERS event */
    tether_store *server;                /* rank 0: the store that the workers meet at */
    pthread_mutex_t mu;

    /* The keep-alive thread; start and stop are for the thread that has `joining`, or the last
     * reference, or under `lifecycle`. */
    pthread_mutex_t lifecycle;
    bool beating;
    pthread_t thread;
    /* under stop_mu */
    bool stopping;
    pthread_mutex_t stop_mu;
    pthread_cond_t stop_cond;

    /* made by tether_rdzv_new(): what `holder` is; else unused */
    bool has_member;
    struct tether__rdzv_member_holder member;
    tether_rdzv_backend *backend;
    tether_store *notes;
};

/* What tether_rdzv_new() does, with a holder and a world of the caller's (borrowed; they outlive
 * the handler). `node->addr` is copied. */
tether_status tether__rdzv_new_with(const struct tether_rdzv_settings *settings,
                                    const struct tether__rdzv_node *node,
                                    const char *backend_name,
                                    tether_store *store,
                                    struct tether__rdzv_holder *holder,
                                    const struct tether__rdzv_env *env,
                                    const struct tether__rdzv_bootstrap_ops *bootstrap,
                                    tether_rdzv **ret_rdzv,
                                    tether_error *reterr);

/* tether_rdzv_new() in another world (borrowed). */
tether_status tether__rdzv_new_in(const struct tether_rdzv_settings *settings,
                                  tether_store *store,
                                  tether_rdzv_backend *backend,
                                  const struct tether__rdzv_env *env,
                                  const struct tether__rdzv_bootstrap_ops *bootstrap,
                                  tether_rdzv **ret_rdzv,
                                  tether_error *reterr);

/* Runs one op with the events that go with it. `cancelable`: tether_rdzv_cancel() ends it. */
tether_status tether__rdzv_run(tether_rdzv *rdzv,
                               const char *name,
                               tether__rdzv_op *op,
                               int64_t deadline,
                               bool cancelable,
                               tether_error *reterr);

/* events.c: tells the hook. `_locked`: with mu. */
void tether__rdzv_event_locked(tether_rdzv *rdzv,
                               tether_rdzv_event_kind kind,
                               const char *name,
                               int64_t deadline,
                               tether_status status,
                               const char *format,
                               ...) TETHER_PRINTF(6, 7);

/* Tells of a failure and returns its status: `return tether__rdzv_failed(rdzv, "next", st,
 * reterr)`. */
tether_status tether__rdzv_failed(tether_rdzv *rdzv,
                                  const char *name,
                                  tether_status status,
                                  const tether_error *err,
                                  tether_error *reterr);

/* Describes the group from what the holder knows. */
void tether__rdzv_members_locked(tether_rdzv *rdzv, struct tether_rdzv_members *ret_members);

/* keep_alive.c */
tether_status tether__rdzv_start_heartbeats(tether_rdzv *rdzv, tether_error *reterr);
void tether__rdzv_stop_heartbeats(tether_rdzv *rdzv); /* also when there are none */

/* One turn of the thread: a heartbeat if it is due, a look at the group. Errors become events. */
void tether__rdzv_keep_alive(tether_rdzv *rdzv);

#endif
