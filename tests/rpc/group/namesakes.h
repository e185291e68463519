/* Two processes with one name in a dynamic group. The second one is refused while the first one is
 * alive, over every transport; a worker that was killed, or has left, is replaced at once, and one
 * that does not answer when its lease is over.
 *
 * Rank 0 ("boss") calls the worker; rank 1 is the first worker named "alpha", rank 2 the second.
 */
#ifndef TETHER_TESTS_RPC_GROUP_NAMESAKES_H
#define TETHER_TESTS_RPC_GROUP_NAMESAKES_H

#include <stdio.h>

#include "rendezvous/store_tcp.h"
#include "tests/rpc/lib/crew.h"

#define LIMIT TETHER_TEST_LIMIT_MS
#define A_DAY_MS 86400000 /* a lease that is never over in a test */

enum { BOSS, FIRST, SECOND, N_RANKS };
enum { FIRST_IS_UP, MAY_START, SECOND_IS_THROUGH, FIRST_MAY_GO, DONE };

/* Ways to speak to each other. */
enum { NEAR, FAR, TOKEN, MUTUAL_TLS, ONE_WAY_TLS, SOCKET_FILE, N_WAYS };

/* The argument of a role: "port:way:number:folder". */
struct order {
    char port[16];
    int way, number;
    char folder[64]; /* for socket files */
};

/* The processes of a test and their store. */
struct scene {
    char port[16];
    tether_store_server *server;
    tether_store *store;
    struct tether_test_procs *procs;
    char arg[128]; /* of the processes, also of those that are started again */
};

#define scene_start(scene, role, n_ranks, way, number)                                           \
    do {                                                                                         \
        (scene)->server = crew_store_start((scene)->port);                                       \
        (scene)->store = crew_store((scene)->port);                                              \
        snprintf((scene)->arg, sizeof(scene)->arg, "%s:%d:%d:%s", (scene)->port, way, number,    \
                 namesake_folder);                                                               \
        (scene)->procs = tether_test_procs_start(role, .ranks = (n_ranks), .arg = (scene)->arg); \
    } while (0)

struct order namesake_read_order(const struct tether_test_rank *self);

/* The options of the worker `name`; its lease is a day. */
struct tether_agent_opts namesake_opts(const struct order *order,
                                       const char *name,
                                       tether_store *store);

/* Setup and teardown of all tests: the folder of the socket files. */
extern char namesake_folder[];
int namesake_setup(void **state);
int namesake_teardown(void **state);

void scene_end(struct scene *scene);

#endif
