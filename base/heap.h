/* Intrusive binary heap with the least node at the top. The node is a field of your struct, so the
 * heap allocates nothing and cannot fail. insert() and remove() take O(log n) steps.
 *
 * It is a complete binary tree with pointers: the bits of a node's position, from the second
 * highest on, are the path from the root to it. No locks: the owner of the heap guards it.
 */
#ifndef TETHER_BASE_HEAP_H
#define TETHER_BASE_HEAP_H

#include <stdbool.h>
#include <stddef.h>

#include "base/macros.h"

struct tether__heap_node {
    struct tether__heap_node *left, *right, *parent;
};

/* Whether `a` comes before `b`. The compared fields must not change while the node is in the heap.
 */
typedef bool tether__heap_less(const struct tether__heap_node *a,
                               const struct tether__heap_node *b);

struct tether__heap {
    struct tether__heap_node *top; /* NULL: empty */
    size_t count;
    tether__heap_less *less;
};

static inline void tether__heap_init(struct tether__heap *heap, tether__heap_less *less)
{
    heap->top = NULL;
    heap->count = 0;
    heap->less = less;
}

/* The least node; NULL when the heap is empty. */
static inline struct tether__heap_node *tether__heap_top(const struct tether__heap *heap)
{
    return heap->top;
}

void tether__heap_insert(struct tether__heap *heap, struct tether__heap_node *node);
void tether__heap_remove(struct tether__heap *heap, struct tether__heap_node *node);

#endif
