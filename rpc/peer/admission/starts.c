/* Which peer has which start number. See starts.h. */
#include "rpc/peer/admission/starts.h"

#include "rpc/agent/internal.h"
#include "rpc/group/directory.h"
#include "rpc/peer/peer.h"

void tether__starts_init(struct tether__starts *starts)
{
    pthread_mutex_init(&starts->mu, NULL);
    tether__map_init(&starts->by_number, &tether__map_u64);
}

void tether__starts_fini(struct tether__starts *starts)
{
    tether__map_fini(&starts->by_number);
    pthread_mutex_destroy(&starts->mu);
}

static void give_back(struct tether__starts *starts, struct tether__start *start)
{
    if (start->number)
        tether__map_del(&starts->by_number, &start->number);
    start->number = 0;
}

/* Returns the start of another peer that holds `number`; NULL if none does. */
static struct tether__start *find_other(struct tether__starts *starts,
                                        const struct tether__start *start,
                                        uint64_t number)
{
    uint64_t *found = tether__map_get(&starts->by_number, &number);
    struct tether__start *holder =
        found ? tether__container_of(found, struct tether__start, number) : NULL;
    return holder == start ? NULL : holder;
}

static tether_status put(struct tether__starts *starts,
                         struct tether__start *start,
                         uint64_t number,
                         tether_error *reterr)
{
    give_back(starts, start);
    start->number = number;
    if (tether__map_put(&starts->by_number, &start->number) == TETHER_OK)
        return TETHER_OK;
    start->number = 0;
    return tether_error_set(reterr, TETHER_ENOMEM, "no memory for a start number");
}

tether_status tether__start_take_locked(struct tether__peer *peer,
                                        uint64_t number,
                                        tether_error *reterr)
{
    struct tether__starts *starts = &peer->agent->starts;
    bool is_listed = peer->dialer.record.name[0] && peer->dialer.record.incarnation == number;
    tether_status st = TETHER_OK;
    pthread_mutex_lock(&starts->mu);
    struct tether__start *other = find_other(starts, &peer->start, number);
    bool is_taken = other && is_listed;
    if (is_taken) {
        give_back(starts, other);
        if (!atomic_exchange(&other->lost, true))
            atomic_fetch_add(&starts->n_lost, 1);
    }
    bool must_wait = atomic_load(&starts->n_lost) > 0 && !is_listed;
    if (peer->start.number != number && ((other && !is_taken) || must_wait))
        st = tether_error_set(reterr, TETHER_EUNAVAILABLE,
                              "start %llu of worker '%s' has to be looked up first: another worker "
                              "has said that the number is its own",
                              (unsigned long long)number, peer->name);
    else if (peer->start.number != number)
        st = put(starts, &peer->start, number, reterr);
    pthread_mutex_unlock(&starts->mu);
    if (is_taken)
        tether__agent_kick(peer->agent, 0);
    return st;
}

void tether__start_give_back_locked(struct tether__peer *peer)
{
    struct tether__starts *starts = &peer->agent->starts;
    pthread_mutex_lock(&starts->mu);
    give_back(starts, &peer->start);
    pthread_mutex_unlock(&starts->mu);
    tether__start_was_lost_locked(peer);
}

bool tether__start_was_lost_locked(struct tether__peer *peer)
{
    bool was_lost = atomic_exchange(&peer->start.lost, false);
    if (was_lost)
        atomic_fetch_sub(&peer->agent->starts.n_lost, 1);
    return was_lost;
}
