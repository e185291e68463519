/* "tether.dump", the function that tether-inspect calls: the output of dump.c as a message.
 *
 * Runs inline, since it must answer also when the pool is full of functions that wait. The message
 * is put together under the lock, in slices, and packed after it: peers with their names, types and
 * sites are retained, everything else is copied. Long lists are cut, so that a
 * worker with millions of references is not held up by a question.
 */
#include <stdio.h>
#include <unistd.h>

#include "base/alloc.h"
#include "protos/inspect.pb-c.h"
#include "rref/context.h"

/* at most so many entries of each list are put into the message, and so many holders in all */
#define MOST_ENTRIES 10000
#define SLICE 64 /* how many entries are read while the lock is held once */
#define ID_SIZE 48

struct owner_entry {
    Tether__DumpOwner message;
    char id[ID_SIZE];
    const char *type, *site; /* each retained, or NULL */
};

struct user_entry {
    Tether__DumpUser message;
    char id[ID_SIZE];
    const char *type, *site; /* each retained, or NULL */
};

/* The message under construction, and the memory that its fields point into. */
struct dump {
    Tether__Dump message;
    struct owner_entry *owners;
    struct user_entry *users;
    Tether__DumpOwner **owner_list;
    Tether__DumpUser **user_list;
    char **holders;
    size_t n_holders, max_holders, max_owners, max_users;
};

/* Retains the peer in the dump, because the message points to its name. Returns that name. */
static char *name_of(struct tether__peer *peer)
{
    return tether__peer_retain(peer)->name;
}

static void name_release(char *name)
{
    tether__peer_release(
        (struct tether__peer *)(void *)(name - offsetof(struct tether__peer, name)));
}

/* Puts the names into the owner entries of one slice, which begins at index `i`. */
static void put_owner_names(struct tether__refs *refs, struct dump *dump, size_t i)
{
    pthread_mutex_lock(&refs->mu);
    for (size_t end = i + SLICE; i < end && i < dump->message.n_owner; i++) {
        tether__name_put_locked(refs, dump->owners[i].type);
        tether__name_put_locked(refs, dump->owners[i].site);
    }
    pthread_mutex_unlock(&refs->mu);
}

static void put_user_names(struct tether__refs *refs, struct dump *dump, size_t i)
{
    pthread_mutex_lock(&refs->mu);
    for (size_t end = i + SLICE; i < end && i < dump->message.n_user; i++) {
        tether__name_put_locked(refs, dump->users[i].type);
        tether__name_put_locked(refs, dump->users[i].site);
    }
    pthread_mutex_unlock(&refs->mu);
}

static void dump_fini(struct tether__refs *refs, struct dump *dump)
{
    for (size_t i = 0; i < dump->message.n_owner; i += SLICE)
        put_owner_names(refs, dump, i);
    for (size_t i = 0; i < dump->message.n_user; i += SLICE)
        put_user_names(refs, dump, i);
    for (size_t i = 0; i < dump->message.n_user; i++)
        name_release(dump->users[i].message.owner);
    for (size_t i = 0; i < dump->n_holders; i++)
        name_release(dump->holders[i]);
    tether__free(dump->owners);
    tether__free(dump->users);
    tether__free(dump->owner_list);
    tether__free(dump->user_list);
    tether__free(dump->holders);
}

static size_t at_most(size_t n)
{
    return n < MOST_ENTRIES ? n : MOST_ENTRIES;
}

static bool dump_init(struct tether__refs *refs,
                      struct dump *dump,
                      size_t owners,
                      size_t users,
                      size_t forks)
{
    *dump = (struct dump){.message = TETHER__DUMP__INIT,
                          .max_holders = at_most(forks),
                          .max_owners = at_most(owners),
                          .max_users = at_most(users)};
    dump->owners = tether__calloc(at_most(owners) + 1, sizeof *dump->owners);
    dump->users = tether__calloc(at_most(users) + 1, sizeof *dump->users);
    dump->owner_list = tether__calloc(at_most(owners) + 1, sizeof(void *));
    dump->user_list = tether__calloc(at_most(users) + 1, sizeof(void *));
    dump->holders = tether__calloc(at_most(forks) + 1, sizeof(void *));
    dump->message.owner = dump->owner_list;
    dump->message.user = dump->user_list;
    if (dump->owners && dump->users && dump->owner_list && dump->user_list && dump->holders)
        return true;
    dump_fini(refs, dump);
    return false;
}

