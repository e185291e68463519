#include "tests/rendezvous/elastic/handler/fixture.h"

#include <stdio.h>
#include <string.h>

#include "rendezvous/elastic/handler/internal.h"
#include "tests/rendezvous/elastic/lib/fixture.h"

static struct fixture fixture;
tether_store *last_hosted;

bool locate_no_tcp_store(tether_store *store, char addr[TETHER_RDZV_ADDR_MAX], uint16_t *port)
{
    (void)store, (void)addr, (void)port;
    return false;
}

static bool a_tcp_store(tether_store *store, char addr[TETHER_RDZV_ADDR_MAX], uint16_t *port)
{
    (void)store;
    strcpy(addr, "host");
    *port = 54321;
    return true;
}

tether_status host_hash_store(const char *addr,
                              bool insecure,
                              int timeout_ms,
                              tether_store **ret_server,
                              uint16_t *ret_port,
                              tether_error *reterr)
{
    (void)addr, (void)insecure, (void)timeout_ms;
    *ret_port = 54321;
    tether_status st = tether_store_hash_new(ret_server, reterr);
    last_hosted = *ret_server;
    return st;
}

tether_status find_no_port(const char *addr, uint16_t *ret_port, tether_error *reterr)
{
    (void)addr, (void)ret_port;
    return tether_error_set(reterr, TETHER_EIO, "there is no port");
}

const struct tether__rdzv_bootstrap_ops hosting = {locate_no_tcp_store, host_hash_store,
                                                   find_no_port};
const struct tether__rdzv_bootstrap_ops sharing = {a_tcp_store, host_hash_store, find_no_port};

static void on_event(void *userdata, const struct tether_rdzv_event *event)
{
    struct fixture *f = userdata;
    if (event->kind == TETHER_RDZV_FAILED)
        f->failures++;
    snprintf(f->last_event, sizeof f->last_event, "%s", event->name);
}

int handler_setup(void **state)
{
    struct fixture *f = &fixture;
    memset(f, 0, sizeof *f);
    fake_env_init(&f->env);
    fake_holder_init(&f->holder, &f->env);
    dummy_store_init(&f->store);
    f->settings = test_settings(1, 1);
    f->settings.on_event = on_event;
    f->settings.on_event_userdata = f;
    f->node = node_of("this_node");
    *state = f;
    return 0;
}

int handler_teardown(void **state)
{
    struct fixture *f = *state;
    fake_holder_fini(&f->holder);
    dummy_store_fini(&f->store);
    return 0;
}

tether_rdzv *handler_create_with(struct fixture *f, const struct tether__rdzv_bootstrap_ops *ops)
{
    tether_rdzv *rdzv = NULL;
    tether_error err = {0};
    if (tether__rdzv_new_with(&f->settings, &f->node, "dummy_backend", f->store.store,
                              &f->holder.base, &f->env.base, ops, &rdzv, &err) != TETHER_OK)
        fail_msg("%s", err.message);
    return rdzv;
}

tether_rdzv *handler_create(struct fixture *f)
{
    return handler_create_with(f, &hosting);
}

struct tether_rdzv_info handler_next(tether_rdzv *rdzv)
{
    struct tether_rdzv_info info;
    tether_error err = {0};
    if (tether_rdzv_next(rdzv, &info, &err) != TETHER_OK)
        fail_msg("%s", err.message);
    return info;
}
