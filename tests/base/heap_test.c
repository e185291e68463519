/* The heap: order, removal from anywhere, and how many comparisons it takes. */
#include "base/heap.h"

#include <stdint.h>
#include <stdlib.h>

#include "tests/lib/cmocka.h"

struct item {
    struct tether__heap_node node;
    uint32_t key;
    bool in_heap;
};

static size_t n_comparisons;

static bool less(const struct tether__heap_node *a, const struct tether__heap_node *b)
{
    n_comparisons++;
    return tether__container_of(a, const struct item, node)->key <
           tether__container_of(b, const struct item, node)->key;
}

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005U + 1442695040888963407U;
    return (uint32_t)(*state >> 33);
}

static void check_node(const struct tether__heap_node *node, size_t *count)
{
    if (!node)
        return;
    ++*count;
    if (node->left) {
        assert_ptr_equal(node->left->parent, node);
        assert_false(less(node->left, node));
    }
    if (node->right) {
        assert_ptr_equal(node->right->parent, node);
        assert_false(less(node->right, node));
    }
    check_node(node->left, count);
    check_node(node->right, count);
}

static void assert_is_heap(const struct tether__heap *heap)
{
    size_t count = 0;
    if (heap->top)
        assert_null(heap->top->parent);
    check_node(heap->top, &count);
    assert_int_equal(count, heap->count);
}

static void heap_gives_nodes_in_order_when_others_are_removed(void **state)
{
    (void)state;
    enum { N = 300 };
    static struct item items[N];
    struct tether__heap heap;
    uint64_t random = 1;
    tether__heap_init(&heap, less);
    for (int i = 0; i < 20000; i++) {
        struct item *item = &items[next_random(&random) % N];
        if (item->in_heap) {
            tether__heap_remove(&heap, &item->node);
        } else {
            item->key = next_random(&random) % 100; /* many are equal */
            tether__heap_insert(&heap, &item->node);
        }
        item->in_heap = !item->in_heap;
        assert_is_heap(&heap);
    }
    uint32_t before = 0;
    for (struct tether__heap_node *node; (node = tether__heap_top(&heap));) {
        struct item *item = tether__container_of(node, struct item, node);
        assert_true(item->key >= before);
        before = item->key;
        tether__heap_remove(&heap, node);
        assert_is_heap(&heap);
    }
    assert_int_equal(heap.count, 0);
}

static void heap_compares_few_nodes_when_it_is_large(void **state)
{
    (void)state;
    enum { N = 1 << 17 };
    struct item *items = calloc(N, sizeof *items);
    assert_non_null(items);
    struct tether__heap heap;
    uint64_t random = 1;
    tether__heap_init(&heap, less);
    for (int i = 0; i < N; i++) {
        items[i].key = next_random(&random);
        n_comparisons = 0;
        tether__heap_insert(&heap, &items[i].node);
        assert_in_range(n_comparisons, 0, 40);
    }
    for (int i = 0; i < N; i++) {
        n_comparisons = 0;
        tether__heap_remove(&heap, &items[i].node);
        assert_in_range(n_comparisons, 0, 60);
    }
    assert_null(tether__heap_top(&heap));
    free(items);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heap_gives_nodes_in_order_when_others_are_removed),
        cmocka_unit_test(heap_compares_few_nodes_when_it_is_large),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
