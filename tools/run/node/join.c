/* Joins: opens the store, finds the next round, and exchanges the numbers of workers. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/run/node/clock.h"
#include "tools/run/node/internal.h"
#include "tools/run/options/table.h"

#define CLOSE_MS 5000

static void on_event(void *userdata, const struct tether_rdzv_event *event)
{
    struct run_node *node = userdata;
    int64_t left =
        event->last_call_left_ms >= 0 ? event->last_call_left_ms : event->deadline_left_ms;
    pthread_mutex_lock(&node->mu);
    node->progress = (struct run_progress){
        .connected = true,
        .waiting = event->world_size > 0,
        .participants = event->participants,
        .min_nodes = event->min_nodes,
        .max_nodes = event->max_nodes,
        .until_ms = left < 0 ? -1 : run_now_ms() + left,
    };
    pthread_mutex_unlock(&node->mu);
}

/* All nodes of a job must have the same --nnodes, otherwise they would wait for different groups.
 * The first node publishes its value. */
static tether_status check_nnodes(struct run_node *node, tether_error *reterr)
{
    const struct run_options *options = node->options;
    char key[512], mine[32];
    tether_buf there = TETHER_BUF_INIT;
    bool first = false;
    if (!node->meeting.store)
        return TETHER_OK;
    snprintf(key, sizeof key, "tether.workers.%s/nnodes", options->run_id);
    snprintf(mine, sizeof mine, options->min_nodes == options->max_nodes ? "%d" : "%d:%d",
             options->min_nodes, options->max_nodes);
    tether_status st =
        tether_store_compare_set(node->meeting.store, key, tether_bytes_of(NULL, 0),
                                 tether_bytes_str(mine), RUN_CALL_MS, &first, &there, reterr);
    if (st == TETHER_OK && !first && strcmp(there.data ? there.data : "", mine) != 0)
        st = tether_error_set(reterr, TETHER_EINVAL,
                              "this node has --nnodes=%s, and the first node of job '%.60s' had "
                              "--nnodes=%.20s: start every node with the same --nnodes (or give "
                              "this job another --rdzv-id)",
                              mine, options->run_id, there.data ? there.data : "");
    tether_buf_fini(&there);
    return st;
}

static tether_status open_rdzv(struct run_node *node, tether_error *reterr)
{
    const struct run_options *options = node->options;
    tether_status st = run_meeting_open(options, &node->canceled, &node->meeting, reterr);
    if (st != TETHER_OK)
        return st;
    st = check_nnodes(node, reterr);
    if (st != TETHER_OK)
        return st;
    struct tether_rdzv_settings settings;
    tether_rdzv_settings_init(&settings);
    settings.run_id = options->run_id;
    settings.min_nodes = options->min_nodes;
    settings.max_nodes = options->max_nodes;
    settings.timeouts.join_ms = options->join_timeout_ms;
    settings.timeouts.last_call_ms = options->last_call_ms;
    settings.timeouts.close_ms = CLOSE_MS;
    settings.keep_alive_interval_ms = options->heartbeat_ms;
    settings.keep_alive_max_attempts = options->heartbeat_attempts;
    settings.local_addr = node->meeting.node_addr[0] ? node->meeting.node_addr : NULL;
    settings.rank_hint = options->node_rank;
    settings.insecure = options->insecure;
    settings.on_event = on_event;
    settings.on_event_userdata = node;
    tether_rdzv *rdzv = NULL;
    st = tether_rdzv_new(&settings, node->meeting.store, node->meeting.backend, &rdzv, reterr);
    if (st == TETHER_OK)
        atomic_store(&node->rdzv, rdzv);
    return st;
}

static void format_key(char *key, size_t size, const char *kind, int node_rank)
{
    snprintf(key, size, "%s/%d", kind, node_rank);
}

const char **run_node_keys(const struct run_node *node, const char *kind)
{
    enum { KEY_SIZE = 24 };
    int n = node->info.world_size;
    const char **keys = malloc((size_t)n * (sizeof *keys + KEY_SIZE));
    char *text = keys ? (char *)(keys + n) : NULL;
    for (int i = 0; text && i < n; i++, text += KEY_SIZE) {
        format_key(text, KEY_SIZE, kind, i);
        keys[i] = text;
    }
    return keys;
}

tether_status run_node_announce(struct run_node *node,
                                const char *kind,
                                const char *value,
                                tether_error *reterr)
{
    char key[24];
    format_key(key, sizeof key, kind, node->info.rank);
    return tether_store_set(node->info.store, key, tether_bytes_str(value), RUN_CALL_MS, reterr);
}

