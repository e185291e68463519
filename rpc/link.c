/* One stream with a peer: handshake and state, sending what the lane has, receiving.
 *
 * Happy path, out: dial → opened: we send Hello1 → the peer answers with Hello2 → we send Hello3
 * with our state → the peer says its own → up: the lane goes on from where the peer says it is.
 * Happy path, in: greeting.c has done the handshake → the state in Hello3 → we say ours → up.
 *
 * While up, the thread that handles a received batch has a *flush scope*: the frames that it queues
 * meanwhile leave in one message at the end of the batch. Frames that other threads queue on the
 * same link do not wait for that: an inline function may hold the receiving thread for long.
 *
 * Failure modes: a conn that closes leaves the lane as it is, to be resumed by the next one; a
 * malformed batch closes the conn; a state that does not fit is answered or refused as session.h
 * says. A refusal ends this conn and nothing else, unless the peer has proved who it is, or there
 * is no session to lose (on_reject_locked()). A conn that is no longer its link's (replaced,
 * fenced) is ignored until it has closed. One that follows a conn of the other carrier, whose
 * thread is still at a message, has to come again: messages of a link are handled one at a time, in
 * order.
 *
 * Lock rule: peer->mu is held throughout, except while a message is being handled (deliver()).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "protos/rpc.pb-c.h"
#include "rpc/agent_internal.h"
#include "rpc/packed.h"

/* How long an acknowledgement may wait for something to ride on. */
#define ACK_DELAY_NS (25 * TETHER__NS_PER_MS)

/* Before a stream is dialled again that was closed for want of memory. */
#define NO_MEMORY_PAUSE_NS (20 * TETHER__NS_PER_MS)

/* So many calls leave without waiting for more: the peer can begin with them while this side makes
 * the next, and a message's own cost is small beside theirs. */
#define MAX_HELD_BACK 32

static const struct tether__conn_events link_events;

static int64_t now_of(const struct tether__link *link)
{
    return tether__clock_now_ns(link->peer->agent->clock);
}

static bool may_write(const struct tether__link *link)
{
    return link->conn && link->up && !link->sending && link->said == link->peer->session.epoch;
}

/* Writes one message, if there is any. */
static bool write_one_locked(struct tether__link *link, bool ack_now)
{
    struct tether__lane_out out;
    if (link->peer->agent->ext)
        tether__ext_ops->before_write_locked(link->peer->agent->ext, link->peer, link);
    if (!tether__lane_pull(&link->lane, ack_now, &out))
        return false;
    link->held_back = 0;
    link->ack_due = TETHER__NEVER;
    link->peer->metrics.messages_sent++;
    for (size_t i = 0; i < out.n_pieces; i++)
        link->peer->metrics.bytes_sent += out.pieces[i].len;
    link->sending = !link->conn->transport->ops->send(link->conn, out.pieces, out.n_pieces);
    return true;
}

void tether__link_flush_locked(struct tether__link *link, bool ack_now)
{
    while (may_write(link) && write_one_locked(link, ack_now))
        ack_now = false;
}

bool tether__agent_has_unflushed(const void *userdata)
{
    const tether_agent *agent = userdata;
    return atomic_load(&agent->unflushed) != NULL;
}

/* All of them, first come first: who makes an object and passes it on has the owner hear of it
 * before the third asks for it. They are the taker's until it says that they are not. */
static struct tether__link *take_unflushed(tether_agent *agent)
{
    struct tether__link *stack = atomic_exchange(&agent->unflushed, NULL), *queue = NULL;
    while (stack) {
        struct tether__link *link = stack;
        stack = link->next_unflushed;
        link->next_unflushed = queue;
        queue = link;
    }
    return queue;
}

