/* Fibers in virtual time. */
#include "tests/rendezvous/elastic/sim/sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "base/macros.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

#define STACK_SIZE (256 * 1024) /* only touched pages take memory */

struct sim_fiber {
    struct sim *sim;
    ucontext_t context;
    char *stack;
    void (*main)(void *userdata);
    void *userdata;
    bool ended, dead;
    int64_t frozen_until;
    uint64_t turn;   /* number of the event that wakes it; events with other numbers are outdated */
    bool woken;      /* by sim_wake(), not by a timeout */
    void *sanitizer; /* the sanitizer's data of this stack */
};

struct event {
    int64_t at;
    uint64_t order; /* orders events at the same time: first in, first out */
    uint64_t turn;
    struct sim_fiber *fiber;
};

struct sim {
    struct tether__rdzv_env env;
    struct tether__clock clock;
    int64_t now;
    uint64_t random;
    uint64_t orders;
    struct event *heap;
    size_t n_events, cap_events;
    struct sim_fiber **fibers;
    size_t n_fibers;
    struct sim_fiber *running;
    ucontext_t scheduler;
    void *scheduler_sanitizer;
    const void *scheduler_stack;
    size_t scheduler_stack_size;
};

/* ---- Events: a heap, soonest first ---------------------------------------------------------- */

static bool before(const struct event *a, const struct event *b)
{
    return a->at != b->at ? a->at < b->at : a->order < b->order;
}

static void push(struct sim *sim, struct sim_fiber *fiber, int64_t at)
{
    if (sim->n_events == sim->cap_events) {
        sim->cap_events = sim->cap_events ? sim->cap_events * 2 : 1024;
        sim->heap = realloc(sim->heap, sim->cap_events * sizeof *sim->heap);
        if (!sim->heap)
            abort();
    }
    size_t i = sim->n_events++;
    sim->heap[i] = (struct event){at, sim->orders++, fiber->turn, fiber};
    for (size_t parent; i > 0 && before(&sim->heap[i], &sim->heap[parent = (i - 1) / 2]);
         i = parent) {
        struct event other = sim->heap[parent];
        sim->heap[parent] = sim->heap[i];
        sim->heap[i] = other;
    }
}

static struct event pop(struct sim *sim)
{
    struct event first = sim->heap[0];
    sim->heap[0] = sim->heap[--sim->n_events];
    for (size_t i = 0;;) {
        size_t least = i;
        for (size_t child = 2 * i + 1; child <= 2 * i + 2 && child < sim->n_events; child++) {
            if (before(&sim->heap[child], &sim->heap[least]))
                least = child;
        }
        if (least == i)
            return first;
        struct event other = sim->heap[least];
        sim->heap[least] = sim->heap[i];
        sim->heap[i] = other;
        i = least;
    }
}

/* ---- Changing stacks ------------------------------------------------------------------------ */

static void to_fiber(struct sim *sim, struct sim_fiber *fiber)
{
    sim->running = fiber;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&sim->scheduler_sanitizer, fiber->stack, STACK_SIZE);
#endif
#if defined(__SANITIZE_THREAD__)
    sim->scheduler_sanitizer = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(fiber->sanitizer, 0);
#endif
    swapcontext(&sim->scheduler, &fiber->context);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(sim->scheduler_sanitizer, NULL, NULL);
#endif
    sim->running = NULL;
}

static void to_scheduler(struct sim *sim, struct sim_fiber *fiber)
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(fiber->ended ? NULL : &fiber->sanitizer, sim->scheduler_stack,
                                   sim->scheduler_stack_size);
#endif
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(sim->scheduler_sanitizer, 0);
#endif
    swapcontext(&fiber->context, &sim->scheduler);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fiber->sanitizer, NULL, NULL);
#endif
}

static void enter(unsigned high, unsigned low)
{
    struct sim_fiber *fiber = (void *)(((uintptr_t)high << 32) | low);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(NULL, &fiber->sim->scheduler_stack,
                                    &fiber->sim->scheduler_stack_size);
#endif
    fiber->main(fiber->userdata);
    fiber->ended = true;
    to_scheduler(fiber->sim, fiber);
}

