/* The directory in the store. See directory.h for the keys. */
#include "rpc/group/directory.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "protos/rpc.pb-c.h"
#include "rpc/wire/packed.h"

#define KEY_SIZE 192
#define MAX_QUEUED_LOOKUPS (1 << 20)

/* Names this host: the boot id of its kernel and the network namespace. Workers with equal names
 * can connect to each other's abstract unix sockets. Leaves `ret_host` as it is if either is not
 * known. */
static void find_host(char ret_host[64])
{
    char boot[40] = "", net[24] = "";
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t n = read(fd, boot, sizeof boot - 1);
        boot[n > 0 ? n : 0] = '\0';
        boot[strcspn(boot, "\n")] = '\0';
        close(fd);
    }
    ssize_t n = readlink("/proc/self/ns/net", net, sizeof net - 1);
    net[n > 0 ? n : 0] = '\0';
    if (boot[0] && net[0])
        snprintf(ret_host, 64, "%s %s", boot, net);
}

bool tether__directory_is_here(const struct tether__directory *directory,
                               const struct tether__worker_record *record)
{
    return record->host[0] && strcmp(record->host, directory->host) == 0;
}

tether_status tether__directory_init(struct tether__directory *directory,
                                     tether_store *store,
                                     const char *group,
                                     tether_error *reterr)
{
    memset(directory, 0, sizeof *directory);
    find_host(directory->host);
    tether_status st = tether_store_prefix_new(group, store, &directory->store, reterr);
    if (st == TETHER_OK)
        st = tether__pool_start(&directory->lookups, "tether-dir", TETHER__MAX_LOOKUP_THREADS,
                                MAX_QUEUED_LOOKUPS, reterr);
    if (st != TETHER_OK) {
        directory->store = tether_store_release(directory->store);
        return st;
    }
    directory->running = true;
    return TETHER_OK;
}

void tether__directory_fini(struct tether__directory *directory)
{
    if (directory->running)
        tether__pool_stop(&directory->lookups);
    directory->running = false;
    directory->store = tether_store_release(directory->store);
}

/* ---- Records ---- */

static tether_status pack_record(const struct tether__directory *directory,
                                 const struct tether__worker_record *record,
                                 struct tether__packed *ret_packed)
{
    Tether__WorkerRecord message = TETHER__WORKER_RECORD__INIT;
    message.name = (char *)record->name;
    message.id = record->id;
    message.incarnation = record->incarnation;
    message.address = (char *)record->address;
    message.unix_address = (char *)record->unix_address;
    message.host = (char *)record->host;
    message.run = (char *)directory->run;
    message.world_size = record->world_size;
    message.address_is_own = record->address_is_own;
    return tether__pack(ret_packed, &message.base);
}

static bool fits(char *to, size_t size, const char *from)
{
    return (size_t)snprintf(to, size, "%s", from) < size;
}

static tether_status unpack_record(const struct tether__directory *directory,
                                   tether_bytes bytes,
                                   struct tether__worker_record *ret_record,
                                   tether_error *reterr)
{
    Tether__WorkerRecord *message = tether__worker_record__unpack(NULL, bytes.len, bytes.data);
    bool ok =
        message && fits(ret_record->name, sizeof ret_record->name, message->name) &&
        fits(ret_record->address, sizeof ret_record->address, message->address) &&
        fits(ret_record->unix_address, sizeof ret_record->unix_address, message->unix_address) &&
        fits(ret_record->host, sizeof ret_record->host, message->host);
    bool is_ours = ok && strcmp(message->run, directory->run) == 0;
    if (ok) {
        ret_record->id = message->id;
        ret_record->incarnation = message->incarnation;
        ret_record->world_size = message->world_size;
        ret_record->address_is_own = message->address_is_own;
    }
    if (message)
        tether__worker_record__free_unpacked(message, NULL);
    if (ok && !is_ours)
        return tether__directory_other_run(directory, reterr);
    return ok ? TETHER_OK
              : tether_error_set(reterr, TETHER_ECORRUPT,
                                 "the store holds a worker record that Tether did not write");
}

