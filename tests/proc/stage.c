/* The stage and the actors on it. See stage.h. */
#include "tests/proc/stage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "rendezvous/store_tcp.h"
#include "tests/lib/cmocka.h"

int64_t now_ns(void)
{
    return tether__clock_now_ns(&tether__clock_system);
}

/* ---- In the test ---- */

bool stage_is_local(void)
{
    return getenv("TETHER_TEST_LOCAL") != NULL;
}

static const char *start_proxy(struct stage *stage, int rank)
{
    char target[64];
    if (stage_is_local())
        return "-";
    snprintf(target, sizeof target, "unix:%s/%d", stage->folder, rank);
    stage->proxies[rank] = tether_test_proxy_start(target);
    return tether_test_proxy_endpoint(stage->proxies[rank]);
}

void stage_start(struct stage *stage, int n, int lease_ms, const char *words)
{
    *stage = (struct stage){.n = n};
    assert_in_range(n, 1, STAGE_MAX);
    strcpy(stage->folder, "/tmp/tether-ref-XXXXXX"); /* a short path: it is for sockets */
    assert_non_null(mkdtemp(stage->folder));
    stage->server = crew_store_start(stage->port);
    int len = snprintf(stage->arg, sizeof stage->arg, "%s %s %d %s", stage->port, stage->folder,
                       lease_ms, *words ? words : "-");
    for (int i = 0; i < n; i++)
        len += snprintf(stage->arg + len, sizeof stage->arg - (size_t)len, " %s",
                        start_proxy(stage, i));
}

void stage_end(struct stage *stage)
{
    for (int i = 0; i < stage->n; i++) {
        char path[64];
        tether_test_proxy_free(stage->proxies[i]);
        snprintf(path, sizeof path, "%s/%d", stage->folder, i);
        unlink(path); /* of who was killed */
    }
    tether_store_server_release(stage->server);
    assert_int_equal(rmdir(stage->folder), 0);
}

void stage_cut(struct stage *stage, bool refuse)
{
    for (int i = 0; i < stage->n; i++)
        tether_test_proxy_cut(stage->proxies[i], refuse);
}

void stage_swallow(struct stage *stage)
{
    for (int i = 0; i < stage->n; i++)
        tether_test_proxy_swallow(stage->proxies[i],
                                  TETHER_TEST_FROM_CLIENT | TETHER_TEST_FROM_SERVER);
}

static bool one_has_failed(struct tether_test_procs *procs)
{
    for (int i = 0; i < procs->opts.ranks; i++)
        if (!atomic_load(&procs->world->killed[i]) && !procs->opts.dies[i] &&
            tether_test_child_wait(procs->ranks[i], 0) && !tether_test_child_ok(procs->ranks[i]))
            return true;
    return false;
}

void stage_await_named(struct tether_test_procs *procs,
                       stage_condition *condition,
                       void *userdata,
                       int64_t goal,
                       const char *name)
{
    for (int tries = 0; !condition(userdata, goal); tries++) {
        bool failed = one_has_failed(procs);
        if (!failed && tether_test_nap(tries))
            continue;
        if (!failed)
            print_error("%s is not at %lld after %d ms\n", name, (long long)goal,
                        TETHER_TEST_LIMIT_MS);
        procs->deadline_ns = now_ns(); /* do not wait for ranks that still run */
        tether_test_procs_end(procs);
        fail_msg("a rank has ended too early");
    }
}

static bool is_marked(void *mark, int64_t count)
{
    return atomic_load((_Atomic int *)mark) >= count;
}

void stage_await_mark(struct tether_test_procs *procs, int mark, int count, const char *name)
{
    stage_await_named(procs, is_marked, &procs->world->marks[mark], count, name);
}

static void check_key(tether_store *store, const char *key, bool is_static)
{
    tether_buf value = TETHER_BUF_INIT;
    tether_error err = {0};
    crew_ok(tether_store_try_get(store, key, LIMIT, &value, &err), &err);
    if (strstr(key, "/worker/") || strstr(key, "/rank/") || strstr(key, "/names")) {
        if (value.len)
            fail_msg("%s is still in the store: %zu bytes", key, value.len);
    } else if (strstr(key, "/shutdown/")) {
        assert_true(is_static); /* a worker that leaves late finds the records of the others */
    } else if (!strstr(key, "/starts") && !strstr(key, "/run")) {
        fail_msg("%s was left in the store", key);
    }
    tether_buf_fini(&value);
}

