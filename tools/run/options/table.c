/* The option table and the text of --help. */
#include "tools/run/options/table.h"

#include <limits.h>
#include <string.h>

#define AT(field) offsetof(struct run_options, field)

static const struct run_option group_options[] = {
    {"nnodes", RUN_NODES, AT(min_nodes), 1, RUN_MAX_NODES, NULL, "N|MIN:MAX",
     "how many nodes make a group (default 1). With MIN:MAX the group\n"
     "starts with MIN nodes once the last call is over, and forms again\n"
     "when a node joins or is lost."},
    {"nproc-per-node", RUN_NPROC, AT(nproc), 1, RUN_MAX_NPROC, NULL, "N|auto",
     "workers on this node (default 1; auto: one per CPU)"},
    {"node-rank", RUN_NUMBER, AT(node_rank), 0, RUN_MAX_NODES - 1, NULL, "N",
     "the preferred rank of this node; used if it is free"},
    {"max-restarts", RUN_NUMBER, AT(max_restarts), 0, INT_MAX, NULL, "N",
     "how often the group is restarted after a worker has failed\n"
     "(default 0). A node that joins or is lost does not count."},
    {0},
};

static const struct run_option meeting_options[] = {
    {"standalone", RUN_FLAG, AT(standalone), 0, 0, NULL, NULL,
     "this machine alone; nothing else is needed. The default when\n"
     "there is one node and no --rdzv-endpoint."},
    {"rdzv-backend", RUN_CHOICE, AT(backend), 0, 0, "tcp|file|etcd", "KIND",
     "tcp (default), file or etcd"},
    {"rdzv-endpoint", RUN_TEXT, AT(endpoint), 0, 0, NULL, "WHERE",
     "tcp: HOST:PORT (default port 29400); file: a path that every\n"
     "node can open; etcd: HOST:PORT or https://HOST:PORT, several\n"
     "with commas (default port 2379)"},
    {"rdzv-id", RUN_TEXT, AT(run_id), 0, 0, NULL, "ID",
     "the name of the job; nodes with the same name form a group\n"
     "(default: default)"},
    {"rdzv-host", RUN_CHOICE, AT(host_store), 0, 0, "auto|yes|no", "WHEN",
     "whether this node runs the TCP store at the endpoint. The group\n"
     "ends with that store. auto (default): if the host is this\n"
     "machine and no other node runs it."},
    {"node-addr", RUN_TEXT, AT(node_addr), 0, 0, NULL, "HOST",
     "the address at which the other nodes reach this one\n"
     "(default: the one that leads to the endpoint)"},
    {"etcd-ca", RUN_TEXT, AT(etcd_ca), 0, 0, NULL, "FILE",
     "etcd over TLS: the authority that signs its certificate (PEM)"},
    {"etcd-cert", RUN_TEXT, AT(etcd_cert), 0, 0, NULL, "FILE",
     "the certificate of this client, with --etcd-key=FILE"},
    {"etcd-key", RUN_TEXT, AT(etcd_key), 0, 0, NULL, "FILE", "its key"},
    {"etcd-user", RUN_TEXT, AT(etcd_user), 0, 0, NULL, "NAME",
     "log in to etcd; the password is in TETHER_ETCD_PASSWORD"},
    {"insecure", RUN_FLAG, AT(insecure), 0, 0, NULL, NULL,
     "listen beyond loopback although the store has no encryption\n"
     "and no password. Only on a network that you trust."},
    {0},
};

static const struct run_option time_options[] = {
    {"join-timeout", RUN_DURATION, AT(join_timeout_ms), 1, RUN_DAY_MS, NULL, "T",
     "how long to wait for MIN nodes (default 600)"},
    {"last-call", RUN_DURATION, AT(last_call_ms), 1, RUN_DAY_MS, NULL, "T",
     "how long to wait for more, once MIN are there (default 30)"},
    {"heartbeat", RUN_DURATION, AT(heartbeat_ms), 10, RUN_DAY_MS, NULL, "T",
     "the time between two heartbeats of a node (default 5)"},
    {"heartbeat-attempts", RUN_NUMBER, AT(heartbeat_attempts), 1, 1000, NULL, "N",
     "a node is lost when it misses so many heartbeats (default 3)"},
    {"stop-timeout", RUN_DURATION, AT(stop_timeout_ms), 0, RUN_DAY_MS, NULL, "T",
     "from SIGTERM to SIGKILL for workers that are stopped\n"
     "(default 30)"},
    {0},
};

