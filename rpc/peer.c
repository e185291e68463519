/* One other worker: finding it, dialling it, its session and its lease.
 *
 * Happy path: the first call makes the peer and asks the directory where it is; then it is dialled;
 * what was queued meanwhile leaves when the stream is up (link.c).
 *
 * Failure modes: a conn that breaks is dialled again at once at the address that is known, then
 * after growing pauses, for as long as the lease runs; from the first dial that fails on, the
 * directory is asked beside that whether the peer has moved. A store that does not answer, or does
 * not have the peer, ends no session that the lease keeps. When the lease runs out, the session is
 * fenced: calls in flight fail, and nothing is dialled until somebody wants the peer again.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"
#include "rpc/agent_internal.h"

#define BACKOFF_FIRST_MS 20
#define BACKOFF_MAX_MS 2000
#define LOOKUP_TIMEOUT_MS 5000
#define HANDSHAKE_WITHIN_MS 15000 /* from the dial on; longer than a transport tries to connect */

/* ---- Making and finding ------------------------------------------------------------------------
 */

struct tether__peer *tether__peer_retain(struct tether__peer *peer)
{
    atomic_fetch_add_explicit(&peer->refs, 1, memory_order_relaxed);
    return peer;
}

static void peer_destroy(struct tether__peer *peer)
{
    tether__lane_fini(&peer->out.lane);
    tether__lane_fini(&peer->in.lane);
    tether__map_fini(&peer->incoming);
    tether__free(peer->out.handshake);
    tether__free(peer->slots);
    pthread_mutex_destroy(&peer->mu);
    tether__free(peer);
}

void tether__peer_release(struct tether__peer *peer)
{
    if (atomic_fetch_sub_explicit(&peer->refs, 1, memory_order_acq_rel) == 1)
        peer_destroy(peer);
}

tether_status tether__peer_new(tether_agent *agent,
                               const char *name,
                               struct tether__peer **ret_peer)
{
    struct tether__peer *peer = tether__calloc(1, sizeof *peer);
    if (!peer)
        return TETHER_ENOMEM;
    peer->agent = agent;
    bool has_near = agent->timers == &agent->near.progress;
    atomic_init(&peer->carrier, has_near ? &agent->near : &agent->far);
    peer->met_epoch = UINT64_MAX; /* none yet */
    snprintf(peer->name, sizeof peer->name, "%s", name);
    peer->name_key = tether_bytes_str(peer->name);
    peer->is_self = strcmp(name, agent->name) == 0;
    peer->is_observer = tether__name_is_observer(name);
    atomic_init(&peer->id, UINT32_MAX);
    atomic_init(&peer->refs, 1);
    peer->next_dial = peer->calls_due = peer->control_due = peer->gather_due = TETHER__NEVER;
    peer->out.ack_due = peer->in.ack_due = TETHER__NEVER;
    peer->out.peer = peer->in.peer = peer;
    peer->first_free = UINT32_MAX;
    tether__list_init(&peer->unsent_replies);
    tether__budget_init(&peer->budget, tether__clock_now_ns(agent->clock));
    tether__session_init(&peer->session, &agent->self, peer->name, 0, 0);
    pthread_mutex_init(&peer->mu, NULL);
    tether__lane_init(&peer->out.lane, &agent->lane_limits);
    tether__lane_init(&peer->in.lane, &agent->lane_limits);
    if (tether__map_init(&peer->incoming, &tether__map_u64) != TETHER_OK) {
        peer_destroy(peer);
        return TETHER_ENOMEM;
    }
    *ret_peer = peer;
    return TETHER_OK;
}

