/* What `./dev demo` shows: objects that live on one worker and are held by others, through the
 * death of a worker, to the last release. Started four times by demo.sh, through tether-run.
 *
 *     demo_worker PATH-TO-TETHER-INSPECT [DOT-FILE]
 *
 * What to look at: tell() is the story, one step a block; every step checks what it says, and the
 * first one that is not true ends the demo with exit code 1. Everything above it is what all four
 * workers have in common: a type of object, and functions that keep, use and drop references.
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "rref/rref.h"

#define LEASE_MS 1500
#define KEPT 8

extern char **environ;

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
        return tether_error_set(err, TETHER_ENOMEM, "no memory for a counter");
    }
    atomic_fetch_add(&n_alive, 1);
    return TETHER_OK;
}

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

/* ---- What others may ask a worker: keep references, use them, drop them ---- */

static struct {
    pthread_mutex_t mu;
    tether_rref *kept[KEPT]; /* under mu */
    int n;
} drawer = {.mu = PTHREAD_MUTEX_INITIALIZER};

static tether_status keep(void *ud, const tether_value *arg, tether_value **ret, tether_error *err)
{
    (void)ud, (void)ret;
    tether_status st = TETHER_OK;
    pthread_mutex_lock(&drawer.mu);
    if (tether_value_n_rrefs(arg) != 1 || drawer.n == KEPT)
        st = tether_error_set(err, TETHER_EINVAL, "one reference at a time, %d in all", KEPT);
    else
        drawer.kept[drawer.n++] = tether_rref_retain(tether_value_rref(arg, 0));
    pthread_mutex_unlock(&drawer.mu);
    return st;
}

static tether_status use(void *ud, const tether_value *arg, tether_value **ret, tether_error *err)
{
    (void)ud;
    pthread_mutex_lock(&drawer.mu);
    tether_rref *first = drawer.n ? tether_rref_retain(drawer.kept[0]) : NULL;
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
        tether_rref_release(drawer.kept[--drawer.n]);
    pthread_mutex_unlock(&drawer.mu);
    return TETHER_OK;
}

/* "state": process, counters that live here, references that others hold to them. */
static tether_status state(void *ud, const tether_value *arg, tether_value **ret, tether_error *err)
{
    (void)arg;
    return tether_value_printf(ret, err, "%d %d %zu", (int)getpid(), atomic_load(&n_alive),
                               tether_rref_counts(ud).forks);
}

/* ---- Telling ---- */

static tether_agent *agent;
static struct timespec began;

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - began.tv_sec) + (double)(now.tv_nsec - began.tv_nsec) / 1e9;
}

static void say(const char *format, ...) TETHER_PRINTF(1, 2);
static void say(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    printf("%7.3f s  ", seconds());
    vprintf(format, args);
    putchar('\n');
    va_end(args);
}

_Noreturn static void fail(const char *what, const tether_error *err)
{
    say("NOT TRUE: %s (%s %s)", what, tether_status_name(err->code), err->message);
    exit(1);
}

