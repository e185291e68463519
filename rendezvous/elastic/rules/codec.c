/* Encodes the state as bytes and decodes it. The decoder checks everything that it reads. */
#include "rendezvous/elastic/rules/codec.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "rendezvous/elastic/rules/pb.h"

#define MAGIC 0x565a4452u /* the characters "RDZV" */
#define VERSION 1u
#define MAX_LEFT_MS UINT64_C(31536000000) /* a year, the limit that settings.c sets */

/* The messages of all lists in one block, and the array of pointers that protobuf-c needs. */
struct members {
    Tether__Rendezvous__Member *messages;
    Tether__Rendezvous__Member **pointers;
    size_t used;
};

static void add_list(struct members *members,
                     const struct tether__rdzv_roster *roster,
                     size_t *ret_n,
                     Tether__Rendezvous__Member ***ret_list)
{
    *ret_n = roster->n;
    *ret_list = members->pointers + members->used;
    for (size_t i = 0; i < roster->n; i++) {
        const struct tether__rdzv_member *member = roster->members[i];
        struct tether__rdzv_self self = {member->node, member->hint, member->previous, 0};
        Tether__Rendezvous__Member *message = &members->messages[members->used];
        tether__rdzv_pb_from_self(message, &self, member->rank);
        members->pointers[members->used++] = message;
    }
}

tether_status tether__rdzv_state_encode(const struct tether__rdzv_state *state,
                                        int64_t now,
                                        tether_buf *ret_bytes,
                                        tether_error *reterr)
{
    size_t n = state->participants.n + state->wait_list.n + state->redundancy_list.n;
    struct members members = {
        .messages = tether__calloc(n + 1, sizeof *members.messages),
        .pointers = tether__calloc(n + 1, sizeof *members.pointers),
    };
    tether_status st = TETHER_ENOMEM;
    if (members.messages && members.pointers) {
        Tether__Rendezvous__State message = TETHER__RENDEZVOUS__STATE__INIT;
        Tether__Rendezvous__LastCall last_call = TETHER__RENDEZVOUS__LAST_CALL__INIT;
        message.magic = MAGIC;
        message.version = VERSION;
        message.round = state->round;
        message.complete = state->complete;
        message.closed = state->closed;
        message.world_size = (uint32_t)state->world_size;
        message.last_calls = state->last_calls;
        message.term = state->term;
        message.applied = state->applied;
        if (state->deadline != TETHER__NEVER) {
            int64_t left = state->deadline - now;
            last_call.number = state->last_calls;
            last_call.left_ms = left > 0 ? (uint64_t)(left / TETHER__NS_PER_MS) : 0;
            message.last_call = &last_call;
        }
        add_list(&members, &state->participants, &message.n_participants, &message.participants);
        add_list(&members, &state->wait_list, &message.n_wait_list, &message.wait_list);
        add_list(&members, &state->redundancy_list, &message.n_redundancy_list,
                 &message.redundancy_list);
        st = tether__pb_pack(&message.base, ret_bytes);
    }
    tether__free(members.messages);
    tether__free(members.pointers);
    if (st != TETHER_OK)
        return tether_error_set(reterr, st,
                                "out of memory to write a rendezvous state of %zu nodes", n);
    return TETHER_OK;
}

static tether_status corrupt(tether_error *reterr, const char *why)
{
    return tether_error_set(reterr, TETHER_ECORRUPT,
                            "the rendezvous state is corrupt: %s; another program may use the same "
                            "store and run id",
                            why);
}

static tether_status read_list(struct tether__rdzv_roster *roster,
                               Tether__Rendezvous__Member **list,
                               size_t n,
                               tether_error *reterr)
{
    if (n > TETHER_RDZV_MAX_NODES)
        return corrupt(reterr, "it has more nodes than the limit");
    if (tether__rdzv_roster_reserve(roster, n) != TETHER_OK)
        return tether_error_set(reterr, TETHER_ENOMEM, "out of memory for a list of %zu nodes", n);
    for (size_t i = 0; i < n; i++) {
        struct tether__rdzv_self self;
        if (!tether__rdzv_pb_to_self(list[i], &self))
            return corrupt(reterr, "a node has an address or a rank that can't be");
        if (tether__rdzv_roster_find(roster, &self.node))
            return corrupt(reterr, "a node is listed twice");
        struct tether__rdzv_member *member = tether__rdzv_roster_add(roster, &self.node);
        if (!member)
            return tether_error_set(reterr, TETHER_ENOMEM, "out of memory for a list of %zu nodes",
                                    n);
        member->rank = (int32_t)list[i]->rank;
        member->hint = self.hint;
        member->previous = self.previous;
    }
    return TETHER_OK;
}

static tether_status read_message(const Tether__Rendezvous__State *message,
                                  int64_t now,
                                  struct tether__rdzv_state *state,
                                  tether_error *reterr)
{
    if (message->world_size > TETHER_RDZV_MAX_NODES)
        return corrupt(reterr, "its round is larger than can be");
    state->round = message->round;
    state->complete = message->complete;
    state->closed = message->closed;
    state->world_size = (int32_t)message->world_size;
    state->last_calls = message->last_calls;
    state->term = message->term;
    state->applied = message->applied;
    if (message->last_call) {
        if (message->last_call->left_ms > MAX_LEFT_MS)
            return corrupt(reterr, "its last call is longer than can be");
        state->deadline = now + (int64_t)message->last_call->left_ms * TETHER__NS_PER_MS;
    }
    tether_status st =
        read_list(&state->participants, message->participants, message->n_participants, reterr);
    if (st == TETHER_OK)
        st = read_list(&state->wait_list, message->wait_list, message->n_wait_list, reterr);
    if (st == TETHER_OK)
        st = read_list(&state->redundancy_list, message->redundancy_list,
                       message->n_redundancy_list, reterr);
    return st;
}

tether_status tether__rdzv_state_decode(tether_bytes bytes,
                                        int64_t now,
                                        struct tether__rdzv_state *ret_state,
                                        tether_error *reterr)
{
    Tether__Rendezvous__State *message;
    tether_status st = tether__pb_unpack(&tether__rendezvous__state__descriptor, bytes, &message);
    if (st == TETHER_ENOMEM)
        return tether_error_set(reterr, st, "out of memory to read a rendezvous state of %zu bytes",
                                bytes.len);
    if (st != TETHER_OK)
        return corrupt(reterr, "it can't be read");
    struct tether__rdzv_state state;
    tether__rdzv_state_init(&state);
    if (message->magic != MAGIC)
        st = corrupt(reterr, "it is not Tether's");
    else if (message->version != VERSION)
        st = tether_error_set(reterr, TETHER_ECORRUPT,
                              "the rendezvous state has version %" PRIu32
                              ", this program knows version %u: run the same release on all nodes",
                              message->version, VERSION);
    else
        st = read_message(message, now, &state, reterr);
    tether__pb_free(message);
    if (st != TETHER_OK) {
        tether__rdzv_state_fini(&state);
        return st;
    }
    *ret_state = state;
    return TETHER_OK;
}
