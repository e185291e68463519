/* Different world sizes in one group. See sizes.h. */
#include "rpc/group/sizes.h"

#include <inttypes.h>
#include <stdio.h>

#include "rpc/agent/internal.h"

#define KEY "world_sizes"
#define STEP_MS 2000 /* limit of one request to the store */
#define TOLD_MS 3000 /* how long to wait until the later start has read the key */

/* The value of the key, in decimal: the later of the two starts, then the rank and world size of
 * each.
 */
struct clash {
    uint64_t later;
    unsigned rank, size, earlier_rank, earlier_size;
};
#define FORMAT "%" PRIu64 " %u %u %u %u"
#define SCAN "%" SCNu64 " %u %u %u %u"

static tether_status tell(const struct clash *clash, tether_error *reterr)
{
    return tether_error_set(reterr, TETHER_EINVAL,
                            "rank %u was started with world_size %u, and rank %u with %u: give "
                            "every worker the same world_size (WORLD_SIZE)",
                            clash->rank, clash->size, clash->earlier_rank, clash->earlier_size);
}

static void name_answer(char ret_key[64], uint64_t start)
{
    snprintf(ret_key, 64, KEY "/%" PRIu64, start);
}

static struct clash clash_of(const tether_agent *agent, const struct tether__worker_record *other)
{
    return (struct clash){other->incarnation, other->id, other->world_size, (unsigned)agent->rank,
                          (unsigned)agent->world_size};
}

tether_status tether__sizes_differ(const tether_agent *agent,
                                   const struct tether__worker_record *other,
                                   tether_error *reterr)
{
    struct clash clash = clash_of(agent, other);
    return tell(&clash, reterr);
}

tether_status tether__sizes_clash(tether_agent *agent,
                                  const struct tether__worker_record *other,
                                  tether_error *reterr)
{
    tether_store *store = agent->directory.store;
    struct clash clash = clash_of(agent, other);
    char text[96], answer[64];
    tether_buf ignored = TETHER_BUF_INIT;
    snprintf(text, sizeof text, FORMAT, clash.later, clash.rank, clash.size, clash.earlier_rank,
             clash.earlier_size);
    name_answer(answer, clash.later);
    if (tether_store_set(store, KEY, tether_bytes_str(text), STEP_MS, NULL) == TETHER_OK)
        tether_store_get(store, answer, TOLD_MS, &ignored, NULL);
    tether_buf_fini(&ignored);
    return tell(&clash, reterr);
}

tether_status tether__sizes_check(tether_agent *agent, tether_error *reterr)
{
    tether_store *store = agent->directory.store;
    struct clash clash;
    char answer[64];
    tether_buf text = TETHER_BUF_INIT;
    tether_status st = tether_store_try_get(store, KEY, STEP_MS, &text, NULL);
    bool counts = st == TETHER_OK && text.data &&
                  sscanf(text.data, SCAN, &clash.later, &clash.rank, &clash.size,
                         &clash.earlier_rank, &clash.earlier_size) == 5 &&
                  agent->self.incarnation <= clash.later;
    tether_buf_fini(&text);
    if (!counts)
        return TETHER_OK;
    if (agent->self.incarnation == clash.later) {
        name_answer(answer, clash.later);
        tether_store_set(store, answer, tether_bytes_str("read"), STEP_MS, NULL);
    }
    return tell(&clash, reterr);
}
