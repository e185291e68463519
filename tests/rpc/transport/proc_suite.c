/* Two processes: messages across, and a peer that is killed, stopped or started anew. */
#include "tests/rpc/transport/proc_suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/macros.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/proc.h"
#include "tests/rpc/lib/transport_node.h"

enum { LISTENING, DONE };

/* Listens where it is told, says on the shared page where that is, and echoes until the test is
 * through. */
TETHER_PROC_ROLE(echo_server)
{
    struct node node;
    node_start(&node, &(struct tether__transport_opts){.listen = self->arg});
    snprintf(self->world->page, sizeof self->world->page, "%s", node.transport->address);
    tether_test_mark(self->world, LISTENING);
    tether_test_await_mark(self->world, DONE, 1);
    node_stop(&node);
}

struct fixture {
    struct tether_test_procs *procs;
    struct node client;
};

static int set_up(void **state)
{
    static struct fixture fixture;
    /* The test owns the folder of the address, because a killed process cannot clean it up. */
    fixture.procs = tether_test_procs_start(echo_server, .ranks = 1, .arg = node_listen());
    tether_test_await_mark(fixture.procs->world, LISTENING, 1);
    node_start(&fixture.client, &(struct tether__transport_opts){.connect_timeout_ms = 2000});
    *state = &fixture;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *fixture = *state;
    tether_test_mark(fixture->procs->world, DONE);
    tether_test_signal(fixture->procs->world, 0,
                       SIGCONT); /* a test that failed has left it stopped */
    node_stop(&fixture->client);
    tether_test_procs_end(fixture->procs);
    return 0;
}

static struct wire *dial(struct fixture *fixture)
{
    return node_dial(&fixture->client, fixture->procs->world->page);
}

static void messages_cross_between_processes(void **state)
{
    static const size_t sizes[] = {0, 1, 64, 65536, 1u << 20, 4u << 20};
    struct wire *wire = dial(*state);
    for (size_t i = 0; i < TETHER__ARRAY_LEN(sizes); i++) {
        char *data = node_pattern(sizes[i]);
        wire_send(wire, data, sizes[i]);
        wire_await_messages(wire, i + 1);
        assert_int_equal(wire->last_len, sizes[i]);
        assert_memory_equal(wire->last, data, sizes[i]);
        free(data);
    }
    wire_close(wire, true);
    assert_int_equal(wire_await_closed(wire), TETHER_OK);
}

static void conn_ends_when_peer_is_killed_while_sending(void **state)
{
    struct fixture *fixture = *state;
    struct wire *busy = dial(fixture), *idle = dial(fixture);
    wire_await_opened(idle);
    char *data = node_pattern(1u << 20);
    for (int i = 0; i < 50; i++)
        wire_send(busy, data, 1u << 20);
    wire_await_messages(busy, 3);
    tether_test_signal(fixture->procs->world, 0, SIGKILL);
    assert_int_equal(wire_await_closed(busy), TETHER_EUNAVAILABLE);
    assert_int_equal(wire_await_closed(idle), TETHER_EUNAVAILABLE);
    assert_non_null(strstr(idle->why, "broke"));
    free(data);

    /* Dials of a dead process are refused as soon as its last thread has released the socket. When
     * a process listens again at the same address, a dial reaches it at once. */
    struct wire *again;
    do {
        again = dial(fixture);
        wire_await_closed(again);
    } while (again->status == TETHER_EUNAVAILABLE);
    assert_int_equal(again->status, TETHER_ENOTFOUND);
    char *address = strdup(fixture->procs->world->page);
    tether_test_procs_restart(fixture->procs, 0, address);
    tether_test_await_mark(fixture->procs->world, LISTENING, 2);
    again = dial(fixture);
    wire_send(again, "back", 4);
    wire_await_messages(again, 1);
    free(address);
}

static void dial_and_close_end_when_peer_is_stopped(void **state)
{
    struct fixture *fixture = *state;
    struct wire *wire = dial(fixture);
    wire_await_opened(wire);
    tether_test_signal(fixture->procs->world, 0, SIGSTOP);
    wire_send(wire, "asleep?", 7);
    /* The kernel accepts for the stopped process, but the process never answers. Neither a dial nor
     * a graceful close may wait for ever. */
    struct wire *late = dial(fixture);
    if (node_kind->is_unix) /* there a dial succeeds as soon as a process listens */
        wire_close(late, true);
    wire_close(wire, true);
    assert_int_equal(wire_await_closed(late), TETHER_EUNAVAILABLE);
    assert_int_equal(wire_await_closed(wire), TETHER_EUNAVAILABLE);
    assert_non_null(strstr(wire->why, "did not close"));
    tether_test_signal(fixture->procs->world, 0, SIGCONT);
    struct wire *next = dial(fixture);
    wire_send(next, "awake", 5);
    wire_await_messages(next, 1);
}

#define WITH_SERVER(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

static const struct CMUnitTest tests[] = {
    WITH_SERVER(messages_cross_between_processes),
    WITH_SERVER(conn_ends_when_peer_is_killed_while_sending),
    WITH_SERVER(dial_and_close_end_when_peer_is_stopped),
};

int transport_proc_suite(const struct node_kind *kind, int argc, char **argv)
{
    node_kind = kind; /* used also by the process that echoes */
    tether_test_main(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
