/* The etcd store applies every change once, although replies get lost and etcd is killed. */
#include <stdatomic.h>
#include <stdio.h>

#include "base/alloc.h"
#include "rendezvous/store/etcd/client/request.h"
#include "tests/rendezvous/store/etcd/fixture.h"

#define LIMIT TETHER_TEST_LIMIT_MS

/* ---- A reply that gets lost ----------------------------------------------------------------- */

static bool is(tether_store *store, const char *key, const char *text)
{
    tether_buf value = TETHER_BUF_INIT;
    tether_status st = tether_store_try_get(store, key, LIMIT, &value, NULL);
    bool equal = st == TETHER_OK && value.len == strlen(text) &&
                 (!value.len || memcmp(value.data, text, value.len) == 0);
    tether_buf_fini(&value);
    return equal;
}

static int64_t queue_len(tether_store *store)
{
    int64_t len = -1;
    assert_ok(tether_store_queue_len(store, "key", LIMIT, &len, err));
    return len;
}

static void push(tether_store *store, const char *text)
{
    assert_ok(tether_store_queue_push(store, "key", tether_bytes_str(text), LIMIT, err));
}

static void nothing(tether_store *store)
{
    (void)store;
}

static void set_41(tether_store *store)
{
    SET("key", "41");
}

static void set_po(tether_store *store)
{
    SET("key", "po");
}

static void push_two(tether_store *store)
{
    push(store, "first");
    push(store, "second");
}

static void call_set(struct run *run)
{
    run->status =
        tether_store_set(run->store, "key", tether_bytes_str("value"), LIMIT, &run->error);
}

static bool set_happened(struct world *w)
{
    return is(w->direct, "key", "value");
}

static void set_once(struct world *w, const struct run *run)
{
    (void)run;
    int64_t version;
    etcd_look(w->client, under(w, "k/key"), NULL, &version);
    assert_int_equal(version, 1);
}

static void call_add(struct run *run)
{
    run->status = tether_store_add(run->store, "key", 1, LIMIT, &run->number, &run->error);
}

static bool add_happened(struct world *w)
{
    return !is(w->direct, "key", "41");
}

static void added_once(struct world *w, const struct run *run)
{
    assert_int_equal(run->number, 42);
    assert_true(is(w->direct, "key", "42"));
}

static void call_append(struct run *run)
{
    run->status =
        tether_store_append(run->store, "key", tether_bytes_str("po"), LIMIT, &run->error);
}

static bool append_happened(struct world *w)
{
    return !is(w->direct, "key", "po");
}

static void appended_once(struct world *w, const struct run *run)
{
    (void)run;
    assert_true(is(w->direct, "key", "popo"));
}

static void call_compare_set(struct run *run)
{
    run->status = tether_store_compare_set(run->store, "key", tether_bytes_str("po"),
                                           tether_bytes_str("tato"), LIMIT, &run->flag, &run->value,
                                           &run->error);
}

static void swapped_once(struct world *w, const struct run *run)
{
    assert_true(run->flag);
    assert_string_equal(run->value.data, "tato");
    assert_true(is(w->direct, "key", "tato"));
}

static void call_delete(struct run *run)
{
    run->status = tether_store_delete(run->store, "key", LIMIT, &run->flag, &run->error);
}

static bool delete_happened(struct world *w)
{
    return etcd_look(w->client, under(w, "k/key"), NULL, NULL) == 0;
}

static void deleted_once(struct world *w, const struct run *run)
{
    (void)w;
    assert_true(run->flag);
}

/* The change is refused, so only the receipt shows that etcd has processed it. */
static bool refusal_happened(struct world *w)
{
    char value[64];
    etcd_look(w->client, under(w, "r/"), value, NULL);
    return strcmp(value, "-") == 0;
}

static void deleted_nothing(struct world *w, const struct run *run)
{
    (void)w;
    assert_false(run->flag);
}

static void call_push(struct run *run)
{
    run->status =
        tether_store_queue_push(run->store, "key", tether_bytes_str("value"), LIMIT, &run->error);
}

static bool push_happened(struct world *w)
{
    return queue_len(w->direct) > 0;
}

static void pushed_once(struct world *w, const struct run *run)
{
    (void)run;
    assert_int_equal(queue_len(w->direct), 1);
}

static void call_pop(struct run *run)
{
    run->status = tether_store_queue_pop(run->store, "key", LIMIT, &run->value, &run->error);
}

static bool pop_happened(struct world *w)
{
    return queue_len(w->direct) < 2;
}

static void popped_once(struct world *w, const struct run *run)
{
    assert_string_equal(run->value.data, "first");
    assert_int_equal(queue_len(w->direct), 1);
}

static void call_multi_set(struct run *run)
{
    const char *keys[] = {"key", "other"};
    tether_bytes values[] = {tether_bytes_str("value"), tether_bytes_str("too")};
    run->status = tether_store_multi_set(run->store, keys, values, 2, LIMIT, &run->error);
}

