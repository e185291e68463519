/* Ports and addresses of this machine, found by binding to them. */
#include "tests/lib/port.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/lib/cmocka.h"

#define FIRST 10000
#define COUNT 20000

int tether_test_quiet_port(void)
{
    static unsigned seed;
    /* A random start. The pid would not do, because concurrent tests in sandboxes have the same
     * one. */
    if (!seed && getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed)
        seed = (unsigned)getpid();
    for (;;) {
        int port = FIRST + rand_r(&seed) % COUNT;
        struct sockaddr_in addr = {.sin_family = AF_INET,
                                   .sin_addr = {htonl(INADDR_LOOPBACK)},
                                   .sin_port = htons((uint16_t)port)};
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        bool is_free = bind(fd, (struct sockaddr *)&addr, sizeof addr) == 0;
        close(fd);
        if (is_free)
            return port;
    }
}

bool tether_test_has_ipv6(void)
{
    struct sockaddr_in6 addr = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool works = fd >= 0 && bind(fd, (struct sockaddr *)&addr, sizeof addr) == 0;
    int reason = works ? 0 : errno;
    if (fd >= 0)
        close(fd);
    if (reason && reason != EAFNOSUPPORT && reason != EADDRNOTAVAIL)
        fail_msg("binding to ::1: %s", strerror(reason));
    return works;
}
