/* A node of a simulated job: what a launcher does with the rendezvous, on a fiber.
 *
 * It joins, keeps its heart beating, and joins again when the group has changed, as the handler's
 * next() and keep-alive thread do it, with the same holder, executor and ops.
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
    struct tether__rdzv_backend_holder direct; /* instead of `member`, where the job says so */
    struct tether__rdzv_holder *holder;        /* the one that is used */
    struct sim_fiber *fiber;
    int64_t starts_at; /* virtual ns */
    bool leave;        /* told to go: leaves in good order */

    /* how it is doing */
    bool in_round;
    uint64_t round;
    int rank, world_size;
    int64_t joined_at;
    int joins;
    tether_status ended; /* of its last join; TETHER_OK: it runs, or was told to go */
};

struct sim_job {
    struct sim *sim;
    struct sim_store *store;
    tether_store *run_store; /* under the prefix of the run */
    tether_rdzv_backend *backend;
    struct tether_rdzv_settings settings;
    bool stay;   /* don't join again when the group changes */
    bool direct; /* every node reads and writes the whole state itself: for comparison. Set it
                  * before the nodes are started. */
    struct sim_node *nodes;
    int n;
    void (*on_join)(struct sim_job *job, struct sim_node *node); /* NULL: nobody asks */
    void *userdata;
};

/* Sets up `n` nodes, none of them started. `settings` is copied. */
void sim_job_init(struct sim_job *job,
                  uint64_t seed,
                  int n,
                  const struct tether_rdzv_settings *settings,
                  int64_t latency_ns);
void sim_job_fini(struct sim_job *job);

/* Starts a node, now or when its starts_at has come. */
void sim_node_start(struct sim_node *node);
void sim_node_kill(struct sim_node *node);

/* Starts a node that was killed, or has left, anew under the same name. Not before its fiber has
 * ended. */
void sim_node_restart(struct sim_node *node);

/* How many of the nodes are in a round of `world_size` nodes, whose number goes to `ret_round`; 0
 * when they are not all in the same. */
int sim_job_in_round(const struct sim_job *job, int world_size, uint64_t *ret_round);

#endif
