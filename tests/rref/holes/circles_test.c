/* Hole 11 of the protocol that this one is modelled on: objects that refer to each other in a
 * circle. holes_test.c says how to read the comments.
 */
#include <stdlib.h>
#include <string.h>

#include "rpc/peer/calls/slots.h"
#include "rpc/wire/packed.h"
#include "tests/lib/cmocka.h"
#include "tests/rref/holes/fixture.h"

/* ---- Objects that refer to each other, for circles ---- */

struct node {
    struct cast_counter counter; /* first: it is destroyed as one */
    tether_rref *other;
};

static void node_destroy(void *object)
{
    tether_rref *other = ((struct node *)object)->other;
    free(object);
    atomic_fetch_sub(&cast_n_live, 1);
    tether_rref_release(other);
}

static const tether_type node_type = {.name = "node", .destroy = node_destroy};

static tether_status make_node(void *userdata,
                               const tether_value *arg,
                               tether_value **ret_value,
                               tether_error *reterr)
{
    (void)userdata, (void)arg;
    struct node *node = calloc(1, sizeof *node);
    if (!node)
        abort();
    atomic_fetch_add(&cast_n_live, 1);
    return tether_value_new_object(&node_type, node, ret_value, reterr);
}

/* The node refers to what comes along, or to nothing any more. */
static tether_status node_link(void *userdata,
                               void *object,
                               const tether_value *arg,
                               tether_value **ret_value,
                               tether_error *reterr)
{
    (void)userdata, (void)ret_value, (void)reterr;
    struct node *node = object;
    tether_rref *before = node->other;
    node->other = tether_rref_retain(tether_value_rref(arg, 0));
    tether_rref_release(before);
    return TETHER_OK;
}

static void register_nodes(tether_agent *agent)
{
    assert_int_equal(tether_agent_register_inline(agent, "make_node", make_node, NULL, NULL),
                     TETHER_OK);
    assert_int_equal(
        tether_agent_register_method(agent, &node_type, "link", node_link, true, NULL, NULL),
        TETHER_OK);
}

static int start_with_nodes(void **state)
{
    holes_register_more = register_nodes;
    return holes_start(state);
}

/* ---- Circles ---- */

static tether_rref *remote_node(struct tether_test_world *w, const char *to)
{
    tether_rref *rref = tether_remote(w->agents[0], to, "make_node", NULL, 10000);
    holes_assert_confirmed(rref);
    return rref;
}

static void link_nodes(tether_rref *from, tether_rref *to)
{
    tether_value *arg = cast_text("");
    if (to)
        assert_int_equal(tether_value_attach(arg, to, NULL), TETHER_OK);
    assert_int_equal(tether_rref_sync(from, "link", arg, 10000, NULL, NULL), TETHER_OK);
    tether_value_release(arg);
}

/* w1's node refers to w2's, and that to w1's. */
static tether_rref *make_circle(struct tether_test_world *w)
{
    tether_rref *a = remote_node(w, "w1"), *b = remote_node(w, "w2");
    link_nodes(a, b);
    link_nodes(b, a);
    tether_rref_release(b);
    holes_pass_time(w, SOON_MS);
    assert_int_equal(tether_rref_counts(w->agents[1]).owners, 1);
    assert_int_equal(tether_rref_counts(w->agents[2]).owners, 1);
    return a;
}

/* There: objects of several workers that refer to each other in a circle were never collected, and
 * nothing showed them.
 *
 * Here circles are not collected automatically either: that needs a view of all workers at once,
 * which counting does not have. But a dump shows them, with their holders and sites. A circle that
 * is opened at one place is destroyed. A circle that no program can reach does not delay a
 * shutdown, which names and releases it. When a worker of the circle dies, the rest is destroyed
 * within a lease. */
static void hole_11_dump_shows_circle_and_opening_it_destroys_it(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *a = make_circle(w);
    for (int i = 1; i <= 2; i++) {
        tether_buf text = TETHER_BUF_INIT;
        assert_int_equal(tether_rref_dump(w->agents[i], false, &text), TETHER_OK);
        assert_non_null(strstr(text.data, i == 1 ? "w2" : "held by: w1"));
        assert_non_null(strstr(text.data, "circles_test.c:"));
        tether_buf_fini(&text);
    }
    link_nodes(a, NULL);
    tether_rref_release(a);
    cast_assert_nothing_left(w);
}

static void hole_11_shutdown_is_not_delayed_by_a_circle(void **state)
{
    struct tether_test_world *w = *state;
    tether_error err = {0};
    tether_rref_release(make_circle(w));
    holes_pass_time(w, 10 * LEASE_MS);
    assert_int_equal(cast_n_live, 2);
    int64_t began = holes_now_ms(w);
    assert_int_equal(tether_agent_shutdown(w->agents[1], true, &err), TETHER_ELEAK);
    assert_in_range(holes_now_ms(w) - began, 0, 1000);
    assert_non_null(strstr(err.message, "of 'w2'"));
    assert_true(tether_sim_run(w->sim, cast_has_no_forks, w->agents[2], SOON_MS));
    holes_leave_ok(w, 2);
}

static bool one_node_is_left(void *userdata)
{
    struct tether_test_world *w = userdata;
    return cast_n_live == 1 && cast_is_idle(w->agents[2]);
}

static void hole_11_circle_is_released_when_a_worker_of_it_dies(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref_release(make_circle(w));
    holes_pass_time(w, SOON_MS);
    tether_sim_kill(w->sim, w->agents[1]);
    assert_true(tether_sim_run(w->sim, one_node_is_left, w, LEASE_MS + 1000));
}

#define THREE(name) cmocka_unit_test_setup_teardown(name, start_with_nodes, holes_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        THREE(hole_11_dump_shows_circle_and_opening_it_destroys_it),
        THREE(hole_11_shutdown_is_not_delayed_by_a_circle),
        THREE(hole_11_circle_is_released_when_a_worker_of_it_dies),
    };
    return cmocka_run_group_tests_name("circles", tests, NULL, NULL);
}
