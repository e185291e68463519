/* Sentences of docs/guide.md and docs/operations.md that no other test checks: where functions run,
 * who dials, where workers listen, and what the log shows. */
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "rpc/peer/peer.h"
#include "rpc/peer/session.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"
#include "tests/rpc/lib/certs.h"
#include "tests/rpc/lib/world.h"

static bool never(void *userdata)
{
    (void)userdata;
    return false;
}

/* ---- Threads ---- */

static tether_status name_thread(void *userdata,
                                 const tether_value *arg,
                                 tether_value **ret_value,
                                 tether_error *reterr)
{
    char name[16] = "";
    (void)userdata, (void)arg;
    pthread_getname_np(pthread_self(), name, sizeof name);
    return tether_value_printf(ret_value, reterr, "%s", name);
}

static void register_name_thread(tether_agent *agent)
{
    assert_int_equal(tether_agent_register_inline(agent, "inline", name_thread, NULL, NULL),
                     TETHER_OK);
    assert_int_equal(tether_agent_register(agent, "pooled", name_thread, NULL, NULL), TETHER_OK);
}

static void assert_runs_on(struct tether_test_world *world,
                           const char *function,
                           const char *thread)
{
    tether_value *value = NULL;
    tether_error err = {0};
    if (tether_rpc_sync(world->agents[0], "w1", function, NULL, 5000, &value, &err) != TETHER_OK)
        fail_msg("%s", err.message);
    if (strncmp(tether_value_str(value), thread, strlen(thread)) != 0)
        fail_msg("'%s' ran on '%s'", function, tether_value_str(value));
    tether_value_release(value);
}

static void inline_function_runs_on_the_thread_that_receives_the_call(void **state)
{
    (void)state;
    for (enum tether_test_net net = TETHER_TEST_GRPC; net <= TETHER_TEST_UNIX; net++) {
        struct tether_test_world world;
        tether_test_world_register = register_name_thread;
        tether_test_world_start(&world, net, 2, NULL);
        tether_test_world_register = NULL;
        assert_runs_on(&world, "inline", "tether-serve");
        assert_runs_on(&world, "pooled", "tether-run-");
        tether_test_world_stop(&world);
    }
}

