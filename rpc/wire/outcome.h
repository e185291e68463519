/* How a step of the library went, apart from any status.
 *
 * Functions, deserialise() and a broken reference may carry any status, TETHER_EBUSY and
 * TETHER_ENOMEM included. So a status is only reported to callers; an outcome decides what the
 * library does next.
 */
#ifndef TETHER_RPC_WIRE_OUTCOME_H
#define TETHER_RPC_WIRE_OUTCOME_H

#include "base/status_internal.h"

enum tether__outcome {
    TETHER__DONE,      /* the step succeeded: go on */
    TETHER__WAITS,     /* the work continues later, without the caller */
    TETHER__REFUSED,   /* it failed; the error's code and message say why */
    TETHER__MALFORMED, /* the message cannot be read: its sender is not to be trusted any more */
    TETHER__NO_MEMORY, /* nothing was done, for lack of memory; the sender keeps and resends it */
};

/* Converts the status of a step that runs no user code, so TETHER_ENOMEM comes from the library
 * itself. */
static inline enum tether__outcome tether__outcome_of(tether_status status)
{
    switch (status) {
        case TETHER_OK:
            return TETHER__DONE;
        case TETHER_ENOMEM:
            return TETHER__NO_MEMORY;
        default:
            return TETHER__REFUSED;
    }
}

/* Converts the status of unpacking a message of a peer. */
static inline enum tether__outcome tether__outcome_of_unpacking(tether_status status)
{
    enum tether__outcome outcome = tether__outcome_of(status);
    return outcome == TETHER__REFUSED ? TETHER__MALFORMED : outcome;
}

#endif
