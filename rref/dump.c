/* Prints the references and objects of this worker, as text or JSON. */
#include <stdio.h>

#include "base/alloc.h"
#include "base/text.h"
#include "rref/context.h"

struct tether_rref_counts tether_rref_counts(tether_agent *agent)
{
    struct tether__refs *refs = tether__refs_of(agent);
    struct tether_rref_counts counts = {0};
    if (!tether__agent_visit(agent))
        return counts;
    pthread_mutex_lock(&refs->mu);
    counts.owners = tether__map_count(&refs->owners);
    counts.forks = refs->n_forks;
    counts.pending_owners = refs->n_waiting;
    counts.pending_users = refs->n_pending;
    counts.confirmed_users = refs->n_confirmed;
    counts.pending_children = tether__map_count(&refs->children);
    counts.broken_users = refs->n_broken;
    counts.pending_futures = atomic_load_explicit(&refs->n_under_way, memory_order_relaxed);
    pthread_mutex_unlock(&refs->mu);
    tether__agent_end_visit(agent);
    return counts;
}

/* The output buffer. After the first failure nothing more is written, because a text with a gap is
 * not valid JSON. */
struct printer {
    tether_buf text;
    bool json, first;
    tether_status status;
};

#define SLICE 64           /* about how many references are copied while the lock is held once */
#define MOST_LINES 512     /* most lines of a slice: far more than hashing ever puts into one */
#define MOST_HOLDERS 64    /* how many holders of one object are named */
#define SLICE_HOLDERS 1024 /* how many holders of all objects of a slice are named */

#define PRINT(printer, ...)                                                       \
    do {                                                                          \
        if ((printer)->status == TETHER_OK)                                       \
            (printer)->status = tether_buf_printf(&(printer)->text, __VA_ARGS__); \
    } while (0)

static void print_id(struct printer *out, tether_rref_id id)
{
    PRINT(out, "%u.%u.%llu", id.creator, id.incarnation, (unsigned long long)id.counter);
}

/* Prints text received from a peer, escaped: as a JSON string, or without quotes. */
static void print_text(struct printer *out, const char *text)
{
    if (out->json)
        PRINT(out, "\"");
    if (out->status == TETHER_OK)
        out->status = tether__text_print(&out->text, tether_bytes_str(text),
                                         out->json ? TETHER__TEXT_JSON : TETHER__TEXT_LINE);
    if (out->json)
        PRINT(out, "\"");
}

/* The printed fields of one reference, copied under the lock. */
struct line {
    tether_rref_id id;
    const char *type, *site; /* retained; NULL: not known */
    bool site_is_name;
    const char *state;
    struct tether__peer *owner;          /* the owner of a user's reference; retained */
    struct tether__peer *const *holders; /* workers that hold the object of an owner entry */
    size_t n_holders, n_forks;
};

/* The lines of one slice, copied under the lock. Copying takes a hundredth of the time of
 * printing, so other threads hardly wait for the lock. */
struct slice {
    struct line lines[MOST_LINES];
    size_t n_lines;
    struct tether__peer *holders[SLICE_HOLDERS]; /* retained */
    size_t n_holders;
};

static struct line *add_line_locked(struct slice *slice, const tether_rref *rref)
{
    if (slice->n_lines == MOST_LINES)
        return NULL;
    struct line *line = &slice->lines[slice->n_lines++];
    *line = (struct line){
        .id = rref->id,
        .type = tether__name_retain_locked(rref->type),
        .site = rref->site,
        .site_is_name = rref->site_is_name,
    };
    tether__name_retain_locked(rref->site_is_name ? rref->site : NULL);
    return line;
}

static void copy_owner_locked(void *key, void *userdata)
{
    tether_rref *rref = tether__container_of((tether_rref_id *)key, struct tether_rref, id);
    struct slice *slice = userdata;
    struct line *line = add_line_locked(slice, rref);
    if (!line)
        return;
    line->state = rref->owner.making                  ? "being made"
                  : rref->state == TETHER_RREF_BROKEN ? "failed"
                                                      : "ready";
    line->holders = slice->holders + slice->n_holders;
    line->n_forks = rref->owner.n_forks;
    for (struct tether__fork *fork = NULL;
         line->n_holders < MOST_HOLDERS && slice->n_holders < SLICE_HOLDERS &&
         (fork = tether__fork_next_locked(rref, fork));
         line->n_holders++)
        slice->holders[slice->n_holders++] = tether__peer_retain(fork->holder.peer);
}

