/* Measures Tether's references: create, use, pass on, drop, and hold a million.
 *
 * Three workers: the client, "owner", which has the objects, and "third", which receives passed
 * references. An object is a value of eight bytes.
 *
 * Windows: the client creates and drops WINDOW references without waiting, except for the last one,
 * which its owner has to confirm. Fetches run one at a time; passes run one at a time and 64 at a
 * time.
 */
#include "bench/rref/tether.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/lib/contestant.h"
#include "bench/lib/crew.h"
#include "bench/lib/measure.h"
#include "rref/rref.h"

#define WINDOW 256
#define TIMEOUT_MS 60000
/* References: for fewer of them the memory is too small to measure in pages. */
#define ENOUGH 100000

/* ---- What workers serve ---- */

static tether_status make(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    (void)userdata, (void)arg;
    return tether_value_new(tether_bytes_of("eightby", 8), ret_value, reterr);
}

static tether_status hold(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    (void)userdata, (void)ret_value;
    if (tether_value_n_rrefs(arg) == 1)
        return TETHER_OK;
    return tether_error_set(reterr, TETHER_EINVAL, "a reference should have come along");
}

/* Returns free memory to the system, so that resident memory is the memory in use. */
static tether_status trim(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    (void)userdata, (void)arg, (void)ret_value, (void)reterr;
    malloc_trim(0);
    return TETHER_OK;
}

/* Measures how many bytes an object takes without references, from a hundred thousand objects. */
static tether_status weigh(void *userdata,
                           const tether_value *arg,
                           tether_value **ret_value,
                           tether_error *reterr)
{
    enum { MANY = 100000 };
    tether_value **objects = calloc(MANY, sizeof *objects);
    size_t before = mallinfo2().uordblks;
    for (size_t i = 0; i < MANY; i++)
        make(userdata, arg, &objects[i], reterr);
    double each = (double)(mallinfo2().uordblks - before) / MANY;
    for (size_t i = 0; i < MANY; i++)
        tether_value_release(objects[i]);
    free(objects);
    return tether_value_printf(ret_value, reterr, "%f", each);
}

static void serve(tether_agent *agent)
{
    tether_error err = {0};
    bench_check(tether_agent_register_inline(agent, "make", make, NULL, &err), &err);
    bench_check(tether_agent_register_inline(agent, "hold", hold, NULL, &err), &err);
    bench_check(tether_agent_register_inline(agent, "trim", trim, NULL, &err), &err);
    bench_check(tether_agent_register_inline(agent, "weigh", weigh, NULL, &err), &err);
}

/* ---- The client ---- */

struct self {
    struct bench_crew crew;
    tether_rref **live;
    size_t n_live;
    double owner_bytes, user_bytes; /* for each reference; -1: too few to measure */
};

static tether_rref *create(struct self *self)
{
    return tether_remote(self->crew.agent, "owner", "make", NULL, TIMEOUT_MS);
}

static void await_confirmed(tether_rref *rref)
{
    tether_error err = {0};
    tether_future *confirmed = tether_rref_confirmed(rref);
    bench_check(tether_future_wait(confirmed, TIMEOUT_MS, NULL, &err), &err);
    tether_future_release(confirmed);
}

static double create_drop(void *arg, double seconds)
{
    struct self *self = arg;
    size_t n = 0;
    double begin = bench_now_s(), now = begin;
    for (; now < begin + seconds; now = bench_now_s()) {
        for (size_t i = 0; i < WINDOW; i++, n++) {
            tether_rref *rref = create(self);
            if (i == WINDOW - 1)
                await_confirmed(rref);
            tether_rref_release(rref);
        }
    }
    return (double)n / (now - begin);
}

static double create_fetch_drop(void *arg, double seconds)
{
    struct self *self = arg;
    tether_error err = {0};
    size_t n = 0;
    double begin = bench_now_s(), now = begin;
    for (; now < begin + seconds; now = bench_now_s(), n++) {
        tether_rref *rref = create(self);
        tether_value *value = NULL;
        bench_check(tether_rref_to_here(rref, TIMEOUT_MS, &value, &err), &err);
        tether_value_release(value);
        tether_rref_release(rref);
    }
    return (double)n / (now - begin);
}

