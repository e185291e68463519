/* Accepts connections of peers and calls of plain gRPC clients. A connection belongs to no peer
 * until the handshake has shown which peer dialled it (handshake.h).
 *
 * Happy path: Hello1 → Hello2 → Hello3 → the conn becomes the peer's incoming stream, and the state
 * in Hello3 is the first that is heard on it.
 *
 * Failure modes: until the handshake is over, messages of the dialler change no state of a peer and
 * add no peer; only a valid name is logged. A conn that takes longer than HELLO_WITHIN_MS, or sends
 * anything else, is closed; the dialler is told the reason if another try would fail, too. admit.c
 * decides who is let in.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/list.h"
#include "base/log.h"
#include "base/log_limit.h"
#include "rpc/agent.h"
#include "rpc/agent/internal.h"
#include "rpc/agent/routes.h"
#include "rpc/handshake/handshake.h"
#include "rpc/handshake/pairing.h"
#include "rpc/peer/admission/accept.h"
#include "rpc/peer/admission/confirm.h"
#include "rpc/peer/peer.h"
#include "rpc/peer/session.h"
#include "rpc/peer/stream.h"
#include "rpc/serve/serve.h"
#include "rpc/transport/transport.h"
#include "rpc/wire/packed.h"
#include "rpc/wire/slice.h"
#include "rpc/wire/wire.h"

/* How long a peer that has dialled this worker may take for the whole handshake. */
#define HELLO_WITHIN_MS 10000

/* How many conns may be in their handshake at once; one more closes the oldest. */
#define MAX_PENDING 128

bool tether__name_is_allowed(const tether_agent *agent, const char *name)
{
    if (!agent->opts.allowed_peers)
        return true;
    for (size_t i = 0; i < agent->opts.n_allowed_peers; i++)
        if (strcmp(agent->opts.allowed_peers[i], name) == 0)
            return true;
    return false;
}

static bool observer_or_worker_is_allowed(const tether_agent *agent, const char *name)
{
    char certified[TETHER__MAX_NAME + 1];
    tether__name_certified(name, certified);
    return tether__name_is_allowed(agent, certified);
}

/* A conn that was accepted and has not finished its handshake. */
struct pending {
    struct tether__list node; /* under agent->mu */
    tether_agent *agent;
    struct tether__conn *conn;
    int64_t deadline;
    /* names in the dialler's certificate, each ended by a NUL, then an empty name; NULL without
     * mutual TLS */
    char *cert_names;
    bool sending; /* a send is under way: the transport has not called sent() yet */
    struct tether__handshake handshake;
};

static bool cert_names_allow(const struct pending *pending, const char *name)
{
    char certified[TETHER__MAX_NAME + 1];
    if (!pending->cert_names)
        return true;
    tether__name_certified(name, certified);
    for (const char *it = pending->cert_names; *it; it += strlen(it) + 1)
        if (strcmp(it, certified) == 0)
            return true;
    return false;
}

static void pending_free(struct pending *pending)
{
    tether__free(pending->cert_names);
    tether__free(pending);
}

static void pending_unlist_locked(struct pending *pending)
{
    if (!tether__list_empty(&pending->node))
        pending->agent->n_pending--;
    tether__list_remove(&pending->node);
}

static void pending_list_locked(struct pending *pending)
{
    tether__list_push_back(&pending->agent->pending_conns, &pending->node);
    pending->agent->n_pending++;
}

static void pending_forget(struct pending *pending)
{
    pthread_mutex_lock(&pending->agent->mu);
    pending_unlist_locked(pending);
    pthread_mutex_unlock(&pending->agent->mu);
}

/* Closes the conn. Its closed() event, on the server thread, frees the struct. */
static void pending_end_locked(struct pending *pending)
{
    pending_unlist_locked(pending);
    pending->conn->transport->ops->close(pending->conn, false);
}

int64_t tether__pending_conns_tick(tether_agent *agent, int64_t now)
{
    int64_t next = TETHER__NEVER;
    pthread_mutex_lock(&agent->mu);
    TETHER__LIST_FOR_EACH(node, &agent->pending_conns) {
        struct pending *pending = tether__list_entry(node, struct pending, node);
        if (pending->deadline <= now) {
            pending_end_locked(pending);
        } else if (pending->deadline < next) {
            next = pending->deadline;
        }
    }
    pthread_mutex_unlock(&agent->mu);
    return next;
}

static void pending_closed(struct tether__conn *conn, tether_status status, const char *why)
{
    struct pending *pending = conn->userdata;
    (void)status, (void)why;
    if (pending) {
        pending_forget(pending);
        pending_free(pending);
    }
    conn->transport->ops->conn_release(conn);
}

static void ignore_message(struct tether__conn *conn, struct tether__slice message)
{
    (void)conn, (void)message;
}

static void ignore_sent(struct tether__conn *conn)
{
    (void)conn;
}

static const struct tether__conn_events refused_events = {
    .message = ignore_message,
    .sent = ignore_sent,
    .closed = pending_closed,
};

/* Sends a message of the handshake. Returns false if another one is being sent, or memory ran out.
 */
