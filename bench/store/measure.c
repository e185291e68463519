/* See measure.h.
 *
 * Every client process holds a connection to each store and switches between them every 20 ms,
 * after every wake-up or after ten barriers. So other load affects both alike. A rate is that of
 * the best tenth of the turns, which had the least other load; a time is the median.
 */
#include "bench/store/measure.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/lib/measure.h"

#define TURN_S 0.02
#define TURNS 100 /* of both together */
#define WAKES 400
#define BLOCKS 12 /* of both together */
#define BARRIERS_A_BLOCK 10
#define BARRIER_PROCS 4
#define MAX_PROCS 8
#define MAX_MEMBERS 128
#define MEMORY_KEYS 1000000
#define BATCH 64

/* The peers that take turns, usually each with its server. */
struct contest {
    const struct store_peer *peers[2];
    int ports[2];
    int arg;
    double start; /* of the first turn, on a clock that all processes share */
};

/* ---- Processes --------------------------------------------------------------------------------
 */

static int client_cpu, server_cpu;

void store_place(int split)
{
    client_cpu = 0;
    server_cpu = split;
}

/* A process that takes part in a contest and returns `n` figures through a pipe. */
struct worker {
    pid_t pid;
    int fd;
};

typedef void worker_fn(const struct contest *contest, void *clients[2], double *ret_figures);

static struct worker start_worker(worker_fn *run, const struct contest *contest, int n)
{
    int fds[2];
    if (pipe(fds) != 0)
        bench_die("pipe", NULL);
    pid_t pid = fork();
    if (pid < 0)
        bench_die("fork", NULL);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(fds[0]);
        bench_pin(client_cpu);
        double *figures = calloc((size_t)n, sizeof *figures);
        void *clients[2];
        for (int i = 0; i < 2; i++)
            clients[i] = contest->peers[i]->dial(contest->ports[i]);
        run(contest, clients, figures);
        const char *at = (const char *)figures;
        for (size_t left = (size_t)n * sizeof *figures; left > 0;) {
            ssize_t sent = write(fds[1], at, left);
            if (sent <= 0)
                _exit(1);
            at += sent;
            left -= (size_t)sent;
        }
        _exit(0);
    }
    close(fds[1]);
    return (struct worker){pid, fds[0]};
}

static void end_worker(struct worker worker, double *ret_figures, int n)
{
    char *at = (char *)ret_figures;
    for (size_t left = (size_t)n * sizeof *ret_figures; left > 0;) {
        ssize_t got = read(worker.fd, at, left);
        if (got <= 0)
            bench_die("a client failed", NULL);
        at += got;
        left -= (size_t)got;
    }
    close(worker.fd);
    waitpid(worker.pid, NULL, 0);
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
        bench_die("pipe", NULL);
    server.pid = fork();
    if (server.pid < 0)
        bench_die("fork", NULL);
    if (server.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(fds[0]);
        bench_pin(server_cpu);
        peer->serve(fds[1]);
    }
    close(fds[1]);
    if (read(fds[0], &server.port, sizeof server.port) != (ssize_t)sizeof server.port)
        bench_die("a server did not start", NULL);
    close(fds[0]);
    peer->hang_up(peer->dial(server.port)); /* it answers */
    return server;
}

static void stop_server(struct server server)
{
    kill(server.pid, SIGKILL);
    waitpid(server.pid, NULL, 0);
}

/* ---- Rates ---------------------------------------------------------------------------------- */

/* Runs an operation; returns how many operations it counts as. */
static int do_op(const struct store_peer *peer, void *client, int op, unsigned i)
{
    static char names[BATCH][16];
    static const char *keys[BATCH];
    char key[32];
    for (int k = 0; op == OP_BATCH && !keys[BATCH - 1] && k < BATCH; k++) {
        snprintf(names[k], sizeof names[k], "key%d", k);
        keys[k] = names[k];
    }
    snprintf(key, sizeof key, op == OP_ADD ? "counter%u" : "key%u", i % 100);
    if (op == OP_BATCH)
        peer->set_many(client, keys, BATCH, "value");
    else if (op == OP_SET)
        peer->set(client, key, "value");
    else if (op == OP_GET)
        peer->get(client, key);
    else
        peer->add(client, key);
    return op == OP_BATCH ? BATCH : 1;
}

