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

/* Makes `*error` say that nothing has failed. It leaves the rest of the text as it is: on the path
 * of a call, clearing all of it costs as much as a lock. */
static inline void tether__error_init(tether_error *error)
{
    error->code = TETHER_OK;
    error->message[0] = '\0';
}

#endif
