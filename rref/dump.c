/* What this worker knows of references, for people and for programs. */
#include <stdio.h>

#include "rref/context.h"

struct tether_rref_counts tether_rref_counts(tether_agent *agent)
{
    struct tether__refs *refs = tether__refs_of(agent);
    struct tether_rref_counts counts = {0};
    pthread_mutex_lock(&refs->mu);
    counts.owners = tether__map_count(&refs->owners);
    counts.forks = refs->n_forks;
    TETHER__LIST_FOR_EACH(node, &refs->parked)
        counts.pending_owners++;
    counts.pending_users = refs->n_pending;
    counts.confirmed_users = refs->n_confirmed;
    counts.pending_children = tether__map_count(&refs->children);
    counts.broken_users = refs->n_broken;
    pthread_mutex_unlock(&refs->mu);
    return counts;
}

static tether_status print_id(tether_buf *out, tether_rref_id id)
{
    return tether_buf_printf(out, "%u.%u.%llu", id.creator, id.incarnation,
                             (unsigned long long)id.counter);
}

/* A string as JSON has it. */
static void print_text(tether_buf *out, const char *text, bool json)
{
    if (!json) {
        tether_buf_printf(out, "%s", text);
        return;
    }
    tether_buf_printf(out, "\"");
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            tether_buf_printf(out, "\\%c", c);
        else if (c < 0x20)
            tether_buf_printf(out, "\\u%04x", c);
        else
            tether_buf_printf(out, "%c", c);
    }
    tether_buf_printf(out, "\"");
}

static const char *type_of(const tether_rref *rref)
{
    return rref->type ? rref->type : "bytes";
}

static const char *site_of(const tether_rref *rref)
{
    return rref->site ? rref->site : "";
}

static void print_owner_locked(const tether_rref *rref, bool json, bool first, tether_buf *out)
{
    const char *state = rref->owner.making                  ? "being made"
                        : rref->state == TETHER_RREF_BROKEN ? "failed"
                                                            : "ready";
    tether_buf_printf(out, json ? "%s{\"id\":\"" : "%s  owner  ", json && !first ? "," : "");
    print_id(out, rref->id);
    tether_buf_printf(out, json ? "\",\"type\":" : "  ");
    print_text(out, type_of(rref), json);
    tether_buf_printf(out, json ? ",\"state\":\"%s\",\"site\":" : "  %s  ", state);
    print_text(out, site_of(rref), json);
    tether_buf_printf(out, json ? ",\"holders\":[" : "  held by:");
    for (uint32_t i = 0; i < rref->owner.n_forks; i++) {
        tether_buf_printf(out, "%s", json ? (i ? "," : "") : " ");
        print_text(out, rref->owner.forks[i].holder.peer->name, json);
    }
    tether_buf_printf(out, json ? "]}" : "\n");
}

static void print_user_locked(const tether_rref *rref, bool json, bool first, tether_buf *out)
{
    tether_buf_printf(out, json ? "%s{\"id\":\"" : "%s  user   ", json && !first ? "," : "");
    print_id(out, rref->id);
    tether_buf_printf(out, json ? "\",\"owner\":" : "  of ");
    print_text(out, rref->user.owner.peer->name, json);
    tether_buf_printf(out, json ? ",\"state\":\"%s\",\"site\":" : "  %s  ",
                      tether_rref_state_name((tether_rref_state)rref->state));
    print_text(out, site_of(rref), json);
    tether_buf_printf(out, json ? "}" : "\n");
}

tether_status tether_rref_dump(tether_agent *agent, bool json, tether_buf *ret_text)
{
    struct tether__refs *refs = tether__refs_of(agent);
    tether_buf out = TETHER_BUF_INIT;
    bool first = true;
    tether_buf_printf(&out, json ? "{\"worker\":\"%s\",\"owners\":[" : "worker %s\n", agent->name);
    pthread_mutex_lock(&refs->mu);
    struct tether__map_iter it = TETHER__MAP_ITER;
    for (tether_rref_id *key; (key = tether__map_next(&refs->owners, &it)); first = false)
        print_owner_locked(tether__container_of(key, struct tether_rref, id), json, first, &out);
    tether_buf_printf(&out, json ? "],\"users\":[" : "%s", "");
    first = true;
    it = (struct tether__map_iter)TETHER__MAP_ITER;
    for (tether_rref_id *key; (key = tether__map_next(&refs->users, &it)); first = false)
        print_user_locked(tether__container_of(key, struct tether_rref, user.fork), json, first,
                          &out);
    pthread_mutex_unlock(&refs->mu);
    tether_status st = tether_buf_printf(&out, json ? "]}" : "%s", "");
    if (st != TETHER_OK) { /* an earlier failure left a hole, but memory only gets scarcer */
        tether_buf_fini(&out);
        return st;
    }
    tether_buf_fini(ret_text);
    *ret_text = out;
    return TETHER_OK;
}
