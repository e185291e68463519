/* See raw_socket.h. */
#include "tests/rpc/lib/raw_socket.h"

#include <poll.h>
#include <stdint.h>
#include <sys/socket.h>

#include "rpc/transport/socket/socket.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"

static int open_socket(const char *address, struct tether__unix_sockaddr *ret_at)
{
    assert_true(tether__unix_sockaddr(address, ret_at));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    return fd;
}

int raw_connect(const char *address)
{
    struct tether__unix_sockaddr at;
    int fd = open_socket(address, &at);
    assert_int_equal(connect(fd, (struct sockaddr *)&at.at, at.len), 0);
    return fd;
}

int raw_listen(const char *address)
{
    struct tether__unix_sockaddr at;
    int fd = open_socket(address, &at);
    assert_int_equal(bind(fd, (struct sockaddr *)&at.at, at.len), 0);
    assert_int_equal(listen(fd, 16), 0);
    return fd;
}

void raw_write(int fd, const void *bytes, size_t len)
{
    for (const char *at = bytes; len;) {
        ssize_t n = send(fd, at, len, MSG_NOSIGNAL);
        if (n < 0)
            return;
        at += n;
        len -= (size_t)n;
    }
}

static ssize_t read_some(int fd, void *ret_bytes, size_t len, const char *what)
{
    struct pollfd poller = {.fd = fd, .events = POLLIN};
    if (poll(&poller, 1, TETHER_TEST_LIMIT_MS) != 1)
        fail_msg("%s: nothing comes, and the other end does not hang up", what);
    return recv(fd, ret_bytes, len, 0);
}

void raw_read(int fd, void *ret_bytes, size_t len)
{
    for (char *at = ret_bytes; len;) {
        ssize_t n = read_some(fd, at, len, "reading");
        assert_true(n > 0);
        at += n;
        len -= (size_t)n;
    }
}

void raw_await_hangup(int fd, const char *what)
{
    char buffer[4096];
    while (read_some(fd, buffer, sizeof buffer, what) > 0) {
    }
}
