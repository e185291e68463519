/* Status names and texts from the one table in status.h, and the fixed-size error message. */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"

struct status_row {
    tether_status status;
    const char *name;
    const char *text;
    int grpc;
};

static const struct status_row rows[] = {
#define X(name, number, text, grpc) [number] = {TETHER_##name, "TETHER_" #name, text, grpc},
    TETHER_STATUS_MAP(X)
#undef X
};

/* The status for each gRPC code, for replies of peers that know only gRPC. */
static const tether_status from_grpc[] = {
    [0] = TETHER_OK,        [1] = TETHER_ECANCELED,  [2] = TETHER_EREMOTE,
    [3] = TETHER_EINVAL,    [4] = TETHER_ETIMEOUT,   [5] = TETHER_ENOTFOUND,
    [6] = TETHER_EEXIST,    [7] = TETHER_EPERM,      [8] = TETHER_EBUSY,
    [9] = TETHER_ECLOSED,   [10] = TETHER_EFENCED,   [11] = TETHER_ETOOBIG,
    [12] = TETHER_ENOTSUP,  [13] = TETHER_EINTERNAL, [14] = TETHER_EUNAVAILABLE,
    [15] = TETHER_ECORRUPT, [16] = TETHER_EAUTH,
};

static const struct status_row *find(tether_status status)
{
    size_t i = (size_t)status;
    return i < TETHER__ARRAY_LEN(rows) ? &rows[i] : NULL;
}

const char *tether_status_name(tether_status status)
{
    const struct status_row *row = find(status);
    return row ? row->name : "TETHER_?";
}

const char *tether_status_text(tether_status status)
{
    const struct status_row *row = find(status);
    return row ? row->text : "unknown status";
}

int tether_status_to_grpc(tether_status status)
{
    const struct status_row *row = find(status);
    return row ? row->grpc : 2;
}

tether_status tether_status_from_grpc(int grpc_code)
{
    if (grpc_code < 0 || (size_t)grpc_code >= TETHER__ARRAY_LEN(from_grpc))
        return TETHER_EINTERNAL;
    return from_grpc[grpc_code];
}

/* How much of a long raw text is escaped at each of its ends: more than a message shows. */
#define PART_SIZE TETHER_ERROR_MESSAGE_SIZE
#define MAX_ESCAPED 4 /* the most bytes that one escaped byte takes: "\x1b" */
/* Size of the buffer for formatting. A longer text takes memory until it is cut. */
#define RAW_SIZE (4 * TETHER_ERROR_MESSAGE_SIZE)

/* Puts `raw` into `message`, escaped: it may have come from a peer or a store. A message that is
 * too long loses its middle. */
static void fill_message(char message[TETHER_ERROR_MESSAGE_SIZE], const char *raw, size_t len)
{
    char text[2 * PART_SIZE * MAX_ESCAPED + 1];
    size_t front = len, end = len;
    /* the gap between both parts is in the middle, which the message does not show */
    if (len > (size_t)2 * PART_SIZE) {
        front = PART_SIZE;
        end = len - PART_SIZE;
    }
    size_t n =
        tether__text_escape(text, sizeof text, tether_bytes_of(raw, front), TETHER__TEXT_LINE);
    n += tether__text_escape(text + n, sizeof text - n, tether_bytes_of(raw + end, len - end),
                             TETHER__TEXT_LINE);
    tether__text_fit(message, TETHER_ERROR_MESSAGE_SIZE, tether_bytes_of(text, n));
}

/* Formats a text that did not fit into `buffer` into allocated memory. Without memory returns its
 * beginning and three dots.
 */
static char *print_long(char buffer[RAW_SIZE], size_t len, const char *format, va_list args)
{
    char *whole = tether__malloc(len + 1);
    if (!whole) {
        memcpy(buffer + RAW_SIZE - sizeof "...", "...", sizeof "...");
        return buffer;
    }
    vsnprintf(whole, len + 1, format, args);
    return whole;
}

tether_status tether_error_set(tether_error *reterr, tether_status status, const char *format, ...)
{
    if (!reterr)
        return status;
    /* a separate buffer, because the arguments may point into *reterr */
    char buffer[RAW_SIZE], *raw = buffer;
    va_list args;
    va_start(args, format);
    int wanted = vsnprintf(buffer, sizeof buffer, format, args);
    va_end(args);
    if (wanted < 0)
        buffer[0] = '\0';
    if (wanted >= (int)sizeof buffer) {
        va_start(args, format);
        raw = print_long(buffer, (size_t)wanted, format, args);
        va_end(args);
    }
    reterr->code = status;
    fill_message(reterr->message, raw, strlen(raw));
    if (raw != buffer)
        tether__free(raw);
    return status;
}

tether_status tether_error_wrap(tether_error *reterr, tether_status status, const char *format, ...)
{
    if (!reterr)
        return status;
    /* Leaves room for the inner message after the context, so that wrapping allocates nothing. */
    char context[RAW_SIZE - TETHER_ERROR_MESSAGE_SIZE - sizeof "...: "];
    va_list args;
    va_start(args, format);
    int wanted = vsnprintf(context, sizeof context, format, args);
    va_end(args);
    const char *inner = reterr->code == status ? reterr->message : tether_status_text(status);
    size_t len = strlen(context);
    if (strncmp(inner, context, len) == 0 &&
        inner[len] == ':') /* skip a context that the message begins with already */
        return tether_error_set(reterr, status, "%s", inner);
    bool is_cut = wanted >= (int)sizeof context;
    return tether_error_set(reterr, status, "%s%s: %s", context, is_cut ? "..." : "", inner);
}
