/* The unix transport: addresses on which it can listen and that it can dial, and its behaviour
 * without free descriptors. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/macros.h"
#include "rpc/transport/socket/socket.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/user.h"
#include "tests/lib/wait.h"
#include "tests/rpc/lib/raw_socket.h"
#include "tests/rpc/lib/transport_node.h"

/* ---- Listening ---- */

static void listen_fails(const char *address, tether_status expected, const char *says)
{
    struct node node;
    tether_error error = {0};
    struct tether__transport_opts opts = {.listen = address};
    tether_status st = node_try_start(&node, &opts, &error);
    if (st != expected || !strstr(error.message, says))
        fail_msg("listening on '%s': %s: %s", address, tether_status_name(st), error.message);
}

static void unix_listen_refuses_impossible_addresses(void **state)
{
    (void)state;
    char long_name[200];
    snprintf(long_name, sizeof long_name, "unix-abstract:%0120d", 1);
    listen_fails(long_name, TETHER_EINVAL, "up to 107 characters");
    listen_fails("127.0.0.1:0", TETHER_EINVAL, "unix-abstract:NAME");
    listen_fails("unix:/path", TETHER_EINVAL, "unix-abstract:NAME");
}

static void listener_without_a_name_gets_a_unique_one(void **state)
{
    struct pair *pair = *state;
    struct node nodes[2];
    for (int i = 0; i < 2; i++)
        node_start(&nodes[i], &(struct tether__transport_opts){.listen = "unix-abstract:"});
    assert_string_not_equal(nodes[0].transport->address, nodes[1].transport->address);
    wire_await_opened(node_dial(&pair->client, nodes[0].transport->address));
    listen_fails(nodes[0].transport->address, TETHER_EADDRINUSE, "another process does");
    wire_await_opened(node_dial(&pair->client, nodes[0].transport->address)); /* it still works */
    for (int i = 0; i < 2; i++)
        node_stop(&nodes[i]);
}

/* A process of another user is refused. The test needs the right to change its user. */
static void peer_is_refused_when_it_runs_as_another_user(void **state)
{
    struct pair *pair = *state;
    char address[64], byte;
    uid_t self = geteuid();
    strcpy(address, node_listen());
    if (!tether_test_become(TETHER_TEST_OTHER_USER))
        skip();
    int listener = raw_listen(address), caller = raw_connect(pair->server.transport->address);
    assert_true(tether_test_become(self));
    assert_int_equal(recv(caller, &byte, 1, 0), 0); /* is hung up on */
    struct wire *wire = node_dial(&pair->client, address);
    assert_int_equal(wire_await_closed(wire), TETHER_EUNAVAILABLE);
    assert_non_null(strstr(wire->why, "another user"));
    assert_false(wire->opened);
    close(caller);
    close(listener);
    wire_await_opened(
        pair_dial(pair)); /* a process of the same user is accepted, and it is the only one */
    node_accepted(&pair->server, 1);
    pthread_mutex_lock(&pair->server.mu);
    assert_int_equal(pair->server.n_accepted, 1);
    pthread_mutex_unlock(&pair->server.mu);
}

static void unix_transport_refuses_invalid_options(void **state)
{
    (void)state;
    static const struct tether__tls tls;
    static const struct tether__transport_opts rows[] = {
        {.tls = &tls},
        {.max_message_bytes = UINT32_MAX},
        {.max_message_bytes = (size_t)1 << 40},
        {.listen = "nonsense"},
    };
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        struct tether__transport *transport;
        tether_error error = {0};
        assert_int_equal(tether__transport_unix_new(&rows[i], &transport, &error), TETHER_EINVAL);
        assert_true(error.message[0]);
    }
    struct tether__transport *transport;
    struct tether__transport_opts fine = {.listen = "unix-abstract:never-started"};
    assert_int_equal(tether__transport_unix_new(&fine, &transport, NULL), TETHER_OK);
    transport->ops->destroy(NULL);
    transport->ops->destroy(transport);
}

/* ---- Dialling what is not there ---- */

