/* How often the process of an idle agent wakes up, and the cost of a wake-up.
 *
 * Five workers, a process each, have all called each other, so each has a stream to and from four
 * peers. Then no calls are made. The wake-ups of a process are the voluntary context switches that
 * the kernel counts for all its threads, those of gRPC included. A busy machine does not increase
 * them.
 */
#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "rendezvous/store_tcp.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"
#include "tests/rpc/lib/crew.h"

enum {
    WORKERS = 5,
    SECONDS = 4,
    MAX_WAKES_A_SECOND = 8,       /* with gRPC; measured: 2 to 5.5 */
    MAX_LOCAL_WAKES_A_SECOND = 4, /* without; measured: 0, or 1.6 in a shutdown */
    MAX_OWN_WAKES = 5,            /* of threads of Tether; measured: 0 to 4 */
    MAX_CPU_MS_A_SECOND = 3,      /* measured: 1, on a busy machine */
    MAX_THREADS = 128
};
enum { STARTED, MET, SETTLED, MEASURED };

struct thread_wakes {
    long tid, wakes;
    char name[32];
};

struct wakes {
    struct thread_wakes threads[MAX_THREADS];
    int n;
};

/* One thread's name and wake-ups; false when it has just ended. */
static bool read_thread(const char *tid, struct thread_wakes *ret_thread)
{
    char path[64], line[128];
    snprintf(path, sizeof path, "/proc/self/task/%.20s/status", tid);
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
    *ret_thread = (struct thread_wakes){.tid = atol(tid)};
    while (fgets(line, sizeof line, file)) {
        sscanf(line, "Name: %31s", ret_thread->name);
        sscanf(line, "voluntary_ctxt_switches: %ld", &ret_thread->wakes);
    }
    fclose(file);
    return true;
}

static void read_wakes(struct wakes *ret_wakes)
{
    DIR *folder = opendir("/proc/self/task");
    assert_non_null(folder);
    ret_wakes->n = 0;
    for (struct dirent *entry; (entry = readdir(folder));)
        if (entry->d_name[0] != '.' && ret_wakes->n < MAX_THREADS &&
            read_thread(entry->d_name, &ret_wakes->threads[ret_wakes->n]))
            ret_wakes->n++;
    closedir(folder);
}

static long wakes_before(const struct wakes *before, long tid)
{
    for (int i = 0; i < before->n; i++)
        if (before->threads[i].tid == tid)
            return before->threads[i].wakes;
    return 0;
}

/* All wake-ups between the two, and in `ret_text` which threads they were of. */
static long count_wakes(const struct wakes *before,
                        const struct wakes *after,
                        long *ret_own,
                        char *ret_text,
                        size_t size)
{
    long sum = 0;
    *ret_own = 0;
    size_t len = 0;
    ret_text[0] = '\0';
    for (int i = 0; i < after->n; i++) {
        const struct thread_wakes *thread = &after->threads[i];
        long wakes = thread->wakes - wakes_before(before, thread->tid);
        sum += wakes;
        *ret_own += strncmp(thread->name, "tether-", 7) == 0 ? wakes : 0;
        if (wakes && len < size)
            len += (size_t)snprintf(ret_text + len, size - len, " %s %ld", thread->name, wakes);
    }
    return sum;
}