void tether__agent_flush(void *userdata)
{
    tether_agent *agent = userdata;
    if (!tether__agent_has_unflushed(agent))
        return;
    struct tether__link *next = take_unflushed(agent);
    while (next) {
        struct tether__link *link = next;
        pthread_mutex_lock(&link->peer->mu);
        next = link->next_unflushed; /* its own again from here on */
        link->is_unflushed = false;
        tether__link_flush_locked(link, false);
        pthread_mutex_unlock(&link->peer->mu);
    }
}

/* Peers live as long as the agent, and with them their links. */
static void push_unflushed_locked(struct tether__link *link)
{
    _Atomic(struct tether__link *) *top = &link->peer->agent->unflushed;
    if (link->is_unflushed)
        return;
    link->is_unflushed = true;
    link->next_unflushed = atomic_load(top);
    while (!atomic_compare_exchange_weak(top, &link->next_unflushed, link)) {
    }
}

/* An inline function on the server's thread does neither, and would wait for the background thread
 * to come by. */
static bool polls_or_may_wait(const tether_agent *agent)
{
    const struct tether__progress *polling = tether__current.polling;
    return !tether__current.must_not_block || polling == &agent->near.progress ||
           polling == &agent->far.progress;
}

/* Writes now, unless this thread has a flush scope: then the frames that it queues are written
 * once, after the whole batch. receive_locked() flushes the link that the batch came by. */
static void flush_in_time_locked(struct tether__link *link)
{
    const struct tether__link *receiving = tether__current.receiving;
    if (!receiving || receiving->peer->agent != link->peer->agent) {
        tether__link_flush_locked(link, false);
    } else if (receiving != link) {
        push_unflushed_locked(link);
        tether__current.left_unflushed = true;
    }
}

/* A thread that makes many calls and then waits has them leave together when it does: a write of
 * its own for each costs more than everything else in it. Only while threads of the program poll,
 * and only when there are calls in flight that such a thread may be waiting for, or when nobody can
 * wait for this one: what remote() makes is first used in a message to the same peer.
 *
 * That threads poll is looked at again when the link can be found: the background thread, when it
 * takes over, says so first and then looks for a link, and may have found none. */
void tether__link_flush_soon_locked(struct tether__link *link, bool nobody_waits)
{
    struct tether__peer *peer = link->peer;
    struct tether__progress *progress = tether__peer_progress(peer);
    _Atomic bool *threads_lead = &progress->threads_lead;
    bool wait = (peer->n_calls > 1 || nobody_waits) && ++link->held_back < MAX_HELD_BACK &&
                polls_or_may_wait(peer->agent) &&
                atomic_load_explicit(threads_lead, memory_order_relaxed);
    if (wait) {
        push_unflushed_locked(link);
        wait = atomic_load(threads_lead);
        tether__progress_frames_deferred(progress);
    }
    if (!wait)
        flush_in_time_locked(link);
}

/* Whoever polls comes to what waits to be written, before it blocks: it knows best when. */
static void flush_polled_locked(struct tether__link *link)
{
    if (!link->is_unflushed)
        tether__link_flush_locked(link, false);
}

tether_status tether__link_send_locked(struct tether__link *link,
                                       uint32_t kind,
                                       tether_bytes header,
                                       struct tether__slice payload,
                                       struct tether__lane_watch *watch)
{
    tether_status st = tether__lane_send(&link->lane, kind, header, payload, watch);
    if (st == TETHER_OK)
        flush_in_time_locked(link);
    return st;
}

/* The conn is let go; its closed() still comes and gives the memory and the peer back. */
static void drop_locked(struct tether__link *link, bool polite)
{
    struct tether__conn *conn = link->conn;
    if (!conn)
        return;
    link->conn = NULL;
    link->up = link->sending = false;
    link->ack_due = TETHER__NEVER;
    link->epoch++;
    link->handshake = tether__free(link->handshake);
    tether__lane_disconnected(&link->lane);
    conn->transport->ops->close(conn, polite);
}

void tether__link_drop_locked(struct tether__link *link)
{
    drop_locked(link, false);
}

