/* Two workers, their two streams, and every order in which things can happen to them.
 *
 * The sessions are the shipped ones; the lanes are reduced to counters, so that all reachable
 * states of a small world can be visited (breadth first). Things that happen: a stream opens or is
 * cut, a message arrives, a worker numbers a frame, fences the other, is restarted (knowing the
 * other's incarnation from the directory or not), the first state of an earlier stream turns up
 * late, an impostor of a worker forges a number of its dials, as is possible without a token, and a
 * worker that has fenced the other forgets it (peer/table.h).
 *
 * The checks of every state:
 *   - a frame that is taken belongs to the session of who takes it, and follows the one before;
 *   - numbers change without a reset only where no frame has gone or come in the session;
 *   - no worker that is alive is rejected;
 *   - when nothing more happens than that streams open and messages arrive, both streams come up,
 *     in the same session, everything numbered arrives, and few hellos are needed for it.
 */
#ifndef TETHER_TESTS_RPC_HANDSHAKE_PAIRING_MODEL_H
#define TETHER_TESTS_RPC_HANDSHAKE_PAIRING_MODEL_H

#include <stdbool.h>
#include <stdint.h>

enum { ENDS = 2, STREAMS = 2, QUEUE = 12 }; /* end n has dialled stream n */

struct msg {
    uint8_t is_hello;
    uint8_t from, from_fence, to, to_fence; /* a hello names them, a frame belongs to them */
    uint8_t number;                         /* a hello's `received`, a frame's number */
    uint8_t dial;                           /* a hello's */
};

/* One end of one stream, with its lane. */
struct half {
    uint8_t knows; /* the identity of the other end: it dialled, or has received a hello */
    uint8_t announced_epoch; /* the epoch of the last hello */
    uint8_t up;
    uint8_t numbered, given, acked, received;
};

struct end {
    uint8_t incarnation;
    uint8_t peer, my_fence, peer_fence, epoch, met, peer_dial, may_be_known; /* the session */
    uint8_t forgotten; /* the highest start that it has forgotten */
    uint8_t dials;
    struct half half[STREAMS];
};

struct world {
    struct end end[ENDS];
    uint8_t open[STREAMS];
    uint8_t fences, restarts, cuts, frames, late_hellos, forgeries; /* that may still happen */
    uint8_t forged;                                                 /* one has happened */
    uint8_t forgets;                                                /* that may still happen */
    uint8_t any_forgot;                                             /* one has happened */
    uint8_t queued[STREAMS][ENDS];
    struct msg queue[STREAMS][ENDS][QUEUE]; /* by who receives */
    struct msg first[STREAMS];              /* the hello that opened it, until it arrives */
    struct msg late[STREAMS];               /* one that was cut before it arrived */
};

/* Everything that can happen next; a step is `kind * 4 + stream * 2 + end`. */
enum { OPEN, ARRIVE, FRAME, FENCE, CUT, RESTART, LATE, FORGE, FORGET, KINDS };
extern const char *const model_kinds[KINDS];

/* The rule that the last step broke; NULL: none. */
extern const char *model_violation;
extern unsigned model_hellos_sent;

/* Does the thing numbered `step`, if it can happen now. */
bool model_try_step(struct world *world, int step);

void model_say_world(const struct world *world);

/* From here on only streams open and messages arrive, in an order drawn from `seed`. */
void model_settle(struct world world, unsigned seed);

#endif
