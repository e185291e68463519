/* Values as the layers of Tether see them: their slices, and the references attached to them.
 *
 * An attached reference travels beside the bytes. This layer only counts attached references and
 * passes them on; the reference layer defines what they are.
 */
#ifndef TETHER_RPC_WIRE_VALUE_INTERNAL_H
#define TETHER_RPC_WIRE_VALUE_INTERNAL_H

#include <stdatomic.h>

#include "base/threads/work_list.h"
#include "rpc/value.h"
#include "rpc/wire/outcome.h"
#include "rpc/wire/slice.h"

/* Embedded in a reference, so that it can be attached to values. */
struct tether__attached_ref {
    const struct tether__attached_ref_ops *ops;
};

struct tether__attached_ref_ops {
    void (*retain)(struct tether__attached_ref *ref);
    void (*release)(struct tether__attached_ref *ref);
};

struct tether_value {
    struct tether__slice_owner owner; /* the owner of slices of this value's bytes */
    _Atomic uint32_t refs;
    /* Counts slices of the bytes, and 1 for all handles together. Attached references and the
     * object are released with the last handle, not with the last slice: slices are released under
     * locks of the lane's owner, where no destructor may run. */
    _Atomic uint32_t bytes_refs;
    uint32_t n_attached;
    struct tether__attached_ref **attached; /* NULL until something is attached */
    const tether_type *type;                /* type of `object`; NULL: the value is plain bytes */
    void *object;
    const uint8_t *data;
    size_t len;
    union {
        struct tether__work work; /* runs the destructor of `object` */
        struct {
            /* owner of received bytes; NULL: the bytes are in `storage`, or the value owns them */
            struct tether__slice_owner *backing;
            void (*free_fn)(void *data, void *userdata);
            void *free_userdata;
        };
    };
    _Atomic(char *) text; /* NUL-terminated copy of the bytes, made at the first request for it */
    char storage[];       /* the bytes of a small value, followed by a NUL */
};

/* A value over received bytes: it retains the slice when that is large and fills most of its
 * buffer, otherwise it copies the bytes. So it takes less than twice the memory of its bytes. */
tether_status tether__value_from_slice(struct tether__slice slice, tether_value **ret_value);

/* Returns the payload to send. A caller that keeps it must retain it. */
static inline struct tether__slice tether__value_slice(tether_value *value)
{
    return value && value->len ? (struct tether__slice){value->data, value->len, &value->owner}
                               : TETHER__SLICE_EMPTY;
}

/* Returns the value to be sent for `value`: itself, or the serialised object. The caller releases
 * the result. NULL gives NULL. */
tether_status tether__value_to_send(const tether_value *value,
                                    tether_value **ret_value,
                                    tether_error *reterr);

/* Makes a value of a received payload: an object when `type` is known here, else (NULL) the bytes.
 * REFUSED: deserialise() has failed, with any code. NO_MEMORY sets `*reterr`, too. */
enum tether__outcome tether__value_received(struct tether__slice payload,
                                            const tether_type *type,
                                            tether_value **ret_value,
                                            tether_error *reterr);

/* Attaches a reference (retained). TETHER_ENOMEM, TETHER_ETOOBIG. */
tether_status tether__value_attach(tether_value *value, struct tether__attached_ref *ref);

static inline size_t tether__value_n_attached(const tether_value *value)
{
    return value ? value->n_attached : 0;
}

#endif
