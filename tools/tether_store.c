/* tether-store: the store server as a process of its own. See `tether-store --help`. */
#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "base/log.h"
#include "rendezvous/store_tcp.h"

#define DEFAULT_STATS_S 10
/* descriptors for other uses: listeners, the loop, standard streams, and those that the shell
 * has left open */
#define OTHER_DESCRIPTORS 64

static const char help[] =
    "usage: tether-store [options]\n"
    "       tether-store --drop-job=ID [--listen=HOST:PORT | --unix=PATH]\n"
    "\n"
    "The shared key-value store of a group, as a process of its own: it outlives its users, and\n"
    "none of them has to be the host. Tether workers reach it at tcp://HOST:PORT. For workers of\n"
    "PyTorch (1.13 and later) it is a TCPStore. Keys are in memory only.\n"
    "\n"
    "  --listen=HOST:PORT   where to listen; default 127.0.0.1:29500. PORT 0 picks a free one, an\n"
    "                       IPv6 address goes in brackets: [::1]:29500. A name is bound to at\n"
    "                       every address that it has here.\n"
    "  --unix=PATH          listen at a unix socket, open to this user only; in place of TCP\n"
    "                       unless --listen is given too\n"
    "  --insecure           allow --listen beyond loopback. There is no password and no "
    "encryption:\n"
    "                       every client that can connect can read and write all keys.\n"
    "  --max-clients=N      serve at most N at once; default: as many as there are descriptors\n"
    "                       (ulimit -n). At the limit a new client takes the place of the oldest\n"
    "                       one that has made no request; if there is none, it is refused.\n"
    "  --max-value=BYTES    longest value; K, M or G may follow the number; default 64M.\n"
    "                       (PyTorch's clients send up to 8M.)\n"
    "  --max-buffered=BYTES most memory for unfinished requests and unread replies; default 1G\n"
    "  --max-kept=BYTES     most memory for values and queues; default 4G. A change beyond it is\n"
    "                       refused.\n"
    "  --stall-timeout=S    drop clients that have read none of their replies for S seconds;\n"
    "                       default 30\n"
    "  --legacy=l0|l1       the version of PyTorch clients before 2.2 when their first bytes\n"
    "                       don't show it: 1.13 and 2.0 (l0, the default), or 2.1\n"
    "  --stats[=S]          print a line of figures every S seconds (default 10), and at the end\n"
    "  --drop-job=ID        don't serve: connect to the store that listens there, delete all keys\n"
    "                       of the job ID (--rdzv-id of tether-run or torchrun), and print how\n"
    "                       many. A finished job leaves its result there for nodes that come\n"
    "                       late. Once it is deleted, ID can be used again.\n"
    "  --help, --version\n"
    "\n"
    "When it is ready it prints one line with its actual port:\n"
    "\n"
    "    tether-store ready: port 29500\n"
    "    tether-store ready: port 29500, unix /run/user/1000/store\n"
    "\n"
    "SIGTERM and SIGINT stop it (exit code 0); SIGUSR1 prints the figures. Exit code 1: it could\n"
    "not listen, or the job's keys could not be deleted; 2: the options are wrong.\n";

struct options {
    struct tether_store_server_opts server;
    char host[256];
    bool listens; /* --listen was given */
    int stats_s;  /* seconds between two prints of figures; 0: none are printed */
    const char *drop_job;
};

_Noreturn static void misuse(const char *option, const char *value, const char *expected)
{
    fprintf(stderr, "tether-store: %s needs %s, not '%s'; see tether-store --help\n", option,
            expected, value);
    exit(2);
}

static long number(const char *option, const char *text, long least, long most)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || end == text || *end || value < least || value > most) {
        char expected[64];
        snprintf(expected, sizeof expected, "a number from %ld to %ld", least, most);
        misuse(option, text, expected);
    }
    return value;
}

/* Parses a number of bytes with an optional K, M or G ("64M"). */
static size_t bytes(const char *option, const char *text)
{
    static const char units[] = "KMG";
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    const char *unit = *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
    int shift = unit ? (int)(unit - units + 1) * 10 : 0;
    if (errno || end == text || *text == '-' || (*end && (!unit || end[1])) || value == 0 ||
        value > (SIZE_MAX >> shift))
        misuse(option, text, "a number of bytes such as 64M");
    return (size_t)value << shift;
}

