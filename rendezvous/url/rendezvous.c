/* Finds the handler of a URL and calls it.
 *
 * Happy path: find the scheme's handler, append rank and world size to the query when they came as
 * arguments, call the handler on the caller's thread. Handlers do the rest, each within the time
 * that it is given.
 *
 * Lock rule: `registry.mu` guards the list of registered schemes and is a leaf; a handler runs
 * without it, from a copy of its entry.
 */
#include "rendezvous/rendezvous.h"

#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/alloc.h"
#include "base/list.h"
#include "base/status_internal.h"
#include "rendezvous/url/handlers.h"
#include "rendezvous/url/internal.h"

/* A handler: that of a built-in scheme or, if `builtin` is NULL, of a registered one. */
struct handler {
    const struct tether__url_scheme *builtin;
    tether_rendezvous_fn *fn;
    void *userdata;
};

struct registration {
    struct tether__list node;
    struct handler handler;
    char scheme[];
};

static const struct tether__url_scheme *const builtins[] = {
    &tether__url_env,
    &tether__url_tcp,
    &tether__url_file,
    &tether__url_etcd,
};

static struct {
    pthread_mutex_t mu;
    /* fields under mu */
    struct tether__list registrations;
} registry = {PTHREAD_MUTEX_INITIALIZER, TETHER__LIST_INIT(registry.registrations)};

static bool same_scheme(const char *scheme, const char *text, size_t len)
{
    return strlen(scheme) == len && strncasecmp(scheme, text, len) == 0;
}

static const struct tether__url_scheme *find_builtin(const char *scheme, size_t len)
{
    for (size_t i = 0; i < TETHER__ARRAY_LEN(builtins); i++)
        if (same_scheme(builtins[i]->name, scheme, len))
            return builtins[i];
    return NULL;
}

static struct registration *find_registration_locked(const char *scheme, size_t len)
{
    TETHER__LIST_FOR_EACH(node, &registry.registrations) {
        struct registration *entry = tether__list_entry(node, struct registration, node);
        if (same_scheme(entry->scheme, scheme, len))
            return entry;
    }
    return NULL;
}

static bool find_handler(const char *scheme, size_t len, struct handler *ret_handler)
{
    *ret_handler = (struct handler){.builtin = find_builtin(scheme, len)};
    if (ret_handler->builtin)
        return true;
    pthread_mutex_lock(&registry.mu);
    const struct registration *entry = find_registration_locked(scheme, len);
    if (entry)
        *ret_handler = entry->handler;
    pthread_mutex_unlock(&registry.mu);
    return entry != NULL;
}

static tether_status call(const struct handler *handler,
                          const char *text,
                          bool dont_wait,
                          int timeout_ms,
                          struct tether_world *ret_world,
                          tether_error *reterr)
{
    const struct tether__url_scheme *builtin = handler->builtin;
    struct tether__url *url = NULL;
    if (!builtin)
        return tether__status_from_outside(
            (int)handler->fn(handler->userdata, text, timeout_ms, ret_world, reterr));
    tether_status st = tether__url_parse(text, &url, reterr);
    if (st == TETHER_OK)
        st = tether__url_check_params(url, builtin->params, reterr);
    if (st == TETHER_OK)
        st = builtin->meet(url, dont_wait, timeout_ms, ret_world, reterr);
    tether__url_free(url);
    return st;
}

tether_status tether_rendezvous_register(const char *scheme,
                                         tether_rendezvous_fn *fn,
                                         void *userdata,
                                         tether_error *reterr)
{
    size_t len = scheme ? strlen(scheme) : 0;
    if (len == 0 || len > TETHER__URL_MAX || !fn || !tether__url_is_scheme(scheme, len))
        return tether_error_set(reterr, TETHER_EINVAL,
                                "'%.64s' cannot be a scheme with a handler: it needs a function, "
                                "and a name of letters, digits, '+', '-', '.' after a letter",
                                scheme ? scheme : "(null)");
    struct registration *entry = tether__malloc(sizeof *entry + len + 1);
    if (!entry)
        return tether_error_set(reterr, TETHER_ENOMEM, "out of memory to register %.64s://",
                                scheme);
    entry->handler = (struct handler){.fn = fn, .userdata = userdata};
    memcpy(entry->scheme, scheme, len + 1);

    pthread_mutex_lock(&registry.mu);
    bool taken = find_builtin(scheme, len) || find_registration_locked(scheme, len);
    if (!taken)
        tether__list_push_back(&registry.registrations, &entry->node);
    pthread_mutex_unlock(&registry.mu);
    if (!taken)
        return TETHER_OK;
    tether__free(entry);
    return tether_error_set(reterr, TETHER_EEXIST,
                            "Rendezvous handler for %.64s:// already registered: choose another "
                            "scheme",
                            scheme);
}

