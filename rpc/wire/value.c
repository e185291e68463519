/* Values: one allocation for a small one, none but the header for a large one that is taken or
 * received. */
#include "rpc/value.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/threads/reaper.h"
#include "base/threads/state.h"
#include "rpc/wire/message_depth.h"
#include "rpc/wire/value_internal.h"

/* Received bytes up to this size are copied. Longer ones keep the transport's buffer, unless that
 * is far larger: the sender could have filled the rest with bytes that no limit counts. */
#define COPY_UP_TO 4096

static tether_value *value_of(struct tether__slice_owner *owner)
{
    return tether__container_of(owner, tether_value, owner);
}

static void retain_bytes(struct tether__slice_owner *owner)
{
    atomic_fetch_add_explicit(&value_of(owner)->bytes_refs, 1, memory_order_relaxed);
}

static void free_bytes(tether_value *value)
{
    if (!value->type) {
        if (value->backing)
            value->backing->release(value->backing);
        if (value->free_fn)
            value->free_fn((void *)(uintptr_t)value->data, value->free_userdata);
    }
    tether__free(value);
}

static void release_bytes(struct tether__slice_owner *owner)
{
    tether_value *value = value_of(owner);
    if (atomic_load_explicit(&value->bytes_refs, memory_order_acquire) ==
            1 || /* this is the last count, so no atomic operation is needed */
        atomic_fetch_sub_explicit(&value->bytes_refs, 1, memory_order_acq_rel) == 1)
        free_bytes(value);
}

/* Allocates a value with room for `len` bytes and a NUL. */
static tether_value *value_alloc(size_t len)
{
    if (len > SIZE_MAX - sizeof(tether_value) - 1)
        return NULL;
    tether_value *value = tether__malloc(sizeof *value + len + 1);
    if (!value)
        return NULL;
    memset(value, 0, sizeof *value);
    value->owner = (struct tether__slice_owner){retain_bytes, release_bytes, 0};
    atomic_init(&value->refs, 1);
    atomic_init(&value->bytes_refs, 1);
    value->data = (const uint8_t *)value->storage;
    value->len = len;
    value->storage[len] = '\0';
    return value;
}

static tether_status no_memory(size_t len, tether_error *reterr)
{
    return tether_error_set(reterr, TETHER_ENOMEM, "no memory for a value of %zu bytes", len);
}

tether_status tether_value_new(tether_bytes bytes, tether_value **ret_value, tether_error *reterr)
{
    tether_value *value = value_alloc(bytes.len);
    if (!value)
        return no_memory(bytes.len, reterr);
    if (bytes.len)
        memcpy(value->storage, bytes.data, bytes.len);
    *ret_value = value;
    return TETHER_OK;
}

tether_status tether_value_take(void *data,
                                size_t len,
                                void (*free_fn)(void *data, void *userdata),
                                void *userdata,
                                tether_value **ret_value,
                                tether_error *reterr)
{
    tether_value *value = value_alloc(0);
    if (!value)
        return no_memory(0, reterr);
    value->data = data;
    value->len = len;
    value->free_fn = free_fn;
    value->free_userdata = userdata;
    *ret_value = value;
    return TETHER_OK;
}

tether_status tether_value_printf(tether_value **ret_value,
                                  tether_error *reterr,
                                  const char *format,
                                  ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int len = vsnprintf(NULL, 0, format, args);
    va_end(args);
    tether_value *value = len < 0 ? NULL : value_alloc((size_t)len);
    if (value)
        vsnprintf(value->storage, (size_t)len + 1, format, again);
    va_end(again);
    if (!value)
        return no_memory(len < 0 ? 0 : (size_t)len, reterr);
    *ret_value = value;
    return TETHER_OK;
}

tether_status tether_value_pack(const ProtobufCMessage *message,
                                tether_value **ret_value,
                                tether_error *reterr)
{
    size_t len = protobuf_c_message_get_packed_size(message);
    tether_value *value = value_alloc(len);
    if (!value)
        return no_memory(len, reterr);
    protobuf_c_message_pack(message, (uint8_t *)value->storage);
    *ret_value = value;
    return TETHER_OK;
}

