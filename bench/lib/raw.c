/* See raw.h. The server is this program again (`raw-server KIND CPU`). It prints its address: a
 * port, or the name that the system gave its unix socket. A connection begins with the size of its
 * messages, which are echoed whole: if both blocking ends passed on large messages in parts, they
 * would block each other. Size 0 echoes bytes as they arrive.
 */
#include "bench/lib/raw.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "bench/lib/contestant.h"
#include "bench/lib/measure.h"

#define LARGEST (1 << 20)
#define OUTSTANDING 64
#define SMALL 64

static char data[LARGEST];

static int read_all(int fd, char *to, size_t len)
{
    for (size_t at = 0; at < len;) {
        ssize_t n = read(fd, to + at, len - at);
        if (n <= 0)
            return -1;
        at += (size_t)n;
    }
    return 0;
}

static int write_all(int fd, const char *from, size_t len)
{
    for (size_t at = 0; at < len;) {
        ssize_t n = write(fd, from + at, len - at);
        if (n <= 0)
            return -1;
        at += (size_t)n;
    }
    return 0;
}

static void set_no_delay(int fd)
{
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); /* fails on a unix socket */
}

/* ---- Addresses: "8123", or the five characters of an abstract unix socket ---- */

#define NAME_AT (offsetof(struct sockaddr_un, sun_path) + 1)

struct address {
    union {
        struct sockaddr any;
        struct sockaddr_in tcp;
        struct sockaddr_un local;
    };
    socklen_t len;
};

/* Converts an address; "" means any free one. */
static struct address address_of(const char *kind, const char *text)
{
    struct address address = {0};
    if (strcmp(kind, "unix") == 0) {
        address.local.sun_family = AF_UNIX;
        memcpy(address.local.sun_path + 1, text, strlen(text));
        address.len = (socklen_t)(*text ? NAME_AT + strlen(text) : sizeof(sa_family_t));
        return address;
    }
    address.tcp.sin_family = AF_INET;
    address.tcp.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.tcp.sin_port = htons((uint16_t)atoi(text));
    address.len = sizeof address.tcp;
    return address;
}

static void print_address(const struct address *address)
{
    if (address->any.sa_family == AF_INET)
        printf("%d\n", ntohs(address->tcp.sin_port));
    else
        printf("%.*s\n", (int)(address->len - NAME_AT), address->local.sun_path + 1);
    fflush(stdout);
}

/* ---- Server ---- */

static void serve_connection(int fd)
{
    uint32_t size;
    if (read_all(fd, (char *)&size, sizeof size))
        return;
    while (size > 0)
        if (read_all(fd, data, size) || write_all(fd, data, size))
            return;
    for (;;) {
        ssize_t n = read(fd, data, sizeof data);
        if (n <= 0 || write_all(fd, data, (size_t)n))
            return;
    }
}

static void serve(const char *kind, int cpu)
{
    struct address at = address_of(kind, "");
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    bench_pin(cpu);
    int listener = socket(at.any.sa_family, SOCK_STREAM, 0);
    int failed = bind(listener, &at.any, at.len) || listen(listener, 8);
    at.len = sizeof at.local;
    if (failed || getsockname(listener, &at.any, &at.len))
        bench_die("listening", strerror(errno));
    print_address(&at);
    for (int fd; (fd = accept(listener, NULL, NULL)) >= 0; close(fd)) {
        set_no_delay(fd);
        serve_connection(fd);
    }
    exit(0);
}

/* ---- Client ---- */

struct self {
    pid_t server;
    struct address address;
};

static struct self start_server(const char *kind, const char *cpu)
{
    int out[2];
    struct self self;
    char text[32];
    char *argv[] = {program_invocation_name, "raw-server", (char *)kind, (char *)cpu, NULL};
    if (pipe2(out, O_CLOEXEC) != 0)
        bench_die("a pipe", strerror(errno));
    self.server = bench_spawn_self(argv, -1, out[1]);
    close(out[1]);
    FILE *lines = fdopen(out[0], "r");
    if (!lines || fscanf(lines, "%31s", text) != 1)
        bench_die("the server", "did not start");
    fclose(lines);
    self.address = address_of(kind, text);
    return self;
}

static int dial(const struct self *self, uint32_t size)
{
    int fd = socket(self->address.any.sa_family, SOCK_STREAM, 0);
    if (connect(fd, &self->address.any, self->address.len) != 0 ||
        write_all(fd, (char *)&size, sizeof size))
        bench_die("connecting", strerror(errno));
    set_no_delay(fd);
    return fd;
}

static struct bench_samples samples;

static void ping_pong(const struct self *self, size_t size, double seconds)
{
    int fd = dial(self, (uint32_t)size);
    for (int i = 0; i < 20; i++)
        if (write_all(fd, data, size) || read_all(fd, data, size))
            bench_die("the server", "is gone");
    bench_samples_begin(&samples, seconds);
    do {
        if (write_all(fd, data, size) || read_all(fd, data, size))
            bench_die("the server", "is gone");
    } while (bench_samples_note(&samples));
    close(fd);
}

static double median_us(const struct self *self, size_t size, double seconds)
{
    ping_pong(self, size, seconds);
    return bench_samples_median_us(&samples);
}

static double sync_64(void *self, double seconds)
{
    return median_us(self, SMALL, seconds);
}

static double sync_64k(void *self, double seconds)
{
    return median_us(self, 64 << 10, seconds);
}

static double sync_1m(void *self, double seconds)
{
    return median_us(self, LARGEST, seconds);
}

static double rate_64(void *self, double seconds)
{
    ping_pong(self, SMALL, seconds);
    return bench_samples_rate(&samples);
}

/* Keeps 64 messages outstanding: sends as many as have come back, in one write. */
static double async_64(void *self, double seconds)
{
    static char out[OUTSTANDING * SMALL], in[OUTSTANDING * SMALL];
    int fd = dial(self, 0);
    size_t bytes_in = 0, sent = OUTSTANDING;
    double begin = bench_now_s(), now = begin;
    int failed = write_all(fd, out, sizeof out);
    while (!failed && now < begin + seconds) {
        ssize_t n = read(fd, in, sizeof in);
        failed = n <= 0;
        bytes_in += failed ? 0 : (size_t)n;
        size_t room = OUTSTANDING - (sent - bytes_in / SMALL);
        failed |= write_all(fd, out, room * SMALL);
        sent += room;
        now = bench_now_s();
    }
    close(fd);
    if (failed)
        bench_die("the server", "is gone");
    return (double)(bytes_in / SMALL) / (now - begin);
}

static const struct bench_skill skills[] = {
    {"sync_64", sync_64}, {"sync_64k", sync_64k}, {"sync_1m", sync_1m},
    {"rate_64", rate_64}, {"async_64", async_64}, {0},
};

void bench_raw_main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "raw-server") == 0)
        serve(argv[2], atoi(argv[3]));
    if (argc != 5 || strcmp(argv[1], "raw") != 0)
        return;
    struct self self = start_server(argv[2], argv[4]);
    bench_pin(atoi(argv[3]));
    bench_answer(skills, &self);
    bench_end(self.server);
    exit(0);
}
