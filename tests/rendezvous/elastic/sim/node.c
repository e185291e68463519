/* Nodes of a simulated job. */
#include "tests/rendezvous/elastic/sim/node.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLICE_NS (100 * TETHER__NS_PER_MS) /* the same as that of the keep-alive thread */
#define SKEW_NS (300 * TETHER__NS_PER_MS)

static tether_status execute(struct sim_node *node, tether__rdzv_op *op, int64_t timeout_ms)
{
    struct tether__rdzv_executor executor = {
        .self = &node->self,
        .holder = node->holder,
        .settings = &node->job->settings,
        .env = sim_env(node->job->sim),
    };
    tether_error err;
    int64_t deadline = sim_now(node->job->sim) + timeout_ms * TETHER__NS_PER_MS;
    return tether__rdzv_execute(&executor, op, deadline, &err);
}

static tether_status join(struct sim_node *node)
{
    struct sim_job *job = node->job;
    node->in_round = false;
    if (node->joins > 0)
        node->self.past = node->round + 1;
    tether_status st = execute(node, tether__rdzv_exit_op, job->settings.timeouts.join_ms);
    if (st == TETHER_OK)
        st = execute(node, tether__rdzv_join_op, job->settings.timeouts.join_ms);
    if (st != TETHER_OK)
        return st;
    const struct tether__rdzv_state *state = node->holder->ops->state(node->holder);
    const struct tether__rdzv_member *self =
        tether__rdzv_roster_find(&state->participants, &node->self.node);
    if (!self)
        return TETHER_EINTERNAL;
    node->in_round = true;
    node->round = state->round;
    node->rank = self->rank;
    node->world_size = state->world_size;
    node->joined_at = sim_now(job->sim);
    node->joins++;
    node->self.previous = self->rank;
    if (job->on_join)
        job->on_join(job, node);
    return TETHER_OK;
}

static bool group_has_changed(struct sim_node *node)
{
    const struct tether__rdzv_state *state = node->holder->ops->state(node->holder);
    return !state->complete || state->round != node->round ||
           tether__rdzv_num_participants(state) < (size_t)state->world_size ||
           tether__rdzv_num_waiting(state) > 0 ||
           !tether__rdzv_roster_find(&state->participants, &node->self.node);
}

/* Sends heartbeats until there is a reason to join again or to end. */
static void live(struct sim_node *node)
{
    struct sim_job *job = node->job;
    while (!sim_dead(node->fiber) && !node->leave) {
        tether_status st =
            execute(node, tether__rdzv_keep_alive_op, job->settings.timeouts.heartbeat_ms);
        if (st == TETHER_OK && !job->stay && group_has_changed(node))
            return;
        if (tether__rdzv_member_holder_leads(&node->member)) {
            struct tether__rdzv_pause pause;
            node->holder->ops->plan(node->holder, SLICE_NS, &pause);
            node->holder->ops->pause(node->holder, &pause, NULL);
        } else {
            sim_sleep(job->sim, job->settings.keep_alive_interval_ms * TETHER__NS_PER_MS);
        }
    }
}

static void node_main(void *userdata)
{
    struct sim_node *node = userdata;
    struct sim *sim = node->job->sim;
    if (node->starts_at > sim_now(sim))
        sim_sleep(sim, node->starts_at - sim_now(sim));
    tether__rdzv_delay_random(sim_env(sim), SKEW_NS);
    while (!sim_dead(node->fiber) && !node->leave) {
        node->ended = join(node);
        if (node->ended != TETHER_OK)
            break;
        live(node);
    }
    node->in_round = false;
    if (node->leave && node->ended == TETHER_OK)
        execute(node, tether__rdzv_exit_op, node->job->settings.timeouts.close_ms);
    tether__rdzv_member_holder_withdraw(&node->member, sim_now(sim) + TETHER__NS_PER_S);
}

void sim_job_init(struct sim_job *job,
                  uint64_t seed,
                  int n,
                  const struct tether_rdzv_settings *settings,
                  int64_t latency_ns)
{
    memset(job, 0, sizeof *job);
    job->sim = sim_new(seed);
    job->store = sim_store_new(job->sim, latency_ns);
    job->settings = *settings;
    job->n = n;
    job->nodes = calloc((size_t)n, sizeof *job->nodes);
    tether_store *store = sim_store_of(job->store);
    if (!job->nodes ||
        tether_store_prefix_new("tether.rendezvous.sim", store, &job->run_store, NULL) !=
            TETHER_OK ||
        tether_rdzv_backend_store_new(store, "sim", &job->backend, NULL) != TETHER_OK)
        abort();
    for (int i = 0; i < n; i++) {
        struct sim_node *node = &job->nodes[i];
        node->job = job;
        node->number = i;
        /* As long as real host names, and in another order than the numbers. */
        snprintf(node->addr, sizeof node->addr, "node%05d.rack-17.datacentre.example.com",
                 (int)((unsigned)i * 7919u % 100000u));
        node->self = (struct tether__rdzv_self){{node->addr, 1000 + i, 0}, -1, -1, 0};
        tether__rdzv_member_holder_init(&node->member, &node->self, &job->settings, job->run_store,
                                        job->backend, sim_env(job->sim));
        tether__rdzv_backend_holder_init(&node->direct, job->backend, NULL, &job->settings,
                                         sim_env(job->sim), TETHER__NS_PER_S);
    }
}

void sim_job_fini(struct sim_job *job)
{
    for (int i = 0; i < job->n; i++) {
        if (job->nodes[i].fiber && !sim_ended(job->nodes[i].fiber))
            sim_kill(job->sim, job->nodes[i].fiber);
    }
    sim_run(job->sim, sim_now(job->sim));
    for (int i = 0; i < job->n; i++) {
        tether__rdzv_member_holder_fini(&job->nodes[i].member);
        tether__rdzv_backend_holder_fini(&job->nodes[i].direct);
    }
    free(job->nodes);
    tether_rdzv_backend_release(job->backend);
    tether_store_release(job->run_store);
    sim_store_free(job->store);
    sim_free(job->sim);
}

void sim_node_start(struct sim_node *node)
{
    node->holder = node->job->direct ? &node->direct.base : &node->member.base;
    node->fiber = sim_start(node->job->sim, node_main, node);
}

void sim_node_kill(struct sim_node *node)
{
    sim_kill(node->job->sim, node->fiber);
    node->in_round = false;
}

void sim_node_restart(struct sim_node *node)
{
    struct sim_job *job = node->job;
    tether__rdzv_member_holder_fini(&node->member);
    node->self.previous = -1;
    node->self.past = 0;
    node->leave = false;
    node->joins = 0;
    node->ended = TETHER_OK;
    tether__rdzv_member_holder_init(&node->member, &node->self, &job->settings, job->run_store,
                                    job->backend, sim_env(job->sim));
    sim_node_start(node);
}

int sim_job_in_round(const struct sim_job *job, int world_size, uint64_t *ret_round)
{
    int count = 0;
    *ret_round = 0;
    for (int i = 0; i < job->n; i++) {
        const struct sim_node *node = &job->nodes[i];
        if (!node->in_round || node->world_size != world_size)
            continue;
        if (count > 0 && node->round != *ret_round)
            return 0;
        *ret_round = node->round;
        count++;
    }
    return count;
}
