/* Fakes for the tests of the dynamic rendezvous. */
#include "tests/rendezvous/elastic/lib/fixture.h"

#include <stdio.h>
#include <string.h>

#include "rendezvous/elastic/rules/codec.h"
#include "tests/lib/own_store.h"

/* ---- The world ------------------------------------------------------------------------------ */

static void fake_delay(const struct tether__rdzv_env *base, int64_t ns)
{
    struct fake_env *env = tether__container_of(base, struct fake_env, base);
    env->delays++;
    env->last_delay_ns = ns;
    tether_test_clock_advance_ns(&env->clock, ns);
}

static uint64_t fake_random(const struct tether__rdzv_env *base)
{
    (void)base;
    return 1234567;
}

void fake_env_init(struct fake_env *env)
{
    memset(env, 0, sizeof *env);
    env->clock = TETHER_TEST_CLOCK_INIT;
    env->base.clock = &env->clock.base;
    env->base.delay = fake_delay;
    env->base.random = fake_random;
}

int64_t fake_env_now(const struct fake_env *env)
{
    return tether__rdzv_now(&env->base);
}

/* ---- The backend ---------------------------------------------------------------------------- */

static tether_status fake_failure(struct fake_backend *fake, tether_error *reterr)
{
    return tether_error_set(reterr, fake->fail, "the backend fails as it was told to");
}

static tether_status give(struct fake_backend *fake, tether_buf *ret_state, tether_buf *ret_token)
{
    tether_bytes token = tether_bytes_of(&fake->token, sizeof fake->token);
    if (tether_buf_assign(ret_state, tether_buf_bytes(&fake->state)) != TETHER_OK)
        return TETHER_ENOMEM;
    return tether_buf_assign(ret_token, token);
}

static tether_status fake_get(void *impl,
                              int timeout_ms,
                              tether_buf *ret_state,
                              tether_buf *ret_token,
                              tether_error *reterr)
{
    struct fake_backend *fake = impl;
    (void)timeout_ms;
    fake->gets++;
    if (fake->fail != TETHER_OK)
        return fake_failure(fake, reterr);
    if (fake->token == 0)
        return TETHER_ENOTFOUND;
    return give(fake, ret_state, ret_token);
}

static tether_status fake_set(void *impl,
                              tether_bytes state,
                              tether_bytes token,
                              int timeout_ms,
                              bool *ret_has_set,
                              tether_buf *ret_state,
                              tether_buf *ret_token,
                              tether_error *reterr)
{
    struct fake_backend *fake = impl;
    uint64_t expected = 0;
    (void)timeout_ms;
    fake->sets++;
    if (fake->fail != TETHER_OK)
        return fake_failure(fake, reterr);
    if (token.len > 0)
        memcpy(&expected, token.data, sizeof expected);
    *ret_has_set = expected == fake->token;
    if (*ret_has_set) {
        if (tether_buf_assign(&fake->state, state) != TETHER_OK)
            return tether_error_set(reterr, TETHER_ENOMEM, "no memory");
        fake->token++;
    }
    return give(fake, ret_state, ret_token);
}

static int beat_slot(struct fake_backend *fake, const char *node)
{
    int slot = 0;
    while (fake->beats[slot].node[0] != '\0' && strcmp(fake->beats[slot].node, node) != 0)
        slot++;
    return slot;
}

static tether_status fake_beat(void *impl,
                               const char *node,
                               uint64_t count,
                               int64_t ttl_ms,
                               int timeout_ms,
                               tether_error *reterr)
{
    struct fake_backend *fake = impl;
    (void)ttl_ms, (void)timeout_ms;
    if (fake->fail != TETHER_OK)
        return fake_failure(fake, reterr);
    int slot = beat_slot(fake, node);
    strcpy(fake->beats[slot].node, node);
    fake->beats[slot].count = count;
    return TETHER_OK;
}

static tether_status fake_read_beats(void *impl,
                                     const char *const *nodes,
                                     size_t n,
                                     int timeout_ms,
                                     uint64_t *ret_counts,
                                     tether_error *reterr)
{
    struct fake_backend *fake = impl;
    (void)timeout_ms;
    if (fake->fail != TETHER_OK)
        return fake_failure(fake, reterr);
    for (size_t i = 0; i < n; i++)
        ret_counts[i] = fake->beats[beat_slot(fake, nodes[i])].count;
    return TETHER_OK;
}

