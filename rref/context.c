/* The tables and their counts. See context.h. */
#include "rref/context.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "rpc/peer/outbox.h"
#include "rpc/peer/table.h"
#include "rpc/refs.h"
#include "rref/hooks.h"

static unsigned long hash_id(const void *key, unsigned long seed)
{
    return tether__hash(key, sizeof(tether_rref_id), seed);
}

static bool equal_id(const void *a, const void *b)
{
    return tether__id_equal(*(const tether_rref_id *)a, *(const tether_rref_id *)b);
}

static const struct tether__map_type by_id = {hash_id, equal_id};

static unsigned long hash_fork(const void *key, unsigned long seed)
{
    return tether__hash(key, sizeof(struct tether__fork_key), seed);
}

static bool equal_fork(const void *a, const void *b)
{
    const struct tether__fork_key *one = a, *other = b;
    return one->object == other->object && one->peer == other->peer &&
           tether__id_equal(one->id, other->id);
}

static const struct tether__map_type by_fork = {hash_fork, equal_fork};

static unsigned long hash_waiting(const void *key, unsigned long seed)
{
    return tether__hash(key, sizeof(struct tether__waiting_fork), seed);
}

static bool equal_waiting(const void *a, const void *b)
{
    const struct tether__waiting_fork *one = a, *other = b;
    return one->from == other->from && tether__id_equal(one->id, other->id);
}

static const struct tether__map_type by_waiting_fork = {hash_waiting, equal_waiting};

static bool is_due_first(const struct tether__heap_node *a, const struct tether__heap_node *b)
{
    return tether__container_of(a, const struct tether__waiting, by_deadline)->deadline <
           tether__container_of(b, const struct tether__waiting, by_deadline)->deadline;
}

/* ---- Life of the context ---- */

static void free_values(struct tether__refs *refs)
{
    struct tether__map_iter it = TETHER__MAP_ITER;
    for (uint64_t *key; refs->watermarks.type && (key = tether__map_next(&refs->watermarks, &it));)
        tether__free(tether__container_of(key, struct tether__watermark, key));
    it = (struct tether__map_iter)TETHER__MAP_ITER;
    for (tether_bytes *key; refs->names.type && (key = tether__map_next(&refs->names, &it));)
        tether__free(tether__container_of(key, struct tether__name, key));
    it = (struct tether__map_iter)TETHER__MAP_ITER;
    for (tether_rref_id *key;
         refs->children.type && (key = tether__map_next(&refs->children, &it));)
        tether__free(tether__container_of(key, struct tether__pending_child, fork));
}

void tether__refs_destroy(struct tether__refs *refs)
{
    free_values(refs);
    tether__map_fini(&refs->owners);
    tether__map_fini(&refs->users);
    tether__map_fini(&refs->children);
    tether__map_fini(&refs->watermarks);
    tether__map_fini(&refs->names);
    tether__map_fini(&refs->forks);
    tether__map_fini(&refs->awaited);
    tether__map_fini(&refs->waiting_forks);
    pthread_mutex_destroy(&refs->mu);
    tether_agent *agent = refs->agent;
    tether__free(refs);
    tether__agent_return_memory(agent);
}

struct tether__refs *tether__refs_of(tether_agent *agent)
{
    return tether__agent_refs(agent);
}

static void *attach(tether_agent *agent, tether_error *reterr)
{
    struct tether__refs *refs = tether__calloc(1, sizeof *refs);
    if (!refs) {
        tether_error_set(reterr, TETHER_ENOMEM, "no memory for an agent");
        return NULL;
    }
    refs->agent = agent;
    refs->opts = tether__agent_options(agent);
    refs->clock = tether__agent_clock(agent);
    refs->self = tether__agent_self(agent);
    tether__agent_keep_memory(agent);
    atomic_init(&refs->refs, 1);
    refs->waiting_slice = TETHER__WAITING_SLICE;
    atomic_init(&refs->next_counter, 1);
    tether__list_init(&refs->own);
    tether__list_init(&refs->fencing);
    tether__list_init(&refs->answering);
    tether__list_init(&refs->losses);
    tether__list_init(&refs->creators);
    tether__list_init(&refs->passed);
    tether__list_init(&refs->retired);
    tether__heap_init(&refs->deadlines, is_due_first);
    pthread_mutex_init(&refs->mu, NULL);
    if (tether__map_init(&refs->owners, &by_id) != TETHER_OK ||
        tether__map_init(&refs->users, &by_id) != TETHER_OK ||
        tether__map_init(&refs->children, &by_id) != TETHER_OK ||
        tether__map_init(&refs->watermarks, &tether__map_u64) != TETHER_OK ||
        tether__map_init(&refs->names, &tether__map_bytes) != TETHER_OK ||
        tether__map_init(&refs->forks, &by_fork) != TETHER_OK ||
        tether__map_init(&refs->awaited, &by_id) != TETHER_OK ||
        tether__map_init(&refs->waiting_forks, &by_waiting_fork) != TETHER_OK) {
        tether__refs_destroy(refs);
        tether_error_set(reterr, TETHER_ENOMEM, "no memory for an agent");
        return NULL;
    }
    if (tether__refs_register_dump(refs, reterr) != TETHER_OK) {
        tether__refs_destroy(refs);
        return NULL;
    }
    return refs;
}

