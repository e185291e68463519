/* For people: tables of workers and objects, and the tree. */
#include <string.h>

#include "tools/inspect/print.h"

static const char *type_of(const Tether__DumpOwner *object)
{
    return object->type[0] ? object->type : "bytes";
}

static void print_holders(FILE *out, const Tether__DumpOwner *object)
{
    for (size_t i = 0; i < object->n_holder; i++)
        fprintf(out, "%s%s", i ? ", " : "", object->holder[i]);
    if (!object->n_holder)
        fprintf(out, "(only here)");
}

static void print_workers(FILE *out, const struct inspect_group *group)
{
    fprintf(out, "  %-16s %6s %6s %8s %6s %6s  %s\n", "worker", "id", "start", "pid", "owns",
            "holds", "address");
    for (size_t i = 0; i < group->n_workers; i++) {
        const struct inspect_worker *worker = &group->workers[i];
        const Tether__Dump *dump = worker->dump;
        fprintf(out, "  %-16s %6u %6llu ", worker->info.name, worker->info.id,
                (unsigned long long)worker->info.incarnation);
        if (dump)
            fprintf(out, "%8u %6llu %6llu  %s\n", dump->pid,
                    (unsigned long long)(dump->n_owner + dump->more_owners),
                    (unsigned long long)(dump->n_user + dump->more_users), worker->info.address);
        else
            fprintf(out, "does not answer: %s\n", worker->why.message);
    }
}

static void print_objects(FILE *out, const struct inspect_group *group)
{
    size_t printed = 0;
    for (size_t i = 0; i < group->n_workers; i++) {
        const Tether__Dump *dump = group->workers[i].dump;
        for (size_t j = 0; dump && j < dump->n_owner; j++) {
            const Tether__DumpOwner *object = dump->owner[j];
            if (!printed++)
                fprintf(out, "\n  %-12s %-12s %-16s %-10s %-24s held by\n", "object", "type",
                        "lives on", "state", "made at");
            fprintf(out, "  %-12s %-12s %-16s %-10s %-24s ", object->id, type_of(object),
                    dump->worker, object->state, object->site);
            print_holders(out, object);
            fputc('\n', out);
        }
        if (dump && dump->more_owners)
            fprintf(out, "  ... and %llu more on %s\n", (unsigned long long)dump->more_owners,
                    dump->worker);
    }
}

/* References that no worker that answered owns the object of. */
static void print_dangling(FILE *out, const struct inspect_group *group)
{
    size_t printed = 0;
    for (size_t i = 0; i < group->n_workers; i++) {
        const Tether__Dump *dump = group->workers[i].dump;
        for (size_t j = 0; dump && j < dump->n_user; j++) {
            const Tether__DumpUser *user = dump->user[j];
            if (inspect_object(group, user->owner, user->id))
                continue;
            if (!printed++)
                fprintf(out, "\n  references to objects that nobody shows:\n");
            fprintf(out, "  %-12s of %-16s %-10s held by %s (%s)\n", user->id, user->owner,
                    user->state, dump->worker, user->site[0] ? user->site : "passed to it");
        }
    }
}

void inspect_print_table(FILE *out, const struct inspect_group *groups, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        fprintf(out, "%sgroup %s: %zu worker%s\n", i ? "\n" : "", groups[i].path,
                groups[i].n_workers, groups[i].n_workers == 1 ? "" : "s");
        print_workers(out, &groups[i]);
        print_objects(out, &groups[i]);
        print_dangling(out, &groups[i]);
    }
    if (!n)
        fprintf(out, "no group of workers has met at this store\n");
}

void inspect_print_tree(FILE *out, const struct inspect_group *groups, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (size_t w = 0; w < groups[i].n_workers; w++) {
            const struct inspect_worker *worker = &groups[i].workers[w];
            const Tether__Dump *dump = worker->dump;
            fprintf(out, "%s%s\n", worker->info.name, dump ? "" : "  (does not answer)");
            for (size_t j = 0; dump && j < dump->n_owner; j++) {
                bool last = j + 1 == dump->n_owner;
                fprintf(out, " %s── %s %s ◀── ", last ? "└" : "├", type_of(dump->owner[j]),
                        dump->owner[j]->id);
                print_holders(out, dump->owner[j]);
                fputc('\n', out);
            }
        }
}
