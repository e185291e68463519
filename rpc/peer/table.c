/* The agent's table of peers. See table.h. */
#include "rpc/peer/table.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/map.h"
#include "base/threads/loop.h"
#include "rpc/agent/internal.h"
#include "rpc/agent/metrics.h"
#include "rpc/group/directory.h"
#include "rpc/peer/admission/starts.h"
#include "rpc/peer/connect/outage.h"
#include "rpc/peer/peer.h"
#include "rpc/peer/session.h"
#include "rpc/peer/stream.h"
#include "rpc/peer/timers.h"
#include "rpc/refs.h"

#define REMOVE_TIMEOUT_MS 5000 /* for removing a dead worker's keys from the store */

/* ---- Adding and removing ---- */

/* Returns the index of the first entry whose serial is greater than `serial`. */
static size_t find_behind_locked(const tether_agent *agent, uint64_t serial)
{
    size_t low = 0, high = agent->n_entries;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (agent->peers[middle].serial <= serial)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Removes the entries of dropped peers, and frees memory that the table no longer needs. */
static void compact_locked(tether_agent *agent)
{
    size_t n = 0;
    for (size_t i = 0; i < agent->n_entries; i++)
        if (agent->peers[i].peer)
            agent->peers[n++] = agent->peers[i];
    agent->n_entries = n;
    size_t cap = n < 8 ? 8 : 2 * n;
    struct tether__peer_entry *less =
        cap < agent->cap_entries ? tether__realloc(agent->peers, cap * sizeof *less) : NULL;
    if (less) {
        agent->peers = less;
        agent->cap_entries = cap;
    }
}

tether_status tether__agent_add_peer_locked(tether_agent *agent, struct tether__peer *peer)
{
    if (agent->n_entries == agent->cap_entries) {
        size_t cap = agent->cap_entries ? 2 * agent->cap_entries : 8;
        struct tether__peer_entry *more = tether__realloc(agent->peers, cap * sizeof *more);
        if (!more)
            return TETHER_ENOMEM;
        agent->peers = more;
        agent->cap_entries = cap;
    }
    if (tether__map_put(&agent->peers_by_name, &peer->name_key) != TETHER_OK)
        return TETHER_ENOMEM;
    peer->serial = ++agent->last_serial;
    agent->peers[agent->n_entries++] = (struct tether__peer_entry){peer->serial, peer};
    agent->n_peers++;
    /* the first tick starts the peer's idle time */
    tether__peer_schedule(peer, tether__clock_now_ns(agent->clock));
    return TETHER_OK;
}

static void remove_locked(tether_agent *agent, struct tether__peer *peer)
{
    tether__map_del(&agent->peers_by_name, &peer->name_key);
    agent->peers[find_behind_locked(agent, peer->serial - 1)].peer = NULL;
    agent->n_peers--;
    if (agent->n_entries > 8 && agent->n_peers < agent->n_entries / 2)
        compact_locked(agent);
}

struct tether__peer *tether__agent_next_peer_locked(tether_agent *agent, uint64_t *cursor)
{
    size_t i = find_behind_locked(agent, *cursor);
    while (i < agent->n_entries && !agent->peers[i].peer)
        i++;
    if (i == agent->n_entries)
        return NULL;
    *cursor = agent->peers[i].serial;
    return agent->peers[i].peer;
}

struct tether__peer *tether__agent_next_peer(tether_agent *agent, uint64_t *cursor)
{
    pthread_mutex_lock(&agent->mu);
    struct tether__peer *peer = tether__agent_next_peer_locked(agent, cursor);
    if (peer)
        tether__peer_retain(peer);
    pthread_mutex_unlock(&agent->mu);
    return peer;
}

void tether__peers_fini(tether_agent *agent)
{
    tether__agent_forget_deferred(agent);
    for (size_t i = 0; i < agent->n_entries; i++)
        if (agent->peers[i].peer)
            tether__peer_release(agent->peers[i].peer);
    tether__free(agent->peers);
    tether__map_fini(&agent->peers_by_name);
    tether__starts_fini(&agent->starts);
    pthread_mutex_destroy(&agent->due_mu);
}

/* ---- The heap of due peers ---- */

bool tether__peer_is_due_first(const struct tether__heap_node *a, const struct tether__heap_node *b)
{
    return atomic_load_explicit(&tether__container_of(a, const struct tether__peer, due)->due_at,
                                memory_order_relaxed) <
           atomic_load_explicit(&tether__container_of(b, const struct tether__peer, due)->due_at,
                                memory_order_relaxed);
}

/* Moves the peer in the heap to `due`; TETHER__NEVER takes it out of the heap. */
static void set_due_locked(struct tether__peer *peer, int64_t due)
{
    struct tether__heap *dues = &peer->agent->dues;
    if (atomic_load_explicit(&peer->due_at, memory_order_relaxed) != TETHER__NEVER)
        tether__heap_remove(dues, &peer->due);
    atomic_store_explicit(&peer->due_at, due, memory_order_relaxed);
    if (due != TETHER__NEVER)
        tether__heap_insert(dues, &peer->due);
}

/* Makes the peer due at `due`. Returns false, and changes nothing, if it is due by then anyway.
 *
 * The first read of `due_at` is without a lock, so it may find a time that a tick has taken out of
 * the heap since. That is safe: such a tick takes peer->mu after this thread, so it sees the
 * changes of this thread. (If the tick had held peer->mu first, this read would find
 * TETHER__NEVER.)
 */
static bool lower_due(struct tether__peer *peer, int64_t due)
{
    if (due >= atomic_load_explicit(&peer->due_at, memory_order_relaxed))
        return false;
    tether_agent *agent = peer->agent;
    pthread_mutex_lock(&agent->due_mu);
    bool is_sooner = due < atomic_load_explicit(&peer->due_at, memory_order_relaxed);
    if (is_sooner)
        set_due_locked(peer, due);
    pthread_mutex_unlock(&agent->due_mu);
    return is_sooner;
}

void tether__peer_schedule(struct tether__peer *peer, int64_t due)
{
    if (lower_due(peer, due))
        tether__agent_kick(peer->agent, due);
}

/* Takes all due peers out of the heap. Returns them, retained, in a list linked by `next_due`. */
static struct tether__peer *take_due(tether_agent *agent, int64_t now)
{
    struct tether__peer *first = NULL, **last = &first;
    struct tether__heap_node *top;
    pthread_mutex_lock(&agent->due_mu);
    while ((top = tether__heap_top(&agent->dues))) {
        struct tether__peer *peer = tether__container_of(top, struct tether__peer, due);
        if (atomic_load_explicit(&peer->due_at, memory_order_relaxed) > now)
            break;
        set_due_locked(peer, TETHER__NEVER);
        peer->next_due = NULL;
        /* safe: a peer is taken out of the heap before it is dropped */
        *last = tether__peer_retain(peer);
        last = &peer->next_due;
    }
    pthread_mutex_unlock(&agent->due_mu);
    return first;
}

static int64_t first_due(tether_agent *agent)
{
    pthread_mutex_lock(&agent->due_mu);
    struct tether__heap_node *top = tether__heap_top(&agent->dues);
    int64_t due =
        top ? atomic_load_explicit(&tether__container_of(top, struct tether__peer, due)->due_at,
                                   memory_order_relaxed)
            : TETHER__NEVER;
    pthread_mutex_unlock(&agent->due_mu);
    return due;
}

/* ---- Dropping ---- */

static bool is_rank_locked(const struct tether__peer *peer)
{
    return peer->dialer.record.name[0] &&
           peer->dialer.record.id < (uint32_t)peer->agent->world_size;
}

static bool is_idle_locked(const struct tether__peer *peer)
{
    return !peer->is_self && !peer->is_observer && !is_rank_locked(peer) &&
           !peer->session->out.conn && !peer->session->in.conn && !peer->pairing.watching &&
           peer->session->n_calls == 0 && tether__dialer_is_at_rest(&peer->dialer) &&
           peer->outage.give_up_at == TETHER__NEVER &&
           peer->session->outbox.retry_at == TETHER__NEVER &&
           tether__outbox_is_empty(&peer->session->outbox) &&
           !tether__condition_has_waiters(&peer->room);
}

int64_t tether__peer_idle_until_locked(struct tether__peer *peer, int64_t now)
{
    if (!is_idle_locked(peer)) {
        peer->idle_since = TETHER__NEVER;
        return TETHER__NEVER;
    }
    if (peer->idle_since == TETHER__NEVER)
        peer->idle_since = now;
    int leases = tether__peer_known_start_locked(peer) ? TETHER__KEEP_GONE_LEASES : 1;
    return peer->idle_since + (int64_t)leases * peer->agent->opts.lease_ms * TETHER__NS_PER_MS;
}

/* Whether only the table and this thread hold a count of the peer. No other thread can take one
 * then: it would need a count already, or agent->mu. */
static bool is_unused_locked(const tether_agent *agent, struct tether__peer *peer)
{
    return atomic_load(&peer->refs) == 2 && atomic_load(&peer->n_named) == 0 &&
           is_idle_locked(peer) && !peer->session->out.is_deferred &&
           !peer->session->in.is_deferred &&
           (!agent->ext || tether__ext_ops->forget(agent->ext, peer));
}

/* Keeps the highest start number of all dropped peers: a start up to that number is believed only
 * if the directory confirms it (pairing.h, admission/admit.c). */
static void remember_locked(tether_agent *agent, const struct tether__peer *peer)
{
    uint64_t start = tether__peer_known_start_locked(peer);
    if (start > atomic_load(&agent->self.forgotten_start))
        atomic_store(&agent->self.forgotten_start, start);
}

/* A task that removes the record of a dead worker from the directory, on a look-up thread. */
struct removal {
    struct tether__task task;
    tether_agent *agent;
    uint64_t incarnation; /* 0: there is no record to remove */
    char name[TETHER_MAX_WORKER_NAME + 1];
};

static void run_removal(struct tether__task *task)
{
    struct removal *removal = tether__container_of(task, struct removal, task);
    tether_agent *agent = removal->agent;
    if (!tether__agent_is_parting(agent))
        tether__directory_remove_dead(&agent->directory, removal->name, removal->incarnation,
                                      REMOVE_TIMEOUT_MS, NULL);
    tether__free(removal);
}

/* Returns the removal for a dropped peer. A worker that was killed cannot remove its own keys from
 * the store. The keys of a lost worker stay, since it may be alive. The record of a rank stays,
 * too: only the rank's next start replaces it. */
static struct removal removal_of_locked(tether_agent *agent, const struct tether__peer *peer)
{
    struct removal removal = {.agent = agent, .task.run = run_removal};
    if (peer->outage.kind == TETHER__DEAD && peer->dialer.record.name[0] &&
        peer->dialer.record.incarnation == peer->outage.start &&
        peer->dialer.record.id >= TETHER__FIRST_DYNAMIC_ID && !agent->opts.observe &&
        !atomic_load(&agent->replaced)) {
        removal.incarnation = peer->outage.start;
        snprintf(removal.name, sizeof removal.name, "%s", peer->dialer.record.name);
    }
    return removal;
}

/* Submits the removal. If that fails, the keys stay until another worker drops the peer and tries
 * the same. */
static void submit_removal(tether_agent *agent, const struct removal *from)
{
    struct removal *removal = from->incarnation ? tether__calloc(1, sizeof *removal) : NULL;
    if (!removal)
        return;
    *removal = *from;
    if (tether__agent_submit(agent, &agent->directory.lookups, &removal->task) != TETHER_OK)
        tether__free(removal);
}

/* Drops a peer whose idle time is over. False: it is still in use, and its idle time starts again.
 */
static bool drop(tether_agent *agent, struct tether__peer *peer, int64_t now)
{
    pthread_mutex_lock(&agent->mu);
    /* not tether__peer_lock(), whose unlock may run user code: agent->mu is held */
    pthread_mutex_lock(&peer->mu);
    bool is_unused = is_unused_locked(agent, peer);
    const struct removal removal = removal_of_locked(agent, peer);
    if (is_unused) {
        remember_locked(agent, peer);
        remove_locked(agent, peer);
        tether__peer_end_naming_locked(peer);
        tether__peer_end_unlisted_locked(peer);
        tether__start_give_back_locked(peer);
        if (peer->metrics.connects || peer->metrics.calls)
            tether__metrics_bury_locked(agent, peer);
        pthread_mutex_lock(&agent->due_mu);
        set_due_locked(peer, TETHER__NEVER);
        pthread_mutex_unlock(&agent->due_mu);
    } else {
        peer->idle_since = now;
    }
    pthread_mutex_unlock(&peer->mu);
    pthread_mutex_unlock(&agent->mu);
    if (!is_unused)
        return false;
    tether__log(TETHER_LOG_DEBUG, "rpc", "%s: forgets worker '%s', which is gone", agent->name,
                peer->name);
    submit_removal(agent, &removal);
    tether__peer_release(peer);
    return true;
}

static void tick_one(tether_agent *agent, struct tether__peer *peer, int64_t now)
{
    bool idle_is_over;
    int64_t due = tether__peer_tick(peer, now, &idle_is_over);
    if (!idle_is_over) {
        lower_due(peer, due);
    } else if (!drop(agent, peer, now)) {
        tether__peer_lock(peer);
        due = tether__peer_idle_until_locked(peer, now);
        tether__peer_unlock(peer);
        lower_due(peer, due);
    }
    tether__peer_release(peer);
}

/* Makes the timers of all peers run if a later start of this worker has joined (once), or if a peer
 * has lost its start number to another one. */
static void tick_all_if_needed(tether_agent *agent)
{
    struct tether__peer *peer;
    bool is_replaced = atomic_load(&agent->replaced) && !agent->all_saw_replaced;
    if (!is_replaced && atomic_load(&agent->starts.n_lost) == 0)
        return;
    agent->all_saw_replaced |= is_replaced;
    for (uint64_t at = 0; (peer = tether__agent_next_peer(agent, &at));) {
        lower_due(peer, 0);
        tether__peer_release(peer);
    }
}

int64_t tether__peers_tick(tether_agent *agent, int64_t now)
{
    tick_all_if_needed(agent);
    struct tether__peer *next = take_due(agent, now);
    while (next) {
        struct tether__peer *peer = next;
        next = peer->next_due;
        tick_one(agent, peer, now);
    }
    return first_due(agent);
}