/* Creates an object, passes a reference on, and releases its own: the call keeps the object
 * alive. */
static tether_future *create_and_pass(struct self *self)
{
    tether_error err = {0};
    tether_rref *rref = create(self);
    tether_value *job = NULL;
    bench_check(tether_value_new(tether_bytes_of("", 0), &job, &err), &err);
    bench_check(tether_value_attach(job, rref, &err), &err);
    tether_future *held = tether_rpc_async(self->crew.agent, "third", "hold", job, TIMEOUT_MS);
    tether_value_release(job);
    tether_rref_release(rref);
    return held;
}

static void await_held(tether_future *held)
{
    tether_error err = {0};
    bench_check(tether_future_wait(held, TIMEOUT_MS, NULL, &err), &err);
    tether_future_release(held);
}

static double create_pass_drop(void *arg, double seconds)
{
    size_t n = 0;
    double begin = bench_now_s(), now = begin;
    for (; now < begin + seconds; now = bench_now_s(), n++)
        await_held(create_and_pass(arg));
    return (double)n / (now - begin);
}

static double create_pass_drop_64(void *arg, double seconds)
{
    enum { UNDER_WAY = 64 };
    tether_future *held[UNDER_WAY] = {NULL};
    size_t n = 0;
    double begin = bench_now_s(), now = begin;
    for (; now < begin + seconds || n < UNDER_WAY; now = bench_now_s(), n++) {
        if (held[n % UNDER_WAY])
            await_held(held[n % UNDER_WAY]);
        held[n % UNDER_WAY] = create_and_pass(arg);
    }
    for (size_t i = 0; i < UNDER_WAY; i++)
        await_held(held[i]);
    return (double)n / (bench_now_s() - begin);
}

/* Returns how many messages this worker has sent so far to all others. */
static double messages_sent(struct self *self)
{
    static const char name[] = "tether_peer_messages_sent_total{";
    double sum = 0;
    tether_buf text = TETHER_BUF_INIT;
    tether_error err = {.message = "no memory"};
    bench_check(tether_agent_metrics(self->crew.agent, &text), &err);
    for (char *at = strstr(text.data, name); at; at = strstr(at + 1, name))
        sum += atof(strchr(at, ' '));
    tether_buf_fini(&text);
    return sum;
}

static void use_here(struct self *self, tether_value *object)
{
    tether_error err = {0};
    tether_rref *rref = NULL;
    tether_value *value = NULL;
    bench_check(tether_rref_new(self->crew.agent, object, &rref, &err), &err);
    bench_check(tether_rref_to_here(rref, TIMEOUT_MS, &value, &err), &err);
    tether_value_release(value);
    tether_rref_release(rref);
}

/* Creates, reads and drops a reference to an object of this worker. Microseconds. */
static double local(void *arg, double seconds)
{
    struct self *self = arg;
    tether_error err = {0};
    tether_value *object = NULL;
    size_t n = 0;
    bench_check(make(NULL, NULL, &object, &err), &err);
    double begin = bench_now_s(), now = begin;
    for (; now < begin + seconds; now = bench_now_s())
        for (int i = 0; i < 100; i++, n++)
            use_here(self, object);
    tether_value_release(object);
    return (now - begin) / (double)n * 1e6;
}

/* Returns the messages that a thousand of these cause. */
static double local_messages(void *arg, double seconds)
{
    struct self *self = arg;
    tether_error err = {0};
    tether_value *object = NULL;
    (void)seconds;
    bench_check(make(NULL, NULL, &object, &err), &err);
    double before = messages_sent(self);
    for (int i = 0; i < 1000; i++)
        use_here(self, object);
    double sent = messages_sent(self) - before;
    tether_value_release(object);
    return sent;
}

/* Measures only to_here() of a reference that is held. Microseconds. */
static double local_use(void *arg, double seconds)
{
    struct self *self = arg;
    tether_error err = {0};
    tether_value *object = NULL;
    tether_rref *rref = NULL;
    size_t n = 0;
    bench_check(make(NULL, NULL, &object, &err), &err);
    bench_check(tether_rref_new(self->crew.agent, object, &rref, &err), &err);
    double begin = bench_now_s(), now = begin;
    for (; now < begin + seconds; now = bench_now_s()) {
        for (int i = 0; i < 100; i++, n++) {
            tether_value *value = NULL;
            bench_check(tether_rref_to_here(rref, TIMEOUT_MS, &value, &err), &err);
            tether_value_release(value);
        }
    }
    tether_rref_release(rref);
    tether_value_release(object);
    return (now - begin) / (double)n * 1e6;
}

