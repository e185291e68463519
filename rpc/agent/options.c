/* The agent's options: sets defaults, checks values, and copies strings and files. */
#include "rpc/agent/options.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/secret.h"
#include "rpc/agent/certificate.h"
#include "rpc/handshake/pairing.h"

#define MAX_PEM_BYTES (1 << 20)
#define MAX_GROUP 200

/* Every string field, for copying and freeing; the last N_SECRETS are secrets. */
#define N_SECRETS 2
static const size_t string_fields[] = {
#define FIELD(name) offsetof(struct tether_agent_opts, name)
    FIELD(name),       FIELD(rendezvous),   FIELD(group),          FIELD(listen),
    FIELD(advertise),  FIELD(tls_ca_file),  FIELD(tls_cert_file),  FIELD(tls_key_file),
    FIELD(tls_ca_pem), FIELD(tls_cert_pem), FIELD(metrics_listen), FIELD(tls_key_pem),
    FIELD(token),
#undef FIELD
};

static bool is_secret(size_t i)
{
    return i >= TETHER__ARRAY_LEN(string_fields) - N_SECRETS;
}

static const char **string_field(struct tether_agent_opts *opts, size_t i)
{
    return (const char **)(void *)((char *)opts + string_fields[i]);
}

void tether__options_fini(struct tether_agent_opts *opts)
{
    for (size_t i = 0; i < TETHER__ARRAY_LEN(string_fields); i++)
        is_secret(i) ? tether__secret_free(*string_field(opts, i))
                     : tether__free((void *)*string_field(opts, i));
    for (size_t i = 0; opts->allowed_peers && i < opts->n_allowed_peers; i++)
        tether__free((void *)opts->allowed_peers[i]);
    tether__free((void *)opts->allowed_peers);
    tether_store_release(opts->store);
    memset(opts, 0, sizeof *opts);
}

static tether_status copy_strings(struct tether_agent_opts *opts)
{
    tether_status st = TETHER_OK;
    for (size_t i = 0; i < TETHER__ARRAY_LEN(string_fields); i++) {
        const char **field = string_field(opts, i);
        if (*field && !(*field = is_secret(i) ? tether__secret_new(tether_bytes_str(*field))
                                              : tether__strdup(*field)))
            /* go on: options_fini() frees all fields, so none may still point to the caller's
             * string */
            st = TETHER_ENOMEM;
    }
    const char *const *names = opts->allowed_peers;
    const char **copy = NULL;
    if (names) {
        copy = tether__calloc(opts->n_allowed_peers + 1, sizeof *copy);
        for (size_t i = 0; copy && i < opts->n_allowed_peers; i++)
            if (!(copy[i] = tether__strdup(names[i])))
                st = TETHER_ENOMEM;
        if (!copy)
            st = TETHER_ENOMEM;
    }
    opts->allowed_peers = copy;
    return st;
}

static tether_status cannot_read(const char *option,
                                 const char *path,
                                 int error,
                                 tether_error *reterr)
{
    return tether_error_set(reterr, error == ENOMEM ? TETHER_ENOMEM : TETHER_EIO,
                            "cannot read '%.120s' (%s): %s: give a PEM file that this process "
                            "may read",
                            path, option, strerror(error));
}

static tether_status read_pem(const char *option,
                              const char *path,
                              const char **ret_pem,
                              tether_error *reterr)
{
    if (!path || *ret_pem)
        return TETHER_OK;
    FILE *file = fopen(path, "re");
    if (!file)
        return cannot_read(option, path, errno, reterr);
    tether_buf text = TETHER_BUF_INIT;
    char part[4096];
    tether_status st = TETHER_OK;
    for (size_t n; st == TETHER_OK && (n = fread(part, 1, sizeof part, file)) > 0;)
        st = text.len > MAX_PEM_BYTES ? TETHER_ETOOBIG
                                      : tether_buf_append(&text, tether_bytes_of(part, n));
    fclose(file);
    if (st == TETHER_OK && text.len == 0)
        st = TETHER_EINVAL;
    if (st != TETHER_OK) {
        size_t text_len = text.len;
        tether_buf_fini(&text);
        return tether_error_set(reterr, st, "'%.120s' (%s) is not a PEM file: %s", path, option,
                                text_len ? tether_status_text(st) : "it is empty");
    }
    *ret_pem = text.data;
    return TETHER_OK;
}

