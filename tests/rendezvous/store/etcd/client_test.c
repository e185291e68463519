/* The etcd client alone: the calls that the rendezvous and the start of an agent use. */
#include <stdio.h>

#include "rendezvous/store/etcd/client/watch.h"
#include "tests/rendezvous/store/etcd/fixture.h"

#define LIMIT TETHER_TEST_LIMIT_MS

static bool value_is(const struct tether__etcd_value *value, const char *text)
{
    return tether_bytes_equal(tether_buf_bytes(&value->bytes), tether_bytes_str(text));
}

static void compare_put_changes_nothing_when_revision_is_old(void **state)
{
    struct world *w = *state;
    struct tether__etcd_value mine = TETHER__ETCD_VALUE_INIT, theirs = TETHER__ETCD_VALUE_INIT;
    tether_bytes key = tether_bytes_str(under(w, "state"));
    int64_t revision = 0;
    bool done = false;
    assert_ok(tether__etcd_get(w->client, key, etcd_soon(), &mine, &revision, err));
    assert_int_equal(mine.mod_revision, 0);
    assert_true(revision > 0);
    assert_ok(tether__etcd_compare_put(w->client, key, tether_bytes_str("one"), (tether_bytes){0},
                                       etcd_soon(), &mine, &done, err));
    assert_true(done && value_is(&mine, "one") && mine.mod_revision > revision);

    /* Another client, whose revision is outdated: it expects no key. */
    assert_ok(tether__etcd_compare_put(w->client, key, tether_bytes_str("uno"), (tether_bytes){0},
                                       etcd_soon(), &theirs, &done, err));
    assert_true(!done && value_is(&theirs, "one") && theirs.mod_revision == mine.mod_revision);
    assert_ok(tether__etcd_compare_put(w->client, key, tether_bytes_str("due"), (tether_bytes){0},
                                       etcd_soon(), &theirs, &done, err));
    assert_true(done);

    assert_ok(tether__etcd_compare_put(w->client, key, tether_bytes_str("two"), (tether_bytes){0},
                                       etcd_soon(), &mine, &done, err));
    assert_true(!done && value_is(&mine, "due"));
    assert_ok(tether__etcd_delete(w->client, key, etcd_soon(), &done, err));
    assert_true(done);
    assert_ok(tether__etcd_compare_put(w->client, key, tether_bytes_str("two"), (tether_bytes){0},
                                       etcd_soon(), &mine, &done, err));
    assert_true(!done && mine.mod_revision == 0 && mine.bytes.len == 0);
    assert_ok(tether__etcd_delete(w->client, key, etcd_soon(), &done, err));
    assert_false(done);
    tether_buf_fini(&mine.bytes);
    tether_buf_fini(&theirs.bytes);
}

static void lease_deletes_its_keys_when_revoked(void **state)
{
    struct world *w = *state;
    tether_bytes key = tether_bytes_str(under(w, "node"));
    struct tether__etcd_value value = TETHER__ETCD_VALUE_INIT;
    int64_t lease = 0;
    assert_ok(tether__etcd_lease_grant(w->client, 60, etcd_soon(), &lease, err));
    assert_true(lease != 0);
    assert_ok(tether__etcd_put(w->client, key, tether_bytes_str("here"), lease, etcd_soon(), err));
    assert_ok(tether__etcd_lease_keepalive(w->client, lease, etcd_soon(), err));
    assert_ok(tether__etcd_get(w->client, key, etcd_soon(), &value, NULL, err));
    assert_true(value_is(&value, "here"));
    assert_ok(etcd_revoke(w->client, lease));
    assert_ok(tether__etcd_get(w->client, key, etcd_soon(), &value, NULL, err));
    assert_int_equal(value.mod_revision, 0);
    tether_buf_fini(&value.bytes);

    assert_status(tether__etcd_lease_keepalive(w->client, lease, etcd_soon(), NULL),
                  TETHER_ENOTFOUND);
    assert_status(etcd_revoke(w->client, lease), TETHER_ENOTFOUND);
    assert_status(tether__etcd_put(w->client, key, tether_bytes_str("x"), lease, etcd_soon(), NULL),
                  TETHER_ENOTFOUND);
    /* The client's own lease is still valid. */
    assert_ok(tether__etcd_put(w->client, key, tether_bytes_str("x"), 0, etcd_soon(), err));
}

