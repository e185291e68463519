/* Sockets that have a path: many start at it at once, over one that a killed process left. One wins
 * and stays reachable; a start removes only its own. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "net/socket_path.h"
#include "rendezvous/store_tcp.h"
#include "rpc/agent.h"
#include "tests/lib/cmocka.h"

#define STARTERS 8
#define ROUNDS 15

static char folder[] = "/tmp/tether-paths-XXXXXX";
static char path[100], address[110];

static int setup(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/socket", folder);
    snprintf(address, sizeof address, "unix:%s", path);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return rmdir(folder); /* nothing is left in it */
}

/* Creates the socket file in the state in which a killed process leaves it. */
static void leave_stale_socket(void)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    close(fd);
}

static bool somebody_listens(void)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool connected = connect(fd, (struct sockaddr *)&at, sizeof at) == 0;
    close(fd);
    return connected;
}

struct starter {
    pthread_t thread;
    pthread_barrier_t *start;
    tether_status status;
    tether_error error;
    tether_store_server *server;
    tether_agent *agent;
};

static void *start_server(void *arg)
{
    struct starter *starter = arg;
    pthread_barrier_wait(starter->start);
    starter->status = tether_store_server_new(TETHER_STORE_SERVER_OPTS(.unix_path = path),
                                              &starter->server, &starter->error);
    return NULL;
}

static void *start_agent(void *arg)
{
    struct starter *starter = arg;
    pthread_barrier_wait(starter->start);
    starter->status = tether_agent_start(starter->agent, &starter->error);
    return NULL;
}

/* Runs all at once; exactly one may have started, and is reachable. */
static struct starter *race(struct starter *starters, void *(*run)(void *))
{
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, STARTERS);
    for (int i = 0; i < STARTERS; i++) {
        starters[i].start = &start;
        pthread_create(&starters[i].thread, NULL, run, &starters[i]);
    }
    struct starter *winner = NULL;
    for (int i = 0; i < STARTERS; i++) {
        pthread_join(starters[i].thread, NULL);
        if (starters[i].status == TETHER_OK) {
            assert_null(winner);
            winner = &starters[i];
        } else if (starters[i].status != TETHER_EADDRINUSE) {
            fail_msg("%s: %s", tether_status_name(starters[i].status), starters[i].error.message);
        }
    }
    pthread_barrier_destroy(&start);
    assert_non_null(winner);
    assert_true(somebody_listens());
    struct stat st;
    assert_int_equal(lstat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    return winner;
}

static void socket_path_goes_to_one_of_many_starting_stores(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        struct starter starters[STARTERS] = {0};
        leave_stale_socket();
        struct starter *winner = race(starters, start_server);
        tether_store_server_release(winner->server);
        assert_int_equal(access(path, F_OK), -1);
    }
}

static void socket_path_goes_to_one_of_many_starting_workers(void **state)
{
    (void)state;
    for (int round = 0; round < 3; round++) {
        struct starter starters[STARTERS] = {0};
        tether_store *store = NULL;
        tether_error err = {0};
        assert_int_equal(tether_store_hash_new(&store, &err), TETHER_OK);
        for (int i = 0; i < STARTERS; i++) {
            char name[16];
            snprintf(name, sizeof name, "w%d", i);
            if (tether_agent_new(TETHER_AGENT_OPTS(.name = name, .store = store, .listen = address),
                                 &starters[i].agent, &err) != TETHER_OK)
                fail_msg("%s", err.message);
        }
        leave_stale_socket();
        struct starter *winner = race(starters, start_agent);
        for (int i = 0; i < STARTERS; i++)
            if (&starters[i] != winner)
                tether_agent_release(starters[i].agent);
        assert_true(somebody_listens()); /* the losers took nothing along */
        tether_agent_shutdown(winner->agent, false, NULL);
        tether_agent_release(winner->agent);
        assert_int_equal(access(path, F_OK), -1);
        tether_store_release(store);
    }
}

/* The path leads to another's socket by now, or to no socket at all: it stays. */
static void socket_path_keeps_files_of_others(void **state)
{
    (void)state;
    tether_store_server *server = NULL;
    tether_error err = {0};
    if (tether_store_server_new(TETHER_STORE_SERVER_OPTS(.unix_path = path), &server, &err))
        fail_msg("%s", err.message);
    unlink(path);
    leave_stale_socket();
    tether_store_server_release(server);
    assert_int_equal(access(path, F_OK), 0);
    unlink(path);

    if (tether_store_server_new(TETHER_STORE_SERVER_OPTS(.unix_path = path), &server, &err))
        fail_msg("%s", err.message);
    unlink(path);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    fclose(file);
    tether_store_server_release(server);
    assert_int_equal(access(path, F_OK), 0);
    unlink(path);

    struct tether__socket_id none = {0};
    leave_stale_socket();
    tether__socket_path_remove(path, none);
    assert_int_equal(access(path, F_OK), 0);
    tether__socket_path_remove(path, tether__socket_path_id(path));
    assert_int_equal(access(path, F_OK), -1);
}

/* As a process that is stopped while it starts: without the lock its socket could be removed. */
static void start_is_refused_when_another_start_keeps_the_lock(void **state)
{
    (void)state;
    struct tether__socket_lock lock = {.fd = -1};
    tether_store_server *server = NULL;
    tether_error err = {0};
    assert_int_equal(tether__socket_path_lock(path, &lock, &err), TETHER_OK);
    leave_stale_socket();
    assert_int_equal(
        tether_store_server_new(TETHER_STORE_SERVER_OPTS(.unix_path = path), &server, &err),
        TETHER_EADDRINUSE);
    if (!strstr(err.message, "has held the lock file"))
        fail_msg("%s", err.message);
    assert_int_equal(access(path, F_OK), 0);
    tether__socket_path_unlock(&lock);
    if (tether_store_server_new(TETHER_STORE_SERVER_OPTS(.unix_path = path), &server, &err))
        fail_msg("%s", err.message);
    tether_store_server_release(server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(socket_path_goes_to_one_of_many_starting_stores),
        cmocka_unit_test(socket_path_goes_to_one_of_many_starting_workers),
        cmocka_unit_test(socket_path_keeps_files_of_others),
        cmocka_unit_test(start_is_refused_when_another_start_keeps_the_lock),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