/* Reads the private key, like read_pem(), into memory for secrets. */
static tether_status read_key(const char *option,
                              const char *path,
                              const char **ret_pem,
                              tether_error *reterr)
{
    if (!path || *ret_pem)
        return TETHER_OK;
    char *pem = tether__secret_read(path, MAX_PEM_BYTES);
    if (pem && *pem) {
        *ret_pem = pem;
        return TETHER_OK;
    }
    int error = errno;
    if (pem || error == EFBIG) {
        tether__secret_free(pem);
        return tether_error_set(reterr, pem ? TETHER_EINVAL : TETHER_ETOOBIG,
                                "'%.120s' (%s) is not a PEM file: %s", path, option,
                                pem ? "it is empty" : tether_status_text(TETHER_ETOOBIG));
    }
    return cannot_read(option, path, error, reterr);
}

static void set_default_int(int *field, int value)
{
    if (*field == 0)
        *field = value;
}

static void set_defaults(struct tether_agent_opts *opts)
{
    set_default_int(&opts->timeout_ms, 60000);
    set_default_int(&opts->start_timeout_ms, 300000);
    set_default_int(&opts->shutdown_timeout_ms, 100000);
    set_default_int(&opts->lease_ms, 30000);
    set_default_int(&opts->threads, 16);
    set_default_int(&opts->max_queued, 4096);
    set_default_int(&opts->max_calls_per_peer, 16384);
    set_default_int(&opts->spin_us, 50);
    if (opts->spin_us < 0)
        opts->spin_us = 0;
    if (!opts->max_bytes_per_peer)
        opts->max_bytes_per_peer = (size_t)64 << 20;
    /* so that sums of a few such limits do not overflow */
    if (opts->max_bytes_per_peer > SIZE_MAX / 16)
        opts->max_bytes_per_peer = SIZE_MAX / 16;
    if (!opts->max_message_bytes)
        opts->max_message_bytes = (size_t)256 << 20;
    if (!opts->group)
        opts->group = "tether";
    if (!opts->listen)
        opts->listen = "127.0.0.1:0";
    if (!opts->rendezvous && !opts->store)
        opts->rendezvous = "env://";
}

/* Limits of options. Leases: a third of a lease, the time between pings, must not be too short, and
 * the sum of several leases must fit into an int. Messages: a full batch of deletes has 13 KB.
 * Calls: peer/calls/slots.c has this many call numbers at once. */
enum { MIN_LEASE_MS = 100, MAX_LEASE_MS = TETHER__MAX_LEASE_MS };
enum { MIN_MESSAGE_BYTES = 64 * 1024, MAX_CALLS_PER_PEER = 1 << 24 };

/* Whether the address is one of this host only: a unix socket, a loopback address or "localhost".
 * Other names may resolve to any address. */
static bool listens_on_this_host_only(const char *listen)
{
    char host[INET_ADDRSTRLEN] = "";
    struct in_addr address;
    size_t len = strcspn(listen, ":");
    if (len < sizeof host)
        memcpy(host, listen, len);
    return strncmp(listen, "unix:", 5) == 0 || strncmp(listen, "localhost:", 10) == 0 ||
           strncmp(listen, "[::1]:", 6) == 0 ||
           (inet_pton(AF_INET, host, &address) == 1 && ntohl(address.s_addr) >> 24 == 127);
}

/* Whether the agent listens on every address of this host. Other workers cannot dial such an
 * address. */
static bool listens_everywhere(const char *listen)
{
    return strncmp(listen, "0.0.0.0:", 8) == 0 || strncmp(listen, "[::]:", 5) == 0;
}

