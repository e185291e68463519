/* Processes that start at one socket path while a process of another user gets in their way: it
 * locks their folder, or makes their lock file. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "rendezvous/store_tcp.h"
#include "rpc/agent.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/proc.h"
#include "tests/lib/user.h"

#define ROUNDS 20
#define N_STARTERS 4

enum { FOLDER_IS_MADE, IN_THE_WAY, STARTED, TRIED, REACHED, ENDED, ALL_ENDED };
enum { INTRUDER, FIRST_STARTER };

struct page {
    char folder[64], path[80];
    _Atomic int winners[ROUNDS];
};

static struct page *page_of(struct tether_test_world *world)
{
    _Static_assert(sizeof(struct page) <= sizeof world->page, "the page is too small");
    return (struct page *)world->page;
}

static void make_folder(struct tether_test_world *world)
{
    struct page *page = page_of(world);
    snprintf(page->folder, sizeof page->folder, "/tmp/tether-race-XXXXXX");
    assert_non_null(mkdtemp(page->folder));
    assert_int_equal(chmod(page->folder, 01777), 0); /* as /tmp */
    snprintf(page->path, sizeof page->path, "%s/socket", page->folder);
    tether_test_mark(world, FOLDER_IS_MADE);
}

/* Creates the socket file in the state in which a killed process leaves it. */
static void leave_stale_socket(const char *path)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    close(fd);
}

static bool can_be_reached(const char *path)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool connected = connect(fd, (struct sockaddr *)&at, sizeof at) == 0;
    close(fd);
    return connected;
}

/* ---- The folder is locked ---- */

static void lock_folder(struct tether_test_world *world)
{
    uid_t user = geteuid();
    tether_test_await_mark(world, FOLDER_IS_MADE, 1);
    assert_true(tether_test_become(TETHER_TEST_OTHER_USER));
    int fd = open(page_of(world)->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    tether_test_mark(world, IN_THE_WAY);
    tether_test_await_mark(world, ALL_ENDED, 1);
    close(fd);
    assert_true(tether_test_become(user)); /* sanitizers want to look around at the end */
}

/* All starters try at once. One gets the path, and keeps it. */
static void start_in_round(struct tether_test_world *world, int rank, int round)
{
    struct page *page = page_of(world);
    tether_store_server *server = NULL;
    tether_error err = {0};
    if (rank == FIRST_STARTER)
        leave_stale_socket(page->path);
    tether_test_mark(world, STARTED);
    tether_test_await_mark(world, STARTED, (round + 1) * N_STARTERS);
    tether_status st =
        tether_store_server_new(TETHER_STORE_SERVER_OPTS(.unix_path = page->path), &server, &err);
    if (st == TETHER_OK)
        atomic_fetch_add(&page->winners[round], 1);
    else if (st != TETHER_EADDRINUSE)
        fail_msg("%s", err.message);
    tether_test_mark(world, TRIED);
    tether_test_await_mark(world, TRIED, (round + 1) * N_STARTERS);
    assert_int_equal(atomic_load(&page->winners[round]), 1);
    assert_true(can_be_reached(page->path));
    tether_test_mark(world, REACHED);
    tether_test_await_mark(world, REACHED, (round + 1) * N_STARTERS);
    tether_store_server_release(server);
    tether_test_mark(world, ENDED);
    tether_test_await_mark(world, ENDED, (round + 1) * N_STARTERS);
    if (rank == FIRST_STARTER) /* this rank also creates the next one */
        assert_int_equal(access(page->path, F_OK), -1);
}

TETHER_PROC_ROLE(beside_locked_folder)
{
    if (rank == INTRUDER) {
        lock_folder(self->world);
        return;
    }
    if (rank == FIRST_STARTER)
        make_folder(self->world);
    tether_test_await_mark(self->world, IN_THE_WAY, 1);
    for (int round = 0; round < ROUNDS; round++)
        start_in_round(self->world, rank, round);
    if (rank == FIRST_STARTER) {
        assert_int_equal(rmdir(page_of(self->world)->folder), 0); /* nothing is left in it */
        tether_test_mark(self->world, ALL_ENDED);
    }
}

static void one_process_gets_the_path_when_another_user_locks_the_folder(void **state)
{
    (void)state;
    tether_test_need_other_user();
    tether_test_procs_end(tether_test_procs_start(beside_locked_folder, .ranks = 1 + N_STARTERS,
                                                  .timeout_ms = 2 * TETHER_TEST_LIMIT_MS));
}

/* ---- The lock file is another's ---- */

static void make_lock_file(struct tether_test_world *world)
{
    char name[96];
    uid_t user = geteuid();
    tether_test_await_mark(world, FOLDER_IS_MADE, 1);
    assert_true(tether_test_become(TETHER_TEST_OTHER_USER));
    snprintf(name, sizeof name, "%s.lock", page_of(world)->path);
    int fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    assert_true(fd >= 0);
    assert_int_equal(fchmod(fd, 0666), 0);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    tether_test_mark(world, IN_THE_WAY);
    tether_test_await_mark(world, ALL_ENDED, 1);
    assert_int_equal(unlink(name), 0);
    close(fd);
    assert_true(tether_test_become(user));
    tether_test_mark(world, ENDED);
}

static void expect_refusal(tether_status st, const tether_error *err)
{
    assert_int_equal(st, TETHER_EPERM);
    if (!strstr(err->message, "socket.lock") || !strstr(err->message, "only you may write to"))
        fail_msg("%s", err->message);
}

static void start_beside_lock_file(struct tether_test_world *world)
{
    struct page *page = page_of(world);
    tether_store_server *server = NULL;
    tether_store *store = NULL;
    tether_agent *agent = NULL;
    tether_error err = {0};
    char address[96];
    make_folder(world);
    tether_test_await_mark(world, IN_THE_WAY, 1);
    leave_stale_socket(page->path);
    expect_refusal(
        tether_store_server_new(TETHER_STORE_SERVER_OPTS(.unix_path = page->path), &server, &err),
        &err);
    snprintf(address, sizeof address, "unix:%s", page->path);
    assert_int_equal(tether_store_hash_new(&store, &err), TETHER_OK);
    assert_int_equal(
        tether_agent_new(TETHER_AGENT_OPTS(.name = "w", .store = store, .listen = address), &agent,
                         &err),
        TETHER_OK);
    expect_refusal(tether_agent_start(agent, &err), &err);
    tether_agent_release(agent);
    tether_store_release(store);
    assert_int_equal(access(page->path, F_OK), 0); /* the file that was there is untouched */
    assert_int_equal(unlink(page->path), 0);
    tether_test_mark(world, ALL_ENDED);
    tether_test_await_mark(world, ENDED, 1);
    assert_int_equal(rmdir(page->folder), 0);
}

TETHER_PROC_ROLE(beside_lock_file)
{
    if (rank == INTRUDER)
        make_lock_file(self->world);
    else
        start_beside_lock_file(self->world);
}

static void start_is_refused_when_another_user_has_made_the_lock_file(void **state)
{
    (void)state;
    tether_test_need_other_user();
    tether_test_procs_end(tether_test_procs_start(beside_lock_file));
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_process_gets_the_path_when_another_user_locks_the_folder),
        cmocka_unit_test(start_is_refused_when_another_user_has_made_the_lock_file),
    };
    return cmocka_run_group_tests_name("socket_race", tests, NULL, NULL);
}