static void dial_refuses_malformed_unix_addresses(void **state)
{
    struct pair *pair = *state;
    char long_name[200];
    snprintf(long_name, sizeof long_name, "unix-abstract:%0120d", 1);
    const struct {
        const char *address, *says;
        tether_status status;
    } rows[] = {
        {"", "want \"unix-abstract:NAME\"", TETHER_EUNAVAILABLE},
        {"unix-abstract:", "want \"unix-abstract:NAME\"", TETHER_EUNAVAILABLE},
        {"unix:/path", "want \"unix-abstract:NAME\"", TETHER_EUNAVAILABLE},
        {"127.0.0.1:1", "want \"unix-abstract:NAME\"", TETHER_EUNAVAILABLE},
        {long_name, "too long", TETHER_EUNAVAILABLE},
        {node_listen(), "is it still running?", TETHER_ENOTFOUND},
    };
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        struct wire *wire = node_dial(&pair->client, rows[i].address);
        wire_send(wire, "lost", 4);
        assert_int_equal(wire_await_closed(wire), rows[i].status);
        assert_false(wire->opened);
        assert_non_null(strstr(wire->why, "cannot connect to"));
        assert_non_null(strstr(wire->why, rows[i].says));
    }
}

/* ---- Out of descriptors ---- */

static atomic_int n_warnings;

static void on_log(void *userdata, tether_log_level level, const char *area, const char *message)
{
    (void)userdata, (void)area;
    if (level == TETHER_LOG_WARN && strstr(message, "cannot accept"))
        atomic_fetch_add(&n_warnings, 1);
}

static rlim_t limit_descriptors(rlim_t n)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    rlim_t before = limit.rlim_cur;
    limit.rlim_cur = n;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    return before;
}

static int lowest_free(void)
{
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    close(fd);
    return fd;
}

static void listener_recovers_when_descriptors_ran_out(void **state)
{
    struct pair *pair = *state;
    atomic_store(&n_warnings, 0);
    struct wire *first = pair_dial(pair);
    wire_await_opened(first);
    node_accepted(&pair->server, 1);
    /* Room for one more: the dialler's end. */
    rlim_t before = limit_descriptors((rlim_t)lowest_free() + 1);
    struct wire *waiting = pair_dial(pair);
    wire_send(waiting, "hello", 5);
    assert_eventually(atomic_load(&n_warnings) == 1);
    struct wire *none = pair_dial(pair); /* not even a socket to dial with */
    assert_int_equal(wire_await_closed(none), TETHER_EUNAVAILABLE);
    wire_send(first, "fine", 4); /* an open conn is not affected */
    wire_await_messages(first, 1);

    /* The poller tries again by itself, without a word. */
    limit_descriptors(before);
    wire_await_messages(waiting, 1);

    /* Accepting resumes at once when one of the transport's own conns has closed. */
    before = limit_descriptors((rlim_t)lowest_free() + 1);
    waiting = pair_dial(pair);
    wire_send(waiting, "hello", 5);
    wire_close(first, false);
    wire_await_messages(waiting, 1);
    limit_descriptors(before);
    assert_int_equal(atomic_load(&n_warnings), 1);
}

static void unix_transport_reports_lack_of_descriptors_at_start(void **state)
{
    (void)state;
    struct tether__transport *transport;
    struct tether__transport_opts opts = {0};
    int free_from = lowest_free();
    for (int spare = 0; spare < 4; spare++) { /* each side of the transport needs two descriptors */
        rlim_t before = limit_descriptors((rlim_t)(free_from + spare));
        tether_error error = {0};
        tether_status st = tether__transport_unix_new(&opts, &transport, &error);
        limit_descriptors(before);
        assert_int_equal(st, TETHER_EIO);
        assert_non_null(strstr(error.message, "Too many open files"));
        assert_int_equal(lowest_free(), free_from);
    }
}

#define IN_PAIR(test) cmocka_unit_test_setup_teardown(test, pair_set_up, pair_tear_down)

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(unix_listen_refuses_impossible_addresses),
    IN_PAIR(listener_without_a_name_gets_a_unique_one),
    IN_PAIR(peer_is_refused_when_it_runs_as_another_user),
    cmocka_unit_test(unix_transport_refuses_invalid_options),
    IN_PAIR(dial_refuses_malformed_unix_addresses),
    IN_PAIR(listener_recovers_when_descriptors_ran_out),
    cmocka_unit_test(unix_transport_reports_lack_of_descriptors_at_start),
};

int main(void)
{
    node_kind = &node_unix;
    tether_set_log(TETHER_LOG_WARN, on_log, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