/* Refuses a malformed address, so that no later step fails with a less clear error. */
static tether_status check_address(const char *option,
                                   const char *address,
                                   bool may_be_path,
                                   tether_error *reterr)
{
    const char *colon = strrchr(address, ':');
    bool is_path = may_be_path && strncmp(address, "unix:", 5) == 0 && address[5];
    bool has_port = colon && colon[1] && strlen(colon + 1) <= 5 &&
                    strspn(colon + 1, "0123456789") == strlen(colon + 1) &&
                    atoi(colon + 1) <= 65535;
    bool has_host = colon && colon > address &&
                    (colon[-1] == ']' || !memchr(address, ':', (size_t)(colon - address)));
    if (strlen(address) >= sizeof((tether_worker *)0)->address)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "%s has %zu characters: give an address of at most %zu", option,
                                strlen(address), sizeof((tether_worker *)0)->address - 1);
    if (is_path || (has_host && has_port))
        return TETHER_OK;
    return tether_error_set(
        reterr, TETHER_EINVAL,
        "%s is '%.60s', which is no address: give HOST:PORT with a port of 0 (any "
        "free one) to 65535 and an IPv6 address in brackets%s",
        option, address, may_be_path ? ", or unix:PATH" : "");
}

/* Limits the characters of a group's name, which becomes part of keys and is shown by tools. */
static bool group_valid(const char *group)
{
    size_t len =
        strspn(group, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_:.-/");
    return len > 0 && len <= MAX_GROUP && group[len] == '\0';
}

static tether_status check(const struct tether_agent_opts *opts, tether_error *reterr)
{
    if (opts->name && !tether__name_valid(opts->name))
        return tether_error_set(reterr, TETHER_EINVAL,
                                "'%.40s' is no name for a worker: use 1 to %d of A-Z a-z 0-9 _ : . "
                                "-",
                                opts->name, TETHER_MAX_WORKER_NAME);
    if (opts->name && tether__name_is_observer(opts->name))
        return tether_error_set(reterr, TETHER_EINVAL,
                                "'%.40s' is no name for a worker: names that begin with '%s' are "
                                "those of observers",
                                opts->name, TETHER__OBSERVER_PREFIX);
    if (opts->observe && opts->name && strlen(opts->name) >= TETHER__OBSERVER_NAME_SIZE)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "'%.40s' is too long for the name of an observer: use at most %d "
                                "characters",
                                opts->name, TETHER__OBSERVER_NAME_SIZE - 1);
    if (!group_valid(opts->group))
        return tether_error_set(reterr, TETHER_EINVAL,
                                "'%.40s' is no name for a group: use 1 to %d of A-Z a-z 0-9 _ : . "
                                "- /",
                                opts->group, MAX_GROUP);
    if (opts->store && opts->rendezvous)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "give either `store` or `rendezvous`, not both");
    if (opts->store && opts->world_size < 0)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "world_size is %d: give the number of workers, or 0 for a dynamic "
                                "group",
                                opts->world_size);
    if (opts->store && opts->world_size > 0 && (opts->rank < 0 || opts->rank >= opts->world_size))
        return tether_error_set(reterr, TETHER_EINVAL,
                                "rank %d is outside of world_size %d: ranks go from 0 to %d",
                                opts->rank, opts->world_size, opts->world_size - 1);
    if (opts->store && opts->world_size == 0 && !opts->name && !opts->observe)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "a worker of a dynamic group (world_size 0) needs a `name`");
    const struct {
        const char *option;
        int value;
    } positive[] = {
        {"start_timeout_ms", opts->start_timeout_ms},
        {"shutdown_timeout_ms", opts->shutdown_timeout_ms},
        {"lease_ms", opts->lease_ms},
        {"threads", opts->threads},
        {"max_queued", opts->max_queued},
        {"max_calls_per_peer", opts->max_calls_per_peer},
    };
    for (size_t i = 0; i < TETHER__ARRAY_LEN(positive); i++)
        if (positive[i].value < 1)
            return tether_error_set(reterr, TETHER_EINVAL, "%s must be at least 1, not %d",
                                    positive[i].option, positive[i].value);
    if (opts->lease_ms < MIN_LEASE_MS || opts->lease_ms > MAX_LEASE_MS)
        return tether_error_set(
            reterr, TETHER_EINVAL,
            "lease_ms is %d: give %d to %d; a shorter lease takes a busy worker "
            "for dead",
            opts->lease_ms, MIN_LEASE_MS, MAX_LEASE_MS);
    if (opts->max_message_bytes < MIN_MESSAGE_BYTES)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "max_message_bytes is %zu: give at least %d, Tether's own messages "
                                "need that",
                                opts->max_message_bytes, MIN_MESSAGE_BYTES);
    if (opts->max_calls_per_peer > MAX_CALLS_PER_PEER)
        return tether_error_set(reterr, TETHER_EINVAL, "max_calls_per_peer is %d: give at most %d",
                                opts->max_calls_per_peer, MAX_CALLS_PER_PEER);
    if (opts->timeout_ms < -1)
        return tether_error_set(reterr, TETHER_EINVAL, "timeout_ms is %d: use -1 for no limit",
                                opts->timeout_ms);
    tether_status st = check_address("listen", opts->listen, true, reterr);
    if (st == TETHER_OK && opts->advertise)
        st = check_address("advertise", opts->advertise, true, reterr);
    if (st == TETHER_OK && opts->metrics_listen)
        st = check_address("metrics_listen", opts->metrics_listen, false, reterr);
    if (st != TETHER_OK)
        return st;
    bool tls = opts->tls_cert_file || opts->tls_cert_pem;
    if (tls != (opts->tls_key_file || opts->tls_key_pem))
        return tether_error_set(reterr, TETHER_EINVAL,
                                tls ? "a TLS certificate without its key: give tls_key_file or "
                                      "tls_key_pem too"
                                    : "a TLS key without its certificate: give tls_cert_file or "
                                      "tls_cert_pem too");
    if (tls && !opts->tls_one_way && !opts->tls_ca_file && !opts->tls_ca_pem)
        return tether_error_set(
            reterr, TETHER_EINVAL,
            "a TLS certificate without a CA lets everybody in: give tls_ca_file "
            "or tls_ca_pem, or set tls_one_way and a token");
    if (opts->tls_one_way && (!tls || !opts->token))
        return tether_error_set(reterr, TETHER_EINVAL,
                                "tls_one_way needs a %s: who connects shows no certificate, so the "
                                "token must prove who it is",
                                tls ? "token" : "TLS certificate and its key");
    if (!tls && !opts->insecure && !listens_on_this_host_only(opts->listen))
        return tether_error_set(reterr, TETHER_EPERM,
                                "refusing to listen on '%s' in plain text: give a TLS certificate "
                                "and key, or set `insecure`",
                                opts->listen);
    if (listens_everywhere(opts->listen) && !opts->advertise)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "listening on '%s' does not tell the others what to dial: listen "
                                "on an address of this host, or give it as `advertise`",
                                opts->listen);
    if (opts->metrics_listen && !opts->insecure && !listens_on_this_host_only(opts->metrics_listen))
        return tether_error_set(reterr, TETHER_EPERM,
                                "refusing to serve metrics on '%s', which others can read in plain "
                                "text: set `insecure` if they may",
                                opts->metrics_listen);
    if (opts->token && !opts->token[0])
        return tether_error_set(reterr, TETHER_EINVAL,
                                "the token is empty, which would let everybody in: give one, or "
                                "leave it NULL");
    return TETHER_OK;
}

