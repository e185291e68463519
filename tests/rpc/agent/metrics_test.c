/* The values of the counters after some calls; any HTTP client can read them. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/lib/cmocka.h"
#include "tests/lib/heap.h"
#include "tests/rpc/lib/world.h"

static uint64_t value_of(const char *text, const char *name)
{
    char line[128];
    snprintf(line, sizeof line, "\n%s ", name);
    const char *found = strstr(text, line);
    if (!found)
        fail_msg("no %s in:\n%s", name, text);
    return strtoull(found + strlen(line), NULL, 10);
}

static void call_some(struct tether_test_world *w)
{
    tether_error err = {0};
    tether_value *arg = NULL;
    assert_int_equal(tether_value_printf(&arg, &err, "hello"), TETHER_OK);
    for (int i = 0; i < 3; i++)
        assert_int_equal(tether_rpc_sync(w->agents[0], "w1", "echo", arg, 10000, NULL, &err),
                         TETHER_OK);
    assert_int_equal(tether_rpc_sync(w->agents[0], "w1", "fail", arg, 10000, NULL, &err),
                     TETHER_EINVAL);
    tether_value_release(arg);
}

static void metrics_count_calls(void **state)
{
    (void)state;
    struct tether_test_world w;
    tether_buf text = TETHER_BUF_INIT;
    tether_test_world_start(&w, TETHER_TEST_SIM, 2, NULL);
    call_some(&w);
    assert_int_equal(tether_agent_metrics(w.agents[0], &text), TETHER_OK);
    assert_int_equal(value_of(text.data, "tether_calls_ok_total"), 3);
    assert_int_equal(value_of(text.data, "tether_calls_failed_total"), 1);
    assert_int_equal(value_of(text.data, "tether_client_active_calls"), 0);
    assert_int_equal(value_of(text.data, "tether_call_latency_seconds_count"), 4);
    assert_int_equal(value_of(text.data, "tether_peer_calls_total{peer=\"w1\"}"), 4);
    assert_int_equal(value_of(text.data, "tether_peer_errors_total{peer=\"w1\"}"), 1);
    assert_true(value_of(text.data, "tether_peer_bytes_sent_total{peer=\"w1\"}") > 20);
    assert_int_equal(value_of(text.data, "tether_peer_connects_total{peer=\"w1\"}"), 1);
    assert_int_equal(tether_agent_metrics(w.agents[1], &text), TETHER_OK);
    assert_int_equal(value_of(text.data, "tether_served_ok_total"), 3);
    assert_int_equal(value_of(text.data, "tether_served_failed_total"), 1);
    tether_buf_fini(&text);
    tether_test_world_stop(&w);
}

static bool never(void *userdata)
{
    (void)userdata;
    return false;
}

static void counters_of_gone_peer_are_added_up_under_one_label(void **state)
{
    (void)state;
    struct tether_test_world w;
    tether_buf text = TETHER_BUF_INIT;
    tether_test_world_start(&w, TETHER_TEST_SIM, 3, TETHER_AGENT_OPTS(.lease_ms = 2000));
    call_some(&w);
    tether_sim_kill(w.sim, w.agents[1]);
    tether_sim_run(w.sim, never, NULL, 10000);
    assert_int_equal(tether_agent_metrics(w.agents[0], &text), TETHER_OK);
    assert_int_equal(value_of(text.data, "tether_peer_fences_total{peer=\"w1\"}"), 1);

    tether_sim_run(w.sim, never, NULL, 600000);
    for (int i = 0; i < 2; i++) { /* to read the counters does not change them */
        assert_int_equal(tether_agent_metrics(w.agents[0], &text), TETHER_OK);
        assert_null(strstr(text.data, "{peer=\"w1\"}"));
        assert_int_equal(value_of(text.data, "tether_peer_calls_total{peer=\"(gone)\"}"), 4);
        assert_int_equal(value_of(text.data, "tether_peer_fences_total{peer=\"(gone)\"}"), 1);
    }
    tether_buf_fini(&text);
    tether_test_world_stop(&w);
}

/* A thread that keeps 64 calls on their way, each made when another is answered. */
static void keep_calls_going(tether_agent *agent, int n)
{
    enum { DEPTH = 64 };
    tether_future *futures[DEPTH] = {NULL};
    tether_error err = {0};
    for (int i = 0; i < n + DEPTH; i++) {
        tether_future **slot = &futures[i % DEPTH];
        if (*slot)
            assert_int_equal(tether_future_wait(*slot, 20000, NULL, &err), TETHER_OK);
        tether_future_release(*slot);
        *slot = i < n ? tether_rpc_async(agent, "w1", "echo", NULL, 20000) : NULL;
    }
}

/* However the threads happen to be scheduled, the calls must not fall apart into messages of one or
 * two for good. */
static void calls_are_batched_when_many_are_made_at_once(void **state)
{
    (void)state;
    enum { N = 20000 };
    struct tether_test_world w;
    tether_buf text = TETHER_BUF_INIT;
    tether_test_world_start(&w, TETHER_TEST_GRPC, 2, NULL);
    keep_calls_going(w.agents[0], N);
    assert_int_equal(tether_agent_metrics(w.agents[0], &text), TETHER_OK);
    assert_int_equal(value_of(text.data, "tether_calls_ok_total"), N);
    assert_true(value_of(text.data, "tether_peer_messages_sent_total{peer=\"w1\"}") < N / 8);
    tether_buf_fini(&text);
    tether_test_world_stop(&w);
}

