/* Some agents in one process, over real sockets or over the simulated network, with the functions
 * that the agent tests call. Workers are called "w0", "w1" ...
 */
#ifndef TETHER_TESTS_RPC_WORLD_H
#define TETHER_TESTS_RPC_WORLD_H

#include <stdatomic.h>

#include "rpc/agent.h"
#include "tests/rpc/lib/sim_net.h"

#define TETHER_TEST_MAX_WORKERS 8

/* The network between the workers. */
enum tether_test_net {
    TETHER_TEST_GRPC,  /* on loopback */
    TETHER_TEST_UNIX,  /* the unix sockets that workers of one host have */
    TETHER_TEST_MIXED, /* odd workers have none: gRPC from and to them */
    TETHER_TEST_SIM,
    TETHER_TEST_N_NETS,
};
extern const char *const tether_test_net_names[TETHER_TEST_N_NETS];

struct tether_test_world {
    enum tether_test_net net;
    struct tether_sim *sim; /* NULL: real sockets */
    tether_store *store;
    tether_agent *agents[TETHER_TEST_MAX_WORKERS];
    int n;
    _Atomic int n_noted;          /* calls of "note" */
    _Atomic(tether_reply *) held; /* the handle that "hold" keeps */
    _Atomic int n_held;
};

/* Starts `n` workers of a dynamic group. `opts` (may be NULL) gives what is not the default. */
void tether_test_world_start(struct tether_test_world *world,
                             enum tether_test_net net,
                             int n,
                             const struct tether_agent_opts *opts);
/* Starts (again) worker `i`. */
void tether_test_world_start_one(struct tether_test_world *world,
                                 int i,
                                 const struct tether_agent_opts *opts);
void tether_test_world_stop(struct tether_test_world *world);

/* Waits until `done` returns true, ten seconds at the most (of simulated time in a simulated
 * world). */
bool tether_test_world_wait(struct tether_test_world *world,
                            bool (*done)(void *userdata),
                            void *userdata);

/* Registers more functions with each worker before it starts; NULL: none. */
extern void (*tether_test_world_register)(tether_agent *agent);

/* Fails chosen messages of workers over the simulation (tether__agent_hooks); NULL: none. */
extern tether_status (*tether_test_world_before_send)(void *userdata,
                                                      const char *peer,
                                                      uint32_t kind);

/* The functions: "echo" and "echo_pooled" return their argument; "note" counts itself; "fail" fails
 * with TETHER_EINVAL "no good"; "hold" is asynchronous and keeps its reply handle in `held`;
 * "caller" returns the caller's name; "relay" calls "echo" on the worker named by its argument;
 * "block_inline" makes a synchronous call from an inline function and returns what that says;
 * "left" returns the milliseconds that its caller still waits. */

#endif
