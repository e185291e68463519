/* Actors and a learner: slot machines pay differently, and the best one is not known. Actors play
 * by the learner's policy, each at its own pace, and report their wins to the learner; the policy
 * gets better while they play.
 *
 *     tether-run --nproc-per-node=4 -- actor_learner
 *
 * Look at the reply to "join": it carries a reference to the policy. An actor never waits for the
 * learner: it plays on with the policy that it has, while "policy.learn" processes its last games
 * and answers with the current policy. The learner itself only serves: its graceful shutdown waits
 * until all actors are done.
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rref/rref.h"

#define MACHINES 5
#define PULLS 50     /* in an episode */
#define EPISODES 120 /* of an actor */
#define RATE 0.004

static const double pays[MACHINES] = {0.2, 0.35, 0.9, 0.5,
                                      0.1}; /* the learner does not know these */

struct policy {
    pthread_mutex_t mu; /* guards all fields */
    double preference[MACHINES];
    double mean; /* mean reward so far, with which each reward is compared */
    int episodes;
};

struct episode {
    double reward[MACHINES]; /* in all, by machine */
    double pulled[MACHINES];
};

static void policy_destroy(void *object)
{
    struct policy *policy = object;
    pthread_mutex_destroy(&policy->mu);
    free(policy);
}

static const tether_type policy_type = {.name = "policy", .destroy = policy_destroy};

/* "policy.learn": learns from the episode in the argument, if there is one; returns the
 * preferences. */
static tether_status learn(void *ud,
                           void *object,
                           const tether_value *arg,
                           tether_value **ret,
                           tether_error *err)
{
    struct policy *policy = object;
    struct episode episode;
    double reward = 0;
    tether_bytes bytes = tether_value_bytes(arg);
    (void)ud;
    pthread_mutex_lock(&policy->mu);
    if (bytes.len == sizeof episode) {
        memcpy(&episode, bytes.data, sizeof episode);
        for (int i = 0; i < MACHINES; i++) {
            policy->preference[i] += RATE * (episode.reward[i] - policy->mean * episode.pulled[i]);
            reward += episode.reward[i] / PULLS;
        }
        policy->mean += (reward - policy->mean) * 0.05;
        if (++policy->episodes % 40 == 0)
            printf("episode %3d  mean reward %.2f  %.*s\n", policy->episodes, policy->mean,
                   (int)(policy->mean * 40), "########################################");
    }
    tether_status st =
        tether_value_new(tether_bytes_of(policy->preference, sizeof policy->preference), ret, err);
    pthread_mutex_unlock(&policy->mu);
    return st;
}

struct learner {
    tether_agent *agent;
    tether_value *policy;
};

/* "join": returns a value with an attached reference to the policy. */
static tether_status join(void *ud, const tether_value *arg, tether_value **ret, tether_error *err)
{
    struct learner *learner = ud;
    tether_rref *policy = NULL;
    (void)arg;
    tether_status st = tether_rref_new(learner->agent, learner->policy, &policy, err);
    if (st == TETHER_OK)
        st = tether_value_printf(ret, err, "welcome, %s", tether_caller_name());
    if (st == TETHER_OK)
        st = tether_value_attach(*ret, policy, err);
    tether_rref_release(policy); /* from here on only actors hold references */
    return st;
}

/* ---- An actor ---- */

static void play(const double *preference, unsigned *seed, struct episode *ret)
{
    double weight[MACHINES], sum = 0;
    memset(ret, 0, sizeof *ret);
    for (int i = 0; i < MACHINES; i++)
        sum += weight[i] = exp(fmin(preference[i], 30));
    for (int n = 0; n < PULLS; n++) {
        double at = sum * rand_r(seed) / RAND_MAX;
        int i = 0;
        while (i < MACHINES - 1 && (at -= weight[i]) > 0)
            i++;
        ret->pulled[i]++;
        ret->reward[i] += (double)rand_r(seed) / RAND_MAX < pays[i];
    }
}

static tether_status act(tether_rref *policy, unsigned seed, tether_error *err)
{
    double preference[MACHINES] = {0};
    tether_future *learning = tether_rref_async(policy, "learn", NULL, TETHER_DEFAULT_MS);
    for (int i = 0; i < EPISODES && !err->code; i++) {
        struct episode episode;
        tether_value *arg = NULL, *latest = NULL;
        play(preference, &seed, &episode); /* meanwhile the learner processes the episode before */
        if (tether_future_wait(learning, TETHER_DEFAULT_MS, &latest, err) == TETHER_OK &&
            tether_value_bytes(latest).len == sizeof preference)
            memcpy(preference, tether_value_bytes(latest).data, sizeof preference);
        tether_future_release(learning);
        tether_value_new(tether_bytes_of(&episode, sizeof episode), &arg, err);
        learning = tether_rref_async(policy, "learn", arg, TETHER_DEFAULT_MS);
        tether_value_release(latest);
        tether_value_release(arg);
    }
    tether_future_wait(learning, TETHER_DEFAULT_MS, NULL, err->code ? NULL : err);
    tether_future_release(learning);
    return err->code;
}

static tether_status actor(tether_agent *agent, tether_error *err)
{
    tether_value *welcome = NULL;
    tether_status st = tether_rpc_sync(agent, "worker0", "join", NULL, -1, &welcome, err);
    if (st == TETHER_OK)
        st = act(tether_value_rref(welcome, 0), (unsigned)tether_agent_rank(agent), err);
    tether_value_release(welcome); /* and its attached reference */
    return st;
}

int main(void)
{
    tether_error err = {0};
    struct learner learner = {0};
    struct policy *policy = calloc(1, sizeof *policy);
    setvbuf(stdout, NULL, _IOLBF, 0);
    pthread_mutex_init(&policy->mu, NULL);
    if (tether_value_new_object(&policy_type, policy, &learner.policy, &err) ||
        tether_agent_new(TETHER_AGENT_OPTS(.rendezvous = "env://"), &learner.agent, &err) ||
        tether_agent_register_inline(learner.agent, "join", join, &learner, &err) ||
        tether_agent_register_method(learner.agent, &policy_type, "learn", learn, true, NULL,
                                     &err) ||
        tether_agent_start(learner.agent, &err))
        goto out;
    int rank = tether_agent_rank(learner.agent);
    if (tether_agent_world_size(learner.agent) < 2) {
        tether_error_set(&err, TETHER_EINVAL, "there is no actor: start two workers or more");
        goto out;
    }
    if ((rank > 0 && actor(learner.agent, &err)) ||
        /* Waits until all actors have shut down. */
        tether_agent_shutdown(learner.agent, true, &err))
        goto out;
    if (rank == 0)
        printf("%d episodes; the best machine pays 0.90, the actors got %.2f\n", policy->episodes,
               policy->mean);
    if (rank == 0 && policy->mean < 0.7)
        tether_error_set(&err, TETHER_EINTERNAL, "they did not learn");
out:
    if (err.code)
        fprintf(stderr, "%s: %s\n", tether_status_name(err.code), err.message);
    tether_agent_release(learner.agent);
    tether_value_release(learner.policy);
    return err.code != TETHER_OK;
}