static char *text(const char *text)
{
    return (char *)(text ? text : "");
}

static void print_id(char id[ID_SIZE], tether_rref_id from)
{
    snprintf(id, ID_SIZE, "%u.%u.%llu", from.creator, from.incarnation,
             (unsigned long long)from.counter);
}

static void add_owner_locked(void *key, void *userdata)
{
    tether_rref *rref = tether__container_of((tether_rref_id *)key, struct tether_rref, id);
    struct dump *dump = userdata;
    if (dump->message.n_owner == dump->max_owners)
        return;
    struct owner_entry *entry = &dump->owners[dump->message.n_owner];
    dump->owner_list[dump->message.n_owner++] = &entry->message;
    tether__dump_owner__init(&entry->message);
    print_id(entry->id, rref->id);
    entry->message.id = entry->id;
    entry->message.type = text(rref->type);
    entry->message.site = text(rref->site);
    entry->message.state = text(rref->owner.making                  ? "being made"
                                : rref->state == TETHER_RREF_BROKEN ? "failed"
                                                                    : "ready");
    entry->type = tether__name_retain_locked(rref->type);
    entry->site = tether__name_retain_locked(rref->site_is_name ? rref->site : NULL);
    entry->message.holder = dump->holders + dump->n_holders;
    for (struct tether__fork *fork = NULL;
         dump->n_holders < dump->max_holders && (fork = tether__fork_next_locked(rref, fork));) {
        dump->holders[dump->n_holders++] = name_of(fork->holder.peer);
        entry->message.n_holder++;
    }
}

static void add_user_locked(void *key, void *userdata)
{
    tether_rref *rref = tether__container_of((tether_rref_id *)key, struct tether_rref, user.fork);
    struct dump *dump = userdata;
    if (dump->message.n_user == dump->max_users)
        return;
    struct user_entry *entry = &dump->users[dump->message.n_user];
    dump->user_list[dump->message.n_user++] = &entry->message;
    tether__dump_user__init(&entry->message);
    print_id(entry->id, rref->id);
    entry->message.id = entry->id;
    entry->message.owner = name_of(rref->user.owner.peer);
    entry->message.type = text(rref->type);
    entry->message.site = text(rref->site);
    entry->message.state = text(tether_rref_state_name(tether__rref_state_locked(rref)));
    entry->type = tether__name_retain_locked(rref->type);
    entry->site = tether__name_retain_locked(rref->site_is_name ? rref->site : NULL);
}

static void add_table(struct tether__refs *refs,
                      const struct tether__map *table,
                      void (*add_locked)(void *key, void *userdata),
                      struct dump *dump,
                      const size_t *n,
                      size_t max)
{
    unsigned long cursor = 0;
    for (bool more = true; more && *n < max;) {
        pthread_mutex_lock(&refs->mu);
        more = tether__map_scan(table, &cursor, SLICE, add_locked, dump);
        pthread_mutex_unlock(&refs->mu);
    }
}

static bool describe(struct tether__refs *refs, struct dump *dump)
{
    pthread_mutex_lock(&refs->mu);
    size_t owners = tether__map_count(&refs->owners), users = tether__map_count(&refs->users);
    size_t forks = refs->n_forks;
    pthread_mutex_unlock(&refs->mu);
    if (!dump_init(refs, dump, owners, users, forks))
        return false;
    add_table(refs, &refs->owners, add_owner_locked, dump, &dump->message.n_owner,
              dump->max_owners);
    add_table(refs, &refs->users, add_user_locked, dump, &dump->message.n_user, dump->max_users);
    dump->message.more_owners = owners - dump->message.n_owner;
    dump->message.more_users = users - dump->message.n_user;
    return true;
}

static tether_status run_dump(void *userdata,
                              const tether_value *arg,
                              tether_value **ret_value,
                              tether_error *reterr)
{
    struct tether__refs *refs = userdata;
    struct dump dump;
    (void)arg;
    if (!describe(refs, &dump))
        return tether_error_set(reterr, TETHER_ENOMEM, "no memory for a list of references");
    dump.message.worker = (char *)tether_agent_name(refs->agent);
    dump.message.pid = (uint32_t)getpid();
    tether_status st = tether_value_pack(&dump.message.base, ret_value, reterr);
    dump_fini(refs, &dump);
    return st;
}

tether_status tether__refs_register_dump(struct tether__refs *refs, tether_error *reterr)
{
    return tether__agent_serve(refs->agent, "tether.dump", run_dump, refs, reterr);
}
