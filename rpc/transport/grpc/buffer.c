/* Slices of ours to and from slices of gRPC.
 *
 * Sending: a large piece is lent to gRPC, as a slice that releases the owner when gRPC is done with
 * it; a run of small ones is copied into one slice, since counting costs more than copying them.
 * gRPC may be done with a piece long after the conn has ended, on a thread of its own: the
 * transport counts what is lent, and destroy() waits for it, so that no owner is called afterwards.
 *
 * Receiving: a small message that came in one gRPC slice is lent out as it is, and the struct that
 * counts it is used again for the next message if no code kept it. Others are copied together, into
 * one block with its count: they mostly come in several slices, and a value that keeps one must not
 * keep the whole buffer that gRPC has read it into, which may be far larger and counts against the
 * quota. So are plain requests of any size, because they are kept until their calls are answered.
 */
#include <grpc/byte_buffer.h>
#include <grpc/slice.h>
#include <grpc/slice_buffer.h>
#include <string.h>

#include "base/alloc.h"
#include "base/threads/handover.h"
#include "rpc/transport/grpc/grpc.h"

#define COPY_BELOW 4096 /* when sending, pieces shorter than this are copied */
#define LEND_BELOW 4096 /* received messages shorter than this may be lent out as they are */

struct tether__grpc_received {
    struct tether__slice_owner owner;
    atomic_uint refs;
    grpc_byte_buffer *buffer; /* NULL: the bytes are in `copy` */
    uint8_t copy[];
};

/* ---- Sending ---- */

/* A piece that was lent to gRPC and that gRPC has not released yet. */
struct lent {
    struct tether__grpc *transport;
    struct tether__slice_owner *owner;
};

static void give_back(void *userdata)
{
    struct lent *lent = userdata;
    tether__take_over(lent);
    struct tether__grpc *transport = lent->transport;
    lent->owner->release(lent->owner);
    tether__free(lent);
    pthread_mutex_lock(&transport->mu);
    if (--transport->n_lent == 0)
        pthread_cond_signal(&transport->none_lent);
    pthread_mutex_unlock(&transport->mu);
}

/* Lends the piece to gRPC. NULL: the piece must be copied, because it is small, has no owner, or
 * there is no memory. */
static struct lent *lend(struct tether__grpc *transport, struct tether__slice piece)
{
    if (!piece.owner || piece.len < COPY_BELOW)
        return NULL;
    struct lent *lent = tether__malloc(sizeof *lent);
    if (!lent)
        return NULL;
    *lent = (struct lent){transport, piece.owner};
    pthread_mutex_lock(&transport->mu);
    transport->n_lent++;
    pthread_mutex_unlock(&transport->mu);
    tether__hand_over(lent);
    return lent;
}

/* Adds a copy of the pieces, as one slice. TAKES a retain of each. */
static void add_copy(grpc_slice_buffer *slices, const struct tether__slice *pieces, size_t n)
{
    size_t len = 0;
    for (size_t i = 0; i < n; i++)
        len += pieces[i].len;
    grpc_slice copy = grpc_slice_malloc(len);
    uint8_t *at = GRPC_SLICE_START_PTR(copy);
    for (size_t i = 0; i < n; i++) {
        if (pieces[i].len)
            at = mempcpy(at, pieces[i].data, pieces[i].len);
        tether__slice_release(pieces[i]);
    }
    grpc_slice_buffer_add(slices, copy);
}

void tether__grpc_gather(struct tether__grpc *transport,
                         grpc_slice_buffer *slices,
                         const struct tether__slice *pieces,
                         size_t n)
{
    /* pieces before this index are in `slices`; a run of small pieces begins here */
    size_t copied = 0;
    for (size_t i = 0; i < n; i++) {
        struct lent *lent = lend(transport, pieces[i]);
        if (!lent)
            continue;
        if (i > copied)
            add_copy(slices, pieces + copied, i - copied);
        /* gRPC only reads what it sends, though its type does not say so. */
        grpc_slice_buffer_add(slices, grpc_slice_new_with_user_data(
                                          (void *)pieces[i].data, pieces[i].len, give_back, lent));
        copied = i + 1;
    }
    if (n > copied)
        add_copy(slices, pieces + copied, n - copied);
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

/* Drops one reference. True: it was the last one, and the message was freed. */
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
        received->owner = (struct tether__slice_owner){received_retain, received_release, copied};
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
    /* a short gRPC slice holds its bytes inline, so take a pointer to the stored slice, not to a
     * copy */
    if (slices->count) {
        ret_slice->data = GRPC_SLICE_START_PTR(slices->slices[0]);
        ret_slice->len = GRPC_SLICE_LENGTH(slices->slices[0]);
    }
    return true;
}

bool tether__grpc_is_too_large(const grpc_byte_buffer *buffer,
                               size_t limit,
                               const char *peer,
                               tether_error *ret_cause)
{
    size_t len = buffer->data.raw.slice_buffer.length;
    if (len <= limit)
        return false;
    tether_error_set(ret_cause, TETHER_ETOOBIG,
                     "a message of %zu bytes from %s is over the limit of %zu", len, peer, limit);
    return true;
}

bool tether__grpc_receive(struct tether__grpc *transport,
                          grpc_byte_buffer *buffer,
                          struct tether__grpc_received **spare,
                          struct tether__slice *ret_slice)
{
    const grpc_slice_buffer *slices = &buffer->data.raw.slice_buffer;
    if (spare && slices->count <= 1 && slices->length < LEND_BELOW)
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
