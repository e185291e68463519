/* See echo.h. The server echoes one message at a time. The client acts like a thread that
 * waits for its reply: it polls, while another thread polls the server side, as in an agent.
 */
#include "bench/transport/echo.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "bench/lib/contestant.h"
#include "bench/lib/measure.h"
#include "rpc/transport/grpc/grpc.h"
#include "rpc/transport/socket/socket.h"

static const size_t sizes[] = {64, 64 << 10, 1 << 20};

/* ---- Transports ---- */

struct kind {
    const char *name;
    tether_status (*make)(const struct tether__transport_opts *opts,
                          struct tether__transport **ret_transport,
                          tether_error *reterr);
    bool is_unix; /* the server listens on a unix socket */
    bool is_grpc;
};

static const struct kind kinds[] = {
    {"tcp", tether__transport_grpc_new, false, true},
    {"unix", tether__transport_grpc_new, true, true},
    {"local", tether__transport_unix_new, true, false},
};

static const struct kind *find_kind(const char *name)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(kinds[i].name, name) == 0)
            return &kinds[i];
    bench_die("there is no such transport", name);
}

/* ---- A message that is never freed ---- */

static void count_nothing(struct tether__slice_owner *owner)
{
    (void)owner;
}

static struct tether__slice_owner static_owner = {count_nothing, count_nothing, 0};
static uint8_t payload[1 << 20];

/* ---- The process that echoes: `transport-server KIND ADDRESS SPIN_US CPU` ---- */

/* A message is being sent. The next one may arrive before on_sent(). */
static bool sending;
static struct tether__slice waiting;

static void send_waiting(struct tether__conn *conn)
{
    struct tether__slice message = waiting;
    waiting = TETHER__SLICE_EMPTY;
    sending = message.owner && !conn->transport->ops->send(conn, &message, 1);
}

static void on_accepted_message(struct tether__conn *conn, struct tether__slice message)
{
    waiting = tether__slice_retain(message);
    if (!sending)
        send_waiting(conn);
}

static void ignore(struct tether__conn *conn, const char *const *cert_names)
{
    (void)conn, (void)cert_names;
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
    if (conn->transport->ops->proved)
        conn->transport->ops->proved(conn);
}

static const struct tether__transport_events accepting = {.accepted = on_accepted};

static struct tether__transport *transport_new(const struct kind *kind,
                                               const char *listen,
                                               int spin_us)
{
    struct tether__transport_opts opts = {
        .listen = listen, .spin_us = spin_us, .max_message_bytes = 2 << 20, .events = &accepting};
    struct tether__transport *transport;
    tether_error error;
    if (kind->make(&opts, &transport, &error) || transport->ops->start(transport, &error)) {
        bench_die("starting the transport", error.message);
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

static void serve(const struct kind *kind, const char *listen, int spin_us, int cpu)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    bench_pin(cpu);
    struct tether__transport *transport = transport_new(kind, listen, spin_us);
    printf("%s\n", transport->address);
    fflush(stdout);
    poll_server(transport);
    exit(0);
}

static pid_t start_server(const struct kind *kind,
                          const char *listen,
                          const char *spin_us,
                          const char *cpu,
                          char address[128])
{
    int out[2];
    char *argv[] = {program_invocation_name,
                    "transport-server",
                    (char *)kind->name,
                    (char *)listen,
                    (char *)spin_us,
                    (char *)cpu,
                    NULL};
    if (pipe2(out, O_CLOEXEC) != 0)
        bench_die("a pipe", strerror(errno));
    pid_t pid = bench_spawn_self(argv, -1, out[1]);
    close(out[1]);
    FILE *lines = fdopen(out[0], "r");
    if (!lines || fscanf(lines, "%127s", address) != 1)
        bench_die("the server", "did not start");
    fclose(lines);
    return pid;
}

/* ---- The client process ---- */

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
    if (status != TETHER_ESHUTDOWN)
        bench_die("the connection", why);
    conn->transport->ops->conn_release(conn);
}

static void round_trip(struct tether__conn *conn, size_t size)
{
    const struct tether__transport_ops *ops = conn->transport->ops;
    size_t want = n_received + 1, want_sent = n_sent + 1;
    if (ops->send(conn, &(struct tether__slice){payload, size, &static_owner}, 1))
        n_sent++;
    while (n_received < want || n_sent < want_sent)
        ops->poll(conn->transport, TETHER__CLIENT, TETHER__NEVER);
}

