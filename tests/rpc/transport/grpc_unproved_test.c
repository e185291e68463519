/* The connections whose clients have not shown who they are, without gRPC. */
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rpc/transport/grpc/grpc.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"

enum { CONNS = TETHER__GRPC_MAX_ENDING + 36 };

static struct tether__grpc transport; /* all zero: no thread polls */

/* Enters a connection whose client has ended it. Returns the descriptor that gRPC would have. */
static int enter_ended(int listener, const struct sockaddr_in *at)
{
    int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(client >= 0);
    assert_int_equal(connect(client, (const struct sockaddr *)at, sizeof *at), 0);
    int fd = accept(listener, NULL, NULL);
    assert_true(fd >= 0);
    close(client);
    struct pollfd end = {.fd = fd, .events = POLLRDHUP};
    assert_int_equal(poll(&end, 1, TETHER_TEST_LIMIT_MS), 1);
    int grpcs_fd = tether__grpc_unproved_enter(&transport.unproved, fd);
    assert_true(grpcs_fd >= 0);
    return grpcs_fd;
}

static void look_is_wanted_again_while_there_is_no_room_for_all_that_have_ended(void **state)
{
    (void)state;
    struct tether__grpc_unproved *unproved = &transport.unproved;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int grpcs_fds[CONNS], listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &len), 0);
    assert_int_equal(listen(listener, CONNS), 0);
    tether__grpc_unproved_init(unproved);
    assert_int_equal(tether__grpc_unproved_listen(unproved, true, NULL), TETHER_OK);
    for (int i = 0; i < CONNS; i++)
        grpcs_fds[i] = enter_ended(listener, &at);

    assert_true(tether__grpc_unproved_look(unproved));
    assert_int_equal(unproved->n, CONNS - TETHER__GRPC_MAX_ENDING);
    for (int i = 0; i < CONNS; i++)
        close(grpcs_fds[i]);
    assert_true(tether__grpc_unproved_has_room(unproved));
    assert_false(tether__grpc_unproved_look(unproved));
    assert_int_equal(unproved->n, 0);
    tether__grpc_unproved_fini(unproved);
    close(listener);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(look_is_wanted_again_while_there_is_no_room_for_all_that_have_ended),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