/* Counts operations by turn. */
static void run_rate(const struct contest *contest, void *clients[2], double *ret_figures)
{
    for (int who = 0; who < 2; who++)
        for (unsigned i = 0; i < 100; i++) /* make the keys, and warm the connection up */
            do_op(contest->peers[who], clients[who], OP_SET, i);
    unsigned n = 0;
    for (;;) {
        double since = bench_now_s() - contest->start;
        int turn = since < 0 ? 0 : (int)(since / TURN_S);
        if (turn >= TURNS)
            break;
        int done = do_op(contest->peers[turn % 2], clients[turn % 2], contest->arg, n++);
        ret_figures[turn] += since < 0 ? 0 : done;
    }
}

static void measure_rate(struct contest *contest, int procs, double ret_values[2])
{
    struct worker workers[MAX_PROCS];
    double figures[TURNS], sums[TURNS] = {0}, rates[2][TURNS / 2];
    contest->start = bench_now_s() + 0.3; /* all clients are connected by then */
    for (int i = 0; i < procs; i++)
        workers[i] = start_worker(run_rate, contest, TURNS);
    for (int i = 0; i < procs; i++) {
        end_worker(workers[i], figures, TURNS);
        for (int turn = 0; turn < TURNS; turn++)
            sums[turn] += figures[turn];
    }
    for (int turn = 0; turn < TURNS; turn++)
        rates[turn % 2][turn / 2] = sums[turn] / TURN_S;
    for (int who = 0; who < 2; who++)
        ret_values[who] = bench_quantile(rates[who], TURNS / 2, 0.9);
}

/* ---- Wake-ups ------------------------------------------------------------------------------- */

/* Microseconds from the call of wake() to the return of sleep() in another process. */
static void run_sleeper(const struct contest *contest, void *clients[2], double *ret_figures)
{
    for (int i = 0; i < WAKES; i++) {
        char key[32], value[STORE_PEER_VALUE_SIZE];
        snprintf(key, sizeof key, "bell%d", i);
        contest->peers[i % 2]->sleep(clients[i % 2], key, value);
        ret_figures[i] = (bench_now_s() - strtod(value, NULL)) * 1e6;
    }
}

static void run_waker(const struct contest *contest, void *clients[2], double *ret_figures)
{
    (void)ret_figures;
    for (int i = 0; i < WAKES; i++) {
        char key[32], value[STORE_PEER_VALUE_SIZE];
        usleep(1500); /* the sleeper sleeps again */
        snprintf(key, sizeof key, "bell%d", i);
        snprintf(value, sizeof value, "%.9f", bench_now_s());
        contest->peers[i % 2]->wake(clients[i % 2], key, value);
    }
}

static void measure_wake(struct contest *contest, double ret_values[2])
{
    double us[WAKES], by_peer[2][WAKES / 2];
    struct worker sleeper = start_worker(run_sleeper, contest, WAKES);
    struct worker waker = start_worker(run_waker, contest, 0);
    end_worker(sleeper, us, WAKES);
    end_worker(waker, NULL, 0);
    for (int i = 0; i < WAKES; i++)
        by_peer[i % 2][i / 2] = us[i];
    for (int who = 0; who < 2; who++)
        ret_values[who] = bench_quantile(by_peer[who], WAKES / 2, 0.5);
}

/* ---- Barriers ------------------------------------------------------------------------------- */

struct member {
    const struct contest *contest;
    pthread_t thread;
    double us[BLOCKS];
};

/* Runs barriers one after the other, in blocks that take turns. Microseconds for one barrier. */
static void *member_main(void *arg)
{
    struct member *member = arg;
    const struct contest *contest = member->contest;
    void *clients[2];
    for (int who = 0; who < 2; who++)
        clients[who] = contest->peers[who]->dial(contest->ports[who]);
    for (int block = 0; block < BLOCKS; block++) {
        const struct store_peer *peer = contest->peers[block % 2];
        double start = 0;
        for (int i = 0; i <= BARRIERS_A_BLOCK; i++) {
            char name[32];
            snprintf(name, sizeof name, "barrier%d.%d", block, i);
            peer->barrier(clients[block % 2], name, contest->arg);
            if (i == 0) /* the first barrier only synchronises the members */
                start = bench_now_s();
        }
        member->us[block] = (bench_now_s() - start) * 1e6 / BARRIERS_A_BLOCK;
    }
    for (int who = 0; who < 2; who++)
        contest->peers[who]->hang_up(clients[who]);
    return NULL;
}

