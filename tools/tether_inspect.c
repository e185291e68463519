/* tether-inspect: shows the objects of a running group and their holders. See `tether-inspect
 * --help`. */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/secret.h"
#include "rendezvous/store_tcp.h"
#include "tools/inspect/print.h"

#define MAX_TOKEN 65536

static const char help[] =
    "usage: tether-inspect [options]\n"
    "\n"
    "Shows the groups of a store: their workers, the objects of each worker, and the holders of\n"
    "references to them. It asks the workers themselves and changes nothing.\n"
    "\n"
    "  --store=HOST:PORT  the store of the group; default 127.0.0.1:29500.\n"
    "                     unix:/PATH is a store at a unix socket.\n"
    "  --group=NAME       only this group: its name, or its whole path in the store\n"
    "  --tree             objects below their owners, with their holders\n"
    "  --json, --dot      output for programs, or for Graphviz (| dot -Tsvg > graph.svg)\n"
    "  --watch[=S]        repeat every S seconds (default 1)\n"
    "  --timeout=MS       how long a worker has to answer; default 3000\n"
    "  --token-file=FILE  the group's token, the first line of a file that only this user may\n"
    "                     read; or in TETHER_TOKEN. Not as an option: every user of this machine\n"
    "                     can see those.\n"
    "  --tls-ca=FILE, --tls-cert=FILE, --tls-key=FILE, --name=NAME\n"
    "                     for a group with mutual TLS: NAME is in the certificate\n"
    "  --help, --version\n"
    "\n"
    "Under tether-run the store is at MASTER_ADDR:MASTER_PORT of the workers' environment; with\n"
    "--rdzv-endpoint it is there.\n"
    "\n"
    "Exit code: 0, 1 when the store or a worker did not answer, 2 when the options are wrong.\n";

struct options {
    char host[256];
    int port;
    const char *group;
    inspect_printer *print;
    int watch_s; /* seconds between two outputs; 0: print once */
    int timeout_ms;
    struct tether_agent_opts agent;
};

static volatile sig_atomic_t stopped;

static void on_signal(int signal)
{
    (void)signal;
    stopped = 1;
}

_Noreturn static void misuse(const char *option, const char *value, const char *expected)
{
    fprintf(stderr, "tether-inspect: %s needs %s, not '%s'; see tether-inspect --help\n", option,
            expected, value);
    exit(2);
}

static int number(const char *option, const char *text, long most)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || end == text || *end || value < 1 || value > most)
        misuse(option, text, "a whole number above 0");
    return (int)value;
}

static void store_at(struct options *options, const char *text)
{
    const char *colon = strrchr(text, ':');
    bool is_unix = strncmp(text, "unix:", 5) == 0;
    size_t len = is_unix ? strlen(text) : colon ? (size_t)(colon - text) : 0;
    if (len == 0 || len >= sizeof options->host)
        misuse("--store", text, "HOST:PORT or unix:/PATH");
    memcpy(options->host, text, len);
    options->host[len] = '\0';
    options->port = is_unix ? 0 : number("--store", colon + 1, 65535);
}

/* Returns the first line of a file that only this user can read. The memory is never freed. */
static const char *read_token(const char *path)
{
    char *token = tether__secret_read_private(path, MAX_TOKEN);
    if (!token && errno == EPERM) {
        fprintf(stderr,
                "tether-inspect: --token-file: other users may read '%s', or it is another user's: "
                "chmod 600\n",
                path);
        exit(2);
    }
    if (!token) {
        fprintf(stderr, "tether-inspect: --token-file: cannot read '%s': %s\n", path,
                strerror(errno));
        exit(2);
    }
    token[strcspn(token, "\r\n")] = '\0';
    return token;
}

static void parse(int argc, char **argv, struct options *options)
{
    static const struct option known[] = {
        {"store", required_argument, NULL, 's'},
        {"group", required_argument, NULL, 'g'},
        {"tree", no_argument, NULL, 'r'},
        {"json", no_argument, NULL, 'j'},
        {"dot", no_argument, NULL, 'd'},
        {"watch", optional_argument, NULL, 'w'},
        {"timeout", required_argument, NULL, 't'},
        {"token", required_argument, NULL, 'k'},
        {"token-file", required_argument, NULL, 'f'},
        {"tls-ca", required_argument, NULL, 'A'},
        {"tls-cert", required_argument, NULL, 'C'},
        {"tls-key", required_argument, NULL, 'K'},
        {"name", required_argument, NULL, 'n'},
        {"help", no_argument, NULL, 'h'},
        {"version", no_argument, NULL, 'v'},
        {0},
    };
    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;)
        switch (c) {
            case 's':
                store_at(options, optarg);
                break;
            case 'g':
                options->group = optarg;
                break;
            case 'r':
                options->print = inspect_print_tree;
                break;
            case 'j':
                options->print = inspect_print_json;
                break;
            case 'd':
                options->print = inspect_print_dot;
                break;
            case 'w':
                options->watch_s = optarg ? number("--watch", optarg, 86400) : 1;
                break;
            case 't':
                options->timeout_ms = number("--timeout", optarg, 86400000);
                break;
            case 'k':
                /* Overwrite the token in argv, where `ps` shows it. It may have been seen before.
                 */
                memset(optarg, 'x', strlen(optarg));
                fprintf(stderr,
                        "tether-inspect: --token would show the token to every user of this "
                        "machine: give --token-file=FILE, or set TETHER_TOKEN\n");
                exit(2);
            case 'f':
                options->agent.token = read_token(optarg);
                break;
            case 'A':
                options->agent.tls_ca_file = optarg;
                break;
            case 'C':
                options->agent.tls_cert_file = optarg;
                break;
            case 'K':
                options->agent.tls_key_file = optarg;
                break;
            case 'n':
                options->agent.name = optarg;
                break;
            case 'h':
                fputs(help, stdout);
                exit(0);
            case 'v':
                puts("tether-inspect " TETHER_VERSION);
                exit(0);
            default:
                fprintf(stderr,
                        "tether-inspect: %s is unknown or has no value; see tether-inspect "
                        "--help\n",
                        argv[optind - 1]);
                exit(2);
        }
    if (optind < argc) {
        fprintf(stderr, "tether-inspect: unexpected argument '%s'; see tether-inspect --help\n",
                argv[optind]);
        exit(2);
    }
}