static bool pending_send(struct pending *pending, Tether__Frame *frame)
{
    struct tether__packed packed;
    struct tether__conn *conn = pending->conn;
    if (pending->sending || tether__handshake_pack(frame, &packed) != TETHER_OK)
        return false;
    pending->sending = !conn->transport->ops->send(
        conn, &(struct tether__slice){packed.bytes.data, packed.bytes.len, NULL}, 1);
    tether__packed_fini(&packed);
    return true;
}

/* Whether the dialler should learn the reason of a refusal: not if simply dialling again may
 * succeed, nor if it sent a malformed message. */
static bool is_worth_telling(tether_status status)
{
    return status != TETHER_ECORRUPT && status != TETHER_ENOMEM && status != TETHER_EUNAVAILABLE;
}

/* Unknown clients can cause as many refusals as they like, so the log has a limit. */
static void log_refusal(tether_agent *agent, const tether_error *why)
{
    unsigned left_out;
    if (tether__log_limit_passes(&agent->refusals, tether__clock_now_ns(agent->clock), &left_out))
        tether__log(TETHER_LOG_WARN, "rpc",
                    "%s: refused a stream: %s (and %u more since this was last logged)",
                    agent->name, why->message, left_out);
}

/* Logs `why`, sends `refusal` (NULL: nothing) and closes the conn once that is sent, or at its
 * deadline. pending_closed() frees the struct. */
static void refuse(struct pending *pending, const tether_error *why, Tether__Frame *refusal)
{
    struct tether__conn *conn = pending->conn;
    log_refusal(pending->agent, why);
    bool sends_reason = refusal && is_worth_telling(why->code) && pending_send(pending, refusal);
    conn->events = &refused_events;
    pending_forget(pending);
    /* stay listed, so that the deadline of the handshake still closes the conn */
    pthread_mutex_lock(&pending->agent->mu);
    pending_list_locked(pending);
    pthread_mutex_unlock(&pending->agent->mu);
    conn->transport->ops->close(conn, sends_reason);
}

/* Whether this worker is leaving the group: then no peer is admitted, and the conn is closed
 * without a reason. */
static bool is_parting(const tether_agent *agent, tether_error *ret_why)
{
    if (!tether__agent_is_parting(agent))
        return false;
    tether_error_set(ret_why, TETHER_EUNAVAILABLE, "worker '%s' is leaving the group", agent->name);
    return true;
}

/* ---- The first message ---- */

static void on_hello1(struct pending *pending, const Tether__Hello1 *hello)
{
    tether_agent *agent = pending->agent;
    Tether__Hello2 answer;
    Tether__Frame frame = TETHER__FRAME__INIT;
    tether_error why = {0};
    tether_status st = tether__handshake_on_hello1(&pending->handshake, hello, &answer, &why);
    const char *name = pending->handshake.peer_name;
    frame.body_case = TETHER__FRAME__BODY_HELLO2;
    frame.hello2 = &answer;
    if (st == TETHER_OK && atomic_load(&agent->replaced))
        st = tether_error_set(&why, TETHER_EUNAVAILABLE, "this start of '%s' has been replaced",
                              agent->name);
    if (st == TETHER_OK && is_parting(agent, &why))
        st = why.code;
    if (st == TETHER_OK && !cert_names_allow(pending, name))
        st = tether_error_set(&why, TETHER_EPERM,
                              "worker '%s' has a certificate of another name: put its own into "
                              "subjectAltName",
                              name);
    if (st != TETHER_OK) {
        answer.refused = (int32_t)why.code;
        answer.reason = why.message;
        refuse(pending, &why, &frame);
    } else if (!pending_send(pending, &frame)) {
        pending->conn->transport->ops->close(pending->conn, false);
    }
}

/* ---- The third message ---- */

/* Whether the dialler's identity is proved: by the token, its certificate or the kernel's
 * credentials. */
static bool is_proved(const struct pending *pending)
{
    return pending->handshake.proved || pending->cert_names || pending->conn->transport->vouches;
}

/* Whether the dialler says that it knows a later start of this worker. */
static bool says_that_we_are_replaced(const tether_agent *agent, const Tether__State *state)
{
    return state->refused == TETHER_EFENCED || state->to_incarnation > agent->self.incarnation;
}

