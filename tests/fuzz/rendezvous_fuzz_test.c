/* Whatever another program has written where a dynamic rendezvous keeps its state and notes: it is
 * read or refused, and what can be read survives being written again.
 *
 * The first byte says what the rest is taken for: a state, a head, a wish or a place.
 */
#include <string.h>

#include "rendezvous/dynamic/notes.h"
#include "rendezvous/dynamic/state_codec.h"
#include "tests/fuzz/fuzz.h"

static void try_state(tether_bytes bytes)
{
    struct tether__rdzv_state state, again;
    if (tether__rdzv_state_decode(bytes, 0, &state, NULL) != TETHER_OK)
        return;
    tether_buf written = TETHER_BUF_INIT;
    fuzz_check(tether__rdzv_state_encode(&state, 0, &written, NULL) == TETHER_OK);
    fuzz_check(tether__rdzv_state_decode(tether_buf_bytes(&written), 0, &again, NULL) == TETHER_OK);
    fuzz_check(state.round == again.round && state.complete == again.complete &&
               state.closed == again.closed && state.deadline == again.deadline &&
               state.participants.n == again.participants.n &&
               state.wait_list.n == again.wait_list.n &&
               state.redundancy_list.n == again.redundancy_list.n);
    if (tether__rdzv_state_complete(&state) == TETHER_OK) {
        size_t n = state.participants.n;
        for (size_t i = 0; i < n; i++)
            fuzz_check((size_t)state.participants.members[i]->rank < n);
    }
    tether__rdzv_state_fini(&state);
    tether__rdzv_state_fini(&again);
    tether_buf_fini(&written);
}

static tether_status take_wish(void *userdata,
                               enum tether__rdzv_wish_kind kind,
                               const struct tether__rdzv_self *self,
                               tether_error *reterr)
{
    (void)userdata, (void)reterr;
    if (kind != 0)
        fuzz_check(self->node.addr[0] != '\0' && strlen(self->node.addr) <= TETHER__RDZV_ADDR_MAX);
    return TETHER_OK;
}

static void try_note(const struct tether__rdzv_notes *notes, int kind, tether_bytes bytes)
{
    static const char *const keys[] = {"head", "wish/1", "place/1/node_1_0"};
    struct tether__rdzv_head head;
    struct tether__rdzv_place place;
    struct tether__rdzv_node node = {"node", 1, 0};
    tether_buf raw = TETHER_BUF_INIT;
    uint64_t taken = 0;
    if (tether_store_set(notes->store, keys[kind], bytes, 0, NULL) != TETHER_OK)
        return;
    if (kind == 0 && tether__rdzv_head_read(notes, 0, &head, &raw, NULL) == TETHER_OK) {
        bool swapped = false;
        fuzz_check(tether__rdzv_head_swap(notes, &head, 0, &raw, &swapped, NULL) == TETHER_OK);
        fuzz_check(swapped);
    } else if (kind == 1) {
        fuzz_check(tether__rdzv_wish_read(notes, 1, 1, 0, take_wish, NULL, &taken, NULL) ==
                   TETHER_OK);
        fuzz_check(taken == 1);
    } else if (kind == 2) {
        tether__rdzv_place_read(notes, 1, &node, 0, &place, NULL);
    }
    tether_buf_fini(&raw);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    tether_bytes bytes = tether_bytes_of(data + 1, size - 1);
    if (data[0] % 4 == 0) {
        try_state(bytes);
        return 0;
    }
    struct tether__rdzv_notes notes = {NULL};
    if (tether_store_hash_new(&notes.store, NULL) != TETHER_OK)
        return 0;
    try_note(&notes, data[0] % 4 - 1, bytes);
    tether_store_release(notes.store);
    return 0;
}
