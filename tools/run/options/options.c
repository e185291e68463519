/* The parser of the command line, and the checks that involve several options. */
#include "tools/run/options/options.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "tools/run/options/table.h"

/* Compares names; '_' matches '-', because other launchers write options with '_'. */
static bool same_name(const char *name, const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (name[i] != (text[i] == '_' ? '-' : text[i]))
            return false;
    return name[len] == '\0';
}

static const struct run_option *find_option(const char *text, size_t len)
{
    for (const struct run_option_section *s = run_option_table; s->title; s++)
        for (const struct run_option *o = s->options; o->name; o++)
            if (same_name(o->name, text, len))
                return o;
    return NULL;
}

/* Finds the option that has the longest prefix in common with `text`; NULL when that is too
 * short. */
static const char *nearest_option(const char *text, size_t len)
{
    const char *best = NULL;
    size_t best_len = 2;
    for (const struct run_option_section *s = run_option_table; s->title; s++)
        for (const struct run_option *o = s->options; o->name; o++) {
            size_t same = 0;
            while (same < len && o->name[same] == text[same])
                same++;
            if (same > best_len) {
                best = o->name;
                best_len = same;
            }
        }
    return best;
}

static tether_status unknown_option(const char *text, size_t len, tether_error *reterr)
{
    const char *nearest = nearest_option(text, len);
    if (nearest)
        return tether_error_set(reterr, TETHER_EINVAL, "unknown option --%.*s: did you mean --%s?",
                                (int)len, text, nearest);
    return tether_error_set(reterr, TETHER_EINVAL,
                            "unknown option --%.*s: see --help, and put -- before the program",
                            (int)len, text);
}

static bool parse_whole(const char *text, const char **ret_end, long *ret_value)
{
    char *end = NULL;
    errno = 0;
    *ret_value = strtol(text, &end, 10);
    *ret_end = end;
    return isdigit((unsigned char)text[0]) && errno == 0;
}

static tether_status parse_number(const struct run_option *o,
                                  const char *text,
                                  int *ret_value,
                                  tether_error *reterr)
{
    const char *end = NULL;
    long value = 0;
    if (parse_whole(text, &end, &value) && !*end && value >= o->min && value <= o->max) {
        *ret_value = (int)value;
        return TETHER_OK;
    }
    if (o->max == INT_MAX)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "--%s=%.40s: give a whole number, %d or more", o->name, text,
                                o->min);
    return tether_error_set(reterr, TETHER_EINVAL, "--%s=%.40s: give a whole number from %d to %d",
                            o->name, text, o->min, o->max);
}

static tether_status parse_duration(const struct run_option *o,
                                    const char *text,
                                    int *ret_ms,
                                    tether_error *reterr)
{
    static const struct {
        const char *unit;
        double ms;
    } units[] = {{"", 1e3}, {"s", 1e3}, {"ms", 1}, {"m", 60e3}, {"h", 3600e3}};
    char *end = NULL;
    double value = isdigit((unsigned char)text[0]) ? strtod(text, &end) : -1;
    for (size_t i = 0; value >= 0 && i < sizeof units / sizeof units[0]; i++) {
        if (strcmp(end, units[i].unit) != 0)
            continue;
        double ms = value * units[i].ms;
        if (ms < o->min || ms > o->max)
            break;
        *ret_ms = (int)ms;
        return TETHER_OK;
    }
    return tether_error_set(reterr, TETHER_EINVAL,
                            "--%s=%.40s: give a time from %d ms to 24 h, such as 500ms, 30, 5m",
                            o->name, text, o->min);
}

static tether_status parse_choice(const struct run_option *o,
                                  const char *text,
                                  int *ret_index,
                                  tether_error *reterr)
{
    int index = 0;
    for (const char *word = o->words; word; word = strchr(word, '|'), index++) {
        word += word != o->words;
        size_t len = strcspn(word, "|");
        if (strlen(text) == len && strncmp(word, text, len) == 0) {
            *ret_index = index;
            return TETHER_OK;
        }
    }
    return tether_error_set(reterr, TETHER_EINVAL, "--%s=%.40s: give one of %s", o->name, text,
                            o->words);
}

/* Parses "4" or "1:4" into two adjacent ints. */
static tether_status parse_nodes(const struct run_option *o,
                                 const char *text,
                                 int *ret_min,
                                 int *ret_max,
                                 tether_error *reterr)
{
    const char *end = NULL;
    long min = 0, max = 0;
    bool valid = parse_whole(text, &end, &min);
    max = min;
    if (valid && *end == ':')
        valid = parse_whole(end + 1, &end, &max);
    if (!valid || *end || min < 1 || max < min || max > RUN_MAX_NODES)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "--%s=%.40s: give N or MIN:MAX with 1 <= MIN <= MAX <= %d", o->name,
                                text, RUN_MAX_NODES);
    *ret_min = (int)min;
    *ret_max = (int)max;
    return TETHER_OK;
}

static tether_status set_value(struct run_options *options,
                               const struct run_option *o,
                               const char *text,
                               tether_error *reterr)
{
    void *field = (char *)options + o->offset;
    switch (o->kind) {
        case RUN_NUMBER:
            return parse_number(o, text, field, reterr);
        case RUN_DURATION:
            return parse_duration(o, text, field, reterr);
        case RUN_CHOICE:
            return parse_choice(o, text, field, reterr);
        case RUN_NODES:
            return parse_nodes(o, text, &options->min_nodes, &options->max_nodes, reterr);
        case RUN_NPROC:
            if (strcmp(text, "auto") != 0)
                return parse_number(o, text, field, reterr);
            options->nproc = 0; /* the caller replaces it by the number of CPUs */
            return TETHER_OK;
        case RUN_TEXT:
            if (!*text)
                return tether_error_set(reterr, TETHER_EINVAL, "--%s= needs a value", o->name);
            *(const char **)field = text;
            return TETHER_OK;
        case RUN_FLAG:
            break;
    }
    return tether_error_set(reterr, TETHER_EINVAL, "--%s takes no value", o->name);
}

