/* The acceptor of a gRPC transport that starts late, before gRPC has started. */
#include <arpa/inet.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rpc/transport/transport.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"

/* The head of what each gRPC client sends first. */
static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0";

static int n_asked;

/* As when the thread that was to start gRPC could not be made. */
static bool ask_in_vain(void *userdata)
{
    (void)userdata;
    n_asked++;
    return true;
}

static int connect_to(const char *address)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    at.sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(send(fd, preface, sizeof preface - 1, MSG_NOSIGNAL), sizeof preface - 1);
    return fd;
}

static void each_client_asks_for_start(void **state)
{
    (void)state;
    enum { CLIENTS = 3 };
    static const struct tether__transport_events events = {.begin_wanted = ask_in_vain};
    struct tether__transport *transport;
    tether_error error = {0};
    int clients[CLIENTS];
    const struct tether__transport_opts opts = {
        .listen = "127.0.0.1:0", .late = true, .events = &events};
    assert_int_equal(tether__transport_grpc_new(&opts, &transport, &error), TETHER_OK);
    assert_int_equal(transport->ops->start(transport, &error), TETHER_OK);
    struct pollfd acceptor = {.fd = transport->ops->accept_fd(transport), .events = POLLIN};
    for (int i = 0; i < CLIENTS; i++) {
        clients[i] = connect_to(transport->address);
        while (n_asked <= i) {
            assert_int_equal(poll(&acceptor, 1, TETHER_TEST_LIMIT_MS), 1);
            transport->ops->accept(transport);
        }
    }
    transport->ops->destroy(transport);
    for (int i = 0; i < CLIENTS; i++)
        close(clients[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_client_asks_for_start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
