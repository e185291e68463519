/* Polling one side: wait until one of its sockets has something, handle it, and look after
 * deadlines and requests of other threads.
 *
 * Happy path with the spin (spin.h): a conn that has just received something is likely to be the
 * next that does, so it is simply read from, which costs one system call where epoll and then
 * reading costs two; every other look, and one now and then however well that goes, is at all of
 * them. Without the spin: epoll_wait(), then one read for each that has something.
 *
 * Waking: `wake_pending` is set, and only if the poller sleeps, or is about to, does the event
 * descriptor have to be written to. It is edge-triggered and never read: each write is an event.
 * The poller sets `asleep` and then looks at `wake_pending`; a thread that wakes it does the two
 * the other way round, so one of them sees the other.
 *
 * Failure modes: none of its own; epoll_wait() that is interrupted is an event like any other.
 *
 * Locks: side->mu only to take the conns that want attention; nothing is held while they are
 * served.
 */
#include <errno.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "rpc/transport/socket/socket.h"

#define MAX_EVENTS 16 /* how many events of epoll are handled in one poll */
/* how many reads in a row from the `hot` conn, before the other conns are checked */
#define MAX_HOT_HITS 32

/* ---- Waking and attention ---- */

void tether__unix_wake_side(struct tether__unix_side *side)
{
    if (atomic_exchange(&side->wake_pending, true))
        return; /* an earlier wake-up was not handled yet, and its thread wakes the poller */
    if (!atomic_load(&side->asleep))
        return; /* the poller is awake, and checks `wake_pending` before it sleeps */
    atomic_fetch_add_explicit(&side->transport->stats.wakes, 1, memory_order_relaxed);
    eventfd_write(side->event_fd, 1);
}

void tether__unix_wake(struct tether__transport *transport, enum tether__side side)
{
    tether__unix_wake_side(&tether__unix_of(transport)->sides[side]);
}

static struct tether__unix_conn *next_of(struct tether__unix_side *side, struct tether__list *batch)
{
    pthread_mutex_lock(&side->mu);
    struct tether__list *node = tether__list_pop_front(batch);
    pthread_mutex_unlock(&side->mu);
    return node ? tether__list_entry(node, struct tether__unix_conn, attention) : NULL;
}

/* Serves the conns that request attention now. A conn that requests it again meanwhile waits for
 * the next round. */
static void attend(struct tether__unix_side *side)
{
    struct tether__list batch;
    tether__list_init(&batch);
    pthread_mutex_lock(&side->mu);
    tether__list_splice(&batch, &side->attention);
    pthread_mutex_unlock(&side->mu);
    struct tether__unix_conn *conn;
    while ((conn = next_of(side, &batch)))
        tether__unix_serve(conn);
}

/* Handles a wake-up: serves the conns in `attention`. Returns false if there was no wake-up. */
static bool woken(struct tether__unix_side *side)
{
    if (!atomic_load_explicit(&side->wake_pending, memory_order_relaxed))
        return false;
    atomic_exchange(&side->wake_pending, false);
    attend(side);
    return true;
}

/* ---- Deadlines ---- */

static int64_t now(void)
{
    return tether__clock_now_ns(&tether__clock_system);
}

void tether__unix_set_deadline(struct tether__unix_conn *conn, int64_t deadline)
{
    struct tether__unix_side *side = conn->side;
    conn->deadline = deadline;
    tether__list_remove(&conn->timed);
    tether__list_push_back(&side->timed, &conn->timed);
    if (deadline < side->next_deadline)
        side->next_deadline = deadline;
}

/* Returns the first conn whose deadline has passed, or NULL; `ret_next` is the earliest deadline of
 * those before it. */
static struct tether__unix_conn *find_expired(struct tether__unix_side *side,
                                              int64_t at,
                                              int64_t *ret_next)
{
    TETHER__LIST_FOR_EACH(it, &side->timed) {
        struct tether__unix_conn *conn = tether__list_entry(it, struct tether__unix_conn, timed);
        if (conn->deadline <= at)
            return conn;
        if (conn->deadline < *ret_next)
            *ret_next = conn->deadline;
    }
    return NULL;
}

static void expire(struct tether__unix_side *side)
{
    if (side->next_deadline == TETHER__NEVER)
        return;
    int64_t at = now();
    if (at < side->next_deadline)
        return;
    struct tether__unix *transport = side->transport;
    bool is_server = side == &transport->sides[TETHER__SERVER];
    if (is_server && transport->listener.resume_at <= at)
        tether__unix_accept_again(transport);
    if (!is_server && transport->guest.due <= at)
        tether__unix_accept_for_guest(transport);
    struct tether__unix_conn *conn;
    int64_t next = TETHER__NEVER;
    while ((conn = find_expired(side, at, &next))) {
        tether__unix_expired(conn);
        next = TETHER__NEVER;
    }
    if (is_server && transport->listener.resume_at < next)
        next = transport->listener.resume_at;
    if (!is_server && transport->guest.due < next)
        next = transport->guest.due;
    side->next_deadline = next;
}

