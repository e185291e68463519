/* What the transport costs: echo of one message between two processes, pinned to one CPU ("same")
 * and to two ("split"), over TCP and unix sockets, with the spin off and on, beside raw blocking
 * TCP in the same run. The machine is noisy: the ratios are what counts, medians of several rounds.
 *
 *     transport_bench [seconds per figure]
 *
 * The client stands for a thread that waits for its reply: it polls by itself, while another thread
 * polls the server side, as in any agent. The other process is this program again (posix_spawn); it
 * says on standard output where it listens.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/instructions.h"
#include "rpc/transport_grpc.h"

#define ROUNDS 3
#define SPIN_US 50
#define MAX_SAMPLES 100000

extern char **environ;

enum kind { RAW_TCP, RAW_UNIX, TCP, UNIX, TCP_SPIN, UNIX_SPIN, N_KINDS };

static const struct {
    const char *name;
    bool raw, is_unix;
    int spin_us;
} kinds[] = {
    [RAW_TCP] = {"raw tcp", true, false, 0},
    [RAW_UNIX] = {"raw unix", true, true, 0},
    [TCP] = {"tcp", false, false, 0},
    [UNIX] = {"unix", false, true, 0},
    [TCP_SPIN] = {"tcp, spin", false, false, SPIN_US},
    [UNIX_SPIN] = {"unix, spin", false, true, SPIN_US},
};

static const size_t sizes[] = {64, 64 << 10, 1 << 20};
enum { N_SIZES = 3 };

static double seconds = 0.3;

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static int64_t now(void)
{
    return tether__clock_now_ns(&tether__clock_system);
}

static void pin(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (cpu >= 0 && sched_setaffinity(0, sizeof set, &set) != 0)
        die("pinning");
}

/* ---- A message that lives for ever ---- */

static void count_nothing(struct tether__slice_owner *owner)
{
    (void)owner;
}

static struct tether__slice_owner immortal = {count_nothing, count_nothing};
static uint8_t payload[1 << 20];

/* ---- The process that echoes ---- */

/* One message at a time, and perhaps the next already there before sent(). */
static bool sending;
static struct tether__slice waiting;

static void send_waiting(struct tether__conn *conn)
{
    struct tether__slice message = waiting;
    waiting = TETHER__SLICE_EMPTY;
    sending = message.owner;
    if (sending)
        conn->transport->ops->send(conn, &message, 1);
}

static void on_accepted_message(struct tether__conn *conn, struct tether__slice message)
{
    waiting = tether__slice_retain(message);
    if (!sending)
        send_waiting(conn);
}

static void ignore(struct tether__conn *conn)
{
    (void)conn;
}

static void on_closed(struct tether__conn *conn, tether_status status, const char *why)
{
    (void)status, (void)why;
    conn->transport->ops->conn_release(conn);
}

static void on_accepted(void *userdata, struct tether__conn *conn, const char *const *names)
{
    static const struct tether__conn_events echo = {ignore, on_accepted_message, send_waiting,
                                                    on_closed};
    (void)userdata, (void)names;
    conn->events = &echo;
}

static const struct tether__transport_events accepting = {.accepted = on_accepted};

static struct tether__transport *transport_new(const char *listen, int spin_us)
{
    struct tether__transport_opts opts = {
        .listen = listen, .spin_us = spin_us, .max_message_bytes = 2 << 20, .events = &accepting};
    struct tether__transport *transport;
    tether_error error;
    if (tether__transport_grpc_new(&opts, &transport, &error) ||
        transport->ops->start(transport, &error)) {
        fprintf(stderr, "transport_bench: %s\n", error.message);
        exit(1);
    }
    return transport;
}

static void *poll_server(void *transport)
{
    while (((struct tether__transport *)transport)
               ->ops->poll(transport, TETHER__SERVER, TETHER__NEVER)) {
    }
    return NULL;
}

static void copy_all(int fd, size_t len, bool reads)
{
    for (size_t at = 0; at < len;) {
        ssize_t n = reads ? read(fd, payload + at, len - at) : write(fd, payload + at, len - at);
        if (n <= 0)
            exit(0);
        at += (size_t)n;
    }
}

static socklen_t raw_address(bool is_unix, const char *address, struct sockaddr_storage *ret_at)
{
    memset(ret_at, 0, sizeof *ret_at);
    if (is_unix) {
        struct sockaddr_un *at = (struct sockaddr_un *)ret_at;
        at->sun_family = AF_UNIX;
        snprintf(at->sun_path, sizeof at->sun_path, "%s", address);
        return sizeof *at;
    }
    struct sockaddr_in *at = (struct sockaddr_in *)ret_at;
    at->sin_family = AF_INET;
    at->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    at->sin_port = htons((uint16_t)atoi(address));
    return sizeof *at;
}

static void set_no_delay(int fd)
{
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); /* fails on a unix socket */
}

