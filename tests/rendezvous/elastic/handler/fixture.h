/* A handler whose clock, state holder and store are fakes, and what it reported. */
#ifndef TETHER_TESTS_RENDEZVOUS_ELASTIC_HANDLER_FIXTURE_H
#define TETHER_TESTS_RENDEZVOUS_ELASTIC_HANDLER_FIXTURE_H

#include "rendezvous/elastic/handler/internal.h"
#include "tests/rendezvous/elastic/lib/fixture.h"

struct fixture {
    struct fake_env env;
    struct fake_holder holder;
    struct dummy_store store;
    struct tether_rdzv_settings settings;
    struct tether__rdzv_node node;
    int failures; /* events that reported a failure */
    char last_event[32];
};

int handler_setup(void **state); /* *state is the fixture */
int handler_teardown(void **state);

/* The last server that a handler has made; borrowed. */
extern tether_store *last_hosted;

/* Where workers meet: the handler hosts a server, or shares the TCP store of its backend. */
extern const struct tether__rdzv_bootstrap_ops hosting, sharing;

/* The functions of `hosting`. */
bool locate_no_tcp_store(tether_store *store, char addr[TETHER_RDZV_ADDR_MAX], uint16_t *port);
tether_status host_hash_store(const char *addr,
                              bool insecure,
                              int timeout_ms,
                              tether_store **ret_server,
                              uint16_t *ret_port,
                              tether_error *reterr);
tether_status find_no_port(const char *addr, uint16_t *ret_port, tether_error *reterr);

/* A handler of the fixture's settings that hosts, or that uses `ops`. */
tether_rdzv *handler_create(struct fixture *f);
tether_rdzv *handler_create_with(struct fixture *f, const struct tether__rdzv_bootstrap_ops *ops);

/* next(), which must succeed. */
struct tether_rdzv_info handler_next(tether_rdzv *rdzv);

#endif