/* Not of this conn, but of the peer there may be more. */
static void drop_and_redial_locked(struct tether__link *link)
{
    tether__link_drop_locked(link);
    if (link == &link->peer->out)
        tether__peer_connect_locked(link->peer);
}

static void adopt_conn_locked(struct tether__link *link, struct tether__conn *conn)
{
    tether__link_drop_locked(link);
    tether__peer_retain(link->peer); /* given back in on_closed() */
    link->conn = conn;
    link->up = link->sending = link->proved = false;
    link->peer_incarnation = 0;
    link->said = 0;
    link->epoch++;
    link->heard_at = link->pinged_at = now_of(link);
}

void tether__link_dial_locked(struct tether__link *link,
                              struct tether__carrier *carrier,
                              const char *address)
{
    struct tether__transport *transport = carrier->transport;
    tether__peer_retain(link->peer);
    struct tether__conn *conn = transport->ops->dial(transport, address, &link_events, link);
    if (conn) {
        adopt_conn_locked(link, conn);
        link->dial++;
    }
    tether__peer_release(link->peer);
}

/* Sends one frame alone in its batch, outside of the lane's numbering. False: no memory; the peer
 * will be dialled again. */
static bool send_alone_locked(struct tether__link *link, Tether__Frame *frame)
{
    struct tether__packed packed;
    if (tether__handshake_pack(frame, &packed) != TETHER_OK) {
        drop_and_redial_locked(link);
        return false;
    }
    struct tether__slice piece = {packed.bytes.data, packed.bytes.len, NULL};
    link->sending = !link->conn->transport->ops->send(link->conn, &piece, 1);
    tether__packed_fini(&packed);
    return true;
}

/* The dialler's first message. */
static void begin_handshake_locked(struct tether__link *link)
{
    struct tether__peer *peer = link->peer;
    const struct tether__self *self = &peer->agent->self;
    uint8_t nonce[TETHER__NONCE_SIZE];
    link->handshake = tether__malloc(sizeof *link->handshake);
    if (!link->handshake) {
        drop_and_redial_locked(link);
        return;
    }
    if (self->token)
        arc4random_buf(nonce, sizeof nonce);
    tether__handshake_init(link->handshake, self, true, peer->name, self->token ? nonce : NULL);
    Tether__Hello1 hello = tether__handshake_begin(link->handshake);
    Tether__Frame frame = TETHER__FRAME__INIT;
    frame.body_case = TETHER__FRAME__BODY_HELLO1;
    frame.hello1 = &hello;
    send_alone_locked(link, &frame);
}

/* Sends a state: on its own, or as the end of the handshake. */
static bool send_state_locked(struct tether__link *link, Tether__State *state)
{
    Tether__Frame frame = TETHER__FRAME__INIT;
    Tether__Hello3 hello;
    frame.body_case = TETHER__FRAME__BODY_STATE;
    frame.state = state;
    if (link->handshake) {
        hello = tether__handshake_finish(link->handshake, state);
        frame.body_case = TETHER__FRAME__BODY_HELLO3;
        frame.hello3 = &hello;
    }
    if (!send_alone_locked(link, &frame))
        return false;
    link->handshake = tether__free(link->handshake);
    return true;
}

/* Says the state, unless the last one on this stream named the same numbers. It goes ahead of
 * everything; behind a send that is under way, it goes next. */
static void say_state_locked(struct tether__link *link)
{
    uint64_t epoch = link->peer->session.epoch;
    bool is_greeting = link->handshake && link->handshake->phase != TETHER__HANDSHAKE_DONE;
    if (link->said == epoch || link->sending || is_greeting)
        return;
    Tether__State state =
        tether__session_state(&link->peer->session, link->dial, tether__lane_applied(&link->lane));
    if (send_state_locked(link, &state))
        link->said = epoch;
}

