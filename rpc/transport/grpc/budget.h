/* The budget that all plain calls of a transport share; see transport/grpc/budget.c. */
#ifndef TETHER_RPC_TRANSPORT_GRPC_BUDGET_H
#define TETHER_RPC_TRANSPORT_GRPC_BUDGET_H

#include <grpc/grpc.h>
#include <stdbool.h>

#include "base/list.h"
#include "base/status.h"

struct tether__grpc;

/* Under transport->mu. */
struct tether__grpc_budget {
    size_t n_calls, request_bytes, result_bytes;
    struct tether__list reading; /* calls whose request has not come, the oldest first */
};

/* The share of one call. */
struct tether__grpc_charge {
    struct tether__list reading;
    grpc_call *call;
    bool is_counted; /* false also when it was cancelled to make room */
    size_t request_bytes, result_bytes;
};

void tether__grpc_charge_init(struct tether__grpc_charge *charge);

/* A client was admitted, and its request is about to be read. TETHER_EBUSY. */
tether_status tether__grpc_budget_enter(struct tether__grpc *transport,
                                        struct tether__grpc_charge *charge,
                                        grpc_call *call,
                                        tether_error *reterr);

/* The request has come and is about to be copied. TETHER_EBUSY. */
tether_status tether__grpc_budget_request(struct tether__grpc *transport,
                                          struct tether__grpc_charge *charge,
                                          size_t len,
                                          tether_error *reterr);

/* The owner no longer needs the request, and answers with `len` bytes. TETHER_EBUSY. */
tether_status tether__grpc_budget_result(struct tether__grpc *transport,
                                         struct tether__grpc_charge *charge,
                                         size_t len,
                                         tether_error *reterr);

/* The call has ended. Harmless when it has left, or never entered. */
void tether__grpc_budget_leave(struct tether__grpc *transport, struct tether__grpc_charge *charge);

#endif
