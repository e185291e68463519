/* What a call costs: two processes, pinned to one CPU ("same") and to two ("split"), beside raw
 * blocking TCP ping-pong in the same run. Ratios are what counts; the machine is noisy.
 *
 *     rpc_bench [--tsv] [--seconds S] [--only sync|async|refs]
 *
 * The second process is this program again (posix_spawn), told its role by the environment.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "rref/rref.h"

extern char **environ;

#define MAX_SAMPLES 200000

static double seconds = 0.5;
static bool tsv;
static const char *only = "";
static char folder[64];
static double samples[MAX_SAMPLES];

static double now_us(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec / 1e3;
}

static void die(const char *what, const char *why)
{
    fprintf(stderr, "rpc_bench: %s: %s\n", what, why);
    exit(1);
}

static void pin(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
}

static void unpin(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int i = 0; i < 64; i++)
        CPU_SET(i, &set);
    sched_setaffinity(0, sizeof set, &set);
}

/* ---- The other process ---- */

static pid_t spawn(const char *role, const char *arg, int cpu)
{
    char text[16];
    pid_t pid;
    char *argv[] = {"rpc_bench", NULL};
    snprintf(text, sizeof text, "%d", cpu);
    setenv("BENCH_ROLE", role, 1);
    setenv("BENCH_ARG", arg, 1);
    setenv("BENCH_CPU", text, 1);
    if (posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, environ) != 0)
        die("starting the other process", strerror(errno));
    unsetenv("BENCH_ROLE");
    return pid;
}

static void end(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void read_all(int fd, char *data, size_t len)
{
    for (size_t at = 0; at < len;) {
        ssize_t n = read(fd, data + at, len - at);
        if (n <= 0)
            exit(0);
        at += (size_t)n;
    }
}

static void write_all(int fd, const char *data, size_t len)
{
    for (size_t at = 0; at < len;) {
        ssize_t n = write(fd, data + at, len - at);
        if (n <= 0)
            exit(0);
        at += (size_t)n;
    }
}

static void raw_server(int fd, size_t size)
{
    char *data = malloc(size);
    for (;;) {
        read_all(fd, data, size);
        write_all(fd, data, size);
    }
}

static tether_status echo(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    (void)userdata, (void)reterr;
    *ret_value = tether_value_retain((tether_value *)arg);
    return TETHER_OK;
}

static tether_agent *agent_new(const char *name, const char *kind)
{
    tether_store *store = NULL;
    tether_agent *agent = NULL;
    tether_error err = {0};
    char path[128];
    snprintf(path, sizeof path, "%s/store", folder);
    bool tcp = strstr(kind, "tcp") != NULL;
    if (tether_store_file_new(path, -1, &store, &err) ||
        tether_agent_new(
            TETHER_AGENT_OPTS(.name = name, .store = store, .group = kind, .no_unix_socket = tcp,
                              .threads = 2, .spin_us = tcp ? -1 : 0),
            &agent, &err) ||
        tether_agent_register_inline(agent, "echo", echo, NULL, &err) ||
        tether_agent_register(agent, "pooled", echo, NULL, &err) || tether_agent_start(agent, &err))
        die("starting an agent", err.message);
    tether_store_release(store);
    return agent;
}

static int child_main(const char *role)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    snprintf(folder, sizeof folder, "%s", getenv("BENCH_FOLDER"));
    pin(atoi(getenv("BENCH_CPU")));
    if (strcmp(role, "raw") == 0) {
        int port, fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
        size_t size;
        sscanf(getenv("BENCH_ARG"), "%d %zu", &port, &size);
        struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
        to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        if (connect(fd, (struct sockaddr *)&to, sizeof to) != 0)
            die("connecting", strerror(errno));
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        raw_server(fd, size);
    }
    agent_new("server", getenv("BENCH_ARG"));
    pause();
    return 0;
}

/* ---- Measuring ---- */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(size_t n)
{
    qsort(samples, n, sizeof *samples, compare);
    return n ? samples[n / 2] : 0;
}

