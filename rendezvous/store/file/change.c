/* Encodes and decodes changes. */
#include "rendezvous/store/file/change.h"

#include <endian.h>
#include <stdint.h>
#include <string.h>

void tether__file_change_encode(char *to, const struct tether__file_change *change)
{
    uint32_t key_len = htole32((uint32_t)change->key.len);
    uint64_t value_len = htole64(change->value.len);
    to[0] = (char)change->op;
    memcpy(to + 1, &key_len, sizeof key_len);
    memcpy(to + 5, &value_len, sizeof value_len);
    to += TETHER__FILE_CHANGE_HEADER;
    if (change->key.len)
        memcpy(to, change->key.data, change->key.len);
    if (change->value.len)
        memcpy(to + change->key.len, change->value.data, change->value.len);
}

bool tether__file_change_decode(tether_bytes *rest, struct tether__file_change *ret_change)
{
    uint32_t key_len;
    uint64_t value_len;
    if (rest->len < TETHER__FILE_CHANGE_HEADER)
        return false;
    const char *from = rest->data;
    memcpy(&key_len, from + 1, sizeof key_len);
    memcpy(&value_len, from + 5, sizeof value_len);
    key_len = le32toh(key_len);
    value_len = le64toh(value_len);
    size_t left = rest->len - TETHER__FILE_CHANGE_HEADER;
    if (key_len > left || value_len > left - key_len)
        return false;
    ret_change->op = (enum tether__file_op)(unsigned char)from[0];
    ret_change->key = tether_bytes_of(from + TETHER__FILE_CHANGE_HEADER, key_len);
    ret_change->value = tether_bytes_of(from + TETHER__FILE_CHANGE_HEADER + key_len, value_len);
    size_t len = TETHER__FILE_CHANGE_HEADER + key_len + (size_t)value_len;
    *rest = tether_bytes_of(from + len, rest->len - len);
    return true;
}
