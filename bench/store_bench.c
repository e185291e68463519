/* The TCP store beside Redis, in one run.
 *
 * Every figure is taken of both in turn, several times, with the processes pinned: "same", server
 * and clients on one CPU, and "split", the server on another. What is printed are medians, and the
 * median of the ratios within each turn, which is what the goals are about: absolute figures change
 * with whatever else the machine does. Redis runs without persistence, both over loopback TCP
 * without delay. A ratio above 1 means that Tether is better.
 *
 *     store_bench [--tsv] [--rounds=N] [--only=TEXT]
 */
#include <getopt.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench/store_peers.h"

#define MAX_ROUNDS 31
#define SLICE_S 0.4 /* how long a rate is measured */
#define WAKES 200
#define BARRIERS 20
#define BARRIER_PROCS 4
#define IDLE_CLIENTS 5000
#define MEMORY_KEYS 1000000
#define BATCH 64

static const struct store_peer *const peers[] = {&store_peer_tether, &store_peer_redis};
enum { TETHER, REDIS, N_PEERS };

/* ---- Clock, CPUs, processes ----------------------------------------------------------------- */

static double now_s(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void pin(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
}

static int client_cpu, server_cpu;

/* A process that runs `run(arg)` and hands its result back through a pipe. */
struct worker {
    pid_t pid;
    int fd;
};

typedef double worker_fn(const struct store_peer *peer, int port, int arg);

static struct worker start_worker(worker_fn *run, const struct store_peer *peer, int port, int arg)
{
    int fds[2];
    if (pipe(fds) != 0)
        bench_die("pipe");
    pid_t pid = fork();
    if (pid < 0)
        bench_die("fork");
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(fds[0]);
        pin(client_cpu);
        double result = run(peer, port, arg);
        _exit(write(fds[1], &result, sizeof result) != (ssize_t)sizeof result);
    }
    close(fds[1]);
    return (struct worker){pid, fds[0]};
}

static double end_worker(struct worker worker)
{
    double result;
    if (read(worker.fd, &result, sizeof result) != (ssize_t)sizeof result)
        bench_die("a client failed");
    close(worker.fd);
    waitpid(worker.pid, NULL, 0);
    return result;
}

struct server {
    pid_t pid;
    int port;
};

static struct server start_server(const struct store_peer *peer)
{
    int fds[2];
    struct server server;
    if (pipe(fds) != 0)
        bench_die("pipe");
    server.pid = fork();
    if (server.pid < 0)
        bench_die("fork");
    if (server.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(fds[0]);
        pin(server_cpu);
        peer->serve(fds[1]);
    }
    close(fds[1]);
    if (read(fds[0], &server.port, sizeof server.port) != (ssize_t)sizeof server.port)
        bench_die("a server did not start");
    close(fds[0]);
    peer->hang_up(peer->dial(server.port)); /* it answers */
    return server;
}

static void stop_server(struct server server)
{
    kill(server.pid, SIGKILL);
    waitpid(server.pid, NULL, 0);
}

/* ---- What is measured ----------------------------------------------------------------------- */

enum op { OP_SET, OP_GET, OP_ADD };

static void do_op(const struct store_peer *peer, void *client, int op, unsigned i)
{
    char key[32];
    snprintf(key, sizeof key, op == OP_ADD ? "counter%u" : "key%u", i % 100);
    if (op == OP_SET)
        peer->set(client, key, "value");
    else if (op == OP_GET)
        peer->get(client, key);
    else
        peer->add(client, key);
}

/* Operations a second of one client. */
static double run_rate(const struct store_peer *peer, int port, int op)
{
    void *client = peer->dial(port);
    for (unsigned i = 0; i < 100; i++) { /* keys that exist, and a warm connection */
        do_op(peer, client, OP_SET, i);
        do_op(peer, client, op, i);
    }
    unsigned n = 0;
    double start = now_s(), end;
    do {
        do_op(peer, client, op, n++);
        end = now_s();
    } while (end - start < SLICE_S);
    peer->hang_up(client);
    return n / (end - start);
}

