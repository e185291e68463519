/* The TCP store with several processes: killed clients, a suspended server, and ten thousand
 * clients at once. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rendezvous/store_tcp.h"
#include "tests/lib/proc.h"
#include "tests/rendezvous/store/suite_internal.h"
#include "tests/rendezvous/store/tcp/raw.h"

#define LIMIT TETHER_TEST_LIMIT_MS

enum mark { SERVING, WAITING, DONE };

static _Atomic int *port_of(struct tether_test_world *world)
{
    return (_Atomic int *)(void *)world->page;
}

static int await_port(struct tether_test_world *world)
{
    tether_test_await_mark(world, SERVING, 1);
    return *port_of(world);
}

static void tell_port(struct tether_test_world *world, int port)
{
    *port_of(world) = port;
    tether_test_mark(world, SERVING);
}

static tether_store *dial(int port)
{
    tether_store *store = NULL;
    assert_ok(tether_store_tcp_new(TETHER_STORE_TCP_OPTS(.port = port, .timeout_ms = LIMIT), &store,
                                   err));
    return store;
}

static void raise_descriptor_limit(void)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

/* ---- A server in a process of its own ------------------------------------------------------- */

TETHER_PROC_ROLE(serve)
{
    (void)rank;
    tether_store_server *server = NULL;
    raise_descriptor_limit();
    assert_ok(tether_store_server_new(TETHER_STORE_SERVER_OPTS(0), &server, err));
    tell_port(self->world, tether_store_server_port(server));
    tether_test_await_mark(self->world, DONE, 1);
    tether_store_server_release(server);
}

/* Calls to a suspended server time out. When the server continues, the client works again. */
static void calls_time_out_while_server_is_suspended(void **state)
{
    (void)state;
    struct tether_test_procs *procs = tether_test_procs_start(serve, .ranks = 1);
    tether_store *store = dial(await_port(procs->world));
    tether_buf value = TETHER_BUF_INIT;
    tether_error error = {0};
    SET("k", "v");
    tether_test_signal(procs->world, 0, SIGSTOP);
    assert_status(tether_store_set(store, "k", tether_bytes_str("w"), 50, &error), TETHER_ETIMEOUT);
    assert_non_null(strstr(error.message, "does not answer"));
    assert_status(tether_store_add(store, "n", 1, 50, NULL, NULL), TETHER_ETIMEOUT);
    assert_status(tether_store_get(store, "k", 50, &value, NULL), TETHER_ETIMEOUT);
    size_t size = (size_t)32 << 20; /* more than the sockets buffer */
    char *large = calloc(1, size);
    assert_status(tether_store_set(store, "large", tether_bytes_of(large, size), 50, NULL),
                  TETHER_ETIMEOUT);
    free(large);
    tether_test_signal(procs->world, 0, SIGCONT);
    SET("k", "x");
    EXPECT("k", "x");
    assert_false(CHECK("large")); /* an incomplete request changes nothing */
    tether_store_release(store);
    tether_test_mark(procs->world, DONE);
    tether_test_procs_end(procs);
}

/* ---- Ten thousand clients at once ----------------------------------------------------------- */

struct client {
    int fd;
    bool asked;
    size_t got;
};

/* The request of each client, VALIDATE, PING and ADD "sum" 1, and the length of its reply. */
#define QUESTION VALIDATE "\x0d\1\0\0\0\x04" U64_3 "sum" U64_1
#define ANSWER_LEN (4 + 8)