struct client {
    const struct kind *kind;
    struct tether__transport *transport;
    struct tether__conn *conn;
    pthread_t thread; /* polls the server side, which gets no messages */
};

static struct client client_start(const struct kind *kind, const char *address, int spin_us)
{
    static const struct tether__conn_events events = {ignore, on_reply, on_sent, on_client_closed};
    struct client client = {.kind = kind};
    client.transport = transport_new(kind, kind->is_grpc ? "127.0.0.1:0" : NULL, spin_us);
    if (pthread_create(&client.thread, NULL, poll_server, client.transport))
        bench_die("starting a thread", NULL);
    client.conn = client.transport->ops->dial(client.transport, address, &events, NULL);
    for (size_t i = 0; i < 200; i++)
        round_trip(client.conn, sizes[i % 3]); /* warm up, and let windows grow */
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

/* ---- Figures ---- */

static double median_us(struct client *client, size_t size, double seconds)
{
    static struct bench_samples samples;
    bench_samples_begin(&samples, seconds);
    do {
        round_trip(client->conn, size);
    } while (bench_samples_note(&samples));
    return bench_samples_median_us(&samples);
}

static double sync_64(void *client, double seconds)
{
    return median_us(client, sizes[0], seconds);
}

static double sync_64k(void *client, double seconds)
{
    return median_us(client, sizes[1], seconds);
}

static double sync_1m(void *client, double seconds)
{
    return median_us(client, sizes[2], seconds);
}

/* Returns the increase of `count` per round trip of 64 bytes. */
static double per_trip(struct client *client, double seconds, double (*count)(struct client *))
{
    size_t n = 0;
    double before = count(client);
    for (double until = bench_now_s() + seconds; bench_now_s() < until; n++)
        round_trip(client->conn, sizes[0]);
    return (count(client) - before) / (double)n;
}

static double count_switches(struct client *client)
{
    (void)client;
    return bench_switches(getpid());
}

static double count_batches(struct client *client)
{
    return (double)atomic_load(&tether__grpc_of(client->transport)->stats.batches);
}

static double switches(void *client, double seconds)
{
    return per_trip(client, seconds, count_switches);
}

static double batches(void *client, double seconds)
{
    bool is_grpc = ((struct client *)client)->kind->is_grpc;
    return is_grpc ? per_trip(client, seconds, count_batches) : -1;
}

static const struct bench_skill skills[] = {
    {"sync_64", sync_64},   {"sync_64k", sync_64k}, {"sync_1m", sync_1m},
    {"switches", switches}, {"batches", batches},   {0},
};

/* Returns the address to listen on. The server removes its socket file at the end. */
static const char *listen_of(const struct kind *kind)
{
    static char path[64];
    snprintf(path, sizeof path, "unix:/tmp/tether-bench-%d", (int)getpid());
    return !kind->is_unix ? "127.0.0.1:0" : kind->is_grpc ? path : "unix-abstract:";
}

static void answer(const struct kind *kind,
                   const char *spin_us,
                   const char *client_cpu,
                   const char *cpu)
{
    char address[128];
    pid_t server = start_server(kind, listen_of(kind), spin_us, cpu, address);
    bench_pin(atoi(client_cpu));
    struct client client = client_start(kind, address, atoi(spin_us));
    bench_answer(skills, &client);
    client_stop(client);
    bench_end(server);
    exit(0);
}

void transport_echo_main(int argc, char **argv)
{
    if (argc == 6 && strcmp(argv[1], "transport-server") == 0)
        serve(find_kind(argv[2]), argv[3], atoi(argv[4]), atoi(argv[5]));
    if (argc == 6 && strcmp(argv[1], "contestant") == 0)
        answer(find_kind(argv[2]), argv[3], argv[4], argv[5]);
}

void transport_echo_rounds(const char *kind_name, long rounds)
{
    const struct kind *kind = find_kind(kind_name);
    char address[128];
    pid_t server = start_server(kind, listen_of(kind), "0", "-1", address);
    struct client client = client_start(kind, address, 0);
    for (long i = 0; i < rounds; i++)
        round_trip(client.conn, sizes[0]);
    client_stop(client);
    bench_end(server);
}
