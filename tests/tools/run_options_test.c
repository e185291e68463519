/* The command line of tether-run: valid options, and the one line that reports an invalid one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/cmocka.h"
#include "tools/run/options/options.h"
#include "tools/run/options/table.h"

#define ARGS_MAX 16

/* Splits `line` at blanks, in place, and parses it. */
static tether_status parse(char *line, struct run_options *ret_options, tether_error *reterr)
{
    static char *argv[ARGS_MAX];
    int argc = 0;
    argv[argc++] = "tether-run";
    for (char *rest = line, *word; (word = strsep(&rest, " "));)
        if (*word)
            argv[argc++] = word;
    argv[argc] = NULL;
    return run_options_parse(argc, argv, ret_options, reterr);
}

static void options_have_defaults_when_only_a_program_is_given(void **state)
{
    (void)state;
    struct run_options o;
    tether_error err = {0};
    char line[] = "./worker --nnodes=7 -x";
    assert_int_equal(parse(line, &o, &err), TETHER_OK);
    assert_int_equal(o.min_nodes, 1);
    assert_int_equal(o.max_nodes, 1);
    assert_int_equal(o.nproc, 1);
    assert_int_equal(o.node_rank, -1);
    assert_int_equal(o.max_restarts, 0);
    assert_null(o.endpoint);
    assert_string_equal(o.run_id, "default");
    assert_true(o.prefix);
    assert_string_equal(o.command[0], "./worker"); /* the rest is the command of the worker */
    assert_string_equal(o.command[1], "--nnodes=7");
    assert_string_equal(o.command[2], "-x");
    assert_null(o.command[3]);
}

static void every_option_has_its_field(void **state)
{
    (void)state;
    struct run_options o;
    tether_error err = {0};
    char line[] =
        "--nnodes=2:4 --nproc_per_node 3 --node-rank=1 --max-restarts=5 --rdzv-backend=tcp "
        "--rdzv-endpoint=h:1 --rdzv-id=job --rdzv-host=no --insecure -- -w";
    assert_int_equal(parse(line, &o, &err), TETHER_OK);
    assert_int_equal(o.min_nodes, 2);
    assert_int_equal(o.max_nodes, 4);
    assert_int_equal(o.nproc, 3);
    assert_int_equal(o.node_rank, 1);
    assert_int_equal(o.max_restarts, 5);
    assert_int_equal(o.backend, RUN_BACKEND_TCP);
    assert_string_equal(o.endpoint, "h:1");
    assert_string_equal(o.run_id, "job");
    assert_int_equal(o.host_store, RUN_NO);
    assert_true(o.insecure);
    assert_string_equal(o.command[0], "-w");

    char times[] =
        "--join-timeout=2m --last-call=1.5 --heartbeat=250ms --heartbeat-attempts=4 "
        "--stop-timeout=0 --log-dir=d --no-prefix --color=never --tail=3 --quiet w";
    assert_int_equal(parse(times, &o, &err), TETHER_OK);
    assert_int_equal(o.join_timeout_ms, 120000);
    assert_int_equal(o.last_call_ms, 1500);
    assert_int_equal(o.heartbeat_ms, 250);
    assert_int_equal(o.heartbeat_attempts, 4);
    assert_int_equal(o.stop_timeout_ms, 0);
    assert_string_equal(o.log_dir, "d");
    assert_false(o.prefix);
    assert_int_equal(o.color, RUN_NO);
    assert_int_equal(o.tail_lines, 3);
    assert_true(o.quiet);

    char other[] =
        "--rdzv-backend=file --rdzv-endpoint=/tmp/f --node-addr=a --nproc-per-node=auto w";
    assert_int_equal(parse(other, &o, &err), TETHER_OK);
    assert_int_equal(o.backend, RUN_BACKEND_FILE);
    assert_string_equal(o.node_addr, "a");
    assert_int_equal(o.nproc, 0);

    char etcd[] =
        "--rdzv-backend=etcd --rdzv-endpoint=https://a:1,https://b:1 --etcd-ca=A --etcd-cert=C "
        "--etcd-key=K --etcd-user=U w";
    assert_int_equal(parse(etcd, &o, &err), TETHER_OK);
    assert_string_equal(o.endpoint, "https://a:1,https://b:1");
    assert_string_equal(o.etcd_ca, "A");
    assert_string_equal(o.etcd_cert, "C");
    assert_string_equal(o.etcd_key, "K");
    assert_string_equal(o.etcd_user, "U");
}

