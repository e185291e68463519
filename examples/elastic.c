/* An elastic job: workers count together, step by step, and continue where they were after one of
 * them was killed or another node has joined.
 *
 *     tether-run --nnodes=1:4 --nproc-per-node=2 --rdzv-endpoint=127.0.0.1:29400 --last-call=2 \
 *                --max-restarts=10 -- elastic [steps] [milliseconds per step]
 *
 * Start that in two or three terminals, kill a worker or a tether-run, start another: the survivors
 * form a new group and the count goes on.
 *
 * Look at the keys: the data that must outlive a round (the last finished step and the total) is
 * one key outside of the round's prefix. All other keys are below the prefix that tether-run gives
 * each round, so a new round never sees unfinished work of an old one. When a member dies, the
 * others wait for it until tether-run ends them and starts the next round. (The count is in the
 * store, so it is lost with the node that hosts the store, unless tether-store does.)
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "rendezvous/rendezvous.h"

#define CHECKPOINT "elastic.checkpoint" /* "step total" */

struct progress {
    long step;
    int64_t total;
};

static tether_status load(tether_store *job, struct progress *ret, tether_error *err)
{
    tether_buf text = TETHER_BUF_INIT;
    struct progress progress = {0, 0};
    tether_status st = tether_store_try_get(job, CHECKPOINT, TETHER_DEFAULT_MS, &text, err);
    if (st == TETHER_OK)
        sscanf(text.data, "%ld %" SCNd64, &progress.step, &progress.total);
    tether_buf_fini(&text);
    if (st != TETHER_OK && st != TETHER_ENOTFOUND) /* not found: this is the first round */
        return st;
    *ret = progress;
    return TETHER_OK;
}

static tether_status save(tether_store *job, const struct progress *progress, tether_error *err)
{
    char text[64];
    snprintf(text, sizeof text, "%ld %" PRId64, progress->step, progress->total);
    return tether_store_set(job, CHECKPOINT, tether_bytes_str(text), TETHER_DEFAULT_MS, err);
}

/* Takes one step, which is done once all workers have arrived. */
static tether_status take_step(const struct tether_world *world, long step, tether_error *err)
{
    char key[32];
    snprintf(key, sizeof key, "step/%ld", step);
    return tether_store_barrier(world->store, key, world->size, TETHER_DEFAULT_MS, err);
}

static tether_status count(const struct tether_world *world,
                           long steps,
                           long step_ms,
                           tether_error *err)
{
    /* The store below the round's prefix is shared by all rounds. */
    tether_store *job = tether_store_underlying_non_prefix(world->store);
    struct timespec work = {step_ms / 1000, step_ms % 1000 * 1000000};
    struct progress progress;
    tether_status st = load(job, &progress, err);
    if (st != TETHER_OK)
        return st;
    printf("rank %d of %d goes on after step %ld\n", world->rank, world->size, progress.step);
    while (progress.step < steps) {
        nanosleep(&work, NULL);
        st = take_step(world, progress.step + 1, err);
        if (st != TETHER_OK)
            return st;
        progress.step++;
        progress.total += world->size;
        if (world->rank != 0)
            continue;
        st = save(job, &progress, err);
        if (st != TETHER_OK)
            return st;
        printf("step %ld: %d workers, total %" PRId64 "\n", progress.step, world->size,
               progress.total);
    }
    return TETHER_OK;
}

int main(int argc, char **argv)
{
    long steps = argc > 1 ? atol(argv[1]) : 100;
    long step_ms = argc > 2 ? atol(argv[2]) : 200;
    struct tether_world world = {NULL, 0, 0};
    tether_error err = {0};
    setvbuf(stdout, NULL, _IOLBF, 0);
    tether_status st = tether_rendezvous("env://", -1, -1, 60000, &world, &err);
    if (st == TETHER_OK)
        st = count(&world, steps, step_ms, &err);
    tether_world_fini(&world);
    if (st != TETHER_OK)
        fprintf(stderr, "%s: %s\n", tether_status_name(st), err.message);
    return st != TETHER_OK;
}
