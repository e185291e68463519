/* The URL parser. It decodes the parts in place, in a copy of the text that follows the struct and
 * its parameters in the same block. Decoding never makes a part longer. */
#include "rendezvous/url/url.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

static size_t scheme_span(const char *text)
{
    size_t len = 0;
    if (!isalpha((unsigned char)text[0]))
        return 0;
    while (isalnum((unsigned char)text[len]) || (text[len] && strchr("+-.", text[len])))
        len++;
    return len;
}

bool tether__url_is_scheme(const char *text, size_t len)
{
    return len > 0 && scheme_span(text) >= len;
}

size_t tether__url_scheme_len(const char *text)
{
    size_t len = scheme_span(text);
    return strncmp(text + len, "://", 3) == 0 ? len : 0;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Replaces %XX by its character, in place. */
static tether_status decode(char *text, tether_error *reterr)
{
    char *out = text;
    for (const char *in = text; *in; in++) {
        if (*in != '%') {
            *out++ = *in;
            continue;
        }
        int high = hex_digit(in[1]);
        int low = high < 0 ? -1 : hex_digit(in[2]);
        if (low < 0)
            return tether_error_set(reterr, TETHER_EINVAL,
                                    "'%.3s' in the URL is not %% and two hexadecimal digits: "
                                    "write %%25 for a percent sign",
                                    in);
        if (high == 0 && low == 0)
            return tether_error_set(reterr, TETHER_EINVAL, "the URL contains %%00: remove it");
        *out++ = (char)(high << 4 | low);
        in += 2;
    }
    *out = '\0';
    return TETHER_OK;
}

tether_status tether__parse_int(const char *text,
                                const char *what,
                                int min,
                                int max,
                                int *ret_value,
                                tether_error *reterr)
{
    char *end = NULL;
    errno = 0;
    long value = strtol(text, &end, 10);
    bool whole = end != text && *end == '\0' && !isspace((unsigned char)text[0]);
    if (!whole)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "%s is '%.64s', which is not a number: give one", what, text);
    if (errno == ERANGE || value < min || value > max) {
        if (max == INT_MAX)
            return tether_error_set(reterr, TETHER_EINVAL,
                                    "%s is %.32s: give a whole number, %d or more", what, text,
                                    min);
        return tether_error_set(reterr, TETHER_EINVAL, "%s is %.32s: give a number from %d to %d",
                                what, text, min, max);
    }
    *ret_value = (int)value;
    return TETHER_OK;
}

/* Checks an IPv6 address without its brackets; its zone (%25eth0) is still encoded. */
static tether_status check_ipv6(char *host, tether_error *reterr)
{
    tether_status st = decode(host, reterr);
    if (st != TETHER_OK)
        return st;
    char address[INET6_ADDRSTRLEN];
    size_t len = strcspn(host, "%");
    struct in6_addr ignored;
    bool valid = len < sizeof address;
    if (valid) {
        memcpy(address, host, len);
        address[len] = '\0';
        valid = inet_pton(AF_INET6, address, &ignored) == 1;
    }
    if (!valid)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "'[%.64s]' is not an IPv6 address: brackets are for IPv6 only",
                                host);
    return TETHER_OK;
}

/* Parses host, host:port, [v6] or [v6]:port; changes `authority`. */
static tether_status parse_authority(struct tether__url *url, char *authority, tether_error *reterr)
{
    if (strchr(authority, '@'))
        return tether_error_set(reterr, TETHER_EINVAL,
                                "the URL names a user before '@': remove it, since URLs end up in "
                                "logs and process lists");
    char *port = NULL;
    tether_status st;
    if (authority[0] == '[') {
        char *close = strchr(authority, ']');
        if (!close || (close[1] != '\0' && close[1] != ':'))
            return tether_error_set(reterr, TETHER_EINVAL,
                                    "'%.64s' is not [IPv6 address]:port: check the brackets",
                                    authority);
        if (close[1] == ':')
            port = close + 2;
        *close = '\0';
        url->host = authority + 1;
        st = check_ipv6(authority + 1, reterr);
    } else {
        char *colon = strchr(authority, ':');
        if (colon && strchr(colon + 1, ':'))
            return tether_error_set(reterr, TETHER_EINVAL,
                                    "'%.64s' has several colons: write an IPv6 address in "
                                    "brackets, as in tcp://[::1]:29500",
                                    authority);
        if (colon) {
            *colon = '\0';
            port = colon + 1;
        }
        url->host = authority;
        st = decode(authority, reterr);
    }
    if (st != TETHER_OK || !port || !*port)
        return st;
    if (port[strspn(port, "0123456789")] != '\0')
        return tether_error_set(reterr, TETHER_EINVAL, "port '%.32s' is not a number", port);
    return tether__parse_int(port, "the port", 0, 65535, &url->port, reterr);
}

