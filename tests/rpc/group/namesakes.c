#include "tests/rpc/group/namesakes.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rendezvous/store_tcp.h"
#include "tests/lib/cmocka.h"
#include "tests/rpc/lib/certs.h"
#include "tests/rpc/lib/crew.h"

struct order namesake_read_order(const struct tether_test_rank *self)
{
    struct order order = {0};
    if (sscanf(self->arg, "%15[0-9]:%d:%d:%63s", order.port, &order.way, &order.number,
               order.folder) != 4)
        fail_msg("not an order: %s", self->arg);
    return order;
}

struct tether_agent_opts namesake_opts(const struct order *order,
                                       const char *name,
                                       tether_store *store)
{
    const int way = order->way;
    static char path[100];
    bool is_alpha = strcmp(name, "alpha") == 0;
    struct tether_agent_opts opts = *TETHER_AGENT_OPTS(.name = name, .store = store);
    opts.lease_ms = A_DAY_MS;
    opts.start_timeout_ms = opts.shutdown_timeout_ms = LIMIT;
    opts.no_unix_socket = way != NEAR;
    if (way == TOKEN || way == ONE_WAY_TLS)
        opts.token = "sesame";
    if (way == MUTUAL_TLS || way == ONE_WAY_TLS) {
        opts.tls_ca_pem = cert_right_ca;
        opts.tls_cert_pem = is_alpha ? cert_alpha : cert_delta;
        opts.tls_key_pem = is_alpha ? key_alpha : key_delta;
        opts.tls_one_way = way == ONE_WAY_TLS;
    }
    if (way == SOCKET_FILE) {
        snprintf(path, sizeof path, "unix:%s/%d", order->folder, (int)getpid());
        opts.listen = path;
    }
    return opts;
}

char namesake_folder[] = "/tmp/tether-namesakes-XXXXXX";

int namesake_setup(void **state)
{
    (void)state;
    return mkdtemp(namesake_folder) ? 0 : -1;
}

int namesake_teardown(void **state)
{
    (void)state;
    DIR *dir = opendir(namesake_folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        unlinkat(dirfd(dir), entry->d_name, 0);
    closedir(dir);
    return rmdir(namesake_folder);
}

void scene_end(struct scene *scene)
{
    tether_test_procs_end(scene->procs);
    tether_store_release(scene->store);
    tether_store_server_release(scene->server);
}