/* Arguments of publish(): the record to enter into the directory, and who judges a record that is
 * there. */
struct entry {
    struct tether__directory *directory;
    const struct tether__worker_record *record;
    int rank;
    tether__directory_judge *judge;
    void *userdata;
    int timeout_ms;
};

/* Checks whether the record that is in the directory, `before`, prevents the join. Returns
 * TETHER_OK or the reason. */
static tether_status check_before(const struct entry *entry,
                                  tether_bytes before,
                                  tether_error *reterr)
{
    const struct tether__worker_record *mine = entry->record;
    struct tether__worker_record other;
    if (before.len == 0)
        return TETHER_OK;
    tether_status st = unpack_record(entry->directory, before, &other, reterr);
    if (st == TETHER_OK && entry->judge && other.incarnation != mine->incarnation)
        st = entry->judge(entry->userdata, &other, reterr);
    if (st != TETHER_OK || other.incarnation <= mine->incarnation)
        return st;
    const int rank = entry->rank;
    if (rank >= 0 && other.id != mine->id)
        return tether__directory_namesakes(other.id, mine->id, mine->name, reterr);
    return tether_error_set(reterr, TETHER_EFENCED,
                            "a later start of worker '%s' (%llu, this is %llu) has taken its place",
                            mine->name, (unsigned long long)other.incarnation,
                            (unsigned long long)mine->incarnation);
}

/* Replaces the record in the directory, unless check_before() finds a reason against it. */
static tether_status replace_record(const struct entry *entry,
                                    const char *key,
                                    tether_buf *before,
                                    tether_error *reterr)
{
    struct tether__directory *directory = entry->directory;
    struct tether__packed packed;
    bool swapped = false;
    if (pack_record(directory, entry->record, &packed) != TETHER_OK)
        return tether_error_set(reterr, TETHER_ENOMEM, "no memory to publish this worker");
    tether_status st = TETHER_OK;
    /* another iteration: another start has changed the record meanwhile */
    while (st == TETHER_OK && !swapped) {
        tether_buf found = TETHER_BUF_INIT;
        st = check_before(entry, tether_buf_bytes(before), reterr);
        if (st == TETHER_OK)
            st =
                tether_store_compare_set(directory->store, key, tether_buf_bytes(before),
                                         packed.bytes, entry->timeout_ms, &swapped, &found, reterr);
        tether_buf_fini(before);
        *before = found;
    }
    tether__packed_fini(&packed);
    return st;
}

static tether_status unlist(struct tether__directory *directory,
                            const char *name,
                            int timeout_ms,
                            tether_error *reterr);

tether_status tether__directory_publish(struct tether__directory *directory,
                                        const struct tether__worker_record *record,
                                        int rank,
                                        tether__directory_judge *judge,
                                        void *userdata,
                                        int timeout_ms,
                                        tether_error *reterr)
{
    char key[KEY_SIZE];
    const struct entry entry = {directory, record, rank, judge, userdata, timeout_ms};
    tether_buf before = TETHER_BUF_INIT;
    tether_status st = TETHER_OK;
    bool listed = false;
    /* set before the record, so that of two ranks with one name at least one sees the other */
    if (rank >= 0) {
        snprintf(key, sizeof key, "rank/%d", rank);
        st = tether_store_set(directory->store, key, tether_bytes_str(record->name), timeout_ms,
                              reterr);
        if (st != TETHER_OK)
            return st;
    }
    snprintf(key, sizeof key, "worker/%s", record->name);
    st = tether_store_try_get(directory->store, key, timeout_ms, &before, reterr);
    /* The worker was never here, or has left and removed its name from the list. The search
     * includes the NUL, because the names follow each other. */
    if (st == TETHER_ENOTFOUND || (st == TETHER_OK && before.len == 0)) {
        st = tether_store_append(directory->store, "names",
                                 tether_bytes_of(record->name, strlen(record->name) + 1),
                                 timeout_ms, reterr);
        listed = st == TETHER_OK;
    }
    if (st == TETHER_OK)
        st = replace_record(&entry, key, &before, reterr);
    /* the live worker of this name has its own entry in the list */
    if (listed && (st == TETHER_EEXIST || st == TETHER_EFENCED))
        unlist(directory, record->name, timeout_ms, NULL);
    tether_buf_fini(&before);
    return st;
}

