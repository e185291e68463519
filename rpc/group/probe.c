/* Finds out by a handshake whether a worker is alive. See probe.h.
 *
 * Threads: the events of the conn come on the thread that polls the client side; the thread that
 * asks waits for closed(), which always comes.
 */
#include "rpc/group/probe.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/threads/cond.h"
#include "net/net.h"
#include "rpc/agent/internal.h"
#include "rpc/agent/routes.h"
#include "rpc/handshake/handshake.h"
#include "rpc/transport/transport.h"
#include "rpc/wire/packed.h"
#include "rpc/wire/slice.h"
#include "rpc/wire/wire.h"

/* Pauses between two probes of a worker that is silent. */
#define ASK_AGAIN_MS 20
#define ASK_AGAIN_MAX_MS 500

struct probe {
    tether_agent *agent;
    const struct tether__worker_record *record;
    char name[TETHER__MAX_NAME + 1];
    struct tether__self self; /* this worker as an observer */
    struct tether__handshake handshake;
    bool is_vouched_for; /* the kernel or a certificate shows that a worker of the group answers */
    enum tether__probe_verdict verdict;
    tether_error error; /* code TETHER_OK: none */
    pthread_cond_t changed;
    pthread_mutex_t mu;
    bool closed; /* under mu; until it is set only the polling thread uses the other fields */
};

void tether__observer_name(const char *who, char ret_name[TETHER__MAX_NAME + 1])
{
    uint64_t random;
    arc4random_buf(&random, sizeof random);
    snprintf(ret_name, TETHER__MAX_NAME + 1, TETHER__OBSERVER_PREFIX "%.*s.%016" PRIx64,
             TETHER__OBSERVER_NAME_SIZE - 1, who, random);
}

/* ---- The answer ---- */

/* Whether to believe a refusal: the other end has proved that it belongs to the group, or the group
 * has no token by which to prove it. */
static bool is_believed(const struct probe *probe)
{
    return probe->is_vouched_for || !probe->self.token;
}

static void refuse_token(struct probe *probe)
{
    tether_error_set(&probe->error, TETHER_EAUTH,
                     "worker '%s' is alive at %s and has another token than this start: give all "
                     "workers of the group the same token",
                     probe->record->name, probe->record->address);
}

static void judge_refusal(struct probe *probe, const Tether__Hello2 *hello)
{
    char reason[TETHER__REASON_SIZE];
    tether__pairing_reason(hello->reason, reason);
    if (is_believed(probe) && hello->refused == TETHER_EAUTH)
        refuse_token(probe);
    else if (is_believed(probe) && hello->refused == TETHER_EPERM)
        tether_error_set(&probe->error, TETHER_EPERM,
                         "a worker named '%s' is alive at %s and refuses this start: %s",
                         probe->record->name, probe->record->address, reason);
    else
        tether__log(TETHER_LOG_INFO, "rpc",
                    "%s: start %llu of it is gone; who listens at %s says: "
                    "%s",
                    probe->record->name, (unsigned long long)probe->record->incarnation,
                    probe->record->address, reason);
}

static void judge(struct probe *probe, const Tether__Hello2 *hello)
{
    tether_error why = {0};
    probe->verdict = TETHER__PROBE_GONE;
    if (hello->refused) {
        judge_refusal(probe, hello);
        return;
    }
    tether_status st = tether__handshake_on_hello2(&probe->handshake, hello, &why);
    if (st == TETHER_OK && probe->handshake.peer_incarnation == probe->record->incarnation)
        probe->verdict = TETHER__PROBE_ALIVE;
    else if (st == TETHER_EAUTH && is_believed(probe))
        refuse_token(probe);
    else if (st != TETHER_OK)
        tether__log(TETHER_LOG_WARN, "rpc", "%s: something else listens at its last address %s: %s",
                    probe->record->name, probe->record->address, why.message);
}

/* ---- The conn ---- */

static bool has_certificate_of(const struct probe *probe, const char *const *cert_names)
{
    for (; cert_names && *cert_names; cert_names++)
        if (strcmp(*cert_names, probe->record->name) == 0)
            return true;
    return false;
}

