/* A call of a client that speaks only gRPC, which is answered once: shared by plain.c and health.c.
 */
#ifndef TETHER_RPC_TRANSPORT_GRPC_ANSWER_H
#define TETHER_RPC_TRANSPORT_GRPC_ANSWER_H

#include "rpc/transport/grpc/grpc.h"

struct tether__grpc_answer {
    struct tether__grpc *transport;
    grpc_call *call;
    uint64_t unproved_id; /* of the connection; 0: its client has shown who it is */
    struct tether__grpc_op replied, over;
    atomic_uint refs; /* one for each op, also while it is not started */
    int canceled;
    /* Hears that the call is over, when `canceled`; and frees what the answer is part of. */
    void (*give_up)(struct tether__grpc_answer *answer);
    void (*free)(struct tether__grpc_answer *answer);
};

/* Turns a caller away, which is all that can be done without memory or while stopping. TAKES
 * `call`. */
void tether__grpc_turn_away(grpc_call *call);

/* TAKES `call` and begins to watch it. False: it was turned away, and free() will not be called. */
bool tether__grpc_answer_begin(struct tether__grpc_answer *answer,
                               struct tether__grpc *transport,
                               grpc_call *call);

/* Replies with `message` when `status` is TETHER_OK, else with `error`. Any thread. TAKES a retain
 * of each piece. */
void tether__grpc_answer_send(struct tether__grpc_answer *answer,
                              tether_status status,
                              const char *error,
                              const struct tether__slice *pieces,
                              size_t n);
void tether__grpc_answer_error(struct tether__grpc_answer *answer,
                               tether_status status,
                               const char *error);

#endif