static void help_is_accepted_when_program_is_missing(void **state)
{
    (void)state;
    struct run_options o;
    char help[] = "--help", short_help[] = "-h", version[] = "--version";
    assert_int_equal(parse(help, &o, NULL), TETHER_OK);
    assert_true(o.help);
    assert_int_equal(parse(short_help, &o, NULL), TETHER_OK);
    assert_true(o.help);
    assert_int_equal(parse(version, &o, NULL), TETHER_OK);
    assert_true(o.version);
}

static void help_names_every_option(void **state)
{
    (void)state;
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    run_options_help(out);
    fclose(out);
    for (const struct run_option_section *s = run_option_table; s->title; s++) {
        assert_non_null(strstr(text, s->title));
        for (const struct run_option *o = s->options; o->name; o++) {
            char spelled[64];
            snprintf(spelled, sizeof spelled, "--%s", o->name);
            assert_non_null(strstr(text, spelled));
        }
    }
    static const char *const set_for_workers[] = {"RANK, WORLD_SIZE",
                                                  "LOCAL_RANK, LOCAL_WORLD_SIZE",
                                                  "NODE_RANK, NODE_COUNT",
                                                  "MASTER_ADDR, MASTER_PORT",
                                                  "TETHER_USE_AGENT_STORE",
                                                  "TETHER_STORE_PREFIX",
                                                  "TETHER_RUN_ID",
                                                  "TETHER_RESTART_COUNT",
                                                  "TETHER_ROUND"};
    for (size_t i = 0; i < sizeof set_for_workers / sizeof set_for_workers[0]; i++)
        assert_non_null(strstr(text, set_for_workers[i]));
    for (char *rest = text, *line; (line = strsep(&rest, "\n"));)
        if (strlen(line) > 100)
            fail_msg("too wide for a terminal: %s", line);
    free(text);
}

