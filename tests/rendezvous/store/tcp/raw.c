/* A client that sends and expects raw bytes. */
#include "tests/rendezvous/store/tcp/raw.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"

int raw_dial(int port)
{
    struct sockaddr_in addr = {.sin_family = AF_INET,
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                               .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&addr, sizeof addr), 0);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct timeval limit = {.tv_sec = TETHER_TEST_LIMIT_MS / 1000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return fd;
}

void raw_send(int fd, const void *bytes, size_t len)
{
    for (const char *at = bytes; len > 0;) {
        ssize_t n = send(fd, at, len, MSG_NOSIGNAL);
        assert_true(n > 0);
        at += n;
        len -= (size_t)n;
    }
}

void raw_send_dribbling(int fd, const void *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        raw_send(fd, (const char *)bytes + i, 1);
        sched_yield(); /* let the server read an incomplete request */
    }
}

static void print_bytes(const char *what, const unsigned char *bytes, size_t len)
{
    print_error("%s:", what);
    for (size_t i = 0; i < len; i++)
        print_error(" %02x", bytes[i]);
    print_error("\n");
}

void raw_expect(int fd, const void *bytes, size_t len, const char *file, int line)
{
    unsigned char *got = malloc(len + 1);
    size_t n = 0;
    while (n < len) {
        ssize_t r = recv(fd, got + n, len - n, 0);
        if (r <= 0)
            break;
        n += (size_t)r;
    }
    bool same = n == len && memcmp(got, bytes, len) == 0;
    if (!same) {
        print_bytes("expected", bytes, len);
        print_bytes("came", got, n);
    }
    free(got);
    if (!same)
        _fail(file, line);
}

void raw_expect_closed(int fd, const char *file, int line)
{
    char byte;
    ssize_t n = recv(fd, &byte, 1, 0);
    if (n > 0 || (n < 0 && errno != ECONNRESET)) {
        print_error(n > 0 ? "byte %02x came\n" : "still open\n", (unsigned char)byte);
        _fail(file, line);
    }
    close(fd);
}

bool raw_is_silent(int fd)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    return poll(&poll_fd, 1, 0) == 0;
}