/* ---- Many at once ---- */

static void ask_owner(struct self *self, const char *fn, tether_value **ret_value)
{
    tether_error err = {0};
    bench_check(tether_rpc_sync(self->crew.agent, "owner", fn, NULL, TIMEOUT_MS, ret_value, &err),
                &err);
}

static void note_memory(struct self *self, double *ret_owner, double *ret_user)
{
    ask_owner(self, "trim", NULL);
    malloc_trim(0);
    *ret_owner = bench_resident_bytes(self->crew.members[0]);
    *ret_user = bench_resident_bytes(getpid());
}

/* Creates and holds `n` references; returns how many were created per second. */
static double fill(struct self *self, size_t n)
{
    tether_value *weight = NULL;
    double owner[2], user[2];
    self->live = malloc(n * sizeof(tether_rref *));
    memset(self->live, 1, n * sizeof(tether_rref *)); /* touch this array before the measurement: it
                                                         is not part of the references */
    create_drop(self, 0.2);
    ask_owner(self, "weigh", &weight);
    note_memory(self, &owner[0], &user[0]);
    double begin = bench_now_s();
    for (size_t i = 0; i < n; i++) {
        self->live[i] = create(self);
        if (i % WINDOW == WINDOW - 1 || i == n - 1)
            await_confirmed(self->live[i]);
    }
    double rate = (double)n / (bench_now_s() - begin);
    self->n_live = n;
    note_memory(self, &owner[1], &user[1]);
    bool enough = n >= ENOUGH;
    self->owner_bytes =
        enough ? (owner[1] - owner[0]) / (double)n - atof(tether_value_str(weight)) : -1;
    self->user_bytes = enough ? (user[1] - user[0]) / (double)n : -1;
    tether_value_release(weight);
    return rate;
}

static double fill_thousand(void *self, double seconds)
{
    (void)seconds;
    return fill(self, 1000);
}

static double fill_million(void *self, double seconds)
{
    (void)seconds;
    return fill(self, 1000000);
}

static double owner_bytes(void *self, double seconds)
{
    (void)seconds;
    return ((struct self *)self)->owner_bytes;
}

static double user_bytes(void *self, double seconds)
{
    (void)seconds;
    return ((struct self *)self)->user_bytes;
}

/* Drops all references that are held; returns how many per second. */
static double empty(void *arg, double seconds)
{
    struct self *self = arg;
    (void)seconds;
    size_t n = self->n_live;
    double begin = bench_now_s();
    for (size_t i = 0; i < n; i++)
        tether_rref_release(self->live[i]);
    ask_owner(self, "trim", NULL);
    double rate = (double)n / (bench_now_s() - begin);
    free(self->live);
    self->live = NULL;
    self->n_live = 0;
    return rate;
}

static const struct bench_skill skills[] = {
    {"create_drop", create_drop},
    {"create_fetch_drop", create_fetch_drop},
    {"create_pass_drop", create_pass_drop},
    {"create_pass_drop_64", create_pass_drop_64},
    {"local", local},
    {"local_use", local_use},
    {"local_messages", local_messages},
    {"fill_thousand", fill_thousand},
    {"fill_million", fill_million},
    {"owner_bytes", owner_bytes},
    {"user_bytes", user_bytes},
    {"empty", empty},
    {0},
};

void rref_tether_main(int argc, char **argv)
{
    bench_crew_member(argc, argv, serve);
    if (argc != 5 || strcmp(argv[1], "contestant") != 0)
        return;
    struct self self = {0};
    self.crew = bench_crew_start(argv[2], (const char *[]){"owner", "third", NULL}, atoi(argv[3]),
                                 atoi(argv[4]), serve);
    create_drop(&self, 0.1);
    create_pass_drop_64(&self, 0.05);
    bench_answer(skills, &self);
    bench_crew_stop(&self.crew);
    exit(0);
}
