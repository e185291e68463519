/* Floods of idle connections by one process: of the TCP store that a worker hosts, and of the port
 * of its metrics. The intruder opens 2,000 connections that send nothing. It replaces those that
 * the store closes, and waits for the metrics port to close all of them. The worker keeps
 * descriptors for itself, its group goes on calling, and another worker joins. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rendezvous/store_tcp.h"
#include "rpc/agent.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/proc.h"
#include "tests/rpc/lib/echo.h"

#define LIMIT TETHER_TEST_LIMIT_MS
#define N_CONNECTIONS 2000
#define N_DESCRIPTORS 1024 /* of the worker that hosts the store: the usual limit */
#define N_FREE 300         /* of them, the least that the flood of the store may leave */
#define N_METRICS \
    40 /* the flood of the metrics port may take 32, and a few that are being closed */

enum { SERVING, CALLING, FLOODED, CHECKED };
enum { HOST, MEMBER, INTRUDER, N_RANKS };

static void set_descriptor_limit(rlim_t wanted)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = wanted < limit.rlim_max ? wanted : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static int *port_of(struct tether_test_world *world)
{
    return (int *)world->page;
}

static tether_agent *start(const char *name, int port, bool is_host, int *ret_port)
{
    tether_store *store = NULL;
    tether_agent *agent = NULL;
    tether_error err = {0};
    if (tether_store_tcp_new(
            TETHER_STORE_TCP_OPTS(.port = port, .is_host = is_host, .timeout_ms = LIMIT), &store,
            &err) ||
        tether_agent_new(TETHER_AGENT_OPTS(.name = name, .store = store), &agent, &err) ||
        tether_agent_register_inline(agent, "echo", tether_test_echo, NULL, &err) ||
        tether_agent_start(agent, &err))
        fail_msg("%s: %s", name, err.message);
    *ret_port = tether_store_tcp_port(store);
    tether_store_release(store);
    return agent;
}

static void call(tether_agent *from, const char *to)
{
    tether_error err = {0};
    tether_value *arg = NULL, *value = NULL;
    assert_int_equal(tether_value_printf(&arg, NULL, "%s", tether_agent_name(from)), TETHER_OK);
    if (tether_rpc_sync(from, to, "echo", arg, LIMIT, &value, &err) != TETHER_OK)
        fail_msg("%s: %s", tether_agent_name(from), err.message);
    tether_value_release(value);
    tether_value_release(arg);
}

/* The lowest free descriptor: every one below it is in use. */
static void assert_descriptors_are_free(void)
{
    int fds[N_FREE];
    for (int i = 0; i < N_FREE; i++) {
        fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (fds[i] < 0)
            fail_msg("the flood has left %d descriptors, not %d", i, N_FREE);
    }
    for (int i = 0; i < N_FREE; i++)
        close(fds[i]);
}

static void run_host(struct tether_test_world *world)
{
    set_descriptor_limit(N_DESCRIPTORS);
    tether_agent *agent = start("host", 0, true, port_of(world));
    tether_test_mark(world, SERVING);
    tether_test_await_mark(world, FLOODED, 1);
    assert_descriptors_are_free();
    tether_test_await_mark(world, CHECKED, 1);
    tether_agent_release(agent);
}

static void run_member(struct tether_test_world *world)
{
    int port;
    tether_test_await_mark(world, SERVING, 1);
    tether_agent *member = start("member", *port_of(world), false, &port);
    int calls = 0;
    do {
        call(member, "host");
        if (++calls == 1)
            tether_test_mark(world, CALLING);
        tether_test_nap(0);
    } while (atomic_load(&world->marks[FLOODED]) == 0);
    tether_agent *late = start("late", port, false, &port);
    call(late, "host");
    call(member, "late");
    tether_test_mark(world, CHECKED);
    tether_agent_release(late);
    tether_agent_release(member);
}

static int connect_to(int port)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                             .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    if (connect(fd, (struct sockaddr *)&at, sizeof at) == 0)
        return fd;
    close(fd);
    return -1;
}