static long cpu_ms(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000 +
           (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1000;
}

static void pass_seconds(int seconds)
{
    struct timespec left = {seconds, 0};
    while (nanosleep(&left, &left) != 0)
        ;
}

static void measure(int rank, const char *arg)
{
    int most = strchr(arg, '!') ? MAX_WAKES_A_SECOND : MAX_LOCAL_WAKES_A_SECOND;
    static struct wakes before, after;
    char text[1024];
    long cpu = cpu_ms();
    read_wakes(&before);
    pass_seconds(SECONDS);
    read_wakes(&after);
    cpu = cpu_ms() - cpu;
    long own, wakes = count_wakes(&before, &after, &own, text, sizeof text);
    if (wakes > SECONDS * most || own > MAX_OWN_WAKES || cpu > SECONDS * MAX_CPU_MS_A_SECOND)
        fail_msg("rank %d in %d s: %ld ms of CPU, %ld wake-ups:%s", rank, SECONDS, cpu, wakes,
                 text);
}

/* `arg`: the store's port; with '!' behind it they don't use unix sockets. */
TETHER_PROC_ROLE(idler)
{
    char name[16];
    tether_store *store = crew_store(self->arg);
    snprintf(name, sizeof name, "w%d", rank);
    tether_agent *agent =
        crew_agent(self, TETHER_AGENT_OPTS(.store = store, .name = name, .threads = 16,
                                           .no_unix_socket = strchr(self->arg, '!') != NULL));
    crew_start(agent);
    tether_test_mark(self->world, STARTED);
    tether_test_await_mark(self->world, STARTED, WORKERS);
    for (int i = 0; i < WORKERS; i++) {
        snprintf(name, sizeof name, "w%d", i);
        for (int n = 0; i != rank && n < 10; n++)
            crew_call(agent, name, "name", NULL, name);
    }
    tether_test_mark(self->world, MET);
    tether_test_await_mark(self->world, MET, WORKERS);
    pass_seconds(1); /* late acknowledgements, and the work of gRPC after a connect */
    tether_test_mark(self->world, SETTLED);
    tether_test_await_mark(self->world, SETTLED, WORKERS);
    measure(rank, self->arg);
    tether_test_mark(self->world, MEASURED);
    tether_test_await_mark(self->world, MEASURED, WORKERS);
    tether_agent_release(agent);
    tether_store_release(store);
}

static void run_idlers(const char *flag)
{
    char port[16], arg[20];
    tether_store_server *server = crew_store_start(port);
    snprintf(arg, sizeof arg, "%s%s", port, flag);
    tether_test_procs_end(tether_test_procs_start(idler, .ranks = WORKERS, .arg = arg));
    tether_store_server_release(server);
}

/* ---- A thread that waits for a long call ---- */

enum { HELD = MEASURED + 1, WAITED };

static _Atomic(tether_reply *) held;

static void hold(void *userdata, const tether_value *arg, tether_reply *reply)
{
    (void)userdata, (void)arg;
    atomic_store(&held, reply);
}

static void *call_hold(void *agent)
{
    crew_call(agent, "w1", "hold", NULL, NULL);
    return NULL;
}

/* Rank 0 waits in a call that rank 1 answers only after both have counted their wake-ups. */
TETHER_PROC_ROLE(long_caller)
{
    char name[16];
    pthread_t thread;
    tether_store *store = crew_store(self->arg);
    snprintf(name, sizeof name, "w%d", rank);
    tether_agent *agent =
        crew_agent(self, TETHER_AGENT_OPTS(.store = store, .name = name,
                                           .no_unix_socket = strchr(self->arg, '!') != NULL));
    assert_int_equal(tether_agent_register_async(agent, "hold", hold, true, NULL, NULL), TETHER_OK);
    crew_start(agent);
    tether_test_mark(self->world, STARTED);
    tether_test_await_mark(self->world, STARTED, 2);
    if (rank == 0)
        assert_int_equal(pthread_create(&thread, NULL, call_hold, agent), 0);
    else
        assert_eventually(atomic_load(&held));
    tether_test_mark(self->world, HELD);
    tether_test_await_mark(self->world, HELD, 2);
    pass_seconds(1); /* late acknowledgements, and the work of gRPC after a connect */
    measure(rank, self->arg);
    tether_test_mark(self->world, WAITED);
    tether_test_await_mark(self->world, WAITED, 2);
    if (rank == 0)
        assert_int_equal(pthread_join(thread, NULL), 0);
    else
        tether_reply_ok(atomic_exchange(&held, NULL), NULL);
    tether_test_mark(self->world, MEASURED);
    tether_test_await_mark(self->world, MEASURED, 2);
    tether_agent_release(agent);
    tether_store_release(store);
}

static void run_long_caller(const char *flag)
{
    char port[16], arg[20];
    tether_store_server *server = crew_store_start(port);
    snprintf(arg, sizeof arg, "%s%s", port, flag);
    tether_test_procs_end(tether_test_procs_start(long_caller, .ranks = 2, .arg = arg));
    tether_store_server_release(server);
}

/* ---- A graceful shutdown that waits for others ---- */

enum { IN_SHUTDOWN = WAITED + 1, BUSY_ONE_IS_DONE };

static void *shut_down(void *userdata)
{
    tether_error err = {0};
    crew_ok(tether_agent_shutdown(userdata, true, &err), &err);
    return NULL;
}

/* Rank 0 is busy; the others wait for it in their shutdown, and have called each other before. */
TETHER_PROC_ROLE(leaver)
{
    char name[16];
    pthread_t thread;
    tether_store *store = crew_store(self->arg);
    tether_agent *agent =
        crew_agent(self, TETHER_AGENT_OPTS(.store = store, .rank = rank, .world_size = WORKERS,
                                           .no_unix_socket = strchr(self->arg, '!') != NULL));
    crew_start(agent);
    for (int i = 0; i < WORKERS; i++) {
        snprintf(name, sizeof name, "worker%d", i);
        if (i != rank)
            crew_call(agent, name, "name", NULL, name);
    }
    tether_test_mark(self->world, MET);
    tether_test_await_mark(self->world, MET, WORKERS);
    if (rank == 0) {
        tether_test_await_mark(self->world, BUSY_ONE_IS_DONE, WORKERS - 1);
        crew_stop(agent);
    } else {
        assert_int_equal(pthread_create(&thread, NULL, shut_down, agent), 0);
        tether_test_mark(self->world, IN_SHUTDOWN);
        tether_test_await_mark(self->world, IN_SHUTDOWN, WORKERS - 1);
        pass_seconds(2); /* acknowledgements, and the first steps of the shutdown */
        measure(rank, self->arg);
        tether_test_mark(self->world, BUSY_ONE_IS_DONE);
        assert_int_equal(pthread_join(thread, NULL), 0);
        tether_agent_release(agent);
    }
    tether_store_release(store);
}

static void run_leavers(const char *flag)
{
    char port[16], arg[20];
    tether_store_server *server = crew_store_start(port);
    snprintf(arg, sizeof arg, "%s%s", port, flag);
    tether_test_procs_end(tether_test_procs_start(leaver, .ranks = WORKERS, .arg = arg));
    tether_store_server_release(server);
}

/* ---- Threads of an idle worker ---- */

enum { THREADS_MEASURED = BUSY_ONE_IS_DONE + 1 };

/* The main thread included. The threads of gRPC's event engine are left out: it has one for each
 * CPU, at least two. So a worker that runs gRPC has two more than these on a small machine. */
enum { MAX_LOCAL_ONLY = 3, MAX_NETWORK_ONLY = 9, MAX_WITH_BOTH_ROUTES = 10 };

/* How the workers of the test are made: the peer of those with BOTH is of another host. */
enum { LOCAL = ' ', NETWORK = '!', BOTH = '+' };

static int max_threads(int kind)
{
    return kind == LOCAL     ? MAX_LOCAL_ONLY
           : kind == NETWORK ? MAX_NETWORK_ONLY
                             : MAX_WITH_BOTH_ROUTES;
}

static int count_threads(const struct wakes *threads, char *ret_names, size_t size)
{
    int n = 0;
    size_t len = 0;
    ret_names[0] = '\0';
    for (int i = 0; i < threads->n; i++) {
        const char *name = threads->threads[i].name;
        n += strncmp(name, "event_engine", 12) != 0;
        if (len < size)
            len += (size_t)snprintf(ret_names + len, size - len, " %s", name);
    }
    return n;
}

/* Threads that were started on demand end when they have been idle for some seconds. */
static void expect_threads(int rank, int max)
{
    static struct wakes threads;
    char names[2048];
    int n = MAX_THREADS;
    for (int tries = 0; n > max && tether_test_nap(tries); tries++) {
        read_wakes(&threads);
        n = count_threads(&threads, names, sizeof names);
    }
    if (n > max)
        fail_msg(
            "rank %d: an idle worker has %d threads beside gRPC's event engine, at most %d "
            "are allowed:%s",
            rank, n, max, names);
}

TETHER_PROC_ROLE(idle_worker)
{
    char name[16];
    tether_store *store = crew_store(self->arg);
    snprintf(name, sizeof name, "w%d", rank);
    char kind = self->arg[strlen(self->arg) - 1];
    bool no_unix_socket = kind == NETWORK || (kind == BOTH && rank == 1);
    tether_agent *agent = crew_agent(
        self, TETHER_AGENT_OPTS(.store = store, .name = name, .no_unix_socket = no_unix_socket));
    crew_start(agent);
    tether_test_mark(self->world, STARTED);
    tether_test_await_mark(self->world, STARTED, 2);
    snprintf(name, sizeof name, "w%d", 1 - rank);
    crew_call(agent, name, "name", NULL, name);
    tether_test_mark(self->world, MET);
    tether_test_await_mark(self->world, MET, 2);
    expect_threads(rank, max_threads(no_unix_socket ? NETWORK : kind));
    tether_test_mark(self->world, THREADS_MEASURED);
    tether_test_await_mark(self->world, THREADS_MEASURED, 2);
    tether_agent_release(agent);
    tether_store_release(store);
}

static void run_idle_workers(char kind)
{
    char port[16], arg[20];
    tether_store_server *server = crew_store_start(port);
    snprintf(arg, sizeof arg, "%s%c", port, kind);
    tether_test_procs_end(tether_test_procs_start(idle_worker, .ranks = 2, .arg = arg,
                                                  .timeout_ms = 3 * TETHER_TEST_LIMIT_MS));
    tether_store_server_release(server);
}

static void idle_worker_has_few_threads_with_peer_on_its_host(void **state)
{
    (void)state;
    run_idle_workers(LOCAL);
}

static void idle_worker_has_few_threads_with_peer_over_tcp(void **state)
{
    (void)state;
    run_idle_workers(NETWORK);
}

static void idle_worker_has_few_threads_with_peer_of_another_host(void **state)
{
    (void)state;
    run_idle_workers(BOTH);
}

static void process_sleeps_while_graceful_shutdown_waits_for_local_peers(void **state)
{
    (void)state;
    run_leavers("");
}

static void process_sleeps_while_graceful_shutdown_waits_for_network_peers(void **state)
{
    (void)state;
    run_leavers("!");
}

static void process_sleeps_while_thread_waits_for_local_peer(void **state)
{
    (void)state;
    run_long_caller("");
}

static void process_sleeps_while_thread_waits_for_network_peer(void **state)
{
    (void)state;
    run_long_caller("!");
}

static void idle_worker_sleeps_with_peers_on_its_host(void **state)
{
    (void)state;
    run_idlers("");
}

static void idle_worker_sleeps_with_peers_over_tcp(void **state)
{
    (void)state;
    run_idlers("!");
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(idle_worker_sleeps_with_peers_on_its_host),
        cmocka_unit_test(idle_worker_sleeps_with_peers_over_tcp),
        cmocka_unit_test(idle_worker_has_few_threads_with_peer_on_its_host),
        cmocka_unit_test(idle_worker_has_few_threads_with_peer_over_tcp),
        cmocka_unit_test(idle_worker_has_few_threads_with_peer_of_another_host),
        cmocka_unit_test(process_sleeps_while_thread_waits_for_local_peer),
        cmocka_unit_test(process_sleeps_while_thread_waits_for_network_peer),
        cmocka_unit_test(process_sleeps_while_graceful_shutdown_waits_for_local_peers),
        cmocka_unit_test(process_sleeps_while_graceful_shutdown_waits_for_network_peers),
    };
    return cmocka_run_group_tests_name("idle agents", tests, NULL, NULL);
}