/* Adds up the numbers of workers. The ranks of this node follow those of the nodes before it. */
static tether_status read_hellos(struct run_node *node,
                                 const tether_buf *hellos,
                                 tether_error *reterr)
{
    struct run_round *round = &node->round;
    *round = (struct run_round){
        .number = node->info.round,
        .node_rank = node->info.rank,
        .node_count = node->info.world_size,
        .master_port = node->info.master_port,
        .use_agent_store = tether_rdzv_use_agent_store(node->rdzv),
    };
    snprintf(round->master_addr, sizeof round->master_addr, "%s", node->info.master_addr);
    snprintf(round->store_prefix, sizeof round->store_prefix, "tether.workers.%s.%" PRIu64,
             node->options->run_id, round->number);
    for (int i = 0; i < round->node_count; i++) {
        int nproc = 0, restarts = 0;
        if (!hellos[i].data || sscanf(hellos[i].data, "%d %d", &nproc, &restarts) != 2 ||
            nproc < 1 || nproc > RUN_MAX_NPROC || restarts < 0)
            return tether_error_set(
                reterr, TETHER_ECORRUPT,
                "the key of node %d has the value '%.40s': another program uses this "
                "--rdzv-id, or another version of tether-run",
                i, hellos[i].data ? hellos[i].data : "");
        round->world_size += nproc;
        if (i < round->node_rank)
            round->first_rank += nproc;
        if (restarts > round->restarts)
            round->restarts = restarts;
    }
    return TETHER_OK;
}

/* Publishes the hello of this node and reads those of all others. TETHER_ECANCELED; TETHER_EFENCED:
 * the round has lost a node, join again. */
static tether_status exchange_hellos(struct run_node *node, tether_error *reterr)
{
    int n = node->info.world_size;
    char hello[32];
    snprintf(hello, sizeof hello, "%d %d", node->options->nproc, node->restarts);
    const char **keys = run_node_keys(node, "hello");
    tether_buf *hellos = calloc((size_t)n, sizeof *hellos);
    tether_status st =
        keys && hellos
            ? run_node_announce(node, "hello", hello, reterr)
            : tether_error_set(reterr, TETHER_ENOMEM, "out of memory for a group of %d nodes", n);
    int64_t deadline = run_now_ms() + node->options->join_timeout_ms;
    while (st == TETHER_OK) {
        struct tether_rdzv_members members;
        st =
            tether_store_multi_get(node->info.store, keys, (size_t)n, RUN_SLICE_MS, hellos, reterr);
        if (st != TETHER_ETIMEOUT) {
            if (st == TETHER_OK)
                st = read_hellos(node, hellos, reterr);
            break;
        }
        st = tether_rdzv_members(node->rdzv, &members, reterr);
        if (st == TETHER_OK && members.changed)
            st = TETHER_EFENCED;
        else if (st == TETHER_OK && run_now_ms() >= deadline)
            st = tether_error_set(
                reterr, TETHER_ETIMEOUT,
                "a node has joined the round and has not published the number of its workers");
        if (atomic_load(&node->canceled))
            st = tether_error_set(reterr, TETHER_ECANCELED, "canceled");
    }
    for (int i = 0; hellos && i < n; i++)
        tether_buf_fini(&hellos[i]);
    free(hellos);
    free(keys);
    return st;
}

tether_status run_node_join(struct run_node *node, int restarts, tether_error *reterr)
{
    node->restarts = restarts;
    node->silent_since_ms = 0;
    tether_status st = atomic_load(&node->rdzv) ? TETHER_OK : open_rdzv(node, reterr);
    while (st == TETHER_OK) {
        tether_rdzv_info_fini(&node->info);
        memset(&node->info, 0, sizeof node->info);
        if (atomic_load(&node->canceled))
            return tether_error_set(reterr, TETHER_ECANCELED, "canceled");
        st = tether_rdzv_next(node->rdzv, &node->info, reterr);
        if (st == TETHER_ETIMEOUT)
            return tether_error_set(reterr, st,
                                    "too few nodes within %d s: start the others with the same "
                                    "--rdzv-endpoint and --rdzv-id, or raise --join-timeout",
                                    node->options->join_timeout_ms / 1000);
        /* The library's message names an option of its own, so replace it. (EPERM may also come
         * from etcd.) */
        if (st == TETHER_EPERM && strstr(reterr->message, "beyond loopback"))
            return tether_error_set(
                reterr, st,
                "the store of the workers at %.100s would be beyond loopback, "
                "and anyone who can connect could read and change it: give "
                "--insecure if you trust the network",
                node->meeting.node_addr[0] ? node->meeting.node_addr : "this host");
        if (st == TETHER_OK)
            st = exchange_hellos(node, reterr);
        if (st == TETHER_OK)
            break;
        if (st == TETHER_EFENCED)
            st = TETHER_OK;
    }
    node->round_began_ms = run_now_ms();
    return st;
}