static tether_status add_peer_locked(tether_agent *agent,
                                     const char *name,
                                     struct tether__peer **ret_peer)
{
    if (agent->n_peers == agent->cap_peers) {
        size_t cap = agent->cap_peers ? 2 * agent->cap_peers : 8;
        struct tether__peer **peers = tether__realloc(agent->peers, cap * sizeof *peers);
        if (!peers)
            return TETHER_ENOMEM;
        agent->peers = peers;
        agent->cap_peers = cap;
    }
    struct tether__peer *peer;
    if (tether__peer_new(agent, name, &peer) != TETHER_OK)
        return TETHER_ENOMEM;
    if (tether__map_put(&agent->peers_by_name, &peer->name_key) != TETHER_OK) {
        tether__peer_release(peer);
        return TETHER_ENOMEM;
    }
    agent->peers[agent->n_peers++] = peer;
    *ret_peer = peer;
    return TETHER_OK;
}

/* `by`: the peer whose message has the name; NULL: this program has. */
static tether_status find_or_add_locked(tether_agent *agent,
                                        const char *name,
                                        struct tether__peer *by,
                                        struct tether__peer **ret_peer)
{
    tether_bytes key = tether_bytes_str(name);
    tether_bytes *found = tether__map_get(&agent->peers_by_name, &key);
    if (found) {
        *ret_peer = tether__container_of(found, struct tether__peer, name_key);
        return TETHER_OK;
    }
    if (!tether__name_valid(name))
        return TETHER_EINVAL;
    if (by && atomic_load(&by->n_named) >= TETHER__MAX_NAMES_PER_PEER)
        return TETHER_EBUSY;
    tether_status st = add_peer_locked(agent, name, ret_peer);
    if (st == TETHER_OK && by) {
        (*ret_peer)->named_by = by;
        atomic_fetch_add(&by->n_named, 1);
    }
    return st;
}

tether_status tether__agent_peer_named_by(tether_agent *agent,
                                          struct tether__peer *by,
                                          const char *name,
                                          struct tether__peer **ret_peer,
                                          tether_error *reterr)
{
    struct tether__peer *peer = NULL;
    pthread_mutex_lock(&agent->mu);
    tether_status st = find_or_add_locked(agent, name, by, &peer);
    if (st == TETHER_OK)
        tether__peer_retain(peer);
    pthread_mutex_unlock(&agent->mu);
    if (st == TETHER_EINVAL)
        return tether_error_set(reterr, st,
                                "'%.40s' is not the name of a worker: names have 1 to %d of A-Z "
                                "a-z 0-9 _ : . -",
                                name, TETHER_MAX_WORKER_NAME);
    if (st == TETHER_EBUSY)
        return tether_error_set(reterr, st,
                                "worker '%s' names more than %d workers that nobody has met",
                                by->name, TETHER__MAX_NAMES_PER_PEER);
    if (st != TETHER_OK)
        return tether_error_set(reterr, st, "no memory for worker '%s'", name);
    *ret_peer = peer;
    return TETHER_OK;
}

tether_status tether__agent_peer(tether_agent *agent,
                                 const char *name,
                                 struct tether__peer **ret_peer,
                                 tether_error *reterr)
{
    return tether__agent_peer_named_by(agent, NULL, name, ret_peer, reterr);
}

struct tether__peer *tether__agent_find_peer(tether_agent *agent, const char *name)
{
    tether_bytes key = tether_bytes_str(name);
    struct tether__peer *peer = NULL;
    pthread_mutex_lock(&agent->mu);
    tether_bytes *found = tether__map_get(&agent->peers_by_name, &key);
    if (found)
        peer = tether__peer_retain(tether__container_of(found, struct tether__peer, name_key));
    pthread_mutex_unlock(&agent->mu);
    return peer;
}

uint64_t tether__peer_known_start_locked(const struct tether__peer *peer)
{
    uint64_t met = peer->session.peer_incarnation;
    return peer->record.incarnation > met ? peer->record.incarnation : met;
}

uint64_t tether__peer_known_start(struct tether__peer *peer)
{
    pthread_mutex_lock(&peer->mu);
    uint64_t known = tether__peer_known_start_locked(peer);
    pthread_mutex_unlock(&peer->mu);
    return known;
}

