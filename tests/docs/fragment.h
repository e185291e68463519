/* Declarations that the C blocks of the documents may use. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/rendezvous.h"
#include "rendezvous/store.h"
#include "rendezvous/store_tcp.h"
#include "rpc/agent.h"
#include "rref/rref.h"

extern tether_agent *agent;
extern tether_store *store;
extern tether_value *arg;
extern tether_rref *rref;
extern tether_error err;
extern tether_rref_lost_fn on_lost;