tether_status tether_value_unpack(const tether_value *value,
                                  const ProtobufCMessageDescriptor *type,
                                  ProtobufCMessage **ret_message,
                                  tether_error *reterr)
{
    if (value && value->type)
        return tether_error_set(reterr, TETHER_ETYPE,
                                "the value is an object of type '%s', not a packed %s message: get "
                                "it with tether_value_object()",
                                value->type->name, type->name);
    tether_bytes bytes = tether_value_bytes(value);
    if (!tether__message_depth_fits(type, bytes))
        return tether_error_set(reterr, TETHER_ETOOBIG,
                                "the messages in this %s are nested in more than %d levels: nest "
                                "them less deep",
                                type->name, TETHER__MAX_DEPTH);
    ProtobufCMessage *message = protobuf_c_message_unpack(type, NULL, bytes.len, bytes.data);
    if (!message)
        return tether_error_set(reterr, TETHER_ECORRUPT,
                                "these %zu bytes are not a %s message: sender and receiver must "
                                "agree on the type",
                                bytes.len, type->name);
    *ret_message = message;
    return TETHER_OK;
}

static bool is_worth_a_copy(struct tether__slice slice)
{
    return slice.len <= COPY_UP_TO || slice.len <= tether__slice_pins(slice) / 2;
}

tether_status tether__value_from_slice(struct tether__slice slice, tether_value **ret_value)
{
    if (is_worth_a_copy(slice))
        return tether_value_new(tether__slice_bytes(slice), ret_value, NULL);
    tether_value *value = value_alloc(0);
    if (!value)
        return TETHER_ENOMEM;
    value->data = slice.data;
    value->len = slice.len;
    value->backing = tether__slice_retain(slice).owner;
    *ret_value = value;
    return TETHER_OK;
}

tether_status tether_value_new_object(const tether_type *type,
                                      void *object,
                                      tether_value **ret_value,
                                      tether_error *reterr)
{
    size_t len = type && type->name ? strlen(type->name) : 0;
    if (len == 0 || len > TETHER_MAX_TYPE_NAME)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "an object needs a type with a name of 1 to %d characters",
                                TETHER_MAX_TYPE_NAME);
    tether_value *value = value_alloc(0);
    if (!value)
        return no_memory(0, reterr);
    value->type = type;
    value->object = object;
    *ret_value = value;
    return TETHER_OK;
}

void *tether_value_object(const tether_value *value, const tether_type *type)
{
    bool same = value && value->type && type &&
                (value->type == type || strcmp(value->type->name, type->name) == 0);
    return same ? value->object : NULL;
}

const tether_type *tether_value_type(const tether_value *value)
{
    return value ? value->type : NULL;
}

/* Checks the status that serialise() or deserialise() of `type` returned, and fills `reterr`. */
static tether_status checked_status(tether_status returned,
                                    const char *doing,
                                    const tether_type *type,
                                    tether_error *reterr)
{
    tether_status st = tether__status_from_outside(returned);
    if (st != returned)
        tether_error_set(reterr, st,
                         "%s an object of type '%s': returned %d, which is not a "
                         "tether_status",
                         doing, type->name, returned);
    /* the function has failed without filling in the error */
    else if (st != TETHER_OK && reterr->code != st)
        tether_error_set(reterr, st, "%s an object of type '%s': %s", doing, type->name,
                         tether_status_text(st));
    return st;
}

tether_status tether__value_to_send(const tether_value *value,
                                    tether_value **ret_value,
                                    tether_error *reterr)
{
    if (!value || !value->type) {
        *ret_value = tether_value_retain((tether_value *)value);
        return TETHER_OK;
    }
    if (!value->type->serialise)
        return tether_error_set(reterr, TETHER_ENOTSUP,
                                "objects of type '%s' cannot be copied to another worker (the type "
                                "has no serialise): pass a reference instead",
                                value->type->name);
    tether_buf bytes = TETHER_BUF_INIT;
    struct tether__call_context own = tether__context_leave();
    tether__thread_state.must_not_block++;
    tether_error why = {0};
    tether_status st = value->type->serialise(value->object, &bytes, &why);
    tether__thread_state.must_not_block--;
    tether__context_return(own);
    st = checked_status(st, "writing", value->type, &why);
    if (st != TETHER_OK && reterr)
        *reterr = why;
    tether_value *copy = NULL;
    if (st == TETHER_OK)
        st = tether_value_new(tether_buf_bytes(&bytes), &copy, reterr);
    tether_buf_fini(&bytes);
    for (uint32_t i = 0; st == TETHER_OK && i < value->n_attached; i++)
        st = tether__value_attach(copy,
                                  /* both the copy and the object keep the references */
                                  value->attached[i]);
    if (st == TETHER_OK)
        *ret_value = copy;
    else
        tether_value_release(copy);
    return st;
}