void tether__peer_drop_room(struct tether__peer *peer)
{
    pthread_mutex_lock(&peer->mu);
    tether_future *room = peer->room;
    peer->room = NULL;
    pthread_mutex_unlock(&peer->mu);
    if (room)
        tether_future_finish(room, TETHER_OK, NULL, NULL);
    tether_future_release(room);
}

struct tether__peer *tether__agent_peer_at(tether_agent *agent, size_t i)
{
    pthread_mutex_lock(&agent->mu);
    struct tether__peer *peer = i < agent->n_peers ? tether__peer_retain(agent->peers[i]) : NULL;
    pthread_mutex_unlock(&agent->mu);
    return peer;
}

/* ---- Connecting ---- */

struct lookup {
    struct tether__task task;
    struct tether__peer *peer;
};

static void run_lookup(struct tether__task *task)
{
    struct lookup *lookup = tether__container_of(task, struct lookup, task);
    struct tether__peer *peer = lookup->peer;
    struct tether__worker_record record;
    tether_error error = {0};
    tether_status st = TETHER_ESHUTDOWN; /* who stops waits for the look-ups that are queued */
    if (!tether__agent_is_parting(peer->agent))
        st = tether__directory_lookup(&peer->agent->directory, peer->name, LOOKUP_TIMEOUT_MS,
                                      &record, &error);
    if (st == TETHER_EUNAVAILABLE) /* it may have lost its keys */
        tether__agent_store_check_at(peer->agent, tether__clock_now_ns(peer->agent->clock));
    struct tether__reaper *outer = tether__current.reaper;
    tether__current.reaper = &peer->agent->reaper;
    tether__peer_found(peer, st == TETHER_OK ? &record : NULL, st, &error);
    tether__current.reaper = outer;
    tether__peer_release(peer);
    tether__free(lookup);
}

/* On this host, unless its socket is not to be seen from here, as from within a container. */
static bool is_near(const struct tether__peer *peer)
{
    const struct tether__worker_record *record = &peer->record;
    return record->unix_address[0] && peer->agent->near.transport && !peer->near_failed &&
           strcmp(record->host, peer->agent->directory.host) == 0;
}

static void dial_locked(struct tether__peer *peer)
{
    tether_agent *agent = peer->agent;
    bool near = is_near(peer);
    struct tether__carrier *carrier = near ? &agent->near : &agent->far;
    atomic_store_explicit(&peer->carrier, carrier, memory_order_relaxed);
    peer->near_failed = near; /* until it is up; a far one that fails is followed by a near one */
    tether__link_dial_locked(&peer->out, carrier,
                             near ? peer->record.unix_address : peer->record.address);
    if (!peer->out.conn)
        tether__peer_connect_locked(peer);
}

/* A network that is whole again is to be found out well before a lease ends. */
static int next_backoff_ms(struct tether__peer *peer)
{
    int pause = peer->backoff_ms, longest = (int)peer->session.lease_ms / 4;
    longest = longest < BACKOFF_FIRST_MS ? BACKOFF_FIRST_MS
              : longest > BACKOFF_MAX_MS ? BACKOFF_MAX_MS
                                         : longest;
    peer->backoff_ms = pause == 0 ? BACKOFF_FIRST_MS : pause * 2 > longest ? longest : pause * 2;
    /* Up to a quarter less, so that many workers do not come back in step. */
    return pause - (int)((tether__clock_now_ns(peer->agent->clock) / 1000) % (pause / 4 + 1));
}

/* A session that stands until the lease is over, whatever the directory says. */
static bool has_live_session_locked(const struct tether__peer *peer)
{
    return peer->met_epoch == peer->session_epoch && peer->session.watching;
}

/* Where the start is that we have a session with, as far as we know. */
static bool has_address_locked(const struct tether__peer *peer)
{
    return peer->record.name[0] && peer->record.incarnation >= peer->session.peer_incarnation;
}

