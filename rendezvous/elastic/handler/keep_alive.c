/* The keep-alive thread: sends heartbeats, watches the group, and does the leader's work while the
 * workers run.
 *
 * A follower sleeps from heartbeat to heartbeat. The leader waits for requests, a slice at a time
 * so that it can be stopped.
 */
#include <stdio.h>
#include <string.h>

#include "base/backoff.h"
#include "base/threads/cond.h"
#include "base/threads/thread.h"
#include "rendezvous/elastic/handler/internal.h"

#define SLICE_NS (100 * TETHER__NS_PER_MS)
#define LONGEST_SLICE_NS TETHER__NS_PER_S

static void report_members_locked(tether_rdzv *rdzv)
{
    struct tether_rdzv_members now, *before = &rdzv->reported;
    tether__rdzv_members_locked(rdzv, &now);
    bool news = now.changed && (!before->changed || now.participants != before->participants ||
                                now.waiting != before->waiting || now.round != before->round ||
                                now.closed != before->closed);
    *before = now;
    if (news)
        tether__rdzv_event_locked(rdzv, TETHER_RDZV_MEMBERS, "keep_alive", TETHER__NEVER, TETHER_OK,
                                  "the group has changed: %d of %d nodes are alive, %d wait%s",
                                  now.participants, rdzv->world_size, now.waiting,
                                  now.closed ? ", it is closed" : "");
}

void tether__rdzv_keep_alive(tether_rdzv *rdzv)
{
    tether_error err;
    int64_t deadline =
        tether__rdzv_now(rdzv->env) + rdzv->settings.timeouts.heartbeat_ms * TETHER__NS_PER_MS;
    tether_status st =
        tether__rdzv_run(rdzv, "keep_alive", tether__rdzv_keep_alive_op, deadline, false, &err);
    pthread_mutex_lock(&rdzv->mu);
    if (st != TETHER_OK)
        tether__rdzv_event_locked(rdzv, TETHER_RDZV_FAILED, "keep_alive", deadline, st, "%s",
                                  err.message);
    else
        report_members_locked(rdzv);
    pthread_mutex_unlock(&rdzv->mu);
}

/* Sleeps for `ns` or until the thread has to stop; returns whether it has to. */
static bool sleep_unless_stopped(tether_rdzv *rdzv, int64_t ns)
{
    int64_t until = tether__clock_now_ns(&tether__clock_system) + ns;
    pthread_mutex_lock(&rdzv->stop_mu);
    while (!rdzv->stopping && tether__cond_wait(&rdzv->stop_cond, &rdzv->stop_mu, until))
        ;
    bool stopping = rdzv->stopping;
    pthread_mutex_unlock(&rdzv->stop_mu);
    return stopping;
}

static void *run(void *userdata)
{
    tether_rdzv *rdzv = userdata;
    int64_t sleep_ns = 0, began = tether__rdzv_now(rdzv->env);
    while (!sleep_unless_stopped(rdzv, sleep_ns)) {
        tether__rdzv_keep_alive(rdzv);
        sleep_ns = rdzv->settings.keep_alive_interval_ms * TETHER__NS_PER_MS;
        pthread_mutex_lock(&rdzv->mu);
        bool leads = rdzv->has_member && tether__rdzv_member_holder_leads(&rdzv->member);
        struct tether__rdzv_pause pause;
        if (leads)
            rdzv->holder->ops->plan(rdzv->holder,
                                    tether__backoff_slice_ns(tether__rdzv_now(rdzv->env) - began,
                                                             SLICE_NS, LONGEST_SLICE_NS),
                                    &pause);
        pthread_mutex_unlock(&rdzv->mu);
        if (leads) {
            tether_status st = rdzv->holder->ops->pause(rdzv->holder, &pause, NULL);
            sleep_ns = st == TETHER_OK ? 0 : SLICE_NS;
        }
    }
    return NULL;
}

tether_status tether__rdzv_start_heartbeats(tether_rdzv *rdzv, tether_error *reterr)
{
    pthread_mutex_lock(&rdzv->lifecycle);
    int failed = 0;
    if (!rdzv->beating) {
        rdzv->stopping = false;
        char name[16];
        snprintf(name, sizeof name, "rdzv-%d", rdzv->self.node.local_id);
        failed = tether__thread_start(&rdzv->thread, name, run, rdzv);
        rdzv->beating = failed == 0;
    }
    pthread_mutex_unlock(&rdzv->lifecycle);
    if (failed)
        return tether_error_set(reterr, TETHER_EIO, "the keep-alive thread can't be started: %s",
                                strerror(failed));
    return TETHER_OK;
}

void tether__rdzv_stop_heartbeats(tether_rdzv *rdzv)
{
    pthread_mutex_lock(&rdzv->lifecycle);
    if (rdzv->beating) {
        pthread_mutex_lock(&rdzv->stop_mu);
        rdzv->stopping = true;
        pthread_cond_signal(&rdzv->stop_cond);
        pthread_mutex_unlock(&rdzv->stop_mu);
        pthread_join(rdzv->thread, NULL);
        rdzv->beating = false;
    }
    pthread_mutex_unlock(&rdzv->lifecycle);
}