/* Both ends agree: the lane goes on. False: they do not, after all. */
static bool resume_locked(struct tether__link *link, uint64_t received)
{
    struct tether__peer *peer = link->peer;
    if (tether__lane_connected(&link->lane, received) != TETHER_OK)
        return false;
    link->up = true;
    peer->met_epoch = peer->session_epoch;
    if (peer->named_by)
        atomic_fetch_sub(&peer->named_by->n_named, 1);
    peer->named_by = NULL;
    if (link == &peer->out)
        peer->near_failed = false;
    peer->metrics.connects++;
    atomic_store(&peer->incarnation, peer->session.peer_incarnation);
    atomic_store(&peer->id, peer->session.peer_id);
    peer->backoff_ms = 0;
    peer->left = peer->fenced = false;
    peer->last_error[0] = '\0';
    peer->refusal.code = TETHER_OK;
    link->heard_at = now_of(link);
    tether__session_heard(&peer->session, link->heard_at);
    tether__log(TETHER_LOG_DEBUG, "rpc", "%s: %s stream with '%s' is up", peer->agent->name,
                link == &peer->out ? "outgoing" : "incoming", peer->name);
    return true;
}

/* The peer does not want this stream, or we do not want the peer.
 *
 * When a refusal (TETHER_EPERM, TETHER_EAUTH) has come twice, the second time where the directory
 * has just sent us, calls need not wait for anything. That holds for a peer that has proved who it
 * is; and, since a wrong token cannot be told apart from an impostor, where no session is lost by
 * it: who sits on the port of a dead worker may then have calls to it fail sooner, and with another
 * error than TETHER_EUNAVAILABLE, no more. */
static void on_reject_locked(struct tether__link *link,
                             const struct tether__state_result *result,
                             const tether_error *why,
                             struct tether__aftermath *ret_aftermath)
{
    struct tether__peer *peer = link->peer;
    bool has_session = peer->met_epoch == peer->session_epoch;
    bool counts = link->proved || !has_session;
    bool again = result->refused && counts && peer->refusal.code == why->code;
    snprintf(peer->last_error, sizeof peer->last_error, "%.180s", why->message);
    peer->refusal = *why;
    if (result->replaced)
        tether__agent_told_replaced(peer->agent, link->proved);
    if (link == &peer->out && (again || (result->replaced && link->proved))) {
        tether__peer_give_up_locked(peer, why->code, "", ret_aftermath);
        peer->refusal.code = TETHER_OK;
    } else {
        if (link == &peer->out)
            peer->record_is_old = true;
        drop_and_redial_locked(link);
    }
}

/* The other end is a stale start of the peer. It should know, if it can believe us. */
static void tell_stale_locked(struct tether__link *link, uint64_t known)
{
    Tether__State refusal = TETHER__STATE__INIT;
    refusal.from_incarnation = link->peer->agent->self.incarnation;
    refusal.to_incarnation = known;
    refusal.refused = TETHER_EFENCED;
    refusal.reason = (char *)"a later start of this worker has replaced it";
    snprintf(link->peer->last_error, sizeof link->peer->last_error,
             "an earlier start of it answers at its address");
    link->peer->record_is_old = true;
    if (!link->sending && send_state_locked(link, &refusal))
        drop_locked(link, true);
    else
        tether__link_drop_locked(link);
    tether__peer_connect_locked(link->peer);
}