/* Whether a dial or a look-up may begin: none is due, and this agent still runs. */
static bool may_dial_locked(const struct tether__peer *peer)
{
    int state = atomic_load(&peer->agent->state);
    return !peer->is_self && !peer->is_observer && !peer->left &&
           peer->next_dial == TETHER__NEVER && state >= TETHER__AGENT_JOINING &&
           state <= TETHER__AGENT_STOPPING && !atomic_load(&peer->agent->replaced);
}

void tether__peer_look_up_locked(struct tether__peer *peer)
{
    if (!peer->agent->directory.running || peer->looking_up || !may_dial_locked(peer))
        return;
    peer->record_is_old = true;
    peer->next_dial = tether__clock_now_ns(peer->agent->clock);
}

void tether__peer_connect_locked(struct tether__peer *peer)
{
    bool waits = peer->looking_up && !(has_live_session_locked(peer) && has_address_locked(peer));
    if (peer->out.conn || waits || !may_dial_locked(peer))
        return;
    int64_t now = tether__clock_now_ns(peer->agent->clock);
    if (!peer->session.watching) /* from here on it has the length of a lease to answer */
        tether__session_heard(&peer->session, now);
    peer->next_dial = now + next_backoff_ms(peer) * TETHER__NS_PER_MS;
}

/* False: it cannot be asked now. */
static bool look_up_locked(struct tether__peer *peer)
{
    struct lookup *lookup = tether__calloc(1, sizeof *lookup);
    if (!lookup)
        return false;
    lookup->task.run = run_lookup;
    lookup->peer = tether__peer_retain(peer);
    peer->looking_up = true;
    if (tether__agent_submit_lookup(peer->agent, &lookup->task) == TETHER_OK)
        return true;
    peer->looking_up = false;
    tether__peer_release(peer);
    tether__free(lookup);
    return false;
}

static void dial_or_look_up_locked(struct tether__peer *peer)
{
    peer->next_dial = TETHER__NEVER;
    bool has_address = has_address_locked(peer);
    bool asks = (!has_address || peer->record_is_old) && peer->agent->directory.running;
    if (asks && !peer->looking_up && !look_up_locked(peer))
        asks = false;
    if (peer->out.conn)
        return; /* only the directory was to be asked */
    if (has_address && (!asks || has_live_session_locked(peer)))
        dial_locked(peer);
    else if (!asks)
        tether__peer_connect_locked(peer);
}

/* The directory has this record of the peer, of the start that we know or a later one. */
static void learn_record_locked(struct tether__peer *peer,
                                const struct tether__worker_record *record,
                                struct tether__aftermath *ret_aftermath)
{
    bool met = peer->session.peer_incarnation != 0;
    bool restarted = tether__session_restarted(&peer->session, record->id, record->incarnation);
    if (restarted) { /* what is made from now on is made there, and counted anew */
        atomic_store(&peer->fences, tether__session_fences(&peer->session));
        atomic_store(&peer->incarnation, record->incarnation);
    }
    if (restarted && met)
        tether__peer_end_session_locked(peer, TETHER_EUNAVAILABLE, "it was restarted",
                                        ret_aftermath);
    if (record->incarnation != peer->record.incarnation)
        peer->near_failed = false; /* that was another's socket */
    peer->record = *record;
    atomic_store(&peer->id, record->id);
    peer->record_is_old = false; /* last_error stays until a stream is up: it may be asked for */
}

static bool is_elsewhere(const struct tether__worker_record *a,
                         const struct tether__worker_record *b)
{
    return strcmp(a->address, b->address) != 0 || strcmp(a->unix_address, b->unix_address) != 0;
}

