/* env://: as tcp://, with missing values from the environment. An empty variable counts as unset.
 */
#include <limits.h>
#include <stdlib.h>

#include "rendezvous/url/handlers.h"

static const char *const known_params[] = {"rank", "world_size", "insecure", "use_libuv", NULL};

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value && value[0] ? value : NULL;
}

static tether_status need(const char *name, const char **ret_value, tether_error *reterr)
{
    *ret_value = variable(name);
    if (*ret_value)
        return TETHER_OK;
    return tether_error_set(reterr, TETHER_EINVAL,
                            "env:// rendezvous: environment variable %s expected, but not set: "
                            "set it or start the workers with tether-run",
                            name);
}

/* Reads parameter `key` of the query, otherwise environment variable `name`, as a number. */
static tether_status number(const struct tether__url *url,
                            const char *key,
                            const char *name,
                            int min,
                            int max,
                            int *ret_value,
                            tether_error *reterr)
{
    const char *text = key ? tether__url_param(url, key) : NULL;
    const char *what = text ? key : name;
    tether_status st = text ? TETHER_OK : need(name, &text, reterr);
    if (st != TETHER_OK)
        return st;
    st = tether__parse_int(text, what, min, max, ret_value, reterr);
    return st == TETHER_OK ? st : tether_error_wrap(reterr, st, "env:// rendezvous");
}

/* insecure= of the query, otherwise its environment variable. Checks use_libuv=, and does not read
 * USE_LIBUV. PyTorch chooses one of its two servers by them; Tether has one server for the clients
 * of both. */
static tether_status switches(const struct tether__url *url,
                              struct tether__tcp_meeting *m,
                              tether_error *reterr)
{
    const char *agent = variable("TETHER_USE_AGENT_STORE");
    const char *insecure = variable("TETHER_INSECURE");
    bool use_libuv = true;
    tether_status st = TETHER_OK;
    if (agent)
        st = tether__parse_bool(agent, "TETHER_USE_AGENT_STORE", &m->hosted_elsewhere, reterr);
    if (st == TETHER_OK && insecure)
        st = tether__parse_bool(insecure, "TETHER_INSECURE", &m->insecure, reterr);
    if (st == TETHER_OK)
        st = tether__url_switch(url, "insecure", &m->insecure, reterr);
    if (st == TETHER_OK)
        st = tether__url_switch(url, "use_libuv", &use_libuv, reterr);
    return st;
}

static tether_status meet(const struct tether__url *url,
                          bool dont_wait,
                          int timeout_ms,
                          struct tether_world *ret_world,
                          tether_error *reterr)
{
    if (url->host[0] || url->port != TETHER__URL_NO_PORT || (url->path[0] && url->path[1]))
        return tether_error_set(reterr, TETHER_EINVAL,
                                "env:// rendezvous: '%.64s%.64s' after env:// means nothing here: "
                                "the address comes from MASTER_ADDR and MASTER_PORT",
                                url->host, url->path);
    struct tether__tcp_meeting m = {
        .scheme = "env",
        .prefix = variable("TETHER_STORE_PREFIX"),
        .set_insecure = "set TETHER_INSECURE=1 (tether-run: --insecure)",
        .dont_wait = dont_wait};
    tether_status st = number(url, "rank", "RANK", 0, INT_MAX, &m.rank, reterr);
    if (st == TETHER_OK)
        st = number(url, "world_size", "WORLD_SIZE", 1, INT_MAX, &m.world_size, reterr);
    if (st == TETHER_OK)
        st = tether__check_rank(m.rank, m.world_size, reterr);
    if (st == TETHER_OK)
        st = need("MASTER_ADDR", &m.host, reterr);
    if (st == TETHER_OK)
        st = number(url, NULL, "MASTER_PORT", 1, 65535, &m.port, reterr);
    if (st == TETHER_OK)
        st = switches(url, &m, reterr);
    if (st == TETHER_OK)
        st = tether__tcp_meet(&m, timeout_ms, ret_world, reterr);
    return st;
}

const struct tether__url_scheme tether__url_env = {"env", known_params, meet};