/* Stores the address of --listen, as "host:port", "[host]:port" or "host". */
static void listen_at(struct options *options, const char *text)
{
    const char *colon = strrchr(text, ':');
    size_t len = colon ? (size_t)(colon - text) : strlen(text);
    bool bracketed = *text == '[';
    if (bracketed && (!colon || colon[-1] != ']')) {
        colon = NULL;
        len = strlen(text);
    }
    if (len == 0 || len >= sizeof options->host || (bracketed && text[len - 1] != ']') ||
        (!bracketed && memchr(text, ':', len)))
        misuse("--listen", text, "HOST:PORT (an IPv6 address in brackets)");
    memcpy(options->host, text, len);
    options->host[len] = '\0';
    options->listens = true;
    if (colon)
        options->server.port = (int)number("--listen", colon + 1, 0, 65535);
}

static void parse(int argc, char **argv, struct options *options)
{
    static const struct option known[] = {{"listen", required_argument, NULL, 'l'},
                                          {"unix", required_argument, NULL, 'u'},
                                          {"insecure", no_argument, NULL, 'i'},
                                          {"max-clients", required_argument, NULL, 'c'},
                                          {"max-value", required_argument, NULL, 'v'},
                                          {"max-buffered", required_argument, NULL, 'b'},
                                          {"max-kept", required_argument, NULL, 'k'},
                                          {"stall-timeout", required_argument, NULL, 't'},
                                          {"legacy", required_argument, NULL, 'g'},
                                          {"stats", optional_argument, NULL, 's'},
                                          {"drop-job", required_argument, NULL, 'd'},
                                          {"help", no_argument, NULL, 'h'},
                                          {"version", no_argument, NULL, 'V'},
                                          {0}};
    *options = (struct options){
        .server = {.size = sizeof options->server, .port = TETHER_STORE_TCP_DEFAULT_PORT}};
    struct tether_store_server_opts *server = &options->server;
    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, "", known, NULL)) >= 0;) {
        switch (c) {
            case 'l':
                listen_at(options, optarg);
                break;
            case 'u':
                server->unix_path = optarg;
                break;
            case 'i':
                server->insecure = true;
                break;
            case 'c':
                server->max_clients = (int)number("--max-clients", optarg, 1, INT32_MAX);
                break;
            case 'v':
                server->limits.max_value = bytes("--max-value", optarg);
                break;
            case 'b':
                server->limits.max_buffered = bytes("--max-buffered", optarg);
                break;
            case 'k':
                server->limits.max_kept = bytes("--max-kept", optarg);
                break;
            case 't':
                server->stall_timeout_ms =
                    (int)number("--stall-timeout", optarg, 1, INT32_MAX / 1000) * 1000;
                break;
            case 'g':
                if (strcmp(optarg, "l0") != 0 && strcmp(optarg, "l1") != 0)
                    misuse("--legacy", optarg, "l0 or l1");
                server->legacy_is_l1 = strcmp(optarg, "l1") == 0;
                break;
            case 's':
                options->stats_s =
                    optarg ? (int)number("--stats", optarg, 1, INT32_MAX) : DEFAULT_STATS_S;
                break;
            case 'd':
                if (!*optarg)
                    misuse("--drop-job", optarg, "the id of a job");
                options->drop_job = optarg;
                break;
            case 'h':
                fputs(help, stdout);
                exit(0);
            case 'V':
                puts("tether-store " TETHER_VERSION);
                exit(0);
            default:
                fprintf(stderr,
                        "tether-store: %s is unknown or has no value; see tether-store --help\n",
                        argv[optind - 1]);
                exit(2);
        }
    }
    if (optind < argc) {
        fprintf(stderr, "tether-store: unexpected argument '%s'; see tether-store --help\n",
                argv[optind]);
        exit(2);
    }
    if (options->listens || !server->unix_path)
        server->host = options->listens ? options->host : "127.0.0.1";
}

/* ---- --drop-job ----------------------------------------------------------------------------- */

#define DROP_MS 10000 /* timeout of each call of --drop */

/* Whether `key` belongs to the job `id`: "<start><id>", "<start><id>/..." or, for a round,
 * "<start><id>.<number>/...". The job "a.b" is not a part of the job "a". */
static bool is_of_job(const char *key, const char *id)
{
    static const char *const starts[] = {"tether.rendezvous.", "tether.workers.",
                                         "torch.rendezvous."};
    for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++) {
        size_t start = strlen(starts[i]), len = strlen(id);
        if (strncmp(key, starts[i], start) != 0 || strncmp(key + start, id, len) != 0)
            continue;
        const char *rest = key + start + len;
        if (*rest == '.' && isdigit((unsigned char)rest[1]))
            rest += 1 + strspn(rest + 1, "0123456789");
        return *rest == '\0' || *rest == '/';
    }
    return false;
}

