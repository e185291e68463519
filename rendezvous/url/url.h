/* URLs as the rendezvous uses them: scheme://host:port/path?key=value&key=value.
 *
 * Happy path: parse() splits the text and decodes it (%41 -> A) into one block of memory; accessors
 * lend pieces of it; free() frees it. Every refusal is TETHER_EINVAL with a message that says what
 * to write instead. No locks: a parsed URL never changes.
 *
 * The parser is stricter than a browser, since a worker with a misread address would only time out:
 * no user names, no fragments, no white space, no parameter twice or without a value.
 */
#ifndef TETHER_RENDEZVOUS_URL_URL_H
#define TETHER_RENDEZVOUS_URL_URL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

#define TETHER__URL_MAX 4096 /* characters */
#define TETHER__URL_NO_PORT (-1)

struct tether__url_param {
    const char *key;
    const char *value;
};

struct tether__url {
    const char *scheme; /* the scheme in lower case */
    const char *host;   /* the host without brackets; "" when there is none */
    const char *path;   /* the path with its leading '/'; "" when there is none */
    int port;           /* the port, 0..65535, or TETHER__URL_NO_PORT */
    size_t n_params;
    struct tether__url_param params[];
};

/* Parses `text`. The result is one allocation; free it with tether__url_free(). */
tether_status tether__url_parse(const char *text,
                                struct tether__url **ret_url,
                                tether_error *reterr);
struct tether__url *tether__url_free(struct tether__url *url);

/* Length of the scheme that `text` starts with ("tcp" of "tcp://..."); 0 when it has none. */
size_t tether__url_scheme_len(const char *text);

/* Whether the `len` characters at `text` can be a scheme: a letter, then letters, digits, '+', '-'
 * or
 * '.'. */
bool tether__url_is_scheme(const char *text, size_t len);

/* Returns the value of parameter `key`, or NULL. */
const char *tether__url_param(const struct tether__url *url, const char *key);

/* Refuses parameters that are not in `known` (NULL-terminated), so that a typo is noticed. */
tether_status tether__url_check_params(const struct tether__url *url,
                                       const char *const *known,
                                       tether_error *reterr);

/* Reads a decimal number in [min, max]; `what` names it in the error ("query parameter rank"). */
tether_status tether__parse_int(const char *text,
                                const char *what,
                                int min,
                                int max,
                                int *ret_value,
                                tether_error *reterr);

#endif