/* The listener's answer: from here on both know who the other is, or says it is. */
static void on_hello2_locked(struct tether__link *link,
                             const Tether__Hello2 *hello,
                             struct tether__aftermath *ret_aftermath)
{
    struct tether__peer *peer = link->peer;
    struct tether__handshake *handshake = link->handshake;
    tether_error why = {0};
    tether_status st = tether__handshake_on_hello2(handshake, hello, &why);
    link->proved |= handshake->proved;
    if (st != TETHER_OK) {
        tether__log(TETHER_LOG_WARN, "rpc", "%s: refused a stream: %s", peer->agent->name,
                    why.message);
        on_reject_locked(
            link,
            &(struct tether__state_result){.verdict = TETHER__STATE_REJECT,
                                           .refused = st == TETHER_EPERM || st == TETHER_EAUTH},
            &why, ret_aftermath);
        return;
    }
    uint64_t known = tether__peer_known_start_locked(peer);
    switch (tether__handshake_belief(link->proved, handshake->peer_incarnation, known)) {
        case TETHER__BELIEVED:
            link->peer_incarnation = handshake->peer_incarnation;
            say_state_locked(link);
            break;
        case TETHER__UNCONFIRMED: /* the directory is asked before the next dial */
            snprintf(peer->last_error, sizeof peer->last_error,
                     "another start of it than the directory's answers at its address");
            peer->record_is_old = true;
            drop_and_redial_locked(link);
            break;
        case TETHER__STALE:
            tell_stale_locked(link, known);
            break;
    }
}

/* Takes the peer's state. What a new session leaves to be done is in `ret_aftermath`. */
static void on_state_locked(struct tether__link *link,
                            const Tether__State *state,
                            struct tether__aftermath *ret_aftermath)
{
    struct tether__peer *peer = link->peer;
    tether_error why = {0};
    if (!state->refused && state->from_incarnation != link->peer_incarnation) {
        tether__log(TETHER_LOG_WARN, "rpc", "%s: '%s' speaks for another start than its own",
                    peer->agent->name, peer->name);
        drop_and_redial_locked(link);
        return;
    }
    struct tether__state_result result = tether__session_on_state(&peer->session, state, &why);
    atomic_store(&peer->fences, tether__session_fences(&peer->session));
    if (result.verdict == TETHER__STATE_REJECT) {
        tether__log(TETHER_LOG_WARN, "rpc", "%s: refused a stream: %s", peer->agent->name,
                    why.message);
        link->dial = tether__session_next_dial(link->dial, state);
        on_reject_locked(link, &result, &why, ret_aftermath);
        return;
    }
    if (tether__state_fences(result.verdict)) {
        struct tether__conn *conn = link->conn;
        bool restarted = result.verdict == TETHER__STATE_FENCED;
        link->conn = NULL; /* this one belongs to the new session: it stays */
        tether__peer_end_session_locked(
            peer, restarted ? TETHER_EUNAVAILABLE : TETHER_EFENCED,
            restarted ? "it was restarted" : "it had given this worker up", ret_aftermath);
        link->conn = conn;
    }
    if (result.up && !resume_locked(link, result.received)) {
        if (ret_aftermath->peer) { /* a session has just ended: that is enough for one state */
            drop_and_redial_locked(link);
            return;
        }
        tether__session_fence(&peer->session); /* one of both has lost its memory */
        tether__peer_end_session_locked(peer, TETHER_EUNAVAILABLE, "it does not remember us",
                                        ret_aftermath);
        return;
    }
    if (!result.up) {
        link->up = false;
        tether__lane_disconnected(&link->lane);
    }
    say_state_locked(link);
    tether__link_flush_locked(link, false);
}

/* Whether the peer asks for something that it gets a reply to. */
static bool asks(const struct tether__inbound *message)
{
    return message->kind == TETHER__FRAME_CALL || message->kind == TETHER__FRAME_FETCH ||
           message->kind == TETHER__FRAME_FORK_REQUEST;
}

