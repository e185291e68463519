/* A scripted store server. */
#include "tests/rendezvous/store/tcp/fake_server.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"

struct fake_server {
    const struct fake_step *steps;
    size_t n, done;
    int listen_fd, port;
    pthread_t thread;
    char wrong[256]; /* read after the thread has ended */
};

static bool read_step(struct fake_server *fake, int fd, const struct fake_step *step)
{
    char got[4096];
    size_t n = 0, want = step->request ? step->request_len : 1;
    while (n < want) {
        ssize_t r = recv(fd, got + n, want - n, 0);
        if (r <= 0)
            break;
        n += (size_t)r;
    }
    if (n == step->request_len && (n == 0 || memcmp(got, step->request, n) == 0))
        return true;
    size_t len = (size_t)snprintf(fake->wrong, sizeof fake->wrong, "step %zu came as", fake->done);
    for (size_t i = 0; i < n && len < sizeof fake->wrong - 4; i++)
        len += (size_t)snprintf(fake->wrong + len, sizeof fake->wrong - len, " %02x",
                                (unsigned char)got[i]);
    return false;
}

/* Serves one connection until the script closes it or ends. */
static bool serve(struct fake_server *fake, int fd)
{
    while (fake->done < fake->n) {
        const struct fake_step *step = &fake->steps[fake->done];
        if (!read_step(fake, fd, step))
            return false;
        if (!step->reply) {
            fake->done++;
            return true;
        }
        if (step->reply_len)
            send(fd, step->reply, step->reply_len, MSG_NOSIGNAL);
        fake->done++;
    }
    char rest;
    if (recv(fd, &rest, 1, 0) > 0) /* the client must not send more */
        snprintf(fake->wrong, sizeof fake->wrong, "byte %02x came behind the last step",
                 (unsigned char)rest);
    return false;
}

static void *fake_main(void *arg)
{
    struct fake_server *fake = arg;
    struct timeval limit = {.tv_sec = TETHER_TEST_LIMIT_MS / 1000};
    bool more = true;
    while (more && fake->done < fake->n) {
        int fd = accept(fake->listen_fd, NULL, NULL);
        if (fd < 0)
            break;
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        more = serve(fake, fd);
        close(fd);
    }
    return NULL;
}

struct fake_server *fake_start(const struct fake_step *steps, size_t n)
{
    struct fake_server *fake = calloc(1, sizeof *fake);
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof addr;
    struct timeval limit = {.tv_sec = TETHER_TEST_LIMIT_MS / 1000};
    fake->steps = steps;
    fake->n = n;
    fake->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fake->listen_fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    assert_int_equal(bind(fake->listen_fd, (struct sockaddr *)&addr, len), 0);
    assert_int_equal(listen(fake->listen_fd, 16), 0);
    assert_int_equal(getsockname(fake->listen_fd, (struct sockaddr *)&addr, &len), 0);
    fake->port = ntohs(addr.sin_port);
    assert_int_equal(pthread_create(&fake->thread, NULL, fake_main, fake), 0);
    return fake;
}

int fake_port(const struct fake_server *fake)
{
    return fake->port;
}

void fake_end(struct fake_server *fake)
{
    pthread_join(fake->thread, NULL);
    close(fake->listen_fd);
    size_t done = fake->done, n = fake->n;
    char wrong[sizeof fake->wrong];
    memcpy(wrong, fake->wrong, sizeof wrong);
    free(fake);
    if (*wrong)
        fail_msg("%s", wrong);
    assert_int_equal(done, n);
}
