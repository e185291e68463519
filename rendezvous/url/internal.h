/* A rendezvous for the agent, which counts the workers itself. */
#ifndef TETHER_RENDEZVOUS_URL_INTERNAL_H
#define TETHER_RENDEZVOUS_URL_INTERNAL_H

#include "rendezvous/rendezvous.h"

/* Like tether_rendezvous() with rank and world size from the URL, but rank 0 does not wait until
 * the others have connected: the agent waits for them later and can say which are missing. */
tether_status tether__rendezvous_alone(const char *url,
                                       int timeout_ms,
                                       struct tether_world *ret_world,
                                       tether_error *reterr);

#endif