enum tether__outcome tether__value_received(struct tether__slice payload,
                                            const tether_type *type,
                                            tether_value **ret_value,
                                            tether_error *reterr)
{
    if (!type || !type->deserialise) {
        if (tether__value_from_slice(payload, ret_value) == TETHER_OK)
            return TETHER__DONE;
        no_memory(payload.len, reterr);
        return TETHER__NO_MEMORY;
    }
    void *object = NULL;
    struct tether__call_context own = tether__context_leave();
    tether__thread_state.must_not_block++;
    tether_status st = type->deserialise(tether__slice_bytes(payload), &object, reterr);
    tether__thread_state.must_not_block--;
    tether__context_return(own);
    st = checked_status(st, "reading", type, reterr);
    if (st != TETHER_OK)
        return TETHER__REFUSED;
    st = tether_value_new_object(type, object, ret_value, reterr);
    /* there is no value that could own the object, so destroy it here */
    if (st != TETHER_OK && type->destroy) {
        tether__thread_state.must_not_block++;
        tether__thread_state.destroying++;
        type->destroy(object);
        tether__thread_state.destroying--;
        tether__thread_state.must_not_block--;
    }
    return tether__outcome_of(st);
}

tether_bytes tether_value_bytes(const tether_value *value)
{
    return value ? tether_bytes_of(value->data, value->len) : tether_bytes_of(NULL, 0);
}

const char *tether_value_str(const tether_value *value)
{
    if (!value)
        return "";
    if (value->data == (const uint8_t *)value->storage)
        return value->storage;
    /* allowed, because `text` is only a cache */
    tether_value *mutable_value = (tether_value *)value;
    char *text = atomic_load_explicit(&mutable_value->text, memory_order_acquire);
    if (text)
        return text;
    text = value->len < SIZE_MAX ? tether__malloc(value->len + 1) : NULL;
    if (!text)
        return "";
    if (value->len)
        memcpy(text, value->data, value->len);
    text[value->len] = '\0';
    char *other = NULL;
    if (atomic_compare_exchange_strong(&mutable_value->text, &other, text))
        return text;
    tether__free(text); /* another thread has stored its copy first */
    return other;
}

tether_value *tether_value_retain(tether_value *value)
{
    if (value)
        atomic_fetch_add_explicit(&value->refs, 1, memory_order_relaxed);
    return value;
}

static void release_rest(tether_value *value)
{
    tether__free(atomic_load_explicit(&value->text, memory_order_relaxed));
    release_bytes(&value->owner);
}

static void destroy_object(struct tether__work *work)
{
    tether_value *value = tether__container_of(work, tether_value, work);
    struct tether__call_context own = tether__context_leave();
    tether__thread_state.destroying++;
    value->type->destroy(value->object);
    tether__thread_state.destroying--;
    tether__context_return(own);
    release_rest(value);
}

/* Uses the work list, because a destructor may release references and values whose destructors do
 * the same. */
tether_value *tether_value_release(tether_value *value)
{
    if (!value || atomic_fetch_sub_explicit(&value->refs, 1, memory_order_acq_rel) != 1)
        return NULL;
    for (uint32_t i = 0; i < value->n_attached; i++)
        value->attached[i]->ops->release(value->attached[i]);
    tether__free(value->attached);
    if (value->type && value->type->destroy) {
        value->work.run = destroy_object;
        if (!tether__thread_state.reaper ||
            !tether__reaper_give(tether__thread_state.reaper, &value->work))
            tether__work_run_last(&value->work);
    } else {
        release_rest(value);
    }
    return NULL;
}

tether_status tether__value_attach(tether_value *value, struct tether__attached_ref *ref)
{
    if (value->n_attached >= TETHER__MAX_REFS)
        return TETHER_ETOOBIG;
    /* The array grows by powers of two, so it is full exactly when the count is a power of two. */
    uint32_t n = value->n_attached;
    if (n == 0 || (n & (n - 1)) == 0) {
        struct tether__attached_ref **grown =
            tether__realloc(value->attached, (n ? 2 * n : 1) * sizeof *grown);
        if (!grown)
            return TETHER_ENOMEM;
        value->attached = grown;
    }
    ref->ops->retain(ref);
    value->attached[value->n_attached++] = ref;
    return TETHER_OK;
}