static void on_hello3(struct pending *pending, const Tether__Hello3 *hello)
{
    tether_agent *agent = pending->agent;
    struct tether__conn *conn = pending->conn;
    struct tether__peer *peer = NULL;
    Tether__State refusal = TETHER__STATE__INIT;
    tether_error why = {0};
    bool adopted = false, proved = is_proved(pending);
    tether_status st = tether__handshake_on_hello3(&pending->handshake, hello, &why);
    proved |= pending->handshake.proved;
    const char *name = pending->handshake.peer_name;
    if (st == TETHER_OK && !observer_or_worker_is_allowed(agent, name))
        st = tether_error_set(&why, TETHER_EPERM,
                              "worker '%s' is not among the allowed_peers of '%s': add it there",
                              name, agent->name);
    if (st == TETHER_OK && says_that_we_are_replaced(agent, hello->state)) {
        st = tether_error_set(&why, TETHER_EUNAVAILABLE, "worker '%s' knows a later start of '%s'",
                              name, agent->name);
        tether__agent_on_replaced(agent);
    }
    if (st == TETHER_OK)
        st = tether__admit_peer(agent, &pending->handshake, proved, &peer, &refusal.to_incarnation,
                                &why);
    if (st == TETHER_OK) {
        pending_forget(pending);
        tether__peer_lock(peer);
        /* All checks come before the new conn replaces the present stream. */
        adopted = !is_parting(agent, &why) &&
                  tether__stream_is_free_locked(&peer->session->in, &why) &&
                  tether__admit_locked(peer, hello->state, &why);
        refusal.dial = peer->pairing.peer_dial;
        if (adopted) {
            bool sending = pending->sending;
            pending_free(pending);
            if (conn->transport->ops->proved)
                conn->transport->ops->proved(conn);
            tether__stream_accept_locked(&peer->session->in, conn, sending, proved, hello->state);
        }
        tether__peer_unlock(peer);
    }
    if (!adopted) {
        Tether__Frame frame = TETHER__FRAME__INIT;
        refusal.refused = (int32_t)why.code;
        refusal.reason = why.message;
        frame.body_case = TETHER__FRAME__BODY_STATE;
        frame.state = &refusal;
        refuse(pending, &why, &frame);
    }
    if (peer)
        tether__peer_release(peer);
}

static void pending_message(struct tether__conn *conn, struct tether__slice message)
{
    struct pending *pending = conn->userdata;
    const Tether__Frame *frame = NULL;
    tether_error why = {0};
    TETHER__ARENA(arena, 1024);
    tether_status st = tether__handshake_read(message, &arena, &frame, &why);
    if (st == TETHER_OK && frame->body_case == TETHER__FRAME__BODY_HELLO1)
        on_hello1(pending, frame->hello1);
    else if (st == TETHER_OK && frame->body_case == TETHER__FRAME__BODY_HELLO3)
        on_hello3(pending, frame->hello3);
    else if (st == TETHER_OK)
        tether_error_set(&why, TETHER_ECORRUPT, "a message came in place of the handshake");
    if (why.code != TETHER_OK)
        refuse(pending, &why, NULL);
    tether__arena_fini(&arena);
}

static void pending_sent(struct tether__conn *conn)
{
    struct pending *pending = conn->userdata;
    pending->sending = false;
}

static const struct tether__conn_events pending_events = {
    .message = pending_message,
    .sent = pending_sent,
    .closed = pending_closed,
};

/* Copies all names of the certificate; false: no memory. */
static bool copy_cert_names(struct pending *pending, const char *const *names)
{
    size_t size = 1;
    for (const char *const *name = names; *name; name++)
        size += strlen(*name) + 1;
    char *to = pending->cert_names = tether__calloc(1, size);
    for (; to && *names; names++)
        to = stpcpy(to, *names) + 1;
    return pending->cert_names;
}

static void on_accepted(void *userdata, struct tether__conn *conn, const char *const *cert_names)
{
    tether_agent *agent = userdata;
    struct pending *pending = tether__calloc(1, sizeof *pending);
    conn->events = &pending_events;
    conn->userdata = pending;
    if (!pending) {
        conn->transport->ops->close(conn, false);
        return;
    }
    uint8_t nonce[TETHER__NONCE_SIZE];
    if (agent->self.token)
        arc4random_buf(nonce, sizeof nonce);
    tether__handshake_init(&pending->handshake, &agent->self, false, "",
                           agent->self.token ? nonce : NULL);
    pending->agent = agent;
    pending->conn = conn;
    pending->deadline = tether__deadline_in(agent->clock, HELLO_WITHIN_MS);
    tether__list_init(&pending->node);
    pthread_mutex_lock(&agent->mu);
    pending_list_locked(pending);
    if (agent->n_pending > MAX_PENDING)
        pending_end_locked(tether__list_entry(agent->pending_conns.next, struct pending, node));
    pthread_mutex_unlock(&agent->mu);
    tether__agent_kick(agent, pending->deadline);
    if (cert_names && !copy_cert_names(pending, cert_names))
        conn->transport->ops->close(conn, false);
}

static tether_status on_admit(void *userdata,
                              tether_bytes token,
                              const char *const *cert_names,
                              bool *ret_proved,
                              tether_error *reterr)
{
    return tether__dispatch_admit(userdata, token, cert_names, ret_proved, reterr);
}

static void on_unary(void *userdata, struct tether__unary *unary)
{
    tether__dispatch_unary(userdata, unary);
}

/* Whether plain gRPC clients may call. False as soon as shutdown() is called (serve/receive.c). */
static bool on_is_serving(void *userdata)
{
    const tether_agent *agent = userdata;
    int state = atomic_load(&agent->state);
    return state == TETHER__AGENT_JOINING || state == TETHER__AGENT_RUNNING;
}

static bool on_begin_wanted(void *userdata)
{
    return tether__network_want(userdata);
}

const struct tether__transport_events tether__agent_transport_events = {
    on_accepted, on_admit, on_unary, on_is_serving, on_begin_wanted,
};
