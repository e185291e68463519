/* Endpoints and credentials: from the options to one lazy gRPC channel per endpoint.
 *
 * Each endpoint has its own channel, instead of one channel with many addresses. So names and
 * addresses of both families can be mixed, each certificate is checked against the name of its own
 * endpoint, and this client decides which endpoint is next.
 */
#include "rendezvous/store/etcd/client/channel.h"

#include <errno.h>
#include <fcntl.h>
#include <grpc/grpc_security.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/secret.h"
#include "base/threads/cond.h"
#include "net/address.h"
#include "net/grpc_init.h"
#include "rendezvous/store/etcd/client/grpc.h"

#define MAX_ENDPOINTS 64
#define MAX_PEM_BYTES (1 << 20)
#define MAX_REPLY_BYTES (64 << 20)

/* ---- Endpoints ------------------------------------------------------------------------------ */

struct address {
    char *name;   /* the address as "host:port" or "unix:/path", for messages */
    char *target; /* the address in the form that gRPC dials */
    bool tls, local;
};

static void address_fini(struct address *address)
{
    tether__free(address->name);
    tether__free(address->target);
    *address = (struct address){0};
}

/* Removes `start` from the front of the text; false when the text does not start with it. */
static bool skip(const char **text, size_t *len, const char *start)
{
    size_t n = strlen(start);
    if (*len < n || strncmp(*text, start, n) != 0)
        return false;
    *text += n;
    *len -= n;
    return true;
}

static tether_status address_parse(const char *text,
                                   size_t len,
                                   struct address *ret_address,
                                   tether_error *reterr)
{
    const char *whole = text;
    int whole_len = len > 80 ? 80 : (int)len;
    struct address address = {0};
    if (len > 5 && strncmp(text, "unix:", 5) == 0) {
        address.local = true;
        address.name = tether__asprintf("%.*s", (int)len, text);
        address.target = tether__asprintf("%.*s", (int)len, text);
    } else {
        address.tls = skip(&text, &len, "https://");
        if (!address.tls)
            skip(&text, &len, "http://");
        if (len && text[len - 1] == '/')
            len--;
        struct tether__address split;
        if (len > 300 || memchr(text, '/', len) || memchr(text, ' ', len) ||
            !tether__address_split(text, len, &split) || split.port == 0)
            return tether_error_set(
                reterr, TETHER_EINVAL,
                "'%.*s' is no etcd endpoint: use host:port, [IPv6]:port, https://host:port or "
                "unix:/path",
                whole_len, whole);
        int port = split.port < 0 ? TETHER__ETCD_DEFAULT_PORT : split.port;
        /* length of the host, including the brackets of an IPv6 address */
        int host_len = (int)split.host_len + (split.is_ipv6 ? 2 : 0);
        address.local = tether__address_is_loopback(&split);
        address.name = tether__asprintf("%.*s:%d", host_len, text, port);
        address.target = tether__asprintf("dns:///%.*s:%d", host_len, text, port);
    }
    if (!address.name || !address.target) {
        address_fini(&address);
        return tether_error_set(reterr, TETHER_ENOMEM, "out of memory for an etcd endpoint");
    }
    *ret_address = address;
    return TETHER_OK;
}

/* Fills `addresses` from a list with commas. The caller frees them, also on error. */
static tether_status addresses_parse(const char *list,
                                     struct address addresses[MAX_ENDPOINTS],
                                     size_t *n_addresses,
                                     tether_error *reterr)
{
    if (!list || !*list)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "no etcd endpoint given: name one, as in 127.0.0.1:2379");
    for (const char *at = list;; at++) {
        at += strspn(at, " ");
        size_t len = strcspn(at, ",");
        size_t trimmed = len;
        while (trimmed && at[trimmed - 1] == ' ')
            trimmed--;
        if (*n_addresses == MAX_ENDPOINTS)
            return tether_error_set(reterr, TETHER_ETOOBIG, "more than %d etcd endpoints",
                                    MAX_ENDPOINTS);
        tether_status st = address_parse(at, trimmed, &addresses[*n_addresses], reterr);
        if (st != TETHER_OK)
            return st;
        ++*n_addresses;
        at += len;
        if (!*at)
            return TETHER_OK;
    }
}

/* ---- Credentials ---------------------------------------------------------------------------- */

/* Reads a file that must contain `what`, "CERTIFICATE" or "PRIVATE KEY". gRPC would notice a wrong
 * file only when it connects, and would retry. */