static double raw_p50(size_t size, int server_cpu)
{
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t len = sizeof at;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) != 0 || listen(listener, 1) != 0)
        die("listening", strerror(errno));
    getsockname(listener, (struct sockaddr *)&at, &len);
    char arg[64];
    snprintf(arg, sizeof arg, "%d %zu", ntohs(at.sin_port), size);
    pid_t pid = spawn("raw", arg, server_cpu);
    int fd = accept(listener, NULL, NULL);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    char *data = calloc(1, size);
    size_t n = 0;
    for (double until = now_us() + seconds * 1e6; now_us() < until && n < MAX_SAMPLES; n++) {
        double begin = now_us();
        write_all(fd, data, size);
        read_all(fd, data, size);
        samples[n] = now_us() - begin;
    }
    end(pid);
    close(fd);
    close(listener);
    free(data);
    return median(n);
}

/* CPU time of a process, all its threads, in microseconds. */
static double cpu_us(pid_t pid)
{
    clockid_t clock;
    struct timespec ts;
    if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &ts) != 0)
        return 0;
    return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec / 1e3;
}

static double switches(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_nvcsw + usage.ru_nivcsw);
}

static double sync_p50(tether_agent *agent,
                       pid_t server,
                       const char *fn,
                       size_t size,
                       double *ret_switches,
                       double *ret_cpu_us)
{
    char *data = calloc(1, size);
    tether_value *arg = NULL;
    tether_error err = {0};
    tether_value_new(tether_bytes_of(data, size), &arg, &err);
    for (int i = 0; i < 200; i++)
        if (tether_rpc_sync(agent, "server", fn, arg, 10000, NULL, &err))
            die("calling", err.message);
    size_t n = 0;
    double before = switches(), cpu = cpu_us(0) + cpu_us(server);
    for (double until = now_us() + seconds * 1e6; now_us() < until && n < MAX_SAMPLES; n++) {
        tether_value *result = NULL;
        double begin = now_us();
        tether_rpc_sync(agent, "server", fn, arg, 10000, &result, &err);
        samples[n] = now_us() - begin;
        tether_value_release(result);
    }
    *ret_switches = (switches() - before) / (double)n;
    *ret_cpu_us = (cpu_us(0) + cpu_us(server) - cpu) / (double)n;
    tether_value_release(arg);
    free(data);
    return median(n);
}

static double async_rate(tether_agent *agent, pid_t server, double *ret_cpu_us)
{
    enum { DEPTH = 64 };
    tether_future *futures[DEPTH] = {NULL};
    tether_value *arg = NULL;
    tether_error err = {0};
    char data[64] = "";
    tether_value_new(tether_bytes_of(data, sizeof data), &arg, &err);
    size_t n = 0;
    double cpu = cpu_us(0) + cpu_us(server);
    double begin = now_us(), until = begin + seconds * 1e6;
    for (;; n++) {
        tether_future **slot = &futures[n % DEPTH];
        if (*slot && tether_future_wait(*slot, 10000, NULL, &err))
            die("calling", err.message);
        tether_future_release(*slot);
        *slot = NULL;
        if ((n & 63) == 0 && now_us() > until)
            break;
        *slot = tether_rpc_async(agent, "server", "echo", arg, 10000);
    }
    double rate = (double)n / (now_us() - begin) * 1e6;
    *ret_cpu_us = (cpu_us(0) + cpu_us(server) - cpu) / (double)n;
    for (int i = 0; i < DEPTH; i++) {
        if (futures[i])
            tether_future_wait(futures[i], 10000, NULL, NULL);
        tether_future_release(futures[i]);
    }
    tether_value_release(arg);
    return rate;
}

/* ---- References ---- */

static double create_drop_rate(tether_agent *agent, bool fetch)
{
    tether_error err = {0};
    tether_value *arg = NULL;
    char data[64] = "";
    tether_value_new(tether_bytes_of(data, sizeof data), &arg, &err);
    size_t n = 0;
    double begin = now_us(), until = begin + seconds * 1e6;
    for (; now_us() < until; n++) {
        tether_rref *rref = tether_remote(agent, "server", "echo", arg, 10000);
        tether_status st = TETHER_OK;
        if (fetch)
            st = tether_rref_to_here(rref, 10000, NULL, &err);
        else if (n % 256 == 255) { /* as fast as they are confirmed, not faster */
            tether_future *confirmed = tether_rref_confirmed(rref);
            st = tether_future_wait(confirmed, 10000, NULL, &err);
            tether_future_release(confirmed);
        }
        if (st)
            die("a reference", err.message);
        tether_rref_release(rref);
    }
    double rate = (double)n / (now_us() - begin) * 1e6;
    tether_value_release(arg);
    return rate;
}