static void run_intruder(struct tether_test_world *world)
{
    static int fds[N_CONNECTIONS];
    set_descriptor_limit(N_CONNECTIONS + 100);
    tether_test_await_mark(world, CALLING, 1);
    for (int i = 0; atomic_load(&world->marks[CHECKED]) == 0; i++) {
        int *fd = &fds[i % N_CONNECTIONS];
        if (i >= N_CONNECTIONS && *fd >= 0)
            close(*fd);
        *fd = connect_to(*port_of(world));
        if (i == N_CONNECTIONS - 1)
            tether_test_mark(world, FLOODED);
    }
    for (int i = 0; i < N_CONNECTIONS; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

TETHER_PROC_TEST(group_goes_on_when_its_store_is_flooded, .ranks = N_RANKS, .timeout_ms = 4 * LIMIT)
{
    if (rank == HOST)
        run_host(self->world);
    else if (rank == MEMBER)
        run_member(self->world);
    else
        run_intruder(self->world);
}

/* ---- The port of the metrics ---- */

static int lowest_free_descriptor(void)
{
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    close(fd);
    return fd;
}

static void run_measured(struct tether_test_world *world)
{
    tether_store *store = NULL;
    tether_agent *agent = NULL;
    tether_error err = {0};
    set_descriptor_limit(N_DESCRIPTORS);
    if (tether_store_hash_new(&store, &err) ||
        tether_agent_new(
            TETHER_AGENT_OPTS(.name = "w", .store = store, .metrics_listen = "127.0.0.1:0"), &agent,
            &err) ||
        tether_agent_start(agent, &err))
        fail_msg("%s", err.message);
    *port_of(world) = atoi(strrchr(tether_agent_metrics_address(agent), ':') + 1);
    int before = lowest_free_descriptor();
    tether_test_mark(world, SERVING);
    int most = before;
    while (atomic_load(&world->marks[FLOODED]) == 0) {
        int now = lowest_free_descriptor();
        most = now > most ? now : most;
        tether_test_nap(0);
    }
    assert_in_range(most, before, before + N_METRICS);
    tether_agent_release(agent);
    tether_store_release(store);
}

static void await_end(int fd)
{
    const struct timeval limit = {.tv_sec = LIMIT / 1000};
    char byte;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ssize_t n = recv(fd, &byte, 1, 0);
    assert_true(n == 0 || (n < 0 && errno == ECONNRESET));
    close(fd);
}

static void ask_for_metrics(int port)
{
    static const char request[] = "GET /metrics HTTP/1.1\r\n\r\n";
    char answer[16] = "";
    int fd = connect_to(port);
    assert_true(fd >= 0);
    assert_int_equal(send(fd, request, sizeof request - 1, MSG_NOSIGNAL), sizeof request - 1);
    assert_int_equal(recv(fd, answer, 15, MSG_WAITALL), 15);
    assert_string_equal(answer, "HTTP/1.1 200 OK");
    close(fd);
}

static void run_idler(struct tether_test_world *world)
{
    static int fds[N_CONNECTIONS];
    set_descriptor_limit(N_CONNECTIONS + 100);
    tether_test_await_mark(world, SERVING, 1);
    for (int i = 0; i < N_CONNECTIONS; i++)
        fds[i] = connect_to(*port_of(world));
    for (int i = 0; i < N_CONNECTIONS; i++)
        if (fds[i] >= 0)
            await_end(fds[i]);
    ask_for_metrics(*port_of(world));
    tether_test_mark(world, FLOODED);
}

TETHER_PROC_TEST(worker_closes_idle_connections_when_its_metrics_port_is_flooded,
                 .timeout_ms = 4 * LIMIT)
{
    if (rank == HOST)
        run_measured(self->world);
    else
        run_idler(self->world);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(group_goes_on_when_its_store_is_flooded),
        cmocka_unit_test(worker_closes_idle_connections_when_its_metrics_port_is_flooded),
    };
    return cmocka_run_group_tests_name("idle_flood", tests, NULL, NULL);
}