static tether_status read_pem(const char *path,
                              const char *what,
                              tether_buf *ret_pem,
                              tether_error *reterr)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return tether_error_set(reterr, TETHER_EIO, "can't open %.100s: %s", path, strerror(errno));
    tether_buf pem = TETHER_BUF_INIT;
    tether_status st;
    for (;;) {
        st = tether_buf_reserve(&pem, 4096);
        if (st != TETHER_OK)
            break;
        ssize_t n = read(fd, pem.data + pem.len, 4096);
        if (n == 0)
            break;
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            st = tether_error_set(reterr, TETHER_EIO, "can't read %.100s: %s", path,
                                  strerror(errno));
            break;
        }
        pem.len += (size_t)n;
        pem.data[pem.len] = '\0';
        if (pem.len > MAX_PEM_BYTES) {
            st = tether_error_set(reterr, TETHER_ETOOBIG, "%.100s is no PEM file: over %d bytes",
                                  path, MAX_PEM_BYTES);
            break;
        }
    }
    close(fd);
    if (st == TETHER_OK && (!strstr(pem.data, "-----BEGIN ") || !strstr(pem.data, what)))
        st = tether_error_set(reterr, TETHER_EINVAL, "%.100s has no PEM block with a %s", path,
                              what);
    if (st != TETHER_OK) {
        tether_buf_fini(&pem);
        return st;
    }
    *ret_pem = pem;
    return TETHER_OK;
}

static tether_status tls_credentials(const struct tether_store_etcd_opts *opts,
                                     grpc_channel_credentials **ret_credentials,
                                     tether_error *reterr)
{
    tether_buf ca = TETHER_BUF_INIT, cert = TETHER_BUF_INIT, key = TETHER_BUF_INIT;
    tether_status st = TETHER_OK;
    if (opts->ca_path)
        st = read_pem(opts->ca_path, "CERTIFICATE", &ca, reterr);
    if (st == TETHER_OK && opts->cert_path)
        st = read_pem(opts->cert_path, "CERTIFICATE", &cert, reterr);
    if (st == TETHER_OK && opts->key_path)
        st = read_pem(opts->key_path, "PRIVATE KEY", &key, reterr);
    if (st == TETHER_OK) {
        grpc_ssl_pem_key_cert_pair pair = {.private_key = key.data, .cert_chain = cert.data};
        *ret_credentials =
            grpc_ssl_credentials_create(ca.data, opts->cert_path ? &pair : NULL, NULL, NULL);
        if (!*ret_credentials)
            st = tether_error_set(reterr, TETHER_EINVAL, "gRPC does not accept the certificates");
    }
    if (key.data)
        explicit_bzero(key.data, key.len);
    tether_buf_fini(&key);
    tether_buf_fini(&cert);
    tether_buf_fini(&ca);
    return st;
}

static tether_status check_opts(const struct tether_store_etcd_opts *opts,
                                const struct address *addresses,
                                size_t n,
                                bool *ret_tls,
                                tether_error *reterr)
{
    if (!opts->cert_path != !opts->key_path)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "a certificate needs its key: give both cert_path and key_path");
    if (!opts->user != !opts->password)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "a user needs a password: give both user and password");
    bool tls = opts->ca_path || opts->cert_path;
    for (size_t i = 0; i < n; i++)
        tls = tls || addresses[i].tls;
    for (size_t i = 0; opts->user && !tls && !opts->insecure && i < n; i++)
        if (!addresses[i].local)
            return tether_error_set(reterr, TETHER_EPERM,
                                    "the password would go to %.80s in the clear: use TLS, or set "
                                    "'insecure' (insecure=1 in a URL, --insecure of tether-run)",
                                    addresses[i].name);
    *ret_tls = tls;
    return TETHER_OK;
}

/* ---- The channel ---------------------------------------------------------------------------- */

