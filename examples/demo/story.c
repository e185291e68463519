/* The story of `./dev demo`: objects that live on one worker and are held by others, through the
 * death of a worker, to the last release.
 *
 * Look at story_tell(), which has one step a block. Every step checks its own statement; the first
 * one that is not true ends the demo with exit code 1. No step waits longer than 10 s.
 */
#include "examples/demo/story.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE_S 10

extern char **environ;

static struct timespec began;
static tether_agent *agent;
static tether_error err;

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - began.tv_sec) + (double)(now.tv_nsec - began.tv_nsec) / 1e9;
}

void story_begin(void)
{
    clock_gettime(CLOCK_MONOTONIC, &began);
}

void story_says(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    printf("%7.3f s  ", seconds());
    vprintf(format, args);
    putchar('\n');
    va_end(args);
}

void story_fails(const char *what, const tether_error *cause)
{
    story_says("NOT TRUE: %s (%s %s)", what, tether_status_name(cause->code), cause->message);
    exit(1);
}

/* Ends the demo with an error unless `condition` holds. */
#define must(condition)                    \
    do {                                   \
        if (!(condition))                  \
            story_fails(#condition, &err); \
    } while (0)

/* Calls `fn` on `worker` with a text, a reference, both or neither; returns the result as a
 * number. */
static int ask(const char *worker, const char *fn, const char *text, tether_rref *rref)
{
    tether_value *arg = NULL, *answer = NULL;
    must(tether_value_printf(&arg, &err, "%s", text) == TETHER_OK);
    must(!rref || tether_value_attach(arg, rref, &err) == TETHER_OK);
    must(tether_rpc_sync(agent, worker, fn, arg, PATIENCE_S * 1000, &answer, &err) == TETHER_OK);
    int number = atoi(tether_value_str(answer));
    tether_value_release(answer);
    tether_value_release(arg);
    return number;
}

/* The reply of "state" about `worker`. */
struct state {
    int pid, alive;
    size_t forks;
};

static struct state state_of(const char *worker)
{
    struct state s = {0};
    tether_value *answer = NULL;
    must(tether_rpc_sync(agent, worker, "state", NULL, PATIENCE_S * 1000, &answer, &err) ==
         TETHER_OK);
    must(sscanf(tether_value_str(answer), "%d %d %zu", &s.pid, &s.alive, &s.forks) == 3);
    tether_value_release(answer);
    return s;
}

/* Polls until `worker` has so many counters, and others have so many references to them. */
static void await_state(const char *worker, int alive, size_t forks)
{
    double limit = seconds() + PATIENCE_S;
    struct state s = state_of(worker);
    while ((s.alive != alive || s.forks != forks) && seconds() < limit) {
        nanosleep(&(struct timespec){0, 2000000}, NULL);
        s = state_of(worker);
    }
    must(s.alive == alive && s.forks == forks);
}

/* Runs tether-inspect, which prints the objects and their holders, to `file` if there is one. */
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

void story_tell(tether_agent *worker0, char *inspect, const char *dot_file)
{
    agent = worker0;
    story_says("four workers have met: processes %d, %d, %d, %d", (int)getpid(),
               state_of("worker1").pid, state_of("worker2").pid, state_of("worker3").pid);

    double before = seconds();
    tether_rref *shared = tether_remote(agent, "worker1", "make", NULL, TETHER_DEFAULT_MS);
    tether_rref *doomed = tether_remote(agent, "worker3", "make", NULL, TETHER_DEFAULT_MS);
    story_says("worker0 has a counter made on worker1, another on worker3: references in %.0f us",
               (seconds() - before) * 1e6);

    ask("worker2", "keep", "", shared);
    ask("worker3", "keep", "", shared);
    ask("worker1", "keep", "", doomed);
    ask("worker2", "keep", "", doomed);
    story_says("it passes both on: worker2 and worker3 hold the first, worker1, 2 the second");

    must(ask("worker2", "use", "20", NULL) == 20);
    must(ask("worker3", "use", "22", NULL) == 42);
    story_says("worker2 adds 20 and worker3 adds 22, where the counter is: it says 42");

    tether_rref *passing = tether_remote(agent, "worker2", "make", NULL, TETHER_DEFAULT_MS);
    must(tether_rref_sync(passing, "add", NULL, TETHER_DEFAULT_MS, NULL, &err) == TETHER_OK);
    story_says("a third one, on worker2; now, says tether-inspect, the graph is this:\n");
    draw(inspect, "--tree", NULL);
    if (dot_file)
        draw(inspect, "--dot", dot_file);
    putchar('\n');

    passing = tether_rref_release(passing);
    await_state("worker2", 0, 0);
    story_says("worker0 releases the third: worker2 has destroyed it");

    tether_future *lost = tether_future_new();
    must(lost && tether_rref_on_owner_lost(doomed, on_lost, lost, &err) == TETHER_OK);
    int victim = state_of("worker3").pid;
    before = seconds();
    must(kill(victim, SIGKILL) == 0);
    story_says("kill -9 of worker3, which held the first counter and owned the second");
    await_state("worker1", 1, 2);
    story_says(
        "worker1 has taken back what worker3 held, %.0f ms later (on another host: within the "
        "lease, %d ms)",
        (seconds() - before) * 1e3, DEMO_LEASE_MS);

    must(tether_future_wait(lost, PATIENCE_S * 1000, NULL, &err) == TETHER_OK);
    must(tether_rref_sync(doomed, "add", NULL, TETHER_DEFAULT_MS, NULL, &err) == TETHER_EOWNERDIED);
    tether_future_release(lost);
    story_says("the second is lost with its owner, and says so:\n           %s", err.message);

    must(ask("worker2", "use", "58", NULL) == 100);
    story_says("the first is as good as ever: worker2 adds 58, it says 100");

    tether_rref_release(doomed);
    tether_rref_release(shared);
    ask("worker1", "drop", "", NULL);
    ask("worker2", "drop", "", NULL);
    await_state("worker1", 0, 0);
    await_state("worker2", 0, 0);
    struct tether_rref_counts counts = tether_rref_counts(agent);
    must(counts.confirmed_users + counts.pending_users + counts.broken_users == 0);
    story_says("all let go: worker1 has destroyed the first counter, no table has anything left");
}