/* Runs when the agent is released: frees the tables, but keeps entries to which the program still
 * has handles until those are released. */
static void detach(void *ext)
{
    struct tether__refs *refs = ext;
    struct tether__collected collected = {NULL};
    tether__fence_finish(refs);
    pthread_mutex_lock(&refs->mu);
    atomic_store(&refs->detached, true);
    struct tether__peer *peer; /* no thread changes the table any more */
    for (uint64_t at = 0; (peer = tether__agent_next_peer_locked(refs->agent, &at));)
        tether__ref_peer_drop_forks_locked(peer, &collected);
    pthread_mutex_unlock(&refs->mu);
    tether__refs_run_collected(refs, &collected);
    for (uint64_t at = 0; (peer = tether__agent_next_peer_locked(refs->agent, &at));)
        tether__outbox_clear(peer);
    tether__fence_finish(refs);
    pthread_mutex_lock(&refs->mu);
    for (uint64_t at = 0; (peer = tether__agent_next_peer_locked(refs->agent, &at));)
        tether__ref_peer_forget_locked(peer);
    pthread_mutex_unlock(&refs->mu);
    tether__refs_release(refs);
}

static const struct tether__ext_ops ops = {
    .attach = attach,
    .detach = detach,
    .encode_locked = tether__refs_encode_locked,
    .encode_end_locked = tether__refs_encode_end_locked,
    .check = tether__refs_check,
    .arrived = tether__refs_arrived,
    .confirm = tether__refs_confirm,
    .remote_done = tether__refs_remote_done,
    .result_type = tether__refs_result_type,
    .find_target = tether__refs_find_target,
    .frame = tether__refs_frame,
    .session_ended = tether__refs_session_ended,
    .drain = tether__refs_drain,
    .tick = tether__refs_tick,
    .forget = tether__refs_forget,
};

/* A program that uses references links this file, so this constructor makes every agent support
 * references. */
__attribute__((constructor)) static void register_extension(void)
{
    tether__ext_ops = &ops;
}

/* ---- Ids and names ---- */

tether_rref_id tether__refs_new_id(struct tether__refs *refs)
{
    return (tether_rref_id){
        .creator = refs->self->id,
        .incarnation = (uint32_t)refs->self->incarnation,
        .counter = atomic_fetch_add_explicit(&refs->next_counter, 1, memory_order_relaxed),
    };
}

const char *tether__name_get_locked(struct tether__refs *refs, const char *text)
{
    return tether__name_get_bytes_locked(refs, tether_bytes_str(text));
}

const char *tether__name_get_bytes_locked(struct tether__refs *refs, tether_bytes key)
{
    tether_bytes *found = tether__map_get(&refs->names, &key);
    if (found)
        return tether__name_retain_locked(
            tether__container_of(found, struct tether__name, key)->text);
    struct tether__name *name = tether__malloc(sizeof *name + key.len + 1);
    if (!name)
        return NULL;
    memcpy(name->text, key.data, key.len);
    name->text[key.len] = '\0';
    name->key = tether_bytes_of(name->text, key.len);
    name->refs = 1;
    if (tether__map_put(&refs->names, &name->key) == TETHER_OK)
        return name->text;
    tether__free(name);
    return NULL;
}

static struct tether__name *name_of(const char *text)
{
    return (struct tether__name *)(void *)((char *)text - offsetof(struct tether__name, text));
}

const char *tether__name_retain_locked(const char *text)
{
    if (text)
        name_of(text)->refs++;
    return text;
}

void tether__name_put_locked(struct tether__refs *refs, const char *text)
{
    if (!text || --name_of(text)->refs > 0)
        return;
    tether__map_del(&refs->names, &name_of(text)->key);
    tether__free(name_of(text));
}