tether_status tether_rendezvous_unregister(const char *scheme, tether_error *reterr)
{
    pthread_mutex_lock(&registry.mu);
    struct registration *entry = scheme ? find_registration_locked(scheme, strlen(scheme)) : NULL;
    if (entry)
        tether__list_remove(&entry->node);
    pthread_mutex_unlock(&registry.mu);
    if (!entry)
        return tether_error_set(reterr, TETHER_ENOTFOUND,
                                "%.64s:// has no handler that could be taken out",
                                scheme ? scheme : "(null)");
    tether__free(entry);
    return TETHER_OK;
}

/* Whether the query of `url` has rank= or world_size=. Textual, since the URL of a registered
 * scheme need not follow our grammar. */
static bool has_node_arguments(const char *url)
{
    const char *query = strchr(url, '?');
    for (; query; query = strchr(query, '&')) {
        query++;
        if (strncmp(query, "rank=", 5) == 0 || strncmp(query, "world_size=", 11) == 0)
            return true;
    }
    return false;
}

/* Returns a copy of `url` with the arguments in its query; the caller frees it. */
static tether_status add_node_arguments(const char *url,
                                        int rank,
                                        int world_size,
                                        char **ret_url,
                                        tether_error *reterr)
{
    if (has_node_arguments(url))
        return tether_error_set(reterr, TETHER_EINVAL,
                                "the url %.96s has node-specific arguments (rank, world_size) "
                                "already: give them in the URL or as arguments, not both",
                                url);
    char arguments[64];
    if (rank < 0)
        snprintf(arguments, sizeof arguments, "world_size=%d", world_size);
    else if (world_size < 0)
        snprintf(arguments, sizeof arguments, "rank=%d", rank);
    else
        snprintf(arguments, sizeof arguments, "rank=%d&world_size=%d", rank, world_size);
    *ret_url = tether__asprintf("%s%c%s", url, strchr(url, '?') ? '&' : '?', arguments);
    return *ret_url
               ? TETHER_OK
               : tether_error_set(reterr, TETHER_ENOMEM, "out of memory for the rendezvous URL");
}

static tether_status meet(const char *url,
                          int rank,
                          int world_size,
                          int timeout_ms,
                          bool dont_wait,
                          struct tether_world *ret_world,
                          tether_error *reterr)
{
    if (!url || rank < -1 || world_size < -1 || world_size == 0)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "a rendezvous needs a URL, a rank >= 0 and a world size >= 1 "
                                "(-1: from the URL or the environment)");
    if (timeout_ms == TETHER_DEFAULT_MS)
        timeout_ms = TETHER_STORE_DEFAULT_TIMEOUT_MS;
    if (timeout_ms < -1)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "time-out %d ms: give 0 or more, -1 for ever, or "
                                "TETHER_DEFAULT_MS",
                                timeout_ms);
    size_t scheme_len = tether__url_scheme_len(url);
    if (scheme_len == 0)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "'%.64s' is not a URL: write scheme://..., as in "
                                "tcp://127.0.0.1:29500?rank=0&world_size=2 or env://",
                                url);
    struct handler handler;
    if (!find_handler(url, scheme_len, &handler))
        return tether_error_set(reterr, TETHER_ENOTFOUND,
                                "No rendezvous handler for %.*s://: use env, tcp, file or etcd, or "
                                "register one with tether_rendezvous_register()",
                                scheme_len > 64 ? 64 : (int)scheme_len, url);

    char *whole_url = NULL;
    tether_status st = TETHER_OK;
    if (rank >= 0 || world_size >= 0)
        st = add_node_arguments(url, rank, world_size, &whole_url, reterr);
    struct tether_world world = {NULL, 0, 0};
    if (st == TETHER_OK)
        st = call(&handler, whole_url ? whole_url : url, dont_wait, timeout_ms, &world, reterr);
    tether__free(whole_url);
    if (st == TETHER_OK && (!world.store || world.rank < 0 || world.rank >= world.size)) {
        st = tether_error_set(reterr, TETHER_EINVAL,
                              "the handler of %.*s:// gave rank %d of %d%s: it must give a store, "
                              "and a rank from 0 to size - 1",
                              scheme_len > 64 ? 64 : (int)scheme_len, url, world.rank, world.size,
                              world.store ? "" : " and no store");
        tether_world_fini(&world);
    }
    if (st == TETHER_OK)
        *ret_world = world;
    return st;
}

tether_status tether_rendezvous(const char *url,
                                int rank,
                                int world_size,
                                int timeout_ms,
                                struct tether_world *ret_world,
                                tether_error *reterr)
{
    return meet(url, rank, world_size, timeout_ms, false, ret_world, reterr);
}

tether_status tether__rendezvous_alone(const char *url,
                                       int timeout_ms,
                                       struct tether_world *ret_world,
                                       tether_error *reterr)
{
    return meet(url, -1, -1, timeout_ms, true, ret_world, reterr);
}

void tether_world_fini(struct tether_world *world)
{
    if (!world)
        return;
    tether_store_release(world->store);
    *world = (struct tether_world){NULL, 0, 0};
}
