/* The handler, for its own files and for tests that bring their own holder. */
#ifndef TETHER_RENDEZVOUS_ELASTIC_HANDLER_INTERNAL_H
#define TETHER_RENDEZVOUS_ELASTIC_HANDLER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "rendezvous/elastic/coordination/member.h"
#include "rendezvous/elastic/handler/bootstrap.h"
#include "rendezvous/elastic/handler/handler.h"
#include "rendezvous/elastic/sync/executor.h"

struct tether_rdzv {
    atomic_int refs;
    atomic_bool canceled;

    /* immutable */
    struct tether_rdzv_settings settings; /* a copy; its strings belong to the handler */
    char *backend_name;
    char node_text[TETHER__RDZV_NODE_TEXT];
    tether_store *store;
    const struct tether__rdzv_env *env;
    const struct tether__rdzv_bootstrap_ops *bootstrap;
    bool share; /* workers use a store that the rendezvous runs (shared store) */

    /* The fields below are under mu, which is held during requests to the store but not in pauses.
     * Event hooks also run under it, one at a time. */
    struct tether__rdzv_self self; /* `node.addr` is owned */
    struct tether__rdzv_holder *holder;
    bool synced;       /* `synced_at` is valid */
    int64_t synced_at; /* when the holder last ran sync() */
    bool joining;      /* a next() is under way */
    bool joined;       /* in a round, and the three fields below are valid */
    uint64_t round;
    int rank, world_size;
    struct tether_rdzv_members reported; /* the group as the last MEMBERS event reported it */
    tether_store *server;                /* rank 0: the store that it runs for the workers */
    pthread_mutex_t mu;

    /* The keep-alive thread. `lifecycle` serialises its start and stop. */
    pthread_mutex_t lifecycle;
    bool beating;
    pthread_t thread;
    /* fields under stop_mu */
    bool stopping;
    pthread_mutex_t stop_mu;
    pthread_cond_t stop_cond;

    /* made by tether_rdzv_new(), where `holder` is `member`; unused in tests with another holder */
    bool has_member;
    struct tether__rdzv_member_holder member;
    tether_rdzv_backend *backend;
    tether_store *run_store; /* view of `store` under the prefix of the run */
};

/* Like tether_rdzv_new(), with the caller's holder and environment (borrowed; they outlive the
 * handler). `node->addr` is copied. */
tether_status tether__rdzv_new_with(const struct tether_rdzv_settings *settings,
                                    const struct tether__rdzv_node *node,
                                    const char *backend_name,
                                    tether_store *store,
                                    struct tether__rdzv_holder *holder,
                                    const struct tether__rdzv_env *env,
                                    const struct tether__rdzv_bootstrap_ops *bootstrap,
                                    tether_rdzv **ret_rdzv,
                                    tether_error *reterr);

/* Like tether_rdzv_new(), with another environment (borrowed). */
tether_status tether__rdzv_new_in(const struct tether_rdzv_settings *settings,
                                  tether_store *store,
                                  tether_rdzv_backend *backend,
                                  const struct tether__rdzv_env *env,
                                  const struct tether__rdzv_bootstrap_ops *bootstrap,
                                  tether_rdzv **ret_rdzv,
                                  tether_error *reterr);

/* Runs one op and reports its events. `cancelable`: tether_rdzv_cancel() ends it. */
tether_status tether__rdzv_run(tether_rdzv *rdzv,
                               const char *name,
                               tether__rdzv_op *op,
                               int64_t deadline,
                               bool cancelable,
                               tether_error *reterr);

/* events.c: calls the event hook. The caller holds mu. */
void tether__rdzv_event_locked(tether_rdzv *rdzv,
                               tether_rdzv_event_kind kind,
                               const char *name,
                               int64_t deadline,
                               tether_status status,
                               const char *format,
                               ...) TETHER_PRINTF(6, 7);

/* Reports a failure and returns its status: `return tether__rdzv_failed(rdzv, "next", st, &err,
 * reterr)`. */
tether_status tether__rdzv_failed(tether_rdzv *rdzv,
                                  const char *name,
                                  tether_status status,
                                  const tether_error *err,
                                  tether_error *reterr);

/* Describes the group from what the holder knows. */
void tether__rdzv_members_locked(tether_rdzv *rdzv, struct tether_rdzv_members *ret_members);

/* Functions of keep_alive.c. The first one starts the thread. */
tether_status tether__rdzv_start_heartbeats(tether_rdzv *rdzv, tether_error *reterr);
void tether__rdzv_stop_heartbeats(
    tether_rdzv *rdzv); /* does nothing when the thread does not run */

/* One turn of the thread: sends a heartbeat if it is due and syncs. Errors become events. */
void tether__rdzv_keep_alive(tether_rdzv *rdzv);

#endif
