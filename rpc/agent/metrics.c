/* Prints the counters in the text format of Prometheus. */
#include "rpc/agent/metrics.h"

#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/text.h"
#include "base/threads/call_gate.h"
#include "base/threads/pool.h"
#include "rpc/agent.h"
#include "rpc/agent/internal.h"
#include "rpc/group/directory.h"
#include "rpc/peer/peer.h"
#include "rpc/peer/session.h"
#include "rpc/peer/table.h"

static void head(tether_buf *out, const char *name, const char *type, const char *help)
{
    tether_buf_printf(out, "# HELP tether_%s %s\n# TYPE tether_%s %s\n", name, help, name, type);
}

static void one(tether_buf *out,
                const char *name,
                const char *type,
                const char *help,
                uint64_t value)
{
    head(out, name, type, help);
    tether_buf_printf(out, "tether_%s %" PRIu64 "\n", name, value);
}

static void print_agent(tether_agent *agent, tether_buf *out)
{
    struct tether__metrics *m = &agent->metrics;
    one(out, "client_active_calls", "gauge", "Calls of this worker that are not answered yet.",
        atomic_load(&agent->active_calls));
    one(out, "server_active_calls", "gauge", "Calls of others that run or wait here.",
        atomic_load(&agent->running));
    if (atomic_load(&agent->pool_runs)) {
        struct tether__pool_stats pool = tether__pool_stats(&agent->pool);
        one(out, "thread_pool_size", "gauge", "Threads that pooled functions may use.",
            pool.threads);
        one(out, "num_idle_threads", "gauge", "Those of them that have nothing to do.", pool.idle);
        one(out, "queued_calls", "gauge", "Calls that wait for a thread.", pool.queued);
    }
    one(out, "calls_ok_total", "counter", "Calls of this worker that succeeded.",
        atomic_load(&m->calls_ok));
    one(out, "calls_failed_total", "counter", "Calls of this worker that failed.",
        atomic_load(&m->calls_failed));
    one(out, "served_ok_total", "counter", "Calls of others that succeeded here.",
        atomic_load(&m->served_ok));
    one(out, "served_failed_total", "counter", "Calls of others that failed here.",
        atomic_load(&m->served_failed));
}

/* Prints microseconds as seconds. Uses integers only, since printf("%f") would write a comma in
 * some locales. */
static void print_seconds(tether_buf *out, uint64_t us)
{
    tether_buf_printf(out, "%" PRIu64 ".%06" PRIu64, us / 1000000, us % 1000000);
}

static void print_latency(tether_agent *agent, tether_buf *out)
{
    struct tether__metrics *m = &agent->metrics;
    uint64_t count = 0;
    head(out, "call_latency_seconds", "histogram", "From making a call to its answer.");
    for (unsigned i = 0; i + 1 < TETHER__LATENCY_BUCKETS; i++) {
        count += atomic_load(&m->latency[i]);
        tether_buf_printf(out, "tether_call_latency_seconds_bucket{le=\"");
        print_seconds(out, UINT64_C(1) << i);
        tether_buf_printf(out, "\"} %" PRIu64 "\n", count);
    }
    count += atomic_load(&m->latency[TETHER__LATENCY_BUCKETS - 1]);
    tether_buf_printf(out,
                      "tether_call_latency_seconds_bucket{le=\"+Inf\"} %" PRIu64
                      "\ntether_call_latency_seconds_sum ",
                      count);
    print_seconds(out, atomic_load(&m->latency_sum_us));
    tether_buf_printf(out, "\ntether_call_latency_seconds_count %" PRIu64 "\n", count);
}

