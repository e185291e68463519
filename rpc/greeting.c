/* What comes in from outside: conns that peers dial, which are nobody's until their hello says
 * whose, and calls of clients that speak only gRPC.
 *
 * A conn has some seconds to say hello. The hello is judged before anything is kept of it: group,
 * token and names by what it says (session.h), whether the name is allowed here, and with mutual
 * TLS whether it is the one in the certificate. Then the conn becomes the peer's incoming stream; a
 * ghost of an earlier start does not take the place of a stream that is there.
 */
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "rpc/agent_internal.h"
#include "rpc/packed.h"

/* How long a peer that has dialled us may take to say who it is. */
#define HELLO_WITHIN_MS 10000

bool tether__name_is_allowed(const tether_agent *agent, const char *name)
{
    if (!agent->opts.allowed_peers)
        return true;
    for (size_t i = 0; i < agent->opts.n_allowed_peers; i++)
        if (strcmp(agent->opts.allowed_peers[i], name) == 0)
            return true;
    return false;
}

/* Waits for the first message of a conn that was accepted. */
struct greeting {
    struct tether__list node; /* under agent->mu */
    tether_agent *agent;
    struct tether__conn *conn;
    int64_t deadline;
    bool has_cert;        /* mutual TLS: then one of the names must be the worker's */
    char cert_names[512]; /* NUL-separated, ended by an empty one */
};

static bool cert_names_allow(const struct greeting *greeting, const char *name)
{
    if (!greeting->has_cert)
        return true;
    for (const char *it = greeting->cert_names; *it; it += strlen(it) + 1)
        if (strcmp(it, name) == 0)
            return true;
    return false;
}

static void greeting_forget(struct greeting *greeting)
{
    pthread_mutex_lock(&greeting->agent->mu);
    tether__list_remove(&greeting->node);
    pthread_mutex_unlock(&greeting->agent->mu);
}

int64_t tether__greetings_tick(tether_agent *agent, int64_t now)
{
    int64_t next = TETHER__NEVER;
    pthread_mutex_lock(&agent->mu);
    TETHER__LIST_FOR_EACH(node, &agent->greetings) {
        struct greeting *greeting = tether__list_entry(node, struct greeting, node);
        if (greeting->deadline <= now) { /* its closed() comes on the server's thread */
            tether__list_remove(node);
            greeting->conn->transport->ops->close(greeting->conn, false);
        } else if (greeting->deadline < next) {
            next = greeting->deadline;
        }
    }
    pthread_mutex_unlock(&agent->mu);
    return next;
}

