/* Servers that several stores of this process share, by port. The first tenant makes the server,
 * the last one ends it. Servers that are not shared are in the list as well, so that one function
 * releases all. */
#include "base/alloc.h"
#include "rendezvous/store/tcp/client/internal.h"

struct tenancy {
    struct tether__list node;
    tether_store_server *server;
    bool is_shared;
    size_t tenants;
};

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static struct tether__list tenancies = TETHER__LIST_INIT(tenancies); /* guarded by mu */

static struct tenancy *find_shared_locked(int port)
{
    TETHER__LIST_FOR_EACH(node, &tenancies) {
        struct tenancy *tenancy = tether__list_entry(node, struct tenancy, node);
        if (tenancy->is_shared && tether_store_server_port(tenancy->server) == port)
            return tenancy;
    }
    return NULL;
}

tether_status tether__store_tenant_new(const struct tether_store_server_opts *opts,
                                       bool multi_tenant,
                                       tether_store_server **ret_server,
                                       tether_error *reterr)
{
    tether_status st = TETHER_OK;
    pthread_mutex_lock(
        &mu); /* held also while binding, so that two concurrent tenants make one server */
    bool may_share = multi_tenant && opts->port && !opts->listen_fd;
    struct tenancy *tenancy = may_share ? find_shared_locked(opts->port) : NULL;
    if (!tenancy) {
        tenancy = tether__calloc(1, sizeof *tenancy);
        st = tenancy ? tether_store_server_new(opts, &tenancy->server, reterr)
                     : tether_error_set(reterr, TETHER_ENOMEM, "out of memory for a store server");
        if (st == TETHER_OK) {
            tenancy->is_shared = multi_tenant;
            tether__list_push_back(&tenancies, &tenancy->node);
        } else {
            tether__free(tenancy);
        }
    }
    if (st == TETHER_OK) {
        tenancy->tenants++;
        *ret_server = tenancy->server;
    }
    pthread_mutex_unlock(&mu);
    return st;
}

void tether__store_tenant_release(tether_store_server *server)
{
    struct tenancy *last = NULL;
    pthread_mutex_lock(&mu);
    TETHER__LIST_FOR_EACH(node, &tenancies) {
        struct tenancy *tenancy = tether__list_entry(node, struct tenancy, node);
        if (tenancy->server == server && --tenancy->tenants == 0) {
            tether__list_remove(&tenancy->node);
            last = tenancy;
        }
    }
    pthread_mutex_unlock(&mu);
    if (last) {
        tether_store_server_release(last->server);
        tether__free(last);
    }
}