static double run_pipelined(const struct store_peer *peer, int port, int arg)
{
    (void)arg;
    void *client = peer->dial(port);
    char names[BATCH][16];
    const char *keys[BATCH];
    for (int i = 0; i < BATCH; i++) {
        snprintf(names[i], sizeof names[i], "key%d", i);
        keys[i] = names[i];
    }
    unsigned n = 0;
    double start = now_s(), end;
    do {
        peer->set_many(client, keys, BATCH, "value");
        n += BATCH;
        end = now_s();
    } while (end - start < SLICE_S);
    peer->hang_up(client);
    return n / (end - start);
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, compare_doubles);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/* Microseconds from the call of wake() to the return of sleep() in another process. */
static double run_sleeper(const struct store_peer *peer, int port, int arg)
{
    (void)arg;
    void *client = peer->dial(port);
    double us[WAKES];
    for (int i = 0; i < WAKES; i++) {
        char key[32], value[STORE_PEER_VALUE_SIZE];
        snprintf(key, sizeof key, "bell%d", i);
        peer->sleep(client, key, value);
        us[i] = (now_s() - strtod(value, NULL)) * 1e6;
    }
    peer->hang_up(client);
    return median(us, WAKES);
}

static double run_waker(const struct store_peer *peer, int port, int arg)
{
    (void)arg;
    void *client = peer->dial(port);
    for (int i = 0; i < WAKES; i++) {
        char key[32], value[STORE_PEER_VALUE_SIZE];
        usleep(1500); /* the sleeper sleeps again */
        snprintf(key, sizeof key, "bell%d", i);
        snprintf(value, sizeof value, "%.9f", now_s());
        peer->wake(client, key, value);
    }
    peer->hang_up(client);
    return 0;
}

struct member {
    const struct store_peer *peer;
    int port, n;
    double us;
};

static void *member_main(void *arg)
{
    struct member *member = arg;
    void *client = member->peer->dial(member->port);
    double start = 0;
    for (int i = -1; i < BARRIERS; i++) { /* the first lines them all up */
        char name[32];
        snprintf(name, sizeof name, "barrier%d.%d", member->n, i);
        member->peer->barrier(client, name, member->n);
        if (i < 0)
            start = now_s();
    }
    member->us = (now_s() - start) * 1e6 / BARRIERS;
    member->peer->hang_up(client);
    return NULL;
}

/* Microseconds a barrier for the slowest of the members in this process, a part of all `n`. */
static double run_members(const struct store_peer *peer, int port, int n)
{
    pthread_t threads[n];
    struct member members[n];
    int here = n / BARRIER_PROCS;
    double slowest = 0;
    for (int i = 0; i < here; i++) {
        members[i] = (struct member){.peer = peer, .port = port, .n = n};
        if (pthread_create(&threads[i], NULL, member_main, &members[i]) != 0)
            bench_die("starting a thread");
    }
    for (int i = 0; i < here; i++) {
        pthread_join(threads[i], NULL);
        if (members[i].us > slowest)
            slowest = members[i].us;
    }
    return slowest;
}

static double get_rate(const struct store_peer *peer, void *client)
{
    unsigned n = 0;
    double start = now_s(), end;
    do {
        peer->get(client, "key0");
        n++;
        end = now_s();
    } while (end - start < SLICE_S);
    return n / (end - start);
}

/* How much of an active client's rate is left with many idle ones around. */
static double run_idle(const struct store_peer *peer, int port, int arg)
{
    (void)arg;
    void *client = peer->dial(port);
    void **idle = calloc(IDLE_CLIENTS, sizeof *idle);
    peer->set(client, "key0", "value");
    double alone = get_rate(peer, client);
    for (int i = 0; i < IDLE_CLIENTS; i++)
        idle[i] = peer->dial(port);
    double crowded = get_rate(peer, client);
    for (int i = 0; i < IDLE_CLIENTS; i++)
        peer->hang_up(idle[i]);
    free(idle);
    peer->hang_up(client);
    return crowded / alone * 100;
}