tether_status tether__directory_namesakes(uint32_t rank,
                                          uint32_t other_rank,
                                          const char *name,
                                          tether_error *reterr)
{
    return tether_error_set(reterr, TETHER_EEXIST,
                            "ranks %u and %u are both called '%s': give each worker a name of its "
                            "own",
                            rank < other_rank ? rank : other_rank,
                            rank < other_rank ? other_rank : rank, name);
}

tether_status tether__directory_lookup(struct tether__directory *directory,
                                       const char *name,
                                       int timeout_ms,
                                       struct tether__worker_record *ret_record,
                                       tether_error *reterr)
{
    char key[KEY_SIZE];
    tether_buf value = TETHER_BUF_INIT;
    struct tether__worker_record record;
    snprintf(key, sizeof key, "worker/%s", name);
    tether_status st = tether_store_try_get(directory->store, key, timeout_ms, &value, reterr);
    tether_status run = TETHER_OK;
    if (st == TETHER_ENOTFOUND && directory->run[0])
        run = tether__directory_check_run(directory, timeout_ms, reterr);
    if (run == TETHER_ENOTFOUND)
        st = tether_error_set(reterr, TETHER_EUNAVAILABLE,
                              "looking up worker '%s': the store at %.60s has lost the keys of the "
                              "group; its workers put themselves back",
                              name, tether__directory_store_name(directory));
    else if (run != TETHER_OK)
        st = run;
    else if (st == TETHER_ENOTFOUND || (st == TETHER_OK && value.len == 0))
        st = tether_error_set(reterr, TETHER_ENOTFOUND,
                              "no worker named '%s' is in the group at %.60s: check the name, and "
                              "that it runs, with the same group and store",
                              name, tether__directory_store_name(directory));
    else if (st == TETHER_OK)
        st = unpack_record(directory, tether_buf_bytes(&value), &record, reterr);
    tether_buf_fini(&value);
    if (st == TETHER_OK)
        *ret_record = record;
    return st;
}

/* Removes one entry `name` from the list. A second one may belong to a start that is joining. */
static tether_status unlist(struct tether__directory *directory,
                            const char *name,
                            int timeout_ms,
                            tether_error *reterr)
{
    tether_buf before = TETHER_BUF_INIT, after = TETHER_BUF_INIT;
    bool swapped = false;
    tether_status st = tether_store_try_get(directory->store, "names", timeout_ms, &before, reterr);
    /* another iteration: another worker has joined or left meanwhile */
    while (st == TETHER_OK && !swapped) {
        const size_t len = strlen(name) + 1;
        size_t at = 0;
        while (at < before.len && strcmp(before.data + at, name) != 0)
            at += strlen(before.data + at) + 1;
        if (at + len > before.len)
            break;
        tether_buf found = TETHER_BUF_INIT;
        st = tether_buf_assign(&after, tether_bytes_of(before.data, at));
        if (st == TETHER_OK)
            st = tether_buf_append(&after,
                                   tether_bytes_of(before.data + at + len, before.len - at - len));
        if (st == TETHER_OK)
            st = tether_store_compare_set(directory->store, "names", tether_buf_bytes(&before),
                                          tether_buf_bytes(&after), timeout_ms, &swapped, &found,
                                          reterr);
        tether_buf_fini(&before);
        before = found;
    }
    tether_buf_fini(&before);
    tether_buf_fini(&after);
    return st == TETHER_ENOTFOUND ? TETHER_OK : st;
}

