/* Statuses that come from outside of the library. */
#ifndef TETHER_BASE_STATUS_INTERNAL_H
#define TETHER_BASE_STATUS_INTERNAL_H

#include <stdbool.h>

#include "base/status.h"

/* Converts a number that user code or a peer gave as a status. A number that is no status (memory
 * that was not initialised, or a status of a later version) becomes TETHER_EREMOTE: the library
 * keeps statuses in a byte, where such a number could become TETHER_OK. */
static inline tether_status tether__status_from_outside(int number)
{
    bool known = number >= TETHER_OK && number <= TETHER_EINTERNAL;
    return known ? (tether_status)number : TETHER_EREMOTE;
}

#endif
