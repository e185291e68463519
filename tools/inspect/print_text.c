/* Output for people: tables of workers and objects, and the tree. */
#include <string.h>

#include "tools/inspect/print.h"

void inspect_put(FILE *out, const char *text, enum tether__text_style style)
{
    tether_buf shown = TETHER_BUF_INIT;
    if (tether__text_print(&shown, tether_bytes_str(text), style) == TETHER_OK && shown.data)
        fputs(shown.data, out);
    tether_buf_fini(&shown);
}

/* Prints a cell of a table, escaped, since the text comes from a worker or the store. */
static void column(FILE *out, const char *text, int width)
{
    tether_buf shown = TETHER_BUF_INIT;
    if (tether__text_print(&shown, tether_bytes_str(text), TETHER__TEXT_LINE) == TETHER_OK)
        fprintf(out, "%-*s ", width, shown.data ? shown.data : "");
    tether_buf_fini(&shown);
}

static void put(FILE *out, const char *text)
{
    inspect_put(out, text, TETHER__TEXT_LINE);
}

static const char *type_of(const Tether__DumpOwner *object)
{
    return object->type[0] ? object->type : "bytes";
}

static void print_holders(FILE *out, const Tether__DumpOwner *object)
{
    for (size_t i = 0; i < object->n_holder; i++) {
        fputs(i ? ", " : "", out);
        put(out, object->holder[i]);
    }
    if (!object->n_holder)
        fprintf(out, "(only here)");
}

static void print_workers(FILE *out, const struct inspect_group *group)
{
    fprintf(out, "  %-16s %6s %6s %-9s %8s %6s %6s  %s\n", "worker", "id", "start", "state", "pid",
            "owns", "holds", "address");
    for (size_t i = 0; i < group->n_workers; i++) {
        const struct inspect_worker *worker = &group->workers[i];
        const Tether__Dump *dump = worker->dump;
        fputs("  ", out);
        column(out, worker->info.name, 16);
        fprintf(out, "%6u %6llu %-9s ", worker->info.id,
                (unsigned long long)worker->info.incarnation,
                tether_worker_state_name(worker->info.state));
        if (dump)
            fprintf(out, "%8u %6llu %6llu  ", dump->pid,
                    (unsigned long long)(dump->n_owner + dump->more_owners),
                    (unsigned long long)(dump->n_user + dump->more_users));
        else
            fputs("does not answer: ", out);
        put(out, dump ? worker->info.address : worker->why.message);
        fputc('\n', out);
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
            fputs("  ", out);
            column(out, object->id, 12);
            column(out, type_of(object), 12);
            column(out, dump->worker, 16);
            column(out, object->state, 10);
            column(out, object->site, 24);
            print_holders(out, object);
            fputc('\n', out);
        }
        if (dump && dump->more_owners) {
            fprintf(out, "  ... and %llu more on ", (unsigned long long)dump->more_owners);
            put(out, dump->worker);
            fputc('\n', out);
        }
    }
}

/* Prints references whose objects are in no dump: their owner has not answered, or has released
 * them. */
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
                fprintf(out, "\n  references to objects that no answer contains:\n");
            fputs("  ", out);
            column(out, user->id, 12);
            fputs("of ", out);
            column(out, user->owner, 16);
            column(out, user->state, 10);
            fputs("held by ", out);
            put(out, dump->worker);
            fputs(" (", out);
            put(out, user->site[0] ? user->site : "passed to it");
            fputs(")\n", out);
        }
    }
}

void inspect_print_table(FILE *out, const struct inspect_group *groups, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        fputs(i ? "\ngroup " : "group ", out);
        put(out, groups[i].path);
        fprintf(out, ": %zu worker%s\n", groups[i].n_workers, groups[i].n_workers == 1 ? "" : "s");
        print_workers(out, &groups[i]);
        print_objects(out, &groups[i]);
        print_dangling(out, &groups[i]);
    }
    if (!n)
        fprintf(out, "this store has no group of workers\n");
}

void inspect_print_tree(FILE *out, const struct inspect_group *groups, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (size_t w = 0; w < groups[i].n_workers; w++) {
            const struct inspect_worker *worker = &groups[i].workers[w];
            const Tether__Dump *dump = worker->dump;
            put(out, worker->info.name);
            if (!dump)
                fprintf(out, "  (does not answer: %s)",
                        tether_worker_state_name(worker->info.state));
            fputc('\n', out);
            for (size_t j = 0; dump && j < dump->n_owner; j++) {
                bool last = j + 1 == dump->n_owner;
                fprintf(out, " %s── ", last ? "└" : "├");
                put(out, type_of(dump->owner[j]));
                fputc(' ', out);
                put(out, dump->owner[j]->id);
                fputs(" ◀── ", out);
                print_holders(out, dump->owner[j]);
                fputc('\n', out);
            }
        }
}
