/* Status codes and errors: every function of Tether reports failures with them.
 *
 * A function returns a tether_status, zero for success. Most also take a `tether_error *reterr` as
 * the last argument, which may be NULL. On failure they fill it with the code and one sentence that
 * says what is wrong, where, and what to do; on success they leave it unchanged. A tether_error
 * owns no memory: put it on the stack, copy it, and free nothing.
 */
#ifndef TETHER_BASE_STATUS_H
#define TETHER_BASE_STATUS_H

#include "base/macros.h"

TETHER_BEGIN_DECLS

/* The list of statuses: X(name, number, text, gRPC status code). Numbers go over the wire: never
 * renumber, only add. */
#define TETHER_STATUS_MAP(X)                                     \
    X(OK, 0, "success", 0)                                       \
    X(ENOMEM, 1, "out of memory", 8)                             \
    X(EINVAL, 2, "invalid argument", 3)                          \
    X(ETIMEOUT, 3, "deadline passed", 4)                         \
    X(EREMOTE, 4, "remote function failed", 2)                   \
    X(EUNAVAILABLE, 5, "peer cannot be reached", 14)             \
    X(ECANCELED, 6, "canceled", 1)                               \
    X(ESHUTDOWN, 7, "shut down", 14)                             \
    X(EDEADLK, 8, "would block a thread that must not block", 9) \
    X(EBUSY, 9, "too much in flight", 8)                         \
    X(ENOTSUP, 10, "not supported", 12)                          \
    X(ENOTFOUND, 11, "not found", 5)                             \
    X(EEXIST, 12, "exists already", 6)                           \
    X(EGONE, 13, "object is gone", 5)                            \
    X(EOWNERDIED, 14, "owner of the object died", 14)            \
    X(ETOOBIG, 15, "larger than the limit", 11)                  \
    X(EPERM, 16, "not allowed", 7)                               \
    X(EAUTH, 17, "not authenticated", 16)                        \
    X(ECORRUPT, 18, "malformed data", 15)                        \
    X(EIO, 19, "system call failed", 2)                          \
    X(EADDRINUSE, 20, "address in use", 6)                       \
    X(ECLOSED, 21, "closed", 9)                                  \
    X(ETYPE, 22, "type mismatch", 9)                             \
    X(ELEAK, 23, "references leaked", 9)                         \
    X(EFENCED, 24, "fenced by the peer", 10)                     \
    X(EINTERNAL, 25, "internal error, please report it", 13)

typedef enum tether_status {
#define X(name, number, text, grpc) TETHER_##name = number,
    TETHER_STATUS_MAP(X)
#undef X
} tether_status;

#define TETHER_ERROR_MESSAGE_SIZE 256

/* Timeouts are `int timeout_ms` everywhere: 0 polls, -1 waits for ever, this value uses the default
 * of the object. */
#define TETHER_DEFAULT_MS (-2)

typedef struct tether_error {
    tether_status code;
    /* NUL-terminated; "..." stands for a middle that was cut out */
    char message[TETHER_ERROR_MESSAGE_SIZE];
} tether_error;

/* Returns "TETHER_ETIMEOUT" and so on; "TETHER_?" for a number that is not a status. Static string.
 * Any thread. */
TETHER_API const char *tether_status_name(tether_status status);

/* Returns a few words for messages ("deadline passed"); "unknown status" for a number that is not a
 * status. Static string. Never fails. Any thread. */
TETHER_API const char *tether_status_text(tether_status status);

/* Returns the gRPC status code (0..16) that represents `status` on a plain gRPC call. Any thread.
 */
TETHER_API int tether_status_to_grpc(tether_status status);

/* Returns the status for a gRPC code; TETHER_EINTERNAL for an unknown code. Any thread. */
TETHER_API tether_status tether_status_from_grpc(int grpc_code);

/* Fills `reterr` (may be NULL) and returns `status`, so that a failing function ends with
 * `return tether_error_set(reterr, TETHER_EINVAL, "...")`. A message is one line that is safe to
 * print: line breaks, control characters and bytes that are not UTF-8 become \\n, \\x1b and so
 * on. A message that is too long loses its middle. Any thread; allocates only for a text of 1,024
 * bytes or more, which loses its end when there is no memory. */
TETHER_API tether_status tether_error_set(tether_error *reterr,
                                          tether_status status,
                                          const char *format,
                                          ...) TETHER_PRINTF(3, 4);

/* Puts "context: " before the message that `reterr` (may be NULL) holds and returns `status`.
 * The front is kept when both do not fit. Any thread; never allocates, never fails. */
TETHER_API tether_status tether_error_wrap(tether_error *reterr,
                                           tether_status status,
                                           const char *format,
                                           ...) TETHER_PRINTF(3, 4);

TETHER_END_DECLS

#endif
