/* Fixtures of the tests of the etcd store: make stores and clients and assert that this works, and
 * call the administration functions of etcd. */
#ifndef TETHER_TESTS_RENDEZVOUS_STORE_ETCD_FIXTURE_H
#define TETHER_TESTS_RENDEZVOUS_STORE_ETCD_FIXTURE_H

#include <pthread.h>

#include "rendezvous/store/etcd/client/client.h"
#include "rendezvous/store_etcd.h"
#include "tests/lib/child.h"
#include "tests/lib/etcd.h"
#include "tests/lib/tcp_proxy.h"
#include "tests/rendezvous/store/etcd/admin.pb-c.h"
#include "tests/rendezvous/store/suite_internal.h"

tether_store *etcd_store(const char *endpoints, const char *prefix);
struct tether__etcd *etcd_client(const char *endpoints, const char *prefix);

/* For what can't be reached and has a short time: TETHER_EUNAVAILABLE, or TETHER_ETIMEOUT when not
 * even the first attempt had come to its end by then. */
bool etcd_is_out_of_reach(tether_status status);

/* The deadline of a call that should come back. */
int64_t etcd_soon(void);

/* Calls "/etcdserverpb.<method>". */
void etcd_admin(struct tether__etcd *client, const char *method, const ProtobufCMessage *request);

/* Makes etcd forget all history up to now. */
void etcd_compact(struct tether__etcd *client);

/* How many keys start with `start`, and the value and version of the first of them; the version
 * is 0 when there is none. `value` (may be NULL) has room for 64 bytes. */
int64_t etcd_look(struct tether__etcd *client, const char *start, char *value, int64_t *version);

/* ---- Worlds --------------------------------------------------------------------------------- */

extern struct tether_test_etcd *etcd; /* the one that worlds are on; main() starts it */

/* A prefix for each test, a client to look behind the scenes, a store straight to etcd, and one by
 * way of a proxy. */
struct world {
    char prefix[32];
    struct tether__etcd *client;
    tether_store *direct;
    struct tether_test_proxy *proxy;
    tether_store *store;
    char names[16][64]; /* of under() */
};

int world_setup(void **state);
int world_teardown(void **state);
#define WORLD_TEST(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

/* "<prefix><rest>"; lives as long as `w`. */
const char *under(struct world *w, const char *rest);

/* ---- Threads -------------------------------------------------------------------------------- */

/* One call on a thread of its own, and what came of it. */
struct run {
    tether_store *store;
    void (*call)(struct run *run);
    pthread_t thread;
    tether_status status;
    tether_error error;
    bool flag;
    int64_t number;
    tether_buf value;
};

void run_start(struct run *run);
void run_join(struct run *run); /* asserts that its status is TETHER_OK */

#endif