static void on_opened(struct tether__conn *conn, const char *const *cert_names)
{
    struct probe *probe = conn->userdata;
    const struct tether__transport_ops *ops = conn->transport->ops;
    Tether__Frame frame = TETHER__FRAME__INIT;
    struct tether__packed packed;
    bool is_mutual = tether__has_mutual_tls(probe->agent);
    if (is_mutual && !has_certificate_of(probe, cert_names)) {
        /* the certificate is that of another worker of the group */
        probe->verdict = TETHER__PROBE_GONE;
        ops->close(conn, false);
        return;
    }
    probe->is_vouched_for = is_mutual || conn->transport->vouches;
    Tether__Hello1 hello = tether__handshake_begin(&probe->handshake);
    frame.body_case = TETHER__FRAME__BODY_HELLO1;
    frame.hello1 = &hello;
    if (tether__handshake_pack(&frame, &packed) != TETHER_OK) {
        ops->close(conn, false);
        return;
    }
    ops->send(conn, &(struct tether__slice){packed.bytes.data, packed.bytes.len, NULL}, 1);
    tether__packed_fini(&packed);
}

static void on_message(struct tether__conn *conn, struct tether__slice message)
{
    struct probe *probe = conn->userdata;
    const Tether__Frame *frame = NULL;
    TETHER__ARENA(arena, 1024);
    tether_status st = tether__handshake_read(message, &arena, &frame, NULL);
    if (st == TETHER_OK && frame->body_case == TETHER__FRAME__BODY_HELLO2)
        judge(probe, frame->hello2);
    else if (st != TETHER_ENOMEM)
        probe->verdict = TETHER__PROBE_GONE; /* not a worker: a worker answers with Hello2 */
    tether__arena_fini(&arena);
    conn->transport->ops->close(conn, false);
}

static void on_sent(struct tether__conn *conn)
{
    (void)conn;
}

static void on_closed(struct tether__conn *conn, tether_status status, const char *why)
{
    struct probe *probe = conn->userdata;
    (void)why;
    pthread_mutex_lock(&probe->mu);
    if (status == TETHER_ENOTFOUND)
        probe->verdict = TETHER__PROBE_GONE;
    probe->closed = true;
    pthread_cond_signal(&probe->changed);
    pthread_mutex_unlock(&probe->mu);
}

static const struct tether__conn_events events = {on_opened, on_message, on_sent, on_closed};

static void ask(struct probe *probe,
                struct tether__route *route,
                const char *address,
                int64_t deadline)
{
    struct tether__transport *transport = route->transport;
    uint8_t nonce[TETHER__NONCE_SIZE];
    arc4random_buf(nonce, sizeof nonce);
    tether__handshake_init(&probe->handshake, &probe->self, true, probe->record->name,
                           probe->self.token ? nonce : NULL);
    probe->closed = probe->is_vouched_for = false;
    struct tether__conn *conn = transport->ops->dial(transport, address, &events, probe);
    if (!conn)
        return;
    pthread_mutex_lock(&probe->mu);
    while (!probe->closed && tether__cond_wait(&probe->changed, &probe->mu, deadline)) {
    }
    bool closed = probe->closed;
    pthread_mutex_unlock(&probe->mu);
    if (!closed)
        transport->ops->close(conn, false);
    pthread_mutex_lock(&probe->mu);
    while (!probe->closed)
        tether__cond_wait(&probe->changed, &probe->mu, TETHER__NEVER);
    pthread_mutex_unlock(&probe->mu);
    transport->ops->conn_release(conn);
}

/* ---- One worker ---- */

/* Whether no process listens at the address. Tries a plain connection: only a refusal by the kernel
 * proves it, and a dial over gRPC does not report the reason of its failure. */
static bool nobody_listens(const char *address, int64_t deadline)
{
    char host[256];
    const char *colon = strrchr(address, ':');
    bool is_path = tether__net_unix_path(address);
    size_t len = is_path ? strlen(address) : colon ? (size_t)(colon - address) : sizeof host;
    if (len >= sizeof host)
        return false;
    memcpy(host, address, len);
    host[len] = '\0';
    return tether__net_refuses(host, is_path ? 0 : atoi(colon + 1), deadline);
}