tether_status tether__options_init(struct tether_agent_opts *opts,
                                   const struct tether_agent_opts *from,
                                   tether_error *reterr)
{
    memset(opts, 0, sizeof *opts);
    if (!from || from->size < offsetof(struct tether_agent_opts, name) || from->size > sizeof *from)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "tether_agent_new() got options without their size: fill them with "
                                "TETHER_AGENT_OPTS(...)");
    struct tether_agent_opts wanted = {0};
    memcpy(&wanted, from, from->size);
    set_defaults(&wanted);
    tether_status st = check(&wanted, reterr);
    if (st != TETHER_OK)
        return st;
    *opts = wanted;
    tether_store_retain(opts->store);
    if (copy_strings(opts) != TETHER_OK)
        st = tether_error_set(reterr, TETHER_ENOMEM, "no memory for the agent's options");
    if (st == TETHER_OK)
        st = read_pem("tls_ca_file", opts->tls_ca_file, &opts->tls_ca_pem, reterr);
    if (st == TETHER_OK)
        st = read_pem("tls_cert_file", opts->tls_cert_file, &opts->tls_cert_pem, reterr);
    if (st == TETHER_OK)
        st = read_key("tls_key_file", opts->tls_key_file, &opts->tls_key_pem, reterr);
    if (st == TETHER_OK && opts->tls_cert_pem)
        st = tether__certificate_check(opts->tls_cert_pem, opts->name, reterr);
    if (st != TETHER_OK)
        tether__options_fini(opts);
    return st;
}
