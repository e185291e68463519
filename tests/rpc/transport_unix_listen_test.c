/* Where the transport of one host can listen and whom it can dial, and what it does when it runs
 * out of descriptors. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/macros.h"
#include "rpc/transport_unix.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"
#include "tests/rpc/raw_socket.h"
#include "tests/rpc/transport_node.h"

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

static void impossible_addresses(void **state)
{
    (void)state;
    char long_path[200];
    snprintf(long_path, sizeof long_path, "unix:/tmp/%0120d", 1);
    listen_fails(long_path, TETHER_EINVAL, "longer than");
    listen_fails("unix:", TETHER_EINVAL, "without a path");
    listen_fails("127.0.0.1:0", TETHER_EINVAL, "unix:/path");
    listen_fails("unix:/does/not/exist/at-all", TETHER_EIO, "the folder must be there");
    listen_fails("unix:/dev/null/x", TETHER_EIO, "Not a directory");
    listen_fails("unix:/proc/x", TETHER_EIO, "folder");
    listen_fails("unix:/dev/null", TETHER_EEXIST, "not a socket");
    assert_int_equal(access("/dev/null", F_OK), 0);
}

static void for_this_user_only(void **state)
{
    (void)state;
    char address[64];
    struct node node;
    struct stat st;
    strcpy(address, node_listen());
    const char *path = tether__socket_path(address);
    mode_t mask = umask(0); /* whatever that says */
    node_start(&node, &(struct tether__transport_opts){.listen = address});
    umask(mask);
    assert_string_equal(node.transport->address, address);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    listen_fails(address, TETHER_EADDRINUSE, "another process does");
    struct node client;
    node_start(&client, &(struct tether__transport_opts){0});
    wire_await_opened(node_dial(&client, address)); /* it still works */
    node_stop(&client);
    node_stop(&node);
    assert_int_equal(stat(path, &st), -1); /* it cleans up */
}

static void what_others_left(void **state)
{
    (void)state;
    char address[64];
    struct node node;
    struct stat st;
    strcpy(address, node_listen());
    const char *path = tether__socket_path(address);
    close(raw_listen(address)); /* as a worker that was killed leaves it */
    node_start(&node, &(struct tether__transport_opts){.listen = address});
    assert_int_equal(unlink(path), 0);
    int other = raw_listen(address); /* another has taken the place: not ours to remove */
    node_stop(&node);
    assert_int_equal(stat(path, &st), 0);
    close(other);
    unlink(path);
}

static void bad_options(void **state)
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
    struct tether__transport_opts fine = {.listen = "unix:/never/started"};
    assert_int_equal(tether__transport_unix_new(&fine, &transport, NULL), TETHER_OK);
    transport->ops->destroy(NULL);
    transport->ops->destroy(transport);
}

/* ---- Dialling what is not there ---- */

static void bad_dials(void **state)
{
    struct pair *pair = *state;
    char long_path[200], left[64];
    snprintf(long_path, sizeof long_path, "unix:/tmp/%0120d", 1);
    strcpy(left, node_listen());
    close(raw_listen(left));
    const struct {
        const char *address, *says;
        tether_status status;
    } rows[] = {
        {"", "want \"unix:/path\"", TETHER_EUNAVAILABLE},
        {"unix:", "want \"unix:/path\"", TETHER_EUNAVAILABLE},
        {"127.0.0.1:1", "want \"unix:/path\"", TETHER_EUNAVAILABLE},
        {long_path, "too long", TETHER_EUNAVAILABLE},
        {"unix:/does/not/exist", "is it still running?", TETHER_EUNAVAILABLE},
        {"unix:/dev/null", "Connection refused", TETHER_ENOTFOUND},
        {left, "is it still running?", TETHER_ENOTFOUND},
    };
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        struct wire *wire = node_dial(&pair->client, rows[i].address);
        wire_send(wire, "lost", 4);
        assert_int_equal(wire_await_closed(wire), rows[i].status);
        assert_false(wire->opened);
        assert_non_null(strstr(wire->why, "cannot connect to"));
        assert_non_null(strstr(wire->why, rows[i].says));
    }
    unlink(tether__socket_path(left));
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

static void out_of_descriptors(void **state)
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
    wire_send(first, "fine", 4); /* who is in does not notice */
    wire_await_messages(first, 1);

    /* The poller tries again by itself, without a word. */
    limit_descriptors(before);
    wire_await_messages(waiting, 1);

    /* And at once when a conn of its own has closed. */
    before = limit_descriptors((rlim_t)lowest_free() + 1);
    waiting = pair_dial(pair);
    wire_send(waiting, "hello", 5);
    wire_close(first, false);
    wire_await_messages(waiting, 1);
    limit_descriptors(before);
    assert_int_equal(atomic_load(&n_warnings), 1);
}

static void no_descriptors_to_begin_with(void **state)
{
    (void)state;
    struct tether__transport *transport;
    struct tether__transport_opts opts = {0};
    int free_from = lowest_free();
    for (int spare = 0; spare < 4; spare++) { /* a side needs two */
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
    cmocka_unit_test(impossible_addresses),
    cmocka_unit_test(for_this_user_only),
    cmocka_unit_test(what_others_left),
    cmocka_unit_test(bad_options),
    IN_PAIR(bad_dials),
    IN_PAIR(out_of_descriptors),
    cmocka_unit_test(no_descriptors_to_begin_with),
};

int main(void)
{
    node_kind = &node_unix;
    tether_set_log(TETHER_LOG_WARN, on_log, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
