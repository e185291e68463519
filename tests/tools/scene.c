/* The store of the nodes of a test. */
#include "tests/tools/scene.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/lib/cmocka.h"

int scene_setup(void **state)
{
    struct scene *scene = calloc(1, sizeof *scene);
    tether_error err = {0};
    if (tether_store_server_new(TETHER_STORE_SERVER_OPTS(.host = "127.0.0.1"), &scene->server,
                                &err) != TETHER_OK)
        fail_msg("%s", err.message);
    snprintf(scene->endpoint, sizeof scene->endpoint, "--rdzv-endpoint=127.0.0.1:%d",
             tether_store_server_port(scene->server));
    *state = scene;
    return 0;
}

int scene_teardown(void **state)
{
    struct scene *scene = *state;
    tether_store_server_release(scene->server);
    free(scene);
    return 0;
}

void end_node(struct tether_test_child *node, int exit_code)
{
    free(await_exit(node, exit_code));
    tether_test_child_free(node);
}

const char *free_endpoint(void)
{
    static char endpoint[64];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, len), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &len), 0);
    close(fd);
    snprintf(endpoint, sizeof endpoint, "--rdzv-endpoint=127.0.0.1:%d", ntohs(address.sin_port));
    return endpoint;
}