/* Echoes blocks of the size that the first four bytes of a connection announce. */
static void serve_raw(bool is_unix, const char *path)
{
    struct sockaddr_storage at;
    socklen_t len = raw_address(is_unix, is_unix ? path : "0", &at);
    int listener = socket(is_unix ? AF_UNIX : AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&at, len) || listen(listener, 8))
        die("listening");
    getsockname(listener, (struct sockaddr *)&at, &len);
    if (is_unix)
        printf("%s\n", path);
    else
        printf("%d\n", ntohs(((struct sockaddr_in *)&at)->sin_port));
    fflush(stdout);
    int fd = accept(listener, NULL, NULL);
    set_no_delay(fd);
    for (;;) {
        uint32_t size;
        copy_all(fd, sizeof size, true);
        memcpy(&size, payload, sizeof size);
        for (uint32_t rounds = 1; rounds; rounds--) {
            copy_all(fd, size, true);
            memcpy(&rounds, payload, sizeof rounds); /* the client counts down */
            copy_all(fd, size, false);
        }
    }
}

static int serve(enum kind kind, int cpu, const char *path)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pin(cpu);
    if (kinds[kind].raw)
        serve_raw(kinds[kind].is_unix, path);
    char address[128];
    snprintf(address, sizeof address, "unix:%s", path);
    struct tether__transport *transport =
        transport_new(kinds[kind].is_unix ? address : "127.0.0.1:0", kinds[kind].spin_us);
    printf("%s\n", transport->address);
    fflush(stdout);
    poll_server(transport);
    return 0;
}

struct server {
    pid_t pid;
    char address[128];
};

static struct server start_server(enum kind kind, int cpu)
{
    static char path[64];
    static int count;
    struct server server;
    int out[2];
    char kind_text[16], cpu_text[16];
    snprintf(path, sizeof path, "/tmp/tether-bench-%d-%d", (int)getpid(), count++);
    snprintf(kind_text, sizeof kind_text, "%d", (int)kind);
    snprintf(cpu_text, sizeof cpu_text, "%d", cpu);
    char *argv[] = {"transport_bench", "serve", kind_text, cpu_text, path, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    if (pipe(out) || posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO) ||
        posix_spawn(&server.pid, program_invocation_name, &actions, NULL, argv, environ))
        die("starting the other process");
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]);
    FILE *lines = fdopen(out[0], "r");
    if (!fgets(server.address, sizeof server.address, lines))
        die("the other process did not start");
    server.address[strcspn(server.address, "\n")] = '\0';
    fclose(lines);
    return server;
}

static void end_server(struct server server)
{
    kill(server.pid, SIGKILL);
    waitpid(server.pid, NULL, 0);
    const char *path = server.address;
    unlink(strncmp(path, "unix:", 5) ? path : path + 5);
}

/* ---- The process that waits ---- */

struct samples {
    size_t n;
    int64_t begin, end;
    int64_t ns[MAX_SAMPLES];
};

static void samples_begin(struct samples *samples)
{
    samples->n = 0;
    samples->begin = now();
    samples->end = samples->begin + (int64_t)(seconds * 1e9);
}

/* Notes one round trip; false: enough. */
static bool samples_note(struct samples *samples, int64_t begin)
{
    int64_t end = now();
    samples->ns[samples->n++] = end - begin;
    return end < samples->end && samples->n < MAX_SAMPLES;
}

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static double p50_us(struct samples *samples)
{
    qsort(samples->ns, samples->n, sizeof samples->ns[0], compare);
    return (double)samples->ns[samples->n / 2] / 1e3;
}

struct figures {
    double p50_us, switches, batches; /* the latter two: per round trip, at the client */
};

static double switches(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_nvcsw + usage.ru_nivcsw);
}

static void measure_raw(enum kind kind, struct server server, struct figures *ret_figures)
{
    static struct samples samples;
    struct sockaddr_storage at;
    socklen_t len = raw_address(kinds[kind].is_unix, server.address, &at);
    int fd = socket(kinds[kind].is_unix ? AF_UNIX : AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&at, len))
        die("connecting");
    set_no_delay(fd);
    for (int i = 0; i < N_SIZES; i++) {
        uint32_t more = 1, size = (uint32_t)sizes[i];
        memcpy(payload, &size, sizeof size);
        copy_all(fd, sizeof size, false);
        double before = switches();
        samples_begin(&samples);
        while (more) {
            int64_t begin = now();
            /* The server has to know which block is the last: a little early does no harm. */
            more = begin < samples.end && samples.n < MAX_SAMPLES - 1 ? 2 : 1;
            memcpy(payload, &more, sizeof more);
            copy_all(fd, sizes[i], false);
            copy_all(fd, sizes[i], true);
            samples_note(&samples, begin);
            more--;
        }
        ret_figures[i] =
            (struct figures){p50_us(&samples), (switches() - before) / (double)samples.n, 0};
    }
    close(fd);
}

static size_t n_received, n_sent;

static void on_sent(struct tether__conn *conn)
{
    (void)conn;
    n_sent++;
}

static void on_reply(struct tether__conn *conn, struct tether__slice message)
{
    (void)conn, (void)message;
    n_received++;
}