static void call_barrier(struct run *run)
{
    run->status = tether_store_barrier(run->store, "key", 1, LIMIT, &run->error);
}

static bool barrier_happened(struct world *w)
{
    return etcd_look(w->client, under(w, "b/key"), NULL, NULL) == 1;
}

static void came_once(struct world *w, const struct run *run)
{
    (void)run;
    int64_t version;
    etcd_look(w->client, under(w, "b/key"), NULL, &version);
    assert_int_equal(version, 1);
}

struct lost_reply {
    const char *name;
    void (*prepare)(tether_store *store);
    void (*call)(struct run *run);
    bool (*happened)(struct world *w);
    void (*verify)(struct world *w, const struct run *run);
};

static const struct lost_reply lost_replies[] = {
    {"set", nothing, call_set, set_happened, set_once},
    {"add", set_41, call_add, add_happened, added_once},
    {"append", set_po, call_append, append_happened, appended_once},
    {"compare_set", set_po, call_compare_set, append_happened, swapped_once},
    {"delete", set_41, call_delete, delete_happened, deleted_once},
    {"delete nothing", nothing, call_delete, refusal_happened, deleted_nothing},
    {"queue_push", nothing, call_push, push_happened, pushed_once},
    {"queue_pop", push_two, call_pop, pop_happened, popped_once},
    {"multi_set", nothing, call_multi_set, set_happened, set_once},
    {"barrier", nothing, call_barrier, barrier_happened, came_once},
};

/* etcd applies the change, the reply is lost, the connection breaks, and the change is sent again.
 * It must not be applied again, and the caller must get the result of the first one. */
static void change_is_applied_once_when_reply_is_lost(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof lost_replies / sizeof lost_replies[0]; i++) {
        const struct lost_reply *row = &lost_replies[i];
        struct world *w;
        print_message("           %s\n", row->name);
        world_setup((void **)&w);
        row->prepare(w->direct);
        tether_test_proxy_swallow_after(w->proxy, under(w, "r/"));
        struct run run = {.store = w->store, .call = row->call};
        run_start(&run);
        assert_eventually(row->happened(w));
        tether_test_proxy_cut(w->proxy, false);
        run_join(&run);
        assert_true(tether_test_proxy_seen(w->proxy) >= 2);
        row->verify(w, &run);
        tether_buf_fini(&run.value);
        world_teardown((void **)&w);
    }
}

/* Three copies of one request reach etcd, the last one after the client's lease has ended. */
static void change_is_applied_once_when_late_copies_arrive(void **state)
{
    struct world *w = *state;
    struct tether__etcd_channel *channel = tether__etcd_channel(w->client);
    const char *key = under(w, "k");
    struct tether__etcd_op put = {.kind = TETHER__ETCD_PUT, .key = tether_bytes_str(key)};
    struct tether__etcd_change change = {.then = &put, .n_then = 1};
    struct tether__etcd_receipt receipt = {.key = tether_bytes_str("once/receipt")};
    assert_ok(tether__etcd_lease_grant(w->client, 60, etcd_soon(), &receipt.lease, err));
    Etcdserverpb__TxnRequest *request = tether__etcd_change_request(&change, &receipt);

    int64_t version;
    for (int copy = 0; copy < 2; copy++) {
        ProtobufCMessage *reply = NULL;
        assert_ok(tether__etcd_call(channel, &tether__etcd_txn, &request->base, etcd_soon(), NULL,
                                    &reply, err));
        assert_int_equal(((Etcdserverpb__TxnResponse *)reply)->succeeded, copy == 0);
        tether__pb_free(reply);
        etcd_look(w->client, key, NULL, &version);
        assert_int_equal(version, 1);
    }
    assert_ok(etcd_revoke(w->client, receipt.lease));
    assert_int_equal(etcd_look(w->client, "once/receipt", NULL, NULL), 0);
    ProtobufCMessage *reply = NULL;
    assert_status(tether__etcd_call(channel, &tether__etcd_txn, &request->base, etcd_soon(), NULL,
                                    &reply, NULL),
                  TETHER_ENOTFOUND);
    etcd_look(w->client, key, NULL, &version);
    assert_int_equal(version, 1);
    tether__free(request);
}

