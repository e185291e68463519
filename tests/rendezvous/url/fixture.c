#include "tests/rendezvous/url/fixture.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rendezvous/rendezvous.h"
#include "tests/lib/cmocka.h"

static const char *const variables[] = {"RANK",
                                        "WORLD_SIZE",
                                        "MASTER_ADDR",
                                        "MASTER_PORT",
                                        "TETHER_USE_AGENT_STORE",
                                        "TETHER_INSECURE",
                                        "TETHER_STORE_PREFIX"};

int url_clear_environment(void **state)
{
    (void)state;
    for (size_t i = 0; i < TETHER__ARRAY_LEN(variables); i++)
        unsetenv(variables[i]);
    return 0;
}

int url_free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, len), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &len), 0);
    close(fd);
    return ntohs(address.sin_port);
}

struct tether_world url_host_at(const char *format, int timeout_ms)
{
    tether_error err = {0};
    for (int tries = 0; tries < 20; tries++) {
        char url[256];
        struct tether_world world = {NULL, -1, -1};
        int port = url_free_port();
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(url, sizeof url, format, port);
#pragma GCC diagnostic pop
        if (strncmp(url, "env:", 4) == 0) {
            char text[16];
            snprintf(text, sizeof text, "%d", port);
            setenv("MASTER_PORT", text, 1);
        }
        tether_status st = tether_rendezvous(url, -1, -1, timeout_ms, &world, &err);
        if (st == TETHER_OK)
            return world;
        /* A busy machine may take longer than a short timeout to connect. */
        if (st != TETHER_EADDRINUSE && st != TETHER_ETIMEOUT)
            break;
    }
    fail_msg("%s", err.message);
    return (struct tether_world){NULL, -1, -1};
}

void url_put(tether_store *store, const char *key, const char *value)
{
    tether_error err = {0};
    if (tether_store_set(store, key, tether_bytes_str(value), LIMIT_MS, &err) != TETHER_OK)
        fail_msg("%s", err.message);
}

void url_expect(tether_store *store, const char *key, const char *value)
{
    tether_error err = {0};
    tether_buf got = TETHER_BUF_INIT;
    if (tether_store_get(store, key, LIMIT_MS, &got, &err) != TETHER_OK)
        fail_msg("%s", err.message);
    assert_string_equal(got.data, value);
    tether_buf_fini(&got);
}

void url_refused(const char *url, int rank, int size, tether_status status, const char *says)
{
    struct tether_world world = {NULL, 71, 72};
    tether_error err = {0};
    tether_status st = tether_rendezvous(url, rank, size, SHORT_MS, &world, &err);
    if (st != status || !strstr(err.message, says))
        fail_msg("%s gives %s '%s', not %s '%s'", url, tether_status_name(st), err.message,
                 tether_status_name(status), says);
    assert_null(world.store);
    assert_int_equal(world.rank, 71);
}