/* Parses the option at argv[*i] and advances *i beyond it. */
static tether_status parse_one(int argc,
                               char **argv,
                               int *i,
                               struct run_options *options,
                               tether_error *reterr)
{
    const char *name = argv[*i] + 2;
    size_t len = strcspn(name, "=");
    const struct run_option *o = find_option(name, len);
    if (!o)
        return unknown_option(name, len, reterr);
    *i += 1;
    if (o->kind == RUN_FLAG && name[len] != '=') {
        *(bool *)((char *)options + o->offset) = strncmp(o->name, "no-", 3) != 0;
        return TETHER_OK;
    }
    if (name[len] == '=')
        return set_value(options, o, name + len + 1, reterr);
    if (*i == argc || strcmp(argv[*i], "--") == 0)
        return tether_error_set(reterr, TETHER_EINVAL, "--%s needs a value: --%s=%s", o->name,
                                o->name, o->metavar ? o->metavar : o->words);
    return set_value(options, o, argv[(*i)++], reterr);
}

static tether_status check_together(const struct run_options *options, tether_error *reterr)
{
    if (options->standalone && options->endpoint)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "--standalone and --rdzv-endpoint exclude each other: drop one");
    if (options->standalone && options->max_nodes > 1)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "--standalone is one node: drop --nnodes, or give the nodes "
                                "an --rdzv-endpoint");
    if (!options->endpoint && options->max_nodes > 1)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "--nnodes above 1 needs --rdzv-endpoint=HOST:PORT, the same for "
                                "every node");
    if (!options->endpoint && options->backend != RUN_BACKEND_TCP)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "--rdzv-backend needs --rdzv-endpoint: add it");
    if (options->backend != RUN_BACKEND_TCP && options->host_store == RUN_YES)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "--rdzv-host=yes is for --rdzv-backend=tcp: drop one");
    bool any_etcd =
        options->etcd_ca || options->etcd_cert || options->etcd_key || options->etcd_user;
    if (options->backend != RUN_BACKEND_ETCD && any_etcd)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "--etcd-... options are for --rdzv-backend=etcd: add it");
    if (options->backend == RUN_BACKEND_FILE && options->endpoint[0] != '/')
        return tether_error_set(reterr, TETHER_EINVAL,
                                "--rdzv-endpoint=%.100s: with --rdzv-backend=file give an absolute "
                                "path",
                                options->endpoint);
    if (options->node_rank >= options->max_nodes)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "--node-rank=%d: with %d nodes ranks go from 0 to %d",
                                options->node_rank, options->max_nodes, options->max_nodes - 1);
    char host[256];
    int port;
    if (options->endpoint && options->backend == RUN_BACKEND_TCP)
        return run_split_endpoint(options->endpoint, 0, host, sizeof host, &port, reterr);
    return TETHER_OK;
}

tether_status run_options_parse(int argc,
                                char **argv,
                                struct run_options *ret_options,
                                tether_error *reterr)
{
    struct run_options options = run_option_defaults;
    int i = 1;
    while (i < argc && strcmp(argv[i], "--") != 0 && argv[i][0] == '-') {
        if (strcmp(argv[i], "-h") == 0) {
            options.help = true;
            i++;
            continue;
        }
        if (argv[i][1] != '-')
            return tether_error_set(reterr, TETHER_EINVAL,
                                    "unknown option %.60s: options begin with two dashes, see "
                                    "--help",
                                    argv[i]);
        tether_status st = parse_one(argc, argv, &i, &options, reterr);
        if (st != TETHER_OK)
            return st;
    }
    if (i < argc && strcmp(argv[i], "--") == 0)
        i++;
    options.command = argv + i;
    if (!options.help && !options.version) {
        tether_status st = check_together(&options, reterr);
        if (st != TETHER_OK)
            return st;
        if (i >= argc)
            return tether_error_set(reterr, TETHER_EINVAL,
                                    "no program to run: tether-run [options] -- program "
                                    "[arguments], see --help");
    }
    *ret_options = options;
    return TETHER_OK;
}

tether_status run_split_endpoint(const char *endpoint,
                                 int default_port,
                                 char *host,
                                 size_t host_size,
                                 int *ret_port,
                                 tether_error *reterr)
{
    bool bracketed = endpoint[0] == '[';
    const char *start = endpoint + bracketed;
    size_t len = strcspn(start, bracketed ? "]" : ":");
    const char *rest = start + len + (bracketed && start[len] == ']');
    long port = default_port;
    const char *end = rest;
    bool valid = len > 0 && len < host_size && (!bracketed || start[len] == ']');
    if (valid && *rest == ':')
        valid = parse_whole(rest + 1, &end, &port) && port >= 1 && port <= 65535;
    if (!valid || *end)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "--rdzv-endpoint=%.100s: give HOST:PORT with a port from 1 to "
                                "65535, an IPv6 address in brackets",
                                endpoint);
    memcpy(host, start, len);
    host[len] = '\0';
    *ret_port = (int)port;
    return TETHER_OK;
}
