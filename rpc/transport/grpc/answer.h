/* A gRPC call that is answered exactly once; plain.c and health.c share it.
 */
#ifndef TETHER_RPC_TRANSPORT_GRPC_ANSWER_H
#define TETHER_RPC_TRANSPORT_GRPC_ANSWER_H

#include "rpc/transport/grpc/grpc.h"

struct tether__grpc_answer {
    struct tether__grpc *transport;
    grpc_call *call;
    uint64_t unproved_id; /* id of the connection in unproved.c; 0: its client has authenticated */
    struct tether__grpc_op replied, over;
    atomic_uint refs; /* one count for each op, even before it is started */
    int canceled;
    /* give_up() is called when the call has ended, with `canceled` if the client gave up. free()
     * frees the struct that embeds the answer. */
    void (*give_up)(struct tether__grpc_answer *answer);
    void (*free)(struct tether__grpc_answer *answer);
};

/* Refuses a call when there is no memory, or while the transport stops. TAKES `call`. */
void tether__grpc_turn_away(grpc_call *call);

/* TAKES `call` and begins to watch for its end. False: the call was refused, and free() will not
 * be called. */
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
