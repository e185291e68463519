/* What this worker knows of references, for people and for programs. */
#include <stdio.h>

#include "base/text.h"
#include "rref/context.h"

struct tether_rref_counts tether_rref_counts(tether_agent *agent)
{
    struct tether__refs *refs = tether__refs_of(agent);
    struct tether_rref_counts counts = {0};
    if (!tether__call_gate_enter(&agent->visits))
        return counts;
    pthread_mutex_lock(&refs->mu);
    counts.owners = tether__map_count(&refs->owners);
    counts.forks = refs->n_forks;
    counts.pending_owners = refs->n_parked;
    counts.pending_users = refs->n_pending;
    counts.confirmed_users = refs->n_confirmed;
    counts.pending_children = tether__map_count(&refs->children);
    counts.broken_users = refs->n_broken;
    pthread_mutex_unlock(&refs->mu);
    tether__call_gate_leave(&agent->visits);
    return counts;
}

/* Where the text goes. The first failure stands: a text with a hole is no JSON. */
struct printer {
    tether_buf text;
    bool json, first;
    tether_status status;
};

#define SLICE 256        /* references that are printed while the lock is held once */
#define MOST_HOLDERS 256 /* of one object that are named */

#define PRINT(printer, ...)                                                       \
    do {                                                                          \
        if ((printer)->status == TETHER_OK)                                       \
            (printer)->status = tether_buf_printf(&(printer)->text, __VA_ARGS__); \
    } while (0)

static void print_id(struct printer *out, tether_rref_id id)
{
    PRINT(out, "%u.%u.%llu", id.creator, id.incarnation, (unsigned long long)id.counter);
}

/* Text of a peer, as a JSON string or as it is, escaped. */
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

static const char *type_of(const tether_rref *rref)
{
    return rref->type ? rref->type : "bytes";
}

static const char *site_of(const tether_rref *rref)
{
    return rref->site ? rref->site : "";
}

static void print_holders_locked(struct printer *out, tether_rref *rref)
{
    size_t n = 0;
    PRINT(out, out->json ? ",\"holders\":[" : "  held by:");
    for (struct tether__fork *fork = NULL;
         n < MOST_HOLDERS && (fork = tether__fork_next_locked(rref, fork)); n++) {
        PRINT(out, "%s", out->json ? (n ? "," : "") : " ");
        print_text(out, fork->holder.peer->name);
    }
    PRINT(out, "%s", out->json ? "]" : "");
    if (rref->owner.n_forks > n)
        PRINT(out, out->json ? ",\"more_holders\":%zu" : " and %zu more", rref->owner.n_forks - n);
}

static void print_owner_locked(void *key, void *userdata)
{
    tether_rref *rref = tether__container_of((tether_rref_id *)key, struct tether_rref, id);
    struct printer *out = userdata;
    const char *state = rref->owner.making                  ? "being made"
                        : rref->state == TETHER_RREF_BROKEN ? "failed"
                                                            : "ready";
    PRINT(out, out->json ? "%s{\"id\":\"" : "%s  owner  ", out->json && !out->first ? "," : "");
    print_id(out, rref->id);
    PRINT(out, out->json ? "\",\"type\":" : "  ");
    print_text(out, type_of(rref));
    PRINT(out, out->json ? ",\"state\":\"%s\",\"site\":" : "  %s  ", state);
    print_text(out, site_of(rref));
    print_holders_locked(out, rref);
    PRINT(out, out->json ? "}" : "\n");
    out->first = false;
}

static void print_user_locked(void *key, void *userdata)
{
    tether_rref *rref = tether__container_of((tether_rref_id *)key, struct tether_rref, user.fork);
    struct printer *out = userdata;
    PRINT(out, out->json ? "%s{\"id\":\"" : "%s  user   ", out->json && !out->first ? "," : "");
    print_id(out, rref->id);
    PRINT(out, out->json ? "\",\"owner\":" : "  of ");
    print_text(out, rref->user.owner.peer->name);
    PRINT(out, out->json ? ",\"state\":\"%s\",\"site\":" : "  %s  ",
          tether_rref_state_name(tether__rref_state_locked(rref)));
    print_text(out, site_of(rref));
    PRINT(out, out->json ? "}" : "\n");
    out->first = false;
}

/* Prints a table in slices, and lets others have the lock in between. */
static void print_table(struct tether__refs *refs,
                        const struct tether__map *table,
                        void (*print_locked)(void *key, void *userdata),
                        struct printer *out)
{
    unsigned long cursor = 0;
    out->first = true;
    for (bool more = true; more && out->status == TETHER_OK;) {
        pthread_mutex_lock(&refs->mu);
        more = tether__map_scan(table, &cursor, SLICE, print_locked, out);
        pthread_mutex_unlock(&refs->mu);
    }
}

tether_status tether_rref_dump(tether_agent *agent, bool json, tether_buf *ret_text)
{
    struct tether__refs *refs = tether__refs_of(agent);
    struct printer out = {.text = TETHER_BUF_INIT, .json = json, .status = TETHER_OK};
    if (!tether__call_gate_enter(&agent->visits))
        return TETHER_ESHUTDOWN;
    PRINT(&out, json ? "{\"worker\":\"%s\",\"owners\":[" : "worker %s\n", agent->name);
    print_table(refs, &refs->owners, print_owner_locked, &out);
    PRINT(&out, json ? "],\"users\":[" : "%s", "");
    print_table(refs, &refs->users, print_user_locked, &out);
    PRINT(&out, json ? "]}" : "%s", "");
    tether__call_gate_leave(&agent->visits);
    if (out.status != TETHER_OK) {
        tether_buf_fini(&out.text);
        return out.status;
    }
    tether_buf_fini(ret_text);
    *ret_text = out.text;
    return TETHER_OK;
}