/* ---- The groups, opened once and kept from one look to the next ---- */

struct view {
    tether_store *store;
    struct inspect_group *groups;
    size_t n;
};

static bool is_wanted(const struct options *options, const char *path)
{
    const char *slash = strrchr(path, '/');
    return !options->group || strcmp(options->group, path) == 0 ||
           strcmp(options->group, slash ? slash + 1 : path) == 0;
}

static bool is_open(const struct view *view, const char *path)
{
    for (size_t i = 0; i < view->n; i++)
        if (strcmp(view->groups[i].path, path) == 0)
            return true;
    return false;
}

static tether_status open_group(struct view *view,
                                const struct options *options,
                                const char *path,
                                tether_error *err)
{
    struct inspect_group *more = realloc(view->groups, (view->n + 1) * sizeof *more);
    if (!more)
        return tether_error_set(err, TETHER_ENOMEM, "out of memory for a group");
    view->groups = more;
    tether_status st = inspect_open(&more[view->n], view->store, path, &options->agent, err);
    view->n += st == TETHER_OK;
    return st;
}

static tether_status open_new(struct view *view, const struct options *options, tether_error *err)
{
    char **paths = NULL;
    size_t n = 0;
    tether_status st = inspect_find(view->store, options->timeout_ms, &paths, &n, err);
    for (size_t i = 0; i < n; i++) {
        if (st == TETHER_OK && is_wanted(options, paths[i]) && !is_open(view, paths[i]))
            st = open_group(view, options, paths[i], err);
        free(paths[i]);
    }
    free(paths);
    return st;
}

static tether_status look(struct view *view,
                          const struct options *options,
                          bool *ret_all_answer,
                          tether_error *err)
{
    tether_status st = open_new(view, options, err);
    *ret_all_answer = true;
    for (size_t i = 0; st == TETHER_OK && i < view->n; i++) {
        st = inspect_look(&view->groups[i], options->timeout_ms, err);
        for (size_t w = 0; w < view->groups[i].n_workers; w++)
            *ret_all_answer = *ret_all_answer && view->groups[i].workers[w].dump;
    }
    return st;
}

/* Fails with an error that lists the groups of the store. */
static tether_status no_such_group(struct view *view,
                                   const struct options *options,
                                   tether_error *err)
{
    char **paths = NULL, names[160] = "";
    size_t n = 0, shown = 0;
    tether_status st = inspect_find(view->store, options->timeout_ms, &paths, &n, err);
    for (size_t i = 0; i < n; i++) {
        size_t len = strlen(names);
        if (len + strlen(paths[i]) + 6 < sizeof names && ++shown)
            snprintf(names + len, sizeof names - len, "%s'%s'", len ? ", " : "", paths[i]);
        free(paths[i]);
    }
    free(paths);
    if (st != TETHER_OK)
        return st;
    return tether_error_set(err, TETHER_ENOTFOUND, "this store has no group '%.60s': %s%s%s",
                            options->group,
                            n ? "there is " : "it has no groups at all; check --store", names,
                            shown < n ? " and more" : "");
}

int main(int argc, char **argv)
{
    struct options options = {
        .host = "127.0.0.1",
        .port = TETHER_STORE_TCP_DEFAULT_PORT,
        .print = inspect_print_table,
        .timeout_ms = 3000,
        .agent = {.size = sizeof options.agent, .threads = 1, .token = getenv("TETHER_TOKEN")},
    };
    struct view view = {0};
    tether_error err = {0};
    bool all_answer = true;
    parse(argc, argv, &options);
    /* check the log level now, so that an unknown one is reported at the start */
    tether__log_level();
    sigaction(SIGINT, &(struct sigaction){.sa_handler = on_signal}, NULL);
    sigaction(SIGTERM, &(struct sigaction){.sa_handler = on_signal}, NULL);
    options.agent.start_timeout_ms = options.timeout_ms;
    tether_status st =
        tether_store_tcp_new(TETHER_STORE_TCP_OPTS(.host = options.host, .port = options.port,
                                                   .timeout_ms = options.timeout_ms),
                             &view.store, &err);
    while (st == TETHER_OK) {
        st = look(&view, &options, &all_answer, &err);
        if (st != TETHER_OK)
            break;
        if (options.watch_s && isatty(STDOUT_FILENO))
            fputs("\033[H\033[2J", stdout);
        if (options.group && view.n == 0 && !options.watch_s) {
            st = no_such_group(&view, &options, &err);
            break;
        }
        options.print(stdout, view.groups, view.n);
        fflush(stdout);
        if (!options.watch_s || stopped || ferror(stdout))
            break;
        /* --watch goes on until a signal ends the program */
        nanosleep(&(struct timespec){options.watch_s, 0}, NULL);
        if (stopped)
            break;
    }
    for (size_t i = 0; i < view.n; i++)
        inspect_close(&view.groups[i]);
    free(view.groups);
    tether_store_release(view.store);
    if (st != TETHER_OK)
        fprintf(stderr, "tether-inspect: %s: %s\n", tether_status_name(st), err.message);
    return st != TETHER_OK || !all_answer;
}