static int dial(const char *address)
{
    struct sockaddr_in to = {.sin_family = AF_INET};
    to.sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

static void get(const char *address, tether_buf *ret_text)
{
    int fd = dial(address);
    assert_true(write(fd, "GET /metrics HTTP/1.1\r\n\r\n", 25) == 25);
    char part[4096];
    for (ssize_t n; (n = read(fd, part, sizeof part)) > 0;)
        tether_buf_append(ret_text, tether_bytes_of(part, (size_t)n));
    close(fd);
}

static void metrics_are_served_over_http(void **state)
{
    (void)state;
    struct tether_test_world w;
    tether_buf text = TETHER_BUF_INIT;
    tether_test_world_start(&w, TETHER_TEST_GRPC, 2,
                            TETHER_AGENT_OPTS(.metrics_listen = "127.0.0.1:0"));
    call_some(&w);
    get(tether_agent_metrics_address(w.agents[0]), &text);
    assert_memory_equal(text.data, "HTTP/1.1 200 OK\r\n", 17);
    assert_int_equal(value_of(text.data, "tether_calls_ok_total"), 3);
    tether_buf_fini(&text);
    tether_test_world_stop(&w);
}

/* Sockets of this process that accept TCP connections. */
static int n_listening(void)
{
    int n = 0;
    for (int fd = 0; fd < 1024; fd++) {
        int accepts = 0, domain = 0;
        socklen_t len = sizeof accepts;
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &accepts, &len) == 0 && accepts &&
            getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) == 0 && domain != AF_UNIX)
            n++;
    }
    return n;
}

static void metrics_are_served_only_with_metrics_listen(void **state)
{
    (void)state;
    struct tether_test_world w;
    tether_buf text = TETHER_BUF_INIT;
    int before = n_listening();
    tether_test_world_start(&w, TETHER_TEST_GRPC, 1, NULL);
    assert_int_equal(n_listening(), before + 1); /* the worker's own */
    assert_string_equal(tether_agent_metrics_address(w.agents[0]), "");
    get(tether_agent_address(w.agents[0]), &text);
    assert_null(memmem(text.data, text.len, "tether_calls", 12));
    tether_test_world_stop(&w);
    tether_test_world_start(&w, TETHER_TEST_GRPC, 1,
                            TETHER_AGENT_OPTS(.metrics_listen = "127.0.0.1:0"));
    assert_int_equal(n_listening(), before + 2);
    tether_test_world_stop(&w);
    tether_buf_fini(&text);
}

/* The request during the failure is dropped; a later request is answered. */
static void metrics_are_served_again_after_an_allocation_failed(void **state)
{
    (void)state;
    struct tether_test_world w;
    tether_buf text = TETHER_BUF_INIT;
    tether_test_world_start(&w, TETHER_TEST_GRPC, 1,
                            TETHER_AGENT_OPTS(.metrics_listen = "127.0.0.1:0"));
    const char *address = tether_agent_metrics_address(w.agents[0]);
    for (int i = 0; i < 3; i++) {
        tether_test_heap_fail_from(0);
        int fd = dial(address);
        char byte;
        assert_true(read(fd, &byte, 1) <= 0);
        close(fd);
        tether_test_heap_fail_never();
    }
    get(address, &text);
    assert_memory_equal(text.data, "HTTP/1.1 200 OK\r\n", 17);
    tether_buf_fini(&text);
    tether_test_world_stop(&w);
}

static void start_fails_with_reason_when_metrics_cannot_be_served(void **state)
{
    (void)state;
    tether_store *store = NULL;
    tether_agent *first = NULL, *second = NULL;
    tether_error err = {0};
    assert_int_equal(tether_store_hash_new(&store, &err), TETHER_OK);
    assert_int_equal(tether_agent_new(TETHER_AGENT_OPTS(.name = "a", .store = store,
                                                        .metrics_listen = "127.0.0.1:0"),
                                      &first, &err),
                     TETHER_OK);
    assert_int_equal(tether_agent_start(first, &err), TETHER_OK);
    const char *taken = tether_agent_metrics_address(first);
    assert_int_equal(
        tether_agent_new(TETHER_AGENT_OPTS(.name = "b", .store = store, .metrics_listen = taken),
                         &second, &err),
        TETHER_OK);
    assert_int_equal(tether_agent_start(second, &err), TETHER_EADDRINUSE);
    assert_non_null(strstr(err.message, "cannot serve metrics on '127.0.0.1:"));
    tether_agent_release(second);
    tether_agent_release(first);
    tether_store_release(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(metrics_count_calls),
        cmocka_unit_test(counters_of_gone_peer_are_added_up_under_one_label),
        cmocka_unit_test(calls_are_batched_when_many_are_made_at_once),
        cmocka_unit_test(metrics_are_served_over_http),
        cmocka_unit_test(metrics_are_served_only_with_metrics_listen),
        cmocka_unit_test(metrics_are_served_again_after_an_allocation_failed),
        cmocka_unit_test(start_fails_with_reason_when_metrics_cannot_be_served),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
