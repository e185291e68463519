/* Fixtures of the tests of the etcd store: functions that make stores and clients (and assert
 * success), and that call the administration API of etcd. */
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

/* Whether a call with a short timeout failed because etcd is unreachable: TETHER_EUNAVAILABLE, or
 * TETHER_ETIMEOUT when the first attempt did not end in time. */
bool etcd_is_out_of_reach(tether_status status);

/* Returns the deadline for a call that is expected to return. */
int64_t etcd_soon(void);

/* Calls "/etcdserverpb.<method>". */
void etcd_admin(struct tether__etcd *client, const char *method, const ProtobufCMessage *request);

/* Ends the lease and deletes its keys. TETHER_ENOTFOUND when it has expired. */
tether_status etcd_revoke(struct tether__etcd *client, int64_t lease);

/* Compacts the history of etcd up to now. */
void etcd_compact(struct tether__etcd *client);

/* Returns how many keys start with `start`, and gives the value and version of the first; the
 * version is 0 when there is none. `value` (may be NULL) has room for 64 bytes. */
int64_t etcd_look(struct tether__etcd *client, const char *start, char *value, int64_t *version);

/* ---- Worlds --------------------------------------------------------------------------------- */

extern struct tether_test_etcd *etcd; /* the etcd of all worlds; main() starts it */

/* The fixture of a test: a prefix of its own, a client to inspect etcd, a store that connects
 * directly, and one that connects through a proxy. */
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

/* Returns "<prefix><rest>", valid as long as `w`. */
const char *under(struct world *w, const char *rest);

/* ---- Threads -------------------------------------------------------------------------------- */

/* One call on a thread of its own, and its result. */
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
