/* A node of a simulated job: a launcher's use of the rendezvous, on a fiber.
 *
 * The node joins, sends heartbeats, and joins again when the group has changed. It does this like
 * the handler's next() and keep-alive thread, with the same holder, executor and ops.
 */
#ifndef TETHER_TESTS_RENDEZVOUS_ELASTIC_SIM_NODE_H
#define TETHER_TESTS_RENDEZVOUS_ELASTIC_SIM_NODE_H

#include "rendezvous/elastic/coordination/member.h"
#include "rendezvous/elastic/sync/executor.h"
#include "tests/rendezvous/elastic/sim/sim.h"

struct sim_job;

struct sim_node {
    struct sim_job *job;
    int number;
    char addr[64];
    struct tether__rdzv_self self;
    struct tether__rdzv_member_holder member;
    struct tether__rdzv_backend_holder direct; /* instead of `member`, if job->direct */
    struct tether__rdzv_holder *holder;        /* the holder in use */
    struct sim_fiber *fiber;
    int64_t starts_at; /* virtual ns */
    bool leave;        /* makes the node leave gracefully */

    /* its present state */
    bool in_round;
    uint64_t round;
    int rank, world_size;
    int64_t joined_at;
    int joins;
    tether_status ended; /* the error that ended it; TETHER_OK: it runs, or has left on request */
};

struct sim_job {
    struct sim *sim;
    struct sim_store *store;
    tether_store *run_store; /* under the prefix of the run */
    tether_rdzv_backend *backend;
    struct tether_rdzv_settings settings;
    bool stay;   /* don't join again when the group changes */
    bool direct; /* for comparison: every node reads and writes the whole state itself. Set it
                    before the nodes start. */
    struct sim_node *nodes;
    int n;
    void (*on_join)(struct sim_job *job, struct sim_node *node); /* may be NULL */
    void *userdata;
};

/* Sets up `n` nodes, none of them started. `settings` is copied. */
void sim_job_init(struct sim_job *job,
                  uint64_t seed,
                  int n,
                  const struct tether_rdzv_settings *settings,
                  int64_t latency_ns);
void sim_job_fini(struct sim_job *job);

/* Starts a node, now or at its starts_at. */
void sim_node_start(struct sim_node *node);
void sim_node_kill(struct sim_node *node);

/* Restarts a node that was killed or has left, with the same name. Its fiber must have ended. */
void sim_node_restart(struct sim_node *node);

/* Returns how many nodes are in a round of `world_size` nodes and gives its number; 0 when they are
 * in different rounds. */
int sim_job_in_round(const struct sim_job *job, int world_size, uint64_t *ret_round);

#endif