/* Handles one message of the peer, without the lock. A fence meanwhile stops the receive. */
static tether_status deliver(void *userdata, const struct tether__inbound *message)
{
    struct tether__link *link = userdata;
    struct tether__peer *peer = link->peer;
    uint64_t epoch = link->epoch, session = peer->session_epoch;
    bool farewell = false;
    size_t unread = asks(message) ? link->lane.unacked_bytes : 0;
    enum tether__outcome outcome = TETHER__DONE;
    pthread_mutex_unlock(&peer->mu);
    switch (message->kind) {
        case TETHER__FRAME_REPLY:
            outcome = tether__call_on_reply(peer, session, message);
            break;
        case TETHER__FRAME_CALL:
            outcome = tether__dispatch_call(peer, session, message, unread);
            break;
        case TETHER__FRAME_CANCEL:
            outcome = tether__dispatch_cancel(peer, message);
            break;
        case TETHER__FRAME_GOODBYE:
            farewell = true;
            break;
        default: /* what nobody understands, a newer peer may say */
            if (peer->agent->ext)
                outcome = tether__ext_ops->frame(peer->agent->ext, peer, session, message, unread);
            break;
    }
    if (farewell)
        tether__peer_fence(peer, "it has left the group");
    if (unread > tether__most_unread_asking(peer->agent))
        tether__peer_fence(peer, "it sends requests and does not read the replies");
    if (outcome == TETHER__MALFORMED)
        tether__peer_fence(peer, "it sent a message that cannot be read");
    pthread_mutex_lock(&peer->mu);
    if (link->epoch != epoch)
        return TETHER_ECANCELED;
    /* The lane resends a message that it got TETHER_ENOMEM for. */
    return outcome == TETHER__NO_MEMORY ? TETHER_ENOMEM : TETHER_OK;
}

static bool is_unanswered_ping(const struct tether__inbound *message)
{
    return message->kind == TETHER__FRAME_PING && message->header.len == 0;
}

/* Hello and ping are between the links; everything else is for the layers above. */
static tether_status deliver_any(void *userdata, const struct tether__inbound *message)
{
    struct tether__link *link = userdata;
    uint64_t epoch = link->epoch;
    if (message->kind == TETHER__FRAME_STATE) {
        struct tether__aftermath aftermath = {0};
        const void *state;
        TETHER__ARENA(arena, 512);
        tether_status st =
            tether__wire_unpack(&tether__state__descriptor, message->header, &arena, &state);
        if (st == TETHER_OK)
            on_state_locked(link, state, &aftermath);
        pthread_mutex_unlock(&link->peer->mu);
        tether__arena_fini(&arena);
        tether__aftermath_settle(&aftermath);
        pthread_mutex_lock(&link->peer->mu);
        return link->epoch != epoch ? TETHER_ECANCELED : st;
    }
    if (message->kind >= TETHER__FRAME_HELLO1 && message->kind <= TETHER__FRAME_HELLO3)
        return TETHER_ECORRUPT;
    if (message->kind != TETHER__FRAME_PING)
        return deliver(userdata, message);
    if (is_unanswered_ping(message)) {
        static const uint8_t answer[] = {0x08, 0x01}; /* Ping{answer: true} */
        tether__lane_trim(&link->lane);               /* it has heard nothing of us for a while */
        tether__lane_send_unnumbered(&link->lane, TETHER__FRAME_PING,
                                     tether_bytes_of(answer, sizeof answer));
    }
    return TETHER_OK;
}

static void receive_locked(struct tether__link *link, struct tether__slice message)
{
    struct tether__peer *peer = link->peer;
    tether_error why = {0};
    uint64_t epoch = link->epoch;
    peer->metrics.messages_received++;
    peer->metrics.bytes_received += message.len;
    link->heard_at = now_of(link);
    tether__session_heard(&peer->session, link->heard_at);
    struct tether__link *outer = tether__current.receiving;
    tether__current.receiving = link;
    link->receiving = true;
    tether_status st = tether__lane_receive(&link->lane, message, deliver_any, link, &why);
    link->receiving = false;
    tether__current.receiving = outer;
    if (link->epoch != epoch) {
        tether__link_flush_locked(link, false);
        return;
    }
    if (st != TETHER_OK) {
        bool no_memory = st == TETHER_ENOMEM && !why.message[0];
        tether__log(TETHER_LOG_WARN, "rpc", "%s: closing the stream with '%s': %s",
                    peer->agent->name, peer->name,
                    no_memory ? "no memory for what came, it must come again" : why.message);
        drop_and_redial_locked(link);
        if (no_memory && peer->next_dial != TETHER__NEVER)
            peer->next_dial += NO_MEMORY_PAUSE_NS;
        return;
    }
    flush_polled_locked(link);
    if (link->ack_due == TETHER__NEVER && tether__lane_owes_ack(&link->lane))
        link->ack_due = now_of(link) + ACK_DELAY_NS;
}

