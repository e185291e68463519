/* Writes the keys of a file store as a snapshot, the beginning of a compacted log. */
#include <endian.h>

#include "rendezvous/store/file/space_internal.h"

#define SNAPSHOT_RECORD (64 << 10) /* size at which a record is written and the next one begins */

static void encode_counts(const struct tether__file_space *space, char to[16])
{
    uint64_t users = htole64((uint64_t)space->users), closed = htole64((uint64_t)space->closed);
    memcpy(to, &users, sizeof users);
    memcpy(to + 8, &closed, sizeof closed);
}

struct snapshot {
    struct tether__file_log *log;
    tether_buf record; /* changes that are not written yet, behind room for a header */
};

static tether_status snapshot_flush(struct snapshot *snapshot)
{
    tether_buf *record = &snapshot->record;
    tether_status st = TETHER_OK;
    if (record->len > TETHER__FILE_LOG_HEADER)
        st = tether__file_log_write(snapshot->log, record->data, record->len, NULL);
    if (st == TETHER_OK && record->len > TETHER__FILE_LOG_HEADER)
        snapshot->log->offset += (int64_t)record->len;
    static const char room[TETHER__FILE_LOG_HEADER];
    return st == TETHER_OK ? tether_buf_assign(record, tether_bytes_of(room, sizeof room)) : st;
}

static tether_status snapshot_change(struct snapshot *snapshot,
                                     const struct tether__file_change *change)
{
    size_t len = tether__file_change_size(change);
    tether_status st = tether_buf_reserve(&snapshot->record, len);
    if (st != TETHER_OK)
        return st;
    tether__file_change_encode(snapshot->record.data + snapshot->record.len, change);
    snapshot->record.len += len;
    return snapshot->record.len >= SNAPSHOT_RECORD ? snapshot_flush(snapshot) : TETHER_OK;
}

static tether_status snapshot_visit(void *userdata,
                                    tether_bytes key,
                                    tether_bytes value,
                                    bool queued)
{
    enum tether__file_op op = queued ? TETHER__FILE_PUSH : TETHER__FILE_SET;
    return snapshot_change(userdata, &(struct tether__file_change){op, key, value});
}

tether_status tether__file_write_snapshot_locked(struct tether__file_space *space,
                                                 struct tether__file_log *log)
{
    struct snapshot snapshot = {.log = log};
    char counts[16];
    encode_counts(space, counts);
    const struct tether__file_change change = {.op = TETHER__FILE_COUNTS,
                                               .value = tether_bytes_of(counts, sizeof counts)};
    tether_status st = snapshot_flush(&snapshot); /* nothing is written, because the record is
                                                     empty: this only makes room for the header */
    if (st == TETHER_OK)
        st = snapshot_change(&snapshot, &change);
    if (st == TETHER_OK)
        st = tether__kv_visit(space->kv, snapshot_visit, &snapshot);
    if (st == TETHER_OK)
        st = snapshot_flush(&snapshot);
    tether_buf_fini(&snapshot.record);
    return st;
}