/* ---- Looking ---- */

static void handle_conn(struct tether__unix_conn *conn, uint32_t events)
{
    if (events & EPOLLOUT)
        tether__unix_writable(conn);
    if (atomic_load(&conn->wants_in) && events & (EPOLLIN | EPOLLHUP | EPOLLERR))
        tether__unix_receive(conn);
    else if (atomic_load(&conn->ending) == TETHER__UNIX_LAST_SEND)
        tether__unix_end(conn);
}

/* Waits in epoll. Returns the number of events; events that need nothing do not count. */
static int wait_for(struct tether__unix_side *side, int max, int timeout_ms)
{
    struct tether__unix *transport = side->transport;
    struct epoll_event events[MAX_EVENTS];
    int n = epoll_wait(side->epoll_fd, events, max, timeout_ms);
    atomic_store_explicit(&side->asleep, false, memory_order_relaxed);
    for (int i = 0; i < n; i++) {
        void *what = events[i].data.ptr;
        if (what == &transport->listener)
            tether__unix_accept_next(transport);
        else if (what == &transport->guest)
            tether__unix_accept_for_guest(transport);
        else if (what)
            handle_conn(what, events[i].events);
    }
    return n;
}

/* Checks once for events. `turn` is the number of this check within a spin. */
static bool look(struct tether__unix_side *side, unsigned turn)
{
    if (side->hot && turn % 2 == 0 && side->hot_hits < MAX_HOT_HITS &&
        atomic_load_explicit(&side->n_armed, memory_order_relaxed) == 0) {
        side->hot_hits++;
        return tether__unix_receive(side->hot);
    }
    side->hot_hits = 0;
    return wait_for(side, MAX_EVENTS, 0) > 0;
}

static bool spin_for(struct tether__unix_side *side, int64_t until)
{
    struct tether__unix_stats *stats = &side->transport->stats;
    bool just_sent = atomic_load_explicit(&side->just_sent, memory_order_relaxed);
    atomic_store_explicit(&side->just_sent, false, memory_order_relaxed);
    if (!just_sent && look(side, 0))
        return true; /* the event was there before the spin, so it does not count as a hit */
    int64_t begin = now(), end = begin + side->spin.ns < until ? begin + side->spin.ns : until, at;
    unsigned turn = 0;
    do {
        sched_yield();
        at = now(); /* read the clock before look(), which may take as long as a function runs */
        if (woken(side) || look(side, turn++)) {
            tether__spin_hit(&side->spin, at - begin);
            atomic_fetch_add_explicit(&stats->spin_hits, 1, memory_order_relaxed);
            return true;
        }
    } while (at < end);
    tether__spin_missed(&side->spin);
    atomic_fetch_add_explicit(&stats->spin_misses, 1, memory_order_relaxed);
    return false;
}

static void block(struct tether__unix_side *side, int64_t until)
{
    atomic_store(&side->asleep, true);
    bool pending = atomic_load(&side->wake_pending);
    wait_for(side, MAX_EVENTS,
             pending ? 0 : tether__deadline_left_ms(&tether__clock_system, until));
    woken(side);
}

/* ---- Polling ---- */

/* Ends all conns of the side, since the transport stops. */
static void drain(struct tether__unix_side *side)
{
    if (side == &side->transport->sides[TETHER__SERVER])
        tether__unix_listen_close(side->transport);
    for (;;) {
        pthread_mutex_lock(&side->mu);
        struct tether__list *node = side->conns.next;
        bool none = tether__list_empty(&side->conns);
        pthread_mutex_unlock(&side->mu);
        if (none)
            return;
        tether__unix_finish(tether__list_entry(node, struct tether__unix_conn, all),
                            TETHER_ESHUTDOWN, "this worker is shutting down");
    }
}

bool tether__unix_poll_ready(struct tether__transport *transport, enum tether__side which)
{
    struct tether__unix_side *side = &tether__unix_of(transport)->sides[which];
    return woken(side) || wait_for(side, 1, 0) > 0;
}

bool tether__unix_poll(struct tether__transport *base, enum tether__side which, int64_t deadline)
{
    struct tether__unix *transport = tether__unix_of(base);
    struct tether__unix_side *side = &transport->sides[which];
    if (atomic_load(&transport->stopping)) {
        drain(side);
        return false;
    }
    if (woken(side)) {
        /* A thread that sends much requests attention again and again; received messages must not
         * wait until it stops. */
        if (side->was_woken)
            look(side, 1);
        side->was_woken = !side->was_woken;
    } else {
        side->was_woken = false;
        int64_t until = side->next_deadline < deadline ? side->next_deadline : deadline;
        if (!tether__spin_may(&side->spin) || !spin_for(side, until))
            block(side, until);
    }
    expire(side);
    return true;
}
