/* Values: the arguments and the results of calls.
 *
 * A value is a run of bytes (text, a packed protobuf message, or anything) and the references that
 * are attached to it. It never changes once it has been made, except by attaching references before
 * it is sent. One value may be sent any number of times, to any number of workers.
 *
 * Ownership: reference-counted. A value in `ret_value` is yours: release it. Accessors LEND: their
 * results are valid until the value is released.
 *
 * Threads: any thread; but attach a reference only while no other thread uses the value.
 */
#ifndef TETHER_RPC_VALUE_H
#define TETHER_RPC_VALUE_H

#include <protobuf-c/protobuf-c.h>

#include "base/bytes.h"
#include "base/macros.h"
#include "base/status.h"

TETHER_BEGIN_DECLS

typedef struct tether_value tether_value;

/* A copy of `bytes`. TETHER_ENOMEM. */
TETHER_API tether_status tether_value_new(tether_bytes bytes,
                                          tether_value **ret_value,
                                          tether_error *reterr);

/* TAKES `data`: no copy is made, and `free_fn(data, userdata)` (may be NULL) runs once, on any
 * thread, when it is no longer needed; it must not call Tether. On error `data` is still yours.
 * TETHER_ENOMEM. */
TETHER_API tether_status tether_value_take(void *data,
                                           size_t len,
                                           void (*free_fn)(void *data, void *userdata),
                                           void *userdata,
                                           tether_value **ret_value,
                                           tether_error *reterr);

/* Text as printf makes it. TETHER_ENOMEM. */
TETHER_API tether_status tether_value_printf(tether_value **ret_value,
                                             tether_error *reterr,
                                             const char *format,
                                             ...) TETHER_PRINTF(3, 4);

/* A protobuf-c message, packed straight into the value. TETHER_ENOMEM. */
TETHER_API tether_status tether_value_pack(const ProtobufCMessage *message,
                                           tether_value **ret_value,
                                           tether_error *reterr);

/* The message in the value; free it with protobuf_c_message_free_unpacked(message, NULL).
 * TETHER_ECORRUPT when the bytes are not such a message, TETHER_ETYPE when the value is an object,
 * TETHER_ETOOBIG when messages in it are nested in more than 100 levels: protobuf-c calls itself
 * for each. */
TETHER_API tether_status tether_value_unpack(const tether_value *value,
                                             const ProtobufCMessageDescriptor *type,
                                             ProtobufCMessage **ret_message,
                                             tether_error *reterr);

/* ---- Objects: a pointer of your own with a type ---- */

/* Describes your objects to Tether. `name` (1 to 63 characters) is the same on every worker; the
 * type itself is a static constant: it must live as long as the program. */
typedef struct tether_type {
    const char *name;
    /* Runs once, when the object is no longer needed, holding no lock. May be NULL. Runs on the
     * thread that releases the last handle. If that thread receives messages or has timers of an
     * agent (also: yours, while it waits for a reply), the destructor runs on a thread of the
     * agent's for that purpose instead, so it may take its time, and may make blocking calls. If
     * the last handle is released in a callback or in an inline function on your own thread, a
     * blocking call in the destructor returns TETHER_EDEADLK; tether_agent_shutdown() always does.
     * Destructors that are due have run when tether_agent_shutdown() returns. */
    void (*destroy)(void *object);
    /* Writes the object into `ret_bytes`, for a worker that wants a copy. Any thread, several at
     * once, also one that receives messages: it should be quick, and a blocking call of Tether in
     * it returns TETHER_EDEADLK. Any status fails the call with that status. NULL: objects of this
     * type cannot be copied to another worker, only referred to. */
    tether_status (*serialise)(const void *object, tether_buf *ret_bytes, tether_error *reterr);
    /* Makes an object of such bytes, under the same rules. NULL: the receiver gets the bytes. */
    tether_status (*deserialise)(tether_bytes bytes, void **ret_object, tether_error *reterr);
} tether_type;

#define TETHER_MAX_TYPE_NAME 63

/* A value that is `object` itself. TAKES it on success: type->destroy(object) runs with the last
 * release. TETHER_EINVAL (no name), TETHER_ENOMEM: it is still yours. */
TETHER_API tether_status tether_value_new_object(const tether_type *type,
                                                 void *object,
                                                 tether_value **ret_value,
                                                 tether_error *reterr);

/* The object in the value (LENDS), when it is of type `type`; else NULL. */
TETHER_API void *tether_value_object(const tether_value *value, const tether_type *type);

/* The type of the object in the value; NULL for plain bytes. */
TETHER_API const tether_type *tether_value_type(const tether_value *value);

/* ---- Content of a value ---- */

/* The bytes; none for NULL and for an object. LENDS. */
TETHER_API tether_bytes tether_value_bytes(const tether_value *value);

/* The bytes as a string that ends with a NUL. A NULL value gives "". LENDS. (A large value that was
 * received is copied once, at the first call; out of memory gives "".) */
TETHER_API const char *tether_value_str(const tether_value *value);

/* Retain gives the same value back; release accepts NULL and returns NULL. */
TETHER_API tether_value *tether_value_retain(tether_value *value);
TETHER_API tether_value *tether_value_release(tether_value *value);

TETHER_END_DECLS

#endif
