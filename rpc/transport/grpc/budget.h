/* The budget that all plain calls of a transport share; see transport/grpc/budget.c. */
#ifndef TETHER_RPC_TRANSPORT_GRPC_BUDGET_H
#define TETHER_RPC_TRANSPORT_GRPC_BUDGET_H

#include <grpc/grpc.h>
#include <stdbool.h>

#include "base/list.h"
#include "base/status.h"

struct tether__grpc;

/* All fields are under transport->mu. */
struct tether__grpc_budget {
    size_t n_calls, request_bytes, result_bytes;
    struct tether__list reading; /* calls whose requests have not arrived, the oldest first */
};

/* The part of the budget that one call uses. */
struct tether__grpc_charge {
    struct tether__list reading;
    grpc_call *call;
    bool is_counted; /* the call is counted; false also after it was cancelled to make room */
    size_t request_bytes, result_bytes;
};

void tether__grpc_charge_init(struct tether__grpc_charge *charge);

/* Adds a call whose client was admitted, before its request is read. TETHER_EBUSY. */
tether_status tether__grpc_budget_enter(struct tether__grpc *transport,
                                        struct tether__grpc_charge *charge,
                                        grpc_call *call,
                                        tether_error *reterr);

/* Adds a request of `len` bytes that has arrived, before it is copied. TETHER_EBUSY. */
tether_status tether__grpc_budget_request(struct tether__grpc *transport,
                                          struct tether__grpc_charge *charge,
                                          size_t len,
                                          tether_error *reterr);

/* Replaces the request, which the owner has answered, by a result of `len` bytes. TETHER_EBUSY. */
tether_status tether__grpc_budget_result(struct tether__grpc *transport,
                                         struct tether__grpc_charge *charge,
                                         size_t len,
                                         tether_error *reterr);

/* Removes a call that has ended. Does nothing if it was removed already or never added. */
void tether__grpc_budget_leave(struct tether__grpc *transport, struct tether__grpc_charge *charge);

#endif