/* Ends the demo when something is not as the story has it. */
static tether_error err;
#define must(condition)             \
    do {                            \
        if (!(condition))           \
            fail(#condition, &err); \
    } while (0)

/* Calls `fn` on `worker` with a text, a reference or both (or neither); the answer as a number. */
static int ask(const char *worker, const char *fn, const char *text, tether_rref *rref)
{
    tether_value *arg = NULL, *answer = NULL;
    must(tether_value_printf(&arg, &err, "%s", text) == TETHER_OK);
    must(!rref || tether_value_attach(arg, rref, &err) == TETHER_OK);
    must(tether_rpc_sync(agent, worker, fn, arg, TETHER_DEFAULT_MS, &answer, &err) == TETHER_OK);
    int number = atoi(tether_value_str(answer));
    tether_value_release(answer);
    tether_value_release(arg);
    return number;
}

/* What "state" says of `worker`. */
struct state {
    int pid, alive;
    size_t forks;
};

static struct state state_of(const char *worker)
{
    struct state s = {0};
    tether_value *answer = NULL;
    must(tether_rpc_sync(agent, worker, "state", NULL, TETHER_DEFAULT_MS, &answer, &err) ==
         TETHER_OK);
    must(sscanf(tether_value_str(answer), "%d %d %zu", &s.pid, &s.alive, &s.forks) == 3);
    tether_value_release(answer);
    return s;
}

/* Looks until `worker` has so many counters and others so many references to them; 10 s at most. */
static void await_state(const char *worker, int alive, size_t forks)
{
    double limit = seconds() + 10;
    struct state s = state_of(worker);
    while ((s.alive != alive || s.forks != forks) && seconds() < limit) {
        nanosleep(&(struct timespec){0, 2000000}, NULL);
        s = state_of(worker);
    }
    must(s.alive == alive && s.forks == forks);
}

/* Has tether-inspect draw who holds what now, to `file` if there is one. */
static void draw(char *inspect, const char *format, const char *file)
{
    char store[128];
    char *const argv[] = {inspect, store, (char *)format, NULL};
    posix_spawn_file_actions_t actions;
    pid_t pid;
    int status;
    snprintf(store, sizeof store, "--store=%s:%s", getenv("MASTER_ADDR"), getenv("MASTER_PORT"));
    posix_spawn_file_actions_init(&actions);
    if (file)
        posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, file,
                                         O_WRONLY | O_CREAT | O_TRUNC, 0666);
    must(posix_spawnp(&pid, inspect, &actions, NULL, argv, environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
    must(waitpid(pid, &status, 0) == pid && status == 0);
}

static void on_lost(tether_rref *rref, void *lost)
{
    (void)rref;
    tether_future_finish(lost, TETHER_OK, NULL, NULL);
}

static void tell(char *inspect, const char *dot_file)
{
    say("four workers have met: processes %d, %d, %d, %d", (int)getpid(), state_of("worker1").pid,
        state_of("worker2").pid, state_of("worker3").pid);

    double before = seconds();
    tether_rref *shared = tether_remote(agent, "worker1", "make", NULL, TETHER_DEFAULT_MS);
    tether_rref *doomed = tether_remote(agent, "worker3", "make", NULL, TETHER_DEFAULT_MS);
    say("worker0 has a counter made on worker1, another on worker3: two references in %.0f us",
        (seconds() - before) * 1e6);

    ask("worker2", "keep", "", shared);
    ask("worker3", "keep", "", shared);
    ask("worker1", "keep", "", doomed);
    ask("worker2", "keep", "", doomed);
    say("it passes both on: worker2 and worker3 hold the first, worker1 and worker2 the second");

    must(ask("worker2", "use", "20", NULL) == 20);
    must(ask("worker3", "use", "22", NULL) == 42);
    say("worker2 adds 20 and worker3 adds 22, where the counter is: it says 42");

    tether_rref *passing = tether_remote(agent, "worker2", "make", NULL, TETHER_DEFAULT_MS);
    must(tether_rref_sync(passing, "add", NULL, TETHER_DEFAULT_MS, NULL, &err) == TETHER_OK);
    say("a third one, on worker2; now, says tether-inspect, the graph is this:\n");
    draw(inspect, "--tree", NULL);
    if (dot_file)
        draw(inspect, "--dot", dot_file);
    putchar('\n');

    passing = tether_rref_release(passing);
    await_state("worker2", 0, 0);
    say("worker0 lets go of the third: worker2 has destroyed it");

    tether_future *lost = tether_future_new();
    must(lost && tether_rref_on_owner_lost(doomed, on_lost, lost, &err) == TETHER_OK);
    before = seconds();
    must(kill(state_of("worker3").pid, SIGKILL) == 0);
    say("kill -9 of worker3, which held the first counter and owned the second");
    await_state("worker1", 1, 2);
    say("worker1 has taken back what worker3 held, %.1f s later (the lease is %.1f s)",
        seconds() - before, LEASE_MS / 1e3);

    must(tether_future_wait(lost, 10000, NULL, &err) == TETHER_OK);
    must(tether_rref_sync(doomed, "add", NULL, TETHER_DEFAULT_MS, NULL, &err) == TETHER_EOWNERDIED);
    tether_future_release(lost);
    say("the second is lost with its owner, and says so: %s", err.message);

    must(ask("worker2", "use", "58", NULL) == 100);
    say("the first is as good as ever: worker2 adds 58, it says 100");

    tether_rref_release(doomed);
    tether_rref_release(shared);
    ask("worker1", "drop", "", NULL);
    ask("worker2", "drop", "", NULL);
    await_state("worker1", 0, 0);
    await_state("worker2", 0, 0);
    struct tether_rref_counts counts = tether_rref_counts(agent);
    must(counts.confirmed_users + counts.pending_users + counts.broken_users == 0);
    say("all let go: worker1 has destroyed the first counter, and no table has anything left");
}

int main(int argc, char **argv)
{
    clock_gettime(CLOCK_MONOTONIC, &began);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc < 2) {
        fprintf(stderr, "usage: demo_worker PATH-TO-TETHER-INSPECT [DOT-FILE]\n");
        return 2;
    }
    if (tether_agent_new(TETHER_AGENT_OPTS(.rendezvous = "env://", .lease_ms = LEASE_MS,
                                           .shutdown_timeout_ms = 10000, .fail_on_leaks = true),
                         &agent, &err) ||
        tether_agent_register_method(agent, &counter_type, "add", add, true, NULL, &err) ||
        tether_agent_register_inline(agent, "make", make, NULL, &err) ||
        tether_agent_register_inline(agent, "keep", keep, NULL, &err) ||
        tether_agent_register(agent, "use", use, NULL, &err) ||
        tether_agent_register_inline(agent, "drop", drop, NULL, &err) ||
        tether_agent_register_inline(agent, "state", state, agent, &err) ||
        tether_agent_start(agent, &err))
        fail("the workers meet", &err);
    bool tells = tether_agent_rank(agent) == 0;
    if (tells)
        tell(argv[1], argv[2]);
    if (tether_agent_shutdown(agent, true, &err) != TETHER_OK)
        fail("everybody leaves without a leak", &err);
    tether_agent_release(agent);
    if (tells)
        say("the three that are left have shut down, nobody waited for the dead");
    return 0;
}
