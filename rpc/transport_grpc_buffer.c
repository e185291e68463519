/* Slices of ours to and from slices of gRPC.
 *
 * Sending: a large piece becomes a gRPC slice that releases the owner when gRPC is done with it; a
 * run of small ones is copied into one slice, since counting costs more than copying them.
 *
 * Receiving: a message that came in one gRPC slice is lent out as it is, and what counts it is used
 * again for the next when nobody kept it. One that came in several is copied together, into one
 * block with its count.
 */
#include <grpc/byte_buffer.h>
#include <grpc/slice.h>
#include <grpc/slice_buffer.h>
#include <string.h>

#include "base/alloc.h"
#include "base/handover.h"
#include "rpc/transport_grpc.h"

#define COPY_BELOW 4096

struct tether__grpc_received {
    struct tether__slice_owner owner;
    atomic_uint refs;
    grpc_byte_buffer *buffer; /* NULL: the bytes are in `copy` */
    uint8_t copy[];
};

/* ---- Sending ---- */

static bool is_copied(struct tether__slice piece)
{
    return !piece.owner || piece.len < COPY_BELOW;
}

static void release_owner(void *owner)
{
    tether__take_over(owner);
    ((struct tether__slice_owner *)owner)->release(owner);
}

void tether__grpc_gather(grpc_slice_buffer *slices, const struct tether__slice *pieces, size_t n)
{
    for (size_t i = 0; i < n;) {
        if (!is_copied(pieces[i])) {
            tether__hand_over(pieces[i].owner);
            /* gRPC only reads what it sends, though its type does not say so. */
            grpc_slice_buffer_add(
                slices, grpc_slice_new_with_user_data((void *)pieces[i].data, pieces[i].len,
                                                      release_owner, pieces[i].owner));
            i++;
            continue;
        }
        size_t end = i, len = 0;
        for (; end < n && is_copied(pieces[end]); end++)
            len += pieces[end].len;
        grpc_slice run = grpc_slice_malloc(len);
        uint8_t *at = GRPC_SLICE_START_PTR(run);
        for (; i < end; i++) {
            if (pieces[i].len)
                at = mempcpy(at, pieces[i].data, pieces[i].len);
            tether__slice_release(pieces[i]);
        }
        grpc_slice_buffer_add(slices, run);
    }
}

/* ---- Receiving ---- */

static struct tether__grpc_received *received_of(struct tether__slice_owner *owner)
{
    return tether__container_of(owner, struct tether__grpc_received, owner);
}

static void received_retain(struct tether__slice_owner *owner)
{
    atomic_fetch_add_explicit(&received_of(owner)->refs, 1, memory_order_relaxed);
}

/* True: it was the last, and the message is gone. */
static bool drop_ref(struct tether__grpc_received *received)
{
    if (atomic_fetch_sub_explicit(&received->refs, 1, memory_order_acq_rel) != 1)
        return false;
    if (received->buffer)
        grpc_byte_buffer_destroy(received->buffer);
    return true;
}

static void received_release(struct tether__slice_owner *owner)
{
    if (drop_ref(received_of(owner)))
        tether__free(received_of(owner));
}

static struct tether__grpc_received *received_new(size_t copied)
{
    struct tether__grpc_received *received = tether__malloc(sizeof *received + copied);
    if (received)
        received->owner = (struct tether__slice_owner){received_retain, received_release};
    return received;
}

static bool receive_copied(grpc_byte_buffer *buffer, struct tether__slice *ret_slice)
{
    const grpc_slice_buffer *slices = &buffer->data.raw.slice_buffer;
    struct tether__grpc_received *received = received_new(slices->length);
    if (received) {
        atomic_init(&received->refs, 1);
        received->buffer = NULL;
        uint8_t *at = received->copy;
        for (size_t i = 0; i < slices->count; i++)
            at = mempcpy(at, GRPC_SLICE_START_PTR(slices->slices[i]),
                         GRPC_SLICE_LENGTH(slices->slices[i]));
        *ret_slice = (struct tether__slice){received->copy, slices->length, &received->owner};
    }
    grpc_byte_buffer_destroy(buffer);
    return received;
}

static bool receive_lent(grpc_byte_buffer *buffer,
                         struct tether__grpc_received **spare,
                         struct tether__slice *ret_slice)
{
    struct tether__grpc_received *received = *spare ? *spare : received_new(0);
    if (!received) {
        grpc_byte_buffer_destroy(buffer);
        return false;
    }
    *spare = NULL;
    atomic_init(&received->refs, 1);
    received->buffer = buffer;
    const grpc_slice_buffer *slices = &buffer->data.raw.slice_buffer;
    *ret_slice = (struct tether__slice){NULL, 0, &received->owner};
    if (slices->count) { /* a short slice has its bytes in itself: it must be read in its place */
        ret_slice->data = GRPC_SLICE_START_PTR(slices->slices[0]);
        ret_slice->len = GRPC_SLICE_LENGTH(slices->slices[0]);
    }
    return true;
}

bool tether__grpc_receive(struct tether__grpc *transport,
                          grpc_byte_buffer *buffer,
                          struct tether__grpc_received **spare,
                          struct tether__slice *ret_slice)
{
    if (buffer->data.raw.slice_buffer.count <= 1)
        return receive_lent(buffer, spare, ret_slice);
    atomic_fetch_add_explicit(&transport->stats.copies_in, 1, memory_order_relaxed);
    return receive_copied(buffer, ret_slice);
}

void tether__grpc_received_release(struct tether__slice slice, struct tether__grpc_received **spare)
{
    struct tether__grpc_received *received = received_of(slice.owner);
    bool lent = received->buffer;
    if (!drop_ref(received))
        return;
    if (lent && !*spare)
        *spare = received;
    else
        tether__free(received);
}

void tether__grpc_received_free(struct tether__grpc_received *spare)
{
    tether__free(spare);
}