static grpc_channel *dial(const char *target, grpc_channel_credentials *credentials)
{
#define INTEGER(name, number) \
    {.type = GRPC_ARG_INTEGER, .key = (char *)(name), .value.integer = (number)}
    grpc_arg args[] = {
        /* Reconnect soon after etcd is back; tether__etcd_try_again() has the longer waits. The
         * minimum limits a connection attempt. */
        INTEGER(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50),
        INTEGER(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000),
        INTEGER(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000),
        /* Detect a peer that no longer responds; etcd allows a ping every 5 s. */
        INTEGER(GRPC_ARG_KEEPALIVE_TIME_MS, 10000),
        INTEGER(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000),
        INTEGER(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
        INTEGER(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, MAX_REPLY_BYTES),
        INTEGER(GRPC_ARG_ENABLE_RETRIES, 0),
        INTEGER(GRPC_ARG_ENABLE_HTTP_PROXY, 0),
        INTEGER(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1),
    };
#undef INTEGER
    grpc_channel_args list = {TETHER__ARRAY_LEN(args), args};
    return grpc_channel_create(target, credentials, &list);
}

static tether_status describe(struct tether__etcd_channel *channel)
{
    tether_buf text = TETHER_BUF_INIT;
    for (size_t i = 0; i < channel->n_endpoints; i++) {
        tether_status st =
            tether_buf_printf(&text, "%s%s", i ? "," : "", channel->endpoints[i].name);
        if (st != TETHER_OK) {
            tether_buf_fini(&text);
            return st;
        }
    }
    channel->description = text.data;
    return TETHER_OK;
}

static tether_status dial_all(struct tether__etcd_channel *channel,
                              struct address *addresses,
                              size_t n,
                              grpc_channel_credentials *credentials)
{
    channel->endpoints = tether__calloc(n, sizeof *channel->endpoints);
    if (!channel->endpoints)
        return TETHER_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        channel->endpoints[i].name = addresses[i].name;
        addresses[i].name = NULL;
        channel->endpoints[i].channel = dial(addresses[i].target, credentials);
        channel->n_endpoints++;
    }
    return describe(channel);
}

/* Accepts a partly built channel. */
static void channel_free(struct tether__etcd_channel *channel)
{
    if (!channel)
        return;
    for (size_t i = 0; i < channel->n_endpoints; i++) {
        grpc_channel_destroy(channel->endpoints[i].channel);
        tether__free(channel->endpoints[i].name);
    }
    if (channel->has_token && !channel->auth_off)
        grpc_slice_unref(channel->token);
    tether__secret_free(channel->password);
    tether__free(channel->user);
    tether__free(channel->description);
    tether__free(channel->endpoints);
    pthread_cond_destroy(&channel->authenticated);
    pthread_mutex_destroy(&channel->mu);
    tether__free(channel);
}

tether_status tether__etcd_channel_new(const struct tether_store_etcd_opts *opts,
                                       struct tether__etcd_channel **ret_channel,
                                       tether_error *reterr)
{
    struct address addresses[MAX_ENDPOINTS] = {{0}};
    size_t n = 0;
    bool tls = false;
    struct tether__etcd_channel *channel = NULL;
    grpc_channel_credentials *credentials = NULL;

    if (!tether__grpc_has_descriptors())
        return tether_error_set(reterr, TETHER_EIO,
                                "connecting to etcd: too many open files: close some, or raise "
                                "`ulimit -n`");
    tether__grpc_init(0);
    tether_status st = addresses_parse(opts->endpoints, addresses, &n, reterr);
    if (st == TETHER_OK)
        st = check_opts(opts, addresses, n, &tls, reterr);
    if (st == TETHER_OK && tls)
        st = tls_credentials(opts, &credentials, reterr);
    else if (st == TETHER_OK)
        credentials = grpc_insecure_credentials_create();
    if (st != TETHER_OK)
        goto undo_addresses;

    channel = tether__calloc(1, sizeof *channel);
    if (channel) {
        pthread_mutex_init(&channel->mu, NULL);
        tether__cond_init(&channel->authenticated);
        st = dial_all(channel, addresses, n, credentials);
        if (opts->user) {
            channel->user = tether__strdup(opts->user);
            channel->password = tether__secret_new(tether_bytes_str(opts->password));
        }
    }
    if (!channel || st != TETHER_OK || (opts->user && (!channel->user || !channel->password))) {
        st = tether_error_set(reterr, TETHER_ENOMEM, "out of memory for an etcd client");
        channel_free(channel);
    }

undo_addresses:
    for (size_t i = 0; i < n; i++)
        address_fini(&addresses[i]);
    if (credentials)
        grpc_channel_credentials_release(credentials);
    if (st != TETHER_OK) {
        grpc_shutdown();
        return st;
    }
    *ret_channel = channel;
    return TETHER_OK;
}

struct tether__etcd_channel *tether__etcd_channel_free(struct tether__etcd_channel *channel)
{
    if (channel) {
        channel_free(channel);
        grpc_shutdown();
    }
    return NULL;
}

const char *tether__etcd_channel_describe(const struct tether__etcd_channel *channel)
{
    return channel->description;
}
