/* The TCP store beside Redis, in one run.
 *
 * Both are measured at the same time, by turns: every client process holds a connection to each and
 * changes over every 20 ms, after every wake-up or after ten barriers. So whatever else the machine
 * does meets both alike, and ratios hold where absolute figures do not. A rate is that of the best
 * tenth of the turns, when the machine did nothing else; a time is the median. Processes are
 * pinned: "same", servers and clients on one CPU, and "split", the servers on another. Redis runs
 * without persistence, both over loopback TCP without delay. A ratio above 1 means that Tether is
 * better; what is printed is the median of the rounds, and the lowest and highest.
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
#define TURN_S 0.02
#define TURNS 100 /* of both together */
#define WAKES 400
#define BLOCKS 12 /* of both together */
#define BARRIERS_A_BLOCK 10
#define BARRIER_PROCS 4
#define MAX_PROCS 8
#define MAX_MEMBERS 128
#define IDLE_CLIENTS 5000
#define MEMORY_KEYS 1000000
#define BATCH 64

enum { TETHER, REDIS, N_PEERS };
static const struct store_peer *const peers[N_PEERS] = {&store_peer_tether, &store_peer_redis};

/* Who takes turns: as a rule each peer, with its server. */
struct contest {
    const struct store_peer *peers[2];
    int ports[2];
    int arg;
    double start; /* of the first turn, on the clock that all processes share */
};

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

static void place(int split)
{
    client_cpu = 0;
    server_cpu = split && sysconf(_SC_NPROCESSORS_ONLN) > 1;
}

/* A process that takes part in a contest and hands `n` figures back through a pipe. */
struct worker {
    pid_t pid;
    int fd;
};

typedef void worker_fn(const struct contest *contest, void *clients[2], double *ret_figures);

static struct worker start_worker(worker_fn *run, const struct contest *contest, int n)
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
            bench_die("a client failed");
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

/* ---- Figures -------------------------------------------------------------------------------- */

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The value that `share` of them are below. */
static double quantile(double *values, int n, double share)
{
    qsort(values, (size_t)n, sizeof *values, compare_doubles);
    return values[(int)(share * (n - 1) + 0.5)];
}

/* ---- Rates ---------------------------------------------------------------------------------- */

enum op { OP_SET, OP_GET, OP_ADD, OP_BATCH };

/* How many operations it was. */
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
        for (unsigned i = 0; i < 100; i++) /* keys that exist, and a warm connection */
            do_op(contest->peers[who], clients[who], OP_SET, i);
    unsigned n = 0;
    for (;;) {
        double since = now_s() - contest->start;
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
    contest->start = now_s() + 0.3; /* all are connected by then */
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
        ret_values[who] = quantile(rates[who], TURNS / 2, 0.9);
}

/* ---- Wake-ups ------------------------------------------------------------------------------- */

/* Microseconds from the call of wake() to the return of sleep() in another process. */
static void run_sleeper(const struct contest *contest, void *clients[2], double *ret_figures)
{
    for (int i = 0; i < WAKES; i++) {
        char key[32], value[STORE_PEER_VALUE_SIZE];
        snprintf(key, sizeof key, "bell%d", i);
        contest->peers[i % 2]->sleep(clients[i % 2], key, value);
        ret_figures[i] = (now_s() - strtod(value, NULL)) * 1e6;
    }
}

static void run_waker(const struct contest *contest, void *clients[2], double *ret_figures)
{
    (void)ret_figures;
    for (int i = 0; i < WAKES; i++) {
        char key[32], value[STORE_PEER_VALUE_SIZE];
        usleep(1500); /* the sleeper sleeps again */
        snprintf(key, sizeof key, "bell%d", i);
        snprintf(value, sizeof value, "%.9f", now_s());
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
        ret_values[who] = quantile(by_peer[who], WAKES / 2, 0.5);
}

/* ---- Barriers ------------------------------------------------------------------------------- */

struct member {
    const struct contest *contest;
    pthread_t thread;
    double us[BLOCKS];
};

/* Barriers one right after the other, in blocks by turns; microseconds for one. */
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
            if (i == 0) /* has lined them all up */
                start = now_s();
        }
        member->us[block] = (now_s() - start) * 1e6 / BARRIERS_A_BLOCK;
    }
    for (int who = 0; who < 2; who++)
        contest->peers[who]->hang_up(clients[who]);
    return NULL;
}