tether_status tether__directory_withdraw(struct tether__directory *directory,
                                         const struct tether__worker_record *record,
                                         int rank,
                                         int timeout_ms,
                                         tether_error *reterr)
{
    char key[KEY_SIZE];
    struct tether__packed packed;
    bool was_ours = false;
    const tether_bytes nobody = {NULL, 0};
    if (pack_record(directory, record, &packed) != TETHER_OK)
        return TETHER_ENOMEM;
    snprintf(key, sizeof key, "worker/%s", record->name);
    tether_status st = tether_store_compare_set(directory->store, key, packed.bytes, nobody,
                                                timeout_ms, &was_ours, NULL, reterr);
    tether__packed_fini(&packed);
    if (st == TETHER_OK && was_ours && rank >= 0) {
        snprintf(key, sizeof key, "rank/%d", rank);
        st = tether_store_compare_set(directory->store, key, tether_bytes_str(record->name), nobody,
                                      timeout_ms, NULL, NULL, reterr);
    }
    if (st == TETHER_OK && was_ours)
        st = unlist(directory, record->name, timeout_ms, reterr);
    return st;
}

tether_status tether__directory_remove_dead(struct tether__directory *directory,
                                            const char *name,
                                            uint64_t incarnation,
                                            int timeout_ms,
                                            tether_error *reterr)
{
    char key[KEY_SIZE];
    tether_buf value = TETHER_BUF_INIT;
    struct tether__worker_record record;
    bool is_removed = false;
    const tether_bytes nobody = {NULL, 0};
    snprintf(key, sizeof key, "worker/%s", name);
    tether_status st = tether_store_try_get(directory->store, key, timeout_ms, &value, reterr);
    bool is_there = st == TETHER_OK && value.len > 0;
    if (is_there)
        st = unpack_record(directory, tether_buf_bytes(&value), &record, reterr);
    if (is_there && st == TETHER_OK && record.incarnation == incarnation)
        st = tether_store_compare_set(directory->store, key, tether_buf_bytes(&value), nobody,
                                      timeout_ms, &is_removed, NULL, reterr);
    tether_buf_fini(&value);
    if (st == TETHER_OK && is_removed)
        st = unlist(directory, name, timeout_ms, reterr);
    return st == TETHER_ENOTFOUND ? TETHER_OK : st;
}

tether_status tether__directory_name_of_rank(struct tether__directory *directory,
                                             int rank,
                                             int timeout_ms,
                                             char ret_name[128],
                                             tether_error *reterr)
{
    char key[KEY_SIZE];
    tether_buf value = TETHER_BUF_INIT;
    snprintf(key, sizeof key, "rank/%d", rank);
    tether_status st = tether_store_get(directory->store, key, timeout_ms, &value, reterr);
    if (st == TETHER_OK && !fits(ret_name, 128, value.data ? value.data : ""))
        st = tether_error_set(reterr, TETHER_ECORRUPT,
                              "the store names a worker that Tether did not");
    tether_buf_fini(&value);
    return st;
}

static bool is_listed(const struct tether__worker_record *records, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(records[i].name, name) == 0)
            return true;
    return false;
}

tether_status tether__directory_list(struct tether__directory *directory,
                                     int timeout_ms,
                                     struct tether__worker_record **ret_records,
                                     size_t *ret_n,
                                     tether_error *reterr)
{
    tether_buf names = TETHER_BUF_INIT;
    struct tether__worker_record *records = NULL;
    size_t n = 0;
    tether_status st = tether_store_try_get(directory->store, "names", timeout_ms, &names, reterr);
    if (st == TETHER_ENOTFOUND)
        st = TETHER_OK;
    for (size_t at = 0; st == TETHER_OK && at < names.len; at += strlen(names.data + at) + 1) {
        if (is_listed(records, n, names.data + at))
            continue; /* a second entry of one name: the worker was restarted */
        struct tether__worker_record *more = tether__realloc(records, (n + 1) * sizeof *records);
        if (!more) {
            st = tether_error_set(reterr, TETHER_ENOMEM, "no memory for the list of workers");
            break;
        }
        records = more;
        st = tether__directory_lookup(directory, names.data + at, timeout_ms, &records[n], reterr);
        if (st == TETHER_OK)
            n++;
        else if (st == TETHER_ENOTFOUND)
            st = TETHER_OK; /* the worker has left */
    }
    tether_buf_fini(&names);
    if (st != TETHER_OK) {
        tether__free(records);
        return st;
    }
    *ret_records = records;
    *ret_n = n;
    return TETHER_OK;
}
