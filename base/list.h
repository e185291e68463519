/* Intrusive doubly linked list. The node is a field of your struct, so the list allocates nothing
 * and cannot fail.
 *
 * A list head is a node that points at itself when empty. A node that is in no list also points at
 * itself after tether__list_init() or tether__list_remove(), so removing it twice does no harm.
 * No locks: the owner of the head guards it.
 */
#ifndef TETHER_BASE_LIST_H
#define TETHER_BASE_LIST_H

#include <stdbool.h>

#include "base/macros.h"

struct tether__list {
    struct tether__list *next, *prev;
};

#define TETHER__LIST_INIT(name) \
    {                           \
        &(name), &(name)        \
    }

static inline void tether__list_init(struct tether__list *node)
{
    node->next = node->prev = node;
}

static inline bool tether__list_empty(const struct tether__list *head)
{
    return head->next == head;
}

static inline void tether__list_remove(struct tether__list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    tether__list_init(node);
}

static inline void tether__list_push_back(struct tether__list *head, struct tether__list *node)
{
    node->prev = head->prev;
    node->next = head;
    head->prev->next = node;
    head->prev = node;
}

static inline void tether__list_push_front(struct tether__list *head, struct tether__list *node)
{
    tether__list_push_back(head->next, node);
}

/* Removes and returns the first node; NULL when the list is empty. */
static inline struct tether__list *tether__list_pop_front(struct tether__list *head)
{
    struct tether__list *node = head->next;
    if (node == head)
        return NULL;
    tether__list_remove(node);
    return node;
}

/* Moves all nodes of `from` to the end of `to`; `from` is empty afterwards. */
static inline void tether__list_splice(struct tether__list *to, struct tether__list *from)
{
    if (tether__list_empty(from))
        return;
    from->next->prev = to->prev;
    to->prev->next = from->next;
    from->prev->next = to;
    to->prev = from->prev;
    tether__list_init(from);
}

/* Iterates with `it`; the body may remove (and free) `it`, but not its successor. */
#define TETHER__LIST_FOR_EACH(it, head)                                                \
    for (struct tether__list *it = (head)->next, *it##_next_ = it->next; it != (head); \
         it = it##_next_, it##_next_ = it->next)

#define tether__list_entry(node, type, member) tether__container_of(node, type, member)

#endif