struct sim_fiber *sim_start(struct sim *sim, void (*main)(void *userdata), void *userdata)
{
    struct sim_fiber *fiber = calloc(1, sizeof *fiber);
    sim->fibers = realloc(sim->fibers, (sim->n_fibers + 1) * sizeof *sim->fibers);
    char *stack = mmap(NULL, STACK_SIZE, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (!fiber || !sim->fibers || stack == MAP_FAILED)
        abort();
    sim->fibers[sim->n_fibers++] = fiber;
    fiber->sim = sim;
    fiber->stack = stack;
    fiber->main = main;
    fiber->userdata = userdata;
#if defined(__SANITIZE_THREAD__)
    fiber->sanitizer = __tsan_create_fiber(0);
#endif
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = stack;
    fiber->context.uc_stack.ss_size = STACK_SIZE;
    uintptr_t address = (uintptr_t)fiber;
    makecontext(&fiber->context, (void (*)(void))(void *)enter, 2, (unsigned)(address >> 32),
                (unsigned)address);
    push(sim, fiber, sim->now);
    return fiber;
}

/* ---- Time ----------------------------------------------------------------------------------- */

void sim_run(struct sim *sim, int64_t until)
{
    while (sim->n_events > 0 && sim->heap[0].at <= until) {
        struct event event = pop(sim);
        struct sim_fiber *fiber = event.fiber;
        if (event.turn != fiber->turn || fiber->ended)
            continue;
        if (fiber->frozen_until > event.at && !fiber->dead) {
            push(sim, fiber, fiber->frozen_until);
            continue;
        }
        sim->now = event.at;
        fiber->turn++;
        to_fiber(sim, fiber);
    }
    if (until != INT64_MAX && until > sim->now)
        sim->now = until;
}

bool sim_wait_for_wake(struct sim *sim, int64_t ns)
{
    struct sim_fiber *fiber = sim->running;
    fiber->woken = false;
    if (fiber->dead)
        return false;
    int64_t at;
    if (!__builtin_add_overflow(sim->now, ns, &at))
        push(sim, fiber, at);
    to_scheduler(sim, fiber);
    return fiber->woken;
}

void sim_sleep(struct sim *sim, int64_t ns)
{
    sim_wait_for_wake(sim, ns > 0 ? ns : 0);
}

void sim_wake(struct sim *sim, struct sim_fiber *fiber)
{
    fiber->woken = true;
    fiber->turn++; /* makes the event of the timeout outdated */
    push(sim, fiber, sim->now);
}

struct sim_fiber *sim_self(struct sim *sim)
{
    return sim->running;
}

void sim_kill(struct sim *sim, struct sim_fiber *fiber)
{
    fiber->dead = true;
    fiber->turn++;
    push(sim, fiber, sim->now);
}

bool sim_dead(const struct sim_fiber *fiber)
{
    return fiber->dead;
}

void sim_freeze(struct sim *sim, struct sim_fiber *fiber, int64_t until)
{
    (void)sim;
    fiber->frozen_until = until;
}

bool sim_ended(const struct sim_fiber *fiber)
{
    return fiber->ended;
}

int64_t sim_now(const struct sim *sim)
{
    return sim->now;
}

uint64_t sim_random(struct sim *sim)
{
    /* splitmix64 */
    uint64_t z = (sim->random += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* ---- The world ------------------------------------------------------------------------------ */

static struct sim *sim_of(const struct tether__rdzv_env *env)
{
    return tether__container_of(env, struct sim, env);
}

static int64_t clock_now(const struct tether__clock *clock)
{
    return tether__container_of(clock, struct sim, clock)->now;
}

static void env_delay(const struct tether__rdzv_env *env, int64_t ns)
{
    sim_sleep(sim_of(env), ns);
}

static uint64_t env_random(const struct tether__rdzv_env *env)
{
    return sim_random(sim_of(env));
}

const struct tether__rdzv_env *sim_env(struct sim *sim)
{
    return &sim->env;
}

struct sim *sim_new(uint64_t seed)
{
    struct sim *sim = calloc(1, sizeof *sim);
    if (!sim)
        abort();
    sim->random = seed;
    sim->clock.now_ns = clock_now;
    sim->env = (struct tether__rdzv_env){&sim->clock, env_delay, env_random};
    return sim;
}

void sim_free(struct sim *sim)
{
    for (size_t i = 0; i < sim->n_fibers; i++) {
#if defined(__SANITIZE_THREAD__)
        __tsan_destroy_fiber(sim->fibers[i]->sanitizer);
#endif
        munmap(sim->fibers[i]->stack, STACK_SIZE);
        free(sim->fibers[i]);
    }
    free(sim->fibers);
    free(sim->heap);
    free(sim);
}
