/* Floods by one process without the token:
 * - 5,000 connections over TCP and 5,000 unix sockets that say hello under 10,000 names, announce
 *   large messages and send three of 1,000 MiB;
 * - in a group that has no token, 10,000 connections over TCP that say all of a handshake, each
 * under another name;
 * - 1,500 connections with TLS that end their part of the handshake at different points;
 * - connections with more calls than they may have.
 * The worker keeps to the amounts of docs/security.md, and the calls of the group go on. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <unistd.h>

#include "rpc/agent.h"
#include "rpc/agent/internal.h"
#include "rpc/agent/routes.h"
#include "rpc/group/directory.h"
#include "rpc/transport/transport.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/proc.h"
#include "tests/rpc/agent/flood.h"
#include "tests/rpc/lib/certs.h"
#include "tests/rpc/lib/echo.h"

#define TIMEOUT_MS (4 * LIMIT)

/* docs/security.md, "What an unauthenticated client can cost". */
#define MAX_GROWTH_KB (400 * 1024L)
#define MAX_DESCRIPTORS 720
#define MAX_CONFIRMING 4          /* look-ups for peers without proof */
#define MAX_SERVING 8             /* threads that may serve at once */
#define MAX_CPU_US 5000           /* for each connection, on average */
#define MAX_STREAMS_CPU_US 100000 /* for each with as many calls */

struct notice *flood_notice_of(struct tether_test_world *world)
{
    _Static_assert(sizeof(struct notice) <= sizeof world->page, "the page is too small");
    return (struct notice *)world->page;
}

/* A flood takes minutes on a busy machine: only the time limit of all ranks ends this. */
void flood_await(struct tether_test_world *world, int mark)
{
    while (atomic_load(&world->marks[mark]) == 0)
        tether_test_nap(0);
}

/* With TLS, clients need no certificate, so every client gets through the TLS handshake. */
static tether_agent *start(const char *folder, const char *name, bool local, enum flood flood)
{
    tether_store *store = NULL;
    tether_agent *agent = NULL;
    tether_error err = {0};
    char path[96];
    snprintf(path, sizeof path, "%s/store", folder);
    struct tether_agent_opts opts =
        *TETHER_AGENT_OPTS(.name = name, .token = flood == NO_TOKEN ? NULL : "sesame",
                           .no_unix_socket = !local);
    if (flood == TLS) {
        opts.tls_one_way = true;
        opts.tls_ca_pem = cert_right_ca;
        opts.tls_cert_pem = cert_alpha;
        opts.tls_key_pem = key_alpha;
    }
    if (tether_store_file_new(path, -1, &store, &err))
        fail_msg("%s", err.message);
    opts.store = store;
    if (tether_agent_new(&opts, &agent, &err) ||
        tether_agent_register_inline(agent, "echo", tether_test_echo, NULL, &err) ||
        tether_agent_start(agent, &err))
        fail_msg("%s", err.message);
    tether_store_release(store);
    return agent;
}

/* ---- The worker ---- */

static long peak_kb(void)
{
    char line[128];
    long kb = -1;
    FILE *file = fopen("/proc/self/status", "re");
    assert_non_null(file);
    while (kb < 0 && fgets(line, sizeof line, file))
        if (sscanf(line, "VmHWM: %ld", &kb) != 1)
            kb = -1;
    fclose(file);
    assert_true(kb > 0);
    return kb;
}

static int count_descriptors(void)
{
    int n = 0;
    DIR *folder = opendir("/proc/self/fd");
    /* no descriptor is left to count with, either */
    if (!folder)
        return 0;
    while (readdir(folder))
        n++;
    closedir(folder);
    return n - 3; /* ".", ".." and the folder itself */
}

static int64_t cpu_us(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * INT64_C(1000000) +
           used.ru_utime.tv_usec + used.ru_stime.tv_usec;
}

struct sampler {
    tether_agent *agent;
    atomic_bool stop;
    int descriptors, confirming; /* the most of each: look-ups for peers without proof */
};

static void note_most(int *most, int n)
{
    if (n > *most)
        *most = n;
}

static void *sample(void *arg)
{
    struct sampler *sampler = arg;
    while (!atomic_load(&sampler->stop)) {
        note_most(&sampler->descriptors, count_descriptors());
        note_most(&sampler->confirming, (int)atomic_load(&sampler->agent->confirming));
        tether_test_nap(0);
    }
    return NULL;
}

int flood_n_connections(enum flood flood)
{
    return flood == TLS ? N_TLS : flood == STREAMS ? N_WITH_STREAMS : 2 * N_CONNECTIONS;
}

static size_t n_peers(tether_agent *agent)
{
    pthread_mutex_lock(&agent->mu);
    size_t n = agent->n_peers;
    pthread_mutex_unlock(&agent->mu);
    return n;
}

