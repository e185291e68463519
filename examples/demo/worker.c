/* A worker of `./dev demo`: a type of object, and functions with which other workers make it
 * create, keep, use and drop references. demo.sh starts four of them through tether-run; worker 0
 * also runs the story (story.c).
 *
 *     worker PATH-TO-TETHER-INSPECT [DOT-FILE]
 *
 * Look at what is missing: no code here counts references, reports them to others or cleans up
 * after dead workers. "keep" retains the reference of its argument, and "drop" releases it.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "examples/demo/story.h"
#include "rref/rref.h"

#define KEPT 8

/* ---- An object: a number that can be added to ---- */

static _Atomic int n_alive; /* on this worker */

static void counter_destroy(void *object)
{
    free(object);
    atomic_fetch_sub(&n_alive, 1);
}

static const tether_type counter_type = {.name = "counter", .destroy = counter_destroy};

static tether_status make(void *ud, const tether_value *arg, tether_value **ret, tether_error *err)
{
    (void)ud, (void)arg;
    _Atomic int *counter = calloc(1, sizeof *counter);
    if (!counter || tether_value_new_object(&counter_type, counter, ret, err) != TETHER_OK) {
        free(counter);
        return tether_error_set(err, TETHER_ENOMEM, "out of memory for a counter");
    }
    atomic_fetch_add(&n_alive, 1);
    return TETHER_OK;
}

/* "counter.add": adds and returns the sum. */
static tether_status add(void *ud,
                         void *object,
                         const tether_value *arg,
                         tether_value **ret,
                         tether_error *err)
{
    (void)ud;
    int n = atoi(tether_value_str(arg));
    return tether_value_printf(ret, err, "%d", atomic_fetch_add((_Atomic int *)object, n) + n);
}

/* ---- Functions for other workers: keep references, use the first, drop all ---- */

static struct {
    pthread_mutex_t mu;
    tether_rref *rrefs[KEPT]; /* under mu */
    int n;                    /* under mu */
} drawer = {.mu = PTHREAD_MUTEX_INITIALIZER};

static tether_status keep(void *ud, const tether_value *arg, tether_value **ret, tether_error *err)
{
    (void)ud, (void)ret;
    tether_status st = TETHER_OK;
    pthread_mutex_lock(&drawer.mu);
    if (tether_value_n_rrefs(arg) != 1 || drawer.n == KEPT)
        st = tether_error_set(err, TETHER_EINVAL, "one reference at a time, %d in all", KEPT);
    else
        drawer.rrefs[drawer.n++] = tether_rref_retain(tether_value_rref(arg, 0));
    pthread_mutex_unlock(&drawer.mu);
    return st;
}

static tether_status use(void *ud, const tether_value *arg, tether_value **ret, tether_error *err)
{
    (void)ud;
    pthread_mutex_lock(&drawer.mu);
    tether_rref *first = drawer.n ? tether_rref_retain(drawer.rrefs[0]) : NULL;
    pthread_mutex_unlock(&drawer.mu);
    if (!first)
        return tether_error_set(err, TETHER_ENOTFOUND, "nothing has been kept");
    tether_status st = tether_rref_sync(first, "add", arg, TETHER_DEFAULT_MS, ret, err);
    tether_rref_release(first);
    return st;
}

static tether_status drop(void *ud, const tether_value *arg, tether_value **ret, tether_error *err)
{
    (void)ud, (void)arg, (void)ret, (void)err;
    pthread_mutex_lock(&drawer.mu);
    while (drawer.n)
        tether_rref_release(drawer.rrefs[--drawer.n]);
    pthread_mutex_unlock(&drawer.mu);
    return TETHER_OK;
}

/* "state": returns the pid, the number of counters on this worker, and the references to them. */
static tether_status state(void *ud, const tether_value *arg, tether_value **ret, tether_error *err)
{
    (void)arg;
    return tether_value_printf(ret, err, "%d %d %zu", (int)getpid(), atomic_load(&n_alive),
                               tether_rref_counts(ud).forks);
}

int main(int argc, char **argv)
{
    tether_error err = {0};
    tether_agent *agent = NULL;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc < 2) {
        fprintf(stderr, "usage: worker PATH-TO-TETHER-INSPECT [DOT-FILE]\n");
        return 2;
    }
    story_begin();
    if (tether_agent_new(TETHER_AGENT_OPTS(.rendezvous = "env://", .lease_ms = DEMO_LEASE_MS,
                                           .shutdown_timeout_ms = 10000, .fail_on_leaks = true),
                         &agent, &err) ||
        tether_agent_register_method(agent, &counter_type, "add", add, true, NULL, &err) ||
        tether_agent_register_inline(agent, "make", make, NULL, &err) ||
        tether_agent_register_inline(agent, "keep", keep, NULL, &err) ||
        tether_agent_register(agent, "use", use, NULL, &err) ||
        tether_agent_register_inline(agent, "drop", drop, NULL, &err) ||
        tether_agent_register_inline(agent, "state", state, agent, &err) ||
        tether_agent_start(agent, &err))
        story_fails("the workers meet", &err);
    bool tells = tether_agent_rank(agent) == 0;
    if (tells)
        story_tell(agent, argv[1], argv[2]);
    if (tether_agent_shutdown(agent, true, &err) != TETHER_OK)
        story_fails("everybody leaves without a leak", &err);
    tether_agent_release(agent);
    if (tells)
        story_says("the three that are left have shut down, nobody waited for the dead");
    return 0;
}
