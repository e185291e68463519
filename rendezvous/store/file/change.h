/* The changes in a record of the file store's log. A record is a list of changes that are applied
 * together. Each is encoded as op, u32 length of the key, u64 length of the value, key, value.
 */
#ifndef TETHER_RENDEZVOUS_STORE_FILE_CHANGE_H
#define TETHER_RENDEZVOUS_STORE_FILE_CHANGE_H

#include "base/bytes.h"

#define TETHER__FILE_CHANGE_HEADER (1 + 4 + 8)

enum tether__file_op {
    TETHER__FILE_SET = 's',
    TETHER__FILE_DELETE = 'd',
    TETHER__FILE_APPEND = 'a',
    TETHER__FILE_PUSH = 'q',
    TETHER__FILE_POP = 'p',
    TETHER__FILE_OPEN = 'o',
    TETHER__FILE_CLOSE = 'c',
    /* counts of users and of closed users, u64 each; only in a snapshot */
    TETHER__FILE_COUNTS = 'n',
};

struct tether__file_change {
    enum tether__file_op op;
    tether_bytes key, value;
};

static inline size_t tether__file_change_size(const struct tether__file_change *change)
{
    return TETHER__FILE_CHANGE_HEADER + change->key.len + change->value.len;
}

/* Encodes a change; writes tether__file_change_size() bytes to `to`. */
void tether__file_change_encode(char *to, const struct tether__file_change *change);

/* Removes the first change from `rest`; false when it is malformed. LENDS key and value. */
bool tether__file_change_decode(tether_bytes *rest, struct tether__file_change *ret_change);

#endif