bool tether__link_is_free_locked(const struct tether__link *link, tether_error *ret_why)
{
    if (link->receiving)
        tether_error_set(
            ret_why, TETHER_EUNAVAILABLE,
            "a message of '%s' is still being handled, which came by the stream before",
            link->peer->name);
    return !link->receiving;
}

/* With mutual TLS both ends must be who they are taken for: the address leads to some worker that
 * our CA has signed, its certificate says to which. */
static bool is_of_peer(const struct tether__peer *peer, const char *const *cert_names)
{
    if (!tether__has_mutual_tls(peer->agent))
        return true;
    for (; cert_names && *cert_names; cert_names++)
        if (strcmp(*cert_names, peer->name) == 0)
            return true;
    return false;
}

static void on_opened(struct tether__conn *conn, const char *const *cert_names)
{
    struct tether__link *link = conn->userdata;
    struct tether__peer *peer = link->peer;
    struct tether__aftermath aftermath = {0};
    pthread_mutex_lock(&peer->mu);
    if (link->conn == conn && is_of_peer(peer, cert_names)) {
        link->proved = conn->transport->vouches || tether__has_mutual_tls(peer->agent);
        link->heard_at = now_of(link);
        begin_handshake_locked(link);
    } else if (link->conn == conn) {
        tether_error why;
        tether_error_set(&why, TETHER_EPERM,
                         "it has a certificate of another name: put its own into subjectAltName");
        on_reject_locked(link, &(struct tether__state_result){.refused = true}, &why, &aftermath);
    }
    int64_t next_dial = peer->next_dial;
    pthread_mutex_unlock(&peer->mu);
    tether__aftermath_settle(&aftermath);
    tether__agent_kick(peer->agent, next_dial);
}

static void flush_what_was_left(tether_agent *agent)
{
    if (!tether__current.left_unflushed)
        return;
    tether__current.left_unflushed = false;
    tether__agent_flush(agent);
}

/* On a stream that is not up: part of the handshake, or a state. */
static void first_message_locked(struct tether__link *link,
                                 struct tether__slice message,
                                 struct tether__aftermath *ret_aftermath)
{
    const Tether__Frame *frame = NULL;
    tether_error why = {0};
    TETHER__ARENA(arena, 1024);
    tether_status st = tether__handshake_read(message, &arena, &frame, &why);
    if (st == TETHER_OK && link->handshake && frame->body_case == TETHER__FRAME__BODY_HELLO2)
        on_hello2_locked(link, frame->hello2, ret_aftermath);
    else if (st == TETHER_OK && !link->handshake && frame->body_case == TETHER__FRAME__BODY_STATE &&
             tether__link_is_free_locked(link, &why))
        on_state_locked(link, frame->state, ret_aftermath);
    else
        drop_and_redial_locked(link);
    tether__arena_fini(&arena);
}