static tether_status parse_query(struct tether__url *url, char *query, tether_error *reterr)
{
    for (char *rest = query, *pair; (pair = strsep(&rest, "&"));) {
        if (!*pair)
            continue;
        char *value = strchr(pair, '=');
        if (!value || value == pair || !value[1])
            return tether_error_set(reterr, TETHER_EINVAL,
                                    "query parameter '%.64s' has no value: write key=value", pair);
        *value++ = '\0';
        tether_status st = decode(pair, reterr);
        if (st == TETHER_OK)
            st = decode(value, reterr);
        if (st != TETHER_OK)
            return st;
        if (tether__url_param(url, pair))
            return tether_error_set(reterr, TETHER_EINVAL,
                                    "query parameter %.64s is given twice: leave one", pair);
        url->params[url->n_params++] = (struct tether__url_param){pair, value};
    }
    return TETHER_OK;
}

static tether_status check_characters(const char *text, tether_error *reterr)
{
    size_t len = 0;
    for (; len <= TETHER__URL_MAX && text[len]; len++) {
        unsigned char c = (unsigned char)text[len];
        if (c <= ' ' || c == 0x7f)
            return tether_error_set(reterr, TETHER_EINVAL,
                                    "character %zu of the URL is white space or a control "
                                    "character: write it as %%%02X",
                                    len + 1, c);
        if (c == '#')
            return tether_error_set(reterr, TETHER_EINVAL,
                                    "the URL has a fragment ('#'): write %%23 if it is part of a "
                                    "name");
    }
    if (len > TETHER__URL_MAX)
        return tether_error_set(reterr, TETHER_EINVAL, "the URL is longer than %d characters",
                                TETHER__URL_MAX);
    return TETHER_OK;
}

static size_t count_params(const char *query)
{
    size_t n = 0;
    for (; *query; query++)
        n += *query == '=';
    return n;
}

/* Cuts `text` at its scheme, authority, path and query and parses each. */
static tether_status parse_pieces(struct tether__url *url, char *text, tether_error *reterr)
{
    char *query = strchr(text, '?');
    if (query)
        *query++ = '\0';
    size_t scheme_len = tether__url_scheme_len(text);
    for (size_t i = 0; i < scheme_len; i++)
        text[i] = (char)tolower((unsigned char)text[i]);
    text[scheme_len] = '\0';
    url->scheme = text;

    /* The authority moves one to the left, over the last '/' of "://", so that a NUL fits between
     * it and the path, which keeps its slash. */
    char *authority = text + scheme_len + 3;
    size_t authority_len = strcspn(authority, "/");
    char *path = authority + authority_len;
    memmove(authority - 1, authority, authority_len);
    authority--;
    authority[authority_len] = '\0';
    url->path = path;

    tether_status st = parse_authority(url, authority, reterr);
    if (st == TETHER_OK)
        st = decode(path, reterr);
    if (st == TETHER_OK && query)
        st = parse_query(url, query, reterr);
    return st;
}

tether_status tether__url_parse(const char *text,
                                struct tether__url **ret_url,
                                tether_error *reterr)
{
    tether_status st = check_characters(text, reterr);
    if (st != TETHER_OK)
        return st;
    if (tether__url_scheme_len(text) == 0)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "'%.64s' is not a URL: write scheme://..., as in "
                                "tcp://127.0.0.1:29500?rank=0&world_size=2 or env://",
                                text);
    size_t text_size = strlen(text) + 1;
    size_t params_size = count_params(text) * sizeof(struct tether__url_param);
    struct tether__url *url = tether__malloc(sizeof *url + params_size + text_size);
    if (!url)
        return tether_error_set(reterr, TETHER_ENOMEM, "out of memory to parse the URL");
    memset(url, 0, sizeof *url);
    url->port = TETHER__URL_NO_PORT;
    char *copy = (char *)url->params + params_size;
    memcpy(copy, text, text_size);
    st = parse_pieces(url, copy, reterr);
    if (st != TETHER_OK) {
        tether__url_free(url);
        return tether_error_wrap(reterr, st, "'%.64s'", text);
    }
    *ret_url = url;
    return TETHER_OK;
}

struct tether__url *tether__url_free(struct tether__url *url)
{
    return tether__free(url);
}

const char *tether__url_param(const struct tether__url *url, const char *key)
{
    for (size_t i = 0; i < url->n_params; i++)
        if (strcmp(url->params[i].key, key) == 0)
            return url->params[i].value;
    return NULL;
}

tether_status tether__url_check_params(const struct tether__url *url,
                                       const char *const *known,
                                       tether_error *reterr)
{
    for (size_t i = 0; i < url->n_params; i++) {
        const char *const *name = known;
        while (*name && strcmp(*name, url->params[i].key) != 0)
            name++;
        if (*name)
            continue;
        char list[160] = "";
        size_t used = 0;
        for (name = known; *name && used < sizeof list; name++)
            used +=
                (size_t)snprintf(list + used, sizeof list - used, "%s%s", used ? ", " : "", *name);
        return tether_error_set(reterr, TETHER_EINVAL,
                                "%s:// does not know query parameter '%.48s', only %s", url->scheme,
                                url->params[i].key, list);
    }
    return TETHER_OK;
}