/* Gives the time of the slowest member for each block. This process runs a part of all members. */
static void run_members(const struct contest *contest, void *clients[2], double *ret_figures)
{
    static struct member members[MAX_MEMBERS];
    int here = contest->arg / BARRIER_PROCS;
    (void)clients;
    for (int i = 0; i < here; i++) {
        members[i].contest = contest;
        if (pthread_create(&members[i].thread, NULL, member_main, &members[i]) != 0)
            bench_die("starting a thread", NULL);
    }
    for (int i = 0; i < here; i++) {
        pthread_join(members[i].thread, NULL);
        for (int k = 0; k < BLOCKS; k++)
            if (members[i].us[k] > ret_figures[k])
                ret_figures[k] = members[i].us[k];
    }
}

static void measure_barrier(struct contest *contest, double ret_values[2])
{
    struct worker workers[BARRIER_PROCS];
    double us[BLOCKS], slowest[2][BLOCKS / 2] = {{0}};
    for (int i = 0; i < BARRIER_PROCS; i++)
        workers[i] = start_worker(run_members, contest, BLOCKS);
    for (int i = 0; i < BARRIER_PROCS; i++) {
        end_worker(workers[i], us, BLOCKS);
        for (int k = 0; k < BLOCKS; k++)
            if (us[k] > slowest[k % 2][k / 2])
                slowest[k % 2][k / 2] = us[k];
    }
    for (int who = 0; who < 2; who++)
        ret_values[who] = bench_quantile(slowest[who], BLOCKS / 2, 0.5);
}

/* ---- Crowds and memory ---------------------------------------------------------------------- */

/* Measures how much of a client's rate is left beside many idle clients: two servers of one kind
 * take turns, one with idle clients and one without. */
static double measure_idle(const struct store_peer *peer, struct server quiet)
{
    struct server crowded = start_server(peer);
    void **idle = calloc(STORE_IDLE_CLIENTS, sizeof *idle);
    for (int i = 0; i < STORE_IDLE_CLIENTS; i++)
        idle[i] = peer->dial(crowded.port);
    struct contest contest = {
        .peers = {peer, peer}, .ports = {crowded.port, quiet.port}, .arg = OP_GET};
    double rates[2];
    measure_rate(&contest, 1, rates);
    for (int i = 0; i < STORE_IDLE_CLIENTS; i++)
        peer->hang_up(idle[i]);
    free(idle);
    stop_server(crowded);
    return rates[0] / rates[1] * 100;
}

/* Measures the bytes of memory per key, without the 14 of the key and the 8 of its value. */
static double measure_memory(const struct store_peer *peer, struct server server)
{
    void *client = peer->dial(server.port);
    double before = bench_resident_bytes(server.pid);
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
    return (bench_resident_bytes(server.pid) - before) / MEMORY_KEYS - (14 + 8);
}

/* ---- All of them ---------------------------------------------------------------------------- */

void store_measure(enum store_kind kind,
                   int arg,
                   int procs,
                   const struct store_peer *const peers[2],
                   double ret_values[2])
{
    struct server servers[2];
    struct contest contest = {.arg = arg};
    for (int i = 0; i < 2; i++) {
        servers[i] = start_server(peers[i]);
        contest.peers[i] = peers[i];
        contest.ports[i] = servers[i].port;
    }
    switch (kind) {
        case STORE_RATE:
            measure_rate(&contest, procs, ret_values);
            break;
        case STORE_WAKE:
            measure_wake(&contest, ret_values);
            break;
        case STORE_BARRIER:
            measure_barrier(&contest, ret_values);
            break;
        case STORE_IDLE:
            for (int i = 0; i < 2; i++)
                ret_values[i] = measure_idle(peers[i], servers[i]);
            break;
        case STORE_MEMORY:
            for (int i = 0; i < 2; i++)
                ret_values[i] = measure_memory(peers[i], servers[i]);
            break;
    }
    for (int i = 0; i < 2; i++)
        stop_server(servers[i]);
}