static int connect_at_once(int port)
{
    struct sockaddr_in addr = {.sin_family = AF_INET,
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                               .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_true(connect(fd, (struct sockaddr *)&addr, sizeof addr) == 0 || errno == EINPROGRESS);
    return fd;
}

/* Reads and writes without blocking; returns whether the client has its answer. */
static bool move_on(struct client *client, char answer[ANSWER_LEN])
{
    if (!client->asked) {
        ssize_t n = send(client->fd, QUESTION, sizeof QUESTION - 1, MSG_NOSIGNAL);
        if (n < 0) {
            assert_true(errno == EAGAIN || errno == ENOTCONN);
            return false;
        }
        assert_int_equal(n, sizeof QUESTION - 1);
        client->asked = true;
    }
    ssize_t n = recv(client->fd, answer + client->got, ANSWER_LEN - client->got, 0);
    assert_true(n > 0 || (n < 0 && errno == EAGAIN));
    client->got += n > 0 ? (size_t)n : 0;
    return client->got == ANSWER_LEN;
}

static void server_serves_ten_thousand_clients(void **state)
{
    (void)state;
    struct rlimit limit;
    raise_descriptor_limit();
    getrlimit(RLIMIT_NOFILE, &limit);
    size_t n = 10000, most = limit.rlim_cur - 100;
    if (most < n) {
        print_message("only %zu descriptors: %zu clients\n", (size_t)limit.rlim_cur, most);
        n = most;
    }
    struct tether_test_procs *procs =
        tether_test_procs_start(serve, .ranks = 1, .timeout_ms = 2 * LIMIT);
    int port = await_port(procs->world);
    struct client *clients = calloc(n, sizeof *clients);
    struct pollfd *polls = calloc(n, sizeof *polls);
    char(*answers)[ANSWER_LEN] = calloc(n, ANSWER_LEN);
    bool *seen = calloc(n + 1, sizeof *seen);
    for (size_t i = 0; i < n; i++) {
        clients[i].fd = connect_at_once(port);
        polls[i] = (struct pollfd){.fd = clients[i].fd, .events = POLLOUT};
    }
    for (size_t done = 0; done < n;) {
        assert_true(poll(polls, n, LIMIT) > 0);
        for (size_t i = 0; i < n; i++) {
            if (polls[i].revents == 0)
                continue;
            if (move_on(&clients[i], answers[i])) {
                polls[i].fd = -1;
                done++;
            }
            polls[i].events = clients[i].asked ? POLLIN : POLLOUT;
        }
    }
    for (size_t i = 0; i < n; i++) { /* each client was served once, and all are still connected */
        int64_t sum;
        memcpy(&sum, answers[i] + 4, sizeof sum);
        assert_in_range(sum, 1, n);
        assert_false(seen[sum]);
        seen[sum] = true;
        assert_true(raw_is_silent(clients[i].fd));
        close(clients[i].fd);
    }
    free(seen);
    free(answers);
    free(polls);
    free(clients);
    tether_test_mark(procs->world, DONE);
    tether_test_procs_end(procs);
}

/* ---- Clients that are killed ---------------------------------------------------------------- */

#define RANKS 8
#define DOOMED 4 /* ranks from this one on are killed */

/* Each rank is in the middle of a call; those that are killed are in different ones. */
TETHER_PROC_ROLE(work)
{
    int port = await_port(self->world);
    tether_store *store = dial(port);
    tether_buf value = TETHER_BUF_INIT;
    int fd;
    if (rank < DOOMED)
        assert_ok(tether_store_queue_push(store, "from", tether_bytes_str("me"), LIMIT, err));
    tether_test_mark(self->world, WAITING);
    switch (rank) {
        case 0: /* these live */
        case 4: /* these don't */
            assert_ok(tether_store_get(store, "later", LIMIT, &value, err));
            break;
        case 1:
        case 5:
            assert_ok(tether_store_queue_pop(store, "work", LIMIT, &value, err));
            break;
        case 2:
        case 6:
            assert_ok(tether_store_barrier(store, "barrier", 5, LIMIT, err));
            break;
        case 3:
            assert_ok(tether_store_wait(store, (const char *[]){"later", "latest"}, 2, LIMIT, err));
            break;
        case 7: /* half a request */
            fd = raw_dial(port);
            RAW_SEND(fd, VALIDATE "\x01" U64_6 "/later" U64_5 "half");
            tether_test_await_mark(self->world, DONE, 1);
            close(fd);
            break;
    }
    assert_true(rank < DOOMED);
    tether_buf_fini(&value);
    tether_store_release(store);
}

/* Killed clients cost the others nothing: no data, no element, no wake-up. */
static void server_survives_killed_clients(void **state)
{
    (void)state;
    tether_store_server *server = NULL;
    assert_ok(tether_store_server_new(TETHER_STORE_SERVER_OPTS(0), &server, err));
    struct tether_test_procs *procs = tether_test_procs_start(work, .ranks = RANKS);
    tell_port(procs->world, tether_store_server_port(server));
    tether_test_await_mark(procs->world, WAITING, RANKS);
    struct tether_store_server_stats
        stats; /* all wait, except the rank that has sent half a request */
    assert_eventually((tether_store_server_stats(server, &stats), stats.waiting == RANKS - 1));
    for (int i = DOOMED; i < RANKS; i++)
        tether_test_signal(procs->world, i, SIGKILL);
    assert_eventually((tether_store_server_stats(server, &stats), stats.waiting == DOOMED));

    tether_store *store = dial(tether_store_server_port(server));
    int64_t len = 0;
    assert_ok(tether_store_queue_len(store, "from", LIMIT, &len, err));
    assert_int_equal(len, DOOMED);
    assert_false(CHECK("later"));
    /* The one element goes to the live popper, even if the killed one came first. */
    assert_ok(tether_store_queue_push(store, "work", tether_bytes_str("only one"), LIMIT, err));
    SET("later", "now");
    SET("latest", "too");
    for (int i = 0; i < 2; i++) /* of the 5 members, rank 2 and the killed rank 6 have arrived */
        ADD("barrier", 1, 3 + i);
    assert_ok(tether_store_barrier(store, "barrier", 5, LIMIT, err));
    tether_store_release(store);
    tether_test_procs_end(procs);
    assert_eventually((tether_store_server_stats(server, &stats), stats.clients == 0));
    assert_int_equal(stats.waiting, 0);
    assert_int_equal(stats.buffered_bytes, 0);
    tether_store_server_release(server);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_time_out_while_server_is_suspended),
        cmocka_unit_test(server_serves_ten_thousand_clients),
        cmocka_unit_test(server_survives_killed_clients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
