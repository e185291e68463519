/* The table of start numbers: each belongs to at most one peer. Ids of objects begin with the start
 * number of their creator. So a worker that connects with the number of another one could use up
 * the object ids of that one.
 *
 * Happy path: a peer takes its number before its session begins, and holds it until it has a later
 * one or is dropped.
 *
 * Failure modes: a peer with a number that another peer holds is admitted only after the directory
 * has confirmed the number. Then the other peer loses the number: its session ends at the next
 * tick, and until then only peers that the directory lists can take a number.
 *
 * Lock: `mu` is a leaf; peer->mu may be held.
 */
#ifndef TETHER_RPC_PEER_STARTS_H
#define TETHER_RPC_PEER_STARTS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/map.h"
#include "base/status.h"

struct tether__peer;

struct tether__starts {
    struct tether__map by_number; /* the `number` of each struct tether__start; under mu */
    /* peers that have lost their number, and whose session has not been ended yet */
    _Atomic uint32_t n_lost;
    pthread_mutex_t mu;
};

/* The start number of one peer. */
struct tether__start {
    uint64_t number;   /* key in starts->by_number; 0: the peer has no number; under starts->mu */
    _Atomic bool lost; /* another peer has taken the number */
};

void tether__starts_init(struct tether__starts *starts);
void tether__starts_fini(struct tether__starts *starts);

/* Takes the number for the peer, which gives its previous number back. If the peer's record in the
 * directory (peer->dialer.record) has the number, it is taken away from any other peer. peer->mu is
 * held. TETHER_EUNAVAILABLE: another peer holds the number, or some peer is about to lose its own;
 * TETHER_ENOMEM. */
tether_status tether__start_take_locked(struct tether__peer *peer,
                                        uint64_t number,
                                        tether_error *reterr);

/* Gives the peer's number back, because the peer is dropped. */
void tether__start_give_back_locked(struct tether__peer *peer);

/* Whether the peer has lost its number since the last call: then its session must end. */
bool tether__start_was_lost_locked(struct tether__peer *peer);

#endif