void tether__peer_found(struct tether__peer *peer,
                        const struct tether__worker_record *record,
                        tether_status status,
                        const tether_error *error)
{
    struct tether__aftermath aftermath = {0};
    pthread_mutex_lock(&peer->mu);
    peer->looking_up = false;
    if (tether__agent_is_parting(peer->agent)) {
        /* its session has been ended, or is about to be: no dial, no fence */
    } else if (record && record->incarnation >= peer->session.peer_incarnation) {
        if (peer->out.conn && !peer->out.up && is_elsewhere(record, &peer->record))
            tether__link_drop_locked(&peer->out); /* it was dialled where it was before */
        learn_record_locked(peer, record, &aftermath);
        if (!peer->out.conn) {
            peer->next_dial = TETHER__NEVER;
            dial_locked(peer);
        }
    } else if (status == TETHER_ENOTFOUND && !has_live_session_locked(peer)) {
        tether__session_fence(&peer->session); /* should it come after all, it hears of this */
        tether__peer_end_session_locked(peer, TETHER_ENOTFOUND, "", &aftermath);
        aftermath.error = *error;
        peer->session.watching = false;
        peer->fenced = true;
        peer->last_error[0] = '\0';
        peer->record_is_old = true;
        peer->backoff_ms = 0;
    } else {
        if (!record)
            snprintf(peer->last_error, sizeof peer->last_error, "%.180s", error->message);
        tether__peer_connect_locked(peer);
    }
    int64_t next_dial = peer->next_dial;
    pthread_mutex_unlock(&peer->mu);
    tether__aftermath_settle(&aftermath);
    tether__agent_kick(peer->agent, next_dial);
}

/* ---- Words that nobody has proved ---- */

/* Look-ups for peers that have not proved who they are: no more at once, so that those that we need
 * ourselves go on. */
#define MAX_CONFIRMING 4

struct confirmation {
    struct tether__task task;
    tether_agent *agent;
    uint64_t incarnation;
    char name[TETHER_MAX_WORKER_NAME + 1];
};

static void learn_start(tether_agent *agent, const struct tether__worker_record *record)
{
    struct tether__aftermath aftermath = {0};
    struct tether__peer *peer;
    if (tether__agent_peer(agent, record->name, &peer, NULL) != TETHER_OK)
        return;
    pthread_mutex_lock(&peer->mu);
    if (record->incarnation >= tether__peer_known_start_locked(peer))
        learn_record_locked(peer, record, &aftermath);
    pthread_mutex_unlock(&peer->mu);
    tether__aftermath_settle(&aftermath);
    tether__peer_release(peer);
}

static void run_confirmation(struct tether__task *task)
{
    struct confirmation *confirmation = tether__container_of(task, struct confirmation, task);
    tether_agent *agent = confirmation->agent;
    struct tether__worker_record record;
    tether_status st = TETHER_ESHUTDOWN;
    if (!tether__agent_is_parting(agent))
        st = tether__directory_lookup(&agent->directory, confirmation->name, LOOKUP_TIMEOUT_MS,
                                      &record, NULL);
    if (st == TETHER_OK && strcmp(confirmation->name, agent->name) == 0) {
        if (record.incarnation > agent->self.incarnation)
            tether__agent_replaced(agent);
    } else if (st == TETHER_OK && record.incarnation == confirmation->incarnation) {
        struct tether__reaper *outer = tether__current.reaper;
        tether__current.reaper = &agent->reaper;
        learn_start(agent, &record);
        tether__current.reaper = outer;
    }
    tether__free(confirmation);
    atomic_fetch_sub(&agent->confirming, 1);
}

void tether__agent_confirm(tether_agent *agent, const char *name, uint64_t incarnation)
{
    struct confirmation *confirmation = NULL;
    if (atomic_fetch_add(&agent->confirming, 1) < MAX_CONFIRMING)
        confirmation = tether__calloc(1, sizeof *confirmation);
    if (confirmation) {
        confirmation->task.run = run_confirmation;
        confirmation->agent = agent;
        confirmation->incarnation = incarnation;
        snprintf(confirmation->name, sizeof confirmation->name, "%s", name);
        if (tether__agent_submit_lookup(agent, &confirmation->task) == TETHER_OK)
            return;
        tether__free(confirmation);
    }
    atomic_fetch_sub(&agent->confirming, 1);
}