static bool is_on_this_host(const tether_agent *agent, const struct tether__worker_record *record)
{
    return record->unix_address[0] && agent->local.transport &&
           tether__directory_is_here(&agent->directory, record);
}

tether_status tether__agent_probe(tether_agent *agent,
                                  const struct tether__worker_record *record,
                                  int64_t deadline,
                                  enum tether__probe_verdict *ret_verdict,
                                  tether_error *reterr)
{
    struct probe probe = {.agent = agent, .record = record, .verdict = TETHER__PROBE_SILENT};
    tether__observer_name(agent->name, probe.name);
    probe.self = agent->self;
    probe.self.name = probe.name;
    pthread_mutex_init(&probe.mu, NULL);
    tether__cond_init(&probe.changed);
    if (is_on_this_host(agent, record))
        ask(&probe, &agent->local, record->unix_address, deadline);
    /* Over the network, too, since the unix socket of a worker of another user accepts no
     * connection. */
    if (probe.verdict == TETHER__PROBE_SILENT && tether__clock_now_ns(agent->clock) < deadline) {
        if (nobody_listens(record->address, deadline))
            probe.verdict = TETHER__PROBE_GONE;
        else if (tether__network_start(agent, &probe.error) == TETHER_OK)
            ask(&probe, &agent->network, record->address, deadline);
    }
    pthread_cond_destroy(&probe.changed);
    pthread_mutex_destroy(&probe.mu);
    if (probe.error.code != TETHER_OK && reterr)
        *reterr = probe.error;
    *ret_verdict = probe.verdict;
    return probe.error.code;
}

/* ---- The verdict on a name ---- */

static void nap(int ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL);
}

/* Whether the directory still has this record; a worker that leaves removes its own. */
static bool is_current(tether_agent *agent,
                       const struct tether__worker_record *record,
                       int64_t deadline)
{
    struct tether__worker_record now;
    tether_status st =
        tether__directory_lookup(&agent->directory, record->name,
                                 tether__deadline_left_ms(agent->clock, deadline), &now, NULL);
    return st == TETHER_OK ? now.incarnation == record->incarnation : st != TETHER_ENOTFOUND;
}

tether_status tether__agent_may_replace(tether_agent *agent,
                                        const struct tether__worker_record *record,
                                        int64_t deadline,
                                        tether_error *reterr)
{
    const int lease_ms = agent->opts.lease_ms;
    int64_t lease_over = tether__deadline_in(agent->clock, lease_ms);
    int64_t until = lease_over < deadline ? lease_over : deadline;
    int pause_ms = ASK_AGAIN_MS;
    for (;;) {
        enum tether__probe_verdict verdict;
        tether_status st = tether__agent_probe(agent, record, until, &verdict, reterr);
        if (st != TETHER_OK || verdict == TETHER__PROBE_GONE)
            return st;
        if (verdict == TETHER__PROBE_ALIVE)
            return tether_error_set(reterr, TETHER_EEXIST,
                                    "a worker named '%s' is alive at %s: give this one another "
                                    "name, or set `take_over` to replace it",
                                    record->name, record->address);
        int64_t now = tether__clock_now_ns(agent->clock);
        if (now >= lease_over)
            break;
        if (now >= deadline)
            return tether_error_set(
                reterr, TETHER_ETIMEOUT,
                "a worker named '%s' does not answer at %s and may still be alive; it is replaced "
                "after lease_ms (%d), or now if you set `take_over`",
                record->name, record->address, lease_ms);
        nap(pause_ms);
        pause_ms = pause_ms * 2 < ASK_AGAIN_MAX_MS ? pause_ms * 2 : ASK_AGAIN_MAX_MS;
        if (!is_current(agent, record, deadline))
            return TETHER_OK; /* the record has changed: the caller reads and judges the new one */
    }
    tether__log(TETHER_LOG_WARN, "rpc",
                "%s: start %llu of it has not answered at %s for %d ms (lease_ms): this start "
                "takes its place",
                record->name, (unsigned long long)record->incarnation, record->address, lease_ms);
    return TETHER_OK;
}
