/* The budget that all plain calls of a worker have together: calls that have not ended, bytes of
 * requests that have not been answered, bytes of results that their clients have not taken.
 *
 * Happy path: enter() when the client was admitted, before the request is read; request() when gRPC
 * has all of the request, before it is copied; result() when the owner answers, which gives the
 * request's bytes back; leave() when the call has ended and gRPC has sent the reply.
 *
 * Failure modes: a request that does not fit is refused with TETHER_EBUSY. Only gRPC knows how long
 * a request will be: those that it is reading count against its quota (life.c). A client that never
 * sends its request must not keep others out: when there are too many calls, the oldest of those
 * that are being read is cancelled.
 */
#include "rpc/transport/grpc/grpc.h"

/* Requests and results up to this size always fit, so that large ones of one client do not keep
 * out all others. The limit on the number of calls bounds the small ones. */
#define SMALL_BYTES ((size_t)16 << 10)

/* Whether `len` more bytes fit into the budget. If nothing is used, any length fits. */
static bool fits(size_t used, size_t len, size_t most)
{
    return used == 0 || len <= SMALL_BYTES || (used <= most && len <= most - used);
}

/* Takes the oldest call whose request has not arrived out of the budget and returns it with a
 * reference. NULL: there is none. */
static grpc_call *take_oldest_locked(struct tether__grpc_budget *budget)
{
    struct tether__list *node = tether__list_pop_front(&budget->reading);
    if (!node)
        return NULL;
    struct tether__grpc_charge *charge =
        tether__list_entry(node, struct tether__grpc_charge, reading);
    charge->is_counted = false;
    budget->n_calls--;
    grpc_call_ref(charge->call);
    return charge->call;
}

void tether__grpc_charge_init(struct tether__grpc_charge *charge)
{
    *charge = (struct tether__grpc_charge){.call = NULL};
    tether__list_init(&charge->reading);
}

tether_status tether__grpc_budget_enter(struct tether__grpc *transport,
                                        struct tether__grpc_charge *charge,
                                        grpc_call *call,
                                        tether_error *reterr)
{
    struct tether__grpc_budget *budget = &transport->budget;
    grpc_call *oldest = NULL;
    pthread_mutex_lock(&transport->mu);
    if (budget->n_calls >= transport->max_plain_calls)
        oldest = take_oldest_locked(budget);
    size_t n = budget->n_calls;
    bool enters = n < transport->max_plain_calls;
    if (enters) {
        charge->call = call;
        charge->is_counted = true;
        budget->n_calls++;
        tether__list_push_back(&budget->reading, &charge->reading);
    }
    pthread_mutex_unlock(&transport->mu);
    if (oldest) {
        grpc_call_cancel_with_status(oldest, GRPC_STATUS_RESOURCE_EXHAUSTED,
                                     "the request did not come before too many other calls: send "
                                     "it at once, or raise max_queued there",
                                     NULL);
        grpc_call_unref(oldest);
    }
    if (enters)
        return TETHER_OK;
    return tether_error_set(reterr, TETHER_EBUSY,
                            "%zu calls of plain gRPC clients have not ended there: wait for some, "
                            "or raise max_queued there",
                            n);
}

tether_status tether__grpc_budget_request(struct tether__grpc *transport,
                                          struct tether__grpc_charge *charge,
                                          size_t len,
                                          tether_error *reterr)
{
    struct tether__grpc_budget *budget = &transport->budget;
    pthread_mutex_lock(&transport->mu);
    size_t used = budget->request_bytes;
    bool has_room = charge->is_counted && fits(used, len, transport->max_plain_bytes);
    tether__list_remove(&charge->reading);
    if (has_room) {
        budget->request_bytes += len;
        charge->request_bytes = len;
    }
    pthread_mutex_unlock(&transport->mu);
    if (has_room)
        return TETHER_OK;
    return tether_error_set(reterr, TETHER_EBUSY,
                            "a request of %zu bytes, with %zu bytes of plain gRPC clients there "
                            "already: wait for some, or raise max_bytes_per_peer there",
                            len, used);
}

tether_status tether__grpc_budget_result(struct tether__grpc *transport,
                                         struct tether__grpc_charge *charge,
                                         size_t len,
                                         tether_error *reterr)
{
    struct tether__grpc_budget *budget = &transport->budget;
    pthread_mutex_lock(&transport->mu);
    size_t used = budget->result_bytes;
    bool has_room = fits(used, len, transport->max_plain_bytes);
    budget->request_bytes -= charge->request_bytes;
    charge->request_bytes = 0;
    if (has_room) {
        budget->result_bytes += len;
        charge->result_bytes = len;
    }
    pthread_mutex_unlock(&transport->mu);
    if (has_room)
        return TETHER_OK;
    return tether_error_set(reterr, TETHER_EBUSY,
                            "the result of %zu bytes cannot be sent: %zu bytes of results are "
                            "still on their way to plain gRPC clients: wait for some, or raise "
                            "max_bytes_per_peer there",
                            len, used);
}

void tether__grpc_budget_leave(struct tether__grpc *transport, struct tether__grpc_charge *charge)
{
    struct tether__grpc_budget *budget = &transport->budget;
    pthread_mutex_lock(&transport->mu);
    tether__list_remove(&charge->reading);
    budget->n_calls -= charge->is_counted;
    budget->request_bytes -= charge->request_bytes;
    budget->result_bytes -= charge->result_bytes;
    charge->is_counted = false;
    charge->request_bytes = charge->result_bytes = 0;
    pthread_mutex_unlock(&transport->mu);
}
