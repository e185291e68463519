/* Scatter and gather: worker 0 starts a hundred pieces of work at once, shows their progress, and
 * combines the results. The work is to estimate pi with random points.
 *
 *     tether-run --nproc-per-node=4 -- scatter_gather
 *
 * Look at tether_rpc_async(): it neither blocks nor fails, and calls to one worker are sent in
 * batches. tether_future_then() counts each result on the thread that receives it, and
 * tether_future_all() is one future for all of them.
 */
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "rref/rref.h"

#define PIECES 100
#define DARTS 200000 /* a piece */

/* "throw": returns how many darts hit the quarter of a circle. The argument is the seed. */
static tether_status throw_darts(void *ud,
                                 const tether_value *arg,
                                 tether_value **ret,
                                 tether_error *err)
{
    (void)ud;
    unsigned seed = (unsigned)atoi(tether_value_str(arg));
    long hits = 0;
    for (int i = 0; i < DARTS; i++) {
        double x = (double)rand_r(&seed) / RAND_MAX, y = (double)rand_r(&seed) / RAND_MAX;
        hits += x * x + y * y < 1;
    }
    return tether_value_printf(ret, err, "%ld", hits);
}

struct progress {
    pthread_mutex_t mu; /* guards all fields, and keeps the lines in order */
    int done;
    int64_t hits;
};

/* Runs when a piece is done, on several threads at once. Must not block: it only prints a line at
 * every tenth. */
static void count(tether_future *future, void *userdata)
{
    struct progress *progress = userdata;
    pthread_mutex_lock(&progress->mu);
    progress->hits += atoll(tether_value_str(tether_future_value(future)));
    int percent = ++progress->done * 100 / PIECES;
    if (percent % 10 == 0)
        printf("[%.*s%.*s] %3d %%\n", percent / 5, "####################", 20 - percent / 5,
               "....................", percent);
    pthread_mutex_unlock(&progress->mu);
}

static tether_status scatter(tether_agent *agent, tether_error *err)
{
    /* Static, so that it outlives every callback, also after an error. */
    static struct progress progress = {.mu = PTHREAD_MUTEX_INITIALIZER};
    tether_future *futures[PIECES];
    int helpers = tether_agent_world_size(agent) - 1;
    for (int i = 0; i < PIECES; i++) {
        char name[32];
        tether_value *seed = NULL; /* NULL is sent as no bytes, which is a valid seed */
        snprintf(name, sizeof name, "worker%d", helpers ? 1 + i % helpers : 0);
        tether_value_printf(&seed, NULL, "%d", i);
        futures[i] = tether_rpc_async(agent, name, "throw", seed, TETHER_DEFAULT_MS);
        tether_future_then(futures[i], count, &progress);
        tether_value_release(seed);
    }
    tether_future *all = tether_future_all(futures, PIECES);
    tether_status st = tether_future_wait(all, TETHER_DEFAULT_MS, NULL, err);
    tether_future_release(all);
    for (int i = 0; i < PIECES; i++)
        tether_future_release(futures[i]);
    if (st != TETHER_OK)
        return st;
    double pi = 4.0 * (double)progress.hits / PIECES / DARTS;
    printf("%d darts: pi is about %.4f\n", PIECES * DARTS, pi);
    return fabs(pi - M_PI) < 0.01 ? TETHER_OK
                                  : tether_error_set(err, TETHER_EINTERNAL, "which it is not");
}

int main(void)
{
    tether_error err = {0};
    tether_agent *agent = NULL;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (tether_agent_new(TETHER_AGENT_OPTS(.rendezvous = "env://"), &agent, &err) ||
        tether_agent_register(agent, "throw", throw_darts, NULL, &err) ||
        tether_agent_start(agent, &err) ||
        (tether_agent_rank(agent) == 0 && scatter(agent, &err)) ||
        tether_agent_shutdown(agent, true, &err))
        fprintf(stderr, "%s: %s\n", tether_status_name(err.code), err.message);
    tether_agent_release(agent);
    return err.code != TETHER_OK;
}