static void fake_destroy(void *impl)
{
    (void)impl;
}

void fake_backend_init(struct fake_backend *fake)
{
    static const struct tether_rdzv_backend_ops ops = {
        .size = sizeof ops,
        .get_state = fake_get,
        .set_state = fake_set,
        .destroy = fake_destroy,
        .beat = fake_beat,
        .read_beats = fake_read_beats,
    };
    memset(fake, 0, sizeof *fake);
    assert_int_equal(tether_rdzv_backend_new(&ops, fake, "fake_backend", &fake->backend, NULL),
                     TETHER_OK);
}

void fake_backend_fini(struct fake_backend *fake)
{
    fake->backend = tether_rdzv_backend_release(fake->backend);
    tether_buf_fini(&fake->state);
}

void fake_backend_put(struct fake_backend *fake,
                      const struct tether__rdzv_state *state,
                      int64_t now)
{
    assert_int_equal(tether__rdzv_state_encode(state, now, &fake->state, NULL), TETHER_OK);
    fake->token++;
}

void fake_backend_corrupt(struct fake_backend *fake)
{
    assert_int_equal(tether_buf_assign(&fake->state, tether_bytes_str("corrupt_state")), TETHER_OK);
    fake->token++;
}

void fake_backend_beat(struct fake_backend *fake, const struct tether__rdzv_node *node)
{
    char text[TETHER__RDZV_NODE_TEXT];
    int slot = beat_slot(fake, tether__rdzv_node_format(node, text));
    strcpy(fake->beats[slot].node, text);
    fake->beats[slot].count++;
}

/* ---- The holder ----------------------------------------------------------------------------- */

static struct fake_holder *fake_holder_of(struct tether__rdzv_holder *base)
{
    return tether__container_of(base, struct fake_holder, base);
}

static void note_call(struct fake_holder *holder, char call)
{
    if (holder->n_calls < (int)sizeof holder->calls - 1)
        holder->calls[holder->n_calls++] = call;
}

static struct tether__rdzv_state *fake_state(struct tether__rdzv_holder *base)
{
    return &fake_holder_of(base)->state;
}

static tether_status fake_sync(struct tether__rdzv_holder *base,
                               int64_t deadline,
                               enum tether__rdzv_sync *ret_sync,
                               tether_error *reterr)
{
    struct fake_holder *holder = fake_holder_of(base);
    (void)deadline;
    note_call(holder, 's');
    holder->syncs++;
    tether_test_clock_advance_ns(holder->clock, holder->sync_takes_ns);
    if (holder->fail != TETHER_OK)
        return tether_error_set(reterr, holder->fail, "test error");
    *ret_sync = holder->dirty ? holder->next_sync : TETHER__RDZV_CLEAN;
    if (holder->dirty)
        holder->next_sync = TETHER__RDZV_WRITTEN;
    holder->dirty = false;
    return TETHER_OK;
}

static void fake_mark_dirty(struct tether__rdzv_holder *base, enum tether__rdzv_action action)
{
    (void)action;
    note_call(fake_holder_of(base), 'm');
    fake_holder_of(base)->dirty = true;
}

static void fake_plan(struct tether__rdzv_holder *base,
                      int64_t max_ns,
                      struct tether__rdzv_pause *ret_pause)
{
    (void)base;
    *ret_pause = (struct tether__rdzv_pause){.max_ns = max_ns};
}

static tether_status fake_pause(struct tether__rdzv_holder *base,
                                const struct tether__rdzv_pause *pause,
                                tether_error *reterr)
{
    (void)reterr;
    struct fake_holder *holder = fake_holder_of(base);
    note_call(holder, 'p');
    holder->last_pause_ns = pause->max_ns;
    tether_test_clock_advance_ns(holder->clock, pause->max_ns);
    return TETHER_OK;
}

void fake_holder_init(struct fake_holder *holder, struct fake_env *env)
{
    static const struct tether__rdzv_holder_ops ops = {
        .state = fake_state,
        .sync = fake_sync,
        .mark_dirty = fake_mark_dirty,
        .plan = fake_plan,
        .pause = fake_pause,
    };
    memset(holder, 0, sizeof *holder);
    holder->base.ops = &ops;
    holder->clock = &env->clock;
    holder->next_sync = TETHER__RDZV_WRITTEN;
    tether__rdzv_state_init(&holder->state);
}

