/* The workers' store of a round: rank 0 publishes its address, the others read it. */
#include "rendezvous/elastic/handler/bootstrap.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const keys[] = {"MASTER_ADDR", "MASTER_PORT"};

tether_status tether__rdzv_bootstrap_publish(const struct tether__rdzv_bootstrap_ops *ops,
                                             tether_store *store,
                                             const char *local_addr,
                                             bool share,
                                             bool insecure,
                                             int timeout_ms,
                                             tether_store **server,
                                             struct tether_rdzv_info *info,
                                             tether_error *reterr)
{
    *server = tether_store_release(*server);
    if (share && ops->locate(store, info->master_addr, &info->master_port))
        return TETHER_OK;
    tether_status st =
        share ? ops->host(local_addr, insecure, timeout_ms, server, &info->master_port, reterr)
              : ops->free_port(local_addr, &info->master_port, reterr);
    if (st != TETHER_OK)
        return tether_error_wrap(reterr, st, "starting a store for the workers on '%s'",
                                 local_addr);
    char port[8];
    snprintf(port, sizeof port, "%u", info->master_port);
    snprintf(info->master_addr, sizeof info->master_addr, "%s", local_addr);
    const tether_bytes values[] = {tether_bytes_str(info->master_addr), tether_bytes_str(port)};
    st = tether_store_multi_set(info->store, keys, values, 2, timeout_ms, reterr);
    if (st != TETHER_OK)
        *server = tether_store_release(*server);
    return st;
}

static tether_status parse(const tether_buf *values,
                           struct tether_rdzv_info *info,
                           tether_error *reterr)
{
    char *end;
    errno = 0;
    unsigned long port = values[1].len ? strtoul(values[1].data, &end, 10) : 0;
    if (port == 0 || port > UINT16_MAX || *end != '\0' || errno != 0)
        return tether_error_set(reterr, TETHER_ECORRUPT,
                                "MASTER_PORT is '%.20s', which is not a port number",
                                values[1].len ? values[1].data : "");
    if (values[0].len == 0 || values[0].len >= TETHER_RDZV_ADDR_MAX)
        return tether_error_set(reterr, TETHER_ECORRUPT, "MASTER_ADDR has %zu characters",
                                values[0].len);
    memcpy(info->master_addr, values[0].data, values[0].len);
    info->master_addr[values[0].len] = '\0';
    info->master_port = (uint16_t)port;
    return TETHER_OK;
}

tether_status tether__rdzv_bootstrap_find(const struct tether__rdzv_bootstrap_ops *ops,
                                          tether_store *store,
                                          bool share,
                                          int timeout_ms,
                                          struct tether_rdzv_info *info,
                                          tether_error *reterr)
{
    if (share && ops->locate(store, info->master_addr, &info->master_port))
        return TETHER_OK;
    tether_buf values[2] = {TETHER_BUF_INIT, TETHER_BUF_INIT};
    tether_status st = tether_store_multi_get(info->store, keys, 2, timeout_ms, values, reterr);
    if (st == TETHER_OK)
        st = parse(values, info, reterr);
    tether_buf_fini(&values[0]);
    tether_buf_fini(&values[1]);
    return st;
}