void tether__agent_told_replaced(tether_agent *agent, bool is_proved)
{
    if (is_proved)
        tether__agent_replaced(agent);
    else
        tether__agent_confirm(agent, agent->name, 0);
}

/* ---- The end of a session ---- */

void tether__peer_end_session_locked(struct tether__peer *peer,
                                     tether_status status,
                                     const char *why,
                                     struct tether__aftermath *ret_aftermath)
{
    struct tether__link *links[] = {&peer->out, &peer->in};
    peer->session_epoch++;
    atomic_store(&peer->fences, tether__session_fences(&peer->session));
    peer->metrics.fences++;
    for (size_t i = 0; i < 2; i++) {
        tether__link_drop_locked(links[i]);
        tether__lane_reset(&links[i]->lane);
        links[i]->epoch++;
    }
    tether__incoming_cancel_all_locked(peer);
    peer->control_is_stuck = false;
    peer->next_dial = TETHER__NEVER;

    memset(ret_aftermath, 0, sizeof *ret_aftermath);
    ret_aftermath->peer = tether__peer_retain(peer);
    ret_aftermath->ended_epoch = peer->session_epoch - 1;
    ret_aftermath->status = status;
    const char *cause = peer->last_error[0] ? peer->last_error : why;
    tether_error_set(&ret_aftermath->error, status, "worker '%s' cannot be reached: %s", peer->name,
                     cause);
    ret_aftermath->room = peer->room;
    peer->room = NULL;
    if (peer->n_calls == 0)
        return;
    /* The slot table itself becomes the list of what to fail: this cannot run out of memory. */
    struct tether__call **calls = (struct tether__call **)peer->slots;
    size_t n = 0;
    for (uint32_t i = 0; i < peer->n_slots; i++) {
        struct tether__call *call = peer->slots[i].call;
        if (call)
            calls[n++] = call; /* n <= i and a pointer is no larger than a slot */
    }
    ret_aftermath->calls = calls;
    ret_aftermath->n_calls = n;
    peer->slots = NULL;
    peer->n_slots = peer->n_calls = 0;
    peer->first_free = UINT32_MAX;
    peer->calls_due = TETHER__NEVER;
}

/* A call about an object of the peer's fails as references to the object do. */
static void fail_call(const struct tether__aftermath *aftermath, struct tether__call *call)
{
    tether_error error;
    tether_status status = aftermath->status;
    tether__call_explain_end(call, status, &aftermath->error, &error);
    bool is_loss = status == TETHER_EUNAVAILABLE || status == TETHER_EFENCED;
    if (aftermath->peer && is_loss && call->about_object)
        status = tether_error_set(&error, TETHER_EOWNERDIED, "the owner of the object is lost: %s",
                                  aftermath->error.message);
    call->future.unanswered = true;
    tether__call_finish(call, status, &error, NULL);
}

void tether__aftermath_settle(struct tether__aftermath *aftermath)
{
    /* The references first: who learns from a failed call that the peer is gone finds them broken.
     */
    if (aftermath->peer && aftermath->peer->agent->ext)
        tether__ext_ops->fenced(aftermath->peer->agent->ext, aftermath->peer,
                                aftermath->ended_epoch, &aftermath->error);
    for (size_t i = 0; i < aftermath->n_calls; i++)
        fail_call(aftermath, aftermath->calls[i]);
    tether__free(aftermath->calls);
    if (aftermath->room) {
        tether_future_finish(aftermath->room, TETHER_OK, NULL, NULL);
        tether_future_release(aftermath->room);
    }
    if (aftermath->peer)
        tether__peer_release(aftermath->peer);
    memset(aftermath, 0, sizeof *aftermath);
}

