/* Output for programs: JSON and Graphviz. Both quote strings in the same way. */
#include <string.h>

#include "tools/inspect/print.h"

static void quote(FILE *out, const char *text)
{
    fputc('"', out);
    inspect_put(out, text, TETHER__TEXT_JSON);
    fputc('"', out);
}

static void member(FILE *out, const char *name, const char *value)
{
    fprintf(out, ",\"%s\":", name);
    quote(out, value);
}

static void json_dump(FILE *out, const Tether__Dump *dump)
{
    fprintf(out, ",\"pid\":%u,\"owners\":[", dump->pid);
    for (size_t i = 0; i < dump->n_owner; i++) {
        const Tether__DumpOwner *object = dump->owner[i];
        fprintf(out, "%s{\"id\":", i ? "," : "");
        quote(out, object->id);
        member(out, "type", object->type);
        member(out, "state", object->state);
        member(out, "site", object->site);
        fprintf(out, ",\"holders\":[");
        for (size_t j = 0; j < object->n_holder; j++) {
            fprintf(out, "%s", j ? "," : "");
            quote(out, object->holder[j]);
        }
        fprintf(out, "]}");
    }
    fprintf(out, "],\"more_owners\":%llu,\"users\":[", (unsigned long long)dump->more_owners);
    for (size_t i = 0; i < dump->n_user; i++) {
        const Tether__DumpUser *user = dump->user[i];
        fprintf(out, "%s{\"id\":", i ? "," : "");
        quote(out, user->id);
        member(out, "owner", user->owner);
        member(out, "type", user->type);
        member(out, "state", user->state);
        member(out, "site", user->site);
        fprintf(out, "}");
    }
    fprintf(out, "],\"more_users\":%llu", (unsigned long long)dump->more_users);
}

void inspect_print_json(FILE *out, const struct inspect_group *groups, size_t n)
{
    fprintf(out, "{\"groups\":[");
    for (size_t i = 0; i < n; i++) {
        fprintf(out, "%s{\"path\":", i ? "," : "");
        quote(out, groups[i].path);
        fprintf(out, ",\"workers\":[");
        for (size_t w = 0; w < groups[i].n_workers; w++) {
            const struct inspect_worker *worker = &groups[i].workers[w];
            fprintf(out, "%s{\"name\":", w ? "," : "");
            quote(out, worker->info.name);
            fprintf(out, ",\"id\":%u,\"incarnation\":%llu", worker->info.id,
                    (unsigned long long)worker->info.incarnation);
            member(out, "address", worker->info.address);
            member(out, "state", tether_worker_state_name(worker->info.state));
            if (worker->dump)
                json_dump(out, worker->dump);
            else
                member(out, "error", worker->why.message);
            fprintf(out, "}");
        }
        fprintf(out, "]}");
    }
    fprintf(out, "]}\n");
}

/* Prints the identifier of a graph node, unique among all groups: "path/worker" or
 * "path/worker/object". */
static void node(FILE *out, const struct inspect_group *group, const char *worker, const char *id)
{
    char name[512];
    snprintf(name, sizeof name, "%s/%s%s%s", group->path, worker, id ? "/" : "", id ? id : "");
    quote(out, name);
}

static void dot_edge(FILE *out,
                     const struct inspect_group *group,
                     const Tether__DumpUser *user,
                     const char *holder)
{
    const char *style = strcmp(user->state, "confirmed") == 0 ? "solid" : "dashed";
    const char *color = strcmp(user->state, "broken") == 0 ? "red" : "black";
    fprintf(out, "  ");
    node(out, group, holder, NULL);
    fprintf(out, " -> ");
    node(out, group, user->owner, user->id);
    fprintf(out, " [style=%s, color=%s];\n", style, color);
}

static void dot_worker(FILE *out, const struct inspect_group *group, const Tether__Dump *dump)
{
    fprintf(out, "  subgraph ");
    char name[512];
    snprintf(name, sizeof name, "cluster %s/%s", group->path, dump->worker);
    quote(out, name);
    fprintf(out, " {\n    style=rounded;\n    ");
    node(out, group, dump->worker, NULL);
    fprintf(out, " [shape=box, style=bold, label=");
    quote(out, dump->worker);
    fprintf(out, "];\n");
    for (size_t i = 0; i < dump->n_owner; i++) {
        char label[256];
        snprintf(label, sizeof label, "%s %s",
                 dump->owner[i]->type[0] ? dump->owner[i]->type : "bytes", dump->owner[i]->id);
        fprintf(out, "    ");
        node(out, group, dump->worker, dump->owner[i]->id);
        fprintf(out, " [label=");
        quote(out, label);
        fprintf(out, "];\n");
    }
    fprintf(out, "  }\n");
}

void inspect_print_dot(FILE *out, const struct inspect_group *groups, size_t n)
{
    fprintf(out, "digraph tether {\n  rankdir=LR;\n  node [fontname=\"sans-serif\"];\n");
    for (size_t i = 0; i < n; i++) {
        for (size_t w = 0; w < groups[i].n_workers; w++)
            if (groups[i].workers[w].dump)
                dot_worker(out, &groups[i], groups[i].workers[w].dump);
        for (size_t w = 0; w < groups[i].n_workers; w++) {
            const Tether__Dump *dump = groups[i].workers[w].dump;
            for (size_t j = 0; dump && j < dump->n_user; j++)
                dot_edge(out, &groups[i], dump->user[j], dump->worker);
        }
    }
    fprintf(out, "}\n");
}