void stage_check_store(struct stage *stage, bool is_static)
{
    tether_store *store = crew_store(stage->port);
    tether_store_keys keys = {0};
    tether_error err = {0};
    crew_ok(tether_store_list_keys(store, LIMIT, &keys, &err), &err);
    for (size_t i = 0; i < keys.count; i++)
        check_key(store, keys.keys[i].data, is_static);
    tether_store_keys_fini(&keys);
    tether_store_release(store);
}

/* ---- Things ---- */

struct thing {
    int number;
};

_Atomic int things_alive;

static struct thing *thing_alloc(int number)
{
    struct thing *thing = calloc(1, sizeof *thing);
    if (!thing)
        abort();
    thing->number = number;
    atomic_fetch_add(&things_alive, 1);
    return thing;
}

static void thing_destroy(void *object)
{
    ((struct thing *)object)->number = -1;
    free(object);
    atomic_fetch_sub(&things_alive, 1);
}

static tether_status thing_serialise(const void *object,
                                     tether_buf *ret_bytes,
                                     tether_error *reterr)
{
    (void)reterr;
    return tether_buf_printf(ret_bytes, "%d", ((const struct thing *)object)->number);
}

static tether_status thing_deserialise(tether_bytes bytes, void **ret_object, tether_error *reterr)
{
    (void)reterr;
    char text[16];
    snprintf(text, sizeof text, "%.*s", (int)bytes.len, (const char *)bytes.data);
    *ret_object = thing_alloc(atoi(text));
    return TETHER_OK;
}

const tether_type thing_type = {"thing", thing_destroy, thing_serialise, thing_deserialise};

tether_value *thing_new(int number)
{
    tether_value *value = NULL;
    tether_error err = {0};
    crew_ok(tether_value_new_object(&thing_type, thing_alloc(number), &value, &err), &err);
    return value;
}

int thing_number(const tether_value *value)
{
    const struct thing *thing = tether_value_object(value, &thing_type);
    return thing ? thing->number : -1;
}

/* ---- What every actor can be asked ---- */

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static struct {
    tether_rref *rrefs[256];
    int n;
    tether_reply *unanswered[16];
    int n_unanswered;
} held; /* under mu */

int n_held(void)
{
    pthread_mutex_lock(&mu);
    int n = held.n;
    pthread_mutex_unlock(&mu);
    return n;
}

tether_rref *held_at(int i)
{
    pthread_mutex_lock(&mu);
    assert_in_range(i, 0, held.n - 1);
    tether_rref *rref = held.rrefs[i];
    pthread_mutex_unlock(&mu);
    return rref;
}

void drop_held(void)
{
    tether_rref *rref;
    do {
        pthread_mutex_lock(&mu);
        rref = held.n ? held.rrefs[--held.n] : NULL;
        pthread_mutex_unlock(&mu);
        tether_rref_release(rref);
    } while (rref);
}

static tether_status make(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    (void)userdata, (void)reterr;
    *ret_value = thing_new(atoi(tether_value_str(arg)));
    return TETHER_OK;
}

static void make_never(void *userdata, const tether_value *arg, tether_reply *reply)
{
    (void)userdata, (void)arg;
    pthread_mutex_lock(&mu);
    bool room = held.n_unanswered < (int)TETHER__ARRAY_LEN(held.unanswered);
    if (room)
        held.unanswered[held.n_unanswered++] = reply;
    pthread_mutex_unlock(&mu);
    if (!room)
        tether_reply_error(reply, TETHER_EBUSY, "no room");
}

static tether_status keep(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    (void)userdata, (void)ret_value;
    for (size_t i = 0; i < tether_value_n_rrefs(arg); i++) {
        tether_rref *rref = tether_value_rref(arg, i);
        tether_rref_state state = tether_rref_status(rref, NULL);
        if (state == TETHER_RREF_PENDING)
            return tether_error_set(reterr, TETHER_EINTERNAL, "a reference came unconfirmed");
        pthread_mutex_lock(&mu);
        bool room = held.n < (int)TETHER__ARRAY_LEN(held.rrefs);
        if (room)
            held.rrefs[held.n++] = tether_rref_retain(rref);
        pthread_mutex_unlock(&mu);
        if (!room)
            return tether_error_set(reterr, TETHER_EBUSY, "no room");
    }
    return TETHER_OK;
}