void tether__peer_give_up_locked(struct tether__peer *peer,
                                 tether_status status,
                                 const char *why,
                                 struct tether__aftermath *ret_aftermath)
{
    tether__log(TETHER_LOG_INFO, "rpc", "%s: fencing '%s': %s", peer->agent->name, peer->name, why);
    if (peer->agent->world_size > 0 && peer->record.name[0] && peer->record.id == 0)
        tether__log(TETHER_LOG_WARN, "rpc",
                    "%s: rank 0 ('%s') is gone; if it hosted the store, nobody can join any more, "
                    "and this worker can only leave alone",
                    peer->agent->name, peer->name);
    tether__session_fence(&peer->session);
    tether__peer_end_session_locked(peer, status, why, ret_aftermath);
    peer->session.watching = false;
    peer->fenced = true;
    peer->last_error[0] = '\0';
    peer->record_is_old = true; /* whoever wants it again looks it up again */
}

void tether__peer_fence(struct tether__peer *peer, const char *why)
{
    struct tether__aftermath aftermath;
    pthread_mutex_lock(&peer->mu);
    peer->last_error[0] = '\0'; /* `why` is the news */
    tether__peer_give_up_locked(peer, TETHER_EUNAVAILABLE, why, &aftermath);
    pthread_mutex_unlock(&peer->mu);
    tether__aftermath_settle(&aftermath);
}

void tether__agent_replaced(tether_agent *agent)
{
    if (atomic_exchange(&agent->replaced, true))
        return;
    tether__log(TETHER_LOG_WARN, "rpc", "%s: %s", agent->name, TETHER__REPLACED);
    tether__agent_kick(agent, 0);
}

/* ---- Timers ---- */

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

tether_status tether__peer_may_send(const struct tether__peer *peer, uint32_t kind)
{
    const struct tether__agent_hooks *hooks = peer->agent->opts.hooks;
    return hooks && hooks->before_send ? hooks->before_send(hooks->userdata, peer->name, kind)
                                       : TETHER_OK;
}

/* They stay queued until the session ends, so there is no last attempt, only a longest wait. */
void tether__peer_control_failed_locked(struct tether__peer *peer, bool may_pass)
{
    peer->control_is_stuck |= !may_pass;
    int last = tether__retry_defaults.max_retries - 1;
    int delay = tether__retry_delay_ms(
        &tether__retry_defaults, peer->control_failures < last ? peer->control_failures : last);
    peer->control_failures++;
    peer->control_due = tether__clock_now_ns(peer->agent->clock) + delay * TETHER__NS_PER_MS;
    tether__agent_kick(peer->agent, may_pass ? peer->control_due : 0);
}

static void retry_control_locked(struct tether__peer *peer, int64_t now)
{
    int64_t put_off = tether__budget_spend(&peer->budget, now);
    if (put_off) {
        peer->control_due = put_off;
        peer->metrics.retries_put_off++;
        return;
    }
    peer->control_due = TETHER__NEVER;
    peer->metrics.retries++;
    tether__link_flush_locked(&peer->out, false);
}

static void ping_locked(struct tether__link *link)
{
    if (link->up && tether__lane_send_unnumbered(&link->lane, TETHER__FRAME_PING,
                                                 tether_bytes_of(NULL, 0)) == TETHER_OK)
        tether__link_flush_locked(link, false);
}

/* A stream on which nothing comes for a third of the lease is pinged; after another third it is
 * given up and dialled anew, for the network may have dropped it without a word while the other
 * stream goes on. Says when to look again. */