static double resident_bytes(pid_t pid)
{
    char path[64];
    long pages = 0;
    snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
    FILE *file = fopen(path, "r");
    if (!file || fscanf(file, "%*d %ld", &pages) != 1)
        bench_die("reading a server's memory");
    fclose(file);
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

/* Fills in keys of 14 bytes with values of 8. */
static double run_fill(const struct store_peer *peer, int port, int arg)
{
    (void)arg;
    void *client = peer->dial(port);
    char names[BATCH][24];
    const char *keys[BATCH];
    for (int i = 0; i < MEMORY_KEYS; i += BATCH) {
        for (int k = 0; k < BATCH; k++) {
            snprintf(names[k], sizeof names[k], "small/%08d", i + k);
            keys[k] = names[k];
        }
        peer->set_many(client, keys, BATCH, "12345678");
    }
    peer->hang_up(client);
    return 0;
}

/* ---- The list of figures -------------------------------------------------------------------- */

enum kind { RATE, PIPELINED, WAKE, BARRIER, IDLE, MEMORY };

static const struct figure {
    const char *name, *unit;
    enum kind kind;
    int arg, procs;
    bool less_is_better;
    double goal; /* for the ratio; for IDLE and MEMORY for Tether's own value */
} figures[] = {
    {"set with ack, 1 client", "op/s", RATE, OP_SET, 1, false, 1.0},
    {"get, 1 client", "op/s", RATE, OP_GET, 1, false, 1.0},
    {"add, 1 client", "op/s", RATE, OP_ADD, 1, false, 1.0},
    {"set with ack, 8 processes", "op/s", RATE, OP_SET, 8, false, 1.0},
    {"get, 8 processes", "op/s", RATE, OP_GET, 8, false, 1.0},
    {"add, 8 processes", "op/s", RATE, OP_ADD, 8, false, 1.0},
    {"64 pipelined sets", "op/s", PIPELINED, 0, 1, false, 1.0},
    {"set to wake", "us", WAKE, 0, 1, true, 1.0},
    {"barrier of 8", "us", BARRIER, 8, 1, true, 1.0},
    {"barrier of 32", "us", BARRIER, 32, 1, true, 1.0},
    {"barrier of 128", "us", BARRIER, 128, 1, true, 2.0},
    {"rate left among 5,000 idle", "%", IDLE, 0, 1, false, 90},
    {"bytes a key beside its own", "B", MEMORY, 0, 1, true, 150},
};

static bool is_absolute(const struct figure *figure)
{
    return figure->kind == IDLE || figure->kind == MEMORY;
}

static double measure(const struct figure *figure, const struct store_peer *peer)
{
    struct server server = start_server(peer);
    struct worker workers[BARRIER_PROCS > 8 ? BARRIER_PROCS : 8];
    int n = figure->procs;
    double value = 0, before;
    switch (figure->kind) {
        case RATE:
            for (int i = 0; i < n; i++)
                workers[i] = start_worker(run_rate, peer, server.port, figure->arg);
            for (int i = 0; i < n; i++)
                value += end_worker(workers[i]);
            break;
        case PIPELINED:
            value = end_worker(start_worker(run_pipelined, peer, server.port, 0));
            break;
        case WAKE:
            workers[0] = start_worker(run_sleeper, peer, server.port, 0);
            workers[1] = start_worker(run_waker, peer, server.port, 0);
            value = end_worker(workers[0]);
            end_worker(workers[1]);
            break;
        case BARRIER:
            for (int i = 0; i < BARRIER_PROCS; i++)
                workers[i] = start_worker(run_members, peer, server.port, figure->arg);
            for (int i = 0; i < BARRIER_PROCS; i++) {
                double us = end_worker(workers[i]);
                value = us > value ? us : value;
            }
            break;
        case IDLE:
            value = end_worker(start_worker(run_idle, peer, server.port, 0));
            break;
        case MEMORY:
            before = resident_bytes(server.pid);
            end_worker(start_worker(run_fill, peer, server.port, 0));
            value = (resident_bytes(server.pid) - before) / MEMORY_KEYS - (14 + 8);
            break;
    }
    stop_server(server);
    return value;
}

/* ---- Running and printing ------------------------------------------------------------------- */

static bool as_tsv;
static int rounds = 5;
static const char *only = "";

/* Whether the goal is met. */
static bool report(const struct figure *figure, const char *placement)
{
    double values[N_PEERS][MAX_ROUNDS], ratios[MAX_ROUNDS];
    int n = is_absolute(figure) ? 1 + (rounds > 3) * 2 : rounds;
    for (int round = 0; round < n; round++) {
        for (int i = 0; i < N_PEERS; i++) { /* each goes first in turn */
            int peer = (i + round) % N_PEERS;
            values[peer][round] = measure(figure, peers[peer]);
        }
        double ratio = values[TETHER][round] / values[REDIS][round];
        ratios[round] = figure->less_is_better ? 1 / ratio : ratio;
    }
    double tether = median(values[TETHER], n), redis = median(values[REDIS], n);
    double ratio = median(ratios, n);
    bool met = !is_absolute(figure)     ? ratio >= figure->goal
               : figure->less_is_better ? tether <= figure->goal
                                        : tether >= figure->goal;
    const char *verdict = met ? "yes" : "NO";
    if (as_tsv)
        printf("%s\t%s\t%s\t%.6g\t%.6g\t%.3f\t%.3f\t%.3f\t%g\t%s\n", figure->name, placement,
               figure->unit, tether, redis, ratio, ratios[0], ratios[n - 1], figure->goal, verdict);
    else
        printf("%-28s %-6s %10.0f %10.0f %-5s %6.2f  (%.2f-%.2f)  %s %g%s: %s\n", figure->name,
               placement, tether, redis, figure->unit, ratio, ratios[0], ratios[n - 1],
               is_absolute(figure) ? "Tether" : "ratio", figure->goal,
               is_absolute(figure) ? figure->unit : "", verdict);
    fflush(stdout);
    return met;
}

static void raise_descriptor_limit(void)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < IDLE_CLIENTS + 100)
        bench_die("5,000 clients need more descriptors: raise `ulimit -n`");
}