static tether_status give(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    (void)userdata, (void)arg;
    pthread_mutex_lock(&mu);
    tether_rref *rref = held.n ? tether_rref_retain(held.rrefs[held.n - 1]) : NULL;
    pthread_mutex_unlock(&mu);
    if (!rref)
        return tether_error_set(reterr, TETHER_ENOTFOUND, "nothing is kept here");
    tether_status st = tether_value_printf(ret_value, reterr, "here");
    if (st == TETHER_OK)
        st = tether_value_attach(*ret_value, rref, reterr);
    tether_rref_release(rref);
    return st;
}

static tether_status drop(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    (void)userdata, (void)arg, (void)ret_value, (void)reterr;
    drop_held();
    return TETHER_OK;
}

static tether_status touch(void *userdata,
                           void *object,
                           const tether_value *arg,
                           tether_value **ret_value,
                           tether_error *reterr)
{
    (void)userdata, (void)ret_value;
    int number = ((struct thing *)object)->number;
    if (number != atoi(tether_value_str(arg)))
        return tether_error_set(reterr, TETHER_EINTERNAL, "this is thing %d, not %s", number,
                                tether_value_str(arg));
    return TETHER_OK;
}

static tether_status linger(void *userdata,
                            void *object,
                            const tether_value *arg,
                            tether_value **ret_value,
                            tether_error *reterr)
{
    (void)object, (void)arg, (void)ret_value, (void)reterr;
    tether_test_await_mark(userdata, STAGE_LET_GO, 1);
    return TETHER_OK;
}

/* ---- In a rank ---- */

static void register_all(struct actor *actor)
{
    tether_agent *agent = actor->agent;
    tether_error err = {0};
    crew_ok(tether_agent_register_inline(agent, "make", make, NULL, &err), &err);
    crew_ok(tether_agent_register_async(agent, "make_never", make_never, true, NULL, &err), &err);
    crew_ok(tether_agent_register_inline(agent, "keep", keep, NULL, &err), &err);
    crew_ok(tether_agent_register_inline(agent, "give", give, NULL, &err), &err);
    crew_ok(tether_agent_register_inline(agent, "drop", drop, NULL, &err), &err);
    crew_ok(tether_agent_register_method(agent, &thing_type, "touch", touch, true, NULL, &err),
            &err);
    crew_ok(tether_agent_register_method(agent, &thing_type, "linger", linger, false,
                                         actor->self->world, &err),
            &err);
}

/* `self->arg`: "port folder lease words proxy0 proxy1 ...", where a local stage has "-" for each.
 */
void actor_open(struct actor *actor, struct tether_test_rank *self, const struct actor_opts *opts)
{
    char port[16], folder[32], proxies[STAGE_MAX][32], name[16], listen[64];
    *actor = (struct actor){.self = self, .wait_for = self->size};
    int n = sscanf(self->arg, "%15s %31s %d %63s %31s %31s %31s %31s", port, folder,
                   &actor->lease_ms, actor->words, proxies[0], proxies[1], proxies[2], proxies[3]);
    assert_true(n >= 4 + self->rank + 1);
    if (opts && opts->wait_for)
        actor->wait_for = opts->wait_for;
    if (opts && opts->lease_ms)
        actor->lease_ms = opts->lease_ms;
    bool local = stage_is_local();
    snprintf(name, sizeof name, "w%d", self->rank);
    snprintf(listen, sizeof listen, "unix:%s/%d", folder, self->rank);
    actor->store = crew_store(port);
    actor->agent = crew_agent(
        self,
        TETHER_AGENT_OPTS(.store = actor->store, .name = opts && opts->name ? opts->name : name,
                          /* A proxy accepts connections also for a killed worker, so an accepted
                           * connection does not prove that the worker is alive. */
                          .take_over = !local || (opts && opts->take_over),
                          .rank = opts && opts->static_group ? self->rank : 0,
                          .world_size = opts && opts->static_group ? self->size : 0,
                          .listen = local ? NULL : listen,
                          .advertise = local ? NULL : proxies[self->rank],
                          .no_unix_socket = !local || self->rank == 3, .lease_ms = actor->lease_ms,
                          .timeout_ms = LIMIT, .fail_on_leaks = true));
    register_all(actor);
}