void fake_holder_fini(struct fake_holder *holder)
{
    tether__rdzv_state_fini(&holder->state);
}

/* ---- The store ------------------------------------------------------------------------------ */

static tether_status run_dummy(void *userdata, struct tether__store_op *op)
{
    struct dummy_store *dummy = userdata;
    op->yes = op->kind != TETHER__STORE_DELETE;
    op->count = op->number;
    if (op->kind == TETHER__STORE_SET)
        snprintf(dummy->last_set, sizeof dummy->last_set, "%s", op->keys[0]);
    if (op->kind == TETHER__STORE_GET)
        snprintf(dummy->last_get, sizeof dummy->last_get, "%s", op->keys[0]);
    if (op->kind == TETHER__STORE_GET)
        return tether_buf_assign(op->results, tether_bytes_str("123"));
    return op->kind == TETHER__STORE_COMPARE_SET ? tether_buf_assign(op->results, op->values[0])
                                                 : TETHER_OK;
}

void dummy_store_init(struct dummy_store *dummy)
{
    memset(dummy, 0, sizeof *dummy);
    assert_int_equal(tether_test_store_new(run_dummy, dummy, 0, &dummy->store), TETHER_OK);
}

void dummy_store_fini(struct dummy_store *dummy)
{
    dummy->store = tether_store_release(dummy->store);
}

/* ---- States --------------------------------------------------------------------------------- */

struct tether_rdzv_settings test_settings(int min_nodes, int max_nodes)
{
    struct tether_rdzv_settings settings;
    tether_rdzv_settings_init(&settings);
    settings.run_id = "dummy_run_id";
    settings.min_nodes = min_nodes;
    settings.max_nodes = max_nodes;
    settings.keep_alive_interval_ms = 30000;
    settings.keep_alive_max_attempts = 3;
    return settings;
}

struct tether__rdzv_node node_of(const char *addr)
{
    return (struct tether__rdzv_node){addr, 1, 1};
}

void put_in(struct tether__rdzv_roster *roster, const char *addr, int rank)
{
    struct tether__rdzv_node node = node_of(addr);
    struct tether__rdzv_member *member = tether__rdzv_roster_add(roster, &node);
    assert_non_null(member);
    member->rank = rank;
}

void put_heard(struct tether__rdzv_state *state, const char *addr, int64_t at)
{
    struct tether__rdzv_node node = node_of(addr);
    assert_int_equal(tether__rdzv_state_heard(state, &node, at), TETHER_OK);
}

static void assert_roster_equal(const char *what,
                                const struct tether__rdzv_roster *actual,
                                const struct tether__rdzv_roster *expected)
{
    if (actual->n != expected->n)
        fail_msg("%s: %zu nodes instead of %zu", what, actual->n, expected->n);
    for (size_t i = 0; i < actual->n; i++) {
        const struct tether__rdzv_member *a = actual->members[i], *e = expected->members[i];
        if (tether__rdzv_node_compare(&a->node, &e->node) != 0 || a->rank != e->rank ||
            a->heard_at != e->heard_at)
            fail_msg("%s: %s (rank %d, heard %ld) instead of %s (rank %d, heard %ld)", what,
                     a->node.addr, a->rank, (long)a->heard_at, e->node.addr, e->rank,
                     (long)e->heard_at);
    }
}

void assert_state_equal(const struct tether__rdzv_state *actual,
                        const struct tether__rdzv_state *expected)
{
    assert_int_equal(actual->round, expected->round);
    assert_int_equal(actual->complete, expected->complete);
    assert_int_equal(actual->closed, expected->closed);
    assert_int_equal(actual->deadline, expected->deadline);
    assert_int_equal(actual->world_size, expected->world_size);
    assert_roster_equal("participants", &actual->participants, &expected->participants);
    assert_roster_equal("wait list", &actual->wait_list, &expected->wait_list);
    assert_roster_equal("redundancy list", &actual->redundancy_list, &expected->redundancy_list);
    assert_roster_equal("heartbeats", &actual->last_heartbeats, &expected->last_heartbeats);
}

void assert_state_empty(const struct tether__rdzv_state *actual)
{
    struct tether__rdzv_state empty;
    tether__rdzv_state_init(&empty);
    assert_state_equal(actual, &empty);
}
