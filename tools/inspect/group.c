/* Finds groups and requests the dumps of their workers. See group.h. */
#include "tools/inspect/group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every group has this key (rpc/group/directory.h). The format of its value tells it apart from a
 * key of an application. */
#define RUN "/run"
#define RUN_DIGITS 32

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool is_run(tether_store *store, const char *key, int timeout_ms, tether_buf *value)
{
    return tether_store_try_get(store, key, timeout_ms, value, NULL) == TETHER_OK &&
           value->len == RUN_DIGITS && strspn(value->data, "0123456789abcdef") == RUN_DIGITS;
}

tether_status inspect_find(tether_store *store,
                           int timeout_ms,
                           char ***ret_paths,
                           size_t *ret_n,
                           tether_error *reterr)
{
    tether_store_keys keys = {NULL, 0};
    tether_buf value = TETHER_BUF_INIT;
    tether_status st = tether_store_list_keys(store, timeout_ms, &keys, reterr);
    if (st != TETHER_OK)
        return st;
    char **paths = calloc(keys.count + 1, sizeof *paths);
    size_t n = 0;
    for (size_t i = 0; paths && i < keys.count; i++) {
        size_t len = keys.keys[i].len, tail = strlen(RUN);
        if (len > tail && strcmp(keys.keys[i].data + len - tail, RUN) == 0 &&
            is_run(store, keys.keys[i].data, timeout_ms, &value) &&
            (paths[n] = strndup(keys.keys[i].data, len - tail)))
            n++;
    }
    tether_buf_fini(&value);
    tether_store_keys_fini(&keys);
    if (!paths)
        return tether_error_set(reterr, TETHER_ENOMEM, "out of memory for a list of groups");
    qsort(paths, n, sizeof *paths, by_text);
    *ret_paths = paths;
    *ret_n = n;
    return TETHER_OK;
}

tether_status inspect_open(struct inspect_group *group,
                           tether_store *store,
                           const char *path,
                           const struct tether_agent_opts *opts,
                           tether_error *reterr)
{
    struct tether_agent_opts own = *opts;
    tether_store *below = tether_store_retain(store);
    tether_status st = TETHER_OK;
    *group = (struct inspect_group){.path = strdup(path)};
    if (!group->path) {
        st = tether_error_set(reterr, TETHER_ENOMEM, "out of memory for a group");
        goto out;
    }
    char *slash = strrchr(group->path, '/');
    group->name = slash ? slash + 1 : group->path;
    if (slash) {
        char *prefix = strndup(path, (size_t)(slash - group->path));
        tether_store_release(below);
        below = NULL;
        st = prefix ? tether_store_prefix_new(prefix, store, &below, reterr) : TETHER_ENOMEM;
        free(prefix);
    }
    own.name = own.name ? own.name : "tether-inspect";
    own.observe = true;
    own.store = below;
    own.group = group->name;
    if (st == TETHER_OK)
        st = tether_agent_new(&own, &group->agent, reterr);
    if (st == TETHER_OK)
        st = tether_agent_start(group->agent, reterr);
out:
    tether_store_release(below);
    if (st != TETHER_OK)
        inspect_close(group);
    return st;
}

static void free_workers(struct inspect_group *group)
{
    for (size_t i = 0; i < group->n_workers; i++)
        if (group->workers[i].dump)
            tether__dump__free_unpacked(group->workers[i].dump, NULL);
    free(group->workers);
    group->workers = NULL;
    group->n_workers = 0;
}

/* Waits without a timeout of its own: the call has one, and its error explains more. */
static void receive_dump(struct inspect_worker *worker, tether_future *answer)
{
    tether_value *value = NULL;
    ProtobufCMessage *message = NULL;
    if (tether_future_wait(answer, TETHER_DEFAULT_MS, &value, &worker->why) == TETHER_OK &&
        tether_value_unpack(value, &tether__dump__descriptor, &message, &worker->why) == TETHER_OK)
        worker->dump = (Tether__Dump *)message;
    tether_value_release(value);
    tether_future_release(answer);
}

/* Reads the states again after the calls, because only a call shows whether a worker can be
 * reached. */
static void update_worker_states(struct inspect_group *group)
{
    for (size_t i = 0; i < group->n_workers; i++) {
        tether_worker now, *info = &group->workers[i].info;
        if (tether_agent_worker(group->agent, info->name, &now, NULL) == TETHER_OK &&
            now.incarnation == info->incarnation)
            info->state = now.state;
    }
}

tether_status inspect_look(struct inspect_group *group, int timeout_ms, tether_error *reterr)
{
    tether_worker *all = NULL;
    size_t n = 0;
    free_workers(group);
    tether_status st = tether_agent_workers(group->agent, &all, &n, reterr);
    if (st != TETHER_OK)
        return st;
    tether_future **answers = calloc(n + 1, sizeof *answers);
    group->workers = calloc(n + 1, sizeof *group->workers);
    if (!answers || !group->workers) {
        free(answers);
        tether_workers_free(all);
        return tether_error_set(reterr, TETHER_ENOMEM, "out of memory for %zu workers", n);
    }
    for (size_t i = 0; i < n; i++) {
        size_t at = group->n_workers++;
        group->workers[at].info = all[i];
        answers[at] = tether_rpc_async(group->agent, all[i].name, "tether.dump", NULL, timeout_ms);
    }
    for (size_t i = 0; i < group->n_workers; i++)
        receive_dump(&group->workers[i], answers[i]);
    update_worker_states(group);
    free(answers);
    tether_workers_free(all);
    return TETHER_OK;
}

void inspect_close(struct inspect_group *group)
{
    free_workers(group);
    if (group->agent)
        tether_agent_shutdown(group->agent, true, NULL);
    tether_agent_release(group->agent);
    free(group->path);
    *group = (struct inspect_group){0};
}

const Tether__DumpOwner *inspect_object(const struct inspect_group *group,
                                        const char *owner,
                                        const char *id)
{
    for (size_t i = 0; i < group->n_workers; i++) {
        const Tether__Dump *dump = group->workers[i].dump;
        if (!dump || strcmp(dump->worker, owner) != 0)
            continue;
        for (size_t j = 0; j < dump->n_owner; j++)
            if (strcmp(dump->owner[j]->id, id) == 0)
                return dump->owner[j];
    }
    return NULL;
}
