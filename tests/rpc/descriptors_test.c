/* A worker whose process has no file descriptor left for a while: it can be reached again, and
 * clients that say nothing do not keep others out.
 */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rpc/agent.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"
#include "tests/rpc/plain_client.h"

enum { MORE = 24, ALL = 200, MANY = 600 };

struct scene {
    tether_store *store;
    tether_agent *agent;
    struct sockaddr_in at;
};

static void scene_start(struct scene *scene)
{
    tether_error err = {0};
    assert_int_equal(tether_store_hash_new(&scene->store, &err), TETHER_OK);
    assert_int_equal(tether_agent_new(TETHER_AGENT_OPTS(.name = "w", .store = scene->store),
                                      &scene->agent, &err),
                     TETHER_OK);
    if (tether_agent_start(scene->agent, &err) != TETHER_OK)
        fail_msg("%s", err.message);
    scene->at = (struct sockaddr_in){.sin_family = AF_INET};
    scene->at.sin_port =
        htons((uint16_t)atoi(strrchr(tether_agent_address(scene->agent), ':') + 1));
    scene->at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
}

static void scene_end(struct scene *scene)
{
    tether_agent_release(scene->agent);
    tether_store_release(scene->store);
}

/* A connection that says nothing; -1: there is no descriptor for it. */
static int connect_silently(struct scene *scene)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&scene->at, sizeof scene->at) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* The worker answers a client that comes now. */
static void assert_reachable(struct scene *scene)
{
    struct plain_client client;
    struct plain_call done;
    plain_client_init(&client, tether_agent_address(scene->agent));
    plain_start(&client,
                &(struct plain_request){.method = "/grpc.health.v1.Health/Check", .body = ""},
                &done);
    plain_finish(&done);
    if (done.code != GRPC_STATUS_OK)
        fail_msg("%d: %s", done.code, done.details);
    plain_free(&done);
    plain_client_fini(&client);
}

static bool one_has_ended(const int *fds, int n)
{
    char byte;
    for (int i = 0; i < n; i++)
        if (recv(fds[i], &byte, 1, MSG_DONTWAIT) == 0)
            return true;
    return false;
}

static int highest_descriptor(void)
{
    int fd = dup(0);
    close(fd);
    return fd;
}

static void worker_is_reachable_again_after_descriptors_ran_out(void **state)
{
    (void)state;
    struct scene scene;
    struct rlimit before, low;
    int fds[ALL], n = 0;
    scene_start(&scene);
    assert_reachable(&scene);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    low = before;
    low.rlim_cur = (rlim_t)highest_descriptor() + MORE;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    while (n < ALL && (fds[n] = connect_silently(&scene)) >= 0)
        n++;
    assert_true(n > 0 && n < ALL);            /* client and worker have used up what there was */
    assert_eventually(one_has_ended(fds, n)); /* the worker has noticed */
    while (n > 0)
        close(fds[--n]);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_reachable(&scene);
    scene_end(&scene);
}

/* They would take up a descriptor of the worker each. */
static void silent_connections_are_dropped_when_there_are_too_many(void **state)
{
    (void)state;
    struct scene scene;
    static int fds[MANY];
    scene_start(&scene);
    for (int i = 0; i < MANY; i++)
        assert_true((fds[i] = connect_silently(&scene)) >= 0);
    char byte;
    assert_true(recv(fds[0], &byte, 1, 0) <= 0); /* the oldest goes */
    assert_reachable(&scene);
    for (int i = 0; i < MANY; i++)
        close(fds[i]);
    scene_end(&scene);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(worker_is_reachable_again_after_descriptors_ran_out),
        cmocka_unit_test(silent_connections_are_dropped_when_there_are_too_many),
    };
    return cmocka_run_group_tests_name("descriptors", tests, NULL, NULL);
}
