/* The common parts of the tests of this folder: workers in processes of their own, each behind a
 * proxy, that create *things* on each other and hold references to them.
 *
 * The test sets the stage: a store, and a proxy for every rank. A rank listens on a unix socket and
 * advertises the address of its proxy, so that the test can cut its connections, or stop or drop
 * the bytes that go there. Names are "w0", "w1" and so on, also those of ranks that are started
 * again.
 *
 * With TETHER_TEST_LOCAL in the environment the stage is *local*: there are no proxies, the ranks
 * meet on the unix sockets of workers of one host, but for rank 3, which has none, and nothing can
 * be cut. Tests run on either, as far as they only kill and stop.
 *
 * A thing is an object with a number. Every use of one says the number, so a reference that leads
 * to another thing is noticed.
 */
#ifndef TETHER_TESTS_PROC_STAGE_H
#define TETHER_TESTS_PROC_STAGE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "rref/rref.h"
#include "tests/lib/tcp_proxy.h"
#include "tests/rpc/lib/crew.h"

#define LIMIT TETHER_TEST_LIMIT_MS
#define STAGE_MAX 4

/* Marks 0 to 49 are the test's own. */
enum {
    STAGE_LET_GO = 50, /* "linger" returns */
    STAGE_UP,          /* how many have started */
};

/* ---- In the test ---- */

struct stage {
    int n;
    char folder[32], port[16], arg[256];
    struct tether_store_server *server;
    struct tether_test_proxy *proxies[STAGE_MAX]; /* NULL: the stage is local */
};

/* Whether this program's stages are local. */
bool stage_is_local(void);

/* `words` (one, no spaces; "" : none) is handed on to the ranks with `stage->arg`. */
void stage_start(struct stage *stage, int n, int lease_ms, const char *words);
void stage_end(struct stage *stage);

/* Cuts every connection; with `refuse` there are no new ones until the next cut without. */
void stage_cut(struct stage *stage, bool refuse);

/* Every packet is lost from now on, until the next cut. */
void stage_swallow(struct stage *stage);

/* Waits for a mark like tether_test_await_mark(), but fails the test, with the output of the ranks,
 * as soon as a rank fails. */
#define stage_await(procs, mark, count) stage_await_mark(procs, mark, count, #mark)
void stage_await_mark(struct tether_test_procs *procs, int mark, int count, const char *name);

/* The same for anything else that comes true. */
typedef bool stage_condition(void *userdata, int64_t goal);
#define stage_await_that(procs, condition, userdata, goal) \
    stage_await_named(procs, condition, userdata, goal, #condition)
void stage_await_named(struct tether_test_procs *procs,
                       stage_condition *condition,
                       void *userdata,
                       int64_t goal,
                       const char *name);

/* Fails unless the group has left nothing in the store but its run and the number of its starts: no
 * name, and no record of a worker. (A static group in which a worker was declared dead also leaves
 * the keys of its shutdown.) */
void stage_check_store(struct stage *stage, bool is_static);

/* ---- In a rank ---- */

struct actor {
    struct tether_test_rank *self;
    int lease_ms, wait_for;
    char words[64];
    tether_store *store;
    tether_agent *agent;
};

/* How a rank joins; all of it may be left out. */
struct actor_opts {
    const char *name;  /* ["w<rank>"] */
    bool static_group; /* of as many as there are ranks */
    int wait_for;      /* how many must have started  [as many as there are ranks] */
    int lease_ms;      /* [the stage's] */
    bool take_over;    /* replaces a worker of its name that may be alive */
};

/* Makes the agent, with the functions below. actor_start() starts it and waits until all the others
 * have started, too, for the first time. */
void actor_open(struct actor *actor, struct tether_test_rank *self, const struct actor_opts *opts);
void actor_start(struct actor *actor);

/* Releases the references that "keep" holds, waits until this worker holds no reference and no
 * worker holds an object of this one, and shuts down gracefully. A leak is an error. */
void actor_close(struct actor *actor);

/* The functions that every actor has:
 *   make        inline: a thing with the number that the argument says
 *   make_never  never replies
 *   keep        inline: holds the references of its argument, which must be confirmed
 *   give        inline: returns the last reference that "keep" holds
 *   drop        inline: releases all references that "keep" holds
 * and a thing's methods:
 *   touch       inline: fails unless the thing has the number that the argument says
 *   linger      pooled: returns at STAGE_LET_GO
 */
extern const tether_type thing_type;
extern _Atomic int things_alive; /* in this process, copies too */

tether_value *thing_new(int number);
int thing_number(const tether_value *value); /* -1: it is none */

int n_held(void);
tether_rref *held_at(int i); /* LENDS */
void drop_held(void);

/* Makes thing `number` on worker `to` and waits until it is confirmed. Tries again where the worker
 * has only just been started anew. */
tether_rref *thing_make(struct actor *actor, const char *to, int number);

void thing_touch(tether_rref *rref, int number);
tether_status thing_try(tether_rref *rref, int number, tether_error *reterr);

/* Calls `fn` on `to` with the reference attached. */
tether_status pass_on(struct actor *actor,
                      const char *to,
                      const char *fn,
                      tether_rref *rref,
                      tether_error *reterr);
tether_future *pass_on_async(struct actor *actor,
                             const char *to,
                             const char *fn,
                             tether_rref *rref);

/* Asks `to` for the reference that it kept last. */
tether_rref *ask_for(struct actor *actor, const char *to);

bool holds_nothing(tether_agent *agent);

/* Fails, with a list of what is left, unless the worker comes to hold nothing. */
void await_nothing(tether_agent *agent);

int64_t now_ns(void);

#endif