static void copy_user_locked(void *key, void *userdata)
{
    tether_rref *rref = tether__container_of((tether_rref_id *)key, struct tether_rref, user.fork);
    struct line *line = add_line_locked(userdata, rref);
    if (!line)
        return;
    line->owner = tether__peer_retain(rref->user.owner.peer);
    line->state = tether_rref_state_name(tether__rref_state_locked(rref));
}

static void slice_reset_locked(struct tether__refs *refs, struct slice *slice)
{
    for (size_t i = 0; i < slice->n_lines; i++) {
        tether__name_put_locked(refs, slice->lines[i].type);
        tether__name_put_locked(refs, slice->lines[i].site_is_name ? slice->lines[i].site : NULL);
        if (slice->lines[i].owner)
            tether__peer_release(slice->lines[i].owner);
    }
    for (size_t i = 0; i < slice->n_holders; i++)
        tether__peer_release(slice->holders[i]);
    slice->n_lines = slice->n_holders = 0;
}

static void print_holders(struct printer *out, const struct line *line)
{
    PRINT(out, out->json ? ",\"holders\":[" : "  held by:");
    for (size_t i = 0; i < line->n_holders; i++) {
        PRINT(out, "%s", out->json ? (i ? "," : "") : " ");
        print_text(out, line->holders[i]->name);
    }
    PRINT(out, "%s", out->json ? "]" : "");
    if (line->n_forks > line->n_holders)
        PRINT(out, out->json ? ",\"more_holders\":%zu" : " and %zu more",
              line->n_forks - line->n_holders);
}

static void print_line(struct printer *out, const struct line *line)
{
    PRINT(out, "%s", out->json && !out->first ? "," : "");
    PRINT(out, out->json ? "{\"id\":\"" : line->owner ? "  user   " : "  owner  ");
    print_id(out, line->id);
    if (line->owner) {
        PRINT(out, out->json ? "\",\"owner\":" : "  of ");
        print_text(out, tether__peer_name(line->owner));
    } else {
        PRINT(out, out->json ? "\",\"type\":" : "  ");
        print_text(out, line->type ? line->type : "bytes");
    }
    PRINT(out, out->json ? ",\"state\":\"%s\",\"site\":" : "  %s  ", line->state);
    print_text(out, line->site ? line->site : "");
    if (!line->owner)
        print_holders(out, line);
    PRINT(out, out->json ? "}" : "\n");
    out->first = false;
}

/* Prints a table in slices, and releases the lock between them. */
static void print_table(struct tether__refs *refs,
                        const struct tether__map *table,
                        void (*copy_locked)(void *key, void *userdata),
                        struct printer *out)
{
    unsigned long cursor = 0;
    struct slice *slice = tether__malloc(sizeof *slice);
    if (!slice) {
        out->status = TETHER_ENOMEM;
        return;
    }
    slice->n_lines = slice->n_holders = 0;
    out->first = true;
    for (bool more = true; more && out->status == TETHER_OK;) {
        pthread_mutex_lock(&refs->mu);
        slice_reset_locked(refs, slice);
        more = tether__map_scan(table, &cursor, SLICE, copy_locked, slice);
        pthread_mutex_unlock(&refs->mu);
        for (size_t i = 0; i < slice->n_lines; i++)
            print_line(out, &slice->lines[i]);
    }
    pthread_mutex_lock(&refs->mu);
    slice_reset_locked(refs, slice);
    pthread_mutex_unlock(&refs->mu);
    tether__free(slice);
}

tether_status tether_rref_dump(tether_agent *agent, bool json, tether_buf *ret_text)
{
    struct tether__refs *refs = tether__refs_of(agent);
    struct printer out = {.text = TETHER_BUF_INIT, .json = json, .status = TETHER_OK};
    if (!tether__agent_visit(agent))
        return TETHER_ESHUTDOWN;
    PRINT(&out, json ? "{\"worker\":\"%s\",\"owners\":[" : "worker %s\n", tether_agent_name(agent));
    print_table(refs, &refs->owners, copy_owner_locked, &out);
    PRINT(&out, json ? "],\"users\":[" : "%s", "");
    print_table(refs, &refs->users, copy_user_locked, &out);
    PRINT(&out, json ? "]}" : "%s", "");
    tether__agent_end_visit(agent);
    if (out.status != TETHER_OK) {
        tether_buf_fini(&out.text);
        return out.status;
    }
    tether_buf_fini(ret_text);
    *ret_text = out.text;
    return TETHER_OK;
}