static void on_message(struct tether__conn *conn, struct tether__slice message)
{
    struct tether__link *link = conn->userdata;
    struct tether__peer *peer = link->peer;
    struct tether__aftermath aftermath = {0};
    tether_future *room = NULL;
    pthread_mutex_lock(&peer->mu);
    size_t unacked = link->lane.unacked_bytes;
    if (link->conn == conn && link->up) {
        receive_locked(link, message);
    } else if (link->conn == conn) {
        first_message_locked(link, message, &aftermath);
    }
    if (peer->room && link->lane.unacked_bytes < unacked) {
        room = peer->room;
        peer->room = NULL;
    }
    int64_t due = link->ack_due < peer->next_dial ? link->ack_due : peer->next_dial;
    pthread_mutex_unlock(&peer->mu);
    flush_what_was_left(peer->agent);
    if (room)
        tether_future_finish(room, TETHER_OK, NULL, NULL);
    tether_future_release(room);
    tether__aftermath_settle(&aftermath);
    tether__agent_kick(peer->agent, due);
}

static void on_sent(struct tether__conn *conn)
{
    struct tether__link *link = conn->userdata;
    pthread_mutex_lock(&link->peer->mu);
    if (link->conn == conn) {
        link->sending = false;
        say_state_locked(link);
        flush_polled_locked(link);
    }
    pthread_mutex_unlock(&link->peer->mu);
}

/* What a conn that has ended leaves of its link. */
static void ended_locked(struct tether__link *link, tether_status status, const char *why)
{
    struct tether__peer *peer = link->peer;
    bool near = link->conn->transport == peer->agent->near.transport;
    bool broke = near && link->up && status == TETHER_EUNAVAILABLE;
    if (link == &peer->out && !link->up) /* perhaps somebody else lives there now */
        peer->record_is_old = true;
    link->conn = NULL;
    link->up = link->sending = false;
    link->ack_due = TETHER__NEVER;
    link->epoch++;
    link->handshake = tether__free(link->handshake);
    tether__lane_disconnected(&link->lane);
    if (status != TETHER_OK)
        snprintf(peer->last_error, sizeof peer->last_error, "%.180s", why);
    if (peer->left) /* we have said goodbye, and this is the answer: nobody waits for another */
        tether__lane_reset(&link->lane);
    if (link == &peer->out || broke)
        tether__peer_connect_locked(peer);
}

/* The process behind the present session is no more: there is nothing to wait for. Calls made after
 * that do wait, for the length of a lease: it may be on its way back. */
static bool has_died_locked(const struct tether__link *link, tether_status status)
{
    const struct tether__peer *peer = link->peer;
    return status == TETHER_ENOTFOUND && link == &peer->out &&
           peer->met_epoch == peer->session_epoch &&
           peer->record.incarnation == peer->session.peer_incarnation;
}

static void on_closed(struct tether__conn *conn, tether_status status, const char *why)
{
    struct tether__link *link = conn->userdata;
    struct tether__peer *peer = link->peer;
    struct tether__aftermath aftermath = {0};
    pthread_mutex_lock(&peer->mu);
    if (link->conn == conn) {
        bool died = has_died_locked(link, status);
        ended_locked(link, status, why);
        if (died) {
            peer->last_error[0] = '\0';
            tether__peer_give_up_locked(peer, TETHER_EUNAVAILABLE, "its process has ended",
                                        &aftermath);
        }
    }
    int64_t next_dial = peer->next_dial;
    pthread_mutex_unlock(&peer->mu);
    conn->transport->ops->conn_release(conn);
    tether__aftermath_settle(&aftermath);
    tether__agent_kick(peer->agent, next_dial);
    tether__peer_release(peer);
}

static const struct tether__conn_events link_events = {on_opened, on_message, on_sent, on_closed};

void tether__link_accept_locked(struct tether__link *link,
                                struct tether__conn *conn,
                                bool sending,
                                bool proved,
                                const Tether__State *state,
                                struct tether__aftermath *ret_aftermath)
{
    conn->events = &link_events;
    conn->userdata = link;
    adopt_conn_locked(link, conn);
    link->sending = sending;
    link->proved = proved;
    link->peer_incarnation = state->from_incarnation;
    on_state_locked(link, state, ret_aftermath);
}
