/* The order of calls by the time when they are due. See dues.h. */
#include "rpc/peer/calls/dues.h"

#include "base/clock.h"
#include "rpc/peer/calls/progress.h"
#include "rpc/peer/calls/slots.h"
#include "rpc/peer/peer.h"
#include "rpc/peer/session.h"

/* Returns when the call is due next: first for a question to the peer (`ask_at`), then for its
 * deadline. */
static int64_t due_of(const struct tether__call *call)
{
    return call->is_due ? call->deadline : call->ask_at;
}

static struct tether__call *call_of(const struct tether__heap_node *node)
{
    return tether__container_of(node, struct tether__call, due.heap_node);
}

static bool is_due_first(const struct tether__heap_node *a, const struct tether__heap_node *b)
{
    return due_of(call_of(a)) < due_of(call_of(b));
}

void tether__call_dues_init(struct tether__call_dues *dues)
{
    dues->next = TETHER__NEVER;
    tether__list_init(&dues->news);
    tether__heap_init(&dues->heap, is_due_first);
}

void tether__call_dues_add_locked(struct tether__call_dues *dues, struct tether__call *call)
{
    call->due.in_heap = false;
    if (call->deadline == TETHER__NEVER) {
        tether__list_init(&call->due.node);
        return;
    }
    tether__list_push_back(&dues->news, &call->due.node);
    if (call->ask_at < dues->next)
        dues->next = call->ask_at;
}

void tether__call_dues_remove_locked(struct tether__call_dues *dues, struct tether__call *call)
{
    if (call->due.in_heap)
        tether__heap_remove(&dues->heap, &call->due.heap_node);
    else
        tether__list_remove(&call->due.node);
}

static void put_in_heap_locked(struct tether__call_dues *dues, struct tether__call *call)
{
    call->due.in_heap = true;
    tether__heap_insert(&dues->heap, &call->due.heap_node);
}

/* Moves one call from the list `news` into the heap. False: the list is empty. */
static bool sort_one_locked(struct tether__call_dues *dues)
{
    struct tether__list *node = tether__list_pop_front(&dues->news);
    if (node)
        put_in_heap_locked(dues, tether__list_entry(node, struct tether__call, due.node));
    return node;
}

static struct tether__call *first_due_locked(const struct tether__call_dues *dues, int64_t now)
{
    struct tether__heap_node *top = tether__heap_top(&dues->heap);
    return top && due_of(call_of(top)) <= now ? call_of(top) : NULL;
}

/* Fails a call whose deadline is over. Adds any other due call to the question `asked`. */
static void act_on_locked(struct tether__peer *peer,
                          struct tether__call *call,
                          int64_t now,
                          struct tether__asked *asked)
{
    struct tether__call_dues *dues = &peer->session->dues;
    if (call->deadline <= now) {
        tether__call_expire_locked(peer, call);
        return;
    }
    tether__heap_remove(&dues->heap, &call->due.heap_node);
    tether__call_ask_later_locked(asked, call);
    put_in_heap_locked(dues, call);
}

int64_t tether__calls_expire_locked(struct tether__peer *peer, int64_t now)
{
    struct tether__call_dues *dues = &peer->session->dues;
    struct tether__asked asked = {.n = 0};
    struct tether__call *call;
    int steps = 0;
    while (steps < TETHER__CALLS_AT_ONCE && sort_one_locked(dues))
        steps++;
    for (; steps < TETHER__CALLS_AT_ONCE && (call = first_due_locked(dues, now)); steps++)
        act_on_locked(peer, call, now, &asked);
    tether__calls_ask_locked(peer, &asked);
    if (steps == TETHER__CALLS_AT_ONCE)
        return now;
    struct tether__heap_node *top = tether__heap_top(&dues->heap);
    return top ? due_of(call_of(top)) : TETHER__NEVER;
}
