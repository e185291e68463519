/* A readable trace of a simulation: one line for each message and each fault. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "protos/rpc.pb-c.h"
#include "rpc/peer/calls/slots.h"
#include "tests/rpc/lib/sim_internal.h"

void tether_sim_trace(struct tether_sim *sim, bool on)
{
    sim->trace = on;
}

static void print_time(const struct tether_sim *sim)
{
    int64_t us = tether_sim_now(sim) / 1000;
    fprintf(stderr, "%6" PRId64 ".%03d ms  ", us / 1000, (int)(us % 1000));
}

void tether_sim_note(struct tether_sim *sim, const char *format, ...)
{
    if (!sim->trace)
        return;
    va_list args;
    va_start(args, format);
    print_time(sim);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
}

static const char *name_of(const struct tether_sim_worker *worker)
{
    return worker && worker->agent ? worker->agent->name : "?";
}

static void print_id(const char *before, const Tether__RefId *id)
{
    if (id)
        fprintf(stderr, "%s%u.%" PRIu64 ".%" PRIu64, before, id->creator, id->incarnation,
                id->counter);
}

static void print_numbers(const char *before, const uint64_t *numbers, size_t n)
{
    if (n == 3)
        fprintf(stderr, "%s%" PRIu64 ".%" PRIu64 ".%" PRIu64, before, numbers[0], numbers[1],
                numbers[2]);
}

static void print_nth(const char *before, const Tether__RefIds *ids, size_t i)
{
    fprintf(stderr, "%s%u.%" PRIu64 ".%" PRIu64, before, ids->creator[i], ids->incarnation[i],
            ids->counter[i]);
}

static void print_refs(Tether__Ref **refs, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        print_id(" ref ", refs[i]->id);
        print_id(" fork ", refs[i]->fork);
    }
}

static void print_state(const Tether__State *state)
{
    fprintf(stderr,
            "state from %" PRIu64 "/%" PRIu64 " to %" PRIu64 "/%" PRIu64 " received %" PRIu64,
            state->from_incarnation, state->from_fence, state->to_incarnation, state->to_fence,
            state->received);
}

static void print_frame(const Tether__Frame *frame)
{
    switch (frame->body_case) {
        case TETHER__FRAME__BODY_HELLO1:
            fprintf(stderr, "hello 1 from %s", frame->hello1->from_name);
            break;
        case TETHER__FRAME__BODY_HELLO2:
            fprintf(stderr, "hello 2 from %s", frame->hello2->from_name);
            break;
        case TETHER__FRAME__BODY_HELLO3:
            fprintf(stderr, "hello 3, ");
            print_state(frame->hello3->state);
            break;
        case TETHER__FRAME__BODY_STATE:
            print_state(frame->state);
            break;
        case TETHER__FRAME__BODY_PING:
            fprintf(stderr, frame->ping->answer ? "ping answer" : "ping");
            break;
        case TETHER__FRAME__BODY_BLOB:
            fprintf(stderr, "piece of blob %" PRIu64, frame->blob->number);
            break;
        case TETHER__FRAME__BODY_CALL:
            fprintf(stderr, "call %" PRIx64 " '%s'", frame->call->id, frame->call->function);
            print_id(" target ", frame->call->target);
            print_numbers(" result ", frame->call->result, frame->call->n_result);
            print_numbers(" fork ", frame->call->result_fork, frame->call->n_result_fork);
            print_refs(frame->call->ref, frame->call->n_ref);
            break;
        case TETHER__FRAME__BODY_REPLY:
            fprintf(stderr, "reply %" PRIx64 " %s %s", frame->reply->id,
                    tether_status_name((tether_status)frame->reply->status), frame->reply->error);
            print_refs(frame->reply->ref, frame->reply->n_ref);
            break;
        case TETHER__FRAME__BODY_CANCEL:
            fprintf(stderr, "cancel %" PRIx64, frame->cancel->id);
            break;
        case TETHER__FRAME__BODY_GOODBYE:
            fprintf(stderr, "goodbye");
            break;
        case TETHER__FRAME__BODY_FORK_REQUEST:
            fprintf(stderr, "fork-request %" PRIx64, frame->fork_request->id);
            print_id(" of ", frame->fork_request->object);
            print_id(" fork ", frame->fork_request->fork);
            break;
        case TETHER__FRAME__BODY_CHILD_ACCEPT:
            fprintf(stderr, "child-accept");
            for (size_t i = 0; i < frame->child_accept->fork->n_counter; i++)
                print_nth(" ", frame->child_accept->fork, i);
            break;
        case TETHER__FRAME__BODY_USER_DELETE:
            fprintf(stderr, "user-delete");
            for (size_t i = 0; i < frame->user_delete->fork->n_counter; i++) {
                print_nth(" ", frame->user_delete->object, i);
                print_nth(" fork ", frame->user_delete->fork, i);
            }
            break;
        case TETHER__FRAME__BODY_FETCH:
            fprintf(stderr, "fetch %" PRIx64, frame->fetch->id);
            print_id(" of ", frame->fetch->object);
            break;
        default:
            fprintf(stderr, "frame of kind %d", (int)frame->body_case);
    }
}

void tether_sim_trace_message(const struct tether_sim_conn *conn,
                              const struct tether_sim_buffer *buffer)
{
    struct tether_sim *sim = conn->worker->sim;
    if (!sim->trace)
        return;
    Tether__Batch *batch = tether__batch__unpack(NULL, buffer->len, buffer->data);
    for (size_t i = 0; batch && i < batch->n_frame; i++) {
        print_time(sim);
        fprintf(stderr, "  %s -> %s  #%" PRIu64 " ", name_of(conn->with), name_of(conn->worker),
                batch->frame[i]->seq);
        print_frame(batch->frame[i]);
        fputc('\n', stderr);
    }
    if (batch)
        tether__batch__free_unpacked(batch, NULL);
}