static void run_worker(struct tether_test_world *world, enum flood flood)
{
    struct notice *notice = flood_notice_of(world);
    struct sampler sampler = {.agent = NULL};
    struct rlimit limit;
    pthread_t thread;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = 1024; /* the usual one */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    snprintf(notice->folder, sizeof notice->folder, "/tmp/tether-flood-XXXXXX");
    assert_non_null(mkdtemp(notice->folder));
    tether_agent *agent = start(notice->folder, "w", true, flood);
    snprintf(notice->address, sizeof notice->address, "%s", tether_agent_address(agent));
    if (agent->local.transport)
        snprintf(notice->unix_address, sizeof notice->unix_address, "%s",
                 agent->local.transport->address);
    memcpy(notice->run, agent->directory.run, sizeof notice->run);
    sampler.agent = agent;
    tether_test_mark(world, SERVING);
    tether_test_await_mark(world, CALLING, 1);

    long kb_before = peak_kb();
    int descriptors_before = count_descriptors();
    int64_t cpu_before = cpu_us();
    size_t peers_before = n_peers(agent);
    pthread_create(&thread, NULL, sample, &sampler);
    flood_await(world, FLOODED);
    atomic_store(&sampler.stop, true);
    pthread_join(thread, NULL);
    long grown = peak_kb() - kb_before;
    int opened = sampler.descriptors - descriptors_before;
    int64_t cpu = (cpu_us() - cpu_before) / flood_n_connections(flood);
    print_message(
        "the worker grew by %ld kB, had %d descriptors more, and took %lld us for each "
        "connection\n",
        grown, opened, (long long)cpu);
    assert_true(grown <= MAX_GROWTH_KB);
    assert_true(opened <= MAX_DESCRIPTORS);
    assert_true(cpu <= (flood == STREAMS ? MAX_STREAMS_CPU_US : MAX_CPU_US));
    assert_in_range(n_peers(agent), peers_before, peers_before + 1); /* "late" may be there */
    if (flood == NO_TOKEN) /* a thread that finds too many counts itself for a moment */
        assert_in_range(sampler.confirming, 1, MAX_CONFIRMING + MAX_SERVING);
    flood_await(world, CHECKED);
    tether_agent_release(agent);
}

/* ---- The rest of the group ---- */

static void call_worker(tether_agent *from)
{
    tether_error err = {0};
    tether_value *arg = NULL, *value = NULL;
    assert_int_equal(tether_value_printf(&arg, NULL, "%s", tether_agent_name(from)), TETHER_OK);
    if (tether_rpc_sync(from, "w", "echo", arg, LIMIT, &value, &err) != TETHER_OK)
        fail_msg("%s: %s", tether_agent_name(from), err.message);
    tether_value_release(value);
    tether_value_release(arg);
}

struct blocker {
    const char *path;
    atomic_bool stop;
};

/* Keeps the store busy for most of the time, so that look-ups gather at the worker. */
static void *block_store(void *arg)
{
    struct blocker *blocker = arg;
    int fd = open(blocker->path, O_RDWR | O_CLOEXEC);
    while (!atomic_load(&blocker->stop)) {
        (void)!flock(fd, LOCK_EX);
        for (int i = 0; i < 100; i++)
            tether_test_nap(0);
        (void)!flock(fd, LOCK_UN);
        for (int i = 0; i < 20; i++)
            tether_test_nap(0);
    }
    close(fd);
    return NULL;
}

static void run_friend(struct tether_test_world *world, enum flood flood)
{
    const struct notice *notice = flood_notice_of(world);
    char path[96];
    int calls = 0;
    struct blocker blocker = {.path = path};
    pthread_t thread;
    tether_test_await_mark(world, SERVING, 1);
    snprintf(path, sizeof path, "%s/store", notice->folder);
    tether_agent *local = start(notice->folder, "local", true, flood);
    tether_agent *network = start(notice->folder, "network", false, flood);
    if (flood == NO_TOKEN)
        pthread_create(&thread, NULL, block_store, &blocker);
    do {
        call_worker(local);
        call_worker(network);
        if (++calls == 1)
            tether_test_mark(world, CALLING);
        tether_test_nap(0); /* so that the flood is what the worker spends its time on */
    } while (atomic_load(&world->marks[FLOODED]) == 0);
    atomic_store(&blocker.stop, true);
    if (flood == NO_TOKEN)
        pthread_join(thread, NULL);
    /* The flood is still connected: a worker that comes now gets in, too. */
    tether_agent *late = start(notice->folder, "late", false, flood);
    call_worker(late);
    print_message("%d calls over each transport while the flood went on\n", calls);
    tether_test_mark(world, CHECKED);
    tether_agent_release(late);
    tether_agent_release(network);
    tether_agent_release(local);
    unlink(path);
    rmdir(notice->folder);
}

static void run(struct tether_test_world *world, int rank, enum flood flood)
{
    if (rank == WORKER)
        run_worker(world, flood);
    else if (rank == FRIEND)
        run_friend(world, flood);
    else
        flood_intrude(world, flood);
}

TETHER_PROC_TEST(worker_keeps_to_documented_amounts_when_flooded,
                 .ranks = N_RANKS,
                 .timeout_ms = TIMEOUT_MS)
{
    run(self->world, rank, ANY);
}

TETHER_PROC_TEST(worker_keeps_to_documented_amounts_when_flooded_without_token,
                 .ranks = N_RANKS,
                 .timeout_ms = TIMEOUT_MS)
{
    run(self->world, rank, NO_TOKEN);
}

TETHER_PROC_TEST(worker_keeps_to_documented_amounts_when_flooded_with_tls,
                 .ranks = N_RANKS,
                 .timeout_ms = TIMEOUT_MS)
{
    run(self->world, rank, TLS);
}

TETHER_PROC_TEST(worker_keeps_to_documented_amounts_when_flooded_with_streams,
                 .ranks = N_RANKS,
                 .timeout_ms = TIMEOUT_MS)
{
    run(self->world, rank, STREAMS);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(worker_keeps_to_documented_amounts_when_flooded),
        cmocka_unit_test(worker_keeps_to_documented_amounts_when_flooded_without_token),
        cmocka_unit_test(worker_keeps_to_documented_amounts_when_flooded_with_tls),
        cmocka_unit_test(worker_keeps_to_documented_amounts_when_flooded_with_streams),
    };
    return cmocka_run_group_tests_name("flood", tests, NULL, NULL);
}
