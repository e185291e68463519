/* The places of the store server: clients that have made no request give way to new ones, and
 * clients that have made one do not. */
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "rendezvous/store_tcp.h"
#include "tests/lib/wait.h"
#include "tests/rendezvous/store/suite_internal.h"
#include "tests/rendezvous/store/tcp/raw.h"

#define MEMBER VALIDATE "\x0d\1\2\3\4" /* VALIDATE and PING */
#define WELCOME "\1\2\3\4"
#define STALL_MS 40

static tether_store_server *server;

static void start(int max_clients, int stall_timeout_ms)
{
    assert_ok(tether_store_server_new(
        TETHER_STORE_SERVER_OPTS(.max_clients = max_clients, .stall_timeout_ms = stall_timeout_ms),
        &server, err));
}

static int stop(void **state)
{
    (void)state;
    server = tether_store_server_release(server);
    tether_set_log(TETHER_LOG_NONE, NULL, NULL);
    return 0;
}

static struct tether_store_server_stats stats(void)
{
    struct tether_store_server_stats now;
    tether_store_server_stats(server, &now);
    return now;
}

/* Returns once the server has accepted the connection. */
static int dial(void)
{
    uint64_t before = stats().accepted;
    int fd = raw_dial(tether_store_server_port(server));
    assert_eventually(stats().accepted > before);
    return fd;
}

static int join(void)
{
    int fd = raw_dial(tether_store_server_port(server));
    RAW_SEND(fd, MEMBER);
    RAW_EXPECT(fd, WELCOME);
    return fd;
}

static void newcomer_takes_place_of_oldest_silent_client_when_all_are_taken(void **state)
{
    (void)state;
    start(4, -1);
    int first = join();
    int silent[3] = {dial(), dial(), dial()};
    RAW_SEND(silent[0], "\0\xce\xf7"); /* a part of a request is none */
    int second = join();
    RAW_EXPECT_CLOSED(silent[0]);
    int third = join();
    RAW_EXPECT_CLOSED(silent[1]);
    assert_int_equal(stats().silent, 2);
    assert_int_equal(stats().refused, 0);
    assert_int_equal(stats().clients, 4);
    assert_true(raw_is_silent(silent[2]));
    RAW_SEND(silent[2], MEMBER);
    RAW_EXPECT(silent[2], WELCOME);
    RAW_SEND(first, "\x0d\1\2\3\4");
    RAW_EXPECT(first, WELCOME);
    close(first), close(second), close(third), close(silent[2]);
}

static int n_lines;
static char line[256];

static void on_log(void *userdata, tether_log_level level, const char *area, const char *message)
{
    (void)userdata, (void)level, (void)area;
    snprintf(line, sizeof line, "%s", message);
    n_lines++;
}

static void client_is_refused_when_all_others_have_spoken(void **state)
{
    (void)state;
    n_lines = 0;
    tether_set_log(TETHER_LOG_WARN, on_log, NULL);
    start(2, -1);
    int members[2] = {join(), join()};
    for (int i = 0; i < 5; i++) {
        int refused = raw_dial(tether_store_server_port(server));
        RAW_EXPECT_CLOSED(refused);
    }
    for (int i = 0; i < 2; i++) {
        RAW_SEND(members[i], "\x0d\1\2\3\4");
        RAW_EXPECT(members[i], WELCOME);
        close(members[i]);
    }
    assert_int_equal(stats().refused, 5);
    server = tether_store_server_release(server); /* its thread has ended: the line is whole */
    assert_int_equal(n_lines, 1);
    assert_non_null(strstr(line, "all 2 places for clients are taken: refused a client"));
    assert_non_null(strstr(line, "raise `ulimit -n` or max_clients"));
}

static void silent_clients_are_closed_when_few_places_are_free(void **state)
{
    (void)state;
    start(4, STALL_MS);
    int member = join();
    int silent[2] = {dial(), dial()};
    RAW_EXPECT_CLOSED(silent[0]);
    assert_eventually(stats().silent == 1);
    assert_int_equal(stats().clients, 2); /* half of the places: the other one stays */
    RAW_SEND(silent[1], MEMBER);
    RAW_EXPECT(silent[1], WELCOME);
    RAW_SEND(member, "\x0d\1\2\3\4");
    RAW_EXPECT(member, WELCOME);
    close(member), close(silent[1]);
}

/* PyTorch 1.13 keeps a second connection for watches. A thread of its client polls without a pause
 * once that connection is closed. */
static void silent_clients_stay_when_a_legacy_client_is_connected(void **state)
{
    (void)state;
    start(4, STALL_MS);
    int legacy = raw_dial(tether_store_server_port(server));
    RAW_SEND(legacy, "\x06"); /* the number of keys, in L0 */
    RAW_EXPECT(legacy, U64_0);
    int silent[2] = {dial(), dial()};
    usleep(5 * STALL_MS * 1000); /* for a time in which they would have been closed */
    assert_int_equal(stats().silent, 0);
    close(legacy);
    int member = join();
    RAW_EXPECT_CLOSED(silent[0]);
    close(member), close(silent[1]);
}

/* A member and 200 idle connections wait in the queue of the socket when the server starts. */
static void member_is_served_when_many_connect_behind_it_at_once(void **state)
{
    (void)state;
    enum { N = 200 };
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int fds[N], listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(listener, N + 1), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &len), 0);
    int member = raw_dial(ntohs(at.sin_port));
    RAW_SEND(member, MEMBER);
    for (int i = 0; i < N; i++)
        fds[i] = raw_dial(ntohs(at.sin_port));
    assert_ok(tether_store_server_new(
        TETHER_STORE_SERVER_OPTS(.listen_fd = &listener, .max_clients = 16, .stall_timeout_ms = -1),
        &server, err));
    RAW_EXPECT(member, WELCOME);
    assert_eventually(stats().silent == N + 1 - 16);
    assert_int_equal(stats().refused, 0);
    close(member);
    for (int i = 0; i < N; i++)
        close(fds[i]);
}

static void half_of_the_descriptors_are_left_when_no_limit_is_given(void **state)
{
    (void)state;
    enum { N = 40 };
    struct rlimit before, low;
    int fds[N];
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    low = before;
    low.rlim_cur = 64;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    start(0, -1);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    for (int i = 0; i < N; i++)
        fds[i] = raw_dial(tether_store_server_port(server));
    assert_eventually(stats().accepted == N);
    assert_int_equal(stats().clients, 32);
    for (int i = 0; i < N; i++)
        close(fds[i]);
}

int main(void)
{
#define T(test) cmocka_unit_test_teardown(test, stop)
    const struct CMUnitTest tests[] = {
        T(newcomer_takes_place_of_oldest_silent_client_when_all_are_taken),
        T(client_is_refused_when_all_others_have_spoken),
        T(silent_clients_are_closed_when_few_places_are_free),
        T(silent_clients_stay_when_a_legacy_client_is_connected),
        T(member_is_served_when_many_connect_behind_it_at_once),
        T(half_of_the_descriptors_are_left_when_no_limit_is_given),
    };
    return cmocka_run_group_tests_name("store_places", tests, NULL, NULL);
}