/* The reply is lost and the lease of the receipt has ended: the result cannot be known. */
static void change_is_reported_in_doubt_when_reply_and_lease_are_lost(void **state)
{
    struct world *w = *state;
    tether_store *store = w->direct;
    SET("key", "41");
    ADD("key", 0, 41);
    tether_test_proxy_swallow_after(w->proxy, under(w, "r/"));
    struct run run = {.store = w->store, .call = call_add};
    run_start(&run);
    assert_eventually(is(w->direct, "key", "42"));

    /* The proxy has seen the request. Its lease is that of the receipt with the value "+". */
    struct tether__etcd_op range = {.key = tether_bytes_str(under(w, "r/")),
                                    .end = tether_bytes_str(under(w, "r0"))};
    Etcdserverpb__TxnResponse *reply = NULL;
    assert_ok(tether__etcd_read(w->client, &range, 1, etcd_soon(), &reply, err));
    const Etcdserverpb__RangeResponse *receipts = reply->responses[0]->response_range;
    for (size_t i = 0; i < receipts->n_kvs; i++)
        etcd_revoke(w->client, receipts->kvs[i]->lease);
    tether__pb_free(reply);

    tether_test_proxy_cut(w->proxy, false);
    pthread_join(run.thread, NULL);
    assert_status(run.status, TETHER_EUNAVAILABLE);
    assert_non_null(strstr(run.error.message, "may have been applied"));
    store = w->store; /* the client continues with a new lease */
    ADD("key", 1, 43);
    store = w->direct;
    ADD("key", 1, 44);
}

/* ---- Counting through kills ----------------------------------------------------------------- */

#define THREADS 4
#define ROUNDS 60

struct counter {
    tether_store *store;
    int id;
    pthread_t thread;
    tether_status status;
    tether_error error;
    bool seen[THREADS * ROUNDS + 1]; /* the sums that the calls returned */
    int popped;
};

static atomic_int rounds_done;

static void *count_thread(void *arg)
{
    struct counter *c = arg;
    char letter[2] = {(char)('a' + c->id), '\0'};
    for (int i = 0; i < ROUNDS && c->status == TETHER_OK; i++) {
        int64_t sum = 0;
        tether_buf value = TETHER_BUF_INIT;
        c->status = tether_store_add(c->store, "sum", 1, LIMIT, &sum, &c->error);
        if (c->status == TETHER_OK && sum > 0 && sum <= THREADS * ROUNDS)
            c->seen[sum] = true;
        if (c->status == TETHER_OK)
            c->status =
                tether_store_append(c->store, "text", tether_bytes_str(letter), LIMIT, &c->error);
        if (c->status == TETHER_OK)
            c->status =
                tether_store_queue_push(c->store, "q", tether_bytes_str(letter), LIMIT, &c->error);
        if (c->status == TETHER_OK && i % 2) {
            c->status = tether_store_queue_pop(c->store, "q", LIMIT, &value, &c->error);
            c->popped++;
        }
        tether_buf_fini(&value);
        atomic_fetch_add(&rounds_done, 1);
    }
    return NULL;
}

static void adds_are_applied_once_when_etcd_is_killed(void **state)
{
    struct world *w = *state;
    tether_store *store = w->direct;
    static struct counter counters[THREADS];
    memset(counters, 0, sizeof counters);
    atomic_store(&rounds_done, 0);
    for (int i = 0; i < THREADS; i++) {
        counters[i].id = i;
        counters[i].store = i % 2 ? w->direct : w->store;
        pthread_create(&counters[i].thread, NULL, count_thread, &counters[i]);
    }
    for (int kills = 1; kills <= 4; kills++) {
        assert_eventually(atomic_load(&rounds_done) >= kills * THREADS * ROUNDS / 5);
        tether_test_etcd_restart(etcd);
    }
    bool seen[THREADS * ROUNDS + 1] = {false};
    int popped = 0;
    for (int i = 0; i < THREADS; i++) {
        pthread_join(counters[i].thread, NULL);
        if (counters[i].status != TETHER_OK)
            fail_msg("%s: %s", tether_status_name(counters[i].status), counters[i].error.message);
        popped += counters[i].popped;
        for (int sum = 1; sum <= THREADS * ROUNDS; sum++) {
            assert_false(seen[sum] && counters[i].seen[sum]); /* no two calls got the same sum */
            seen[sum] = seen[sum] || counters[i].seen[sum];
        }
    }
    for (int sum = 1; sum <= THREADS * ROUNDS; sum++)
        assert_true(seen[sum]);
    ADD("sum", 0, THREADS * ROUNDS);
    tether_buf text = TETHER_BUF_INIT;
    assert_ok(tether_store_get(store, "text", LIMIT, &text, err));
    assert_int_equal(text.len, THREADS * ROUNDS);
    tether_buf_fini(&text);
    int64_t len;
    assert_ok(tether_store_queue_len(store, "q", LIMIT, &len, err));
    assert_int_equal(len, THREADS * ROUNDS - popped);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    etcd = tether_test_etcd_start(NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(change_is_applied_once_when_reply_is_lost),
        WORLD_TEST(change_is_applied_once_when_late_copies_arrive),
        WORLD_TEST(change_is_reported_in_doubt_when_reply_and_lease_are_lost),
        WORLD_TEST(adds_are_applied_once_when_etcd_is_killed),
    };
    int failed = cmocka_run_group_tests_name("etcd store, once", tests, NULL, NULL);
    tether_test_etcd_free(etcd);
    return failed;
}
