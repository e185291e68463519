/* Bytes of another program under the keys of a dynamic rendezvous: the decoders accept or refuse
 * them without harm, and an accepted message can be written again.
 *
 * The first byte selects the message: state, summary, request or assignment.
 */
#include <string.h>

#include "rendezvous/elastic/coordination/keys.h"
#include "rendezvous/elastic/rules/codec.h"
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

static tether_status take_request(void *userdata,
                                  enum tether__rdzv_request_kind kind,
                                  const struct tether__rdzv_self *self,
                                  tether_error *reterr)
{
    (void)userdata, (void)reterr;
    if (kind != 0)
        fuzz_check(self->node.addr[0] != '\0' && strlen(self->node.addr) <= TETHER__RDZV_ADDR_MAX);
    return TETHER_OK;
}

static void try_key(tether_store *store, int kind, tether_bytes bytes)
{
    static const char *const names[] = {"summary", "request/1", "assignment/1/node_1_0"};
    struct tether__rdzv_summary summary;
    struct tether__rdzv_assignment assignment;
    struct tether__rdzv_node node = {"node", 1, 0};
    tether_buf raw = TETHER_BUF_INIT;
    uint64_t taken = 0;
    if (tether_store_set(store, names[kind], bytes, 0, NULL) != TETHER_OK)
        return;
    if (kind == 0 && tether__rdzv_summary_read(store, 0, &summary, &raw, NULL) == TETHER_OK) {
        bool swapped = false;
        fuzz_check(tether__rdzv_summary_swap(store, &summary, 0, &raw, &swapped, NULL) ==
                   TETHER_OK);
        fuzz_check(swapped);
    } else if (kind == 1) {
        fuzz_check(tether__rdzv_request_read(store, 1, 1, 0, take_request, NULL, &taken, NULL) ==
                   TETHER_OK);
        fuzz_check(taken == 1);
    } else if (kind == 2) {
        tether__rdzv_assignment_read(store, 1, &node, 0, &assignment, NULL);
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
    tether_store *store = NULL;
    if (tether_store_hash_new(&store, NULL) != TETHER_OK)
        return 0;
    try_key(store, data[0] % 4 - 1, bytes);
    tether_store_release(store);
    return 0;
}