static const struct bad {
    const char *line, *says;
} bad[] = {
    {"", "no program to run: tether-run [options] -- program [arguments], see --help"},
    {"--quiet --", "no program to run"},
    {"--nnode=2 w", "unknown option --nnode: did you mean --nnodes?"},
    {"--zzz w", "unknown option --zzz: see --help"},
    {"-n 2 w", "unknown option -n: options begin with two dashes"},
    {"--nnodes=0 w", "--nnodes=0: give N or MIN:MAX with 1 <= MIN <= MAX"},
    {"--nnodes=3:2 w", "--nnodes=3:2: give N or MIN:MAX"},
    {"--nnodes=2: w", "--nnodes=2:: give N or MIN:MAX"},
    {"--nnodes=1:2x w", "--nnodes=1:2x: give N or MIN:MAX"},
    {"--nnodes=-1 w", "--nnodes=-1: give N or MIN:MAX"},
    {"--nnodes", "--nnodes needs a value: --nnodes=N|MIN:MAX"},
    {"--nnodes -- w", "--nnodes needs a value"},
    {"--nproc-per-node=0 w", "--nproc-per-node=0: give a whole number from 1 to 4096"},
    {"--nproc-per-node=two w", "--nproc-per-node=two: give a whole number"},
    {"--max-restarts=-1 w", "--max-restarts=-1: give a whole number, 0 or more"},
    {"--max-restarts=99999999999999999999 w", "give a whole number, 0 or more"},
    {"--max-restarts= w", "--max-restarts=: give a whole number"},
    {"--standalone=1 w", "--standalone takes no value"},
    {"--standalone --rdzv-endpoint=h:1 w", "--standalone and --rdzv-endpoint exclude each other"},
    {"--standalone --nnodes=2 w", "--standalone is one node: drop --nnodes"},
    {"--nnodes=2 w", "--nnodes above 1 needs --rdzv-endpoint=HOST:PORT"},
    {"--rdzv-backend=zookeeper w", "--rdzv-backend=zookeeper: give one of tcp|file|etcd"},
    {"--rdzv-backend=tc w", "give one of tcp|file|etcd"},
    {"--rdzv-backend=etcd w", "--rdzv-backend needs --rdzv-endpoint: add it"},
    {"--rdzv-backend=file --rdzv-endpoint=f w", "give an absolute path"},
    {"--rdzv-backend=etcd --rdzv-endpoint=h --rdzv-host=yes w", "--rdzv-host=yes is for"},
    {"--etcd-user=me w", "--etcd-... options are for --rdzv-backend=etcd"},
    {"--rdzv-endpoint= w", "--rdzv-endpoint= needs a value"},
    {"--rdzv-endpoint=h:0 w", "--rdzv-endpoint=h:0: give HOST:PORT with a port from 1 to 65535"},
    {"--rdzv-endpoint=h:x w", "give HOST:PORT"},
    {"--rdzv-endpoint=:1 w", "give HOST:PORT"},
    {"--rdzv-endpoint=[::1 w", "give HOST:PORT"},
    {"--rdzv-endpoint=::1 w", "an IPv6 address in brackets"},
    {"--node-rank=1 w", "--node-rank=1: with 1 nodes ranks go from 0 to 0"},
    {"--join-timeout=0 w",
     "--join-timeout=0: give a time from 1 ms to 24 h, such as 500ms, 30, 5m"},
    {"--join-timeout=5d w", "give a time from"},
    {"--join-timeout=-1 w", "give a time from"},
    {"--join-timeout=25h w", "give a time from"},
    {"--join-timeout=nan w", "give a time from"},
    {"--color=blue w", "--color=blue: give one of auto|always|never"},
};

static void invalid_options_are_reported_in_one_line(void **state)
{
    (void)state;
    for (size_t i = 0; i < TETHER__ARRAY_LEN(bad); i++) {
        char line[256];
        struct run_options o = {.nproc = 77};
        tether_error err = {0};
        snprintf(line, sizeof line, "%s", bad[i].line);
        assert_int_equal(parse(line, &o, &err), TETHER_EINVAL);
        if (!strstr(err.message, bad[i].says))
            fail_msg("'%s' gives '%s', without '%s'", bad[i].line, err.message, bad[i].says);
        assert_null(strchr(err.message, '\n'));
        assert_int_equal(o.nproc, 77); /* untouched */
    }
}

static void endpoints_are_split(void **state)
{
    (void)state;
    static const struct {
        const char *text, *host;
        int port;
    } rows[] = {
        {"h", "h", 29400},
        {"h:1", "h", 1},
        {"10.0.0.1:65535", "10.0.0.1", 65535},
        {"[::1]", "::1", 29400},
        {"[fe80::1]:7", "fe80::1", 7},
    };
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        char host[64];
        int port = 0;
        assert_int_equal(run_split_endpoint(rows[i].text, 29400, host, sizeof host, &port, NULL),
                         TETHER_OK);
        assert_string_equal(host, rows[i].host);
        assert_int_equal(port, rows[i].port);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_have_defaults_when_only_a_program_is_given),
        cmocka_unit_test(every_option_has_its_field),
        cmocka_unit_test(help_is_accepted_when_program_is_missing),
        cmocka_unit_test(help_names_every_option),
        cmocka_unit_test(invalid_options_are_reported_in_one_line),
        cmocka_unit_test(endpoints_are_split),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