/* The rows that are printed for each peer. */
static const struct {
    const char *name, *help;
    size_t offset;
} peer_rows[] = {
#define ROW(field, words)                                           \
    {                                                               \
#field, words, offsetof(struct tether__peer_metrics, field) \
    }
    ROW(calls, "Calls made to a peer."),
    ROW(errors, "Calls to a peer that failed."),
    ROW(bytes_sent, "Bytes sent to a peer."),
    ROW(bytes_received, "Bytes received from a peer."),
    ROW(messages_sent, "Messages sent to a peer, each with many frames."),
    ROW(messages_received, "Messages received from a peer."),
    ROW(connects, "Streams with a peer that came up."),
    ROW(fences, "Sessions with a peer that ended."),
    ROW(retries, "Control messages to a peer that were tried again."),
    ROW(retries_put_off, "Retries to a peer that had to wait: the retry budget was used up."),
#undef ROW
};

static uint64_t *counter_of(struct tether__peer_metrics *metrics, size_t row)
{
    return (uint64_t *)(void *)((char *)metrics + peer_rows[row].offset);
}

static bool is_gone_locked(const struct tether__peer *peer, int64_t now)
{
    int64_t out = peer->session->out.heard_at, in = peer->session->in.heard_at;
    int64_t present = out > in ? out : in;
    int64_t heard = peer->heard_at > present ? peer->heard_at : present;
    return peer->fenced && now - heard > TETHER__METRICS_KEEP_MS * TETHER__NS_PER_MS;
}

/* Adds the counters of a peer to those of all forgotten peers. A peer that comes back counts from
 * zero, so no sum ever falls. */
void tether__metrics_bury_locked(tether_agent *agent, struct tether__peer *peer)
{
    for (size_t row = 0; row < TETHER__ARRAY_LEN(peer_rows); row++)
        *counter_of(&agent->gone, row) += *counter_of(&peer->metrics, row);
    peer->metrics = (struct tether__peer_metrics){0};
    agent->any_gone = true;
}

static void print_peer_row(tether_buf *out, const char *name, const char *peer, uint64_t value)
{
    tether_buf_printf(out, "tether_%s{peer=\"", name);
    tether__text_print(out, tether_bytes_str(peer), TETHER__TEXT_LABEL);
    tether_buf_printf(out, "\"} %" PRIu64 "\n", value);
}

static void print_peers(tether_agent *agent, tether_buf *out)
{
    int64_t now = tether__clock_now_ns(agent->clock);
    for (size_t row = 0; row < TETHER__ARRAY_LEN(peer_rows); row++) {
        char name[64];
        snprintf(name, sizeof name, "peer_%s_total", peer_rows[row].name);
        head(out, name, "counter", peer_rows[row].help);
        pthread_mutex_lock(&agent->mu);
        struct tether__peer *peer;
        for (uint64_t at = 0; (peer = tether__agent_next_peer_locked(agent, &at));) {
            /* not tether__peer_lock(), whose unlock may run user code: agent->mu is held */
            pthread_mutex_lock(&peer->mu);
            bool gone = is_gone_locked(peer, now);
            if (gone)
                tether__metrics_bury_locked(agent, peer);
            uint64_t value = *counter_of(&peer->metrics, row);
            /* Skip names that are known from messages of others only: such a worker may not exist.
             */
            bool is_known = (!peer->named_by || peer->dialer.record.name[0]) &&
                            (peer->metrics.connects || peer->metrics.calls);
            pthread_mutex_unlock(&peer->mu);
            if (is_known && !peer->is_self && !peer->is_observer && !gone)
                print_peer_row(out, name, peer->name, value);
        }
        if (agent->any_gone)
            print_peer_row(out, name, "(gone)", *counter_of(&agent->gone, row));
        pthread_mutex_unlock(&agent->mu);
    }
}

tether_status tether_agent_metrics(tether_agent *agent, tether_buf *ret_text)
{
    tether_buf out = TETHER_BUF_INIT;
    if (!tether__call_gate_enter(&agent->visits))
        return TETHER_ESHUTDOWN;
    print_agent(agent, &out);
    print_latency(agent, &out);
    print_peers(agent, &out);
    tether__call_gate_leave(&agent->visits);
    tether_status st = tether_buf_printf(&out, "%s", "");
    if (st != TETHER_OK) {
        tether_buf_fini(&out);
        return st;
    }
    tether_buf_fini(ret_text);
    *ret_text = out;
    return TETHER_OK;
}