static int64_t tick_silence_locked(struct tether__link *link, int64_t now)
{
    struct tether__peer *peer = link->peer;
    int64_t third = (int64_t)peer->session.lease_ms * TETHER__NS_PER_MS / 3;
    int64_t longest = 2 * third;
    if (!link->conn)
        return TETHER__NEVER;
    if (!link->up && longest > HANDSHAKE_WITHIN_MS * TETHER__NS_PER_MS)
        longest = HANDSHAKE_WITHIN_MS * TETHER__NS_PER_MS;
    if (now - link->heard_at >= longest) {
        snprintf(peer->last_error, sizeof peer->last_error,
                 "nothing came on its stream for %lld ms",
                 (long long)((now - link->heard_at) / TETHER__NS_PER_MS));
        tether__link_drop_locked(link);
        if (link == &peer->out)
            tether__peer_connect_locked(peer);
        return peer->next_dial;
    }
    int64_t ping_at = (link->heard_at > link->pinged_at ? link->heard_at : link->pinged_at) + third;
    if (ping_at <= now) {
        tether__lane_trim(&link->lane);
        ping_locked(link);
        link->pinged_at = now;
        ping_at = now + third;
    }
    return earlier(ping_at, link->heard_at + longest);
}

static int64_t tick_link_locked(struct tether__link *link, int64_t now)
{
    int64_t next = tick_silence_locked(link, now);
    if (link->ack_due > now)
        return earlier(next, link->ack_due);
    link->ack_due = TETHER__NEVER;
    if (tether__lane_owes_ack(&link->lane))
        tether__link_flush_locked(link, true);
    return next;
}

/* Another start has taken our name: what we have with the peer ends. */
static void leave_to_successor_locked(struct tether__peer *peer, struct tether__aftermath *fenced)
{
    bool has_session = peer->out.conn || peer->in.conn || peer->n_calls || peer->session.watching;
    if (peer->is_self || fenced->peer || !has_session)
        return;
    peer->last_error[0] = '\0';
    tether__peer_give_up_locked(peer, TETHER_EFENCED, TETHER__REPLACED, fenced);
}

int64_t tether__peer_tick(struct tether__peer *peer, int64_t now)
{
    struct tether__aftermath fenced = {0}, expired = {0};
    int64_t next = TETHER__NEVER, lease_next = TETHER__NEVER;
    pthread_mutex_lock(&peer->mu);
    if (peer->session.watching) {
        switch (tether__session_tick(&peer->session, now, &lease_next)) {
            case TETHER__LEASE_OVER: {
                char why[64];
                snprintf(why, sizeof why, "no word from it for %u ms", peer->session.lease_ms);
                tether__peer_give_up_locked(peer, TETHER_EUNAVAILABLE, why, &fenced);
                lease_next = TETHER__NEVER;
                break;
            }
            case TETHER__LEASE_PING: /* each stream has its own pings */
            case TETHER__LEASE_FINE:
                break;
        }
        next = earlier(next, lease_next);
    }
    if (atomic_load(&peer->agent->replaced))
        leave_to_successor_locked(peer, &fenced);
    if (peer->next_dial <= now)
        dial_or_look_up_locked(peer);
    next = earlier(next, peer->next_dial);
    next = earlier(next, tick_link_locked(&peer->out, now));
    next = earlier(next, tick_link_locked(&peer->in, now));
    if (peer->control_is_stuck && !fenced.peer) {
        peer->last_error[0] = '\0';
        tether__peer_give_up_locked(peer, TETHER_EUNAVAILABLE,
                                    "what it must be told about references is beyond "
                                    "max_message_bytes",
                                    &fenced);
    }
    if (peer->control_due <= now)
        retry_control_locked(peer, now);
    next = earlier(next, peer->control_due);
    if (peer->gather_due <= now) {
        peer->gather_due = TETHER__NEVER;
        tether__link_flush_locked(&peer->out, false);
    }
    next = earlier(next, peer->gather_due);
    if (peer->calls_due <= now)
        peer->calls_due = tether__calls_expire_locked(peer, now, &expired);
    next = earlier(next, peer->calls_due);
    pthread_mutex_unlock(&peer->mu);
    tether__aftermath_settle(&fenced);
    tether__aftermath_settle(&expired);
    return next;
}
