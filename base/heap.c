/* See heap.h. */
#include "base/heap.h"

/* Finds the pointer to position `n` (1: the root), and its parent. */
static struct tether__heap_node **place(struct tether__heap *heap,
                                        size_t n,
                                        struct tether__heap_node **ret_parent)
{
    struct tether__heap_node **at = &heap->top;
    *ret_parent = NULL;
    for (int bit = 62 - __builtin_clzll(n); bit >= 0; bit--) {
        *ret_parent = *at;
        at = n >> bit & 1 ? &(*at)->right : &(*at)->left;
    }
    return at;
}

static struct tether__heap_node **pointer_to(struct tether__heap *heap,
                                             struct tether__heap_node *node)
{
    struct tether__heap_node *parent = node->parent;
    if (!parent)
        return &heap->top;
    return parent->left == node ? &parent->left : &parent->right;
}

static void adopt(struct tether__heap_node *node)
{
    if (node->left)
        node->left->parent = node;
    if (node->right)
        node->right->parent = node;
}

/* Exchanges a node with its parent. */
static void rise(struct tether__heap *heap, struct tether__heap_node *node)
{
    struct tether__heap_node *parent = node->parent, before = *node;
    bool is_left = parent->left == node;
    struct tether__heap_node *sibling = is_left ? parent->right : parent->left;
    *pointer_to(heap, parent) = node;
    node->parent = parent->parent;
    node->left = is_left ? parent : sibling;
    node->right = is_left ? sibling : parent;
    parent->left = before.left;
    parent->right = before.right;
    adopt(parent);
    adopt(node);
}

static void sift(struct tether__heap *heap, struct tether__heap_node *node)
{
    while (node->parent && heap->less(node, node->parent))
        rise(heap, node);
    for (;;) {
        struct tether__heap_node *least = node;
        if (node->left && heap->less(node->left, least))
            least = node->left;
        if (node->right && heap->less(node->right, least))
            least = node->right;
        if (least == node)
            return;
        rise(heap, least);
    }
}

void tether__heap_insert(struct tether__heap *heap, struct tether__heap_node *node)
{
    struct tether__heap_node *parent;
    struct tether__heap_node **at = place(heap, ++heap->count, &parent);
    *node = (struct tether__heap_node){NULL, NULL, parent};
    *at = node;
    sift(heap, node);
}

void tether__heap_remove(struct tether__heap *heap, struct tether__heap_node *node)
{
    struct tether__heap_node *parent;
    struct tether__heap_node **at = place(heap, heap->count--, &parent);
    struct tether__heap_node *last = *at;
    *at = NULL;
    if (last == node)
        return;
    *last = *node; /* the last node takes the place of the removed one */
    *pointer_to(heap, node) = last;
    adopt(last);
    sift(heap, last);
}