static const struct run_option output_options[] = {
    {"log-dir", RUN_TEXT, AT(log_dir), 0, 0, NULL, "DIR",
     "also write DIR/round_N/rank_R.out and .err, without prefix"},
    {"no-prefix", RUN_FLAG, AT(prefix), 0, 0, NULL, NULL,
     "print the workers' lines without the prefix \"[rank] \""},
    {"color", RUN_CHOICE, AT(color), 0, 0, "auto|always|never", "WHEN",
     "colour the prefixes (auto, the default: on a terminal, unless\n"
     "NO_COLOR is set)"},
    {"tail", RUN_NUMBER, AT(tail_lines), 0, 1000, NULL, "N",
     "last lines of the first rank that failed to show at the end\n"
     "(default 20)"},
    {"quiet", RUN_FLAG, AT(quiet), 0, 0, NULL, NULL,
     "no progress and, when all went well, no summary"},
    {"version", RUN_FLAG, AT(version), 0, 0, NULL, NULL, "print the version"},
    {"help", RUN_FLAG, AT(help), 0, 0, NULL, NULL, "print this"},
    {0},
};

const struct run_option_section run_option_table[] = {
    {"The group", group_options},
    {"Rendezvous", meeting_options},
    {"Times (seconds, or with a unit: 500ms, 2s, 5m, 1h)", time_options},
    {"Output", output_options},
    {NULL, NULL},
};

const struct run_options run_option_defaults = {
    .min_nodes = 1,
    .max_nodes = 1,
    .nproc = 1,
    .node_rank = -1,
    .run_id = "default",
    .join_timeout_ms = 600000,
    .last_call_ms = 30000,
    .heartbeat_ms = 5000,
    .heartbeat_attempts = 3,
    .stop_timeout_ms = 30000,
    .tail_lines = 20,
    .prefix = true,
};

static void help_option(FILE *out, const struct run_option *o)
{
    char left[40];
    snprintf(left, sizeof left, "--%s%s%s", o->name, o->metavar ? "=" : "",
             o->metavar ? o->metavar : "");
    fprintf(out, "  %-26s ", left);
    for (const char *line = o->help; *line;) {
        size_t len = strcspn(line, "\n");
        fprintf(out, "%.*s\n", (int)len, line);
        line += len;
        if (*line == '\n' && *++line)
            fprintf(out, "  %-26s ", "");
    }
}

void run_options_help(FILE *out)
{
    fputs(
        "usage: tether-run [options] [--] program [arguments]\n"
        "\n"
        "Starts a group of workers on one or more nodes and supervises it: gives every worker "
        "its\n"
        "rank, prints its output, restarts the group when a worker fails, and forms it again\n"
        "when a node joins or is lost. Run the same command on every node.\n"
        "\n"
        "  tether-run --nproc-per-node=4 -- ./worker          four workers on this machine\n"
        "  tether-run --nnodes=2:4 --rdzv-endpoint=10.0.0.1:29400 --insecure \\\n"
        "             --max-restarts=3 -- ./worker            two to four machines\n",
        out);
    for (const struct run_option_section *s = run_option_table; s->title; s++) {
        fprintf(out, "\n%s:\n", s->title);
        for (const struct run_option *o = s->options; o->name; o++)
            help_option(out, o);
    }
    fputs(
        "\n"
        "Workers find in their environment:\n"
        "  RANK, WORLD_SIZE           this worker among all workers\n"
        "  LOCAL_RANK, LOCAL_WORLD_SIZE  this worker among those of its node\n"
        "  NODE_RANK, NODE_COUNT      this node among all nodes\n"
        "  MASTER_ADDR, MASTER_PORT   a running TCP store; env:// uses it\n"
        "  TETHER_USE_AGENT_STORE     1: the launcher runs that store, no worker hosts it\n"
        "  TETHER_STORE_PREFIX        the prefix of this round's keys: no round reads old keys\n"
        "  TETHER_RUN_ID              the --rdzv-id\n"
        "  TETHER_RESTART_COUNT       restarts after failures so far\n"
        "  TETHER_ROUND               how often the group has formed before, for any reason\n"
        "\n"
        "SIGTERM, SIGINT, SIGHUP and SIGQUIT end the workers (passed on, then SIGKILL after\n"
        "--stop-timeout) and this node's part in the group; a second one ends them at once.\n"
        "SIGUSR1 and SIGUSR2 are passed on. Workers do not outlive tether-run.\n"
        "\n"
        "Exit code:\n"
        "  0    every worker of the group exited with 0\n"
        "  1    a worker failed, here or on another node, and no restart was left\n"
        "  2    the command line is wrong\n"
        "  3    too few nodes came before --join-timeout\n"
        "  4    the job was closed, or over before this node joined\n"
        "  5    the store of the rendezvous could not be reached or was lost\n"
        "  6    the system refused a process, a pipe, a log file or memory\n"
        "  126, 127  the program cannot be run (126) or does not exist (127)\n"
        "  128+N  ended by signal N\n",
        out);
}