static void greeting_closed(struct tether__conn *conn, tether_status status, const char *why)
{
    struct greeting *greeting = conn->userdata;
    (void)status, (void)why;
    if (greeting) {
        greeting_forget(greeting);
        tether__free(greeting);
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
    .closed = greeting_closed,
};

/* Says why, then ends the conn; at once if it takes too long. greeting_closed() frees the rest. */
static void refuse(struct greeting *greeting, const tether_error *why)
{
    struct tether__conn *conn = greeting->conn;
    Tether__Hello hello = TETHER__HELLO__INIT;
    Tether__Frame frame = TETHER__FRAME__INIT, *frames[] = {&frame};
    Tether__Batch batch = TETHER__BATCH__INIT;
    struct tether__packed packed;
    hello.version = TETHER__WIRE_VERSION;
    hello.refused = (int32_t)why->code;
    hello.reason = (char *)why->message;
    frame.body_case = TETHER__FRAME__BODY_HELLO;
    frame.hello = &hello;
    batch.frame = frames;
    batch.n_frame = 1;
    if (tether__pack(&packed, &batch.base) != TETHER_OK) {
        conn->transport->ops->close(conn, false);
        return;
    }
    conn->events = &refused_events;
    pthread_mutex_lock(&greeting->agent->mu);
    tether__list_push_back(&greeting->agent->greetings, &greeting->node);
    pthread_mutex_unlock(&greeting->agent->mu);
    conn->transport->ops->send(
        conn, &(struct tether__slice){packed.bytes.data, packed.bytes.len, NULL}, 1);
    conn->transport->ops->close(conn, true);
    tether__packed_fini(&packed);
}

/* Whether the peer would fare no better with another stream. */
static bool refused_for_good(tether_status status)
{
    return status != TETHER_OK && status != TETHER_ECANCELED && status != TETHER_ECORRUPT &&
           status != TETHER_ENOMEM && status != TETHER_EUNAVAILABLE;
}

static void greeting_message(struct tether__conn *conn, struct tether__slice message)
{
    struct greeting *greeting = conn->userdata;
    tether_agent *agent = greeting->agent;
    tether_buf body = TETHER_BUF_INIT;
    struct tether__hello_peek peek;
    struct tether__peer *peer = NULL;
    tether_error why = {0};
    greeting_forget(greeting); /* it has spoken: no more deadline */
    tether_status st = tether__hello_body(message, &body);
    if (st != TETHER_OK)
        tether_error_set(&why, st, "the first message was not a hello");
    if (st == TETHER_OK)
        st = tether__hello_peek(&agent->self, tether_buf_bytes(&body), &peek, &why);
    if (st == TETHER_EFENCED) /* it knows of a later start: not the peer is the ghost but we are */
        tether__agent_replaced(agent);
    if (st == TETHER_EFENCED || (st == TETHER_OK && atomic_load(&agent->replaced)))
        st = tether_error_set(&why, TETHER_EUNAVAILABLE, "this start of '%s' has been replaced",
                              agent->name);
    if (st == TETHER_OK && !tether__name_is_allowed(agent, peek.from_name))
        st = tether_error_set(&why, TETHER_EPERM,
                              "worker '%s' is not among the allowed_peers of '%s': add it there",
                              peek.from_name, agent->name);
    if (st == TETHER_OK && !cert_names_allow(greeting, peek.from_name))
        st = tether_error_set(&why, TETHER_EPERM,
                              "worker '%s' has a certificate of another name: put its own into "
                              "subjectAltName",
                              peek.from_name);
    if (st == TETHER_OK)
        st = tether__agent_peer(agent, peek.from_name, &peer, &why);
    struct tether__aftermath aftermath = {0};
    bool adopted = false;
    if (st == TETHER_OK && peer->is_self)
        tether_error_set(&why, TETHER_EINVAL, "worker '%s' has dialled itself", agent->name);
    if (st == TETHER_OK && !peer->is_self) {
        pthread_mutex_lock(&peer->mu);
        /* Judged before it takes the place of the stream that is there: a ghost must not cut it. */
        adopted = tether__link_is_free_locked(&peer->in, &why) &&
                  tether__session_check(&peer->session, tether_buf_bytes(&body), &why) == TETHER_OK;
        if (adopted) {
            tether__free(greeting);
            tether__link_accept_locked(&peer->in, conn, tether_buf_bytes(&body), &aftermath);
        }
        pthread_mutex_unlock(&peer->mu);
    }
    if (adopted) {
        tether__aftermath_settle(&aftermath);
        tether__agent_kick(agent, 0); /* a lease has begun to run */
    } else {
        tether__log(TETHER_LOG_WARN, "rpc", "%s: refused a stream: %s", agent->name, why.message);
        if (refused_for_good(why.code))
            refuse(greeting, &why);
        else /* overtaken, or noise: greeting_closed() frees the rest */
            conn->transport->ops->close(conn, false);
    }
    if (peer)
        tether__peer_release(peer);
    tether_buf_fini(&body);
}

static const struct tether__conn_events greeting_events = {
    .message = greeting_message,
    .closed = greeting_closed,
};

static void on_accepted(void *userdata, struct tether__conn *conn, const char *const *cert_names)
{
    struct greeting *greeting = tether__calloc(1, sizeof *greeting);
    conn->events = &greeting_events;
    conn->userdata = greeting;
    if (!greeting) {
        conn->transport->ops->close(conn, false);
        return;
    }
    greeting->agent = userdata;
    greeting->conn = conn;
    greeting->deadline = tether__deadline_in(greeting->agent->clock, HELLO_WITHIN_MS);
    pthread_mutex_lock(&greeting->agent->mu);
    tether__list_push_back(&greeting->agent->greetings, &greeting->node);
    pthread_mutex_unlock(&greeting->agent->mu);
    tether__agent_kick(greeting->agent, greeting->deadline);
    greeting->has_cert = cert_names != NULL;
    size_t at = 0;
    for (; cert_names && *cert_names; cert_names++) {
        size_t size = strlen(*cert_names) + 1;
        if (at + size >= sizeof greeting->cert_names)
            break;
        memcpy(greeting->cert_names + at, *cert_names, size);
        at += size;
    }
}

static tether_status on_admit(void *userdata,
                              tether_bytes token,
                              const char *const *cert_names,
                              tether_error *reterr)
{
    return tether__dispatch_admit(userdata, token, cert_names, reterr);
}

static void on_unary(void *userdata, struct tether__unary *unary)
{
    tether__dispatch_unary(userdata, unary);
}

const struct tether__transport_events tether__agent_transport_events = {
    on_accepted,
    on_admit,
    on_unary,
};