static void usage(FILE *to)
{
    fputs(
        "usage: store_bench [--tsv] [--rounds=N] [--only=TEXT]\n"
        "Compares the TCP store with Redis; --only takes figures with TEXT in their names.\n",
        to);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"tsv", no_argument, NULL, 't'},
                                            {"rounds", required_argument, NULL, 'r'},
                                            {"only", required_argument, NULL, 'o'},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) >= 0;) {
        if (c == 't') {
            as_tsv = true;
        } else if (c == 'r' && atoi(optarg) > 0 && atoi(optarg) <= MAX_ROUNDS) {
            rounds = atoi(optarg);
        } else if (c == 'o') {
            only = optarg;
        } else {
            usage(c == 'h' ? stdout : stderr);
            return c != 'h';
        }
    }
    raise_descriptor_limit();
    signal(SIGPIPE, SIG_IGN);
    if (as_tsv)
        puts("figure\tplacement\tunit\ttether\tredis\tratio\tlowest\thighest\tgoal\tmet");
    else
        printf("%-28s %-6s %10s %10s %-5s %6s\n", "", "CPUs", "tether", "redis", "", "ratio");
    int missed = 0;
    static const char *const placements[] = {"same", "split"};
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++) {
        if (!strstr(figures[i].name, only))
            continue;
        for (int split = 0; split <= (figures[i].kind != MEMORY); split++) {
            client_cpu = 0;
            server_cpu = split && sysconf(_SC_NPROCESSORS_ONLN) > 1;
            missed += !report(&figures[i], placements[split]);
        }
    }
    return missed > 0;
}