/* What each block took the slowest member in this process, which has a part of them all. */
static void run_members(const struct contest *contest, void *clients[2], double *ret_figures)
{
    static struct member members[MAX_MEMBERS];
    int here = contest->arg / BARRIER_PROCS;
    (void)clients;
    for (int i = 0; i < here; i++) {
        members[i].contest = contest;
        if (pthread_create(&members[i].thread, NULL, member_main, &members[i]) != 0)
            bench_die("starting a thread");
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
        ret_values[who] = quantile(slowest[who], BLOCKS / 2, 0.5);
}

/* ---- Crowds and memory ---------------------------------------------------------------------- */

/* How much of a client's rate is left among many idle ones: two servers of a kind take turns, one
 * with the crowd and one without. */
static double measure_idle(const struct store_peer *peer, struct server quiet)
{
    struct server crowded = start_server(peer);
    void **idle = calloc(IDLE_CLIENTS, sizeof *idle);
    for (int i = 0; i < IDLE_CLIENTS; i++)
        idle[i] = peer->dial(crowded.port);
    struct contest contest = {
        .peers = {peer, peer}, .ports = {crowded.port, quiet.port}, .arg = OP_GET};
    double rates[2];
    measure_rate(&contest, 1, rates);
    for (int i = 0; i < IDLE_CLIENTS; i++)
        peer->hang_up(idle[i]);
    free(idle);
    stop_server(crowded);
    return rates[0] / rates[1] * 100;
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

/* Bytes of memory a key beside its own 14 and the 8 of its value. */
static double measure_memory(const struct store_peer *peer, struct server server)
{
    void *client = peer->dial(server.port);
    double before = resident_bytes(server.pid);
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
    return (resident_bytes(server.pid) - before) / MEMORY_KEYS - (14 + 8);
}

/* ---- The list of figures -------------------------------------------------------------------- */

enum kind { RATE, WAKE, BARRIER, IDLE, MEMORY };

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
    {"64 pipelined sets", "op/s", RATE, OP_BATCH, 1, false, 1.0},
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

static void measure(const struct figure *figure, double ret_values[N_PEERS])
{
    struct server servers[N_PEERS];
    struct contest contest = {.arg = figure->arg};
    for (int i = 0; i < N_PEERS; i++) {
        servers[i] = start_server(peers[i]);
        contest.peers[i] = peers[i];
        contest.ports[i] = servers[i].port;
    }
    switch (figure->kind) {
        case RATE:
            measure_rate(&contest, figure->procs, ret_values);
            break;
        case WAKE:
            measure_wake(&contest, ret_values);
            break;
        case BARRIER:
            measure_barrier(&contest, ret_values);
            break;
        case IDLE:
            for (int i = 0; i < N_PEERS; i++)
                ret_values[i] = measure_idle(peers[i], servers[i]);
            break;
        case MEMORY:
            for (int i = 0; i < N_PEERS; i++)
                ret_values[i] = measure_memory(peers[i], servers[i]);
            break;
    }
    for (int i = 0; i < N_PEERS; i++)
        stop_server(servers[i]);
}

/* ---- PyTorch -------------------------------------------------------------------------------- */

#define PYTHON "/usr/bin/python3" /* Debian's, which has Debian's packages */
#define SCRIPT "bench/store_torch.py"

struct torch_figure {
    char name[64];
    double value;
};

static struct torch_figure torch_figures[2][8]; /* by placement */

static void measure_torch(int split)
{
    char command[128], line[128];
    snprintf(command, sizeof command, PYTHON " " SCRIPT " %d %d 2>/dev/null", client_cpu,
             server_cpu);
    FILE *output = popen(command, "r");
    for (int i = 0; output && i < 8 && fgets(line, sizeof line, output); i++)
        sscanf(line, "%63[^\t]\t%lf", torch_figures[split][i].name, &torch_figures[split][i].value);
    if (output)
        pclose(output);
}

/* 0: not measured. */
static double torch_value(const char *name, int split)
{
    for (int i = 0; i < 8; i++)
        if (strcmp(torch_figures[split][i].name, name) == 0)
            return torch_figures[split][i].value;
    return 0;
}

/* ---- Running and printing ------------------------------------------------------------------- */

static bool as_tsv;
static int rounds = 5;
static const char *only = "";

/* Whether the goal is met. */
static bool report(const struct figure *figure, int split)
{
    const char *placement = split ? "split" : "same";
    double values[N_PEERS][MAX_ROUNDS], ratios[MAX_ROUNDS];
    int n = figure->kind == MEMORY ? 1 : rounds;
    for (int round = 0; round < n; round++) {
        double now[N_PEERS] = {0};
        measure(figure, now);
        for (int i = 0; i < N_PEERS; i++)
            values[i][round] = now[i];
        double ratio = now[TETHER] / now[REDIS];
        ratios[round] = figure->less_is_better ? 1 / ratio : ratio;
    }
    double tether = quantile(values[TETHER], n, 0.5), redis = quantile(values[REDIS], n, 0.5);
    double ratio = quantile(ratios, n, 0.5);
    bool met = !is_absolute(figure)     ? ratio >= figure->goal
               : figure->less_is_better ? tether <= figure->goal
                                        : tether >= figure->goal;
    const char *verdict = met ? "yes" : "NO";
    double torch = torch_value(figure->name, split);
    char torch_text[16] = "-";
    if (torch > 0)
        snprintf(torch_text, sizeof torch_text, as_tsv ? "%.6g" : "%.0f", torch);
    if (as_tsv)
        printf("%s\t%s\t%s\t%.6g\t%.6g\t%s\t%.3f\t%.3f\t%.3f\t%g\t%s\n", figure->name, placement,
               figure->unit, tether, redis, torch_text, ratio, ratios[0], ratios[n - 1],
               figure->goal, verdict);
    else
        printf("%-28s %-6s %9.0f %9.0f %9s %-5s %5.2f  (%.2f-%.2f)  %s %g%s: %s\n", figure->name,
               placement, tether, redis, torch_text, figure->unit, ratio, ratios[0], ratios[n - 1],
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
        puts("figure\tplacement\tunit\ttether\tredis\ttorch\tratio\tlowest\thighest\tgoal\tmet");
    else
        printf("%-28s %-6s %9s %9s %9s %-5s %5s\n", "", "CPUs", "tether", "redis", "torch", "",
               "ratio to redis");
    int missed = 0, taken = 0;
    for (int split = 0; split < 2; split++) {
        place(split);
        measure_torch(split);
    }
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++) {
        if (!strstr(figures[i].name, only))
            continue;
        for (int split = 0; split <= (figures[i].kind != MEMORY); split++) {
            place(split);
            missed += !report(&figures[i], split);
            taken++;
        }
    }
    if (!as_tsv)
        printf("%d of %d goals met\n", taken - missed, taken);
    return 0;
}
