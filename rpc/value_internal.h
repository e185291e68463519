/* What the layers of Tether itself do with values: slices in and out, and riders.
 *
 * A rider is something that travels beside the bytes. The reference layer makes every attached
 * reference one; this layer only keeps them, counted, and hands them on.
 */
#ifndef TETHER_RPC_VALUE_INTERNAL_H
#define TETHER_RPC_VALUE_INTERNAL_H

#include <stdatomic.h>

#include "base/work_list.h"
#include "rpc/outcome.h"
#include "rpc/slice.h"
#include "rpc/value.h"

/* Embedded in what is attached. Counted like everything else. */
struct tether__rider {
    const struct tether__rider_ops *ops;
};

struct tether__rider_ops {
    void (*retain)(struct tether__rider *rider);
    void (*release)(struct tether__rider *rider);
};

struct tether_value {
    struct tether__slice_owner owner; /* lets the payload travel as a slice */
    _Atomic uint32_t refs;
    /* Slices of the bytes, and 1 for all handles together. What only handles need (riders, the
     * object) goes with the last of them: a slice is let go of under locks of the lane's owner,
     * where nothing may run that could want them. */
    _Atomic uint32_t bytes_refs;
    uint32_t n_riders;
    struct tether__rider **riders; /* NULL until something is attached */
    const tether_type *type;       /* of `object`; NULL: plain bytes */
    void *object;
    const uint8_t *data;
    size_t len;
    union {
        struct tether__work work; /* destroys `object`, which has no bytes of its own */
        struct {
            struct tether__slice_owner *backing; /* of received bytes; NULL: inline or taken */
            void (*free_fn)(void *data, void *userdata);
            void *free_userdata;
        };
    };
    _Atomic(char *) text; /* NUL-terminated copy, made when somebody asks */
    char storage[];       /* small values live here, with a NUL behind them */
};

/* A value over received bytes: small ones are copied, large ones keep the slice (retained). */
tether_status tether__value_from_slice(struct tether__slice slice, tether_value **ret_value);

/* The payload for sending, to be retained by who keeps it. */
static inline struct tether__slice tether__value_slice(tether_value *value)
{
    return value && value->len ? (struct tether__slice){value->data, value->len, &value->owner}
                               : TETHER__SLICE_EMPTY;
}

/* What is sent for `value`: itself, or the serialised object. Gives a value to release. `value` may
 * be NULL, then so is what it gives. */
tether_status tether__value_to_send(const tether_value *value,
                                    tether_value **ret_value,
                                    tether_error *reterr);

/* What was received: an object when `type` is known here (NULL: it is not), else the bytes.
 * REFUSED: deserialise() has failed, with any code. NO_MEMORY sets `*reterr`, too. */
enum tether__outcome tether__value_received(struct tether__slice payload,
                                            const tether_type *type,
                                            tether_value **ret_value,
                                            tether_error *reterr);

/* Adds a rider (retained). TETHER_ENOMEM, TETHER_ETOOBIG. */
#define TETHER__MAX_RIDERS 1024
tether_status tether__value_attach(tether_value *value, struct tether__rider *rider);

static inline size_t tether__value_n_riders(const tether_value *value)
{
    return value ? value->n_riders : 0;
}

#endif
