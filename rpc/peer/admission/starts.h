/* Start numbers, one worker each. Ids of objects begin with the number of their creator's start, so
 * a worker that says hello under the number of another one could use up that one's ids.
 *
 * Happy path: a peer takes its number before its session begins, and holds it until it comes with a
 * later one or is dropped.
 *
 * Failure modes: a peer with a number that another peer holds is not let in until the directory
 * says that the number is its own. Then the other one loses it: its session ends at the next tick,
 * and until then no peer takes a number.
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
    struct tether__map by_number; /* of struct tether__start, under mu */
    _Atomic uint32_t n_lost;      /* peers that have lost their number, and still have a session */
    pthread_mutex_t mu;
};

/* Of a peer. */
struct tether__start {
    uint64_t number;   /* the key of starts->by_number; 0: none; under starts->mu */
    _Atomic bool lost; /* another peer has it now */
};

void tether__starts_init(struct tether__starts *starts);
void tether__starts_fini(struct tether__starts *starts);

/* Takes the number for the peer, which gives back the one that it had. With the directory's word
 * for it (peer->dialer.record) the number is taken from another peer. peer->mu is held.
 * TETHER_EUNAVAILABLE: another peer holds it, or a peer is about to lose its own; TETHER_ENOMEM. */
tether_status tether__start_take_locked(struct tether__peer *peer,
                                        uint64_t number,
                                        tether_error *reterr);

/* The peer is dropped. */
void tether__start_give_back_locked(struct tether__peer *peer);

/* Whether the peer has lost its number since the last call: then its session must end. */
bool tether__start_was_lost_locked(struct tether__peer *peer);

#endif
