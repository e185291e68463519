/* Counted blocks and patterns, for the messages of the tests. */
#include <stdlib.h>
#include <string.h>

#include "base/macros.h"
#include "tests/lib/cmocka.h"
#include "tests/rpc/lib/transport_node.h"

struct block {
    struct tether__slice_owner owner;
    atomic_int refs;
    uint8_t data[];
};

static atomic_long live_blocks;

static void block_retain(struct tether__slice_owner *owner)
{
    atomic_fetch_add(&tether__container_of(owner, struct block, owner)->refs, 1);
}

static void block_release(struct tether__slice_owner *owner)
{
    struct block *block = tether__container_of(owner, struct block, owner);
    if (atomic_fetch_sub(&block->refs, 1) == 1) {
        free(block);
        atomic_fetch_sub(&live_blocks, 1);
    }
}

struct tether__slice wire_block(const void *data, size_t len)
{
    struct block *block = malloc(sizeof *block + len);
    assert_non_null(block);
    block->owner = (struct tether__slice_owner){block_retain, block_release, len};
    atomic_init(&block->refs, 1);
    if (len)
        memcpy(block->data, data, len);
    atomic_fetch_add(&live_blocks, 1);
    return (struct tether__slice){block->data, len, &block->owner};
}

long wire_live_blocks(void)
{
    return atomic_load(&live_blocks);
}

char *node_pattern(size_t len)
{
    char *data = malloc(len + 1);
    assert_non_null(data);
    for (size_t i = 0; i < len; i++)
        data[i] = (char)(i * 31 + len);
    return data;
}