/* One second is the shortest lease of etcd. Its end is seen as a deletion. */
static void lease_deletes_its_keys_when_expired(void **state)
{
    struct world *w = *state;
    struct tether__etcd_span span = {.key = tether_bytes_str(under(w, "node"))};
    struct tether__etcd_watch *watch = NULL;
    Etcdserverpb__WatchResponse *events = NULL;
    int64_t lease = 0, revision = 0;
    struct tether__etcd_value value = TETHER__ETCD_VALUE_INIT;
    assert_ok(tether__etcd_lease_grant(w->client, 1, etcd_soon(), &lease, err));
    assert_ok(
        tether__etcd_put(w->client, span.key, tether_bytes_str("x"), lease, etcd_soon(), err));
    assert_ok(tether__etcd_get(w->client, span.key, etcd_soon(), &value, &revision, err));
    tether_buf_fini(&value.bytes);
    assert_ok(
        tether__etcd_watch_new(w->client, &span, 1, false, revision, etcd_soon(), &watch, err));
    assert_ok(tether__etcd_watch_next(watch, &events, err));
    assert_int_equal(events->n_events, 1);
    assert_int_equal(events->events[0]->type, MVCCPB__EVENT__EVENT_TYPE__DELETE);
    tether__pb_free(events);
    tether__etcd_watch_free(watch);
}

/* Receipts: few while the client lives, none afterwards. */
static void receipts_are_deleted_when_client_is_closed(void **state)
{
    struct world *w = *state;
    const char *receipts = under(w, "r/");
    struct tether__etcd *client = etcd_client(tether_test_etcd_endpoint(etcd), w->prefix);
    for (int i = 0; i < 20; i++)
        assert_ok(tether__etcd_put(client, tether_bytes_str(under(w, "k/x")), tether_bytes_str("x"),
                                   0, etcd_soon(), err));
    assert_int_equal(etcd_look(w->client, receipts, NULL, NULL), 1);
    tether__etcd_free(client);
    assert_int_equal(etcd_look(w->client, receipts, NULL, NULL), 0);
}

/* The client's lease is revoked between two changes; the client makes another one. */
static void add_succeeds_when_lease_of_client_is_revoked(void **state)
{
    struct world *w = *state;
    tether_store *store = w->direct;
    SET("key", "value");
    for (int i = 0; i < 3; i++) {
        struct tether__etcd_op range = {.key = tether_bytes_str(under(w, "r/")),
                                        .end = tether_bytes_str(under(w, "r0"))};
        Etcdserverpb__TxnResponse *reply = NULL;
        assert_ok(tether__etcd_read(w->client, &range, 1, etcd_soon(), &reply, err));
        const Etcdserverpb__RangeResponse *found = reply->responses[0]->response_range;
        assert_int_equal(found->n_kvs, 1);
        assert_ok(etcd_revoke(w->client, found->kvs[0]->lease));
        tether__pb_free(reply);
        ADD("sum", 1, i + 1);
    }
}

/* Sends to a stream that etcd has ended. The stream must report its status at once, even if a
 * message is left to be read, or if nothing has been read yet. */
static void send_fails_when_etcd_has_ended_the_stream(void **state)
{
    struct world *w = *state;
    struct tether__etcd_channel *channel = tether__etcd_channel(w->client);
    const struct tether__etcd_method refused = {"/etcdserverpb.Watch/None",
                                                tether__etcd_watch_stream.reply};
    /* etcd answers one request with one message and ends the stream. */
    const struct tether__etcd_method answered = {"/etcdserverpb.KV/Txn", tether__etcd_txn.reply};
    const struct tether__etcd_method *methods[] = {&refused, &answered};
    const Etcdserverpb__TxnRequest request = ETCDSERVERPB__TXN_REQUEST__INIT;
    struct tether__etcd_value value = TETHER__ETCD_VALUE_INIT;
    for (int i = 0; i < 2; i++) {
        struct tether__etcd_try try = TETHER__ETCD_TRY(etcd_soon());
        struct tether__etcd_stream *stream = tether__etcd_stream_open(channel, methods[i], &try);
        assert_non_null(stream);
        if (i == 1)
            assert_true(tether__etcd_stream_send(stream, &request.base, &try));
        /* calls on the same connection, so that its end is received */
        for (int calls = 0; calls < 5; calls++)
            assert_ok(
                tether__etcd_get(w->client, tether_bytes_str("x"), etcd_soon(), &value, NULL, err));
        assert_false(tether__etcd_stream_send(stream, &request.base, &try));
        assert_true(tether__deadline_left_ms(&tether__clock_system, try.deadline) > 0);
        tether__etcd_stream_free(stream);
    }
    tether_buf_fini(&value.bytes);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    etcd = tether_test_etcd_start(NULL);
    const struct CMUnitTest tests[] = {
        WORLD_TEST(compare_put_changes_nothing_when_revision_is_old),
        WORLD_TEST(lease_deletes_its_keys_when_revoked),
        WORLD_TEST(lease_deletes_its_keys_when_expired),
        WORLD_TEST(receipts_are_deleted_when_client_is_closed),
        WORLD_TEST(add_succeeds_when_lease_of_client_is_revoked),
        WORLD_TEST(send_fails_when_etcd_has_ended_the_stream),
    };
    int failed = cmocka_run_group_tests_name("etcd client", tests, NULL, NULL);
    tether_test_etcd_free(etcd);
    return failed;
}
