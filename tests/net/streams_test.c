/* Sockets of processes whose standard streams are closed, as daemons have them. */
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "net/net.h"
#include "tests/lib/cmocka.h"

/* Output of other code would be written to a socket with such a number. */
static void sockets_are_no_standard_streams_when_these_were_closed(void **state)
{
    (void)state;
    int saved[3], fds[TETHER__NET_MAX_LISTENERS], n = 0, dialled = -1;
    for (int fd = 0; fd < 3; fd++)
        saved[fd] = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    for (int fd = 0; fd < 3; fd++)
        close(fd);
    tether_status bound = tether__net_bind("127.0.0.1", 0, false, fds, &n, NULL);
    tether_status st = TETHER_EIO;
    if (bound == TETHER_OK && listen(fds[0], 1) == 0)
        st = tether__net_dial("127.0.0.1", tether__net_port(fds[0]),
                              tether__deadline_in(&tether__clock_system, -1), &dialled, NULL);
    for (int i = 0; i < n; i++)
        close(fds[i]);
    close(dialled);
    for (int fd = 0; fd < 3; fd++) {
        if (saved[fd] < 0)
            continue;
        dup2(saved[fd], fd);
        close(saved[fd]);
    }
    assert_int_equal(bound, TETHER_OK);
    assert_int_equal(st, TETHER_OK);
    assert_true(fds[0] > STDERR_FILENO);
    assert_true(dialled > STDERR_FILENO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sockets_are_no_standard_streams_when_these_were_closed),
    };
    return cmocka_run_group_tests_name("streams", tests, NULL, NULL);
}