static int drop_job(const struct options *options)
{
    char unix_host[512];
    snprintf(unix_host, sizeof unix_host, "unix:%s",
             options->server.unix_path ? options->server.unix_path : "");
    tether_store *store = NULL;
    tether_store_keys keys = {NULL, 0};
    tether_error error = {0};
    tether_status st = tether_store_tcp_new(
        TETHER_STORE_TCP_OPTS(.host = options->server.host ? options->server.host : unix_host,
                              .port = options->server.host ? options->server.port : 0,
                              .timeout_ms = DROP_MS),
        &store, &error);
    if (st == TETHER_OK)
        st = tether_store_list_keys(store, DROP_MS, &keys, &error);
    size_t dropped = 0;
    for (size_t i = 0; st == TETHER_OK && i < keys.count; i++) {
        bool deleted = false;
        const char *key = keys.keys[i].data;
        if (strlen(key) == keys.keys[i].len && is_of_job(key, options->drop_job))
            st = tether_store_delete(store, key, DROP_MS, &deleted, &error);
        dropped += deleted;
    }
    tether_store_keys_fini(&keys);
    tether_store_release(store);
    if (st != TETHER_OK) {
        fprintf(stderr, "tether-store: %s\n", error.message);
        return 1;
    }
    printf("tether-store: deleted %zu keys of job '%s'\n", dropped, options->drop_job);
    return 0;
}

/* ---- Serving -------------------------------------------------------------------------------- */

static void print_stats(tether_store_server *server)
{
    struct tether_store_server_stats now;
    tether_store_server_stats(server, &now);
    printf("clients %" PRIu64 ", waiting %" PRIu64 ", keys %" PRIu64 ", requests %" PRIu64
           ", in %" PRIu64 " B, out %" PRIu64 " B, buffered %" PRIu64 " B, accepted %" PRIu64
           ", refused %" PRIu64 ", malformed %" PRIu64 ", stalled %" PRIu64 ", silent %" PRIu64
           "\n",
           now.clients, now.waiting, now.keys, now.requests, now.bytes_in, now.bytes_out,
           now.buffered_bytes, now.accepted, now.refused, now.malformed, now.stalled, now.silent);
    fflush(stdout);
}

/* Raises the limit of clients. The server's own default leaves half of the descriptors to the rest
 * of its process, but this process needs only a few. */
static void allow_many_clients(struct tether_store_server_opts *server)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    rlim_t most = limit.rlim_cur < INT32_MAX ? limit.rlim_cur : INT32_MAX;
    if (server->max_clients == 0 && most > 2 * OTHER_DESCRIPTORS)
        server->max_clients = (int)(most - OTHER_DESCRIPTORS);
}

/* Waits for a signal that stops the server; prints the figures meanwhile. */
static void run(tether_store_server *server, const sigset_t *signals, int stats_s)
{
    struct timespec pause = {.tv_sec = stats_s};
    for (;;) {
        int signal = stats_s ? sigtimedwait(signals, NULL, &pause) : sigwaitinfo(signals, NULL);
        if (signal == SIGTERM || signal == SIGINT)
            return;
        if (signal == SIGUSR1 || (signal < 0 && errno == EAGAIN))
            print_stats(server);
    }
}

int main(int argc, char **argv)
{
    struct options options;
    parse(argc, argv, &options);
    /* check the log level now, so that an unknown one is reported at the start */
    tether__log_level();
    if (options.drop_job)
        return drop_job(&options);
    allow_many_clients(&options.server);

    /* Block these signals before any thread starts: sigwaitinfo() receives them. */
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGUSR1);
    sigprocmask(SIG_BLOCK, &signals, NULL);

    tether_store_server *server;
    tether_error error = {0};
    tether_status st = tether_store_server_new(&options.server, &server, &error);
    if (st == TETHER_EPERM && options.listens && !options.server.insecure) {
        /* The library's message names its own option; print the option of this program instead. */
        fprintf(stderr,
                "tether-store: --listen=%s:%d is beyond loopback, and anyone who can connect could "
                "read and change the store: give --insecure if you trust the network\n",
                options.host, options.server.port);
        return 1;
    }
    if (st != TETHER_OK) {
        fprintf(stderr, "tether-store: %s\n", error.message);
        return 1;
    }
    fputs("tether-store ready:", stdout);
    if (options.server.host)
        printf(" port %d", tether_store_server_port(server));
    if (options.server.unix_path)
        printf("%s unix %s", options.server.host ? "," : "", options.server.unix_path);
    putchar('\n');
    fflush(stdout);

    run(server, &signals, options.stats_s);
    if (options.stats_s)
        print_stats(server);
    tether_store_server_release(server);
    return 0;
}
