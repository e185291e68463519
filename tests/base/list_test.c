/* The intrusive list: order, removal in every place, splicing, and walks that free. */
#include "base/list.h"

#include <stdlib.h>

#include "tests/lib/cmocka.h"

struct item {
    int value;
    struct tether__list node;
};

static struct item *item_of(struct tether__list *node)
{
    return tether__list_entry(node, struct item, node);
}

/* Returns the values of a list as decimal digits: 1, 2, 3 is 123. Checks both directions. */
static int digits(const struct tether__list *head)
{
    int forward = 0, backward = 0, place = 1;
    for (struct tether__list *node = head->next; node != head; node = node->next)
        forward = forward * 10 + item_of(node)->value;
    for (struct tether__list *node = head->prev; node != head; node = node->prev, place *= 10)
        backward += item_of(node)->value * place;
    assert_int_equal(forward, backward);
    return forward;
}

static void push_back_keeps_order_and_pop_front_takes_first(void **state)
{
    (void)state;
    struct tether__list head = TETHER__LIST_INIT(head);
    struct item items[3] = {{.value = 1}, {.value = 2}, {.value = 3}};
    assert_true(tether__list_empty(&head));
    assert_null(tether__list_pop_front(&head));
    tether__list_push_back(&head, &items[1].node);
    tether__list_push_back(&head, &items[2].node);
    tether__list_push_front(&head, &items[0].node);
    assert_int_equal(digits(&head), 123);
    for (int i = 0; i < 3; i++)
        assert_ptr_equal(tether__list_pop_front(&head), &items[i].node);
    assert_true(tether__list_empty(&head));
}

static void remove_does_nothing_when_node_is_in_no_list(void **state)
{
    (void)state;
    const int left_after[] = {23, 13, 12};
    for (int i = 0; i < 3; i++) {
        struct tether__list head = TETHER__LIST_INIT(head);
        struct item items[3] = {{.value = 1}, {.value = 2}, {.value = 3}};
        for (int j = 0; j < 3; j++)
            tether__list_push_back(&head, &items[j].node);
        tether__list_remove(&items[i].node);
        tether__list_remove(&items[i].node);
        assert_int_equal(digits(&head), left_after[i]);
        assert_true(tether__list_empty(&items[i].node));
    }
}

static void splice_moves_all_nodes_to_end(void **state)
{
    (void)state;
    struct tether__list to = TETHER__LIST_INIT(to), from = TETHER__LIST_INIT(from);
    struct item items[4] = {{.value = 1}, {.value = 2}, {.value = 3}, {.value = 4}};
    tether__list_splice(&to, &from);
    assert_true(tether__list_empty(&to));
    tether__list_push_back(&from, &items[0].node);
    tether__list_push_back(&from, &items[1].node);
    tether__list_splice(&to, &from);
    assert_int_equal(digits(&to), 12);
    assert_true(tether__list_empty(&from));
    tether__list_push_back(&from, &items[2].node);
    tether__list_push_back(&from, &items[3].node);
    tether__list_splice(&to, &from);
    assert_int_equal(digits(&to), 1234);
    assert_true(tether__list_empty(&from));
}

static void iteration_may_free_current_node(void **state)
{
    (void)state;
    struct tether__list head = TETHER__LIST_INIT(head);
    for (int i = 1; i <= 5; i++) {
        struct item *item = calloc(1, sizeof *item);
        item->value = i;
        tether__list_push_back(&head, &item->node);
    }
    int seen = 0;
    TETHER__LIST_FOR_EACH(node, &head) {
        seen = seen * 10 + item_of(node)->value;
        tether__list_remove(node);
        free(item_of(node));
    }
    assert_int_equal(seen, 12345);
    assert_true(tether__list_empty(&head));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(push_back_keeps_order_and_pop_front_takes_first),
        cmocka_unit_test(remove_does_nothing_when_node_is_in_no_list),
        cmocka_unit_test(splice_moves_all_nodes_to_end),
        cmocka_unit_test(iteration_may_free_current_node),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