static void row(const char *place, const char *what, double value, const char *unit, double ratio)
{
    if (tsv)
        printf("%s\t%s\t%.4g\t%s\t%.3f\n", place, what, value, unit, ratio);
    else if (ratio > 0)
        printf("  %-6s %-34s %10.4g %-5s %6.2fx raw\n", place, what, value, unit, ratio);
    else
        printf("  %-6s %-34s %10.4g %s\n", place, what, value, unit);
    fflush(stdout);
}

static bool wanted(const char *what)
{
    return !*only || strcmp(only, what) == 0;
}

static void sync_rows(tether_agent *agent,
                      pid_t server,
                      const char *place,
                      const char *kind,
                      const double raw[3])
{
    static const struct {
        const char *words, *fn;
        size_t size;
        int raw;
    } rows[] = {
        {"rpc_sync 64 B inline", "echo", 64, 0},
        {"rpc_sync 64 B pooled", "pooled", 64, 0},
        {"rpc_sync 64 KiB inline", "echo", 65536, 1},
        {"rpc_sync 1 MiB inline", "echo", 1 << 20, 2},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char what[64];
        double per_call, cpu;
        double p50 = sync_p50(agent, server, rows[i].fn, rows[i].size, &per_call, &cpu);
        snprintf(what, sizeof what, "%s, %s", rows[i].words, kind);
        row(place, what, p50, "us", p50 / raw[rows[i].raw]);
        if (i == 0)
            row(place, "  context switches a call", per_call, "", 0);
        row(place, "  CPU a call, both ends", cpu, "us", 0);
    }
}

static void rate_row(const char *place, const char *words, const char *kind, double rate)
{
    char what[64];
    snprintf(what, sizeof what, "%s, %s", words, kind);
    row(place, what, rate, "/s", 0);
}

static void place_all(const char *place, int server_cpu)
{
    pin(0);
    static const size_t raw_sizes[] = {64, 65536, 1 << 20};
    double raw[3];
    for (int i = 0; i < 3 && wanted("sync"); i++) {
        char what[64];
        raw[i] = raw_p50(raw_sizes[i], server_cpu);
        snprintf(what, sizeof what, "raw TCP %zu B, p50", raw_sizes[i]);
        row(place, what, raw[i], "us", 1);
    }
    static const char *const kinds[] = {"unix", "tcp"};
    for (int k = 0; k < 2; k++) {
        char group[64];
        snprintf(group, sizeof group, "%s-%s-%d", kinds[k], place, (int)getpid());
        pid_t pid = spawn("agent", group, server_cpu);
        tether_agent *agent = agent_new("client", group);
        tether_error err = {0};
        while (tether_rpc_sync(agent, "server", "echo", NULL, 10000, NULL, &err))
            usleep(1000); /* the server is starting */
        if (wanted("sync"))
            sync_rows(agent, pid, place, kinds[k], raw);
        if (wanted("async")) {
            double cpu;
            rate_row(place, "rpc_async 64 B, 64 deep", kinds[k], async_rate(agent, pid, &cpu));
            row(place, "  CPU a call, both ends", cpu, "us", 0);
        }
        if (wanted("refs")) {
            rate_row(place, "remote + drop", kinds[k], create_drop_rate(agent, false));
            rate_row(place, "remote + to_here + drop", kinds[k], create_drop_rate(agent, true));
        }
        tether_agent_release(agent);
        end(pid);
    }
    unpin();
}

int main(int argc, char **argv)
{
    const char *role = getenv("BENCH_ROLE");
    if (role)
        return child_main(role);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--tsv") == 0)
            tsv = true;
        else if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc)
            seconds = atof(argv[++i]);
        else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc)
            only = argv[++i];
        else
            die("usage", "rpc_bench [--tsv] [--seconds S] [--only sync|async|refs]");
    }
    snprintf(folder, sizeof folder, "/tmp/rpc_bench.XXXXXX");
    if (!mkdtemp(folder))
        die("making a folder", strerror(errno));
    setenv("BENCH_FOLDER", folder, 1);
    place_all("same", 0);
    place_all("split", 1);
    char path[128];
    snprintf(path, sizeof path, "%s/store", folder);
    unlink(path);
    rmdir(folder);
    return 0;
}