static void on_client_closed(struct tether__conn *conn, tether_status status, const char *why)
{
    if (status != TETHER_ESHUTDOWN) {
        fprintf(stderr, "transport_bench: %s\n", why);
        exit(1);
    }
    conn->transport->ops->conn_release(conn);
}

static void round_trip(struct tether__conn *conn, size_t size)
{
    const struct tether__transport_ops *ops = conn->transport->ops;
    size_t want = n_received + 1, want_sent = n_sent + 1;
    ops->send(conn, &(struct tether__slice){payload, size, &immortal}, 1);
    while (n_received < want || n_sent < want_sent)
        ops->poll(conn->transport, TETHER__CLIENT, TETHER__NEVER);
}

struct client {
    struct tether__transport *transport;
    struct tether__conn *conn;
    pthread_t thread; /* polls the server side, on which nothing happens */
};

static struct client client_start(enum kind kind, struct server server)
{
    static const struct tether__conn_events events = {ignore, on_reply, on_sent, on_client_closed};
    struct client client;
    client.transport = transport_new("127.0.0.1:0", kinds[kind].spin_us);
    if (pthread_create(&client.thread, NULL, poll_server, client.transport))
        die("starting a thread");
    client.conn = client.transport->ops->dial(client.transport, server.address, &events, NULL);
    for (int i = 0; i < 200; i++)
        round_trip(client.conn, sizes[i % N_SIZES]); /* warm up, and let windows grow */
    return client;
}

static void client_stop(struct client client)
{
    client.transport->ops->stop(client.transport);
    while (client.transport->ops->poll(client.transport, TETHER__CLIENT, TETHER__NEVER)) {
    }
    pthread_join(client.thread, NULL);
    client.transport->ops->destroy(client.transport);
}

static void measure(enum kind kind, struct server server, struct figures *ret_figures)
{
    static struct samples samples;
    struct client client = client_start(kind, server);
    struct tether__grpc_stats *stats = &tether__grpc_of(client.transport)->stats;
    for (int i = 0; i < N_SIZES; i++) {
        double before = switches(), batches = (double)atomic_load(&stats->batches);
        int64_t begin;
        samples_begin(&samples);
        do {
            begin = now();
            round_trip(client.conn, sizes[i]);
        } while (samples_note(&samples, begin));
        ret_figures[i] =
            (struct figures){p50_us(&samples), (switches() - before) / (double)samples.n,
                             ((double)atomic_load(&stats->batches) - batches) / (double)samples.n};
    }
    client_stop(client);
}

/* ---- The table ---- */

static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values)
{
    qsort(values, ROUNDS, sizeof *values, compare_double);
    return values[ROUNDS / 2];
}

static void table(const char *place, int client_cpu, int server_cpu)
{
    static struct figures all[N_KINDS][ROUNDS][N_SIZES];
    pin(client_cpu);
    for (int r = 0; r < ROUNDS; r++) {
        for (int k = 0; k < N_KINDS; k++) {
            struct server server = start_server(k, server_cpu);
            (kinds[k].raw ? measure_raw : measure)(k, server, all[k][r]);
            end_server(server);
        }
    }
    for (int k = 0; k < N_KINDS; k++) {
        printf("%-6s %-11s", place, kinds[k].name);
        for (int s = 0; s < N_SIZES; s++) {
            double p50[ROUNDS], ratio[ROUNDS];
            for (int r = 0; r < ROUNDS; r++) {
                p50[r] = all[k][r][s].p50_us;
                ratio[r] = p50[r] / all[RAW_TCP][r][s].p50_us;
            }
            printf(" %9.1f %5.2f", median(p50), median(ratio));
        }
        printf(" %8.2f %7.2f\n", all[k][0][0].switches, all[k][0][0].batches);
    }
}

/* For the count of instructions: so many round trips of 64 bytes, over TCP. */
static int count_instructions(long rounds)
{
    struct server server = start_server(TCP, -1);
    struct client client = client_start(TCP, server);
    for (long i = 0; i < rounds; i++)
        round_trip(client.conn, sizes[0]);
    client_stop(client);
    end_server(server);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], "serve") == 0)
        return serve((enum kind)atoi(argv[2]), atoi(argv[3]), argv[4]);
    if (argc == 3)
        return count_instructions(strtol(argv[2], NULL, 10));
    if (argc == 2)
        seconds = atof(argv[1]);
    printf(
        "p50 of a round trip in us, and times raw tcp; switches and batches of the client at 64 B\n"
        "%-18s %15s %15s %15s %8s %7s\n",
        "", "64 B", "64 KiB", "1 MiB", "switches", "batches");
    table("same", 0, 0);
    if (sysconf(_SC_NPROCESSORS_ONLN) > 1)
        table("split", 0, 1);
    double instructions = bench_instructions(argv[0], "round-trip", 1000);
    if (instructions > 0)
        printf("instructions of the client per round trip of 64 B: %.0f\n", instructions);
    return 0;
}