void actor_start(struct actor *actor)
{
    crew_start(actor->agent);
    tether_test_mark(actor->self->world, STAGE_UP);
    tether_test_await_mark(actor->self->world, STAGE_UP, actor->wait_for);
}

void actor_close(struct actor *actor)
{
    drop_held();
    for (int i = 0; i < held.n_unanswered; i++)
        tether_reply_error(held.unanswered[i], TETHER_EGONE, "it was never made");
    await_nothing(actor->agent);
    crew_stop(actor->agent);
    tether_store_release(actor->store);
}

/* ---- Using references ---- */

tether_rref *thing_make(struct actor *actor, const char *to, int number)
{
    tether_error err = {0};
    tether_value *arg = crew_text("%d", number);
    tether_rref *rref = NULL;
    tether_status st;
    do {
        tether_rref_release(rref);
        rref = tether_remote(actor->agent, to, "make", arg, LIMIT);
        tether_future *confirmed = tether_rref_confirmed(rref);
        st = tether_future_wait(confirmed, LIMIT, NULL, &err);
        tether_future_release(confirmed);
    } while (st == TETHER_EOWNERDIED || st == TETHER_EUNAVAILABLE);
    crew_ok(st, &err);
    tether_value_release(arg);
    return rref;
}

tether_status thing_try(tether_rref *rref, int number, tether_error *reterr)
{
    tether_value *arg = crew_text("%d", number);
    tether_status st = tether_rref_sync(rref, "touch", arg, LIMIT, NULL, reterr);
    tether_value_release(arg);
    return st;
}

void thing_touch(tether_rref *rref, int number)
{
    tether_error err = {0};
    crew_ok(thing_try(rref, number, &err), &err);
}

tether_future *pass_on_async(struct actor *actor, const char *to, const char *fn, tether_rref *rref)
{
    tether_error err = {0};
    tether_value *arg = crew_text("take it");
    crew_ok(tether_value_attach(arg, rref, &err), &err);
    tether_future *future = tether_rpc_async(actor->agent, to, fn, arg, LIMIT);
    tether_value_release(arg);
    return future;
}

tether_status pass_on(struct actor *actor,
                      const char *to,
                      const char *fn,
                      tether_rref *rref,
                      tether_error *reterr)
{
    tether_future *future = pass_on_async(actor, to, fn, rref);
    tether_status st = tether_future_wait(future, LIMIT, NULL, reterr);
    tether_future_release(future);
    return st;
}

tether_rref *ask_for(struct actor *actor, const char *to)
{
    tether_value *result = NULL;
    tether_error err = {0};
    tether_status st;
    do /* the first may still be for a start that is no more */
        st = tether_rpc_sync(actor->agent, to, "give", NULL, LIMIT, &result, &err);
    while (st == TETHER_EUNAVAILABLE);
    crew_ok(st, &err);
    tether_rref *rref = tether_rref_retain(tether_value_rref(result, 0));
    tether_value_release(result);
    assert_non_null(rref);
    return rref;
}

/* ---- Nothing is left ---- */

bool holds_nothing(tether_agent *agent)
{
    struct tether_rref_counts n = tether_rref_counts(agent);
    return !n.owners && !n.forks && !n.pending_owners && !n.pending_users && !n.confirmed_users &&
           !n.pending_children && !n.broken_users && things_alive == 0;
}

void await_nothing(tether_agent *agent)
{
    for (int tries = 0; !holds_nothing(agent); tries++) {
        if (tether_test_nap(tries))
            continue;
        tether_buf text = TETHER_BUF_INIT;
        tether_rref_dump(agent, false, &text);
        print_error("%s", text.data);
        tether_buf_fini(&text);
        fail_msg("references are left, or objects: %d things are alive", things_alive);
    }
}
