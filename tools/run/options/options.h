/* The options of the command line.
 *
 * One table (option_table.c) has the name of every option, its field in the struct, its limits and
 * its text in --help, so that they cannot contradict each other. Nothing is allocated: strings
 * point into argv.
 */
#ifndef TETHER_TOOLS_RUN_OPTIONS_OPTIONS_H
#define TETHER_TOOLS_RUN_OPTIONS_OPTIONS_H

#include <stdbool.h>
#include <stdio.h>

#include "base/status.h"

enum run_backend { RUN_BACKEND_TCP, RUN_BACKEND_FILE, RUN_BACKEND_ETCD };
enum run_choice { RUN_AUTO, RUN_YES, RUN_NO };

struct run_options {
    /* size of the group */
    int min_nodes, max_nodes;
    int nproc;
    int node_rank; /* rank that this node prefers; -1: any */
    int max_restarts;

    /* the store at which the group meets */
    enum run_backend backend;
    const char *endpoint; /* NULL: no endpoint, so this node runs alone */
    const char *run_id;
    enum run_choice host_store;
    /* address of this node for the others; NULL: the launcher finds it out */
    const char *node_addr;
    const char *etcd_ca, *etcd_cert, *etcd_key, *etcd_user;
    bool standalone;
    bool insecure;

    /* times for joining */
    int join_timeout_ms, last_call_ms;
    int heartbeat_ms, heartbeat_attempts;
    int stop_timeout_ms;

    /* output */
    const char *log_dir; /* directory for log files; NULL: none */
    enum run_choice color;
    int tail_lines;
    bool prefix;
    bool quiet;

    bool help, version;
    char **command; /* program of the workers and its arguments, NULL-terminated */
};

/* Parses the command line and does not change `argv`. On TETHER_EINVAL `reterr` has one line for
 * the user. With `help` or `version` nothing else is checked. */
tether_status run_options_parse(int argc,
                                char **argv,
                                struct run_options *ret_options,
                                tether_error *reterr);

void run_options_help(FILE *out);

/* Splits "host:port", "host" or "[::1]:port" into host (without brackets) and port. */
tether_status run_split_endpoint(const char *endpoint,
                                 int default_port,
                                 char *host,
                                 size_t host_size,
                                 int *ret_port,
                                 tether_error *reterr);

#endif
