/* Fixtures of the tests of the dynamic rendezvous: an environment whose time the test sets, and
 * fakes of backend, holder and store.
 */
#ifndef TETHER_TESTS_RENDEZVOUS_ELASTIC_LIB_FIXTURE_H
#define TETHER_TESTS_RENDEZVOUS_ELASTIC_LIB_FIXTURE_H

#include <stdarg.h>

#include "rendezvous/elastic/handler/internal.h"
#include "rendezvous/elastic/sync/env.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/fake_clock.h"

#define S TETHER__NS_PER_S

/* An environment in which a delay only advances the clock. */
struct fake_env {
    struct tether__rdzv_env base;
    struct tether_test_clock clock;
    int delays;
    int64_t last_delay_ns;
};

void fake_env_init(struct fake_env *env);
int64_t fake_env_now(const struct fake_env *env);

/* A backend in memory, with heartbeats; counts its calls. */
struct fake_backend {
    tether_rdzv_backend *backend;
    tether_buf state;
    uint64_t token; /* 0: nothing has been written */
    int gets, sets;
    struct {
        char node[TETHER__RDZV_NODE_TEXT];
        uint64_t count;
    } beats[16];
    tether_status fail; /* the result of every call; TETHER_OK: calls work */
};

void fake_backend_init(struct fake_backend *fake);
void fake_backend_fini(struct fake_backend *fake);

/* Writes a state as another node would. */
void fake_backend_put(struct fake_backend *fake,
                      const struct tether__rdzv_state *state,
                      int64_t now);
void fake_backend_corrupt(struct fake_backend *fake);
void fake_backend_beat(struct fake_backend *fake, const struct tether__rdzv_node *node);

/* A holder without a backend. Records its calls, one letter each: s(ync), m(ark dirty), p(ause). */
struct fake_holder {
    struct tether__rdzv_holder base;
    struct tether__rdzv_state state;
    bool dirty;
    char calls[64];
    int n_calls, syncs;
    int64_t last_pause_ns;
    tether_status fail;              /* the result of sync(); TETHER_OK: it works */
    struct tether_test_clock *clock; /* advanced by sync_takes_ns at each sync */
    int64_t sync_takes_ns;
    enum tether__rdzv_sync next_sync; /* instead of WRITTEN, once */
};

void fake_holder_init(struct fake_holder *holder, struct fake_env *env);
void fake_holder_fini(struct fake_holder *holder);

/* A store that records the last requested key and answers each get with "123". */
struct dummy_store {
    tether_store *store;
    char last_get[256], last_set[256];
};
void dummy_store_init(struct dummy_store *dummy);
void dummy_store_fini(struct dummy_store *dummy);

/* Returns valid settings, those of the seeds: run id "dummy_run_id", keep-alive 30 s x 3. */
struct tether_rdzv_settings test_settings(int min_nodes, int max_nodes);

/* Functions that fill states. All assert that allocations succeed. */
struct tether__rdzv_node node_of(const char *addr);
void put_in(struct tether__rdzv_roster *roster, const char *addr, int rank);
void put_heard(struct tether__rdzv_state *state, const char *addr, int64_t at);

/* Asserts the same round, flags, last call, lists, ranks and heartbeats. */
void assert_state_equal(const struct tether__rdzv_state *actual,
                        const struct tether__rdzv_state *expected);
void assert_state_empty(const struct tether__rdzv_state *actual);

#endif