/* The threads of this process whose names begin so. */
static int n_threads(const char *name)
{
    int n = 0;
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    for (const struct dirent *task; (task = readdir(tasks));) {
        char path[sizeof "/proc/self/task//comm" + sizeof task->d_name], comm[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
        FILE *file = fopen(path, "r"); /* NULL: it has ended meanwhile, or is "." */
        if (!file)
            continue;
        if (fgets(comm, sizeof comm, file) && strncmp(comm, name, strlen(name)) == 0)
            n++;
        fclose(file);
    }
    closedir(tasks);
    return n;
}

/* A new thread has the name of the one that made it until it is given its own. */
static void threads_of_worker_are_named_after_tether(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_test_world_register = register_name_thread;
    tether_test_world_start(&world, TETHER_TEST_UNIX, 1,
                            TETHER_AGENT_OPTS(.metrics_listen = "127.0.0.1:0"));
    tether_test_world_register = NULL;
    assert_eventually(n_threads("tether-serve") == 1);
    assert_eventually(n_threads("tether-back") == 1);
    assert_eventually(n_threads("tether-metrics") == 1);
    assert_int_equal(n_threads("tether-accept"), 0);
    tether_test_world_stop(&world);
    assert_eventually(n_threads("tether-") == 0);
    tether_test_world_start(&world, TETHER_TEST_GRPC, 1, NULL);
    assert_eventually(n_threads("tether-serve") == 1);
    assert_eventually(n_threads("tether-back") == 1);
    assert_eventually(n_threads("tether-accept") == 1);
    tether_test_world_stop(&world);
    assert_eventually(n_threads("tether-") == 0);
}

/* ---- Dials ---- */

static bool has_dialled(struct tether_test_world *world, int from, const char *to)
{
    struct tether__peer *peer = tether__agent_find_peer(world->agents[from], to);
    bool has = peer && peer->session->out.up;
    if (peer)
        tether__peer_release(peer);
    return has;
}

static void worker_dials_another_when_it_calls_it(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_test_world_start(&world, TETHER_TEST_SIM, 2, NULL);
    assert_int_equal(tether_rpc_sync(world.agents[0], "w1", "echo", NULL, 5000, NULL, NULL),
                     TETHER_OK);
    assert_true(has_dialled(&world, 0, "w1"));
    assert_int_equal(tether_rpc_sync(world.agents[1], "w0", "echo", NULL, 5000, NULL, NULL),
                     TETHER_OK);
    assert_true(has_dialled(&world, 1, "w0"));
    tether_test_world_stop(&world);
}

/* ---- The log ---- */

static const char *const *wanted;
static unsigned heard;

static void on_log(void *userdata, tether_log_level level, const char *area, const char *message)
{
    (void)userdata, (void)level, (void)area;
    for (int i = 0; wanted[i]; i++)
        if (strstr(message, wanted[i]))
            heard |= 1U << i;
}

static void listen_for(tether_log_level level, const char *const *texts)
{
    wanted = texts;
    heard = 0;
    tether_set_log(level, on_log, NULL);
}

static void assert_all_heard(void)
{
    tether_set_log(TETHER_LOG_NONE, NULL, NULL);
    for (int i = 0; wanted[i]; i++)
        if (!(heard & 1U << i))
            fail_msg("the log did not show '%s'", wanted[i]);
}

static void log_shows_where_worker_meets_the_others_when_level_is_info(void **state)
{
    (void)state;
    static const char *const texts[] = {"w0: meets the others at ", "hash store, 0 in all", NULL};
    struct tether_test_world world;
    listen_for(TETHER_LOG_INFO, texts);
    tether_test_world_start(&world, TETHER_TEST_SIM, 1, NULL);
    assert_all_heard();
    tether_test_world_stop(&world);
}

static void log_shows_connections_fences_and_refusals_when_level_is_debug(void **state)
{
    (void)state;
    static const char *const texts[] = {"outgoing stream with 'w1' is up",
                                        "w0: fencing 'w1': ", "refused a stream: ", NULL};
    struct tether_test_world world;
    tether_error err = {0};
    listen_for(TETHER_LOG_DEBUG, texts);
    tether_test_world_start(&world, TETHER_TEST_SIM, 2, TETHER_AGENT_OPTS(.lease_ms = 2000));
    assert_int_equal(tether_rpc_sync(world.agents[0], "w1", "echo", NULL, 5000, NULL, &err),
                     TETHER_OK);
    tether_sim_pause(world.sim, world.agents[1], true);
    tether_sim_run(world.sim, never, NULL, 4000);
    tether_sim_pause(world.sim, world.agents[1], false);
    tether_test_world_start_one(&world, 2, TETHER_AGENT_OPTS(.max_message_bytes = 1 << 20));
    world.n = 3;
    assert_int_equal(tether_rpc_sync(world.agents[2], "w0", "echo", NULL, 5000, NULL, &err),
                     TETHER_EPERM);
    assert_all_heard();
    tether_test_world_stop(&world);
}

/* ---- Certificates ---- */

typedef char file_path[256];

static void write_file(file_path ret_path, const char *name, const char *text)
{
    const char *folder = getenv("TEST_TMPDIR");
    snprintf(ret_path, sizeof(file_path), "%s/%s.%d", folder ? folder : "/tmp", name, getpid());
    FILE *file = fopen(ret_path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* An agent of this name, whose files are gone before it starts. */
static tether_agent *start_without_files(tether_store *store,
                                         const char *name,
                                         const char *cert,
                                         const char *key)
{
    file_path ca_file, cert_file, key_file;
    tether_agent *agent = NULL;
    tether_error err = {0};
    write_file(ca_file, "ca", cert_right_ca);
    write_file(cert_file, "cert", cert);
    write_file(key_file, "key", key);
    tether_status st =
        tether_agent_new(TETHER_AGENT_OPTS(.name = name, .store = store, .tls_ca_file = ca_file,
                                           .tls_cert_file = cert_file, .tls_key_file = key_file),
                         &agent, &err);
    unlink(ca_file);
    unlink(cert_file);
    unlink(key_file);
    if (st != TETHER_OK ||
        tether_agent_register(agent, "name", name_thread, NULL, &err) != TETHER_OK ||
        tether_agent_start(agent, &err) != TETHER_OK)
        fail_msg("%s", err.message);
    return agent;
}

static void certificates_are_read_when_the_agent_is_made(void **state)
{
    (void)state;
    tether_store *store = NULL;
    tether_error err = {0};
    assert_int_equal(tether_store_hash_new(&store, NULL), TETHER_OK);
    tether_agent *delta = start_without_files(store, "delta", cert_delta, key_delta);
    tether_agent *alpha = start_without_files(store, "alpha", cert_alpha, key_alpha);
    if (tether_rpc_sync(delta, "alpha", "name", NULL, TETHER_DEFAULT_MS, NULL, &err) != TETHER_OK)
        fail_msg("%s", err.message);
    tether_agent_release(delta);
    tether_agent_release(alpha);
    tether_store_release(store);
}

/* ---- Ports ---- */

static int try_to_connect(uint32_t address, int port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    at.sin_addr.s_addr = htonl(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    int error = connect(fd, (struct sockaddr *)&at, sizeof at) == 0 ? 0 : errno;
    close(fd);
    return error;
}

/* Another address, even of the loopback network, refuses connections. */
static void worker_listens_on_loopback_at_a_free_port_by_default(void **state)
{
    (void)state;
    tether_store *store = NULL;
    tether_agent *agents[2] = {NULL, NULL};
    tether_error err = {0};
    int ports[2] = {0, 0};
    assert_int_equal(tether_store_hash_new(&store, NULL), TETHER_OK);
    for (int i = 0; i < 2; i++) {
        if (tether_agent_new(TETHER_AGENT_OPTS(.name = i ? "beta" : "alpha", .store = store),
                             &agents[i], &err) ||
            tether_agent_start(agents[i], &err))
            fail_msg("%s", err.message);
        assert_int_equal(sscanf(tether_agent_address(agents[i]), "127.0.0.1:%d", &ports[i]), 1);
        assert_in_range(ports[i], 1, 65535);
        assert_int_equal(try_to_connect(INADDR_LOOPBACK, ports[i]), 0);
        assert_int_equal(try_to_connect(INADDR_LOOPBACK + 1, ports[i]), ECONNREFUSED);
    }
    assert_int_not_equal(ports[0], ports[1]);
    for (int i = 0; i < 2; i++)
        tether_agent_release(agents[i]);
    tether_store_release(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(inline_function_runs_on_the_thread_that_receives_the_call),
        cmocka_unit_test(threads_of_worker_are_named_after_tether),
        cmocka_unit_test(worker_dials_another_when_it_calls_it),
        cmocka_unit_test(log_shows_where_worker_meets_the_others_when_level_is_info),
        cmocka_unit_test(log_shows_connections_fences_and_refusals_when_level_is_debug),
        cmocka_unit_test(worker_listens_on_loopback_at_a_free_port_by_default),
        cmocka_unit_test(certificates_are_read_when_the_agent_is_made),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
